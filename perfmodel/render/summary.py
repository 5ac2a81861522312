"""The text of `perfmodel analyze`: what ran, where a batch goes, the rates, the findings."""

from __future__ import annotations

from collections.abc import Iterator

from perfmodel.analysis import sweeps
from perfmodel.analysis.result import Analysis, RunAnalysis
from perfmodel.base.escape import printable
from perfmodel.base.table import Table, render
from perfmodel.base.units import si
from perfmodel.programs.identify import read_mark
from perfmodel.readers.trace import Trace
from perfmodel.render import skew_tables, tables
from perfmodel.timing.copies import tells_devices


def text(analysis: Analysis, *, width: int | None = None, color: bool = False) -> str:
    """Return the whole summary as text."""
    blocks = []
    if len(analysis.runs) > 1:
        blocks.append(render(tables.sweep_text(analysis), "table", width=width, color=color))
        blocks += [f"{line}\n" for line in sweeps.trends(analysis.runs)]
        blocks.append(f"Details of {analysis.fitted.label}, which fits the roofline:\n")
    for block in _run_blocks(analysis.fitted):
        blocks.append(
            render(block, "table", width=width, color=color) if isinstance(block, Table) else block
        )
    if analysis.points:
        blocks.append(render(tables.points_text(analysis), "table", width=width, color=color))
    blocks.append(_findings(analysis.fitted))
    return "\n".join(blocks)


def _run_blocks(run: RunAnalysis) -> Iterator[Table | str]:
    yield "\n".join(what_ran(run)) + "\n"
    yield tables.ranges_text(run)
    if any(run.rates.values()):
        yield tables.rates_text(run)
    if run.copies:
        yield tables.copies(run)
    if run.collectives:
        yield tables.collectives(run)
    if len(run.ranks) > 1:
        yield tables.ranks_text(run)
    if len(run.ranks) > 2 and run.skew:  # of two ranks the table of ranks says it all
        yield skew_tables.collective_skew(run)
        yield skew_tables.stragglers_text(run)


def what_ran(run: RunAnalysis) -> Iterator[str]:
    """Say what ran, where, how many batches, and what no range explains, a line each."""
    values = run.identity.values
    named = [printable(t.source.name) for t in run.traces]
    left = len(named) - skew_tables.SHOWN
    names = " + ".join(named if left <= 0 else [*named[:2], f"{len(named) - 2} more"])
    yield f"{names}  (Nsight Systems {printable(run.traces[0].product_version)})"
    numbers = [r.gpu for r in run.ranks if r.gpu is not None]
    used = set(numbers)
    gpus = sorted({printable(g.name) for g in run.gpus if g.id in used or len(run.gpus) == 1})
    apart = len(run.traces) == 1 and len(used) == len(numbers)
    count = f"{len(used)} x " if apart or tells_devices(run.traces) else ""
    where = f"{count}{', '.join(gpus)}" if used and gpus else "no GPU in the report"
    yield f"ran on     {len(run.ranks)} rank{'s' * (len(run.ranks) != 1)}, {where}"
    symbols = "  ".join(f"{s}={values.get(s, d.default)}" for s, d in run.workload.symbols.items())
    if symbols:
        yield (
            f"workload   {run.workload.name}, {run.workload.counting} counting: {symbols}  "
            f"(from {run.identity.source})"
        )
    else:
        yield "workload   unknown"
    batch = run.batch
    warm = (
        f"{batch.warmup} warm-up batch{'es' * (batch.warmup > 1)} "
        f"({si(batch.warmup_s, 's')}) excluded"
        if batch.warmup
        else "no warm-up batch found"
    )
    yield (
        f"batches    {batch.count} per rank, median {si(batch.median.value, 's', 4)} "
        f"[{si(batch.median.low, 's', 4)}, {si(batch.median.high, 's', 4)}]; {warm}"
    )
    lost = run.unattributed
    if lost["gpu_ops"]:
        outside = lost["without_launch"] + lost["outside_ranges"]
        strays = lost["without_launch"] + lost["outside_ranges_during_batches"]
        yield (
            f"GPU work   {lost['gpu_ops']} operations, {outside} of them "
            f"({outside / lost['gpu_ops']:.1%}) in no range, {strays} while the batches ran"
        )
    for said in dict.fromkeys(d for t in run.traces for d in complaints(t)):
        yield f"nsys says  {printable(said)}"


def complaints(trace: Trace) -> list[str]:
    """Warnings and errors of the collection itself, but for what the trace disproves."""
    disproved = [
        *(["No NVTX events"] if len(trace.ranges) else []),
        *(["No CUDA events"] if len(trace.ops) else []),
        *(["No CUDA events", "CUDA profiling might"] if _on_the_cpu(trace) else []),
    ]
    return [
        d.text
        for d in trace.diagnostics
        if d.severity in ("warning", "error") and not d.text.startswith(tuple(disproved))
    ]


def _on_the_cpu(trace: Trace) -> bool:
    """Whether the run was not meant to use a GPU."""
    return read_mark(trace).get("backend") == "numpy" and len(trace.ops) == 0


def _findings(run: RunAnalysis) -> str:
    if not run.findings:
        return "Findings: nothing worth one percent of a batch.\n"
    lines = ["Findings, by what mending them would save per batch (savings overlap):"]
    for i, f in enumerate(run.findings, 1):
        saving = (
            ""
            if f.saving_s is None
            else (f" — up to {si(f.saving_s, 's')} ({f.saving_s / run.batch.median.value:.0%})")
        )
        lines += [f" {i}. {printable(f.title)}{saving}", f"    {printable(f.evidence)}"]
        lines += [f"    -> {f.action}"]
    return "\n".join(lines) + "\n"
