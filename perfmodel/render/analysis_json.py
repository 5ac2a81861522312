"""The JSON document of an analysis: `analysis.json`, versioned, base units, None as null.

The types here are the document: its JSON Schema is made of them (`documents.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import perfmodel
from perfmodel.analysis import sweeps
from perfmodel.analysis.rows import own_roof
from perfmodel.analysis.serving import usual_rows
from perfmodel.analysis.verdict import Summary, Verdict
from perfmodel.base.document import LEFT_OUT, pick, plain
from perfmodel.models.roofline import Point
from perfmodel.programs.findings import Finding
from perfmodel.render.operators import WorkDocument, work_document
from perfmodel.render.serving import ServingDocument, serving_document
from perfmodel.timing.range_times import ranks_of

if TYPE_CHECKING:
    from perfmodel.analysis.rates import Rate
    from perfmodel.analysis.result import (
        Analysis,
        ModelCheck,
        Outlier,
        RangeRow,
        RankRow,
        RunAnalysis,
    )
    from perfmodel.analysis.steps import CategoryTime
    from perfmodel.base.gpu import Gpu
    from perfmodel.machines.machine import Basis, Chip, Figure, Machine
    from perfmodel.readers.trace import Diagnostic
    from perfmodel.timing.collectives import CollectiveGroup
    from perfmodel.timing.copies import CopyGroup
    from perfmodel.timing.late_ranks import Chain, LateRank
    from perfmodel.timing.levels import LayerTime, LevelRow
    from perfmodel.timing.point_to_point import Pair, PointToPoint, RangeOfRank
    from perfmodel.timing.recorder import Recorder
    from perfmodel.timing.skew import Skew
    from perfmodel.timing.spans import Candidate, FoundBy
    from perfmodel.timing.step_facts import IdleCause, KernelTime, PathPart
    from perfmodel.workloads.work import Counts

SCHEMA_VERSION: Final = 2
"""Grows by one when a key changes its meaning or goes away; new keys do not change it."""
_SLOWEST: Final = 8
_FIRST: Final = 5
_LONGEST: Final = 300
"""Ranks, findings and letters of a warning in the brief document: 2,000 tokens hold them."""
_PHASES: Final = 2


@dataclass(frozen=True)
class SourceReport:
    """A report that was read: its file, what wrote it, and the ranks that it holds."""

    path: Path
    nsys_version: str
    schema: str
    ranks: list[int]


@dataclass(frozen=True)
class MachineDocument:
    """The ceilings that were taken (`perfmodel machine show` prints them with their sources).

    Attributes
    ----------
    figures : mapping
        By section and key, such as `peak_flops_per_s.float32`.
    """

    name: str
    source: str
    peak_flops_per_s: Mapping[str, float]
    bandwidth_bytes_per_s: Mapping[str, float]
    gemm_flops_per_s: Mapping[str, float]
    capacity_bytes: Mapping[str, float]
    latency_s: Mapping[str, float]
    note: str
    url: str
    chip: Chip | None
    basis: Basis
    sheet: str | None
    figures: Mapping[str, Figure]


@dataclass(frozen=True)
class WorkloadDocument:
    """The formulas that counted, the values of their symbols, and the work of a rank and step.

    Attributes
    ----------
    symbols : mapping
        Values of the symbols; `symbols_from` says whether the report has them or a flag.
    config : mapping
        The configuration mark of the report, as it stands there.
    totals : Counts
        Sums over all ranges.
    """

    name: str
    counting: str
    symbols: Mapping[str, int]
    symbols_from: str
    config: Mapping[str, Any]
    totals: Counts


@dataclass(frozen=True)
class BatchDocument:
    """The median step of the slowest rank with its 95 % intervals, for this run and for a rerun.

    Attributes
    ----------
    rank : int
        The slowest one, whose median step is the longest.
    count : int
        Steps that count, without warm-up, on the rank with most of them.
    warmup : int
        Leading steps of more than 1.25 medians, and of more than the upper quartile of later ones.
    warmup_s : float
        Sum of the warm-up steps of the slowest rank.
    mean_s : float
        Over the steps of the slowest rank that count; of the trainer, on the host.
    queued_s : float or None
        Median of the host's own time where it only queues steps.
    range : str
        Name of the ranges that are one step each.
    median_s : float
        Over the steps of the slowest rank that count.
    low_s, high_s : float
        Interval that holds the median with 95 %, by order statistics (docs/statistics.md).
    instances : int
        Measured steps of the slowest rank that count.
    launch_low_s, launch_high_s : float or None
        95 % interval of a rerun's median: from the medians of several runs, or from one run and the
        usual noise between runs (docs/statistics.md).
    launches : int
        Runs behind the interval of a rerun.
    found_by, confidence
        Source of the steps, and the GPU time inside them over all GPU time; left out where no GPU
        operations time the steps.
    """

    rank: int
    count: int
    warmup: int
    warmup_s: float
    mean_s: float
    queued_s: float | None
    range: str
    median_s: float
    low_s: float
    high_s: float
    instances: int
    launch_low_s: float | None
    launch_high_s: float | None
    launches: int
    found_by: FoundBy | None = field(default=None, metadata=LEFT_OUT)
    confidence: float | None = field(default=None, metadata=LEFT_OUT)


@dataclass(frozen=True)
class KernelsDocument:
    """GPU time of a step by category, and the largest kernels.

    Attributes
    ----------
    unattributed_share : float
        GPU time of operations that no step launched, over all GPU time.
    """

    categories: tuple[CategoryTime, ...]
    largest: tuple[KernelTime, ...]
    unattributed_share: float


@dataclass(frozen=True)
class GemmDocument:
    """FLOPs of a range's products per rank and step, and the rate that they reach."""

    range: str
    flops: float
    rate: Rate


@dataclass(frozen=True, slots=True)
class PlacedPoint(Point):
    """A measured point: FLOPs over bytes, and FLOPs over time, of a range per step.

    Attributes
    ----------
    roof_flops_per_s : float or None
        Height of the roof above it for its run's own mix of bytes; None if the run's links or math
        are not those of the roof.
    """

    roof_flops_per_s: float | None = None


@dataclass(frozen=True)
class RooflineDocument:
    """The fitted smooth roofline AI / (AI / P_flops + sum of shares / P), and measured points.

    Without a fit, only `rates` and `points` are there.

    Attributes
    ----------
    rates : mapping or None
        The throughputs P_flops, P_pci, P_mpi, P_peer of the fit.
    shares : mapping
        Shares of the bytes by link.
    bandwidth_bytes_per_s : float
        Of this mix of bytes: one over the sum of the shares over their P.
    ridge_flops_per_byte : float
        P_flops over this bandwidth.
    """

    rates: Mapping[str, float] | None
    points: list[PlacedPoint]
    shares: Mapping[str, float] | None = field(default=None, metadata=LEFT_OUT)
    bandwidth_bytes_per_s: float | None = field(default=None, metadata=LEFT_OUT)
    ridge_flops_per_byte: float | None = field(default=None, metadata=LEFT_OUT)
    fitted_on: str | None = field(default=None, metadata=LEFT_OUT)


@dataclass(frozen=True)
class RankWaiting:
    """Per step: how long a rank waits, how long others wait for it, and the one that waits most."""

    rank: int
    waiting_s: float
    caused_s: float
    most_s: float


@dataclass(frozen=True)
class MessagesDocument:
    """Messages by pair of ranks, and the ranks that others wait for.

    Attributes
    ----------
    unmatched : int
        Messages of which the report has one end only.
    """

    pairs: tuple[Pair, ...]
    ranks: list[RankWaiting]
    chains: tuple[Chain, ...]
    unmatched: int
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class Head:
    """Versions of the document and of perfmodel, and the run that the roofline is fitted on.

    Attributes
    ----------
    schema_version : int
        Grows by one when a key changes its meaning or goes away; new keys do not change it.
    """

    schema_version: int
    perfmodel_version: str
    fit: str


@dataclass(frozen=True)
class RunDocument(WorkDocument):
    """Everything that is said of one run.

    Attributes
    ----------
    label : str
        Name of the run.
    program : str
        Kind of program that it was recognized as.
    verdict
        The limit of a step, and the first change to make.
    summary
        The first screen.
    levels, layers, candidates
        The steps and the levels around and inside them, layers one by one, and what else may be
        the step; empty where no GPU operations time the steps.
    ranges
        Ranges of a median step, parents before children.
    model
        The three-parameter model against the measurement.
    idle
        Why each rank's GPU idles in a median step.
    critical_path
        Kinds of work on the critical path of a step, and what a step takes where each is free.
    recorder
        The step without the profiler that recorded it.
    serving
        Engine steps of the phase with most time; None where nothing serves.
    rates, rates_by_clock
        Effective throughputs, those of each clock apart.
    findings
        Losses of a step, largest saving first.
    warnings : tuple of str
        Data missing from the report, and how to record it.
    """

    label: str
    reports: list[SourceReport]
    machine: MachineDocument | None
    workload: WorkloadDocument
    program: str
    verdict: Verdict
    summary: Summary
    batch: BatchDocument
    levels: tuple[LevelRow, ...]
    layers: tuple[LayerTime, ...]
    candidates: tuple[Candidate, ...]
    kernels: KernelsDocument | None
    gemms: list[GemmDocument]
    ranges: tuple[RangeRow, ...]
    roofline: RooflineDocument
    model: tuple[ModelCheck, ...]
    idle: tuple[IdleCause, ...]
    critical_path: tuple[PathPart, ...]
    recorder: Recorder | None
    serving: ServingDocument | None
    point_to_point: MessagesDocument | None
    ranges_by_rank: tuple[RangeOfRank, ...]
    outliers: tuple[Outlier, ...]
    hosts: Mapping[int, str]
    stragglers: tuple[LateRank, ...]
    diagnostics: list[Diagnostic]
    gpus: tuple[Gpu, ...]
    precision: str
    rates: Mapping[str, Rate | None]
    rates_by_clock: Mapping[str, Mapping[str, Rate | None]]
    ranks: tuple[RankRow, ...]
    copies: tuple[CopyGroup, ...]
    collectives: tuple[CollectiveGroup, ...]
    skew: Skew | None
    unattributed: Mapping[str, int]
    findings: tuple[Finding, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class AnalysisDocument(RunDocument, Head):
    """What `perfmodel analyze` says: the run that the roofline is fitted on, at the top level.

    Attributes
    ----------
    runs, trends
        With several runs, the same keys for every one of them, and what changes over them.
    """

    runs: list[RunDocument] | None = field(default=None, metadata=LEFT_OUT)
    trends: list[str] | None = field(default=None, metadata=LEFT_OUT)


@dataclass(frozen=True)
class BriefFinding:
    """A finding by its key, and what it saves of the step without the profiler, if known."""

    key: str
    title: str
    saving_s: float | None
    share: float | None


@dataclass(frozen=True)
class BriefPhase:
    """Steps of an engine of one phase, as in `serving.phases` of analysis.json."""

    engine: str
    phase: str
    model: str
    sequences: float
    step_s: float
    busy_s: float
    floor_s: float | None
    floor_by: str | None
    ttft_s: float | None
    tpot_s: float | None


@dataclass(frozen=True)
class BriefRun:
    """The first screen of a run.

    Attributes
    ----------
    steps : str
        Name of the ranges that are one step each.
    summary : Summary
        As in analysis.json, with at most eight bars: those of the slowest ranks.
    late : LateRank or None
        The first of `stragglers`: the rank to which most waiting leads back.
    findings : list of BriefFinding
        The first ones, at most five; `summary.findings` counts all.
    warnings : list of str
        The first ones, at most five, each cut to 300 letters.
    serving : list of BriefPhase
        Of an engine that serves a language model: the phases with most time, at most two.
    """

    label: str
    program: str
    gpus: list[str]
    steps: str
    serving: list[BriefPhase]
    summary: Summary
    late: LateRank | None
    findings: list[BriefFinding]
    warnings: list[str]


@dataclass(frozen=True)
class BriefDocument(Head):
    """What `perfmodel analyze --json --brief` says: less than 2,000 tokens a run.

    Attributes
    ----------
    runs : list of BriefRun
    sections : list of str
        Keys of analysis.json, which has all.
    """

    runs: list[BriefRun]
    sections: list[str]


def brief_document(analysis: Analysis) -> dict[str, Any]:
    """Return what a reader sees first of every run, as plain Python data."""
    document = BriefDocument(
        SCHEMA_VERSION,
        perfmodel.__version__,
        analysis.fitted.label,
        [_brief(run) for run in analysis.runs],
        [f.name for f in fields(RunDocument)],
    )
    found: dict[str, Any] = plain(document)
    return found


def _brief(run: RunAnalysis) -> BriefRun:
    slowest = sorted(run.summary.bars, key=lambda bar: -bar.whole_s)[:_SLOWEST]
    return BriefRun(
        label=run.label,
        program=run.program.name,
        gpus=sorted({gpu.name for gpu in run.gpus}),
        steps=run.batch.label,
        serving=[
            BriefPhase(*(getattr(row, f.name) for f in fields(BriefPhase)))
            for row in usual_rows(run.serving)[:_PHASES]
        ],
        summary=replace(run.summary, bars=tuple(sorted(slowest, key=lambda bar: bar.rank))),
        late=run.late[0] if run.late else None,
        findings=[
            BriefFinding(one.key, one.title, one.saving_s, one.share)
            for one in run.findings[:_FIRST]
        ],
        warnings=[warning[:_LONGEST] for warning in run.warnings[:_FIRST]],
    )


def analysis_document(analysis: Analysis) -> dict[str, Any]:
    """Return the whole analysis as plain Python data, the fitted run's at the top level.

    With several runs, `runs` holds the same keys for every one of them, and `roofline.points`
    the points of all.
    """
    run = _run(analysis.fitted)
    members = {f.name: getattr(run, f.name) for f in fields(run)}
    members["roofline"] = _roofline(analysis.fitted, analysis.runs)
    document = AnalysisDocument(SCHEMA_VERSION, perfmodel.__version__, run.label, **members)
    if len(analysis.runs) > 1:
        document = replace(
            document,
            runs=[_run(one) for one in analysis.runs],
            trends=list(sweeps.trends(analysis.runs)),
            warnings=tuple(dict.fromkeys(w for r in analysis.runs for w in r.warnings)),
        )
    found: dict[str, Any] = plain(document)
    return found


def _run(run: RunAnalysis) -> RunDocument:
    steps = run.steps
    return RunDocument(
        **work_document(run),
        label=run.label,
        reports=[
            SourceReport(
                t.source, t.product_version, t.schema_version, sorted(ranks_of(t).values())
            )
            for t in run.traces
        ],
        machine=None if run.machine is None else _machine(run.machine),
        workload=WorkloadDocument(
            run.workload.name,
            run.workload.counting,
            run.identity.values,
            run.identity.source,
            run.identity.config,
            run.totals,
        ),
        program=run.program.name,
        verdict=run.summary.verdict,
        summary=run.summary,
        batch=_batch(run),
        levels=() if steps is None else steps.levels,
        layers=() if steps is None else steps.layers,
        candidates=() if steps is None else steps.candidates,
        kernels=(
            None
            if steps is None
            else KernelsDocument(steps.categories, steps.kernels, steps.unattributed)
        ),
        gemms=[GemmDocument(*product) for product in run.products],
        roofline=_roofline(run, (run,)),
        idle=steps.idle if steps else (),
        critical_path=steps.facts.path if steps else (),
        recorder=steps.facts.recorder if steps else None,
        serving=serving_document(run.serving),
        point_to_point=None if run.messages is None else _messages(run.messages),
        stragglers=run.late,
        diagnostics=[d for t in run.traces for d in t.diagnostics if d.severity != "info"],
        **pick(
            run,
            "ranges model ranges_by_rank outliers hosts gpus precision rates rates_by_clock ranks "
            "copies collectives skew unattributed warnings",
        ),
        findings=run.findings,
    )


def _batch(run: RunAnalysis) -> BatchDocument:
    return BatchDocument(
        **pick(
            run.batch, "rank count warmup warmup_s mean_s queued_s", range="label",
            median_s="median.value", low_s="median.low", high_s="median.high",
            instances="median.instances", launch_low_s="median.launch_low",
            launch_high_s="median.launch_high", launches="median.launches",
        ),
        **(pick(run.steps, "found_by confidence") if run.steps else {}),
    )  # fmt: skip


def _machine(machine: Machine) -> MachineDocument:
    return MachineDocument(
        sheet=machine.sheet.name if machine.sheet else None,
        figures={".".join(where): figure for where, figure in machine.figures.items()},
        **pick(
            machine,
            "name source peak_flops_per_s bandwidth_bytes_per_s gemm_flops_per_s capacity_bytes "
            "latency_s note url chip basis",
        ),
    )


def _messages(messages: PointToPoint) -> MessagesDocument:
    ranks = [RankWaiting(**pick(r, "rank waiting_s caused_s most_s")) for r in messages.ranks]
    return MessagesDocument(ranks=ranks, **pick(messages, "pairs chains unmatched warnings"))


def _roofline(fitted: RunAnalysis, runs: Sequence[RunAnalysis]) -> RooflineDocument:
    roof = fitted.roofline
    points = [_point(p, fitted, run) for run in runs for p in run.points]
    if roof is None:
        return RooflineDocument(None, points)
    links = {f"P_{link}": rate for link, rate in roof.links_bytes_per_s.items()}
    return RooflineDocument(
        {"P_flops": roof.flops_per_s, **links},
        points,
        **pick(roof, "shares bandwidth_bytes_per_s ridge_flops_per_byte", fitted_on="label"),
    )


def _point(point: Point, fitted: RunAnalysis, run: RunAnalysis) -> PlacedPoint:
    own = own_roof(fitted, run) if fitted.roofline else None
    height = float(own.smooth(point.intensity_flops_per_byte)) if own else None
    members = {f.name: getattr(point, f.name) for f in fields(point)}
    return PlacedPoint(**{**members, "symbols": point.symbols or {}}, roof_flops_per_s=height)
