"""Tables of several runs: measured points under a roof, and all runs side by side."""

from __future__ import annotations

from perfmodel.analysis.comparable import own_roof
from perfmodel.analysis.result import Analysis
from perfmodel.base.table import Column, Table


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
            own = own_roof(analysis.fitted, run)
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
    notes: tuple[str, ...] = (
        "model: F / P_flops + bytes / P of the links, with every run's own rates",
    )
    if roof is not None and any(row[4] is None for row in rows):
        notes = (
            f"no roof: the run moves bytes over other links than {analysis.fitted.label}, or "
            f"multiplies with other math: the drawn roof is not over its points, and pictures "
            f"leave them out",
            *notes,
        )
    if roof is None:
        title = "Measured points (no throughputs to make a roof of)"
        return Table(title, columns, rows)
    return Table(f"Roofline fitted on {analysis.fitted.label}", columns, rows, notes)


def points_text(analysis: Analysis) -> Table:
    """The same for the terminal: short names of runs, and no column of them where there is one."""
    table = points(analysis)
    if len(analysis.runs) > 1:
        labels = [run.label for run in analysis.runs]
        told = dict(zip(labels, _telling_parts(labels), strict=True))
        rows = [(told[str(row[0])], *row[1:]) for row in table.rows]
        return Table(table.title, table.columns, rows, table.notes)
    return Table(table.title, table.columns[1:], [row[1:] for row in table.rows], table.notes)


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
    names = ["P_flops", "P_pci", "P_mpi"]
    if any("P_peer" in run.rates for run in analysis.runs):
        names.append("P_peer")
        columns = (*columns, Column("P_peer_bytes_per_s", "P_peer", "si", "B/s"))
    rows = []
    for run in analysis.runs:
        fitted = [rate.value if (rate := run.rates.get(name)) else None for name in names]
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
