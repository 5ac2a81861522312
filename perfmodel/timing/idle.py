"""Where a GPU idles, by a report: busy share of a window, and idle time by phase and cause."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from perfmodel.base.arrays import Int64
from perfmodel.base.errors import SchemaError
from perfmodel.readers.trace import NULL
from perfmodel.timing.range_times import Path, RangeTimes, ranks_of
from perfmodel.timing.run import Run

BETWEEN: Final = "between batches"
LAUNCHES: Final = "host launches"
INPUTS: Final = "copying images"
REDUCTIONS: Final = "summing gradients through the host"
PAUSE_S: Final = 0.1
_RARE: Final = 10
"""An idle stretch of `PAUSE_S` between two batches, and so many times the usual one, is no part of
training: it is left out and said."""


@dataclass(frozen=True, slots=True)
class RankBusy:
    """One rank's GPU over the window of its batches, warm-up left out.

    Attributes
    ----------
    rank : int
    batches : int
    window_s : float
        From the first batch's start until the last batch and its GPU work are done, less pauses.
    busy_s : float
        Union of the process's GPU operations in the window: kernels, copies, sets, graphs.
    pauses_s : tuple of float
        Gaps between batches that are long and rare, with an idle GPU: compiling, evaluating.
    """

    rank: int
    batches: int
    window_s: float
    busy_s: float
    pauses_s: tuple[float, ...]

    @property
    def busy_share(self) -> float:
        """Busy / window."""
        return self.busy_s / self.window_s


@dataclass(frozen=True, slots=True)
class IdlePhase:
    """Time in which the GPU idled while the host was in a range, but in none of those inside it.

    Attributes
    ----------
    path : tuple of str
        Labels from the batch inwards; `BETWEEN` alone for the time outside batches.
    cause : str
    idle_s : float
        Per batch, mean over ranks and batches.
    share : float
        Of the window.
    """

    path: Path
    cause: str
    idle_s: float
    share: float


@dataclass(frozen=True, slots=True)
class Idle:
    """What a report says of its GPUs' idling."""

    ranks: tuple[RankBusy, ...]
    phases: tuple[IdlePhase, ...]

    @property
    def busy_share(self) -> float:
        """Mean over ranks, weighted by their windows."""
        return sum(r.busy_s for r in self.ranks) / sum(r.window_s for r in self.ranks)

    @property
    def causes(self) -> Mapping[str, float]:
        """Share of the window by cause, largest first."""
        found: dict[str, float] = {}
        for phase in self.phases:
            found[phase.cause] = found.get(phase.cause, 0.0) + phase.share
        return dict(sorted(found.items(), key=lambda item: -item[1]))


def idle_of(run: Run, warmup: int, causes: Mapping[str, str] | None = None) -> Idle:
    """Split the time in which the GPUs of a run idled by what the host did meanwhile.

    Parameters
    ----------
    run : Run
    warmup : int
        Leading batches to leave out.
    causes : mapping of str to str, optional
        Cause by the label of the range in which the host is.

    Raises
    ------
    SchemaError
        If the report holds no GPU work, or no batch behind the warm-up.
    """
    ranks: list[RankBusy] = []
    idle: dict[Path, int] = {}
    for trace in run.traces:
        for process, rank in ranks_of(trace).items():
            mine = trace.ops.process == process
            if not mine.any():
                continue
            busy = BusyTime(trace.ops.start_ns[mine], trace.ops.end_ns[mine])
            found = _of_rank(run.range_times, rank, run.batch_label, warmup, busy)
            if found is not None:
                ranks.append(found[0])
                for path, ns in found[1].items():
                    idle[path] = idle.get(path, 0) + ns
    if not ranks:
        raise SchemaError(
            f"{run.label}: expected GPU work of batches behind the warm-up; got none; profile more "
            f"batches with --trace=cuda,nvtx"
        )
    batches, window = sum(r.batches for r in ranks), sum(r.window_s for r in ranks)
    phases = [
        IdlePhase(path, cause_of(path, causes or {}), ns * 1e-9 / batches, ns * 1e-9 / window)
        for path, ns in idle.items()
    ]
    return Idle(tuple(ranks), tuple(sorted(phases, key=lambda p: -p.idle_s)))


class BusyTime:
    """Busy time of a GPU up to any moment: the integral of the union of intervals.

    Parameters
    ----------
    start_ns, end_ns : int64, shape (n,)
    """

    def __init__(self, start_ns: Int64, end_ns: Int64) -> None:
        order = np.argsort(start_ns, kind="stable")
        start, end = start_ns[order], np.maximum.accumulate(end_ns[order])
        first = np.concatenate([[True], start[1:] > end[:-1]])
        heads = np.flatnonzero(first)
        self._start = start[heads]
        self._end = np.append(end[heads[1:] - 1], end[-1])
        self._before = np.concatenate([[0], np.cumsum(self._end - self._start)])

    def until(self, time_ns: Int64) -> Int64:
        """Return the busy nanoseconds before each time."""
        at = np.searchsorted(self._start, time_ns, side="right")
        over = np.maximum(self._end[at - 1] - time_ns, 0)
        found: Int64 = np.where(at > 0, self._before[at] - over, 0)
        return found

    def last_end(self, until_ns: int) -> int:
        """Return the end of the last busy stretch that begins before a time."""
        at = int(np.searchsorted(self._start, until_ns, side="left"))
        return int(self._end[at - 1]) if at else until_ns


def cause_of(path: Path, causes: Mapping[str, str]) -> str:
    """Return why the GPU idles in a range: by the innermost label that names a cause."""
    if path == (BETWEEN,):
        return BETWEEN
    if path[-1].startswith("MPI_"):
        return REDUCTIONS
    return next((causes[label] for label in reversed(path) if label in causes), LAUNCHES)


def _of_rank(
    times: RangeTimes, rank: int, label: str, warmup: int, busy: BusyTime
) -> tuple[RankBusy, dict[Path, int]] | None:
    """Window of a rank, and idle nanoseconds by path, inner ranges left out."""
    mine = np.flatnonzero((times.rank == rank) & (times.batch >= warmup) & (times.host_ns != NULL))
    heads = np.array([path[-1] == label for path in times.paths], np.bool_)
    batches = mine[heads[times.path[mine]]]
    if len(batches) == 0:
        return None
    start = times.start_ns[mine]
    idle = times.host_ns[mine] - (busy.until(start + times.host_ns[mine]) - busy.until(start))
    by_path = np.bincount(times.path[mine], idle, minlength=len(times.paths)).astype(np.int64)
    found = _own(times.paths, by_path, label)
    begins = np.sort(times.start_ns[batches])
    ends = np.sort(times.start_ns[batches] + times.host_ns[batches])
    end = max(int(ends[-1]), busy.last_end(int(ends[-1])))
    gaps = begins[1:] - ends[:-1]
    worked_in_gaps = busy.until(begins[1:]) - busy.until(ends[:-1])
    idle_gaps = gaps - worked_in_gaps
    usual = float(np.median(idle_gaps)) if len(idle_gaps) else 0.0
    pauses = idle_gaps >= max(PAUSE_S * 1e9, _RARE * usual)
    window = end - int(begins[0]) - int(gaps[pauses].sum())
    if window <= 0:
        return None
    whole = busy.until(np.array([begins[0], end], np.int64))
    worked = int(whole[1] - whole[0] - worked_in_gaps[pauses].sum())
    found[(BETWEEN,)] = max(0, window - worked - sum(found.values()))
    paused = tuple((gaps[pauses] * 1e-9).tolist())
    return RankBusy(rank, len(batches), window * 1e-9, worked * 1e-9, paused), found


def _own(paths: Sequence[Path], idle: Int64, label: str) -> dict[Path, int]:
    """Idle time of every path less that of its children; paths from the batch inwards."""
    inside = [(path[path.index(label) :], int(ns)) for path, ns in zip(paths, idle, strict=True)
              if label in path]  # fmt: skip
    own: dict[Path, int] = {}
    for path, ns in inside:
        own[path] = own.get(path, 0) + ns
        if len(path) > 1:
            own[path[:-1]] = own.get(path[:-1], 0) - ns
    return {path: max(0, ns) for path, ns in own.items()}
