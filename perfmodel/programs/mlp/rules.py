"""What the trainer accepts: sizes and settings that go together, and the words of its refusals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from perfmodel.base.errors import WorkloadError
from perfmodel.programs.mlp.settings import GEMMS, SETTINGS, TRANSPORTS
from perfmodel.workloads.work import Symbol

SIZES: Final = {
    "D": "input size",
    "H": "hidden size",
    "C": "number of classes",
    "B": "batch size of all ranks together",
    "p": "ranks",
    "b": "bytes per element",
}
TRAIN_IMAGES: Final = 60_000
"""Images of MNIST's training set: what an epoch is, unless said otherwise."""

INSTEAD: Final[Mapping[str, Mapping[str, str]]] = {
    "gemm": {"fused": "hierarchical"}, "transport": {"peer": "nccl"},
}  # fmt: skip
"""By flag, what is not made for --parallel model, and what is."""
MOST_CLASSES: Final[Mapping[int, int]] = {4: 32, 8: 16}
"""By bytes of an element, what --gemm fused keeps in registers."""
_DTYPES: Final = {4: "float32", 8: "float64"}


def accepted(
    sizes: Mapping[str, int], settings: Mapping[str, str]
) -> tuple[dict[str, int], dict[str, str]]:
    """Return the sizes and the settings of a run of the trainer, defaults filled in.

    Raises
    ------
    WorkloadError
        If a size is missing, not positive or impossible, or a setting is unknown or goes with
        no other.
    """
    unknown = [name for name in settings if name not in SETTINGS]
    if unknown:
        raise WorkloadError(
            f"expected settings among {', '.join(SETTINGS)}; got {unknown[0]!r}; leave it out"
        )
    checked = {
        name: Symbol(name, meaning).check(sizes.get(name)) for name, meaning in SIZES.items()
    }
    if checked["p"] > checked["B"]:
        raise WorkloadError(
            f"expected at most as many ranks as images in a batch; got p={checked['p']}, "
            f"B={checked['B']}; take a larger batch or fewer ranks"
        )
    full = {name: settings.get(name, values[0]) for name, values in SETTINGS.items()}
    if "data_on" not in settings:
        pinned = full["transport"] == "pinned" and full["backend"] != "numpy"
        full["data_on"] = "pinned" if pinned else "host"
    for name, value in full.items():
        if value not in SETTINGS[name]:
            raise WorkloadError(
                f"expected {name} among {', '.join(SETTINGS[name])}; got {value!r}; take one"
            )
    if full["backend"] != "numpy":
        for said in refusals(full, checked["b"], checked["C"]):
            raise WorkloadError(said)
    if full["parallel"] == "model" and checked["p"] > checked["H"]:
        raise WorkloadError(
            f"expected at most as many ranks as hidden units; got p={checked['p']}, "
            f"H={checked['H']}; take fewer ranks"
        )
    if full["transport"] == "none" and checked["p"] > 1:
        raise WorkloadError(
            f"expected a transport for {checked['p']} ranks; got 'none', which sums nothing; take "
            "host, pinned or nccl"
        )
    return checked, full


def refusals(settings: Mapping[str, str], item_bytes: int, classes: int) -> Iterator[str]:
    """Say what does not go together, in the trainer's order and words.

    Parameters
    ----------
    settings : mapping of str to str
        Of `SETTINGS`, those that are known.
    item_bytes : int
        b, of an element.
    classes : int
        C.
    """
    s = {"math": "ieee", "gemm": "cublas", "parallel": "data", "transport": "host", **settings}
    math, gemm, dtype = s["math"], s["gemm"], _DTYPES.get(item_bytes, f"{item_bytes} bytes")
    if math != "ieee" and dtype != "float32":
        yield (
            f"--math {math}: expected --dtype float32, whose factors it rounds or splits; "
            f"got {dtype}; leave one of them out"
        )
    if math != "ieee" and math not in GEMMS[gemm].maths:
        yield (
            f"--math {math}: expected a --gemm that multiplies so "
            f"({', '.join(n for n, g in GEMMS.items() if math in g.maths)}); got {gemm}; "
            "take one of those"
        )
    if s["parallel"] == "model" and s.get("overlap") == "yes":
        yield (
            "--overlap: hides one gradient's sum behind another's GEMM: expected --parallel "
            "data; got model, whose only sum is needed at once; leave out --overlap"
        )
    if s["parallel"] == "model":
        for flag, instead in INSTEAD.items():
            if s[flag] in instead:
                yield (
                    f"--{flag} {s[flag]}: is made for --parallel data; got --parallel model; "
                    f"use --{flag} {instead[s[flag]]}"
                )
    most = MOST_CLASSES.get(item_bytes, classes)
    if s["gemm"] == "fused" and classes > most:
        yield (
            f"--gemm fused: keeps an image's classes in registers: expected --num-classes of at "
            f"most {most} in {dtype}; got {classes}; use --gemm hierarchical"
        )
    if s.get("overlap") == "yes" and not TRANSPORTS[s["transport"]].overlaps:
        yield (
            f"--overlap: expected a transport with a non-blocking form "
            f"({', '.join(n for n, t in TRANSPORTS.items() if t.overlaps)}); "
            f"got {s['transport']}; leave out --overlap"
        )
    if s.get("graph") != "yes":
        return
    on = s.get("data_on", "device")
    if on != "device":
        yield (
            f"--graph: not captured: batches are copied from the host (--data-on {on}); "
            "use --data-on device"
        )
    if TRANSPORTS[s["transport"]].by_host:
        yield (
            "--graph: not captured: MPI sums on the host, which a CUDA graph cannot call; use "
            "--transport nccl"
        )
    if TRANSPORTS[s["transport"]].links == "mpi-gpu":
        yield (
            "--graph: not captured: MPI is called by the host, which a CUDA graph cannot do; use "
            "--transport nccl"
        )
