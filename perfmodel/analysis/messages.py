"""Point-to-point messages of a run, and its ranges rank by rank."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfmodel.timing.point_to_point import PointToPoint, RangeOfRank, point_to_point
from perfmodel.timing.run import Run
from perfmodel.timing.samples import PathTimes


def messages_of(run: Run, excluded: int) -> PointToPoint | None:
    """Match the messages of the batches behind the warm-up."""
    times = run.range_times
    head = np.array([path[-1] == run.batch_label for path in times.paths], np.bool_)
    rows = np.flatnonzero(head[times.path] & (times.batch >= excluded))
    begins = {}
    for rank in run.ranks:
        mine = rows[times.rank[rows] == rank]
        if len(mine):
            start = times.start_ns[mine]
            end = int((start + np.maximum(times.host_ns[mine], 0)).max())
            begins[rank] = [*np.sort(start).tolist(), end]
    return point_to_point(run.traces, begins)


def ranges_by_rank(measured: Sequence[PathTimes], ranks: Sequence[int]) -> tuple[RangeOfRank, ...]:
    """Median host time of every range on every rank, where there are several ranks."""
    if len(ranks) < 2:
        return ()
    found = []
    for one in measured:
        host = one.seconds["host"]
        known = np.isfinite(host).any(axis=1)
        if known.sum() < 2:
            continue
        median = np.full(len(host), np.nan)
        median[known] = np.nanmedian(host[known], axis=1)
        usual, most, mean = np.nanmedian(median), np.nanmax(median), np.nanmean(median)
        imbalance = float(most / mean - 1.0) if mean > 0 else 0.0
        found += [
            RangeOfRank(
                rank=rank,
                range=one.label,
                path="/".join(one.path),
                seconds=float(seconds),
                more_s=float(seconds - usual),
                imbalance=imbalance,
            )
            for rank, seconds in zip(ranks, median.tolist(), strict=True)
            if np.isfinite(seconds)
        ]
    return tuple(found)
