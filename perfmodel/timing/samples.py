"""Times per batch of every range, their medians, and the warm-up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from perfmodel.base.arrays import Floats, Int32, Int64
from perfmodel.readers.trace import NULL
from perfmodel.timing.range_times import Path, RangeTimes

Clock = Literal["host", "gpu_projection", "gpu_busy"]
CLOCKS: Final[tuple[Clock, ...]] = ("host", "gpu_projection", "gpu_busy")

_SLOW: Final = 1.25
_RESAMPLES: Final = 1000
_FEWEST: Final = 199
_CELLS: Final = 50_000_000
_CHUNK: Final = 4_000_000
_KEPT: Final = 16_000_000  # draws that are kept for the next table
_ONE_BY_ONE: Final = 1024  # values of a table that are counted one by one: blocks pay beyond
_BLOCK: Final = 128
_SEED: Final = 213

Times = npt.NDArray[np.int16 | np.int32]
"""How often every batch is in every resample, shape (resamples, batches)."""


@dataclass(frozen=True, slots=True)
class PathTimes:
    """What one path took and moved in every batch of every rank.

    Each array has shape (ranks, batches); repeated ranges of one batch are added up. NaN where a
    rank did not run the range in that batch, or where the clock does not apply.
    """

    path: Path
    seconds: Mapping[Clock, Floats]
    instances: Floats
    copy_bytes: Floats
    mpi_bytes: Floats
    gpu_ops: Floats

    @property
    def label(self) -> str:
        """The innermost range's label."""
        return self.path[-1]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number with its 95 % intervals and the measurements behind it; base units.

    `low` and `high` hold for the batches of this launch, `launch_low` and `launch_high` for the
    median of another launch: from `launches` of them, or from one and how launches usually differ.
    """

    value: float
    low: float
    high: float
    instances: int
    launch_low: float
    launch_high: float
    launches: int = 1


def tabulate(
    range_times: RangeTimes, ranks: Sequence[int], batch_label: str
) -> tuple[PathTimes, ...]:
    """Arrange the ranges inside batches by path, rank and batch, parents before children."""
    inside = np.flatnonzero(range_times.batch >= 0)
    if len(inside) == 0:
        return ()
    range_times = _from_the_batch(range_times, inside, batch_label)
    shape = len(ranks), int(range_times.batch[inside].max()) + 1
    inside = inside[np.argsort(range_times.path[inside], kind="stable")]
    path = range_times.path[inside]
    cuts = np.flatnonzero(np.concatenate([[True], path[1:] != path[:-1], [True]]))
    found = []
    for lo, hi in pairwise(cuts):
        at = inside[lo:hi]
        cell = np.searchsorted(ranks, range_times.rank[at]) * shape[1] + range_times.batch[at]
        found.append(_measured(range_times, at, cell, shape))
    first = np.full(len(range_times.paths), np.iinfo(np.int64).max)
    np.minimum.at(first, range_times.path, range_times.start_ns)
    starts = dict(zip(range_times.paths, first.tolist(), strict=True))
    return tuple(sorted(found, key=lambda m: [starts[m.path[: d + 1]] for d in range(len(m.path))]))


def _from_the_batch(range_times: RangeTimes, inside: Int64, batch_label: str) -> RangeTimes:
    """Let paths begin at the batch where batches lie in ranges of several names (epochs)."""
    batched = {range_times.paths[i] for i in np.unique(range_times.path[inside])}
    if len({p[: p.index(batch_label)] for p in batched}) < 2:
        return range_times
    short = [p[p.index(batch_label) :] if p in batched else p for p in range_times.paths]
    code = {p: i for i, p in enumerate(dict.fromkeys(short))}
    recode = np.array([code[p] for p in short], np.int32)
    return replace(range_times, paths=tuple(code), path=recode[range_times.path])


def _measured(
    range_times: RangeTimes, at: Int64, cell: Int64 | Int32, shape: tuple[int, int]
) -> PathTimes:
    size = shape[0] * shape[1]
    times = np.bincount(cell, minlength=size).astype(np.float64)

    def total(values: Int64, scale: float = 1.0, *, all_known: bool = False) -> Floats:
        missing = values == NULL
        added = np.bincount(cell, weights=np.where(missing, 0.0, values * scale), minlength=size)
        known = np.bincount(cell, weights=~missing, minlength=size)
        enough = known == times if all_known else known > 0
        return np.where((times > 0) & enough, added, np.nan).reshape(shape)

    return PathTimes(
        path=range_times.paths[range_times.path[at[0]]],
        seconds={
            "host": total(range_times.host_ns[at], 1e-9, all_known=True),
            "gpu_projection": total(range_times.projection_ns[at], 1e-9),
            "gpu_busy": total(range_times.busy_ns[at], 1e-9),
        },
        instances=times.reshape(shape),
        copy_bytes=total(range_times.copy_bytes[at]),
        mpi_bytes=total(range_times.mpi_bytes[at]),
        gpu_ops=total(range_times.ops[at]),
    )


def count_warmup(batch_s: Floats) -> int:
    """Count the leading batches that still warm up: JIT compilation, allocation, page faults.

    A batch warms up while its slowest rank takes more than 1.25 times the median of the second
    half of the run; at most half of the batches are excluded.

    Parameters
    ----------
    batch_s : array, shape (ranks, batches)
        Host time of every batch; NaN where a rank did not run it.
    """
    slowest = np.max(np.where(np.isnan(batch_s), -np.inf, batch_s), axis=0, initial=-np.inf)
    count = len(slowest)
    second_half = slowest[count // 2 :]
    timed = second_half[np.isfinite(second_half)]
    if count < 3 or len(timed) == 0:
        return 0
    usual = float(np.median(timed))
    for index, seconds in enumerate(slowest[: count // 2]):
        if seconds <= _SLOW * usual:
            return index
    return count // 2


def bootstrap_medians(tables: Sequence[Floats]) -> Floats:
    """Resample whole batches (all ranks of a batch together) and take medians.

    Parameters
    ----------
    tables : sequence of k arrays, shape (ranks, batches)
        NaN is left out.

    Returns
    -------
    array, shape (resamples, k)
        Medians of every table in every resample; the same batches are drawn for all tables, so
        that sums and ratios of the medians keep their correlation.
    """
    batches = tables[0].shape[1]
    cells = sum(table.size for table in tables)
    resamples = int(np.clip(_CELLS // max(cells, 1), _FEWEST, _RESAMPLES))
    ordered = [_Ordered.of(table) for table in tables]
    out = []
    for times in _resampled(batches, resamples):
        by_batch = np.ascontiguousarray(times.T) if any(table.few for table in ordered) else times
        medians = [
            table.medians_one_by_one(by_batch) if table.few else table.medians(times)
            for table in ordered
        ]
        out.append(np.column_stack(medians))
    return np.concatenate(out)


def _resampled(batches: int, resamples: int) -> Iterable[Times]:
    """How often every batch is in every resample, some resamples at a time."""
    size = max(1, _CHUNK // max(batches, 1))
    sizes = (min(size, resamples - first) for first in range(0, resamples, size))
    if resamples * batches <= _KEPT:
        return _kept(batches, tuple(sizes))
    generator = np.random.default_rng(_SEED)
    return (_draw(generator, batches, size) for size in sizes)


@lru_cache(maxsize=2)  # every rate of a run draws the same
def _kept(batches: int, sizes: tuple[int, ...]) -> tuple[Times, ...]:
    generator = np.random.default_rng(_SEED)
    return tuple(_draw(generator, batches, size) for size in sizes)


def _draw(generator: np.random.Generator, batches: int, size: int) -> Times:
    """Draw batches for `size` resamples; how often each came."""
    drawn = generator.integers(0, batches, size=(size, batches))
    cell = drawn + batches * np.arange(size)[:, None]
    times = np.bincount(cell.ravel(), minlength=size * batches).reshape(size, batches)
    return times.astype(np.int16 if batches < 1 << 15 else np.int32)


@dataclass(frozen=True, slots=True)
class _Ordered:
    """A table's values in order, with their batches, and how often every batch is in each block.

    A resample repeats batches, so its median is found by counting: first to the block, then in it.
    """

    values: Floats
    batch: Int64
    block: int
    counts: npt.NDArray[Any]

    @classmethod
    def of(cls, table: Floats) -> _Ordered:
        """Order a table of shape (ranks, batches); NaN is left out."""
        batch = np.broadcast_to(np.arange(table.shape[1]), table.shape)[~np.isnan(table)]
        values = table[~np.isnan(table)]
        order = np.argsort(values)
        batch = batch[order]
        block = max(_BLOCK, len(values) * table.shape[1] // _CHUNK + 1)
        blocks = -(-len(values) // block)
        cell = np.arange(len(values)) // block * table.shape[1] + batch
        counts = np.bincount(cell, minlength=blocks * table.shape[1])
        counts = counts.reshape(blocks, table.shape[1])
        exact = np.float32 if table.size < 1 << 24 else np.float64  # of sums of all draws
        return cls(values[order], batch, block, np.asarray(counts, exact))

    @property
    def few(self) -> bool:
        """Whether counting value by value takes least."""
        return len(self.values) <= _ONE_BY_ONE

    def medians(self, times: Times) -> Floats:
        """Medians where batch b counts `times[i, b]` times in resample i; NaN without values."""
        upto = np.cumsum(times @ self.counts.T, axis=1).astype(np.int64)
        total = upto[:, -1]
        some = np.flatnonzero(total)
        low, high = (
            self._at(position[some], times[some], upto[some])
            for position in ((total - 1) // 2, total // 2)
        )
        medians = np.full(len(times), np.nan)
        medians[some] = (low + high) / 2
        return medians

    def medians_one_by_one(self, times: Times) -> Floats:
        """The same for `times` of shape (batches, resamples), counted without blocks."""
        if len(self.values) == 0:
            return np.full(times.shape[1], np.nan)
        upto = np.cumsum(times[self.batch], axis=0, dtype=times.dtype)
        total = upto[-1]
        low, high = (
            self.values[np.count_nonzero(upto <= position, axis=0)]
            for position in ((total - 1) // 2, np.minimum(total // 2, total - 1))
        )
        return np.where(total > 0, (low + high) / 2, np.nan)

    def _at(self, position: Int64, times: Times, upto: Int64) -> Floats:
        """The value at a position of each resample, in order."""
        block = (upto <= position[:, None]).sum(axis=1)
        resample = np.arange(len(times))
        rest = position - np.where(block > 0, upto[resample, block - 1], 0)
        member = block[:, None] * self.block + np.arange(self.block)
        inside = member < len(self.values)
        batch = self.batch[np.where(inside, member, 0)]
        within = np.cumsum(np.where(inside, times[resample[:, None], batch], 0), axis=1)
        found: Floats = self.values[block * self.block + (within <= rest[:, None]).sum(axis=1)]
        return found


def median(values: Floats) -> float | None:
    """Median over ranks and batches; None (missing) where nothing was measured."""
    return None if np.isnan(values).all() else float(np.nanmedian(values))
