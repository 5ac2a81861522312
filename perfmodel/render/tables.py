"""Tables of an analysis: one function per table, for the terminal, CSV files and data frames."""

from __future__ import annotations

from perfmodel.analysis.rates import amounts
from perfmodel.analysis.result import RunAnalysis
from perfmodel.base.table import Column, Table
from perfmodel.base.units import si
from perfmodel.render.run_tables import points, points_text, sweep, sweep_text
from perfmodel.render.skew_tables import SHOWN, shortened
from perfmodel.timing.collectives import NCCL

__all__ = [
    "collectives",
    "copies",
    "findings",
    "points",
    "points_text",
    "ranges",
    "ranges_text",
    "ranks",
    "ranks_text",
    "rates",
    "rates_text",
    "sweep",
    "sweep_text",
]


def ranges(run: RunAnalysis) -> Table:
    """Where a median batch goes: the tree of ranges on three clocks."""
    columns = (
        Column("range", "Range", wrap=False),
        Column("path", "Path"),
        Column("count", "Count", "int"),
        Column("host_s", "Host", "si", "s"),
        Column("gpu_projection_s", "GPU projection", "si", "s"),
        Column("gpu_busy_s", "GPU busy", "si", "s"),
        Column("share", "Share", "percent", digits=0),
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
    rows = [
        (
            r.label, "/".join(r.path), r.count, r.host_s, r.gpu_projection_s, r.gpu_busy_s, r.share,
            r.flops, r.pci_bytes, r.mpi_bytes, r.rate, r.rate_unit, r.of_ceiling, r.ceiling,
            r.measured_copy_bytes, r.measured_mpi_bytes, r.gpu_ops, r.peer_bytes,
        )
        for r in run.ranges
    ]  # fmt: skip
    top = min((len(r.path) for r in run.ranges), default=0)
    levels = [len(r.path) - top for r in run.ranges]
    plural = ["es" * (run.batch.count != 1), "s" * (len(run.ranks) != 1)]
    size = f"{run.batch.count} batch{plural[0]}, {len(run.ranks)} rank{plural[1]}"
    title = f"Where a median batch goes ({size})"
    return Table(title, columns, rows, levels=levels)


def ranges_text(run: RunAnalysis) -> Table:
    """The same tree with the columns a terminal has room for, each with its unit in the cell."""
    columns = (
        Column("range", "Range", wrap=False),
        Column("host_s", "Host", "si", "s"),
        Column("gpu_projection_s", "GPU proj", "si", "s"),
        Column("gpu_busy_s", "GPU busy", "si", "s"),
        Column("share", "Share", "percent", digits=0),
        Column("flops", "FLOPs", "si"),
        Column("bytes", "Bytes", "si", "B"),
        Column("measured", "Moved", "si", "B"),
        Column("rate", "Achieved", align="right"),
        Column("of_ceiling", "Ceiling", "percent", digits=0),
    )
    rows = []
    for r in run.ranges:
        formula = (r.pci_bytes or 0) + (r.mpi_bytes or 0) + (r.peer_bytes or 0)
        moved = (r.measured_copy_bytes or 0) + (r.measured_mpi_bytes or 0)
        rows.append(
            (
                r.label, r.host_s, r.gpu_projection_s, r.gpu_busy_s, r.share, r.flops or None,
                formula or None, moved or None, si(r.rate, r.rate_unit) if r.rate else None,
                r.of_ceiling,
            )
        )  # fmt: skip
    full = ranges(run)
    above = {r.path[:-1] for r in run.ranges}
    parents = [r for r in run.ranges if r.path in above]
    notes: tuple[str, ...] = (
        "FLOPs and bytes by the formulas, moved as recorded (copied, handed to MPI); achieved: "
        "products and copies by their GPU projection, the rest by host time",
    )
    if any(
        (r.gpu_projection_s or 0) > (r.host_s or 0) and r.rate_unit == "FLOP/s" for r in parents
    ):
        notes = (*notes, "ranges that the host only queues: by their GPU projection, too")
    if any(r.peer_bytes for r in run.ranges):
        notes = (
            *notes,
            "bytes from GPU to GPU leave no record in a report: by the formulas alone, and "
            "achieved by GPU projection",
        )
    return Table(full.title, columns, rows, notes, levels=full.levels)


def rates(run: RunAnalysis) -> Table:
    """Effective throughputs by the document's definition, with their bootstrap intervals."""
    columns = (
        Column("name", "Rate"),
        Column("value", "Value", "si", digits=4),
        Column("low", "95 % low", "si", digits=4),
        Column("high", "95 % high", "si", digits=4),
        Column("unit", "Unit"),
        Column("instances", "Instances", "int"),
        Column("clock", "Clock"),
        Column("ranges", "Over", wrap=False),
    )
    rows: list[tuple[object, ...]] = []
    for name, rate in run.rates.items():
        if rate is None:
            rows.append((name, None, None, None, None, None, None, None))
        else:
            over = ", ".join(rate.ranges)
            rows.append(
                (name, rate.value, rate.low, rate.high, rate.unit, rate.instances, rate.clock, over)
            )
    for label, _, rate in run.products:
        rows.append(
            (label, rate.value, rate.low, rate.high, rate.unit, rate.instances, rate.clock, label)
        )
    return Table("Effective throughputs", columns, rows)


def rates_text(run: RunAnalysis) -> Table:
    """The same for the terminal: value and interval in one unit, and the other clocks beside."""
    columns = (
        Column("name", "Rate"),
        Column("value", "Value", align="right"),
        Column("interval", "95 % interval"),
        Column("n", "n", "int"),
        Column("clock", "Clock"),
        Column("other", "On the other clocks"),
    )
    rows: list[tuple[object, ...]] = []
    for name, rate in run.rates.items():
        if rate is None and not amounts(run.totals).get(name):
            continue  # the run does none of it
        if rate is None:
            rows.append((name, None, None, None, None, None))
            continue
        others = (
            f"{clock.removeprefix('gpu_')} {si(other.value, other.unit)}"
            for clock, other in run.rates_by_clock[name].items()
            if other is not None and clock != rate.clock
        )
        interval = f"{si(rate.low, rate.unit)} to {si(rate.high, rate.unit)}"
        value = si(rate.value, rate.unit, 4)
        rows.append((name, value, interval, rate.instances, rate.clock, ", ".join(others)))
    for label, _, rate in run.products:
        interval = f"{si(rate.low, rate.unit)} to {si(rate.high, rate.unit)}"
        value = si(rate.value, rate.unit, 4)
        rows.append((f"  {label}", value, interval, rate.instances, rate.clock, None))
    return Table("Effective throughputs (work / median time)", columns, rows, _said_of_rates(run))


def _said_of_rates(run: RunAnalysis) -> tuple[str, ...]:
    notes = []
    if run.rates.get("P_peer") is not None:
        notes.append("P_peer: from GPU to GPU, over NVLink where there is one; it includes waiting")
    config = run.identity.config
    if run.rates.get("P_mpi") and (config.get("overlap") or config.get("transport") == "chunked"):
        notes.append(
            "P_mpi: the all-reduce goes on beside other work, and its range times what is left to "
            "wait for: copies or products, too"
        )
    return tuple(notes)


def copies(run: RunAnalysis) -> Table:
    """Copies per rank and batch by direction and memory kind."""
    columns = (
        Column("direction", "Copies"),
        Column("memory", "Host memory"),
        Column("count", "Per batch", "float", digits=1),
        Column("bytes", "Bytes", "si", "B"),
        Column("seconds", "On the engine", "si", "s"),
        Column("bytes_per_s", "Rate", "si", "B/s"),
        Column("largest_bytes", "Largest", "si", "B"),
    )
    rows = [
        (c.direction, c.memory, c.count, c.bytes, c.seconds, c.bytes_per_s, c.largest_bytes)
        for c in run.copies
    ]
    return Table("Copies per rank and batch", columns, rows)


def collectives(run: RunAnalysis) -> Table:
    """Collectives per rank and batch, split at the last rank's arrival."""
    columns = (
        Column("name", "Collective"),
        Column("bytes", "Size", "si", "B"),
        Column("count", "Per batch", "float", digits=1),
        Column("seconds", "Median", "si", "s"),
        Column("transfer_s", "Transfer", "si", "s"),
        Column("waiting_s", "Waiting", "si", "s"),
        Column("bus_bytes_per_s", "Bus bandwidth", "si", "B/s"),
    )
    rows = [
        (c.name, c.bytes, c.count, c.seconds, c.transfer_s, c.waiting_s, c.bus_bytes_per_s)
        for c in run.collectives
    ]
    names = {c.name for c in run.collectives}
    whose = "Collectives" if any(n.startswith(NCCL) for n in names) else "MPI collectives"
    notes = []
    if any(n.startswith(NCCL) for n in names):
        notes.append("NCCL's are kernels: their time is the GPU's")
    if any(n.startswith("MPI_I") for n in names):
        notes.append("MPI_I... returns at once: its time is the call's, not the transfer's")
    title = f"{whose} (transfer starts when the last rank arrives)"
    return Table(title, columns, rows, tuple(notes))


def ranks(run: RunAnalysis) -> Table:
    """Every rank's median batch and its time in collectives."""
    columns = (
        Column("rank", "Rank", "int"),
        Column("gpu", "GPU", "int"),
        Column("batches", "Batches", "int"),
        Column("batch_s", "Median batch", "si", "s", digits=4),
        Column("gpu_busy_s", "GPU busy", "si", "s"),
        Column("collectives_s", "In collectives", "si", "s"),
        Column("waiting_s", "of it waiting", "si", "s"),
    )
    rows = [
        (r.rank, r.gpu, r.batches, r.batch_s, r.gpu_busy_s, r.collectives_s, r.waiting_s)
        for r in run.ranks
    ]
    return Table("Ranks (medians over batches)", columns, rows)


def ranks_text(run: RunAnalysis) -> Table:
    """The same for the terminal: of many ranks the slowest."""
    whole = ranks(run)
    if len(whole.rows) <= SHOWN:
        return whole
    slowest = sorted(whole.rows, key=lambda row: -float(str(row[3] or 0.0)))[:SHOWN]
    title = "The slowest ranks (medians over batches)"
    return Table(title, whole.columns, slowest, shortened(len(whole.rows)))


def findings(run: RunAnalysis) -> Table:
    """Findings, largest saving first."""
    columns = (
        Column("saving_s", "Saves up to", "si", "s"),
        Column("share", "of batch", "percent", digits=0),
        Column("title", "Finding"),
        Column("evidence", "Evidence"),
        Column("action", "What to do"),
    )
    batch_s = run.batch.median.value
    rows = [
        (f.saving_s, f.saving_s / batch_s if f.saving_s is not None else None, f.title, f.evidence,
         f.action)
        for f in run.findings
    ]  # fmt: skip
    return Table("Findings (savings overlap; they do not add up)", columns, rows)
