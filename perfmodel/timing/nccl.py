"""Kernels that communicate, such as NCCL's: what they are, and what launched them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from perfmodel.base.arrays import Bool, Int32, Int64
from perfmodel.readers.trace import KERNEL, NO_NAME, NULL, Trace
from perfmodel.timing.intervals import covered, union
from perfmodel.timing.kernels import exchange_named
from perfmodel.timing.launched import Launched
from perfmodel.timing.nesting import Nesting
from perfmodel.timing.small_kernels import launched_in
from perfmodel.timing.spans import Steps
from perfmodel.timing.step_times import StepTimes

_ALGORITHM: Final = re.compile(r"(RING|TREE|COLLNET\w{0,16}?|NVLS(?:_TREE)?|PAT)_(LL128|LL|SIMPLE)")
_ALL_TO_ALL: Final = "NCCL AllToAll"
_SENDS: Final = "SendRecv"
PASSES: Final = ("", "forward", "backward", "after")
"""Origin of a collective: '' where unknown; `after` a backward pass, before other products."""
_UNKNOWN, _FORWARD, _BACKWARD, _AFTER = range(len(PASSES))
_NEVER: Final = -(2**62)


@dataclass(frozen=True, slots=True)
class NcclKernels:
    """NCCL's kernels of some lanes, by lane and start.

    Attributes
    ----------
    names : tuple of str
        Distinct `NCCL AllReduce`, ...; `name` indexes it.
    algorithms : tuple of str
        Distinct algorithm and protocol, `RING_LL`; '' where the kernel's name does not say.
    ranges : tuple of str
        Distinct innermost ranges that launched them, '' outside any; `range` indexes it.
    lane : int64, shape (n,)
        Index into the lanes of `StepTimes`.
    step : int64, shape (n,)
        Number of the step that launched it, -1 outside steps.
    start_ns, end_ns : int64, shape (n,)
        On the GPU.
    communicator, bytes : int64, shape (n,)
        `NULL` where the report does not say.
    exposed_ns : int64, shape (n,)
        Part of the kernel that no computing kernel of its lane covers.
    during : int64, shape (n,)
        Index into `PASSES`.
    """

    names: tuple[str, ...]
    algorithms: tuple[str, ...]
    ranges: tuple[str, ...]
    name: Int64
    algorithm: Int64
    range: Int64
    lane: Int64
    step: Int64
    start_ns: Int64
    end_ns: Int64
    communicator: Int64
    bytes: Int64
    exposed_ns: Int64
    during: Int64

    def __len__(self) -> int:
        return len(self.name)


def nccl_kernels(
    trace: Trace,
    steps: Steps,
    found: Launched,
    times: StepTimes,
    sends: Bool,
    nesting: Nesting,
    product: Bool,
) -> NcclKernels:
    """Collect NCCL's kernels of one report.

    Parameters
    ----------
    trace, steps, found, times, nesting
        Of the report; `nesting` of all ranges.
    sends : bool, shape (operations,)
        As `perfmodel.timing.kernels.communicating` says.
    product : bool, shape (operations,)
        Which are of a category in `perfmodel.base.kernels.PRODUCTS`.
    """
    ops = trace.ops
    mine = np.flatnonzero(sends[found.op])
    lane = times.lane_of(found.process[mine], ops.device[found.op[mine]])
    mine, lane = mine[lane >= 0], lane[lane >= 0]  # a process without steps has no lane
    op = found.op[mine]
    names, name, algorithms, algorithm = _operations_named(trace, op)
    names, name = _with_all_to_all(trace, names, name, found.thread[mine], found.at_ns[mine])
    at = steps.holding(found.process[mine], found.at_ns[mine])
    inside = times.ops
    computing = (ops.kind[inside.op] == KERNEL) & ~sends[inside.op] & (len(op) > 0)
    held = inside.op[computing]
    compute = union(inside.lane[computing], ops.start_ns[held], ops.end_ns[held])
    start, end = ops.start_ns[op], ops.end_ns[op]
    communicator, size = _messages(trace, found, mine)
    size = np.where(ops.kind[op] == KERNEL, size, ops.bytes[op])  # of copies between GPUs
    label = np.where(at >= 0, launched_in(trace, nesting, steps, found, mine, at), NO_NAME)
    labels, range_of = np.unique(label, return_inverse=True)
    ranges = tuple("" if i == NO_NAME else trace.range_labels[i] for i in labels.tolist())
    during = _passes(trace, steps, found, product[found.op], mine)
    named = np.array([_pass_named(text) for text in ranges], np.int64)[range_of]
    columns = (
        name,
        algorithm,
        range_of.astype(np.int64),
        lane,
        np.where(at >= 0, steps.number[at], -1).astype(np.int64),
        start,
        end,
        communicator,
        size,
        end - start - covered(lane, start, end, compute),
        np.where(named != _UNKNOWN, named, during),
    )
    order = np.lexsort((start, lane))
    return NcclKernels(names, algorithms, ranges, *(c[order] for c in columns))


def _operations_named(
    trace: Trace, op: Int64
) -> tuple[tuple[str, ...], Int64, tuple[str, ...], Int64]:
    """`NcclKernels.names`, `name`, `algorithms` and `algorithm` of some kernels, by their names."""
    names: dict[str, int] = {}
    algorithms: dict[str, int] = {}
    name, algorithm = np.empty(len(op), np.int64), np.empty(len(op), np.int64)
    for code in np.unique(trace.ops.name[op]).tolist():
        said = _ALGORITHM.search(trace.strings[code]) if code >= 0 else None
        here = trace.ops.name[op] == code
        name[here] = names.setdefault(exchange_named(trace, code), len(names))
        algorithm[here] = algorithms.setdefault(said[0] if said else "", len(algorithms))
    return tuple(names), name, tuple(algorithms), algorithm


def _with_all_to_all(
    trace: Trace, names: tuple[str, ...], name: Int64, thread: Int32, at_ns: Int64
) -> tuple[tuple[str, ...], Int64]:
    """Call sends and receives an all-to-all that are launched in a range that says so.

    Without such a range they are those of a pipeline: the kernels are the same.
    """
    ranges = trace.all_to_all
    sends = [i for i, text in enumerate(names) if text.endswith(_SENDS)]
    if ranges is None or not sends:
        return names, name
    order = np.lexsort((ranges.start_ns, ranges.thread))
    inside = np.zeros(len(at_ns), np.bool_)
    for number in np.unique(ranges.thread).tolist():
        mine = order[ranges.thread[order] == number]
        until = np.maximum.accumulate(ranges.end_ns[mine])
        asked = np.flatnonzero(thread == number)
        row = np.searchsorted(ranges.start_ns[mine], at_ns[asked], side="right") - 1
        inside[asked] = (row >= 0) & (until[np.maximum(row, 0)] >= at_ns[asked])
    found = name.copy()
    found[inside & np.isin(name, sends)] = len(names)
    return (*names, _ALL_TO_ALL), found


def _pass_named(label: str) -> int:
    """The pass that a range's name says; unknown if it says none or both."""
    said = [code for code in (_FORWARD, _BACKWARD) if PASSES[code] in label.lower()]
    return said[0] if len(said) == 1 else _UNKNOWN


def _passes(trace: Trace, steps: Steps, found: Launched, product: Bool, mine: Int64) -> Int64:
    """In which pass each collective `mine` of `found` was launched, by what it is between.

    Frameworks that differentiate on a thread of their own launch products of the backward pass
    there, and all others on the steps' thread: what that one launches between two products of one
    step, none of the backward pass between them, is of a forward pass.

    Parameters
    ----------
    trace, steps, found
        As `nccl_kernels`.
    product : bool, shape (launched,)
        What layers are made of.
    mine : int64, shape (n,)
        Rows of `found`.

    Returns
    -------
    int64, shape (n,)
        Index into `PASSES`.
    """
    result = np.full(len(mine), _UNKNOWN)
    if len(mine) == 0:
        return result
    device = trace.ops.device[found.op]
    lanes = np.column_stack([found.process, device])
    for process, gpu in np.unique(lanes[mine], axis=0).tolist():
        layers = np.flatnonzero((found.process == process) & (device == gpu) & product)
        threads = np.unique(found.thread[layers])
        if len(threads) < 2:
            continue
        main = threads[0]  # started first
        if steps.declared:
            main = steps.thread[steps.process == process][0]
        on_main = found.thread[layers] == main
        forward, backward = (np.sort(found.at_ns[layers[w]]) for w in (on_main, ~on_main))
        asked = np.flatnonzero((found.process[mine] == process) & (device[mine] == gpu))
        at_ns, thread = found.at_ns[mine[asked]], found.thread[mine[asked]]
        last, following = _around(forward, at_ns)
        turned, turns = _around(backward, at_ns)
        step = [steps.holding(found.process[mine[asked]], t) for t in (last, at_ns, following)]
        between = (
            (last > turned) & (following < turns) & (step[0] == step[1]) & (step[1] == step[2])
        )
        after = (turned > _NEVER) & (turned > last)
        own = np.select([between, after], [_FORWARD, _AFTER], _UNKNOWN)
        others = np.where(np.isin(thread, threads), _BACKWARD, _UNKNOWN)
        result[asked] = np.where(thread == main, own, others)
    return result


def _around(times: Int64, at_ns: Int64) -> tuple[Int64, Int64]:
    """The last of some ascending times before each moment, and the first one after it."""
    padded = np.concatenate([[_NEVER], times, [-_NEVER]])
    place = np.searchsorted(times, at_ns)
    return padded[place], padded[place + 1]


def _messages(trace: Trace, found: Launched, mine: Int64) -> tuple[Int64, Int64]:
    """Communicator and bytes of every kernel: the payloads pushed since the kernel before it.

    NCCL pushes a range for every call and launches one kernel for all calls of a group.
    """
    communicator, size = np.full(len(mine), NULL), np.full(len(mine), NULL)
    said = trace.nccl
    for thread in np.unique(said.thread):
        rows = np.flatnonzero((said.thread == thread) & (said.bytes != NULL))
        ours = np.flatnonzero(found.thread[mine] == thread)
        ours = ours[np.argsort(found.at_ns[mine[ours]], kind="stable")]
        if len(rows) == 0 or len(ours) == 0:
            continue
        stop = np.searchsorted(said.start_ns[rows], found.at_ns[mine[ours]], side="right")
        begin = np.concatenate([[0], stop[:-1]])
        total = np.concatenate([[0], np.cumsum(said.bytes[rows])])
        some = stop > begin
        size[ours[some]] = (total[stop] - total[begin])[some]
        communicator[ours[some]] = said.communicator[rows[stop[some] - 1]]
    return communicator, size


def join_kernels(parts: Sequence[NcclKernels], first: Sequence[int]) -> NcclKernels:
    """Put kernels together; `first` is the number of the first lane of each part."""
    names: dict[str, int] = {}
    algorithms: dict[str, int] = {}
    ranges: dict[str, int] = {}
    columns: list[tuple[Int64, ...]] = []

    def numbered(known: dict[str, int], words: Sequence[str], at: Int64) -> Int64:
        return np.array([known.setdefault(w, len(known)) for w in words] or [0], np.int64)[at]

    for part, lane in zip(parts, first, strict=True):
        columns.append((
            numbered(names, part.names, part.name),
            numbered(algorithms, part.algorithms, part.algorithm),
            numbered(ranges, part.ranges, part.range), part.lane + lane, part.step,
            part.start_ns, part.end_ns, part.communicator, part.bytes,
            part.exposed_ns, part.during,
        ))  # fmt: skip
    table = [np.concatenate(c) for c in zip(*columns, strict=True)]
    return NcclKernels(tuple(names), tuple(algorithms), tuple(ranges), *table)
