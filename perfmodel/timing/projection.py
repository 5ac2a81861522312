"""GPU projection: which operations every NVTX range launched, and when they ran on the GPU.

`project` looks at all rows at once; `Projector` takes API calls, then GPU operations, some rows at
a time. It takes 5 bytes a correlation id besides the nested ranges; what is not plain it refuses.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from perfmodel.base.arrays import Arena, Bool, Int32, Int64
from perfmodel.readers.codes import Ids, factorize, split_rows
from perfmodel.readers.trace import NULL, PROCESS_BITS, ApiCalls, GpuOps, Trace
from perfmodel.timing.intervals import extents
from perfmodel.timing.nesting import Nesting, enclosing, innermost, start_keys

_UNKNOWN: Final = -2
_BLOCK: Final = 1 << 15
_SPARSE: Final = 8
_FEW: Final = 1_000_000
_ROWS: Final = 1 << 18  # of calls that are joined at a time
_MOST_CALLS: Final = 16
"""A call of the runtime and the calls of the driver in it share an id, which are two to five. Where
more do, the ids were lost (a file whose ids are all 0), and tell nothing."""


@dataclass(frozen=True, slots=True)
class Launches:
    """GPU operations joined to the API calls that launched them, and these to ranges.

    Attributes
    ----------
    op, call : int64, shape (k,)
        Row pairs of `GpuOps` and `ApiCalls`, one per launched operation.
    inner : int64, shape (k,)
        Innermost enclosing range (position in the nesting), -1 outside all ranges and where a
        call's ranges are listed in pairs.
    call_inner : int64, shape (calls,)
        The same once for every distinct call.
    crossing_range, crossing_pair : int64
        All (range, index into `op`) pairs of calls that one chain of nested ranges does not
        describe: on threads whose ranges cross, and calls of no length.
    repeated_ids : bool
        Whether several API calls of one process may share a correlation id.
    """

    op: Int64
    call: Int64
    inner: Int64
    call_inner: Int64
    crossing_range: Int64
    crossing_pair: Int64
    repeated_ids: bool

    def pairs(self, nesting: Nesting) -> tuple[Int64, Int64]:
        """Return all (range, index into `op`) pairs."""
        return all_pairs(nesting, self.inner, self.crossing_range, self.crossing_pair)


@dataclass(frozen=True, slots=True)
class Projection:
    """The ranges that launched GPU work, and its extent.

    Attributes
    ----------
    range : int64, shape (r,)
        Positions in the nesting, ascending.
    start_ns, end_ns : int64, shape (r,)
        Earliest start and latest end of the operations inside, those of inner ranges included.
    ops : int64, shape (r,)
        Distinct correlation ids inside, as Nsight Systems counts GPU operations.
    """

    range: Int64
    start_ns: Int64
    end_ns: Int64
    ops: Int64


Joined = tuple[Int64, Int64, bool]


def join_launches(trace: Trace, ops: GpuOps, api: ApiCalls) -> Joined:
    """Join GPU operations to the API calls that launched them.

    Returns
    -------
    op, call : int64 arrays, shape (pairs,)
        Row pairs that agree on process and correlation id. Operations without a call are in no
        pair; an id that several calls share makes several pairs, and none where very many do.
    repeated : bool
        Whether several calls of one process may share an id.
    """
    op_rows = np.flatnonzero((ops.correlation != NULL) & (ops.process >= 0))
    api_rows: Int64 | slice = slice(None)
    if (api.correlation == NULL).any():
        api_rows = np.flatnonzero(api.correlation != NULL)
    whose, ids = trace.thread_process[api.thread[api_rows]], api.correlation[api_rows]
    if len(op_rows) == 0 or len(ids) == 0:
        return np.empty(0, np.int64), np.empty(0, np.int64), False
    row = np.arange(len(api), dtype=np.int32)[api_rows]
    low, high = extents(whose, ids, ids, len(trace.processes))
    seen = high >= low
    width = np.where(seen, high - low + 1, 0)
    if (width < 0).any() or float(width.astype(np.float64).sum()) > 8.0 * len(ids) + 1e6:
        return _join_sorted(ops, op_rows, whose, ids, row)
    shift = np.cumsum(width) - width - np.where(seen, low, 0)
    table = np.full(int(width.sum()), -1, np.int32)
    blocks = [slice(i, i + _ROWS) for i in range(0, len(ids), _ROWS)]
    for block in blocks:
        table[ids[block] + shift[whose[block]]] = row[block]
    for block in blocks:
        if not np.array_equal(table[ids[block] + shift[whose[block]]], row[block]):
            return _join_sorted(ops, op_rows, whose, ids, row)
    process, expected = ops.process[op_rows], ops.correlation[op_rows]
    inside = (expected >= low[process]) & (expected <= high[process])
    op_rows, process, expected = op_rows[inside], process[inside], expected[inside]
    call = table[expected + shift[process]]
    return op_rows[call >= 0], call[call >= 0].astype(np.int64), False


def _join_sorted(
    ops: GpuOps, op_rows: Int64, whose: Int32, ids: Int64, api_rows: Int32
) -> tuple[Int64, Int64, bool]:
    """Join sparse or repeated correlation ids by sorting; repeated ids multiply pairs.

    An id of more than `_MOST_CALLS` calls joins nothing: pairs stay linear in the operations.
    """
    distinct, codes = np.unique(
        np.concatenate([ids, ops.correlation[op_rows]]), return_inverse=True
    )
    key = np.concatenate([whose, ops.process[op_rows]]).astype(np.int64) * len(distinct) + codes
    _, which, count = np.unique(key[: len(ids)], return_inverse=True, return_counts=True)
    calls = np.flatnonzero(count[which] <= _MOST_CALLS)
    at, found = _matches(key[calls], key[len(ids) :])
    return op_rows[at], api_rows[calls[found]].astype(np.int64), bool((count > 1).any())


def _matches(keys: Int64, asked: Int64) -> tuple[Int64, Int64]:
    """Return all (index into `asked`, index into `keys`) pairs of equal values."""
    order = np.argsort(keys, kind="stable")
    lo = np.searchsorted(keys[order], asked, side="left")
    count = np.searchsorted(keys[order], asked, side="right") - lo
    offset = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    return np.repeat(np.arange(len(asked)), count), order[np.repeat(lo, count) + offset]


def attribute(
    trace: Trace, nesting: Nesting, ops: GpuOps, joined: Joined | None = None
) -> Launches:
    """Attribute every operation to the ranges that enclose its API call on the same thread.

    `joined` is what `join_launches` returns, where it is known.
    """
    api = trace.api
    op, call, repeated = joined or join_launches(trace, ops, api)
    used = np.zeros(len(api), np.bool_)
    used[call] = True
    calls = np.flatnonzero(used)
    inner, holder, at = enclosing(
        nesting, api.thread[calls], api.start_ns[calls], api.end_ns[calls]
    )
    inner_of_call = np.full(len(api), -1, np.int32 if len(nesting) < 2**31 else np.int64)
    inner_of_call[calls] = inner
    crossing = holder, calls[at]  # (range, call) pairs, which become (range, index into call)
    if len(holder):
        index = np.flatnonzero(np.isin(call, calls[at]))
        pair, found = _matches(call[index], calls[at])
        crossing = holder[pair], index[found]
    return Launches(op, call, inner_of_call[call].astype(np.int64), inner, *crossing, repeated)


def project(trace: Trace, nesting: Nesting, ops: GpuOps) -> Projection:
    """Project ranges onto the GPU: from their first operation's start to their last one's end.

    Source of the definition: Nsight Systems' `nvtx_gpu_proj_sum` report, matched to the digit.
    """
    launches = attribute(trace, nesting, ops)
    if len(nesting) == 0 or len(launches.op) == 0:
        none = np.empty(0, np.int64)
        return Projection(none, none, none, none)
    inside = np.flatnonzero(launches.inner >= 0)
    inner, op = launches.inner[inside], launches.op[inside]
    low, high = extents(inner, ops.start_ns[op], ops.end_ns[op], len(nesting))
    if launches.repeated_ids:
        counts = np.zeros(len(nesting), np.int64)
        holder, pair = launches.pairs(nesting)
    else:  # a call has an id of its own, and is either in a chain of ranges or in pairs
        counts = np.bincount(launches.call_inner[launches.call_inner >= 0], minlength=len(nesting))
        holder, pair = launches.crossing_range, launches.crossing_pair
    _give_to_parents(nesting, low, high, counts)
    held = launches.op[launches.crossing_pair]
    np.minimum.at(low, launches.crossing_range, ops.start_ns[held])
    np.maximum.at(high, launches.crossing_range, ops.end_ns[held])
    ids = trace.api.correlation[launches.call[pair]]  # of one process, which the thread fixes
    distinct = np.unique(np.column_stack([holder, ids]), axis=0)
    counts += np.bincount(distinct[:, 0], minlength=len(nesting))
    return _projection(low, high, counts)


def _give_to_parents(nesting: Nesting, low: Int64, high: Int64, counts: Int64) -> None:
    """Add to every range, in place, what those inside it have."""
    parent = nesting.parent
    for at in [*nesting.by_level()][:0:-1]:
        np.minimum.at(low, parent[at], low[at])
        np.maximum.at(high, parent[at], high[at])
        np.add.at(counts, parent[at], counts[at])


def _projection(low: Int64, high: Int64, counts: Int64) -> Projection:
    hit = np.flatnonzero(high > np.iinfo(np.int64).min)
    return Projection(hit, low[hit], high[hit], counts[hit])


def all_pairs(nesting: Nesting, inner: Int64, holder: Int64, held: Int64) -> tuple[Int64, Int64]:
    """Return all (range, item) pairs: every range with all that it encloses.

    Memory grows with items times depth.

    Parameters
    ----------
    nesting : Nesting
    inner, holder, held : int64 arrays
        Items as `enclosing` gives them: by innermost range, and as pairs.
    """
    holders, items = [holder], [held]
    item = np.flatnonzero(inner >= 0)
    holder = inner[item]
    while len(item):
        holders.append(holder)
        items.append(item)
        holder = nesting.parent[holder]
        item, holder = item[holder >= 0], holder[holder >= 0]
    return np.concatenate(holders), np.concatenate(items)


class Irregular(Exception):  # noqa: N818 (a finding, not a failure)
    """The report needs `project`, which looks at all rows at once."""


class Projector:
    """Projects ranges onto the GPU as `project` does.

    First all API calls are added, then all operations.

    Parameters
    ----------
    nesting : Nesting
    threads : int64 array
        Serialized ids of the nesting's threads.

    Raises
    ------
    Irregular
        Here or later, if ranges of a thread cross, a call of no length lies where a range starts,
        or calls of one process share a correlation id or have sparse ones.
    """

    def __init__(self, nesting: Nesting, threads: Int64) -> None:
        if nesting.crossing.any() or len(nesting) >= 2**31:
            raise Irregular
        self._nesting = nesting
        self._threads = Ids(threads)
        self._unknown = np.int32(len(threads))
        self._keys = start_keys(nesting) if len(nesting) else nesting.start_ns
        self._ids: dict[int, _Ids] = {}
        self._rooms = Arena(np.int32), Arena(np.bool_)
        self._calls = 0
        self._low = np.full(len(nesting), np.iinfo(np.int64).max)
        self._high = np.full(len(nesting), np.iinfo(np.int64).min)

    def add_calls(self, start_ns: Int64, end_ns: Int64, tid: Int64, correlation: Int64) -> None:
        """Add API calls; `tid` is serialized."""
        known = correlation != NULL
        if not known.all():
            start_ns, end_ns, tid, correlation = (
                a[known] for a in (start_ns, end_ns, tid, correlation)
            )
        codes, tids = factorize(tid)
        at = self._threads.codes(tids)
        thread = np.where(at >= 0, at, self._unknown)[codes]
        inner = innermost(self._nesting, thread, start_ns, end_ns, self._keys)
        instant = np.flatnonzero((start_ns == end_ns) & (inner >= 0))
        if len(instant) and np.isin(start_ns[instant], self._nesting.start_ns).any():
            raise Irregular
        self._calls += len(tid)
        for process, rows in split_rows(tids & PROCESS_BITS, codes):
            mine = self._ids.setdefault(process, _Ids(self._rooms))
            room = sum(ids.room for ids in self._ids.values()) + mine.lacks(correlation[rows])
            if room > _SPARSE * self._calls + _FEW:
                raise Irregular
            mine.put(correlation[rows], inner[rows])

    def add_ops(self, start_ns: Int64, end_ns: Int64, pid: Int64, correlation: Int64) -> None:
        """Add GPU operations; `pid` is serialized."""
        for process, rows in split_rows(pid):
            ids = self._ids.get(process)
            if ids is None or process == NULL:
                continue
            inner = ids.take(correlation[rows])
            inside = inner >= 0
            np.minimum.at(self._low, inner[inside], start_ns[rows][inside])
            np.maximum.at(self._high, inner[inside], end_ns[rows][inside])

    def projection(self) -> Projection:
        """Return what all that was added makes."""
        counts = np.zeros(len(self._nesting), np.int64)
        for ids in self._ids.values():
            for inner in ids.launching():
                np.add.at(counts, inner, 1)
        _give_to_parents(self._nesting, self._low, self._high, counts)
        return _projection(self._low, self._high, counts)


class _Ids:
    """Innermost range by correlation id of one process, and which ids launched something.

    Blocks of ids come as they are needed. Ranges are kept as their position plus two, so that 0
    stands for an id without a call.
    """

    def __init__(self, rooms: tuple[Arena, Arena]) -> None:
        self._inner: dict[int, Int32] = {}
        self._used: dict[int, Bool] = {}
        self._rooms = rooms

    @property
    def room(self) -> int:
        """Number of ids there is room for."""
        return len(self._inner) * _BLOCK

    def lacks(self, ids: Int64) -> int:
        """Number of ids for which room must be made to enter these."""
        numbers = np.unique(ids // _BLOCK).tolist()
        return sum(number not in self._inner for number in numbers) * _BLOCK

    def put(self, ids: Int64, inner: Int64) -> None:
        """Enter calls."""
        coded = (inner - _UNKNOWN).astype(np.int32)
        for number, rows in split_rows(ids // _BLOCK):
            block = self._inner.get(number)
            if block is None:
                block, self._used[number] = (room.zeros(_BLOCK) for room in self._rooms)
                self._inner[number] = block
            slot, mine = ids[rows] - number * _BLOCK, coded[rows]
            before = block[slot]
            block[slot] = mine
            again = (before != 0) & (before != mine)
            if again.any() or not np.array_equal(block[slot], mine):
                raise Irregular  # one id, several calls in different ranges

    def take(self, ids: Int64) -> Int32:
        """Innermost ranges of the calls that launched operations; -1 or -2 where there is none."""
        inner = np.full(len(ids), _UNKNOWN, np.int32)
        for number, rows in split_rows(ids // _BLOCK):
            if number in self._inner:
                slot = ids[rows] - number * _BLOCK
                inner[rows] += self._inner[number][slot]
                self._used[number][slot] = True
        return inner

    def launching(self) -> Iterator[Int32]:
        """Yield the innermost range of every call that launched something inside a range."""
        for number, block in self._inner.items():
            inner = block[self._used[number]] + np.int32(_UNKNOWN)
            yield inner[inner >= 0]
