"""Times per batch of every range, and their medians."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, overload

import numpy as np

from perfmodel.base.arrays import Floats, Int32, Int64
from perfmodel.readers.trace import NULL
from perfmodel.timing.range_times import Path, RangeTimes

Clock = Literal["host", "gpu_projection", "gpu_busy"]
CLOCKS: Final[tuple[Clock, ...]] = ("host", "gpu_projection", "gpu_busy")


@dataclass(frozen=True, slots=True)
class PathTimes:
    """Time and bytes of one path in every batch of every rank.

    Each array has shape (ranks, batches); repeated ranges of one batch are added up. NaN where a
    rank did not run the range in that batch, or where the clock does not apply.
    """

    path: Path
    seconds: Mapping[Clock, Floats]
    instances: Floats
    copy_bytes: Floats
    mpi_bytes: Floats
    gpu_ops: Floats
    mpi_s: Floats

    @property
    def label(self) -> str:
        """The innermost range's label."""
        return self.path[-1]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number with its 95 % intervals and the measurements behind it; base units.

    `low` and `high`, which are among the values, hold for the batches of this run; `launch_low` and
    `launch_high` for the median of a rerun, from `launches` of them: None where so many are no
    evidence. `limited_by` says what runs differ by (`perfmodel.models.launches.spreads`).
    """

    value: float
    low: float
    high: float
    instances: int
    limited_by: str
    launch_low: float | None
    launch_high: float | None
    launches: int = 1


class PathTable(Sequence[PathTimes]):
    """Times of many paths, parents before children.

    Only what occurred is kept: one entry for a path, rank and batch. Arrays of `PathTimes` are
    laid out where they are looked at, so that a million names of ranges take little memory.

    Parameters
    ----------
    paths : tuple of tuple of str
    shape : (int, int)
        Ranks and batches.
    first : int64 array, shape (paths + 1,)
        First entry of every path.
    cell : int64 array, shape (entries,)
        Rank times batches plus batch; ascending in a path.
    columns : mapping of str to array, shape (entries,)
        By the name of a clock or of an array of `PathTimes`.
    own : mapping of int to PathTimes, optional
        Paths whose times are others than their entries'.
    """

    def __init__(
        self,
        paths: tuple[Path, ...],
        shape: tuple[int, int],
        first: Int64,
        cell: Int64,
        columns: Mapping[str, Floats],
        own: Mapping[int, PathTimes] | None = None,
    ) -> None:
        self.paths, self.shape = paths, shape
        self._first, self._cell, self._columns, self._own = first, cell, columns, own or {}

    def __len__(self) -> int:
        return len(self.paths)

    @overload
    def __getitem__(self, at: int) -> PathTimes: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[PathTimes, ...]: ...
    def __getitem__(self, at: int | slice) -> PathTimes | tuple[PathTimes, ...]:
        if isinstance(at, slice):
            return tuple(self[i] for i in range(*at.indices(len(self))))
        at = range(len(self))[at]
        return self._own[at] if at in self._own else _TabulatedTimes(self, at)

    def array(self, at: int, name: str) -> Floats:
        """Return one array of `PathTimes`."""
        mine = slice(self._first[at], self._first[at + 1])
        laid = np.full(self.shape[0] * self.shape[1], 0.0 if name == "instances" else np.nan)
        laid[self._cell[mine]] = self._columns[name][mine]
        return laid.reshape(self.shape)

    def with_host(self, seconds: Mapping[int, Floats]) -> PathTable:
        """Return the table with other host times of some paths, by position."""
        own = {}
        for at, host in seconds.items():
            m = self[at]
            arrays = m.instances, m.copy_bytes, m.mpi_bytes, m.gpu_ops, m.mpi_s
            own[at] = PathTimes(m.path, {**m.seconds, "host": host}, *arrays)
        own = {**self._own, **own}
        return PathTable(self.paths, self.shape, self._first, self._cell, self._columns, own)

    def within(self, window: slice, without: Callable[[Path], bool]) -> PathTable:
        """Keep the batches of a window, without some paths and those that are in none of them."""
        first, stop, _ = window.indices(self.shape[1])
        path, batch = self._path(), self._cell % max(self.shape[1], 1)
        kept = np.array([not without(p) for p in self.paths], np.bool_)
        entry = np.flatnonzero(kept[path] & (batch >= first) & (batch < stop))
        count = np.bincount(path[entry], minlength=len(self))
        left = np.flatnonzero(count)
        batches = max(stop - first, 0)
        rank = self._cell[entry] // max(self.shape[1], 1)
        place = {at: i for i, at in enumerate(left.tolist())} if self._own else {}
        return PathTable(
            tuple(self.paths[at] for at in left.tolist()),
            (self.shape[0], batches),
            np.concatenate([[0], np.cumsum(count[left])]),
            rank * batches + batch[entry] - first,
            {name: values[entry] for name, values in self._columns.items()},
            {place[at]: _in_window(m, window) for at, m in self._own.items() if at in place},
        )

    def medians(self, name: str) -> Floats:
        """Medians over ranks and batches, (paths,); NaN where nothing was measured.

        A path has no instances in the batches without an entry, but unknown times.
        """
        values = self._columns[name]
        known = ~np.isnan(values)
        path, values = self._path()[known], values[known]
        values = values[np.lexsort((values, path))]
        count = np.bincount(path, minlength=len(self))
        begin = np.cumsum(count) - count
        size = np.full(len(self), self.shape[0] * self.shape[1]) if name == "instances" else count
        measured = np.flatnonzero(size)
        middle = np.zeros((2, len(self)))
        for i, place in enumerate(((size - 1) // 2, size // 2)):
            place = place - (size - count)  # behind the zeros
            there = measured[place[measured] >= 0]
            middle[i, there] = values[(begin + place)[there]]
        found = np.full(len(self), np.nan)
        found[measured] = (middle[0] + middle[1])[measured] / 2
        for at, m in self._own.items():
            array = m.seconds[name] if name in CLOCKS else getattr(m, name)
            found[at] = np.nan if np.isnan(array).all() else np.nanmedian(array)
        return found

    def counts(self) -> tuple[Int64, Int64]:
        """Timed instances of every path, and the batches, on any rank, that have some."""
        path, instances = self._path(), self._columns["instances"]
        timed = np.where(np.isfinite(self._columns["host"]), instances, 0.0)
        count = np.bincount(path, weights=timed, minlength=len(self)).astype(np.int64)
        width = max(self.shape[1], 1)
        cell = path * width + self._cell % width
        cell = np.unique(cell) if self.shape[0] > 1 else cell  # else each is there once
        batches = np.bincount(cell // width, minlength=len(self))
        for i, m in self._own.items():
            count[i] = int(np.nansum(m.instances[np.isfinite(m.seconds["host"])]))
            batches[i] = (m.instances > 0).any(axis=0).sum()
        return count, batches

    def timed_ranks(self) -> Int64:
        """Ranks on which the host's time of every path is known."""
        timed, width = np.isfinite(self._columns["host"]), max(self.shape[1], 1)
        ranks = max(self.shape[0], 1)
        at = np.unique(self._path()[timed] * ranks + self._cell[timed] // width) // ranks
        count = np.bincount(at, minlength=len(self))
        for i, m in self._own.items():
            count[i] = np.isfinite(m.seconds["host"]).any(axis=1).sum()
        return count

    def _path(self) -> Int64:
        return np.repeat(np.arange(len(self)), np.diff(self._first))


class _TabulatedTimes(PathTimes):
    """Times of one path of a table, laid out where they are looked at."""

    __slots__ = ("_at", "_table")
    _at: int
    _table: PathTable

    def __init__(self, table: PathTable, at: int) -> None:
        object.__setattr__(self, "_table", table)
        object.__setattr__(self, "_at", at)

    @property
    def path(self) -> Path:
        return self._table.paths[self._at]

    @property
    def seconds(self) -> Mapping[Clock, Floats]:
        return {clock: self._table.array(self._at, clock) for clock in CLOCKS}

    @property
    def instances(self) -> Floats:
        return self._table.array(self._at, "instances")

    @property
    def copy_bytes(self) -> Floats:
        return self._table.array(self._at, "copy_bytes")

    @property
    def mpi_bytes(self) -> Floats:
        return self._table.array(self._at, "mpi_bytes")

    @property
    def mpi_s(self) -> Floats:
        return self._table.array(self._at, "mpi_s")

    @property
    def gpu_ops(self) -> Floats:
        return self._table.array(self._at, "gpu_ops")


def _in_window(measured: PathTimes, window: slice) -> PathTimes:
    """Keep the batches of a window."""
    return PathTimes(
        measured.path,
        {clock: values[:, window] for clock, values in measured.seconds.items()},
        measured.instances[:, window],
        measured.copy_bytes[:, window],
        measured.mpi_bytes[:, window],
        measured.gpu_ops[:, window],
        measured.mpi_s[:, window],
    )


def tabulate(range_times: RangeTimes, ranks: Sequence[int], batch_label: str) -> PathTable:
    """Arrange the ranges inside batches by path, rank and batch, parents before children."""
    inside = np.flatnonzero(range_times.batch >= 0)
    if len(inside) == 0:
        none = np.empty(0, np.int64)
        return PathTable((), (len(ranks), 0), np.zeros(1, np.int64), none, {})
    range_times = _from_the_batch(range_times, inside, batch_label)
    shape = len(ranks), int(range_times.batch[inside].max()) + 1
    size = shape[0] * shape[1]
    order = _preorder(range_times, np.unique(range_times.path[inside]))
    place = np.zeros(len(range_times.paths), np.int64)
    place[order] = np.arange(len(order))
    rank = np.searchsorted(ranks, range_times.rank[inside])
    key = place[range_times.path[inside]] * size + rank * shape[1] + range_times.batch[inside]
    found, entry = np.unique(key, return_inverse=True)
    return PathTable(
        tuple(range_times.paths[at] for at in order.tolist()),
        shape,
        np.searchsorted(found, np.arange(len(order) + 1) * size),
        found % size,
        _totals(range_times, inside, entry),
    )


def _preorder(range_times: RangeTimes, used: Int64 | Int32) -> Int64 | Int32:
    """Order paths by their first start, and each one's children so behind it."""
    first = np.full(len(range_times.paths), np.iinfo(np.int64).max)
    np.minimum.at(first, range_times.path, range_times.start_ns)
    code = {path: i for i, path in enumerate(range_times.paths)}
    above = np.array([code.get(path[:-1], -1) for path in range_times.paths])
    depth = np.array([len(range_times.paths[at]) for at in used.tolist()])
    order, prefix = np.arange(len(used)), used.astype(np.int64)
    for level in range(int(depth.max()), 0, -1):  # the innermost labels decide last
        deep = depth >= level
        start = np.where(deep, first[prefix], np.iinfo(np.int64).min)
        order = order[np.argsort(start[order], kind="stable")]
        prefix = np.where(deep, above[prefix], prefix)
    return used[order]


def _from_the_batch(range_times: RangeTimes, inside: Int64, batch_label: str) -> RangeTimes:
    """Let paths begin at the batch where batches lie in ranges of several names (epochs)."""
    used = [range_times.paths[i] for i in np.unique(range_times.path[inside]).tolist()]
    if len({p[: p.index(batch_label)] for p in used if p[-1] == batch_label}) < 2:
        return range_times
    batched = set(used)
    short = [p[p.index(batch_label) :] if p in batched else p for p in range_times.paths]
    code = {p: i for i, p in enumerate(dict.fromkeys(short))}
    recode = np.array([code[p] for p in short], np.int32)
    return replace(range_times, paths=tuple(code), path=recode[range_times.path])


def _totals(range_times: RangeTimes, inside: Int64, entry: Int64) -> dict[str, Floats]:
    """Add up the ranges of every entry."""
    times = np.bincount(entry).astype(np.float64)

    def total(values: Int64, scale: float = 1.0, *, all_known: bool = False) -> Floats:
        values = values[inside]
        missing = values == NULL
        added = np.bincount(entry, weights=np.where(missing, 0.0, values * scale))
        known = np.bincount(entry, weights=~missing)
        return np.where(known == times if all_known else known > 0, added, np.nan)

    return {
        "host": total(range_times.host_ns, 1e-9, all_known=True),
        "gpu_projection": total(range_times.projection_ns, 1e-9),
        "gpu_busy": total(range_times.busy_ns, 1e-9),
        "instances": times,
        "copy_bytes": total(range_times.copy_bytes),
        "mpi_bytes": total(range_times.mpi_bytes),
        "mpi_s": total(range_times.mpi_ns, 1e-9),
        "gpu_ops": total(range_times.ops),
    }


def median(values: Floats) -> float | None:
    """Median over ranks and batches; None (missing) where nothing was measured."""
    return None if np.isnan(values).all() else float(np.nanmedian(values))
