"""The JSON document of an analysis: `analysis.json`, versioned, base units, None as null.

The results are the document. A view here names or nests what they hold (`perfmodel.base.schema`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Final, NotRequired

from perfmodel.analysis import sweeps
from perfmodel.analysis.rows import own_roof
from perfmodel.analysis.serving import usual_rows
from perfmodel.base.document import Head, pick, plain_view, view
from perfmodel.programs.facts import ServingRow
from perfmodel.render.operators import work_document
from perfmodel.render.serving import served
from perfmodel.timing.range_times import ranks_of

if TYPE_CHECKING:
    from pathlib import Path

    from perfmodel.analysis.rates import Rate
    from perfmodel.analysis.result import Analysis, BatchSummary, RunAnalysis
    from perfmodel.analysis.steps import CategoryTime, StepBreakdown
    from perfmodel.analysis.verdict import Summary, Verdict
    from perfmodel.findings import Finding
    from perfmodel.models.roofline import Point
    from perfmodel.readers.trace import Diagnostic, Trace
    from perfmodel.timing.late_ranks import LateRank
    from perfmodel.timing.levels import LayerTime, LevelRow
    from perfmodel.timing.recorder import Recorder
    from perfmodel.timing.spans import Candidate, FoundBy
    from perfmodel.timing.step_facts import IdleCause, KernelTime, PathPart
    from perfmodel.workloads.work import Counts

SCHEMA_VERSION: Final = 3
"""Grows by one when a key changes its meaning or goes away; new keys do not change it."""
_SLOWEST: Final = 8
_FIRST: Final = 5
_LONGEST: Final = 300
"""Ranks, findings and letters of a warning in the brief document: 2,000 tokens hold them."""
_PHASES: Final = 2


def analysis_document(
    analysis: Analysis,
) -> Annotated[
    dict[str, Any], Head, {"fit": str}, run_document,
    {"runs": NotRequired[Sequence[run_document]], "trends": NotRequired[Sequence[str]]},
]:  # fmt: skip
    """What `perfmodel analyze` says: the run that the roofline is fitted on, at the top level.

    Keys
    ----
    fit
        Name of this run.
    runs, trends
        With several runs, the same keys for every one of them, and what changes over them.
    """
    fitted, runs = analysis.fitted, analysis.runs
    found = view(Head(SCHEMA_VERSION), run_document(fitted), fit=fitted.label)
    found["roofline"] = placed_points(fitted, runs)
    if len(runs) > 1:
        found |= {
            "runs": [run_document(one) for one in runs],
            "trends": [*sweeps.trends(runs)],
            "warnings": [*dict.fromkeys(w for one in runs for w in one.warnings)],
        }
    return plain_view(found)


def brief_document(
    analysis: Analysis,
) -> Annotated[
    dict[str, Any], Head, {"fit": str, "runs": Sequence[brief_run], "sections": Sequence[str]}
]:
    """What `perfmodel analyze --json --brief` says: less than 2,000 tokens a run.

    Keys
    ----
    fit
        Name of the run that the roofline is fitted on.
    sections
        Keys of analysis.json, which has all.
    """
    return plain_view(
        Head(SCHEMA_VERSION),
        fit=analysis.fitted.label,
        runs=[brief_run(run) for run in analysis.runs],
        sections=[*run_document(analysis.fitted)],
    )  # fmt: skip


def brief_run(
    run: RunAnalysis,
) -> Annotated[
    dict[str, Any],
    {
        "label": str, "program": str, "gpus": Sequence[str], "steps": str,
        "serving": Sequence[brief_phase], "summary": Summary, "late": LateRank | None,
        "findings": Sequence[brief_finding], "warnings": Sequence[str],
    },
]:  # fmt: skip
    """The first screen of a run.

    Keys
    ----
    steps
        Name of the ranges that are one step each.
    summary
        As in analysis.json, with at most eight bars: those of the slowest ranks.
    late
        The first of `stragglers`: the rank to which most waiting leads back.
    findings, warnings
        The first ones, at most five; `summary.findings` counts all; a warning is cut to 300
        letters.
    serving
        Of an engine that serves a language model: the phases with most time, at most two.
    """
    slowest = sorted(run.summary.bars, key=lambda bar: -bar.whole_s)[:_SLOWEST]
    return {
        "label": run.label,
        "program": run.program.name,
        "gpus": sorted({gpu.name for gpu in run.gpus}),
        "steps": run.batch.label,
        "serving": [brief_phase(row) for row in usual_rows(run.serving)[:_PHASES]],
        "summary": replace(run.summary, bars=tuple(sorted(slowest, key=lambda bar: bar.rank))),
        "late": run.late[0] if run.late else None,
        "findings": [brief_finding(one) for one in run.findings[:_FIRST]],
        "warnings": [warning[:_LONGEST] for warning in run.warnings[:_FIRST]],
    }


def brief_finding(
    one: Finding,
) -> Annotated[
    dict[str, Any],
    {"key": str, "title": str, "saving_s": float | None, "share": float | None},
]:
    """A finding by its key, and what it saves of the step without the profiler, if known."""
    return pick(one, "key title saving_s share")


def brief_phase(
    row: ServingRow,
) -> Annotated[
    dict[str, Any],
    {
        "engine": str, "phase": str, "model": str, "sequences": float, "step_s": float,
        "busy_s": float, "floor_s": float | None, "floor_by": str | None, "ttft_s": float | None,
        "tpot_s": float | None,
    },
]:  # fmt: skip
    """Steps of an engine of one phase, as in `serving.phases` of analysis.json."""
    return pick(row, "engine phase model sequences step_s busy_s floor_s floor_by ttft_s tpot_s")


def run_document(
    run: RunAnalysis,
) -> Annotated[
    dict[str, Any], work_document, RunAnalysis,
    {
        "reports": Sequence[source_report], "workload": counted_work, "program": str,
        "verdict": Verdict, "batch": batch_document, "levels": Sequence[LevelRow],
        "layers": Sequence[LayerTime], "candidates": Sequence[Candidate],
        "kernels": kernels_document | None, "gemms": Sequence[gemm],
        "roofline": placed_points, "idle": Sequence[IdleCause],
        "critical_path": Sequence[PathPart], "recorder": Recorder | None,
        "serving": served | None, "diagnostics": Sequence[Diagnostic],
    },
]:  # fmt: skip
    """Everything that is said of one run.

    Keys
    ----
    program
        Kind of program that it was recognized as.
    verdict
        The limit of a step, and the first change to make.
    levels, layers, candidates
        The steps and the levels around and inside them, layers one by one, and what else may be
        the step; empty where no GPU operations time the steps.
    idle
        Why each rank's GPU idles in a median step.
    critical_path
        Kinds of work on the critical path of a step, and what a step takes where each is free.
    recorder
        The step without the profiler that recorded it.
    serving
        Engine steps of the phase with most time; None where nothing serves.
    """
    steps = run.steps
    return view(
        work_document(run),
        run,
        reports=[source_report(trace) for trace in run.traces],
        workload=counted_work(run),
        program=run.program.name,
        verdict=run.summary.verdict,
        batch=batch_document(run),
        levels=steps.levels if steps else (),
        layers=steps.layers if steps else (),
        candidates=steps.candidates if steps else (),
        kernels=kernels_document(steps) if steps else None,
        gemms=[gemm(*product) for product in run.products],
        roofline=placed_points(run, (run,)),
        idle=steps.facts.idle if steps else (),
        critical_path=steps.facts.path if steps else (),
        recorder=steps.facts.recorder if steps else None,
        serving=served(run.serving) if run.serving else None,
        diagnostics=[d for t in run.traces for d in t.diagnostics if d.severity != "info"],
    )


def source_report(
    trace: Trace,
) -> Annotated[
    dict[str, Any], {"path": Path, "nsys_version": str, "schema": str, "ranks": Sequence[int]}
]:
    """A report that was read: its file, what wrote it, and the ranks that it holds."""
    names = {"path": "source", "nsys_version": "product_version", "schema": "schema_version"}
    return pick(trace, "", **names) | {"ranks": sorted(ranks_of(trace).values())}


def counted_work(
    run: RunAnalysis,
) -> Annotated[
    dict[str, Any],
    {
        "name": str, "counting": str, "symbols": Mapping[str, int], "symbols_from": str,
        "config": Mapping[str, Any], "totals": Counts,
    },
]:  # fmt: skip
    """The formulas that counted, the values of their symbols, and the work of a rank and step.

    Keys
    ----
    symbols
        Values of the symbols; `symbols_from` says whether the report has them or a flag.
    config
        The configuration mark of the report, as it stands there.
    totals
        Sums over all ranges.
    """
    return pick(
        run, "totals", name="workload.name", counting="workload.counting",
        symbols="identity.values", symbols_from="identity.source", config="identity.config",
    )  # fmt: skip


def batch_document(
    run: RunAnalysis,
) -> Annotated[
    dict[str, Any], BatchSummary,
    {
        "median_s": float, "low_s": float, "high_s": float, "instances": int,
        "launch_low_s": float | None, "launch_high_s": float | None, "launches": int,
        "found_by": NotRequired[FoundBy], "confidence": NotRequired[float],
    },
]:  # fmt: skip
    """The median step of the slowest rank with its 95 % intervals, for this run and for a rerun.

    Keys
    ----
    median_s
        Over the steps of the slowest rank that count.
    low_s, high_s
        Interval that holds the median with 95 %, by order statistics (docs/statistics.md).
    instances
        Measured steps of the slowest rank that count.
    launch_low_s, launch_high_s
        95 % interval of a rerun's median: from the medians of several runs, or from one run and the
        usual noise between runs (docs/statistics.md).
    launches
        Runs behind the interval of a rerun.
    found_by, confidence
        Source of the steps, and the GPU time inside them over all GPU time; left out where no GPU
        operations time the steps.
    """
    median = pick(
        run.batch.median, "instances launches", median_s="value", low_s="low", high_s="high",
        launch_low_s="launch_low", launch_high_s="launch_high",
    )  # fmt: skip
    return view(run.batch, median, pick(run.steps, "found_by confidence") if run.steps else {})


def kernels_document(
    steps: StepBreakdown,
) -> Annotated[
    dict[str, Any],
    {
        "categories": Sequence[CategoryTime], "largest": Sequence[KernelTime],
        "unattributed_share": float,
    },
]:  # fmt: skip
    """GPU time of a step by category, and the largest kernels.

    Keys
    ----
    unattributed_share
        GPU time of operations that no step launched, over all GPU time.
    """
    return pick(steps, "categories", largest="kernels", unattributed_share="unattributed")


def gemm(
    label: str, flops: float, rate: Rate
) -> Annotated[dict[str, Any], {"range": str, "flops": float, "rate": Rate}]:
    """FLOPs of a range's products per rank and step, and the rate that they reach."""
    return {"range": label, "flops": flops, "rate": rate}


def placed_points(
    fitted: RunAnalysis, runs: Sequence[RunAnalysis]
) -> Annotated[
    dict[str, Any],
    {
        "rates": Mapping[str, float] | None, "points": Sequence[placed_point],
        "shares": NotRequired[Mapping[str, float]], "bandwidth_bytes_per_s": NotRequired[float],
        "ridge_flops_per_byte": NotRequired[float], "fitted_on": NotRequired[str],
    },
]:  # fmt: skip
    """The fitted smooth roofline AI / (AI / P_flops + sum of shares / P), and measured points.

    Without a fit, only `rates` and `points` are there.

    Keys
    ----
    rates
        The throughputs P_flops, P_pci, P_mpi, P_peer of the fit.
    shares
        Shares of the bytes by link.
    bandwidth_bytes_per_s
        Of this mix of bytes: one over the sum of the shares over their P.
    ridge_flops_per_byte
        P_flops over this bandwidth.
    """
    roof = fitted.roofline
    points = [placed_point(p, fitted, run) for run in runs for p in run.points]
    if roof is None:
        return {"rates": None, "points": points}
    links = {f"P_{link}": rate for link, rate in roof.links_bytes_per_s.items()}
    names = "shares bandwidth_bytes_per_s ridge_flops_per_byte"
    return {
        "rates": {"P_flops": roof.flops_per_s, **links},
        "points": points,
        **pick(roof, names, fitted_on="label"),
    }


def placed_point(
    point: Point, fitted: RunAnalysis, run: RunAnalysis
) -> Annotated[
    dict[str, Any], Point, {"symbols": Mapping[str, int], "roof_flops_per_s": float | None}
]:
    """A measured point: FLOPs over bytes, and FLOPs over time, of a range per step.

    Keys
    ----
    roof_flops_per_s
        Height of the roof above it for its run's own mix of bytes; None if the run's links or math
        are not those of the roof.
    """
    own = own_roof(fitted, run) if fitted.roofline else None
    height = float(own.smooth(point.intensity_flops_per_byte)) if own else None
    return view(point, symbols=point.symbols or {}, roof_flops_per_s=height)
