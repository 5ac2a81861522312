"""Matches the ranks' collectives: the n-th of every rank are one, on one clock."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from perfmodel.base.units import si
from perfmodel.readers.trace import Int64, Trace
from perfmodel.timing.clocks import align
from perfmodel.timing.collective_calls import (
    Calls,
    CollectiveGroup,
    Waiting,
    calls_by_rank,
    grouped,
)
from perfmodel.timing.range_times import Spans, ranks_of

_FOR_ALL: Final = re.compile(
    r"MPI_(Allreduce|Barrier|Allgatherv?|Alltoall[vw]?|Reduce_scatter(_block)?)(_c)?"
)
"""Collectives that let nobody go before everybody has come."""


@dataclass(frozen=True, slots=True)
class Matched:
    """Every rank's collectives, and whether the n-th of each are one and the same.

    Attributes
    ----------
    calls : tuple of Calls
        By rank.
    comparable : bool
        Whether they are matched, and on one clock.
    clock_bound_ns : int
        Clocks of different reports are known to so much, either way.
    warnings : tuple of str
    """

    calls: tuple[Calls, ...]
    comparable: bool
    clock_bound_ns: int
    warnings: tuple[str, ...]


def match(traces: Sequence[Trace], spans: Spans, batch_label: str, ranks: Sequence[int]) -> Matched:
    """Match MPI's n-th collective of every rank, on one clock.

    Reports are aligned by their UTC start, and where that contradicts the collectives by these
    (`perfmodel.timing.clocks`).
    """
    calls, warnings = calls_by_rank(traces, spans, batch_label, ranks)
    if not any(len(c.name) for c in calls):
        return Matched(tuple(calls), False, 0, warnings)
    same = len({c.name for c in calls}) == 1 and len(ranks) > 1
    utc = len(traces) == 1 or all(t.utc_start_ns is not None for t in traces)
    if len(ranks) > 1 and not same:
        warnings = (
            *warnings,
            "the ranks' collectives differ in number or order: waiting cannot be told from "
            "transfer; profile all ranks over the same interval",
        )
    if same and not utc:
        warnings = (
            *warnings,
            "the reports have no UTC start time: ranks cannot be aligned, so waiting cannot be "
            "told from transfer; profile the whole mpirun in one report",
        )
    if not (same and utc) or len(traces) == 1:
        return Matched(tuple(calls), same and utc, 0, warnings)
    aligned, bound, said = _aligned(calls, _report_of(traces, ranks))
    return Matched(aligned, True, bound, (*warnings, *said))


def _report_of(traces: Sequence[Trace], ranks: Sequence[int]) -> Int64:
    """Index of the report that holds each rank."""
    at = {rank: i for i, trace in enumerate(traces) for rank in ranks_of(trace).values()}
    return np.array([at.get(rank, 0) for rank in ranks], np.int64)


def _aligned(
    calls: Sequence[Calls], report: Int64
) -> tuple[tuple[Calls, ...], int, tuple[str, ...]]:
    """Shift the calls onto the first report's clock; return what is known of it, and warnings."""
    waits = np.array([bool(_FOR_ALL.fullmatch(name)) for name in calls[0].name], np.bool_)
    if not waits.any():
        return tuple(calls), 0, ()
    start, end = (np.stack([t[waits] for t in ts]) for ts in (
        [c.start_ns for c in calls], [c.end_ns for c in calls]))  # fmt: skip
    found = align(start, end, report)
    shifts = found.shift_ns[report].tolist()
    said = []
    if len(found.moved):
        most = float(np.abs(found.shift_ns).max()) * 1e-9
        said.append(
            f"the clocks of {len(found.moved)} of {len(found.shift_ns)} reports contradict the "
            f"order of the collectives by up to {si(most, 's')}: they are aligned by these, to "
            f"{si(float(found.bound_ns.max()) * 1e-9, 's')} either way"
        )
    if len(found.drifting):
        said.append(
            f"the clocks of {len(found.drifting)} of {len(found.shift_ns)} reports drift: no one "
            f"shift puts their collectives in order, so that waiting is wrong by up to "
            f"{si(float(found.bound_ns[found.drifting].max()) * 1e-9, 's')}; profile for a shorter "
            f"time"
        )
    moved = tuple(
        c if by == 0 else replace(c, start_ns=c.start_ns + by, end_ns=c.end_ns + by)
        for c, by in zip(calls, shifts, strict=True)
    )
    return moved, int(found.bound_ns.max()), tuple(said)


def collectives(
    matched: Matched, batches: int, warmup: int
) -> tuple[tuple[CollectiveGroup, ...], Waiting | None]:
    """Split the time in MPI's collectives into waiting and transfer.

    Returns the groups by total time, and the time per rank; `batches` counts the warm-up, too.
    """
    if not any(len(c.name) for c in matched.calls):
        return (), None
    return grouped(matched.calls, matched.comparable, warmup, max(batches - warmup, 1))
