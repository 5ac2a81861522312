"""GPU projection of a stream: API calls, then GPU operations, some rows at a time.

It takes 5 bytes a correlation id besides the nested ranges; what is not plain is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from perfmodel.base.arena import Arena
from perfmodel.base.arrays import Bool, Int32, Int64
from perfmodel.readers.codes import factorize
from perfmodel.readers.nvtx import PROCESS_BITS
from perfmodel.readers.trace import NULL
from perfmodel.timing.nesting import Nesting, innermost, start_keys
from perfmodel.timing.projection import Projection

_UNKNOWN: Final = -2
_BLOCK: Final = 1 << 15
_SPARSE: Final = 8
_FEW: Final = 1_000_000


class Irregular(Exception):  # noqa: N818 (a finding, not a failure)
    """The report needs `perfmodel.timing.projection.project`, which looks at all rows at once."""


class Projector:
    """Projects ranges onto the GPU as `perfmodel.timing.projection.project` does.

    First all API calls are added, then all operations.

    Parameters
    ----------
    nesting : Nesting
    threads : int64 array
        Serialized ids of the nesting's threads, ascending.

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
        self._threads = threads
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
        at = np.minimum(np.searchsorted(self._threads, tids), max(len(self._threads) - 1, 0))
        here = self._threads[at] == tids if len(self._threads) else np.zeros(len(tids), np.bool_)
        thread = np.where(here, at, len(self._threads)).astype(np.int32)[codes]
        inner = innermost(self._nesting, thread, start_ns, end_ns, self._keys)
        instant = np.flatnonzero((start_ns == end_ns) & (inner >= 0))
        if len(instant) and np.isin(start_ns[instant], self._nesting.start_ns).any():
            raise Irregular
        self._calls += len(tid)
        for process, rows in _split(tids & PROCESS_BITS, codes):
            mine = self._ids.setdefault(process, _Ids(self._rooms))
            mine.put(correlation[rows], inner[rows])
        if sum(ids.room for ids in self._ids.values()) > _SPARSE * self._calls + _FEW:
            raise Irregular

    def add_ops(self, start_ns: Int64, end_ns: Int64, pid: Int64, correlation: Int64) -> None:
        """Add GPU operations; `pid` is serialized."""
        for process, rows in _split(pid):
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
        low, high, parent = self._low, self._high, self._nesting.parent
        for at in [*self._nesting.by_level()][:0:-1]:
            np.minimum.at(low, parent[at], low[at])
            np.maximum.at(high, parent[at], high[at])
            np.add.at(counts, parent[at], counts[at])
        hit = np.flatnonzero(high > np.iinfo(np.int64).min)
        return Projection(hit, low[hit], high[hit], counts[hit])


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

    def put(self, ids: Int64, inner: Int64) -> None:
        """Enter calls."""
        coded = (inner - _UNKNOWN).astype(np.int32)
        for number, rows in _split(ids // _BLOCK):
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
        for number, rows in _split(ids // _BLOCK):
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


def _split(ids: Int64, rows: Int32 | None = None) -> Iterator[tuple[int, Int64 | slice]]:
    """Yield every distinct id with its rows; row i has the id `ids[rows[i]]`, or `ids[i]`."""
    codes, distinct = factorize(ids)
    if len(distinct) == 1:
        yield int(distinct[0]), slice(None)
        return
    codes = codes if rows is None else codes[rows]
    order = np.argsort(codes.astype(np.uint16) if len(distinct) < 2**16 else codes, kind="stable")
    bounds = np.cumsum(np.bincount(codes, minlength=len(distinct)))[:-1]
    yield from zip(distinct.tolist(), np.split(order, bounds), strict=True)
