"""The text of `perfmodel analyze`: what ran, where a batch goes, the rates, the findings."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Final

import numpy as np

from perfmodel.analysis import sweeps
from perfmodel.analysis.warnings import lacking
from perfmodel.base.units import percent, si
from perfmodel.programs.identify import read_mark
from perfmodel.readers.trace import TORCH_PROFILER, Trace
from perfmodel.render import first_screen, messages, operators, serving, tables
from perfmodel.render.result import Block, Result
from perfmodel.timing.copies import tells_devices

if TYPE_CHECKING:
    from perfmodel.analysis.result import Analysis, BatchSummary, RunAnalysis
    from perfmodel.analysis.steps import StepBreakdown
    from perfmodel.base.table import Table
    from perfmodel.timing.run_steps import RunSteps

_LOST: Final = 0.01
"""Share of the GPU time in no step that is worth a line."""
_APART: Final = 0.05
"""Ranges whose median duration differs from the step on the GPU's clock by more are said to."""
_SURE: Final = 0.9
"""Of answers with this probability at least 97 % are right (`python -m benchmarks.steps`)."""
_SAME: Final = 0.95
"""A saving of at least this share of that alone is said once."""
_LONGEST: Final = 200
"""Letters of a message of Nsight Systems that are shown."""


def result(analysis: Analysis, section: str | None = None, *, brief: bool = False) -> Result:
    """Return an analysis in every format; of the text the first screen, or the section named."""
    return Result(
        text=_first(analysis, brief=brief) if section is None else _chosen(analysis, section),
        document=lambda: _document(analysis, brief=brief),
        tables=_tables(analysis),
    )


def _first(analysis: Analysis, *, brief: bool) -> Iterator[Block]:
    """The first screen; with `brief` a line for each run."""
    if brief:
        yield [first_screen.brief(run) for run in analysis.runs]
        return
    if len(analysis.runs) > 1:
        yield tables.sweep_text(analysis)
        yield from sweeps.trends(analysis.runs)
    sections = _sections(analysis)
    yield lambda color: first_screen.screen(analysis.fitted, sections, color=color)


def _sections(analysis: Analysis) -> list[str]:
    """Sections that have a table, or a line, of this recording."""
    run = analysis.fitted
    levels = [*_levels(run)]
    found = {name for name, _ in _blocks(analysis)}
    found |= {name for name, there in (("levels", levels[1:]), ("warnings", run.warnings)) if there}
    return [name for name in first_screen.SECTIONS if name in found]


def _chosen(analysis: Analysis, section: str) -> Iterator[Block]:
    """The blocks of a section."""
    run = analysis.fitted
    if section == "levels":
        yield from _levels(run)
    elif section == "warnings":
        yield list(dict.fromkeys(w for one in analysis.runs for w in one.warnings)) or "no warning"
    else:
        found = [block for name, block in _blocks(analysis) if section in (name, "all")]
        yield from found or [f"Nothing is known of {section} in this recording."]


def _document(analysis: Analysis, *, brief: bool) -> dict[str, object]:
    from perfmodel.render.analysis_json import analysis_document, brief_document

    return brief_document(analysis) if brief else analysis_document(analysis)


def _tables(analysis: Analysis) -> Iterator[Table]:
    from perfmodel.render.outputs import csv_tables  # brings modules that a text does not need

    for name, table in csv_tables(analysis):
        yield replace(table, title=name)


def _blocks(analysis: Analysis) -> Iterator[tuple[str, Block]]:
    """All blocks of the text, each with the name of its section."""
    run = analysis.fitted
    if len(analysis.runs) > 1:
        yield "ranges", tables.sweep_text(analysis)
        for trend in sweeps.trends(analysis.runs):
            yield "ranges", trend
        fits = ", which fits the roofline" if run.roofline is not None else ""
        yield "ranges", f"Details of {run.label}{fits}:"
    yield "", list(what_ran(run))
    if not run.workload.ranges and run.steps is not None:  # no FLOPs are known
        yield "ranks", tables.step_parts(run)
        if run.program.step_clock == "gpu":
            yield from _why_idle(run, run.steps)
        if run.steps.categories:
            yield "kernels", tables.categories(run)
        if run.steps.kernels:
            yield "kernels", tables.kernels(run)
    for table in serving.tables(run.serving) if run.serving else ():
        yield "serving", table
    if run.work:
        yield "operators", list(operators.work_lines(run.work))
        yield "operators", operators.operators_text(run.work)
        if run.work.modelled and run.work.source != "layers":  # those are phases themselves
            yield "operators", operators.phases(run.work)
        if (counted := operators.counted_text(run.work)) is not None:
            yield "operators", counted
        if run.work.modules:
            yield "operators", operators.modules_text(run.work)
    yield "ranges", tables.ranges_text(run)
    if any(run.rates.values()):
        yield "ranges", tables.rates_text(run)
    if run.copies:
        yield "ranges", tables.copies(run)
    if run.collectives:
        yield "ranks", tables.collectives_text(run)
    if any(late.caused_s for late in run.late):
        yield "ranks", tables.late_ranks_text(run)
    if len(run.ranks) > 1 and run.workload.ranges:
        yield "ranks", tables.ranks_text(run)
    if run.outliers:
        yield "ranks", tables.outliers(run).first(tables.SHOWN, tables.ALL)
    if len(run.ranks) > 2 and run.skew:  # of two ranks the table of ranks says it all
        yield "ranks", tables.collective_skew_text(run)
    if run.workload.ranges and run.steps is not None:
        yield from _why_idle(run, run.steps)
    for block in messages.blocks(run):
        yield "ranks", block
    if analysis.points:
        yield "ranges", tables.points_text(analysis)
    yield "findings", list(_findings(run))


def _levels(run: RunAnalysis) -> Iterator[Block]:
    """The steps: how they were found, the levels around and inside them, and other candidates."""
    yield list(what_ran(run))
    yield from (
        t for t in (tables.levels(run), tables.layers(run), tables.candidates(run)) if t.rows
    )


def _why_idle(run: RunAnalysis, steps: StepBreakdown) -> Iterator[tuple[str, Block]]:
    for table in (tables.idle_text(run), tables.path_text(steps)):
        if table.rows:
            yield "idle", table


def what_ran(run: RunAnalysis) -> Iterator[str]:
    """Say what ran, where, how many batches, and what no range explains, a line each."""
    values = run.identity.values
    named = [t.source.name for t in run.traces]
    left = len(named) - tables.SHOWN
    names = " + ".join(named if left <= 0 else [*named[:2], f"{len(named) - 2} more"])
    yield f"{names}  ({run.traces[0].recorder})"
    numbers = [r.gpu for r in run.ranks if r.gpu is not None]
    used = set(numbers)
    gpus = sorted({g.name for g in run.gpus if g.id in used or len(run.gpus) == 1})
    apart = len(run.traces) == 1 and len(used) == len(numbers)
    count = f"{len(used)} x " if apart or tells_devices(run.traces) else ""
    kind = ", ".join(gpus) or "GPU, not named in the report"
    where = f"{count}{kind}" if used else "no GPU in the report"
    yield f"ran on     {len(run.ranks)} rank{'s' * (len(run.ranks) != 1)}, {where}"
    if run.machine is not None and run.machine.basis == "measured":
        yield f"ceilings   measured on {run.machine.name}; MFU is of its data sheet's peak"
    elif run.machine is not None and run.machine.basis == "estimate" and (
        run.machine.peak_flops_per_s
    ):  # fmt: skip
        yield "ceilings   an estimate: the GPU is not among the devices of perfmodel machine list"
    symbols = "  ".join(f"{s}={values.get(s, d.default)}" for s, d in run.workload.symbols.items())
    if symbols:
        yield (
            f"workload   {run.workload.name}, {run.workload.counting} counting: {symbols}  "
            f"(from {run.identity.source})"
        )
    else:
        known = "" if run.work and run.work.modelled else "; FLOPs unknown"
        yield f"program    {run.program.name}{known}"
    found = run.steps if run.program.step_clock == "gpu" else None
    if found is not None and found.unattributed > _LOST:
        yield (
            f"attention  {percent(found.unattributed, 1)} of the GPU time between the first "
            f"and the last step belongs to no step"
        )
    batch = run.batch
    long = found.facts.long if found else None
    mean = f", mean {si(batch.mean_s, 's', 4)}" if long else ""
    yield (
        f"steps      {_each(run)}, median {si(batch.median.value, 's', 4)} "
        f"[{tables.interval_of_step(run)}]{mean}; {_left_out(batch, run.run_steps)}"
    )
    again = tables.another(batch.median)
    if again != tables.RECORD_THREE:
        yield f"rerun      expected: {again} (95 %)"
    if found is not None:
        yield f"found by   {_how_found(found, batch.median.value)}"
    recorder = run.steps.facts.recorder if run.steps else None
    if recorder is not None and recorder.matters:
        yield f"recorder   {recorder}"
    lost = run.unattributed
    if lost["gpu_ops"]:
        outside = lost["without_launch"] + lost["outside_ranges"]
        strays = lost["without_launch"] + lost["outside_ranges_during_batches"]
        if outside > _LOST * lost["gpu_ops"]:
            during = f"{strays:,}" if strays else "none"
            yield (
                f"GPU work   {percent(outside / lost['gpu_ops'])} of {lost['gpu_ops']:,} "
                f"operations are outside all ranges, {during} of them during steps"
            )
    if said := complaints(run.traces):
        who = "recording" if run.traces[0].product_version == TORCH_PROFILER else "nsys says"
        yield f"{who}  {'; '.join(said)}"


def _left_out(batch: BatchSummary, steps: RunSteps) -> str:
    """Say which batches do not count; by the GPU's clock the last one has no end."""
    warm = (
        f"{batch.warmup} warm-up step{'s' * (batch.warmup > 1)} ({si(batch.warmup_s, 's')})"
        if batch.warmup
        else ""
    )
    if steps.own_ns.shape[1] <= steps.counted.stop:
        return f"{warm} excluded" if warm else "no warm-up step found"
    return f"{warm} and the last excluded" if warm else "no warm-up step found; the last excluded"


def _each(run: RunAnalysis) -> str:
    """How many batches count of every rank, which processes of several programs do not share."""
    counts = [run.batch.count, *(rank.batches for rank in run.ranks if rank.batches)]
    few, most = min(counts), max(counts)
    return f"{few} per rank" if few == most else f"{few} to {most} per rank"


def _how_found(steps: StepBreakdown, step_s: float) -> str:
    """Say what a step is, and how sure that is."""
    whose = "GPU" if any(rank.gpu is not None for rank in steps.ranks) else "host"
    share = f"{percent(steps.confidence)} of the {whose}'s time"
    unsure = _unsure(steps)
    if steps.found_by == "found":
        return f"repetition in the sequence of operations; {share}{unsure}"
    if steps.found_by == "whole":
        return (
            f"nothing repeats: the whole recording is one step{unsure}; name one with --batch-range"
        )
    own = [row.median_s for row in steps.levels if row.level == "step"]
    apart = own and abs(own[0] - step_s) > _APART * step_s
    lasts = f"; the ranges last {si(own[0], 's', 4)} (median)" if apart else ""
    return f"NVTX ranges {steps.label!r}; {share}{lasts}{unsure}"


def _unsure(steps: StepBreakdown) -> str:
    """Name the second candidate where the first is not sure."""
    if len(steps.candidates) < 2 or steps.candidates[0].score >= _SURE:
        return ""
    first, second = steps.candidates[:2]
    other = "one step" if second.count == 1 else f"{second.count} of {si(second.median_s, 's')}"
    return (
        f"; probability {percent(first.score, 0)}, or {other} ({percent(second.score, 0)}): "
        f"--section levels"
    )


def complaints(traces: Sequence[Trace]) -> list[str]:
    """What warnings and errors of the collection mean, each once, but for what a trace disproves.

    `complaints.toml` knows most; others are quoted. Long ones are cut: exceptions of Nsight
    Systems' own.
    """
    found = (_meaning(text) for trace in traces for text in _messages(trace))
    return [*dict.fromkeys(said for said in found if said)]


def _meaning(text: str) -> str:
    for begins, means in _known():
        if text.startswith(begins):
            return means
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


@cache
def _known() -> list[tuple[tuple[str, ...], str]]:
    file = resources.files("perfmodel").joinpath("render", "complaints.toml")
    known = tomllib.loads(file.read_text(encoding="utf-8"))["message"]
    return [(tuple(one["begins"]), one.get("means", "")) for one in known]


def _messages(trace: Trace) -> list[str]:
    disproved = [
        *(["No NVTX events"] if len(trace.ranges) else []),
        *(["No CUDA events"] if len(trace.ops) else []),
        *(["No CUDA events"] if _on_the_cpu(trace) else []),
        *(["CUDA profiling might"] if _on_the_cpu(trace) or _all_on_gpus(trace) else []),
    ]
    return [
        d.text
        for d in trace.diagnostics
        if d.severity in ("warning", "error") and not d.text.startswith(tuple(disproved))
    ]


def _on_the_cpu(trace: Trace) -> bool:
    """Whether the run was not meant to use a GPU."""
    return read_mark(trace).get("backend") == "numpy" and len(trace.ops) == 0


def _all_on_gpus(trace: Trace) -> bool:
    """Whether every process that did something on the host did something on a GPU, too."""
    threads = (trace.api.thread, trace.ranges.thread, trace.mpi.thread)
    hosts = {p for thread in threads for p in np.unique(trace.thread_process[thread]).tolist()}
    return hosts <= set(np.unique(trace.ops.process).tolist())


def _after(number: int, after_s: float | None, alone_s: float | None) -> str:
    """Say what a finding saves after those before it, where that is not what it saves alone."""
    if number == 1 or after_s is None or alone_s is None:
        return ""
    if _SAME * alone_s < after_s <= alone_s:
        return ""
    return f", {si(after_s, 's')} after {'1' if number == 2 else f'1 to {number - 1}'}"


def _findings(run: RunAnalysis) -> Iterator[str]:
    if not run.findings:
        unknown = lacking(run.unattributed) and not any(r.gpu_busy_s for r in run.ranks)
        yield (
            "Findings: none, since no GPU operation belongs to a step: see the warnings."
            if unknown
            else "Findings: nothing worth one percent of a step."
        )
        return
    recorder = run.steps.facts.recorder if run.steps else None
    without = f" without {recorder.name}" if recorder and recorder.matters else ""
    after = {fix.key: fix.after_previous_s for fix in run.summary.fixes}
    yield f"Findings, ranked by potential saving per step{without} (savings overlap):"
    for i, f in enumerate(run.findings, 1):
        behind = _after(i, after.get(f.key), f.saving_s)
        yield f" {i}. {f.title}{f.saving and f' — up to {f.saving}'}{behind}"
        yield f"    {f.evidence}"
        if f.line:
            yield f"    at {f.line}{f', in {f.range!r}' if f.range else ''}"
        yield f"    -> {f.action}"
