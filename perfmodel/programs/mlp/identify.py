"""Identifies a run by the trainer's configuration mark and the sizes of its messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import permutations
from typing import Any, Final

import numpy as np

from perfmodel.base.arrays import distinct_rows
from perfmodel.programs import MARK_SYMBOLS
from perfmodel.programs.identify import Identity, from_mark, read_mark
from perfmodel.programs.mlp.settings import LAYER_2, ON_DEVICE
from perfmodel.readers.trace import MEMCPY, MPI_COLLECTIVE, NULL, TO_GPU, TO_HOST
from perfmodel.timing.run import Run

COMPARED_SETTINGS: Final = (
    *("transport", "backend", "gemm", "math", "tf32", "overlap", "graph", "data_on"),
    "sync_ranges",
)
"""Keys of the configuration mark that change how a batch runs, but not what it computes."""

_FUSED_STEP: Final = "the kernel that sums also updates the weights (--transport peer)"

_PEAKS: Final = {2: "float16_tensor", 4: "float32", 8: "float64"}
_MATHS: Final = {"tf32": "tf32_tensor", "tf32x3": "tf32x3_tensor"}
_TWO_PRODUCTS: Final = "tf32x2_tensor"
_THIN_KERNELS: Final = ("thin", "fused")
_USUAL: Final = 0.9
"""Messages in this share of the batches are in every batch, but for trimmed ones."""


def identify(run: Run, given: Mapping[str, int]) -> tuple[Identity, list[str]]:
    """Decide the values of the symbols: given ones first, then the mark's, then the messages'."""
    warnings = []
    config: dict[str, Any] = next((c for t in run.traces if (c := read_mark(t))), {})
    marked = from_mark(config)
    world = max((t.world_size or 0 for t in run.traces), default=0)
    recorded = max(world, len(run.ranks))
    ranks = given.get("p", marked.get("p", recorded))
    inferred = from_messages(*_messages(run), ranks) or {}
    known = inferred | marked
    if "p" in given and "p" not in marked and 1 <= recorded != given["p"]:
        warnings.append(
            f"{run.label}: p = {given['p']} was given and overrides the {recorded} ranks that the "
            f"report records; B and the bytes of MPI follow it"
        )
        known = {k: v for k, v in known.items() if k != "p"}
    values = {"b": 4, "p": recorded} | known
    for symbol, value in given.items():
        if known.get(symbol, value) != value:
            name = MARK_SYMBOLS.get(symbol, symbol)
            whose = "the report's own" if symbol in marked else "what its messages' sizes give,"
            warnings.append(
                f"{run.label}: {symbol} = {value} was given and overrides {whose} "
                f"{name} = {known[symbol]}"
            )
        values[symbol] = value
    if len(run.ranks) < values["p"]:
        warnings.append(
            f"{run.label}: {len(run.ranks)} of p = {values['p']} ranks are in the report; give "
            f"the other ranks' reports too to see all of them"
        )
    sources = {
        "the report's configuration mark": bool(marked),
        "the sizes of the report's messages": bool({*inferred} - {*marked, *given, "p", "b"}),
        "the flags": bool(given),
    }
    source = " and ".join(name for name, used in sources.items() if used) or "the defaults"
    return Identity(
        values=values,
        source=source,
        config=config,
        settings={name: str(config.get(name)) for name in COMPARED_SETTINGS},
        uses_gpu=config.get("backend") != "numpy",
        uses_mpi=config.get("transport") not in ON_DEVICE,
        inseparable=_FUSED_STEP if config.get("transport") == "peer" else "",
        overlaps=bool(config.get("overlap")) or config.get("transport") == "chunked",
    ), warnings


def _messages(run: Run) -> tuple[set[int], set[int]]:
    """Distinct sizes of the gradients' messages and of the input copies inside the batches.

    Sizes count if (nearly) every batch has them: gradients as device-to-host copies, or as
    all-reduces where there are no copies.
    """
    trace, found = run.parts[0]
    batches = len(distinct_rows(found.op_rank, found.op_batch)[0])
    times: list[dict[int, float]] = []
    for kinds in (TO_HOST, TO_GPU):
        chosen = np.isin(trace.ops.copy_kind[found.op], kinds)
        op = found.op[chosen & (trace.ops.kind[found.op] == MEMCPY)]
        size, count = np.unique(trace.ops.bytes[op], return_counts=True)
        times.append(dict(zip(size.tolist(), (count / max(batches, 1)).tolist(), strict=True)))
    out, into = times
    gradients = {size for size, n in out.items() if n >= _USUAL}
    if not gradients:
        collective = trace.mpi.source == MPI_COLLECTIVE
        reduce = np.array(["llreduce" in s for s in trace.strings] + [False], np.bool_)
        mine = collective & reduce[trace.mpi.name] & (trace.mpi.size_bytes != NULL)
        gradients = {int(s) for s in np.unique(trace.mpi.size_bytes[mine])}
    # what went out comes back; a size that comes more often is that of an input, too
    returned = dict.fromkeys(gradients, 1.0) if out else {}
    inputs = {size for size, n in into.items() if n - returned.get(size, 0.0) >= _USUAL}
    return gradients, inputs


def precision(width: int, config: Mapping[str, Any], *, seen_tf32: bool) -> str:
    """Return which of a machine's peaks the GEMMs run against.

    Parameters
    ----------
    width : int
        Bytes per element.
    config : mapping
        The mark's content: its "math", or "tf32" in older ones, says how float32 is multiplied, and
        "tf32_products" how many TF32 GEMMs that takes (3 by default).
    seen_tf32 : bool
        The kernels' names say that some run on tensor cores, whatever was asked for.
    """
    name = _PEAKS.get(width, "float32")
    if name != "float32":
        return name
    math = "tf32" if config.get("tf32") is True else str(config.get("math"))
    if math == "tf32x3" and config.get("tf32_products") == 2:
        return _TWO_PRODUCTS
    return _MATHS.get(math, "tf32_tensor" if seen_tf32 else name)


def precision_of(label: str, run: str, config: Mapping[str, Any]) -> str:
    """Return the peak of one range's GEMMs in a run whose large GEMMs run against `run`.

    The trainer's kernels for the GEMMs with C rows or columns multiply float32 as it is, even
    where the large GEMMs run on tensor cores.
    """
    apart = label in LAYER_2 and config.get("gemm") in _THIN_KERNELS
    return "float32" if apart and run in (*_MATHS.values(), _TWO_PRODUCTS) else run


def from_messages(
    gradients: Iterable[int], inputs: Iterable[int], ranks: int
) -> dict[str, int] | None:
    """Solve the MLP's symbols from the sizes of the messages of one batch, or return None.

    The four gradients take b H D, b H, b C H and b C bytes; their sizes give D, H, C and b, of
    which only one assignment fits. The images take b D B/p bytes and the one-hot labels b C B/p.

    Parameters
    ----------
    gradients : iterable of int
        Distinct sizes of the gradients' copies or all-reduces in bytes.
    inputs : iterable of int
        Distinct sizes of the input copies in bytes; without them B stays unknown.
    ranks : int
        p.

    Examples
    --------
    >>> from_messages([1605632, 2048, 20480, 40], [4704000, 60000], 2)
    {'D': 784, 'H': 512, 'C': 10, 'b': 4, 'p': 2, 'B': 3000}
    """
    sizes = sorted(set(gradients), reverse=True)
    if len(sizes) != 4 or ranks < 1:
        return None
    images = sorted(set(inputs), reverse=True)
    solutions = []
    for w1, b1, w2, b2 in permutations(sizes):
        for width in (4, 8, 2):
            if b1 % width or b2 % width or w1 % b1 or w2 != b1 * b2 // width:
                continue
            found = {"D": w1 // b1, "H": b1 // width, "C": b2 // width, "b": width, "p": ranks}
            batch = _batch(found, images)
            if batch is None and images:
                continue
            solutions.append(found | ({"B": batch} if batch else {}))
    return solutions[0] if len(solutions) == 1 else None


def _batch(found: Mapping[str, int], images: list[int]) -> int | None:
    """Global batch from the input copies: images of b D B/p bytes, labels of b C B/p, if any."""
    if not images:
        return None
    share, rest = divmod(images[0], found["b"] * found["D"])
    labels = images[1] if len(images) > 1 else None
    if rest or share < 1 or (labels is not None and labels != found["b"] * found["C"] * share):
        return None
    return share * found["p"]


def is_trainers(config: Mapping[str, Any]) -> bool:
    """Whether a configuration mark is the trainer's, and not of a program with its ranges."""
    return "transport" in config
