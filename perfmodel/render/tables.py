"""Tables of an analysis: one function per table, for the terminal, CSV files and data frames."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from heapq import nlargest
from typing import TYPE_CHECKING, Final

from perfmodel.analysis.rates import Rate, amounts
from perfmodel.analysis.result import Analysis, RangeRow, RankRow, RunAnalysis
from perfmodel.analysis.rows import own_roof
from perfmodel.analysis.steps import StepBreakdown
from perfmodel.base.kernels import kernel
from perfmodel.base.table import Column, Table
from perfmodel.base.units import percent, si
from perfmodel.models.launches import MEDIAN_BATCHES
from perfmodel.timing.collectives import NCCL
from perfmodel.timing.critical_path import PATH_NAMES
from perfmodel.timing.host_timeline import CAUSE_NAMES
from perfmodel.timing.idle_causes import Gap
from perfmodel.timing.range_times import Path
from perfmodel.timing.samples import Estimate
from perfmodel.timing.skew import Skew
from perfmodel.timing.step_facts import IdleCause, KernelTime

if TYPE_CHECKING:
    from perfmodel.timing.timeline import Lane

SHOWN: Final = 10
"""Ranks that the terminal lists; files and JSON have them all."""
SHOWN_RANGES: Final = 80
_SHOWN_COLLECTIVES: Final = 20
"""Ranges that the terminal lists, as many as a figure has room for."""
ALL: Final = "with --out or --json"
"""Note on the rows that the terminal does not show."""

_LEAST_SHARE: Final = 0.01
"""Causes and kinds below this share of a step are left to the JSON."""

_RANGE: Final = Column("range", "Range", wrap=False, of="label")
_HOST: Final = Column("host_s", "Host", "si", "s")
_BUSY: Final = Column("gpu_busy_s", "GPU busy", "si", "s")
_SHARE: Final = Column("share", "Share", "percent", digits=0)

RANGES: Final = (
    _RANGE,
    Column("path", "Path", of=lambda r: "/".join(r.path)),
    Column("count", "Count", "int"),
    _HOST,
    Column("gpu_projection_s", "GPU projection", "si", "s"),
    _BUSY,
    _SHARE,
    Column("flops", "FLOPs", "si", "FLOP"),
    Column("pci_bytes", "PCIe", "si", "B"),
    Column("mpi_bytes", "MPI", "si", "B"),
    Column("rate", "Achieved", "si"),
    Column("rate_unit", "Rate unit"),
    Column("of_ceiling", "Of ceiling", "percent", digits=0),
    Column("ceiling", "Ceiling"),
    Column("measured_copy_bytes", "Copied", "si", "B"),
    Column("measured_mpi_bytes", "To MPI", "si", "B"),
    Column("gpu_ops", "GPU ops", "int"),
    Column("peer_bytes", "GPU to GPU", "si", "B"),
)

RANGES_TEXT: Final = (
    _RANGE,
    _HOST,
    Column("gpu_projection_s", "GPU proj", "si", "s"),
    _BUSY,
    _SHARE,
    Column("flops", "FLOPs", "si", of=lambda r: r.flops or None),
    Column("bytes", "Bytes", "si", "B",
           of=lambda r: _sum(r.pci_bytes, r.mpi_bytes, r.peer_bytes)),
    Column("measured", "Moved", "si", "B",
           of=lambda r: _sum(r.measured_copy_bytes, r.measured_mpi_bytes)),
    Column("rate", "Achieved", align="right",
           of=lambda r: si(r.rate, r.rate_unit) if r.rate else None),
    Column("of_ceiling", "Ceiling", "percent", digits=0),
)  # fmt: skip


def _sum(*amounts: float | None) -> float | None:
    return sum(amount or 0 for amount in amounts) or None


def ranges(run: RunAnalysis) -> Table:
    """Return the tree of ranges in a median step, on three clocks."""
    return _tree(run, run.ranges, RANGES)


def ranges_text(run: RunAnalysis, most: int = SHOWN_RANGES) -> Table:
    """The tree of the longest ranges with the columns a terminal has room for."""
    shown = longest(run.ranges, most)
    some = [Column("occurs", "In steps")] if any(r.occurs for r in shown) else []
    known = {"range", "host_s", "gpu_projection_s", "gpu_busy_s", "share", "measured"}
    rest = [c for c in RANGES_TEXT[1:] if run.workload.ranges or c.key in known]
    notes = _range_notes(run, shown)
    if len(shown) < len(run.ranges):
        left = len(run.ranges) - len(shown)
        notes.append(
            f"the {len(shown)} longest ranges; {left:,} more rows are left out: "
            f"perfmodel analyze --out or --json has all"
        )
    return _tree(run, shown, (RANGES_TEXT[0], *some, *rest), notes)


def longest(rows: Sequence[RangeRow], most: int) -> Sequence[RangeRow]:
    """Return the ranges that take most time, with those around them, in their order.

    At most `most` of them; a range for which, with those around it, no room is left is not shown.
    """
    if len(rows) <= most:
        return rows
    top, shown = min(len(row.path) for row in rows), set[Path]()
    for row in nlargest(most, rows, lambda r: max(r.host_s or 0.0, r.gpu_busy_s or 0.0)):
        both = shown.union(row.path[:depth] for depth in range(top, len(row.path) + 1))
        shown = both if len(both) <= most else shown
    return [row for row in rows if row.path in shown]


def _tree(
    run: RunAnalysis, rows: Sequence[RangeRow], columns: Sequence[Column], notes: Sequence[str] = ()
) -> Table:
    top = min((len(r.path) for r in rows), default=0)
    plural = ["s" * (run.batch.count != 1), "s" * (len(run.ranks) != 1)]
    size = f"{run.batch.count} step{plural[0]}, {len(run.ranks)} rank{plural[1]}"
    title = f"Time per range, median step ({size})"
    return Table.of(title, rows, columns, notes, [len(r.path) - top for r in rows])


def _range_notes(run: RunAnalysis, found: Sequence[RangeRow]) -> list[str]:
    notes = (
        []
        if not run.workload.ranges
        else [
            "FLOPs and bytes: by formula. Moved: recorded bytes (copied, handed to MPI). Achieved: "
            "GEMMs and copies over GPU-projected time, the rest over host time"
        ]
    )
    above = {r.path[:-1] for r in found}
    if any(
        (r.gpu_projection_s or 0) > (r.host_s or 0) and r.rate_unit == "FLOP/s"
        for r in found if r.path in above
    ):  # fmt: skip
        notes.append("ranges that the host only queues: over GPU-projected time, too")
    if any(r.peer_bytes for r in found):
        notes.append(
            "bytes from GPU to GPU leave no record in a report: by formula, over GPU-projected time"
        )
    return notes


def rates(run: RunAnalysis) -> Table:
    """Effective throughputs by the assignment's definition, with their two intervals."""
    columns = (
        Column("name", "Rate"),
        Column("value", "Value", "si", digits=4),
        Column("low", "95 % low, this run", "si", digits=4),
        Column("high", "95 % high, this run", "si", digits=4),
        Column("launch_low", "95 % low, rerun", "si", digits=4),
        Column("launch_high", "95 % high, rerun", "si", digits=4),
        Column("launches", "Launches", "int"),
        Column("unit", "Unit"),
        Column("instances", "Instances", "int"),
        Column("clock", "Clock"),
        Column("ranges", "Over", wrap=False),
    )
    named = [(name, rate, ", ".join(rate.ranges) if rate else None)
             for name, rate in run.rates.items()]  # fmt: skip
    rows = [
        (name, *(getattr(rate, c.key, None) for c in columns[1:-1]), over)
        for name, rate, over in (*named, *((label, rate, label) for label, _, rate in run.products))
    ]
    return Table("Effective throughputs", columns, rows)


def rates_text(run: RunAnalysis) -> Table:
    """The same for the terminal: value and interval in one unit, and the other clocks beside."""
    done = amounts(run.totals)
    named = [
        (name, rate, other_clocks(run, name, rate))
        for name, rate in run.rates.items()
        if rate is not None or done.get(name)  # else the run does none of it
    ] + [(f"  {label}", rate, None) for label, _, rate in run.products]
    columns = (
        Column("name", "Rate", of=lambda at: at[0]),
        Column("value", "Value", align="right",
               of=lambda at: at[1] and si(at[1].value, at[1].unit, 4)),
        Column("interval", "95 %, this run", of=lambda at: at[1] and interval(at[1])),
        Column("another", "95 %, rerun", of=lambda at: at[1] and another(at[1])),
        Column("n", "n", "int", of=lambda at: at[1] and at[1].instances),
        Column("clock", "Clock", of=lambda at: at[1] and at[1].clock),
        Column("other", "On the other clocks", of=lambda at: at[1] and at[2]),
    )  # fmt: skip
    title = "Effective throughputs (work / median time)"
    return Table.of(title, named, columns, rate_notes(run))


RECORD_THREE: Final = "record three runs"
"""Note where one run is no evidence of the difference between runs."""


def interval(rate: Rate) -> str:
    """The interval of a rate for this launch's batches, for a reader."""
    return _between(rate.low, rate.high, rate.unit)


def another(found: Rate | Estimate) -> str:
    """Return the interval of a rerun; without evidence, how to get some."""
    if found.launch_low is None or found.launch_high is None:
        return RECORD_THREE
    unit = found.unit if isinstance(found, Rate) else "s"
    return _between(found.launch_low, found.launch_high, unit)


def _between(low: float, high: float, unit: str, digits: int = 3) -> str:
    """Two limits, with their unit once where it is the same."""
    first, last = si(low, unit, digits), si(high, unit, digits)
    value, _, prefixed = first.partition(" ")
    return f"{value if last.endswith(f' {prefixed}') else first} to {last}"


def interval_of_step(run: RunAnalysis) -> str:
    """Return the 95 % interval of this run's median step; of too few steps, that they are."""
    if run.batch.count < MEDIAN_BATCHES:
        return "too few for an interval"
    return _between(run.batch.median.low, run.batch.median.high, "s", 4)


def other_clocks(run: RunAnalysis, name: str, rate: Rate | None) -> str:
    """Say what a rate is on the clocks that it was not fitted on."""
    return ", ".join(
        f"{clock.removeprefix('gpu_')} {si(other.value, other.unit)}"
        for clock, other in run.rates_by_clock[name].items()
        if rate is not None and other is not None and clock != rate.clock
    )


def rate_notes(run: RunAnalysis) -> tuple[str, ...]:
    """Say what the links' rates include."""
    notes = []
    if run.rates.get("P_peer") is not None:
        notes.append("P_peer: from GPU to GPU, over NVLink where there is one; it includes waiting")
    if run.rates.get("P_mpi") and run.identity.overlaps:
        notes.append(
            "P_mpi: the all-reduce overlaps other work, and its range times the wait that is left: "
            "copies or GEMMs, too"
        )
    return tuple(notes)


PARTS: Final = (
    Column("rank", "Rank", "int"),
    Column("gpu", "GPU", "int"),
    Column("batches", "Steps", "int"),
    Column("step_s", "Step", "si", "s", digits=4),
    Column("compute_s", "Compute", "si", "s"),
    Column("copies_s", "Copies", "si", "s"),
    Column("communication_s", "Communication", "si", "s"),
    Column("waiting_s", "Waiting", "si", "s"),
    Column("idle_s", "Idle", "si", "s", of=lambda r: r.idle_s if r.gpu is not None else None),
    _BUSY,
    Column("collectives_s", "In collectives", "si", "s"),
)


def step_parts(run: RunAnalysis) -> Table:
    """Return the parts of a step on every rank; of many ranks the slowest."""
    note = (
        "a step is computing, copies beside it, communication beside neither, waiting there until "
        "the last rank, or the other end of a message, is there, and idle time; in collectives: "
        "all communication, hidden or not"
    )
    notes = [note] if any(rank.collectives_s for rank in run.ranks) else []
    title = "Parts of the median step"
    return Table.of(title, _slowest(run), PARTS, notes).first(SHOWN, ALL)


def _slowest(run: RunAnalysis) -> Sequence[RankRow]:
    """Return the ranks; where there are many, the slowest first."""
    many = len(run.ranks) > SHOWN
    return sorted(run.ranks, key=lambda rank: -(rank.step_s or 0.0)) if many else run.ranks


CATEGORIES: Final = (
    Column("category", "Kernels"),
    Column("seconds", "Per step", "si", "s"),
    Column("share", "Share of busy", "percent", digits=1),
    Column("kernel_s", "Kernel time", "si", "s"),
    Column("count", "Launches", "float", digits=1),
)


def categories(run: RunAnalysis) -> Table:
    """Return GPU time by kernel category."""
    found = run.steps.categories if run.steps else ()
    notes = ["where operations overlap the time counts once, for computing before communication"]
    overlap = any(c.kernel_s > 1.01 * c.seconds for c in found)
    title = "GPU time by kernel category (mean over ranks)"
    return Table.of(title, found, CATEGORIES, notes if overlap else [])


LEVELS: Final = (
    Column("level", "Level", of=lambda row: row.level.replace("_", "-")),
    Column("name", "Name", wrap=False, of=lambda row: _short(row.name)),
    Column("count", "Count", "int"),
    Column("per_parent", "Per parent", "float", digits=1),
    Column("parent", "Parent", of=lambda row: (row.parent or "").replace("_", "-")),
    Column("median_s", "Median", "si", "s"),
    Column("gpu_share", "Of GPU time", "percent", digits=0),
    Column("source", "Source"),
)
CANDIDATES: Final = (
    Column("score", "Probability", "percent", digits=1),
    Column("name", "Step", wrap=False, of=lambda row: _short(row.name, 40)),
    Column("count", "Count", "int"),
    Column("median_s", "Median", "si", "s", of=lambda row: row.median_s or None),
    Column("source", "Source"),
    Column("reason", "Reason"),
)
LAYERS: Final = (
    Column("name", "Layer"),
    Column("number", "Number", "int"),
    Column("seconds", "GPU time", "si", "s"),
    Column("ratio", "To median", "float", digits=2),
    Column("differs", "Differs", of=lambda row: "yes" if row.differs else ""),
)


def levels(run: RunAnalysis) -> Table:
    """The steps, and the levels around and inside them."""
    found = run.steps.levels if run.steps else ()
    return Table.of("Levels (medians on the host's clock)", found, LEVELS)


def layers(run: RunAnalysis) -> Table:
    """The layers one by one."""
    return Table.of("Layers (medians over steps)", run.steps.layers if run.steps else (), LAYERS)


def candidates(run: RunAnalysis) -> Table:
    """Return the candidates for the step, the likeliest first."""
    found = run.steps.candidates if run.steps else ()
    decide = "a range around each step, or --batch-range NAME, decides"
    return Table.of("Candidates for the step", found, CANDIDATES, [decide] if found else [])


KERNELS: Final = (
    Column("name", "Largest kernels", wrap=False, of=lambda k: _short(kernel(k.name).short)),
    Column("category", "Category"),
    Column("count", "Launches", "float", digits=1),
    Column("median_s", "Median", "si", "s"),
    Column("share", "Share", "percent", digits=1),
)

KERNEL_PLACES: Final = (
    Column("line", "Line", of=lambda k: _last(k.line)),
    Column("module", "Module", of=lambda k: _last(k.module)),
)
"""Columns of the lines of code that launch most of the GPU time."""


def kernels(run: RunAnalysis, found: Sequence[KernelTime] | None = None) -> Table:
    """The kernels with most GPU time; others than the report's own if given."""
    if found is None:
        found = run.steps.kernels if run.steps else ()
    some = [c for c in KERNEL_PLACES if any(getattr(k, c.key) for k in found)]
    return Table.of("Largest kernels (per step and rank)", found, (*KERNELS, *some))


def _last(name: str | None, most: int = 40) -> str | None:
    """The end of a line of code or of a module's path, as far as a terminal has room."""
    return name if name is None or len(name) <= most else f"…{name[1 - most :]}"


def _short(name: str, most: int = 60) -> str:
    """A kernel's name without return type, as far as a terminal has room."""
    name = name.removeprefix("void ")
    return name if len(name) <= most else f"{name[: most - 1]}…"


IDLE: Final = (
    Column("rank", "Rank", "int"),
    Column("cause", "Cause of idle time", names=CAUSE_NAMES),
    Column("seconds", "Per step", "si", "s"),
    Column("share", "Of idle time", "percent", digits=0),
)
GAPS: Final = (
    Column("rank", "Rank", "int", of=lambda pair: pair[0].rank),
    Column("cause", "Cause of idle time", of=lambda pair: pair[0].cause, names=CAUSE_NAMES),
    Column("seconds", "Gap", "si", "s", of=lambda pair: pair[1].seconds),
    Column("step", "Step", "int", of=lambda pair: pair[1].step),
    Column("in_step_s", "Into the step", "si", "s", of=lambda pair: pair[1].in_step_s, digits=4),
    Column("start_s", "In the report", "si", "s", of=lambda pair: pair[1].start_s, digits=6),
    Column("call", "Call", of=lambda pair: pair[1].call),
    Column("range", "Range", of=lambda pair: pair[1].range),
)
_GAP_LINE: Final = Column("line", "Line", of=lambda pair: pair[1].line)
_MOST_IDLE: Final = 4
"""Of more ranks, tables show those that idle most."""

CRITICAL_PATH: Final = (
    Column("kind", "Work", names=PATH_NAMES),
    Column("seconds", "Per step", "si", "s"),
    Column("share", "Share", "percent", digits=0),
    Column("free_s", "If free", "si", "s"),
)


def idle(run: RunAnalysis) -> Table:
    """Idle time by rank and cause."""
    return Table.of("Why the GPU idles", run.steps.facts.idle if run.steps else (), IDLE)


def gaps(run: RunAnalysis) -> Table:
    """The longest gaps of every rank and cause, with what the host did."""
    return _gaps(run.steps.facts.idle if run.steps else ())


def gaps_text(ranks: Sequence[RankRow], idle: Sequence[IdleCause]) -> Table:
    """The longest gaps of the causes that are worth a row."""
    return _gaps(*idlest(ranks, idle))


def _gaps(causes: Sequence[IdleCause], notes: Sequence[str] = ()) -> Table:
    pairs = [(cause, gap) for cause in causes for gap in cause.gaps]
    lines = [_GAP_LINE] if any(gap.line for _, gap in pairs) else []
    return Table.of("Longest gaps of each cause", pairs, (*GAPS, *lines), notes)


def idle_text(run: RunAnalysis) -> Table:
    """Idle time by rank and cause, with the longest gap of each."""
    rows, notes = idlest(run.ranks, run.steps.facts.idle if run.steps else ())
    columns = (*IDLE, Column("longest", "Longest gap", of=lambda c: gap_text(c.gaps[0])))
    if recorder := run.summary.recorder:
        notes.append(f"idle time is that without {recorder}, gaps are as recorded")
    return Table.of("Why the GPU idles (median step)", rows, columns, notes)


def idlest(
    ranks: Sequence[RankRow], idle: Sequence[IdleCause]
) -> tuple[list[IdleCause], list[str]]:
    """Causes worth a row, of the ranks that idle most, and a note on what is left out."""
    order = sorted(ranks, key=lambda r: -(r.idle_s or 0.0))
    shown = {r.rank for r in order[:_MOST_IDLE]}
    step_s = max((r.step_s or 0.0 for r in ranks), default=0.0)
    rows = [c for c in idle
            if c.rank in shown and c.seconds >= _LEAST_SHARE * step_s]  # fmt: skip
    if len(order) <= _MOST_IDLE:
        return rows, []
    least = f"{percent(_LEAST_SHARE)} of a step or more"
    return rows, [f"causes of {least}, of the {_MOST_IDLE} ranks of {len(order)} that idle most"]


def path_text(steps: StepBreakdown) -> Table:
    """Return the parts of the chain that decides a step."""
    rows = [p for p in steps.facts.path if p.share >= _LEAST_SHARE]
    notes = ["If free: the step when this kind of work takes no time, by a replay"]
    return Table.of("Critical path of the median step", rows, CRITICAL_PATH, notes)


def gap_text(gap: Gap) -> str:
    """Describe a gap: its length, its place on a timeline, and the host's activity."""
    where = f" in {gap.range}" if gap.range else ""
    when = f"{si(gap.in_step_s, 's', 4)} into step {gap.step}"
    line = f" at {gap.line}" if gap.line else ""
    return f"{si(gap.seconds, 's')}, {when}: {gap.call}{where}{line}"


COPIES: Final = (
    Column("direction", "Copies"),
    Column("memory", "Host memory"),
    Column("count", "Per step", "float", digits=1),
    Column("bytes", "Bytes", "si", "B"),
    Column("seconds", "On the engine", "si", "s"),
    Column("bytes_per_s", "Rate", "si", "B/s"),
    Column("largest_bytes", "Largest", "si", "B"),
)


def copies(run: RunAnalysis) -> Table:
    """Copies per rank and batch by direction and memory kind."""
    return Table.of("Copies per rank and step", run.copies, COPIES)


COLLECTIVES: Final = (
    Column("name", "Collective"),
    Column("bytes", "Size", "si", "B"),
    Column("count", "Per step", "float", digits=1),
    Column("seconds", "Median", "si", "s"),
    Column("transfer_s", "Transfer", "si", "s"),
    Column("waiting_s", "Waiting", "si", "s"),
    Column("bus_bytes_per_s", "Bus bandwidth", "si", "B/s"),
)


def collectives(run: RunAnalysis) -> Table:
    """Collectives per rank and batch, split at the last rank's arrival."""
    nccl = any(c.name.startswith(NCCL) for c in run.collectives)
    notes = ["NCCL's are kernels: their time is the GPU's"] if nccl else []
    if any(c.library == "nccl" and c.bytes is None for c in run.collectives):
        notes.append("sizes: export with nsys export --include-json true --include-blobs true")
    begun = [c for c in run.collectives if c.name.startswith("MPI_I")]
    if any(c.waiting_s is not None for c in begun):
        notes.append("MPI_I...: the time of the call and of the one that waits for it")
    elif begun:
        notes.append("MPI_I... returns at once: its time is the call's, not the transfer's")
    what = "Collectives" if nccl else "MPI collectives"
    title = f"{what} (transfer starts when the last rank arrives)"
    return Table.of(title, run.collectives, COLLECTIVES, notes)


def collectives_text(run: RunAnalysis) -> Table:
    """The collectives with most time: there may be as many sizes as calls."""
    return _shortened(collectives(run))


def _shortened(table: Table) -> Table:
    left = len(table.rows) - _SHOWN_COLLECTIVES
    if left <= 0:
        return table
    note = (
        f"the {_SHOWN_COLLECTIVES} sizes with most time; {left:,} more rows are left out: "
        f"perfmodel analyze --out or --json has all"
    )
    return replace(table, rows=table.rows[:_SHOWN_COLLECTIVES], notes=(*table.notes, note))


RANKS: Final = (
    Column("rank", "Rank", "int"),
    Column("gpu", "GPU", "int"),
    Column("batches", "Steps", "int"),
    Column("step_s", "Median step", "si", "s", digits=4),
    Column("recorded_step_s", "Recorded", "si", "s", digits=4),
    Column("gpu_busy_s", "GPU busy", "si", "s"),
    Column("collectives_s", "In collectives", "si", "s"),
    Column("waiting_s", "of it waiting", "si", "s"),
)


RANKS_ALL: Final = (*RANKS, *(c for c in PARTS if c.key not in {r.key for r in RANKS}))


def ranks(run: RunAnalysis) -> Table:
    """Every rank's median batch, what it consists of, and its time in collectives."""
    return Table.of("Ranks (medians over steps)", run.ranks, RANKS_ALL)


def ranks_text(run: RunAnalysis) -> Table:
    """The same for the terminal: of many ranks the slowest."""
    which = "Ranks" if len(run.ranks) <= SHOWN else "The slowest ranks"
    return Table.of(f"{which} (medians over steps)", _slowest(run), RANKS).first(SHOWN, ALL)


def outliers(run: RunAnalysis) -> Table:
    """Hosts, GPUs and ranks that are slower than their likes; the slowest first."""
    columns = (
        Column("kind", "Kind", of=lambda one: "GPU, all hosts" if one.kind == "GPU" else one.kind),
        Column("name", "Name"),
        Column("measure", "Slower in"),
        Column("seconds", "Per step", "si", "s"),
        Column("usual_s", "The others", "si", "s"),
        Column("excess", "Slower by", "more"),
        Column("host", "Host", of=lambda one: run.hosts.get(one.ranks[0])),
        Column("ranks", "Ranks", of=lambda one: _listed(one.ranks)),
    )
    shown = [c for c in columns if run.hosts or c.key != "host"]
    note = "own time: the step without its waiting for other ranks"
    return Table.of("Slower than the others (medians over steps)", run.outliers, shown, [note])


def _listed(ranks: Sequence[int]) -> str:
    """Ranks as a text, of many the first."""
    more = f", ... ({len(ranks)} in all)" if len(ranks) > SHOWN else ""
    return ", ".join(map(str, ranks[:SHOWN])) + more


def findings(run: RunAnalysis) -> Table:
    """Findings, largest saving first."""
    columns: tuple[Column, ...] = (
        Column("saving_s", "Saves up to", "si", "s"),
        Column("share", "of step", "percent", digits=0),
        Column("title", "Finding"),
        Column("evidence", "Evidence"),
        Column("action", "What to do"),
        Column("kind", "Kind"),
    )  # fmt: skip
    if any(f.line for f in run.findings):
        columns = (*columns, Column("line", "Line"), Column("range", "Range"))
    return Table.of("Findings (savings overlap; they do not add up)", run.findings, columns)


COLLECTIVE_SKEW: Final = (
    Column("name", "Collective"),
    Column("bytes", "Size", "si", "B"),
    Column("count", "Count", "int"),
    Column("p50_s", "Skew p50", "si", "s"),
    Column("p95_s", "p95", "si", "s"),
    Column("max_s", "Largest", "si", "s"),
    Column("last_rank", "Mostly last", "int"),
    Column("last_share", "in", "percent", digits=0),
)


def collective_skew_text(run: RunAnalysis) -> Table:
    """The collectives with most skew."""
    return _shortened(collective_skew(run))


def collective_skew(run: RunAnalysis) -> Table:
    """Collectives by name and size: from the first rank's arrival to the last one's."""
    found = run.skew.collectives if run.skew else ()
    return Table.of("Skew of collectives (first to last rank's arrival)", found, COLLECTIVE_SKEW)


STRAGGLERS: Final = (
    Column("rank", "Rank", "int"),
    Column("last", "Last in", "int"),
    Column("last_share", "of all", "percent", digits=0),
    Column("p50_s", "Late by p50", "si", "s"),
    Column("p95_s", "p95", "si", "s"),
    Column("max_s", "Largest", "si", "s"),
    Column("per_batch_s", "Per step", "si", "s"),
    Column("busy_s", "Step without waiting", "si", "s"),
)


def stragglers(run: RunAnalysis) -> Table:
    """Ranks by what their coming last costs, with how often and how late."""
    return Table.of("Last ranks in collectives", run.skew.ranks if run.skew else (), STRAGGLERS)


LATE_RANKS: Final = (
    Column("rank", "Rank", "int"),
    Column("caused_s", "Makes others wait", "si", "s"),
    Column("most_s", "one of them", "si", "s"),
    Column("waiting_s", "Waits", "si", "s"),
    Column("share_last", "Last in", "percent", digits=0),
    Column("late_s", "Late per step", "si", "s"),
    Column("latest", "Latest in steps", "int"),
    Column("steps", "of", "int"),
    Column("probability", "Not by chance", "percent", digits=0),
    Column("persistent", "Sure", of=lambda late: "yes" if late.persistent else "no"),
    Column("doing", "Excess time in"),
)


def late_ranks(run: RunAnalysis) -> Table:
    """Ranks by the waiting of the others that leads back to them, the longest first."""
    notes = [
        "makes others wait: waiting of all others that leads back to the rank, hidden or not, as "
        "recorded, in the mean of the steps; last in: of the collectives",
    ]
    if run.late and not run.late[0].enough:
        steps = run.late[0].steps
        notes.append(f"{steps} step{'s' * (steps != 1)} cannot tell a late rank: record more")
    if run.skew is not None:
        notes += _skew_notes(run.skew, len(run.traces))
    return Table.of("Late ranks", run.late, LATE_RANKS, notes)


def late_ranks_text(run: RunAnalysis) -> Table:
    """The same for the terminal: of many ranks those that make others wait."""
    table = late_ranks(run).without("late_s", "persistent")
    named = any(late.doing for late in run.late)
    return (table if named else table.without("doing")).first(SHOWN, ALL)


ARRIVALS: Final = (
    Column("step", "Step", "int"),
    Column("name", "Collective"),
    Column("bytes", "Size", "si", "B"),
    Column("rank", "Last rank", "int"),
    Column("late_s", "Late by", "si", "s"),
)


def last_arrivals(run: RunAnalysis) -> Table:
    """The last rank of every collective of NCCL and step."""
    found = run.steps.facts.arrivals if run.steps else ()
    return Table.of("Last rank by collective and step", found, ARRIVALS)


def _skew_notes(skew: Skew, reports: int) -> Iterator[str]:
    if skew.imbalance is not None and skew.imbalance_s is not None:
        yield (
            f"imbalance: without waiting the slowest rank takes {si(skew.imbalance_s, 's')} longer "
            f"than the mean, {percent(skew.imbalance, 1)} (0 %: equal ranks, 100 %: one does "
            f"everything)"
        )
    if reports > 1 and skew.clock_bound_s > 0:
        yield f"the reports' clocks are known to {si(skew.clock_bound_s, 's')} either way"


POINTS: Final = (
    Column("run", "Run"),
    Column("kind", "Timed"),
    Column("intensity_flops_per_byte", "Intensity", "si", "FLOP/B", digits=4),
    Column("flops_per_s", "Measured", "si", "FLOP/s"),
    Column("roof_flops_per_s", "Smooth roof", "si", "FLOP/s"),
    Column("of_roof", "Of roof", "percent", digits=0),
    Column("predicted_s", "Model", "si", "s", digits=4),
    Column("measured_s", "Measured time", "si", "s", digits=4),
    Column("model_error", "Model's error", "percent", digits=0),
)


def points(analysis: Analysis) -> Table:
    """The measured points with the roof above them and the smooth roofline model beside them."""
    rows: list[tuple[object, ...]] = []
    for run in analysis.runs:
        own = own_roof(analysis.fitted, run)
        checks = {c.label: c for c in run.model}
        for p in run.points:
            roof = float(own.smooth(p.intensity_flops_per_byte)) if own else None
            check = checks.get(p.kind)
            rows.append((
                run.label, p.kind, p.intensity_flops_per_byte, p.flops_per_s, roof,
                p.flops_per_s / roof if roof else None, check and check.predicted_s,
                check and check.measured_s, check and check.relative_error,
            ))  # fmt: skip
    if analysis.fitted.roofline is None:
        return Table("Measured points (no throughputs to make a roof of)", POINTS, rows)
    notes = ["model: F / P_flops + bytes / P of the links, with every run's own rates"]
    if any(row[4] is None for row in rows):
        notes.insert(
            0,
            f"no roof: the run moves bytes over other links than {analysis.fitted.label}, or "
            f"multiplies with other math: the drawn roof is not over its points, and pictures "
            f"leave them out",
        )
    return Table(f"Roofline fitted on {analysis.fitted.label}", POINTS, rows, tuple(notes))


def points_text(analysis: Analysis) -> Table:
    """The same for the terminal: short names of runs, and no column of them where there is one."""
    table = points(analysis)
    if len(analysis.runs) == 1:
        return table.without("run")
    labels = [run.label for run in analysis.runs]
    short = dict(zip(labels, _distinct_parts(labels), strict=True))
    return replace(table, rows=[(short[str(row[0])], *row[1:]) for row in table.rows])


def sweep(analysis: Analysis) -> Table:
    """All runs side by side: symbols, intensity, batch time, rates."""
    symbols = list(dict.fromkeys(s for run in analysis.runs for s in run.workload.symbols))
    peer = any("P_peer" in run.rates for run in analysis.runs)
    units = {"P_flops": "FLOP/s", "P_pci": "B/s", "P_mpi": "B/s"} | (
        {"P_peer": "B/s"} if peer else {}
    )
    keys = {"FLOP/s": "flops_per_s", "B/s": "bytes_per_s"}
    columns = (
        Column("run", "Run"),
        *(Column(s, s, "int") for s in symbols),
        Column("batch_s", "Step", "si", "s", digits=4),
        Column("intensity_flops_per_byte", "Intensity", "si", "FLOP/B", digits=4),
        Column("flops_per_s", "Achieved", "si", "FLOP/s"),
        *(Column(f"{name}_{keys[unit]}", name, "si", unit) for name, unit in units.items()),
    )
    rows = []
    for run in analysis.runs:
        point = run.points[0] if run.points else None
        rows.append((
            run.label, *(run.identity.values.get(s) for s in symbols), run.batch.median.value,
            point and point.intensity_flops_per_byte, point and point.flops_per_s,
            *(rate.value if (rate := run.rates.get(name)) else None for name in units),
        ))  # fmt: skip
    return Table("Runs", columns, rows)


def sweep_text(analysis: Analysis) -> Table:
    """The same for the terminal: symbols that are equal in all runs move into the title.

    Columns that no run has a value for, such as rates without formulas, are left out.
    """
    table = sweep(analysis)
    empty = [
        c.key for c, *values in zip(table.columns, *table.rows, strict=True) if not any(values)
    ]
    table = table.without(*empty)
    same = {
        column.key: values[0]
        for column, *values in zip(table.columns, *table.rows, strict=True)
        if len(column.key) == 1 and len(values) > 1 and len(set(values)) == 1
    }
    names = _distinct_parts([str(row[0]) for row in table.rows])
    rows = [[name, *row[1:]] for name, row in zip(names, table.rows, strict=True)]
    title = f"{table.title}  {'  '.join(f'{key}={value}' for key, value in same.items())}"
    return replace(table, title=title, rows=rows).without(*same)


def _distinct_parts(labels: list[str]) -> list[str]:
    """The words in which labels differ, without those that all begin and end with."""
    words = [label.split("_") for label in labels]
    if len(words) < 2 or len(set(labels)) < len(labels):
        return labels
    shortest = min(map(len, words))
    first = next((i for i in range(shortest) if len({w[i] for w in words}) > 1), shortest - 1)
    last = next((i for i in range(shortest - first) if len({w[-1 - i] for w in words}) > 1), 0)
    return ["_".join(w[first : len(w) - last]) for w in words]


LANES: Final = (
    Column("rank", "Rank", "int"),
    Column("lane", "Lane", wrap=False, of="name"),
    Column("bars", "Bars", "int", of=lambda lane: len(lane.bars)),
    Column("seconds", "Busy", "si", "s",
           of=lambda lane: sum(bar.end_ns - bar.start_ns for bar in lane.bars) / 1e9),
)  # fmt: skip


def lanes(found: Sequence[Lane], title: str) -> Table:
    """The lanes of a timeline, for the terminal."""
    count = sum(len(lane.bars) for lane in found)
    note = f"{count} bars in {len(found)} lanes; each: --format csv; a picture: -o FILE.png"
    return Table.of(title, found, LANES, [note])


def bars(found: Sequence[Lane], title: str, start_ns: int | None) -> Table:
    """Every bar of a timeline; times count from `start_ns`, or from the first bar."""
    first = min((bar.start_ns for lane in found for bar in lane.bars), default=0)
    zero = first if start_ns is None else start_ns
    columns = (
        Column("rank", "Rank", "int", of=lambda at: at[0].rank),
        Column("lane", "Lane", of=lambda at: at[0].name),
        Column("kind", "Kind", of=lambda at: at[1].kind),
        Column("name", "Name", of=lambda at: at[1].name),
        Column("start_s", "Start", "si", "s", of=lambda at: (at[1].start_ns - zero) / 1e9),
        Column("duration_s", "Takes", "si", "s",
               of=lambda at: (at[1].end_ns - at[1].start_ns) / 1e9),
        Column("bytes", "Bytes", "si", "B", of=lambda at: at[1].size_bytes),
        Column("stream", "Stream", "int", of=lambda at: at[1].stream),
        Column("device", "Device", "int", of=lambda at: at[1].device),
    )  # fmt: skip
    return Table.of(title, [(lane, bar) for lane in found for bar in lane.bars], columns)
