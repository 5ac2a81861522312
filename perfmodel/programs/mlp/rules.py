"""Settings that the trainer refuses together: its rules, in its words.

perfmodel and the trainer do not import each other; tests/test_predict_rules.py compares this table
and the words with the trainer's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from perfmodel.base.errors import WorkloadError

ABLE: Final[Mapping[str, tuple[str, ...]]] = {
    "tf32": ("cublas", "hierarchical", "thin", "fused"),
    "tf32x3": ("hierarchical", "fused"),
}
"""By --math, which --gemm multiplies so."""
INSTEAD: Final[Mapping[str, Mapping[str, str]]] = {
    "gemm": {"fused": "hierarchical"}, "transport": {"peer": "nccl"},
}  # fmt: skip
"""By flag, what is not made for --parallel model, and what is."""
MOST_CLASSES: Final[Mapping[int, int]] = {4: 32, 8: 16}
"""By bytes of an element, what --gemm fused keeps in registers."""
BY_THE_HOST: Final = ("host", "pinned", "host-flat", "chunked")
"""Transports whose sums a CUDA graph cannot call."""
OVERLAPPING: Final = ("host", "pinned", "host-flat", "chunked", "nccl")
"""Transports with a non-blocking form."""
_DTYPES: Final = {4: "float32", 8: "float64"}


def check(settings: Mapping[str, str], item_bytes: int, classes: int) -> None:
    """Refuse settings that the trainer refuses.

    Parameters
    ----------
    settings : mapping of str to str
        Of `perfmodel.programs.mlp.case.SETTINGS`, those that are known.
    item_bytes : int
        b, of an element.
    classes : int
        C.

    Raises
    ------
    WorkloadError
        With the trainer's own words.
    """
    for said in refusals(settings, item_bytes, classes):
        raise WorkloadError(said)


def refusals(settings: Mapping[str, str], item_bytes: int, classes: int) -> Iterator[str]:
    """Say what does not go together, in the order in which the trainer looks."""
    s = {"math": "ieee", "gemm": "cublas", "parallel": "data", "transport": "host", **settings}
    math, gemm, dtype = s["math"], s["gemm"], _DTYPES.get(item_bytes, f"{item_bytes} bytes")
    if math != "ieee" and dtype != "float32":
        yield (
            f"--math {math}: expected --dtype float32, whose factors it rounds or splits; "
            f"got {dtype}; leave one of them out"
        )
    if math != "ieee" and gemm not in ABLE[math]:
        yield (
            f"--math {math}: expected a --gemm that multiplies so "
            f"({', '.join(ABLE[math])}); got {gemm}; take one of those"
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
    yield from _of_a_run(s, dtype, MOST_CLASSES.get(item_bytes, classes), classes)


def _of_a_run(s: Mapping[str, str], dtype: str, most: int, classes: int) -> Iterator[str]:
    """What the trainer finds when it makes the network, its transport and its graphs."""
    if s["gemm"] == "fused" and classes > most:
        yield (
            f"--gemm fused: keeps an image's classes in registers: expected --num-classes of at "
            f"most {most} in {dtype}; got {classes}; use --gemm hierarchical"
        )
    if s.get("overlap") == "yes" and s["transport"] not in OVERLAPPING:
        yield (
            f"--overlap: expected a transport with a non-blocking form (host, pinned, host-flat, "
            f"chunked, nccl); got {s['transport']}; leave out --overlap"
        )
    if s.get("graph") != "yes":
        return
    on = s.get("data_on", "device")
    if on != "device":
        yield (
            f"--graph: not captured: batches are copied from the host (--data-on {on}); "
            "use --data-on device"
        )
    if s["transport"] in BY_THE_HOST:
        yield (
            "--graph: not captured: MPI sums on the host, which a CUDA graph cannot call; use "
            "--transport nccl"
        )
