"""Ranges, transports and other settings of the trainer, and the flags that choose them.

perfmodel and the trainer do not import each other; tests/programs/test_mlp_rules.py compares the
tables and the words with the trainer's own. A transport is added here: a row of `TRANSPORTS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

BATCH_RANGE: Final = "batch iteration"
COPY: Final = "copying images host -> device"
NCCL: Final = "ncclAllReduce"
PEER: Final = "peer all-reduce and step"
GRAPH: Final = "CUDA graph"
D2H: Final = "cudaMemcpyDeviceToHost"
H2D: Final = "cudaMemcpyHostToDevice"
SYNC: Final = "cudaDeviceSynchronize"
REDUCE: Final = "MPI_Allreduce"

LAYER_1: Final = ("forward GEMM 1", "backward GEMM 3")
LAYER_2: Final = ("forward GEMM 2", "backward GEMM 1", "backward GEMM 2")
GEMM_LOOPS: Final[Mapping[str, str]] = {
    "forward GEMM 1": "HDB",  # z1 = W1 x
    "forward GEMM 2": "CHB",  # z2 = W2 a1
    "backward GEMM 1": "HCB",  # da1 = W2^T dz2
    "backward GEMM 2": "CBH",  # dW2 = dz2 a1^T
    "backward GEMM 3": "HBD",  # dW1 = dz1 x^T
}
"""Every GEMM and the dimensions that its loops i, k and j run over: 2 i k j FLOPs."""
OWN_GEMMS: Final = ("hierarchical", "fused")
"""Values of --gemm whose kernels for large GEMMs are the trainer's own."""
HIDDEN_FLOPS: Final = {"forward": 5, "backward": 4}
"""Of a hidden unit and image: bias 1, sigmoid 4; gradient 3, sum for b1 1."""
OUTPUT_FLOPS: Final = {"forward": 8, "backward": 1}
"""Of a class and image: bias 1, softmax 5, gradient 2; sum for b2 1."""

Links = Literal["host", "mpi", "mpi-gpu", "nccl", "peer", "none"]
"""What sums over the ranks: MPI between copies, MPI alone, MPI on GPU memory, NCCL, one kernel,
nothing."""
LINKS: Final[Mapping[Links, tuple[str, ...]]] = {
    "host": (D2H, REDUCE, H2D, "step"),
    "mpi": (REDUCE, "step"),
    "mpi-gpu": (SYNC, REDUCE, "step"),
    "nccl": (NCCL, "step"),
    "peer": (PEER,),
    "none": ("step",),
}
"""Ranges of a batch that differ by them, in their order."""


@dataclass(frozen=True, slots=True)
class Transport:
    """The way that gradients are summed over the ranks.

    Attributes
    ----------
    links : {'host', 'mpi', 'mpi-gpu', 'nccl', 'peer', 'none'}
        Ranges and formulas that a batch has.
    buffers : {'pageable', 'pinned', 'device'}
        Memory of the buffers that are summed.
    messages : int
        All-reduces of a data-parallel batch.
    overlaps : bool
        Whether it has a non-blocking form.
    """

    links: Links
    buffers: Literal["pageable", "pinned", "device"]
    messages: int = 4
    overlaps: bool = False

    @property
    def by_host(self) -> bool:
        """Whether MPI sums in host memory, which a CUDA graph cannot call."""
        return self.links == "host"


TRANSPORTS: Final[Mapping[str, Transport]] = {
    "host": Transport("host", "pageable", overlaps=True),
    "pinned": Transport("host", "pinned", overlaps=True),
    "host-flat": Transport("host", "pinned", 1, overlaps=True),
    "chunked": Transport("host", "pinned", 1, overlaps=True),
    "cuda-aware": Transport("mpi-gpu", "device", 1),
    "ring": Transport("mpi-gpu", "device", 1),
    "nccl": Transport("nccl", "device", overlaps=True),
    "peer": Transport("peer", "device"),
    "none": Transport("none", "device", 0),
}
ON_DEVICE: Final = tuple(n for n, t in TRANSPORTS.items() if t.links in ("nccl", "peer", "none"))
"""Transports that the host only queues, and a CUDA graph holds."""


@dataclass(frozen=True, slots=True)
class Gemm:
    """Kernels of the GEMMs.

    Attributes
    ----------
    maths : tuple of str
        How they multiply float32: values of --math.
    cublas : tuple of str
        Values of --math of which cuBLAS multiplies the large GEMMs.
    """

    maths: tuple[str, ...] = ("ieee",)
    cublas: tuple[str, ...] = ()


GEMMS: Final[Mapping[str, Gemm]] = {
    "cublas": Gemm(("ieee", "tf32"), ("ieee", "tf32")),
    "naive": Gemm(),
    "tiled": Gemm(),
    "register": Gemm(),
    "hierarchical": Gemm(("ieee", "tf32", "tf32x3")),
    "thin": Gemm(("ieee", "tf32"), ("ieee", "tf32")),
    "fused": Gemm(("ieee", "tf32", "tf32x3"), ("tf32",)),
}
DATA_ON: Final[Mapping[str, str]] = {
    "host": "pageable", "pinned": "pinned", "prefetch": "prefetch", "device": "",
}  # fmt: skip
"""Places of images, and the memory that every batch copies them from."""

SETTINGS: Final[Mapping[str, tuple[str, ...]]] = {
    "transport": tuple(TRANSPORTS),
    "data_on": tuple(DATA_ON),
    "gemm": tuple(GEMMS),
    "math": ("ieee", "tf32", "tf32x3"),
    "parallel": ("data", "model"),
    "graph": ("no", "yes"),
    "overlap": ("no", "yes"),
    "sync": ("no", "yes"),
    "backend": ("cupy", "numpy"),
}
"""Settings of the trainer that change what a batch costs; the first value is the default."""


def gemm_flops(i: float, k: float, j: float) -> float:
    """Return the FLOPs of an (i, k) by (k, j) GEMM: a multiply-add is two."""
    return 2 * i * k * j


def parameters(d: float, h: float, c: float) -> float:
    """Return the elements of W1, b1, W2 and b2: n = HD + H + CH + C."""
    return h * d + h + c * h + c


SETTING_FLAGS: Final = {
    "transport": "How gradients are summed over the ranks.",
    "data_on": "Where the images are.",
    "gemm": "Kernels of the GEMMs.",
    "math": "How the GEMMs multiply float32.",
    "parallel": "What the ranks share: the batch, or the hidden units.",
}
"""Settings of the trainer that commands take, with their help; values as in `SETTINGS`."""
SWITCH_FLAGS: Final = {
    "graph": "Run the step as a CUDA graph.",
    "overlap": "Sum gradients while others are computed.",
    "sync": "With the assignment's barriers and synchronizations.",
}
"""Settings that are on or off: by name, the help."""
FORMULA_SETTINGS: Final = ("parallel", "transport")
"""Settings that change what a rank computes and moves."""
LEADING_SETTING: Final = "transport"
"""The setting that a configuration is called by."""


def settings_of(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings that a configuration mark gives, switches as 'yes' and 'no'."""
    found = {}
    for name in SETTINGS:
        said = config.get("sync_ranges" if name == "sync" else name)
        if name == "gemm" and config.get("backend") == "numpy":
            continue  # the BLAS that NumPy has
        if isinstance(said, bool):
            found[name] = "yes" if said else "no"
        elif isinstance(said, str):
            found[name] = said
    return found


def unusual(settings: Mapping[str, str]) -> list[str]:
    """Return the values that are not the default, in words."""
    usual = ("no", "data", "cublas", "ieee", "cupy")
    return [
        name if value == "yes" else f"on {value}" if name == "data_on" else value
        for name, value in settings.items()
        if value not in usual and not (name == "data_on" and value == settings.get("transport"))
    ]
