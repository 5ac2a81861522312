"""The steps of a run: on which clock they are timed, which of them count, which rank is slowest.

Everything that says what a step takes reads it here. The step is the median step of the slowest
rank, and the slowest rank is the one with the largest median. Neither a median over all ranks,
which hides a slow rank where ranks do not wait for each other, nor the largest time of each step,
which adds up differences that the next step takes back, is the time of any rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from perfmodel.base.arrays import Floats, Int32, Int64
from perfmodel.base.errors import SchemaError
from perfmodel.timing.async_batches import AsyncBatches, time_async
from perfmodel.timing.cuda_graphs import first_replay
from perfmodel.timing.run import Run
from perfmodel.timing.run_exchanges import lane_ranks
from perfmodel.timing.samples import PathTable, tabulate
from perfmodel.timing.step_times import FEW, count_warmup, widened

StepClock = Literal["gpu", "done", "host"]
"""From a step's first GPU operation to that of the next one; until host and GPU are done with it;
the host's range."""


@dataclass(frozen=True, slots=True)
class RunSteps:
    """The steps of a run on one clock.

    Attributes
    ----------
    clock : {'gpu', 'done', 'host'}
    ranks : int32, shape (lanes,)
        Rank of every lane, ascending. A lane is one GPU of one process, or a process without one.
    own_ns : int64, shape (lanes, steps)
        Time of every step, warm-up included; negative where it is unknown.
    counted : slice
        Steps without the warm-up, and without the last one where nothing marks its end.
    slowest : int
        Row of the rank with the largest median step.
    """

    clock: StepClock
    ranks: Int32
    own_ns: Int64
    counted: slice
    slowest: int

    @property
    def step_s(self) -> float:
        """The step: the median one of the slowest rank, as recorded."""
        return float(np.median(self.series()))

    def median_s(self, rank: int) -> float | None:
        """Return the median step of a rank, as recorded; None where it has none."""
        own_ns = self.own_ns[self.ranks == rank, self.counted]
        known = own_ns[own_ns >= 0]
        return float(np.median(known)) * 1e-9 if len(known) else None

    def count_of(self, rank: int) -> int:
        """Return how many steps of a rank count and are timed."""
        return int((self.own_ns[self.ranks == rank, self.counted] >= 0).sum())

    @property
    def mean_s(self) -> float:
        """Mean step of the slowest rank, as recorded."""
        return float(np.mean(self.series()))

    @property
    def count(self) -> int:
        """Steps that count and are timed on any rank."""
        return int((self.own_ns[:, self.counted] >= 0).any(axis=0).sum())

    @property
    def warmup(self) -> int:
        """Leading steps that do not count."""
        return int(self.counted.start)

    @property
    def warmup_s(self) -> float:
        """Time of the warm-up on the slowest rank."""
        return float(np.maximum(self.own_ns[self.slowest, : self.warmup], 0).sum()) * 1e-9

    @property
    def drawn(self) -> int:
        """Number of the step that a picture shows: of median time on the slowest rank.

        Of an even number of steps the shorter of the two in the middle; of equal ones the first.
        """
        own_ns = self.own_ns[self.slowest, self.counted]
        known = np.flatnonzero(own_ns >= 0)
        order = known[np.argsort(own_ns[known], kind="stable")]
        return self.warmup + int(order[(len(order) - 1) // 2])

    def series(self) -> Floats:
        """Return the steps of the slowest rank that count, in s, shape (timed steps,)."""
        own_ns = self.own_ns[self.slowest, self.counted]
        series: Floats = own_ns[own_ns >= 0].astype(np.float64) * 1e-9
        return series

    def seconds(self) -> Floats:
        """Return all steps of all lanes, shape (lanes, steps), NaN where unknown."""
        seconds: Floats = np.where(self.own_ns >= 0, self.own_ns * 1e-9, np.nan)
        return seconds

    def with_own_clock(self, table: PathTable, run: Run) -> PathTable:
        """Return a table of ranges in which the ranges of the steps have the time of the steps."""
        if self.clock == "host":
            return table
        seconds, own = np.full(table.shape, np.nan), self.seconds()
        width = min(table.shape[1], own.shape[1])
        row_of = {rank: row for row, rank in reversed([*enumerate(self.ranks.tolist())])}
        for i, rank in enumerate(run.ranks):
            if rank in row_of:
                seconds[i, :width] = own[row_of[rank], :width]
        steps = [at for at, path in enumerate(table.paths) if path[-1] == run.batch_label]
        return table.with_host(dict.fromkeys(steps, seconds))


def run_steps(
    run: Run,
    step_clock: Literal["gpu", "host"],
    *,
    replay: str = "",
    warmup: int | None = None,
    batches: AsyncBatches | None = None,
    done: bool | None = None,
) -> RunSteps:
    """Choose the clock, the warm-up and the slowest rank of a run's steps.

    Parameters
    ----------
    run : Run
    step_clock : {'gpu', 'host'}
        What times the steps of its program, as `Program.step_clock`.
    replay : str
        Range in which the program replays a CUDA graph: steps before the first that only replays
        are warm-up.
    warmup : int, optional
        Leading steps to leave out; by default `count_warmup` of the lanes, and where steps end with
        the first operation of the next at least one: its GPU began with an empty queue.
    batches : AsyncBatches, optional
        Of the run, if it is known already.
    done : bool, optional
        Whether steps that the host times last until the GPU is done with them, too; by default only
        where the host queues them.

    Raises
    ------
    SchemaError
        If no step is left.
    """
    by_gpu = step_clock == "gpu" and bool(run.steps)
    clock: StepClock = "gpu"
    if by_gpu:
        ranks, own_ns = _lanes(run)
    else:
        batches = batches or time_async(run)
        clock = "done" if (batches.queues if done is None else done) else "host"
        ranks = np.array(run.ranks, np.int32)
        own_ns = batches.done_ns if clock == "done" else batches.host_ns
    steps = own_ns.shape[1]
    first = count_warmup(np.where(own_ns < 0, np.nan, own_ns))
    if by_gpu:
        first = max(first, 1) if steps > FEW else 0
    if warmup is not None:
        first = warmup
    elif replay:
        table = tabulate(run.range_times, run.ranks, run.batch_label)
        first = max(first, first_replay(table, replay, run.batch_label) or 0)
    on_gpus = by_gpu and any((report.times.device >= 0).any() for report in run.steps)
    unmarked = on_gpus and steps > FEW and steps - first >= 2
    counted = slice(first, steps - 1 if unmarked else steps)
    known = own_ns[:, counted] >= 0
    if not known.any():
        raise SchemaError(
            f"{run.label}: no finished step is left: found {steps} steps ({run.batch_label!r}), "
            f"{first} excluded as warm-up; profile more steps or lower --warmup"
        )
    median_ns = [
        float(np.median(own[timed])) if timed.any() else -1.0
        for own, timed in zip(own_ns[:, counted], known, strict=True)
    ]
    return RunSteps(clock, ranks, own_ns, counted, int(np.argmax(median_ns)))


def _lanes(run: Run) -> tuple[Int32, Int64]:
    """Ranks and steps of all lanes, by rank and GPU."""
    steps = max(report.times.step_ns.shape[1] for report in run.steps)
    ranks = np.array([rank for ranks in lane_ranks(run.steps) for rank in ranks], np.int32)
    gpus = np.concatenate([report.times.device for report in run.steps])
    own_ns = np.concatenate([widened(report.times.step_ns, steps, -1) for report in run.steps])
    order = np.lexsort((gpus, ranks))
    return ranks[order], own_ns[order]
