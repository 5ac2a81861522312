"""Launches to scale: times of the batches, and communication against computing, by report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from perfmodel.analysis.analyze import analyze
from perfmodel.analysis.result import RunAnalysis
from perfmodel.analysis.warnings import check_collection
from perfmodel.base.arrays import Bool, Floats, Int64
from perfmodel.base.errors import ModelError, ReportError
from perfmodel.base.escape import printable
from perfmodel.base.units import DTYPE_BYTES
from perfmodel.programs import MARK_SYMBOLS, program_of_sizes, settings_of_mark
from perfmodel.programs.identify import Identity
from perfmodel.programs.program import Options
from perfmodel.readers.run_records import read_record, whole_number
from perfmodel.readers.trace import GRAPH, KERNEL, NULL, Trace
from perfmodel.studies.calibrated import Calibrated
from perfmodel.studies.registry import calibrated_of, model_of_sizes
from perfmodel.timing.collectives import ALL_REDUCES, CollectiveGroup
from perfmodel.timing.intervals import covered, union
from perfmodel.timing.kernels import communicating
from perfmodel.timing.run import Run, batch_windows
from perfmodel.timing.spans import Level

Progress = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class Split:
    """A batch by what is going on, seconds per rank and batch on one timeline.

    The four parts add up to the batch: what happens at the same time counts for the first of
    them.

    Attributes
    ----------
    batch_s : float
        From the batch's start until the host and the GPU are done with it.
    compute_s : float
        A kernel runs that does not communicate.
    exposed_s : float
        The rank is in MPI, or in a kernel that communicates, and computes nothing meanwhile;
        waiting for other ranks is part of it.
    copies_s : float
        Only copies (or sets) of memory run.
    idle_s : float
        Neither: the host launches, or waits.
    overlapped_s : float
        Communication under kernels, which is part of `compute_s`.
    """

    batch_s: float
    compute_s: float
    exposed_s: float
    copies_s: float
    idle_s: float
    overlapped_s: float

    @property
    def communication_s(self) -> float:
        """Time in MPI or NCCL, exposed or not."""
        return self.exposed_s + self.overlapped_s


@dataclass(frozen=True, slots=True)
class Launch:
    """One start of a program: who ran what, and how long its batches took.

    Attributes
    ----------
    label, source : str
        Its name; 'report' or 'record'.
    ranks : int
        p.
    sizes : mapping of str to int
        Values of the workload's symbols but p; B is the batch of all ranks together.
    settings : mapping of str to str
        What the run gives that changes the time of a batch, by the program's names.
    seconds : array, shape (1, batches)
        Batches of the slowest rank after the warm-up; from a record means over epochs.
    split : Split or None
        None from a record, and where the report cannot say.
    reduced : tuple of CollectiveGroup
        Its all-reduces by size.
    warnings : tuple of str
    calibrated : Calibrated or None
        The model of its program's steps.
    flops : float or None
        Of a step on one rank, by the sizes of its operators; None where they are unknown.
    """

    label: str
    source: str
    ranks: int
    sizes: Mapping[str, int]
    settings: Mapping[str, str]
    seconds: Floats
    split: Split | None = None
    reduced: tuple[CollectiveGroup, ...] = ()
    warnings: tuple[str, ...] = ()
    calibrated: Calibrated | None = None
    flops: float | None = None

    @property
    def alone(self) -> Mapping[str, str] | None:
        """Settings of the same run on one rank that sums nothing; None if there are none."""
        return self.calibrated.alone(self.settings) if self.calibrated else None

    @property
    def median_s(self) -> float:
        """Median batch of the slowest rank."""
        return float(np.nanmedian(self.seconds))


def launches_of(
    traces: Sequence[Trace],
    *,
    batch_label: str | None = None,
    level: Level | None = None,
    warmup: int | None = None,
    by_time: bool = True,
    batches: Mapping[Path, int] | None = None,
    progress: Progress = lambda _: None,
) -> tuple[Launch, ...]:
    """Measure the launches of some reports; those of the ranks of one launch are joined.

    `batches` gives B by report, for reports that do not hold it.

    Raises
    ------
    ReportError, SchemaError, WorkloadError
        As `perfmodel.analysis.analyze.analyze`.
    """
    if not traces:
        return ()
    chosen = Options(
        {}, "full", batch_label=batch_label, level=level, warmup=warmup, by_time=by_time
    )
    given = batches or {}
    return tuple(_launch(run, given) for run in analyze(traces, chosen, progress).runs)


def _launch(found: RunAnalysis, batches: Mapping[Path, int]) -> Launch:
    run, calibrated = found.measured, calibrated_of(found.program)
    by_gpu = found.program.step_clock == "gpu"
    values = dict(found.identity.values)
    ranks = values.pop("p")
    batch = {batches[trace.source] for trace in run.traces if trace.source in batches}
    if len(batch) > 1:
        raise ModelError(
            f"{found.label}: expected one B for the reports of one run; got "
            f"{', '.join(map(str, sorted(batch)))}; give the same for all its reports"
        )
    if batch:
        values["B"] = batch.pop()
    collected = check_collection(run, found.identity, by_gpu=by_gpu)
    warnings = [*found.program.identify(run, {})[1], *collected]
    split = None
    if why := _inseparable(run, ranks, found.identity):
        warnings.append(f"{found.label}: communication and computing are not separated: {why}")
    else:
        split = split_of(run, found.batch.warmup)
    return Launch(
        label=found.label,
        source="report",
        ranks=ranks,
        sizes=values,
        settings=settings_of_mark(found.program, found.identity.config),
        seconds=found.run_steps.series()[np.newaxis],
        calibrated=calibrated,
        split=split,
        reduced=tuple(g for g in found.collectives if g.name in ALL_REDUCES and g.bytes),
        warnings=tuple(warnings),
        flops=found.work.flops or None if found.work else None,
    )


def launch_of_record(path: Path) -> Launch:
    """Read a run record as a launch.

    A batch is the record's median where the host waits for each, else the mean of every epoch but
    the first, which ends when the GPU is done.

    Raises
    ------
    ReportError
        If the file cannot be read, is no record, or times no batch after the first.
    """
    record, model = read_record(path), model_of_sizes()
    sizes = {
        symbol: whole_number(record.config.get(name), name, path.name)
        for symbol, name in MARK_SYMBOLS.items()
        if symbol != "p"
    }
    sizes["b"] = DTYPE_BYTES.get(str(record.config.get("dtype")), 4)
    queues = model.queues(record.config)
    median = record.batch_median_s
    seconds = record.epoch_batch_s if queues else () if median is None else (median,)
    if not seconds:
        expected = "two epochs or more" if queues else "batches behind the first"
        raise ReportError(
            f"{printable(path.name)}: expected times of {expected}; got none; train for more epochs"
        )
    return Launch(
        label=record.label,
        source="record",
        ranks=record.ranks,
        sizes=sizes,
        settings=settings_of_mark(program_of_sizes(), record.config),
        seconds=np.array([seconds]),
        calibrated=model,
    )


def split_of(run: Run, warmup: int) -> Split:
    """Split the batches after the warm-up into computing, communication, copies and idle time.

    Kernels, MPI calls and copies are laid on the report's one timeline; a moment counts for the
    first of these that goes on. Means over ranks and the middle half of their batches by length:
    unlike medians, they add up.
    """
    begin, done = batch_windows(run)
    total, batches = np.zeros(5), 0
    for i, rank in enumerate(run.ranks):
        first, last = begin[i, warmup:], done[i, warmup:]
        first, last = first[first != NULL], last[first != NULL]
        if len(first) == 0:
            continue
        low, high = np.quantile(last - first, (0.25, 0.75), method="nearest")
        usual = (last - first >= low) & (last - first <= high)
        first, last = first[usual], last[usual]
        for trace, rank_of in zip(run.traces, run.rank_of, strict=True):
            process = next((at for at, r in rank_of.items() if r == rank), None)
            if process is not None:
                total += _of_process(trace, process, first, last)
                batches += len(first)
    whole, compute, communication, either, all_of_it = total
    parts = np.array([
        whole, compute, either - compute, all_of_it - either, whole - all_of_it,
        communication - (either - compute),
    ])  # fmt: skip
    return Split(*(parts * 1e-9 / max(batches, 1)).tolist())


def _of_process(trace: Trace, process: int, first: Int64, last: Int64) -> Floats:
    """Nanoseconds in windows: all, computing, communication, either of them, or copies, too."""
    ops, mpi = trace.ops, trace.mpi
    mine = ops.process == process
    reduces = mine & communicating(trace)
    kernels = mine & (((ops.kind == KERNEL) & ~reduces) | (ops.kind == GRAPH))
    calls = (trace.thread_process[mpi.thread] == process) & (mpi.end_ns != NULL)

    def spent(of_gpu: Bool, with_mpi: bool) -> int:
        start, end = ops.start_ns[of_gpu], ops.end_ns[of_gpu]
        if with_mpi:
            start = np.concatenate([start, mpi.start_ns[calls]])
            end = np.concatenate([end, mpi.end_ns[calls]])
        busy = union(np.zeros(len(start), np.int64), start, end)
        return int(covered(np.zeros(len(first), np.int64), first, last, busy).sum())

    return np.array([
        int((last - first).sum()), spent(kernels, False), spent(reduces, True),
        spent(kernels | reduces, True), spent(mine, True),
    ], float)  # fmt: skip


def _inseparable(run: Run, ranks: int, identity: Identity) -> str:
    """Why a report does not separate communication from computing; empty if it does."""
    if not any(len(t.ops) for t in run.traces):
        return f"no GPU work was recorded; {run.traces[0].how_to_record}"
    if ranks == 1:
        return ""
    if identity.inseparable:
        return identity.inseparable
    if any((t.ops.kind == GRAPH).any() for t in run.traces):
        return "CUDA graphs were traced whole; profile with --cuda-graph-trace=node"
    return ""
