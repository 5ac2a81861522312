"""Analyzes reports: joins times, work and ceilings to what `perfmodel analyze` says of a run."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from perfmodel.analysis.estimates import estimate, with_launches
from perfmodel.analysis.outliers import find_outliers, hosts_of
from perfmodel.analysis.rates import counted, fit_rates, fit_roofline, product_rates
from perfmodel.analysis.result import Analysis, BatchSummary, RangeRow, RankRow, RunAnalysis
from perfmodel.analysis.rows import check_bytes, check_model, kernel_rows, points, range_rows
from perfmodel.analysis.runs import (
    distinct_reports,
    measure_report,
    not_joined,
    runs_of,
    time_one,
)
from perfmodel.analysis.steps import (
    StepBreakdown,
    break_down,
    unequal_steps,
)
from perfmodel.analysis.warnings import (
    check_collection,
    check_ranges,
    gpu_of_rank,
    lacking,
    same_devices,
    unattributed,
    untraced,
)
from perfmodel.base.errors import ModelError, PerfmodelError, SchemaError, WorkloadError
from perfmodel.base.kernels import kernel_types
from perfmodel.base.parallel import Engine, all_failed, attempt_reports
from perfmodel.findings import Finding, find, kinds
from perfmodel.machines.devices import Identified, identify, known
from perfmodel.programs import program_of_run
from perfmodel.programs.facts import DeviceReduce, Facts, GemmTime, ServingRow
from perfmodel.programs.identify import missing_values
from perfmodel.readers import RAW, check_at_rest
from perfmodel.readers.trace import NULL, Trace
from perfmodel.timing.async_batches import AsyncBatches, head_of, time_async
from perfmodel.timing.batches import Batches
from perfmodel.timing.collectives import (
    NCCL,
    CollectiveGroup,
    Waiting,
    groups,
    marked_by_nccl,
    waiting_of,
)
from perfmodel.timing.copies import (
    devices,
    group_copies,
    pinned_rate,
    synchronizations,
    tells_devices,
)
from perfmodel.timing.cuda_graphs import notes as graph_notes
from perfmodel.timing.exchanges import COLLECTIVE, Exchanges
from perfmodel.timing.kernels import COMMUNICATION
from perfmodel.timing.late_ranks import LateRank, late_ranks, late_start
from perfmodel.timing.ledger import Ledger
from perfmodel.timing.point_to_point import PointToPoint, point_to_point, ranges_by_rank
from perfmodel.timing.recorder import Timed
from perfmodel.timing.run import Run, TimedReport
from perfmodel.timing.run_exchanges import exchanges_of, kernels_of
from perfmodel.timing.run_steps import RunSteps, run_steps
from perfmodel.timing.samples import PathTable, PathTimes, tabulate
from perfmodel.timing.skew import Skew, skew_of
from perfmodel.timing.step_graph import MOST_OPS
from perfmodel.timing.step_report import shortened
from perfmodel.workloads.work import Counts, Symbol, Workload

if TYPE_CHECKING:
    from perfmodel.analysis.operators import StepWork
    from perfmodel.base.cache import Cache
    from perfmodel.machines.machine import Machine
    from perfmodel.programs.facts import OperatorRow
    from perfmodel.programs.identify import Identity
    from perfmodel.programs.program import Options, Program

GPU_LIMITED: Final = 0.95
"""Share of a batch from which the GPU limits it: eager runs in profiles/launches, fresh, hosts and
scale that compute for so much of it differ by 0.2 %; at 0.93 some differ by 20 %, by the host."""
_REPLAYED: Final = 1_000_000
"""Operations of all reports together that are kept for the replay of steps."""


def analyze(
    traces: Sequence[Trace], options: Options, progress: Callable[[str], object] = lambda _: None
) -> Analysis:
    """Analyze the reports of one or more runs.

    Parameters
    ----------
    traces : sequence of Trace
    options : Options
    progress : callable, optional
        Called with a run's label before it is analyzed.

    Raises
    ------
    ReportError, SchemaError, WorkloadError, ModelError
        If there is no report, a run has no batches, its symbols are unknown or impossible, or the
        run that is to fit the roofline cannot.
    """
    distinct = distinct_reports(traces)
    timed = [time_one(trace, options) for trace in distinct]
    return analyze_measured(timed, options, progress, repeated=len(traces) - len(distinct))


def step_s_of(trace: Trace, options: Options) -> float:
    """Return the step of a report, without the profiler where that makes it longer.

    Raises
    ------
    PerfmodelError
        As `analyze`.
    """
    return analyze([trace], options).fitted.ledger.step_s


def analyze_reports(
    paths: Sequence[Path],
    options: Options,
    engine: Engine | None = None,
    progress: Callable[[str], object] = lambda _: None,
    *,
    whole: bool | int = False,
    cache: Path | None = None,
    unpacked: Path | None = None,
) -> Analysis:
    """Read and analyze reports; of each one is kept what the analysis looks at.

    Parameters
    ----------
    paths : sequence of Path
    options : Options
    engine : Engine, optional
        Where the reports are read: in this process by default. The analysis does not depend on it.
    progress : callable, optional
        Called with a line about what is done, once per report and once per run.
    whole : bool or int
        Keep all of every report, or of the first ones, for who will look further into
        `RunAnalysis.traces`.
    cache : Path, optional
        Folder that keeps what is measured of every report, by its content: a report that was
        measured before is not read again. Not of those that are kept `whole`, nor where options
        name other files. What cannot be kept is in `Analysis.not_kept`.
    unpacked : Path, optional
        Folder for temporary files of those that are kept `whole`; it must stay while they are
        looked into.

    Raises
    ------
    PerfmodelError
        As `analyze`; if no report can be read, the first one's error. A report that cannot be read
        beside others is in `Analysis.failed`.
    """
    kept = _cache(cache) if cache else None
    all_of = frozenset(paths if whole is True else paths[: int(whole)])
    look = partial(
        _read, options=options, whole=all_of, most_ops=_share(len(paths)), cache=kept,
        unpacked=unpacked,
    )  # fmt: skip
    found = attempt_reports(
        look, paths, engine or Engine(1), lambda path: progress(f"read {path.name}")
    )
    failed = tuple(one for one in found if isinstance(one, PerfmodelError))
    read = [one for one in found if not isinstance(one, PerfmodelError)]
    timed, not_kept = [one for one, _ in read], tuple(why for _, why in read if why)
    if failed and not timed:
        raise all_failed(failed, paths)
    distinct: dict[Path, TimedReport] = {}
    for one in timed:
        distinct.setdefault(one.trace.source.resolve(), one)
    analysis = analyze_measured(
        [*distinct.values()],
        options,
        lambda label: progress(f"analyzing {label}"),
        repeated=len(timed) - len(distinct),
        failed=failed,
    )
    return replace(analysis, not_kept=not_kept)


def _cache(folder: Path) -> Cache:
    from perfmodel.base.cache import Cache  # brings modules that few analyses need

    return Cache(folder)


def _share(reports: int) -> int:
    """Operations of every lane that are replayed: a power of 2, that rarely changes."""
    share = min(max(_REPLAYED // max(reports, 1), 1), MOST_OPS)
    return 1 << (share - 1).bit_length()


def _read(
    path: Path,
    source: Path,
    *,
    options: Options,
    whole: frozenset[Path],
    most_ops: int,
    cache: Cache | None = None,
    unpacked: Path | None = None,
) -> tuple[TimedReport, str]:
    """Read and measure one report, in whatever process, or take what was measured before.

    Returns
    -------
    TimedReport
    str
        Why the result is not kept where it should be, or ''.
    """
    measure = partial(measure_report, path, source, options, unpacked=unpacked)
    there = path.is_file() or path.is_dir()  # opening a pipe waits for its writer
    if cache is None or source in whole or options.shapes or options.counters or not there:
        return measure(most_ops=most_ops, drawn=source in whole), ""
    asked = options, shutil.which("nsys") if path.suffix in RAW else None
    key = _key(cache, path, asked)
    found = cache.get(key) if key else None
    if isinstance(found, TimedReport):
        check_at_rest(path, source)
        return _shortened(replace(found, trace=replace(found.trace, source=source)), most_ops), ""
    timed, problem = measure(most_ops=_share(1)), ""
    if key and _key(cache, path, asked) == key:  # not a report that changed meanwhile
        problem = cache.put(key, timed)
    return _shortened(timed, most_ops), problem


def _shortened(timed: TimedReport, most_ops: int) -> TimedReport:
    """Keep less for the replay, as among more reports: what a folder keeps serves any number."""
    return replace(timed, steps=timed.steps and shortened(timed.steps, most_ops))


def _key(cache: Cache, path: Path, asked: object) -> str:
    """Digest of a report; '' where it cannot be read, which reading it says."""
    try:
        return cache.key(path, asked)
    except (OSError, ValueError):  # a NUL in a path is a ValueError
        return ""


def analyze_measured(
    timed: Sequence[TimedReport],
    options: Options,
    progress: Callable[[str], object] = lambda _: None,
    *,
    repeated: int = 0,
    failed: tuple[PerfmodelError, ...] = (),
) -> Analysis:
    """Analyze measured reports, each once, of which `repeated` more were given."""
    distinct_reports([one.trace for one in timed])
    notes = [f"{repeated} of the reports were given before and are left out"] if repeated else []
    notes += not_joined([one.trace for one in timed]) if len(timed) > 1 else []
    runs: list[RunAnalysis] = []
    errors = [*failed]
    found = runs_of(timed, options, progress)
    for run in found:
        try:
            runs.append(analyze_run(run, options, () if runs else notes))
        except SchemaError as error:  # of this run alone: it has no step that counts
            errors.append(error)
    if not runs:
        raise errors[0]
    return Analysis(tuple(with_launches(runs)), _chosen(runs, options.fit), tuple(errors))


def analyze_run(run: Run, options: Options, notes: Sequence[str] = ()) -> RunAnalysis:
    """Analyze a run that was measured before.

    Parameters
    ----------
    run : Run
    options : Options
        All but `batch_label`, `by_time` and `fit`, by which the run was measured and is chosen.
    notes : sequence of str
        Warnings to put before those of the run's symbols.

    Raises
    ------
    WorkloadError
        If the symbols' values are missing or impossible.
    SchemaError
        If no batch is left after the warm-up.
    """
    given = {name: Symbol(name).check(value) for name, value in options.values.items()}
    program = program_of_run(run, options)
    identity, warnings = program.identify(run, given)
    warnings += [*notes, *_of_device(run, options.machine)]
    unused = [n for n in ("shapes", "counters") if getattr(options, n) and not run.operators]
    warnings += [
        f"{run.label}: {name} are not used: no operators' sizes are known" for name in unused
    ]
    workload = program.workload(identity, options)
    if workload is not None:
        unknown = [name for name in given if name not in workload.symbols]
        if unknown:
            raise WorkloadError(
                f"workload '{workload.name}' has no symbol {unknown[0]!r}; it has "
                f"{', '.join(workload.symbols) or 'none'}; leave it out"
            )
        defaults = {n: s.default for n, s in workload.symbols.items() if s.default is not None}
        identity = replace(identity, values={**defaults, **identity.values})
        missing = [name for name in workload.symbols if name not in identity.values]
        if missing:
            problem = missing_values(run.label, missing, marked=bool(identity.config))
            if given or options.workload:
                raise WorkloadError(problem)
            warnings.append(f"{problem} (FLOPs, rates and the roofline are missing until then)")
            workload = None
    if workload is None:
        workload = Workload("unknown", "no", "", run.batch_label, {}, {})
    return _join(run, program, workload, identity, options, warnings)


def _join(
    run: Run,
    program: Program,
    workload: Workload,
    identity: Identity,
    options: Options,
    warnings: Sequence[str],
) -> RunAnalysis:
    """Join what a run took with what its workload counts."""
    symbols = {s: v for s, v in identity.values.items() if s in workload.symbols}
    counts = workload.evaluate(symbols)
    found = exchanges_of(run)
    machine, tf32 = _ceilings(run, options.machine), _seen_tf32(run)
    host = time_async(run)
    clocked = run_steps(
        run, program.step_clock, replay=program.replay, warmup=options.warmup, batches=host
    )
    steps = _broken_down(run, clocked, found, machine) if run.steps else None
    table = tabulate(run.range_times, run.ranks, run.batch_label)
    everything = clocked.with_own_clock(table, run)
    window, by_gpu = clocked.counted, clocked.clock == "gpu"
    excluded, queued = window.start, clocked.clock == "done"
    measured = everything.within(window, marked_by_nccl)
    head = _head(run, measured)
    totals = sum((counts[label] for label in counted(measured, counts)), Counts())
    collected = _collected(run, found, everything, window, totals, steps if by_gpu else None)
    peaks = {label: program.peak(label, identity, seen_tf32=tf32) for label in ("", *counts)}
    rates, by_clock = fit_rates(measured, {} if workload.replay else counts)
    measured_points = points(
        run.label,
        measured,
        head,
        clocked.series()[np.newaxis],
        workload,
        totals,
        symbols,
        waits=not queued,
    )
    work = _work(run, steps, machine, options)
    said = (
        *check_bytes(measured, counts, head),
        *collected.warnings,
        *(work.warnings if work else ()),
    )
    notes = (
        *warnings,
        *check_collection(run, identity, by_gpu=by_gpu, by_time=options.by_time),
        *check_ranges(run, measured, counts, rates, totals, replay=workload.replay),
        *graph_notes(run, everything, workload.replay),
        *([f"{run.label}: {host.note()}"] if queued else []),
        *(f"{run.label}: {w}" for w in said),
        *(f"{run.label}: {w}" for w in unequal_steps(steps if by_gpu else None)),
    )
    recorded_ranks = _rank_rows(run, clocked, collected, steps)
    ledger = steps.facts.ledger if steps else Ledger(clocked.step_s, clocked.step_s)
    added_s = ledger.recorded_s - ledger.step_s
    ranks = tuple(row.without_recorder(added_s) for row in recorded_ranks)
    less_s = {
        before.rank: before.part_s("waiting") - after.part_s("waiting")
        for before, after in zip(recorded_ranks, ranks, strict=True)
    }
    lanes = [row.rank for row in steps.ranks] if steps and by_gpu else run.ranks
    collected = replace(
        collected,
        waiting=_shorter(collected.waiting, [less_s.get(rank, 0.0) for rank in run.ranks]),
        gpu_waiting=_shorter(collected.gpu_waiting, [less_s.get(rank, 0.0) for rank in lanes]),
    )
    hosts = hosts_of(run, named=options.host_names)
    rows = range_rows(
        measured, counts, head, clocked.step_s, machine, peaks[""], peaks, workload.replay
    )
    analysis = RunAnalysis(
        label=run.label,
        measured=run,
        program=program,
        identity=identity,
        workload=workload,
        totals=totals,
        machine=machine,
        precision=peaks[""],
        gpus=tuple({(g.id, g.name): g for t in run.traces for g in t.gpus}.values()),
        ranks=ranks,
        batch=_batch_summary(run, clocked, host, recorded_ranks),
        ranges=tuple(kernel_rows(run, rows, workload.replay, excluded)),
        rates=rates,
        rates_by_clock=by_clock,
        products=() if workload.replay else product_rates(measured, counts),
        copies=group_copies(run.parts, window, int(np.isfinite(head.seconds["host"]).sum())),
        collectives=collected.groups,
        unattributed=unattributed(run),
        roofline=fit_roofline(run.label, rates, totals),
        points=measured_points,
        model=check_model(measured_points, totals, rates),
        findings=(),
        warnings=tuple(dict.fromkeys(notes)),
        skew=collected.skew,
        late=collected.late,
        run_steps=clocked,
        ledger=ledger,
        steps=steps,
        messages=collected.messages,
        ranges_by_rank=ranges_by_rank(measured, run.ranks),
        work=work,
        hosts=hosts,
        outliers=find_outliers(recorded_ranks, hosts),
        serving=_serving(run, steps, machine),
    )
    return _concluded(analysis, _facts(analysis, counts, collected, peaks, options, by_gpu=by_gpu))


def _concluded(analysis: RunAnalysis, facts: Facts) -> RunAnalysis:
    """Add what follows from the numbers."""
    program = analysis.program
    found = find(program.facts(facts), program.actions(analysis.identity))
    return replace(
        analysis,
        findings=tuple(replace(one, range=_range_of(analysis, one)) for one in found),
    )


def _range_of(run: RunAnalysis, one: Finding) -> str | None:
    """The range with most of a loss; None where that is the step, or is unknown."""
    name = one.range
    facts = run.steps.facts if run.steps else None
    if one.rank is None and not one.of_mean:
        kind = kinds()[one.kind]
        if kind.part == "communication" and kind.is_about(COMMUNICATION):
            by_time = facts.exposed_in if facts is not None else ()
            name = by_time[0][0] if by_time else _most_sent_in(run)
        elif facts is not None:
            name = facts.mostly_in(one.kind) or name
    steps = {run.batch.label, run.steps.label if run.steps else ""}
    return None if name in steps else name or None


def _most_sent_in(run: RunAnalysis) -> str | None:
    """The innermost of the ranges that hand MPI most bytes."""
    sent = [(row.measured_mpi_bytes or 0.0, len(row.path), row.label) for row in run.ranges]
    most, depth, label = max(sent, default=(0.0, 0, ""))
    return label if most and depth > 1 else None


def _head(run: Run, measured: Sequence[PathTimes]) -> PathTimes:
    """Return the times of the range that is one batch."""
    head = next((m for m in measured if m.label == run.batch_label), None)
    if head is None:
        raise SchemaError(
            f"{run.label}: expected a {run.batch_label!r} range after the warm-up that holds the "
            f"GPU's work; got none; name the range that is one step with --batch-range, or lower "
            f"--warmup"
        )
    return head


def _work(
    run: Run, steps: StepBreakdown | None, machine: Machine | None, options: Options
) -> StepWork | None:
    """Sum up the operators of a framework, or a network's layers; None if there are none."""
    if steps is None or not run.operators:
        if options.layers is not None:
            raise WorkloadError(
                f"{run.label}: expected steps with GPU operations, which a network's layers count; "
                f"got none: leave --workload out"
            )
        return None
    from perfmodel.analysis.operators import step_work  # most reports name none

    if options.layers is None:
        return step_work(run.operators, steps, machine)
    from perfmodel.programs.layers import with_counts

    return step_work(with_counts(run.operators, options.layers, len(steps.ranks)), steps, machine)


def _serving(
    run: Run, steps: StepBreakdown | None, machine: Machine | None
) -> tuple[ServingRow, ...]:
    """The steps of an engine that serves a model; none of other programs."""
    if steps is None or not any(one.engine for one in run.operators):
        return ()
    from perfmodel.analysis.serving import serving_rows  # most programs serve nothing

    return serving_rows(run, steps, machine)


def _broken_down(
    run: Run, steps: RunSteps, found: Exchanges, machine: Machine | None
) -> StepBreakdown:
    """The steps; copies from pageable memory could be as fast as pinned ones."""
    every = slice(0, max(one.times.step_ns.shape[1] for one in run.steps))
    link = machine.bandwidth_bytes_per_s.get("pcie") if machine else None
    rate = pinned_rate(group_copies(run.parts, every, 1), link)
    return break_down(
        run.steps,
        found,
        steps,
        timed=Timed.of(run.traces),
        pinned_bytes_per_s=rate[0] if rate else None,
    )


@dataclass(frozen=True, slots=True)
class _Collected:
    """Collectives of MPI and of NCCL, what ranks spend in them, and point-to-point messages."""

    groups: tuple[CollectiveGroup, ...]
    waiting: Waiting | None
    gpu_waiting: Waiting | None
    skew: Skew | None
    late: tuple[LateRank, ...]
    messages: PointToPoint | None
    warnings: tuple[str, ...]


def _collected(
    run: Run,
    found: Exchanges,
    everything: PathTable,
    window: slice,
    totals: Counts,
    steps: StepBreakdown | None,
) -> _Collected:
    """Group the exchanges of the batches behind the warm-up."""
    batch_s = head_of(run, everything).seconds["host"]
    batches = Batches.of(run.range_times, run.batch_label)
    by_mpi, collective = found.taken(found.by_mpi), found.way == COLLECTIVE
    excluded, stop = window.start, window.stop
    if steps is None:
        late, chains = late_ranks(found, excluded, stop)
        found = _sized(found, float(totals.peer_message_bytes))
    else:
        late, chains = steps.facts.stragglers, steps.facts.chains
    numbers = {rank: batches.numbers(rank) for rank in found.ranks}
    numbers = {
        rank: own[(own >= excluded) & (own < stop)] if len(own) else np.arange(excluded, stop)
        for rank, own in numbers.items()
    }
    kernels = kernels_of(run.steps) if len(run.steps) == len(run.parts) else None
    grouped = groups(found, kernels, numbers)
    mpi, gpu = (found.taken(collective & chosen) for chosen in (found.by_mpi, ~found.by_mpi))
    of_kernels = (
        _nccl_waiting(steps) if steps else waiting_of(gpu, batches, run.ranks, excluded, stop)
    )
    libraries = {group.library for group in grouped}
    begun = late_start(found, batch_s, excluded)
    return _Collected(
        grouped,
        waiting_of(mpi, batches, run.ranks, excluded, stop) if libraries & {"mpi"} else None,
        of_kernels if libraries - {"mpi"} else None,
        skew_of(by_mpi, run.ranks, batch_s, excluded),
        late,
        point_to_point(found, excluded, stop, late, chains),
        (*found.warnings, *([begun] if begun else ())),
    )


def _sized(found: Exchanges, message_bytes: float) -> Exchanges:
    """Give a kernel that is alone in every batch the size of the formulas, if none is recorded."""
    kernels = ~found.by_mpi & (found.step >= 0)
    alone = np.unique(np.column_stack([found.rank, found.step])[kernels], axis=0)
    if message_bytes <= 0 or len(alone) < kernels.sum():
        return found
    unknown = kernels & (found.bytes == NULL)
    return replace(found, bytes=np.where(unknown, round(message_bytes), found.bytes))


def _nccl_waiting(steps: StepBreakdown) -> Waiting:
    """Return each rank's time in communication, and its waiting there that nothing hides."""
    waits = [r.waiting_s for r in steps.ranks if r.waiting_s is not None]
    seconds = [r.collectives_s or 0.0 for r in steps.ranks]
    return Waiting(seconds, waits if len(waits) == len(seconds) else None)


def _shorter(waiting: Waiting | None, less_s: Sequence[float]) -> Waiting | None:
    """Waiting of ranks that wait so much less without the profiler."""
    if waiting is None or waiting.waiting_s is None:
        return waiting
    pairs = zip(waiting.waiting_s, less_s, strict=True)
    return replace(waiting, waiting_s=[max(waits - less, 0.0) for waits, less in pairs])


def _batch_summary(
    run: Run, steps: RunSteps, host: AsyncBatches, ranks: Sequence[RankRow]
) -> BatchSummary:
    by_gpu = host.by_gpu or any(_computing(rank) >= GPU_LIMITED for rank in ranks)
    median = estimate(steps.series()[np.newaxis], "GPU" if by_gpu else "host")
    assert median is not None  # `run_steps` refuses a run without a finished step
    return BatchSummary(
        label=run.batch_label,
        rank=int(steps.ranks[steps.slowest]),
        count=steps.count,
        warmup=steps.warmup,
        warmup_s=steps.warmup_s,
        median=median,
        mean_s=steps.mean_s,
        queued_s=host.queued_s if steps.clock == "done" else None,
    )


def _computing(rank: RankRow) -> float:
    """Share of a rank's batch in which its GPU computes or communicates, without waiting."""
    if not rank.step_s or rank.compute_s is None:
        return 0.0
    busy = rank.compute_s + rank.part_s("communication")
    return busy / rank.step_s


def _ceilings(run: Run, given: Machine | None) -> Machine | None:
    """The machine that is given, or the GPU of the ranks.

    Measured figures of a GPU that has no data sheet here are given that of the report's own GPU.
    """
    own = _device(run)
    machine = own.machine if own else None
    if given is None:
        return machine
    return replace(given, sheet=machine) if given.published is None else given


def _device(run: Run) -> Identified | None:
    """The GPU that the ranks ran on; None without a GPU."""
    for trace in run.traces:
        used = set(devices(trace).values())
        for gpu in trace.gpus:
            if gpu.id in used or (used and len(trace.gpus) == 1):
                return identify(gpu)
    return None


def _of_device(run: Run, given: Machine | None) -> list[str]:
    """Say how the GPU was recognized; warn of ceilings that are the data sheet's of another."""
    own = _device(run)
    if own is None or given == own.machine:
        return []
    if given is None:
        return [f"{run.label}: {own.said}"] if own.said else []
    if not {given.name, own.machine.name} <= {one.name for one in known()}:
        return []
    return [
        f"{run.label}: ran on {own.machine.name}, but the ceilings are those of {given.name}: "
        f"shares of them mean little; leave --machine out, or give that GPU's"
    ]


def _seen_tf32(run: Run) -> bool:
    """Whether kernels' names show single precision on tensor cores (TF32)."""
    seen = False
    for trace, found in run.parts:
        kernels = np.unique(trace.ops.name[found.op])
        units = (kernel_types(trace.strings[k]).unit for k in kernels if k >= 0)
        seen |= any(unit.startswith("tf32") for unit in units)
    return seen


def _rank_rows(
    run: Run, clocked: RunSteps, collected: _Collected, steps: StepBreakdown | None
) -> tuple[RankRow, ...]:
    """The steps of all ranks as recorded."""
    waiting = collected.waiting or collected.gpu_waiting
    by_gpu = clocked.clock == "gpu"
    gpus = gpu_of_rank(run)
    unseen = by_gpu and len(run.ranks) > 1 and untraced(run.traces)
    parts = {r.rank: r for r in reversed(steps.ranks)} if steps else {}
    rows = []
    for i, rank in enumerate(parts if by_gpu else run.ranks):
        step, own_s = parts.get(rank), clocked.median_s(rank)
        batches = clocked.count_of(rank)
        if step is None or unseen:
            gpu = None if unseen else gpus.get(rank)
            rows.append(RankRow(rank, gpu, step.batches if step else batches, own_s, own_s))
            continue
        collectives_s, waiting_s = step.collectives_s if waiting else None, step.waiting_s
        if not by_gpu:
            collectives_s = waiting.seconds[i] if waiting else None
            exposed_s = step.part_s("communication") + step.part_s("waiting")
            known = waiting.waiting_s[i] if waiting and waiting.waiting_s else None
            waiting_s = None if known is None else min(known, exposed_s)
            step = replace(step, communication_s=exposed_s - (waiting_s or 0.0))
        rows.append(
            replace(
                step,
                gpu=gpus.get(rank, step.gpu if by_gpu else None),
                batches=step.batches if by_gpu else batches,
                step_s=own_s,
                recorded_step_s=own_s,
                collectives_s=collectives_s,
                waiting_s=waiting_s,
            )
        )
    return tuple(sorted(rows, key=lambda row: row.rank))


def _facts(
    analysis: RunAnalysis,
    counts: Mapping[str, Counts],
    collected: _Collected,
    peaks: Mapping[str, str],
    options: Options,
    *,
    by_gpu: bool,
) -> Facts:
    """Gather what the findings are drawn from."""
    run = analysis.measured
    head = next(row for row in analysis.ranges if row.label == run.batch_label)
    calls, seconds, blocking = synchronizations(
        run.traces, run.range_times, run.batch_label, analysis.batch.warmup
    )
    operators: tuple[OperatorRow, ...] = ()
    served: tuple[ServingRow, ...] = ()
    shares: dict[str, float] = {}
    if analysis.serving:
        from perfmodel.analysis.serving import shares_of_time, usual_rows

        served, shares = usual_rows(analysis.serving), shares_of_time(analysis.serving)
    if analysis.work is not None:
        from perfmodel.analysis.operators import operator_facts  # most reports name none

        operators = operator_facts(analysis.work)
    return Facts(
        batch=replace(analysis.batch.median, value=analysis.ledger.step_s),
        busy_s=head.gpu_busy_s,
        gpu_ops=head.gpu_ops or 0.0,
        synchronizations=calls,
        synchronize_s=seconds,
        synchronizes_in=blocking,
        host_s=_host_seconds(analysis.ranges),
        copies=analysis.copies,
        collectives=analysis.collectives,
        waiting=collected.waiting,
        gpu_waiting=collected.gpu_waiting,
        reduced=_reduced(analysis),
        gemms=tuple(_gemm_times(analysis, counts, peaks)),
        shared_gpus=same_devices(run) if tells_devices(run.traces) else {},
        machine=analysis.machine,
        ranks=len(run.ranks),
        config=analysis.identity.config,
        messages=analysis.messages,
        ranges_by_rank=analysis.ranges_by_rank,
        compute_s={r.rank: r.part_s("compute") for r in analysis.steps.ranks}
        if analysis.steps
        else {},
        late=analysis.late,
        numbers=tuple(run.ranks),
        host_ranks=_host_ranks(analysis),
        mean_s=analysis.ledger.without_recorder_s(analysis.batch.mean_s),
        recorded_s=analysis.ledger.recorded_s,
        steps=analysis.steps.facts if by_gpu and analysis.steps else None,
        lacking=lacking(analysis.unattributed),
        operators=operators,
        sizes_recorded=_names_sizes(analysis, options),
        serving=served,
        serving_shares=shares,
        lines=_lines(analysis),
    )


def _lines(analysis: RunAnalysis) -> dict[tuple[str, str], str]:
    """Source lines of operators: of the kernel with most of each one's time."""
    kernels = analysis.steps.facts.kernels if analysis.steps else ()
    line_of = {kernel.name: kernel.line for kernel in kernels if kernel.line}
    largest = (pair for one in analysis.measured.operators for pair in one.largest.items())
    return {of: line_of[name] for of, name in largest if name in line_of}


def _names_sizes(analysis: RunAnalysis, options: Options) -> bool:
    """Whether the recording itself names sizes, not another one of the same program."""
    work = analysis.work
    named = work is not None and work.source == "shapes" and work.modelled > 0
    return named and options.shapes is None


def _host_ranks(analysis: RunAnalysis) -> dict[int, tuple[float, float]]:
    """Median time of every rank outside and inside MPI, of a program without a GPU."""
    if any(r.gpu is not None or r.compute_s is None for r in analysis.ranks):
        return {}
    return {
        r.rank: (r.part_s("compute"), r.part_s("communication") + r.part_s("waiting"))
        for r in analysis.ranks
    }


def _reduced(analysis: RunAnalysis) -> DeviceReduce | None:
    """Return the time of NCCL's all-reduces in a batch, in a CUDA graph or out of one."""
    kernels = [g for g in analysis.collectives if g.name == f"{NCCL}AllReduce"]
    if not kernels:
        return None
    seconds = sum(g.count * g.own_s for g in kernels)
    return DeviceReduce(seconds, float(analysis.totals.peer_message_bytes))


def _host_seconds(rows: Sequence[RangeRow]) -> dict[str, float]:
    """Host time by label: ranges at several places add up, but not one inside its like."""
    spent: dict[str, float] = {}
    for row in rows:
        *above, label = row.path
        if row.host_s is not None and label not in above:
            spent[label] = spent.get(label, 0.0) + row.host_s
    return spent


def _gemm_times(
    analysis: RunAnalysis, counts: Mapping[str, Counts], peaks: Mapping[str, str]
) -> Iterator[GemmTime]:
    """GEMMs with the time that peak FLOP/s and memory bandwidth allow."""
    machine = analysis.machine
    bandwidth = machine.bandwidth_bytes_per_s.get("hbm") if machine else None
    for label, flops, rate in analysis.products:
        bound = None
        peak = machine.peak_flops_per_s.get(peaks[label]) if machine else None
        if peak and bandwidth and rate.clock != "host":
            bound = max(flops / peak, counts[label].dram_bytes / bandwidth)
        yield GemmTime(label, flops / rate.value, flops, bound)


def _chosen(runs: Sequence[RunAnalysis], fit: str | int | None) -> int:
    """Index of the run that fits the roofline."""
    labels = [run.label for run in runs]
    if fit is None:
        return next((i for i, run in enumerate(runs) if run.roofline is not None), 0)
    if isinstance(fit, str) and fit in labels:
        chosen = labels.index(fit)
    elif str(fit).isdecimal() and len(str(fit)) < 10 and int(fit) < len(labels):
        chosen = int(fit)
    else:
        raise WorkloadError(
            f"expected --fit to name one of the runs {', '.join(labels)} (or its number from 0); "
            f"got {fit!r}"
        )
    if runs[chosen].roofline is None:
        lacking = [name for name, rate in runs[chosen].rates.items() if rate is None]
        raise ModelError(
            f"expected a roofline fitted on {labels[chosen]}; got no {' and no '.join(lacking)} "
            f"there; leave --fit out to see why, or take another run"
        )
    return chosen
