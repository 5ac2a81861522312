"""Warnings: what was not collected, what no range explains, what the workload counts and lacks."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

import numpy as np

from perfmodel.analysis.outliers import check_ranks
from perfmodel.analysis.rates import amounts, counted
from perfmodel.base.units import si
from perfmodel.programs.identify import Identity
from perfmodel.readers.trace import GRAPH, MPI_OTHER, NULL, Trace
from perfmodel.timing.copies import devices, gpu_id, tells_devices, unsized_copies
from perfmodel.timing.host_events import cut_short
from perfmodel.timing.mpi_calls import lost
from perfmodel.timing.range_times import ranks_of
from perfmodel.timing.run import Run
from perfmodel.timing.run_exchanges import lane_ranks
from perfmodel.timing.samples import PathTimes
from perfmodel.timing.step_report import MOST_PAUSES, LaunchedThere, StepReport
from perfmodel.workloads.work import Counts

_PAUSED: Final[Mapping[LaunchedThere, str]] = {
    "nothing": "no operation is launched there",
    "all": "all operations of a step are launched there",
    "all of a thread":
        "operations of a step are launched there by all its threads (in PyTorch: forward and "
        "backward pass), but not all of them, as where an optimizer's step is skipped",
    "none of a thread":
        "a part of a step's operations is launched there, none by one of its threads (in PyTorch: "
        "no backward pass), as in an evaluation",
    "some": "a part of a step's operations is launched there",
    "others": "other operations than a step's are launched there",
    "": "a step lacks its range, or there is other work",
}  # fmt: skip
"""Words of a warning for `Pause.launched`."""
_SHOWN: Final = 8
_LOST: Final = "ProcessEventsError"
"""Nsight Systems' name of an error of its importer, after which events are missing."""
_STUCK: Final = 3
"""A rank waits in its last call if it is in it for this many times the longest one before."""


def gpu_of_rank(run: Run) -> dict[int, int]:
    """GPU id by rank; reports of one rank each may all call it 0, a process may drive several."""
    by_report = [devices(trace) for trace in run.traces]
    found = {rank: gpu for gpus in by_report for rank, gpu in gpus.items()}
    lanes = sum(int((report.times.device >= 0).sum()) for report in run.steps)
    if not run.steps or len(found) == sum(map(len, by_report)) == lanes:
        return found
    return {
        rank: gpu_id(trace, process, ordinal)
        for trace, report, ranks in zip(run.traces, run.steps, lane_ranks(run.steps), strict=True)
        for rank, process, ordinal in zip(
            ranks, report.times.process.tolist(), report.times.device.tolist(), strict=True
        )
        if ordinal >= 0
    }


def same_devices(run: Run) -> dict[int, tuple[int, ...]]:
    """Devices that several ranks of one report ran on, each by its own numbers."""
    shared: dict[int, list[int]] = {}
    for rank, gpu in sorted(gpu_of_rank(run).items()):
        shared.setdefault(gpu, []).append(rank)
    alone = len(run.traces) == 1
    return {gpu: tuple(ranks) for gpu, ranks in shared.items() if alone and len(ranks) > 1}


def unattributed(run: Run) -> dict[str, int]:
    """Return how many GPU operations the ranges account for, over all reports of the run."""
    found = [a for _, a in run.parts]
    return {
        "gpu_ops": sum(a.total for a in found),
        "without_launch": sum(a.unlaunched for a in found),
        "outside_ranges": sum(a.outside for a in found),
        "outside_ranges_during_batches": sum(a.strays for a in found),
        "attributed_by_time": sum(a.by_time for a in found),
    }


def lacking(counts: Mapping[str, int]) -> int:
    """GPU operations that the batches lack by these counts of `unattributed`; 0 if under 1 %.

    With some, the time in which the GPU is busy is a lower bound.
    """
    lost = counts["without_launch"] + counts["outside_ranges_during_batches"]
    return lost if lost > 0.01 * max(counts["gpu_ops"], 1) else 0


def check_collection(
    run: Run, identity: Identity, *, by_gpu: bool, by_time: bool = True
) -> Iterator[str]:
    """Warn of what was not collected, and of GPU work that no range explains.

    Where the GPU times the steps (`by_gpu`), work between two of them is the first one's. `by_time`
    says how operations were attributed, as `Options.by_time`.
    """
    yield from check_ranks(run)
    for trace in run.traces:
        yield from _uncollected(trace, len(run.ranks), identity)
    for trace, found in run.parts:
        if unsized := unsized_copies(trace, found):
            yield (
                f"{trace.source.name}: {unsized} copies have no size, or one below 0, and count as "
                f"0 bytes: the amounts and rates of copies are too small; export the report again"
            )
    if not tells_devices(run.traces):
        for device, ranks in same_devices(run).items():
            yield (
                f"{run.label}: ranks {', '.join(map(str, ranks))} each ran on their device "
                f"{device}; Nsight Systems {run.traces[0].product_version} does not say whether "
                f"that is one GPU or one each; 2025.3 and later do"
            )
    if any(found.crossing for _, found in run.parts):
        yield (
            f"{run.label}: some ranges overlap without nesting; each is shown under the tightest "
            f"range that contains it, or by itself; push and pop them in order"
        )
    yield from _pauses(run.label, run.steps if by_gpu else ())
    yield from _whole_graphs(run.traces if by_gpu else ())
    yield from _stopped(run.label, run.traces)
    counts = unattributed(run)
    strays = counts["outside_ranges_during_batches"]
    if lost := lacking(counts):
        advice = "put an NVTX range around what launches them"
        if counts["without_launch"] > strays:
            advice = "begin the recording earlier, or where the GPU has nothing queued"
        elif not by_time:
            advice += ", and leave out --attribute thread"
        yield (
            f"{run.label}: {lost} of {counts['gpu_ops']} GPU operations belong to no range "
            f"({counts['without_launch']} without a launch in the report, {strays} launched "
            f"outside all ranges while the steps ran); {advice}"
        )


def _pauses(label: str, reports: Sequence[StepReport]) -> Iterator[str]:
    """Warn of pauses between steps, with what is launched there of a step's operations.

    What runs there counts as the time of the step before, on the GPU's clock; steps that end on the
    host hold none of it.
    """
    for report in reports:
        host = report.steps.apart or (report.times.device < 0).all()
        counts = "" if host else ", and counts as time of that step"
        advice = (
            "put each step in a range of its own, or name other steps with --batch-range"
            if report.steps.declared
            else "name the steps by NVTX ranges"
        )
        for pause in report.pauses[:MOST_PAUSES]:
            rank = report.rank_of.get(pause.process, 0)
            yield (
                f"{label}: rank {rank}: after step {pause.number} ({report.steps.label!r}) "
                f"{pause.longer:.1f} steps' time is in no step{counts}: "
                f"{_PAUSED[pause.launched]}; {advice}"
            )
        if len(report.pauses) > MOST_PAUSES:
            yield f"{label}: there are {len(report.pauses) - MOST_PAUSES} more such pauses"


def _whole_graphs(traces: Sequence[Trace]) -> Iterator[str]:
    """CUDA graphs that were recorded as a whole hide their kernels."""
    for trace in traces:
        if (trace.ops.kind == GRAPH).any():
            yield (
                f"{trace.source.name}: CUDA graphs were recorded as a whole, so that kernels, "
                f"categories and collectives inside them are unknown; profile with "
                f"--cuda-graph-trace=node to see them"
            )


def _uncollected(trace: Trace, ranks: int, identity: Identity) -> Iterator[str]:
    """Yield faults and missing data of one report of a run of these ranks."""
    for view in sorted(trace.views):
        yield (
            f"{trace.source.name}: {view} is a view, which perfmodel does not read: its rows "
            f"are missing; make it a table: CREATE TABLE copy AS SELECT * FROM {view}"
        )
    if any(_LOST in d.text for d in trace.diagnostics):
        yield (
            f"{trace.source.name}: Nsight Systems could not read all that it had recorded, so that "
            f"ranges, calls or GPU operations may be missing, and steps and times wrong; record "
            f"again, fewer steps or with another version"
        )
    if len(trace.ops) == 0 and identity.uses_gpu:
        yield (
            f"{trace.source.name}: no GPU operation was recorded, so GPU times are missing; if "
            f"the program uses a GPU, {trace.how_to_record}"
        )
    if trace.mpi_from_nvtx:
        yield (
            f"{trace.source.name}: Nsight Systems {trace.product_version} records MPI calls "
            f"without sizes; 2023.4 and later record them"
        )
    elif ranks > 1 and identity.uses_mpi:
        yield from _untraced_messages(trace)
    elif ranks > 1 and untraced([trace]):
        yield (
            f"{trace.source.name}: no MPI call was recorded: if the processes are ranks of an MPI "
            f"job, what they compute, communicate and wait is missing; profile with "
            f"--trace=nvtx,mpi --mpi-impl=openmpi (or mpich)"
        )
    yield from _doubtful_sizes(trace)
    if len(set(trace.ranks.values())) < len(trace.ranks):
        yield (
            f"{trace.source.name}: a rank is there more than once: the report holds several "
            f"MPI jobs, which are added up; profile them one by one"
        )
    open_ranges = int((trace.ranges.end_ns == NULL).sum())
    if open_ranges:
        yield (
            f"{trace.source.name}: {open_ranges} ranges never ended and are left out: the "
            f"program or the collection was cut short"
        )
    ranges, ops = trace.ranges, trace.ops
    early = (ranges.end_ns != NULL) & (ranges.end_ns < ranges.start_ns)
    backwards = int(early.sum() + (ops.end_ns < ops.start_ns).sum())
    if backwards:
        yield (
            f"{trace.source.name}: {backwards} ranges or GPU operations end before they start: "
            f"the report is damaged; export it again"
        )


def _doubtful_sizes(trace: Trace) -> Iterator[str]:
    """Say of which reductions the size is not known, and what it may be."""
    mpi = trace.mpi
    doubtful = (mpi.size_bytes == NULL) & (mpi.least_bytes != NULL)
    if doubtful.any():
        least = np.unique(mpi.least_bytes[doubtful])
        sizes = ", ".join(si(float(size), "B") for size in least[:3].tolist())
        yield (
            f"{trace.source.name}: sizes of {int(doubtful.sum())} all-reduces are missing: from p "
            f"ranks Nsight Systems records p times the buffer, with MPI_IN_PLACE p - 1 times, and "
            f"not which; not in place they are {sizes}{' and others' if len(least) > 3 else ''}"
        )


def untraced(traces: Sequence[Trace]) -> bool:
    """Whether nothing but ranges was recorded, so that processes may communicate unseen."""
    return all(
        len(t.mpi) == t.op_count == 0 and "CUPTI_ACTIVITY_KIND_RUNTIME" not in t.tables
        for t in traces
    )


def _untraced_messages(trace: Trace) -> Iterator[str]:
    """Say that no message was recorded; seen with MPICH 5.0 and mpi4py 4.1 under 2024.2."""
    if len(trace.mpi) == 0:
        yield (
            f"{trace.source.name}: no MPI call was recorded; profile with "
            f"--trace=nvtx,cuda,mpi --mpi-impl=openmpi (or mpich)"
        )
    elif (trace.mpi.source == MPI_OTHER).all() and not _one_sided(trace):
        yield (
            f"{trace.source.name}: only MPI calls such as MPI_Init were recorded, no messages; if "
            f"the program sends messages, it calls functions for large counts (MPI_Allreduce_c), "
            f"as mpi4py does with MPICH, which this Nsight Systems does not trace: use Open MPI 4"
        )


def _one_sided(trace: Trace) -> bool:
    """Whether the program communicates by windows, or by files."""
    used = np.unique(trace.mpi.name[trace.mpi.name >= 0]).tolist()
    return any(trace.strings[code].startswith(("MPI_Win_", "MPI_File_")) for code in used)


def _stopped(label: str, traces: Sequence[Trace]) -> Iterator[str]:
    """Say which ranks began and never came to MPI_Finalize, and which of them waited then."""
    stopped: list[int] = []
    stuck: dict[int, tuple[float, str]] = {}
    for trace in traces:
        gone, calls = lost(trace), trace.mpi
        rank_of, process = ranks_of(trace), trace.thread_process[calls.thread]
        for p, row in cut_short(trace).items():
            if p not in gone or p not in rank_of:
                continue
            stopped.append(rank_of[p])
            end = int(calls.end_ns[process == p].max())
            last = int(calls.start_ns[row])
            alike = (process == p) & (calls.name == calls.name[row])
            alike[row] = False
            before = (calls.end_ns - calls.start_ns)[alike]
            if calls.end_ns[row] == NULL or (len(before) and end - last > _STUCK * before.max()):
                stuck[rank_of[p]] = max(end - last, 0) * 1e-9, trace.strings[calls.name[row]]
    if not stopped:
        return
    said = ""
    if stuck:
        names = " or ".join(sorted({name for _, name in stuck.values()})[:3])
        said = f"; rank{_listed(stuck)} then waited in {names}"
        longest = max(seconds for seconds, _ in stuck.values())
        said += f", up to {si(longest, 's')}" if longest else ""
        left = sorted(set(stopped) - set(stuck))
        said += f", rank {left[0]} did not: see why it ended" if len(left) == 1 else ""
    yield (
        f"{label}: rank{_listed(stopped)} never reached MPI_Finalize: the run or the recording was "
        f"cut short, and last calls may be missing{said}"
    )


def _listed(ranks: Collection[int]) -> str:
    shown = ", ".join(str(rank) for rank in sorted(ranks)[:_SHOWN])
    more = f" and {len(ranks) - _SHOWN} more" if len(ranks) > _SHOWN else ""
    return f"{'s' * (len(ranks) > 1)} {shown}{more}"


def check_ranges(
    run: Run,
    measured: Sequence[PathTimes],
    counts: Mapping[str, Counts],
    rates: Mapping[str, object],
    totals: Counts,
    *,
    replay: str = "",
) -> Iterator[str]:
    """Warn of ranges that the workload counts and the report lacks, and of missing rates.

    A CUDA graph (`replay`) has no rates of its own: `perfmodel.timing.cuda_graphs.notes` says why.
    """
    present = counted(measured, counts)
    absent = [n for n, c in counts.items() if n not in present and c.flops + c.moved_bytes]
    if absent:
        yield (
            f"{run.label}: the workload counts ranges that the steps do not have: "
            f"{', '.join(repr(n) for n in absent)}; their work is left out of rates and intensity"
        )
    work = {} if replay else amounts(totals)
    for name in (n for n, rate in rates.items() if rate is None and work.get(n, 0) > 0):
        yield f"{run.label}: {name} cannot be fitted: a range with that work is missing or untimed"
