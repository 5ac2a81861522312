"""What the ladder times: configurations of the trainer, PyTorch's peers, and the sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from perfmodel.studies.mlp.changes import CHANGES

MATHS: Final = {
    "fp32": "IEEE float32",
    "tf32": "float32 with factors of GEMMs rounded to TF32",
    "tf32x3": "float32 GEMMs as TF32 GEMMs of split factors",
}
SIZES: Final = {"512:3000": (512, 3000), "2048:12000": (2048, 12000), "64:3200": (64, 3200)}
"""H and B, D = 784 and C = 10; 60000 images."""


@dataclass(frozen=True)
class Rung:
    """One step up: a small change of the trainer's settings.

    Attributes
    ----------
    after : str or None
        The rung that this one changes.
    change, removes : str
        What is changed, and which term of the step's time that removes.
    settings : dict
        Fields of `trainer.config.Config`.
    hidden : tuple of int
        Only at these H; empty is all.
    ranks : (int, int)
        Fewest and most ranks it is for.
    """

    name: str
    after: str | None
    change: str
    removes: str
    settings: dict[str, Any]
    maths: tuple[str, ...] = ("fp32", "tf32")
    hidden: tuple[int, ...] = ()
    ranks: tuple[int, int] = (1, 1 << 20)


_PINNED = {"data_on": "pinned", "transport": "pinned"}
_RESIDENT = {"data_on": "device", "transport": "host-flat"}
_NCCL = {"data_on": "device", "transport": "nccl"}
_GRAPH = {**_NCCL, "graph": True}
_FUSED = {**_GRAPH, "gemm": "fused"}
_MODEL = {"data_on": "device", "parallel": "model"}
FP32: Final = ("fp32",)

_SAID: Final = {change.name: (change.change, change.removes) for change in CHANGES}
"""What perfmodel calls the changes, and which term it says they remove."""
_OVERLAP: Final = _SAID["overlap"]

RUNGS: Final = (
    Rung("document", None, "the assignment's program: pageable memory, one MPI all-reduce a tensor",
         "", {"data_on": "host", "transport": "host"}),
    Rung("pinned", "document", *_SAID["pinned"], _PINNED, FP32),
    Rung("host-flat", "pinned", *_SAID["host-flat"], {**_PINNED, "transport": "host-flat"}, FP32),
    Rung("prefetch", "host-flat", *_SAID["prefetch"],
         {"data_on": "prefetch", "transport": "host-flat"}, FP32),
    Rung("resident", "prefetch", *_SAID["resident"], _RESIDENT),
    Rung("chunked", "resident", *_SAID["chunked"], {**_RESIDENT, "transport": "chunked"}, FP32),
    Rung("chunked overlap", "chunked", *_OVERLAP,
         {**_RESIDENT, "transport": "chunked", "overlap": True}, FP32),
    Rung("cuda-aware", "resident", "MPI_Allreduce on GPU pointers",
         "the copies in our code", {**_RESIDENT, "transport": "cuda-aware"}, FP32),
    Rung("ring", "cuda-aware", *_SAID["ring"], {**_RESIDENT, "transport": "ring"}, FP32,
         ranks=(2, 1 << 20)),
    Rung("nccl", "resident", *_SAID["nccl"], _NCCL),
    Rung("nccl overlap", "nccl", "two all-reduces, the first beside W1's GEMM",
         _OVERLAP[1], {**_NCCL, "overlap": True}),
    Rung("graph", "nccl", *_SAID["graph"], _GRAPH),
    Rung("graph overlap", "graph", "the same, the first all-reduce beside W1's GEMM",
         _OVERLAP[1], {**_GRAPH, "overlap": True}),
    Rung("naive gemm", "graph", "GEMMs by a kernel of one thread per element",
         "nothing: it shows what cuBLAS is worth", {**_GRAPH, "gemm": "naive"}, FP32, (512,)),
    Rung("tiled gemm", "naive gemm", "tiles in shared memory",
         "most loads from L2", {**_GRAPH, "gemm": "tiled"}, FP32, (512,)),
    Rung("register gemm", "tiled gemm", "a tile of the result in each thread's registers",
         "most loads from shared memory", {**_GRAPH, "gemm": "register"}, FP32, (512,)),
    Rung("thin", "graph", *_SAID["thin"], {**_GRAPH, "gemm": "thin"}),
    Rung("hierarchical", "thin", *_SAID["hierarchical"], {**_GRAPH, "gemm": "hierarchical"}),
    Rung("fused", "hierarchical", *_SAID["fused"], _FUSED),
    Rung("fused x3", "fused", *_SAID["tf32x3"], {**_FUSED, "math": "tf32x3"}, FP32),
    Rung("fused alone", "fused", "the same without an all-reduce",
         "NCCL's call on one rank", {**_FUSED, "transport": "none"}, ranks=(1, 1)),
    Rung("peer", "fused", *_SAID["peer"], {**_FUSED, "transport": "peer"}, ranks=(2, 1 << 20)),
    Rung("peer x3", "fused x3", "the same on top of the split GEMMs", _SAID["peer"][1],
         {**_FUSED, "transport": "peer", "math": "tf32x3"}, FP32, ranks=(2, 1 << 20)),
    Rung("model host", "resident", "ranks share the hidden neurons; z2 summed by MPI",
         _SAID["model parallel"][1], {**_MODEL, "transport": "host-flat"}, FP32),
    Rung("model nccl", "model host", "z2 summed by NCCL",
         "copies over PCIe", {**_MODEL, "transport": "nccl"}),
    Rung("model graph", "model nccl",
         "as one CUDA graph, with own kernels for small GEMMs, in IEEE float32 also in tf32: all "
         "five GEMMs where H / p is at most 32",
         "launches and gaps", {**_MODEL, "transport": "nccl", "graph": True, "gemm": "thin"}),
)  # fmt: skip
"""From the assignment's program up; `after` may go back: steps branch."""

PEERS: Final = (
    "graph", "graph_manual", "graph_branches", "graph_compiled", "graph_overlap", "ddp_eager",
    "ddp_compiled",
)  # fmt: skip
"""Timed unless --peers says otherwise; `torch_graphs.kinds` has them all."""


@dataclass(frozen=True)
class Cell:
    """A size and a way to compute products."""

    hidden: int
    batch: int
    math: str
    images: int = 60000
    inputs: int = 784
    classes: int = 10
    seed: int = 1

    def config(self, settings: dict[str, Any] | None = None) -> Any:
        """Return the trainer's Config of a rung."""
        from trainer.config import Config

        return Config(
            input_size=self.inputs, hidden_size=self.hidden, num_classes=self.classes,
            batch_size=self.batch, data="synthetic", train_size=self.images, seed=self.seed,
            **({"math": "tf32" if self.math == "tf32" else "ieee"} | (settings or {})),
        )  # fmt: skip

    @property
    def meaning(self) -> str:
        """Say what the way to compute products is."""
        return MATHS[self.math]

    @property
    def rungs(self) -> list[tuple[int, Rung]]:
        """Return the rungs that make sense here, with their places on the ladder."""
        return [
            (place, rung)
            for place, rung in enumerate(RUNGS)
            if self.math in rung.maths and (not rung.hidden or self.hidden in rung.hidden)
        ]

    def __str__(self) -> str:
        return f"H={self.hidden} B={self.batch} {self.math}"
