"""The model: symbols, formulas, fitted rates, and what they predict beside what was measured."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from perfmodel.analysis.rates import amounts
from perfmodel.analysis.result import RunAnalysis
from perfmodel.base.table import Column, Table
from perfmodel.base.units import si
from perfmodel.models.predict import Prediction
from perfmodel.render import predict as prediction_report
from perfmodel.render import tables
from perfmodel.render.html.blocks import Block, Grid, Notice, Words, grid
from perfmodel.workloads import formulas

_QUANTITIES: Final = {
    "flops": ("FLOPs", "FLOP"),
    "pci_bytes": ("bytes over PCIe", "B"),
    "mpi_bytes": ("bytes over MPI", "B"),
    "peer_bytes": ("bytes from GPU to GPU", "B"),
    "dram_bytes": ("bytes of GPU memory", "B"),
}
_UNITS: Final = {"P_flops": "FLOP"}


def model(run: RunAnalysis, said: Prediction | str) -> Iterator[Block]:
    """Yield the model of one run.

    Parameters
    ----------
    run : RunAnalysis
    said : Prediction or str
        What a calibrated model predicts for this very run, or why there is none.
    """
    if not run.workload.ranges:
        yield Notice(
            "FLOPs and bytes are not known: the report does not say what its batches compute.",
            "give D, H, C and B as flags if it is the two-layer MLP; else write the formulas of "
            "your program into a TOML file and name it with --workload (docs/workloads.md)",
        )
        return
    values = {s: v for s, v in run.identity.values.items() if s in run.workload.symbols}
    sheet = json.loads(formulas(run.workload, "json", values))
    if sheet["symbols"]:
        yield grid(_symbols(sheet, run.identity.source))
    yield _formulas(sheet, run.workload.counting)
    if any(run.rates.values()):
        rates = tables.rates_text(run)
        numbers = [r.value for r in (*run.rates.values(), *(p[2] for p in run.products)) if r]
        known = len(numbers) == len(rates.rows)  # not where one that there is work for is missing
        yield grid(rates, sort={"value": numbers, "interval": numbers} if known else None)
    if run.model:
        yield Words("The model", tuple(_equation(sheet)))
        yield _terms(run)
        yield _checks(run)
    if isinstance(said, str):
        yield Words("A calibrated model", (f"None predicts this batch: {said}.",))
    else:
        yield Words("The calibrated model", (_beside(run, said),))
        yield grid(prediction_report.phases_table(said))


def _symbols(sheet: Mapping[str, Any], source: str) -> Table:
    rows = []
    for name, symbol in sheet["symbols"].items():
        derived = sheet["derived"].get(name)
        value = derived["value"] if derived else sheet["values"].get(name)
        formula = _plain(derived["text"]) if derived else ""
        rows.append((symbol["label"], symbol["meaning"], value, symbol["unit"], formula))
    columns = (
        Column("symbol", "Symbol"),
        Column("meaning", "Meaning"),
        Column("value", "Value", "int"),
        Column("unit", "Unit"),
        Column("formula", "Formula"),
    )
    return Table(f"Symbols (values from {source})", columns, rows)


def _formulas(sheet: Mapping[str, Any], counting: str) -> Grid:
    """FLOPs and bytes of every range, by formula and in numbers."""
    rows: list[tuple[str, str, str, float, str]] = []
    for name, work in (*sheet["ranges"].items(), ("all ranges together", sheet["total"])):
        for key, (title, unit) in _QUANTITIES.items():
            if key in work and (name in sheet["ranges"] or key != "dram_bytes"):
                value = work[key]["value"]
                rows.append((name, title, _plain(work[key]["text"]), float(value), si(value, unit)))
    columns = (
        Column("range", "Range"),
        Column("quantity", "Quantity"),
        Column("formula", "Formula"),
        Column("value", "Count", "int"),
        Column("shown", "Value", align="right"),
    )
    title = f"FLOPs and bytes per rank and batch, {counting} counting"
    notes = (f"source: {sheet['source']}",) if sheet["source"] else ()
    return grid(Table(title, columns, rows, notes), sort={"shown": [row[3] for row in rows]})


def _plain(formula: str) -> str:
    return formula.replace("**", "^").replace("*", " · ")


def _equation(sheet: Mapping[str, Any]) -> Iterator[str]:
    yield "T = F / P_flops + Σ n_k / P_k over the links k: computing, then moving, nothing at once."
    intensity = sheet.get("arithmetic_intensity")
    if intensity:
        value = f"{intensity['value']:,.4g} FLOP/B"
        yield f"Arithmetic intensity = {_plain(intensity['text'])} = {value}."


def _terms(run: RunAnalysis) -> Grid:
    """Every term of the model with its work, its rate and its time."""
    found = [
        (name, amount, rate)
        for name, amount in amounts(run.totals).items()
        if (rate := run.rates.get(name)) is not None and amount > 0
    ]
    seconds = [amount / rate.value for _, amount, rate in found]
    whole = sum(seconds)
    rows = [
        (name, si(amount, _UNITS.get(name, "B")), si(rate.value, rate.unit), s, s / whole)
        for (name, amount, rate), s in zip(found, seconds, strict=True)
    ]
    columns = (
        Column("term", "Term"),
        Column("work", "Work", align="right"),
        Column("rate", "Rate", align="right"),
        Column("seconds", "Time", "si", "s", digits=4),
        Column("share", "Of the model's time", "percent", digits=0),
    )
    return grid(
        Table(f"Terms of the model: {si(whole, 's', 4)} together", columns, rows),
        sort={"work": [n for _, n, _ in found], "rate": [rate.value for _, _, rate in found]},
    )


def _checks(run: RunAnalysis) -> Grid:
    """The model's time beside the measured one."""
    rows = [
        (c.label, c.predicted_s, c.measured_s, f"{100 * c.relative_error:+.0f} %")
        for c in run.model
    ]
    columns = (
        Column("timed", "Timed"),
        Column("predicted_s", "Predicted", "si", "s", digits=4),
        Column("measured_s", "Measured", "si", "s", digits=4),
        Column("error", "Error", align="right"),
    )
    note = "the model has no launches, no waiting and no element-wise kernels: what it misses"
    return grid(
        Table("Predicted against measured", columns, rows, (note,)),
        sort={"error": [c.relative_error for c in run.model]},
    )


def _beside(run: RunAnalysis, said: Prediction) -> str:
    measured = run.batch.median.value
    inside = said.low_s <= measured <= said.high_s
    return (
        f"It predicts {si(said.batch_s, 's', 4)} (90 %: {si(said.low_s, 's')} to "
        f"{si(said.high_s, 's')}); measured are {si(measured, 's', 4)}, "
        f"{'inside' if inside else 'outside'} the interval, an error of "
        f"{100 * (said.batch_s / measured - 1):+.0f} %."
    )
