"""Tables of an analysis: one function per table, for the terminal, CSV files and data frames."""

from __future__ import annotations

from perfmodel.analysis import Analysis, RunAnalysis
from perfmodel.table import Column, Table
from perfmodel.units import si


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
    )
    rows = [
        (
            r.label, "/".join(r.path), r.count, r.host_s, r.gpu_projection_s, r.gpu_busy_s, r.share,
            r.flops, r.pci_bytes, r.mpi_bytes, r.rate, r.rate_unit, r.of_ceiling, r.ceiling,
            r.measured_copy_bytes, r.measured_mpi_bytes, r.gpu_ops,
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
        formula = (r.pci_bytes or 0) + (r.mpi_bytes or 0)
        moved = (r.measured_copy_bytes or 0) + (r.measured_mpi_bytes or 0)
        rows.append(
            (
                r.label, r.host_s, r.gpu_projection_s, r.gpu_busy_s, r.share, r.flops or None,
                formula or None, moved or None, si(r.rate, r.rate_unit) if r.rate else None,
                r.of_ceiling,
            )
        )  # fmt: skip
    full = ranges(run)
    notes = (
        "FLOPs and bytes by the formulas, moved as recorded (copied, handed to MPI); achieved: "
        "products and copies by their GPU projection, the rest by host time",
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
    return Table("Effective throughputs (work / median time)", columns, rows)


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
    return Table("MPI collectives (transfer starts when the last rank arrives)", columns, rows)


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


def points(analysis: Analysis) -> Table:
    """The measured points with the roof above them and the document's model beside them."""
    columns = (
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
    roof = analysis.fitted.roofline
    rows = []
    for run in analysis.runs:
        checks = {c.label: c for c in run.model}
        for p in run.points:
            check = checks.get(p.kind)
            own = roof.for_shares(run.roofline.shares if run.roofline else {}) if roof else None
            height = float(own.smooth(p.intensity_flops_per_byte)) if own else None
            rows.append(
                (
                    run.label, p.kind, p.intensity_flops_per_byte, p.flops_per_s, height,
                    p.flops_per_s / height if height else None,
                    check.predicted_s if check else None,
                    check.measured_s if check else None,
                    check.relative_error if check else None,
                )
            )  # fmt: skip
    notes = ("model: F / P_flops + bytes / P of the links, with every run's own rates",)
    return Table(f"Roofline fitted on {analysis.fitted.label}", columns, rows, notes)


def points_text(analysis: Analysis) -> Table:
    """The same for the terminal: no column for the run where there is only one."""
    table = points(analysis)
    if len(analysis.runs) > 1:
        return table
    return Table(table.title, table.columns[1:], [row[1:] for row in table.rows], table.notes)


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


def sweep(analysis: Analysis) -> Table:
    """All runs side by side: symbols, intensity, batch time, rates."""
    symbols = list(dict.fromkeys(s for run in analysis.runs for s in run.workload.symbols))
    columns = (
        Column("run", "Run"),
        *(Column(s, s, "int") for s in symbols),
        Column("batch_s", "Batch", "si", "s", digits=4),
        Column("intensity_flops_per_byte", "Intensity", "si", "FLOP/B", digits=4),
        Column("flops_per_s", "Achieved", "si", "FLOP/s"),
        Column("P_flops_flops_per_s", "P_flops", "si", "FLOP/s"),
        Column("P_pci_bytes_per_s", "P_pci", "si", "B/s"),
        Column("P_mpi_bytes_per_s", "P_mpi", "si", "B/s"),
    )
    rows = []
    for run in analysis.runs:
        fitted = [rate.value if rate else None for rate in run.rates.values()]
        point = run.points[0] if run.points else None
        rows.append(
            (
                run.label,
                *(run.identity.values.get(s) for s in symbols),
                run.batch.median.value,
                point.intensity_flops_per_byte if point else None,
                point.flops_per_s if point else None,
                *fitted,
            )
        )
    return Table("Runs", columns, rows)


def sweep_text(analysis: Analysis) -> Table:
    """The same for the terminal: symbols that are equal in all runs move into the title."""
    table = sweep(analysis)
    shared = {
        i: {row[i] for row in table.rows}
        for i, column in enumerate(table.columns)
        if len(column.key) == 1
    }
    dropped = [i for i, values in shared.items() if len(values) == 1 and len(table.rows) > 1]
    kept = [i for i in range(len(table.columns)) if i not in dropped]
    said = "  ".join(f"{table.columns[i].key}={table.rows[0][i]}" for i in dropped)
    names = _telling_parts([str(row[0]) for row in table.rows])
    rows = [[name, *row[1:]] for name, row in zip(names, table.rows, strict=True)]
    return Table(
        f"{table.title}  {said}",
        tuple(table.columns[i] for i in kept),
        [[row[i] for i in kept] for row in rows],
    )


def _telling_parts(labels: list[str]) -> list[str]:
    """What tells labels apart: their words without those that all begin and end with."""
    words = [label.split("_") for label in labels]
    if len(words) < 2 or len(set(labels)) < len(labels):
        return labels
    shortest = min(map(len, words))
    first = next((i for i in range(shortest) if len({w[i] for w in words}) > 1), shortest - 1)
    last = next((i for i in range(shortest - first) if len({w[-1 - i] for w in words}) > 1), 0)
    return ["_".join(w[first : len(w) - last]) for w in words]
