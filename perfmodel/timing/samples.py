"""Times per batch of every range, their medians, and the warm-up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final, Literal

import numpy as np

from perfmodel.base.arrays import Floats, Int32, Int64
from perfmodel.readers.trace import NULL
from perfmodel.timing.range_times import Path, RangeTimes

Clock = Literal["host", "gpu_projection", "gpu_busy"]
CLOCKS: Final[tuple[Clock, ...]] = ("host", "gpu_projection", "gpu_busy")

_SLOW: Final = 1.25


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


def median(values: Floats) -> float | None:
    """Median over ranks and batches; None (missing) where nothing was measured."""
    return None if np.isnan(values).all() else float(np.nanmedian(values))
