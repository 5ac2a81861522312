"""The sections of a page in tables and words: time, model, changes, findings, machine, files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

import perfmodel
from perfmodel.analysis.changes import changes_of
from perfmodel.analysis.outliers import own_seconds
from perfmodel.analysis.rates import amounts
from perfmodel.analysis.result import RangeRow, RunAnalysis
from perfmodel.analysis.steps import kernels_of_steps
from perfmodel.base.gpu import Gpu
from perfmodel.base.table import Column, Table
from perfmodel.base.units import si
from perfmodel.findings import Finding, kinds
from perfmodel.machines.machine import Machine
from perfmodel.programs.identify import MARK_KEY
from perfmodel.readers.trace import Trace, distinct_calls
from perfmodel.render import evidence, messages, operators, summary, tables, whatif
from perfmodel.render import serving as served
from perfmodel.render.html.blocks import (
    MOST_ROWS,
    Advice,
    Block,
    Cell,
    Find,
    Grid,
    Head,
    Notice,
    Study,
    Words,
    grid,
)
from perfmodel.render.html.strip import strips
from perfmodel.render.machines import TITLES
from perfmodel.render.machines import rows as machine_rows
from perfmodel.timing.host_timeline import CAUSE_NAMES, CAUSES
from perfmodel.timing.kernels import COMMUNICATION
from perfmodel.timing.range_times import ranks_of
from perfmodel.workloads.expression import Number
from perfmodel.workloads.formulas import formula_text
from perfmodel.workloads.work import Workload

MANY_RANKS: Final = 8
"""From so many ranks on they have a section of their own."""
_OPEN_ROWS: Final = 16
_MOST_RANKS: Final = 4096
_COLLECT: Final = "nsys profile --trace=nvtx,cuda,mpi ..."


# --- where the time goes ---


def breakdown(run: RunAnalysis) -> Iterator[Block]:
    """Yield the tables of one run, and what was not recorded."""
    unknown = not run.workload.ranges and run.steps is not None  # no FLOPs by range
    many = len(run.ranks) >= MANY_RANKS  # which have a section of their own
    if unknown and not many:
        yield _of_ranks(tables.step_parts(run))
    if unknown and run.steps is not None and run.steps.categories:
        yield grid(tables.categories(run))
    if run.work:
        yield Words(
            "Work of a step", tuple(" ".join(w.split()) for w in operators.work_lines(run.work))
        )
        yield grid(operators.operators_text(run.work, MOST_ROWS))
        if (counted := operators.counted_text(run.work)) is not None:
            yield grid(counted)
        if run.work.modules:
            yield grid(operators.modules_text(run.work))
    yield _ranges(run)
    if run.steps is not None and run.steps.kernels:
        every = kernels_of_steps(run.measured.steps, run.steps.window) or run.steps.kernels
        listed = tables.kernels(run, every)
        yield grid(listed, closed=True, finds=[Find(k.name) for k in every])
    elif all(row.gpu_busy_s is None for row in run.ranges):
        yield Notice(
            "No GPU operation was recorded: GPU times, kernels and copies are missing.",
            f"if the program uses a GPU, profile it with {_COLLECT}",
        )
    if run.copies:
        yield grid(tables.copies(run))
    if run.collectives:
        yield grid(tables.collectives(run))
    elif len(run.ranks) > 1 and run.identity.uses_mpi and run.messages is None:
        yield Notice(
            "No collective was recorded in the ranges of the steps.",
            f"for MPI's, profile with {_COLLECT} --mpi-impl=openmpi (or mpich)",
        )
    if any(late.caused_s for late in run.late) and not many:
        yield _of_ranks(tables.late_ranks(run))
    yield from map(grid, messages.blocks(run))
    if len(run.ranks) > 1 and not many and not unknown:
        yield _of_ranks(tables.ranks(run))


def serving(run: RunAnalysis) -> Iterator[Block]:
    """Yield the engine's steps by phase, their times to tokens, and what their floors are of."""
    yield from map(grid, served.tables(run.serving))


def ranks(run: RunAnalysis) -> Iterator[Block]:
    """Yield the ranks of a run as strips, which of them are slow, and which are late."""
    yield from strips(run)
    if run.outliers:
        yield grid(tables.outliers(run))
    else:
        yield Words("", ("No rank, GPU or host is slower than the others.",))
    yield _of_ranks(_every_rank(run))
    if run.skew is not None:
        yield grid(tables.collective_skew_text(run))
        yield _of_ranks(tables.late_ranks(run))


def _every_rank(run: RunAnalysis) -> Table:
    """Return the table of ranks, with their hosts and their own times."""
    own = Column("own_s", "Without waiting", "si", "s", digits=4, of=own_seconds)
    host = Column("host", "Host", of=lambda rank: run.hosts.get(rank.rank))
    found = tables.ranks(run)
    columns = (*found.columns, own, *([host] if run.hosts else []))
    title = f"Ranks of {run.label} (medians over steps)"
    return Table.of(title, run.ranks, columns, tables.step_parts(run).notes)


def _of_ranks(table: Table) -> Grid:
    """A table with a row for every rank, closed where these are many."""
    return grid(table, closed=len(table.rows) > _OPEN_ROWS, most=_MOST_RANKS)


def _ranges(run: RunAnalysis) -> Grid:
    """The tree of ranges, with a column that draws its three clocks."""
    shown = tables.longest(run.ranges, MOST_ROWS)
    made = grid(
        tables.ranges_text(run, MOST_ROWS),
        sort={"rate": [row.rate for row in shown]},
        plain=("share", "of_ceiling"),
    )
    longest = max((s for row in shown for s in _seconds(row) if s), default=0.0)
    drawn = Head("On the three clocks", "left", sortable=False)
    rows = [
        (
            cells[0],
            Cell("", clocks=tuple(s / longest if s else None for s in _seconds(row))),
            *cells[1:],
        )
        for row, cells in zip(shown, made.rows, strict=True)
    ]
    finds = tuple(Find(row.label) for row in shown)
    heads = (made.heads[0], drawn, *made.heads[1:])
    return replace(made, heads=heads, rows=tuple(rows), finds=finds)


def _seconds(row: RangeRow) -> tuple[float | None, float | None, float | None]:
    return row.host_s, row.gpu_projection_s, row.gpu_busy_s


# --- the model ---


_QUANTITIES: Final = {
    "flops": ("FLOPs", "FLOP"),
    "pci_bytes": ("bytes over PCIe", "B"),
    "mpi_bytes": ("bytes over MPI", "B"),
    "peer_bytes": ("bytes from GPU to GPU", "B"),
    "dram_bytes": ("bytes of GPU memory", "B"),
}
_UNITS: Final = {"P_flops": "FLOP"}


def model(run: RunAnalysis, study: Study | None) -> Iterator[Block]:
    """Yield the model of one run by its formulas, and what a study adds."""
    if not run.workload.ranges and not run.program.by_formulas:
        return
    if not run.workload.ranges:
        yield Notice(
            "FLOPs and bytes are not known: the report does not say what its steps compute.",
            "give D, H, C and B as flags if it is the two-layer MLP; else write the formulas of "
            "your program into a TOML file and name it with --workload (docs/workloads.md)",
        )
        return
    load, known = run.workload, run.identity.values
    values = load.check({s: v for s, v in known.items() if s in load.symbols})
    if load.symbols:
        yield grid(_symbols(load, values, run.identity.source), closed=True)
    yield _formulas(load, values)
    if run.products:
        numbers = [rate.value for _, _, rate in run.products]
        yield grid(_products(run), sort={"value": numbers, "interval": numbers}, closed=True)
    if run.model:
        yield Words("The model", tuple(_equation(load, values)))
        yield _terms(run)
        yield _checks(run)
    if study is not None:
        yield from study.model


def _products(run: RunAnalysis) -> Table:
    """Throughput of every GEMM; those of the model are in the summary."""
    found = tables.rates_text(run)
    rows = found.rows[-len(run.products) :]
    columns = found.columns[:-1]  # other clocks are known of the model's rates
    return Table("Throughput of every GEMM", columns, [row[:-1] for row in rows])


def _symbols(load: Workload, values: Mapping[str, int], source: str) -> Table:
    rows: list[tuple[str, str, Number | None, str, str]] = []
    for symbol in (*load.symbols.values(), *load.derived.values()):
        value: Number | None = values.get(symbol.name)
        formula = ""
        if symbol.definition:
            value = symbol.definition.evaluate(values)
            formula = _plain(formula_text(symbol.definition, load, expand=True))
        rows.append((symbol.label or symbol.name, symbol.meaning, value, symbol.unit, formula))
    columns = (
        Column("symbol", "Symbol"),
        Column("meaning", "Meaning"),
        Column("value", "Value", "int"),
        Column("unit", "Unit"),
        Column("formula", "Formula"),
    )
    return Table(f"Symbols (values from {source})", columns, rows)


def _formulas(load: Workload, values: Mapping[str, int]) -> Grid:
    """FLOPs and bytes of every range, by formula and in numbers."""
    rows: list[tuple[str, str, str, str]] = []
    counts: list[float] = []
    for name, work in (*load.ranges.items(), ("all ranges together", load.total())):
        for key, (title, unit) in _QUANTITIES.items():
            formula = getattr(work, key)
            if formula and (name in load.ranges or key != "dram_bytes"):
                counts.append(float(formula.evaluate(values)))
                text = _plain(formula_text(formula, load))
                rows.append((name, title, text, si(counts[-1], unit)))
    columns = (
        Column("range", "Range"),
        Column("quantity", "Quantity"),
        Column("formula", "Formula"),
        Column("value", "Value", align="right"),
    )
    title = f"FLOPs and bytes per rank and step, {load.counting} counting"
    notes = (f"source: {load.source}",) if load.source else ()
    return grid(Table(title, columns, rows, notes), sort={"value": counts}, closed=True)


def _plain(formula: str) -> str:
    return formula.replace("**", "^").replace("*", " · ")


def _equation(load: Workload, values: Mapping[str, int]) -> Iterator[str]:
    yield "T = F / P_flops + Σ n_k / P_k over the links k: computing, then moving, nothing at once."
    total = load.total()
    moved = total.moved_bytes()
    if total.flops and moved and moved.evaluate(values) > 0:
        intensity = total.arithmetic_intensity()
        value = f"{intensity.evaluate(values):,.4g} FLOP/B"
        yield f"Arithmetic intensity = {_plain(formula_text(intensity, load))} = {value}."


def _terms(run: RunAnalysis) -> Grid:
    """Every term of the model with its work, its rate and its time."""
    found = [
        (name, amount, rate)
        for name, amount in amounts(run.totals).items()
        if (rate := run.rates.get(name)) is not None and amount > 0
    ]
    whole = sum(amount / rate.value for _, amount, rate in found)
    rows = [
        (name, si(amount, _UNITS.get(name, "B")), amount / rate.value,
         amount / rate.value / whole)
        for name, amount, rate in found
    ]  # fmt: skip
    columns = (
        Column("term", "Term"),
        Column("work", "Work", align="right"),
        Column("seconds", "Time", "si", "s", digits=4),
        Column("share", "Of the model's time", "percent", digits=0),
    )
    return grid(
        Table(f"Terms of the model: {si(whole, 's', 4)} together", columns, rows),
        sort={"work": [n for _, n, _ in found]},
    )


def _checks(run: RunAnalysis) -> Grid:
    """The model's time and the measured one."""
    columns = (
        Column("timed", "Timed", of="label"),
        Column("predicted_s", "Predicted", "si", "s", digits=4),
        Column("measured_s", "Measured", "si", "s", digits=4),
        Column("error", "Error", align="right", of=lambda c: f"{100 * c.relative_error:+.0f} %"),
    )
    note = "the model has no launches, no waiting and no element-wise kernels: what it misses"
    table = Table.of("Predicted against measured", run.model, columns, [note])
    return grid(table, sort={"error": [c.relative_error for c in run.model]})


# --- changes and findings ---


def what_if(run: RunAnalysis, study: Study | None) -> Iterator[Block]:
    """Yield the changes ranked: those of a study, or where there is none of the step's graph."""
    if study is not None and study.what_if:
        yield from study.what_if
    elif run.steps is not None and run.steps.facts.step_s:
        found = changes_of(run)
        if found.changes:
            finds = [Find(CAUSE_NAMES.get(change.name, change.name)) for change in found.changes]
            yield grid(whatif.graph_tables(found)[0], finds=finds)


def findings(run: RunAnalysis, document: Mapping[str, Any], summed: str) -> Iterator[Block]:
    """Yield findings, largest saving first, each with its evidence, and warnings.

    `document` is analysis.json of the run; `summed` is the key of the finding in the summary.
    """
    for f in sorted(run.findings, key=lambda one: one.key != summed):
        if f.key == summed:
            yield Words("", (f"{f.title[0].upper()}{f.title[1:]}: in the summary.",))
        else:
            place = place_of(run, f)
            saving = f.saving and f"up to {f.saving}"
            yield Advice(f.title, saving, f.share, f.evidence, f.action, place)
        yield from _grounds(evidence.evidence(None, document, f.key))
    if not run.findings:
        yield Words("", ("Nothing was found that is worth one percent of a step.",))
    said = warnings(run)
    if said:
        yield Words("Warnings", said, listed=True)


def _grounds(found: evidence.Evidence) -> Iterator[Block]:
    """Yield the formula of a finding with its inputs; a page of a window has not all events."""
    inputs = evidence.inputs_table(found)
    if inputs.rows:
        values = [
            one.value if isinstance(one.value, (int, float)) else None for one in found.inputs
        ]
        caption = (
            f"Evidence of {found.key}: {found.formula}; perfmodel analyze REPORT --evidence "
            f"{found.key} prints the events"
        )
        yield grid(inputs, caption=caption, sort={"value": values}, closed=True)


def place_of(run: RunAnalysis, finding: Finding) -> Find | None:
    """Say where a finding is on the timeline: at its gaps, NCCL's kernels, its subject or range."""
    if finding.kind in CAUSES:
        return Find(CAUSE_NAMES[finding.kind])
    kernels = run.steps.kernels if run.steps else ()
    sends = kinds()[finding.kind].is_about(COMMUNICATION)
    named = [
        *(k.name for k in kernels if sends and k.category == COMMUNICATION),
        *(k.name for k in kernels if k.name == finding.subject),
        *(row.label for row in run.ranges[1:] if row.label == finding.subject),
        finding.range,
    ]
    return next((Find(name) for name in named if name is not None), None)


def warnings(run: RunAnalysis) -> tuple[str, ...]:
    """What was not collected or does not fit, and what the recorder says of its collection."""
    said = "; ".join(summary.complaints(run.traces))
    return (*run.warnings, *([f"{run.traces[0].recorder} says: {said}"] if said else []))


# --- where a page comes from ---


def machine(run: RunAnalysis) -> Iterator[Block]:
    """Yield what ran, on which GPUs, and their ceilings."""
    if run.identity.config:
        yield grid(_configuration(run.identity.config), closed=True)
    if run.gpus:
        yield grid(_gpus(run), closed=True)
    elif any(rank.gpu is not None for rank in run.ranks):
        yield Notice("The report describes no GPU.", run.traces[0].how_to_record)
    if run.machine is not None:
        yield _ceilings(run.machine, run.precision)


def provenance(runs: Sequence[RunAnalysis]) -> Iterator[Block]:
    """Yield the files that the page is made of, and by what.

    Of a trace whose rows are gone their number is not known.
    """

    def rows(count: Callable[[Trace], int]) -> Callable[[Trace], int | None]:
        return lambda t: count(t) if t.whole or t.left_out else None

    traces = [trace for run in runs for trace in run.traces]
    made = {
        id(trace): int((report.steps.row < 0).sum())
        for run in runs
        for trace, report in zip(run.traces, run.measured.steps, strict=False)
    }
    columns = (
        Column("report", "Report", of="source.name"),
        Column("nsys", "Recorded with", of="recorder"),
        Column("schema", "Schema", of="schema_version"),
        Column("ranks", "Ranks", of=lambda t: ", ".join(map(str, sorted(ranks_of(t).values())))),
        Column("recorded", "Recorded (UTC)", of=_recorded),
        Column("ranges", "Ranges", "int", of=rows(lambda t: len(t.ranges) - made.get(id(t), 0))),
        Column("ops", "GPU operations", "int", of=rows(lambda t: t.op_count)),
        Column("mpi", "MPI calls", "int", of=rows(lambda t: len(distinct_calls(t.mpi)))),
    )
    note = f"made by perfmodel {perfmodel.__version__}; the same reports give the same page"
    yield _of_ranks(Table.of("Reports", traces, columns, [note]))


def _recorded(trace: Trace) -> str | None:
    if trace.utc_start_ns is None:
        return None
    try:
        start = datetime.fromtimestamp(trace.utc_start_ns // 10**9, UTC)
    except (OverflowError, OSError, ValueError):
        return None
    return f"{start:%Y-%m-%d %H:%M:%S}"


def _configuration(config: Mapping[str, Any]) -> Table:
    """The mark's content, one row a setting; what nests has dotted names."""

    def flat(values: Mapping[str, Any], above: str) -> Iterator[tuple[str, str]]:
        for key, value in values.items():
            if isinstance(value, dict):
                yield from flat(value, f"{above}{key}.")
            else:
                yield f"{above}{key}", str(value)

    rows = list(flat({k: v for k, v in config.items() if k != MARK_KEY}, ""))
    title = "Configuration, from the report's mark"
    return Table(title, (Column("setting", "Setting"), Column("value", "Value")), rows)


def _gpus(run: RunAnalysis) -> Table:
    def ranks(gpu: Gpu) -> str | None:
        return ", ".join(str(r.rank) for r in run.ranks if r.gpu == gpu.id) or None

    columns = (
        Column("gpu", "GPU", of="name"),
        Column("id", "Number", "int"),
        Column("ranks", "Ranks", of=ranks),
        Column("sms", "Multiprocessors", "int", of="sm_count"),
        Column("clock", "Clock", "si", "Hz", of="clock_hz"),
        Column("bandwidth", "Memory bandwidth", "si", "B/s", of="memory_bandwidth_bytes_per_s"),
        Column("memory", "Memory", "si", "B", of="memory_bytes"),
        Column("l2", "L2", "si", "B", of="l2_bytes"),
        Column("capability", "Compute capability",
               of=lambda g: ".".join(map(str, g.compute_capability or ())) or None),
    )  # fmt: skip
    return Table.of("GPUs, as the report describes them", run.gpus, columns)


def _ceilings(found: Machine, precision: str) -> Grid:
    """Every figure of the machine with its source."""
    shown = [*machine_rows(found)]
    columns = (
        Column("figure", "Ceiling", of=lambda r: f"{TITLES[r.section]}, {r.key}"),
        Column("shown", "Value", align="right", of=lambda r: si(r.figure.value, r.unit)),
        Column("source", "Source", of="figure.source"),
    )
    note = f"GEMMs of this run are held against: {precision}"
    table = Table.of(f"Ceilings of {found.name}: {found.basis}", shown, columns, [note])
    return grid(table, sort={"shown": [row.figure.value for row in shown]}, closed=True)
