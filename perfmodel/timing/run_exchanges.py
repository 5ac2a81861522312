"""All exchanges of a run on one clock: kernels of its steps, and calls of MPI."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfmodel.readers.trace import NULL
from perfmodel.timing.batches import Batches
from perfmodel.timing.clock_sync import utc_shifts
from perfmodel.timing.exchanges import Exchanges, joined, match
from perfmodel.timing.mpi_calls import lost, mpi_exchanges
from perfmodel.timing.nccl import NcclKernels, join_kernels
from perfmodel.timing.range_times import ranks_of
from perfmodel.timing.run import Run
from perfmodel.timing.step_report import StepReport


def exchanges_of(run: Run) -> Exchanges:
    """Match the exchanges of a run; its kernels come first, as `kernels_of` has them."""
    traces = run.traces
    starts = [trace.utc_start_ns for trace in traces]
    shifts = utc_shifts(starts)
    of_mpi = mpi_exchanges(traces, shifts, Batches.of(run.range_times, run.batch_label), run.ranks)
    kernels = [_of_kernels(run.steps, shifts)] if len(run.steps) == len(traces) else []
    stopped = {ranks_of(t).get(process, -1) for t in traces for process in lost(t)}
    return match(
        joined([*kernels, of_mpi]),
        reports=len(traces),
        world=run.ranks,
        on_one_clock=len(traces) == 1 or None not in starts,
        stopped=frozenset(stopped),
    )


def kernel_exchanges(reports: Sequence[StepReport]) -> Exchanges:
    """Match the kernels that communicate, alone."""
    shifts = utc_shifts([report.utc_start_ns for report in reports])
    return match(_of_kernels(reports, shifts), reports=len(reports))


def kernels_of(reports: Sequence[StepReport]) -> NcclKernels:
    """Put the kernels that communicate of all reports together, on the clock of each one."""
    first = np.cumsum([0, *(len(report.times.process) for report in reports)])[:-1]
    return join_kernels([report.nccl for report in reports], first.tolist())


def lane_ranks(reports: Sequence[StepReport]) -> list[list[int]]:
    """Rank of every lane: its process's, or counted where a process drives several GPUs."""
    known = [[r.rank_of.get(int(p), NULL) for p in r.times.process] for r in reports]
    flat = [rank for ranks in known for rank in ranks]
    if NULL not in flat and len(set(flat)) == len(flat):
        return known
    lanes = sorted(
        (i, int(r.times.device[j]), int(r.times.process[j]), j)
        for i, r in enumerate(reports)
        for j in range(len(r.times.process))
    )
    number = {(i, j): n for n, (i, _, _, j) in enumerate(lanes)}
    return [[number[i, j] for j in range(len(r.times.process))] for i, r in enumerate(reports)]


def _of_kernels(reports: Sequence[StepReport], shifts: Sequence[int]) -> Exchanges:
    """Kernels of all lanes as exchanges, before they are matched."""
    kernels = kernels_of(reports)
    ranks = np.array([rank for ranks in lane_ranks(reports) for rank in ranks], np.int64)
    report = np.repeat(np.arange(len(reports)), [len(r.nccl) for r in reports])
    by = np.array(shifts, np.int64)[report]
    columns = {
        "name": kernels.name, "rank": ranks[kernels.lane], "report": report,
        "communicator": kernels.communicator, "bytes": kernels.bytes, "step": kernels.step,
        "held_step": kernels.step, "post_ns": kernels.start_ns + by, "end_ns": kernels.end_ns + by,
        "shift_ns": by,
    }  # fmt: skip
    return Exchanges.of(kernels.names, ranks.tolist(), columns)
