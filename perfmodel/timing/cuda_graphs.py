"""CUDA graphs: which batches only replay one, what of them can be seen, and their kernels."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from perfmodel.base.arrays import Bool, Floats
from perfmodel.readers.trace import GRAPH, KERNEL, OP_KINDS
from perfmodel.timing.run import Run
from perfmodel.timing.samples import PathTimes

_TILED: Final = re.compile(r"^(\w*?gemm)_\w+?_([tn]{2}_[tn]_tilesize\w+?)_stage.*")
"""cuBLAS's names of a hundred letters, of which the layout and the tile tell products apart."""


def only_replays(everything: Sequence[PathTimes], replay: str, batch_label: str) -> Bool:
    """Return in which batches every rank replays its graph and does nothing else, (batches,).

    `replay` is the label of the range that replays. In other batches kernels run as they are, or
    are recorded: ranges are pushed while a graph is made, and no work is done in them. These come
    first, and again where a batch size does: an epoch's short last batch is recorded in the
    second epoch.
    """
    head = next(m for m in everything if m.label == batch_label)
    replays = np.zeros(head.instances.shape[1], np.bool_)
    inside = [
        m for m in everything if m.path[: len(head.path)] == head.path and m.path != head.path
    ]
    for m in inside:
        if m.label == replay:
            replays |= (m.instances > 0).all(axis=0)
    for m in inside:
        if replay not in m.path:
            replays &= ~(m.instances > 0).any(axis=0)
    return replays


def first_replay(everything: Sequence[PathTimes], replay: str, batch_label: str) -> int | None:
    """Return the first of the batches of `only_replays`; None if there is none."""
    replays = only_replays(everything, replay, batch_label)
    return int(replays.argmax()) if replays.any() else None


def traced_as_a_whole(run: Run) -> bool:
    """Whether graphs are single operations in the report, their kernels unseen."""
    return any((t.ops.kind[found.op] == GRAPH).any() for t, found in run.parts)


def notes(run: Run, everything: Sequence[PathTimes], replay: str) -> Iterator[str]:
    """Say what a replay hides, and how to see it."""
    if not replay:
        return
    if first_replay(everything, replay, run.batch_label) is None:
        yield (
            f"{run.label}: no step only replays a CUDA graph: each is recorded first, in the "
            f"first epoch; profile two epochs or more"
        )
    hidden = "no range inside it is timed, so that throughputs cannot be fitted"
    if traced_as_a_whole(run):
        yield (
            f"{run.label}: steps are replays of a CUDA graph, traced as one operation: its "
            f"kernels are not in the report, and {hidden}; to see the kernels, profile with "
            f"--cuda-graph-trace=node; to fit throughputs, give a report of a run without --graph"
        )
    else:
        yield (
            f"{run.label}: steps are replays of a CUDA graph: its kernels are listed, but "
            f"{hidden}; give a report of a run without --graph, too"
        )


def kernel_seconds(run: Run, warmup: int) -> dict[str, tuple[Floats, Floats]]:
    """Return seconds and number of kernels (copies, sets) by name, each (ranks, batches)."""
    batches = int(run.range_times.batch.max()) + 1
    shape = len(run.ranks), batches
    found: dict[str, tuple[Floats, Floats]] = {}
    for trace, attribution in run.parts:
        op, at = np.unique(attribution.op, return_index=True)
        rank = np.searchsorted(run.ranks, attribution.op_rank[at])
        cell = rank * batches + attribution.op_batch[at]
        o = trace.ops
        codes = np.where(o.kind[op] == KERNEL, o.name[op], -1 - o.kind[op].astype(np.int64))
        for code in np.unique(codes):
            mine = codes == code
            name = shortened(trace.strings[code]) if code >= 0 else OP_KINDS[-1 - code]
            spent = (o.end_ns - o.start_ns)[op[mine]] * 1e-9
            tables = [np.bincount(cell[mine], w, batches * len(run.ranks)) for w in (spent, None)]
            before = found.get(name, (np.zeros(shape), np.zeros(shape)))
            sums = [b + t.reshape(shape) for b, t in zip(before, tables, strict=True)]
            found[name] = sums[0], sums[1]
    late = {n: (s[:, warmup:], c[:, warmup:]) for n, (s, c) in found.items()}
    return {n: (s, c) for n, (s, c) in late.items() if c.any()}


def shortened(kernel: str) -> str:
    """Return a demangled kernel's name without its type, template arguments and parameters.

    Examples
    --------
    >>> shortened("std::enable_if<!(false), void>::type gemvx::kernel<int, (int)7>(P<int>)")
    'gemvx::kernel'
    """
    plain, depth = "", 0
    for letter in kernel.replace("(anonymous namespace)::", "").replace("->", ""):
        depth += letter == "<"
        if depth == 0 and letter == "(" and plain:
            break
        if depth == 0:
            plain += letter
        depth -= letter == ">" and depth > 0
    name = plain.split()[-1] if plain.split() else kernel
    return _TILED.sub(r"\1…\2", name)
