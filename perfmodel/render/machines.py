"""Machines in every format: figures, ratios to the datasheet, ridge points; and what works here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Final

from perfmodel.base.document import pick
from perfmodel.base.table import Column, Table
from perfmodel.base.units import si
from perfmodel.machines.doctor import PURPOSES, Check
from perfmodel.machines.machine import SECTIONS, Figure, Machine
from perfmodel.machines.measure.measurement import MachineMeasurement
from perfmodel.render.result import Block, Result

_LISTED: Final = (
    ("peak_flops_per_s", "float64", "fp64"),
    ("peak_flops_per_s", "float32", "fp32"),
    ("peak_flops_per_s", "tf32_tensor", "TF32"),
    ("peak_flops_per_s", "float16_tensor", "fp16 tensor"),
    ("peak_flops_per_s", "float8_tensor", "fp8"),
    ("bandwidth_bytes_per_s", "memory", "memory"),
    ("capacity_bytes", "l2", "L2"),
    ("bandwidth_bytes_per_s", "pcie", "PCIe"),
    ("bandwidth_bytes_per_s", "nvlink", "NVLink"),
)
TITLES: Final = {
    "peak_flops_per_s": "peak",
    "gemm_flops_per_s": "GEMM",
    "bandwidth_bytes_per_s": "bandwidth",
    "capacity_bytes": "capacity",
    "latency_s": "latency",
}


@dataclass(frozen=True, slots=True)
class Row:
    """One figure and what it is held against.

    Attributes
    ----------
    section, key, unit : str
    figure : Figure
    datasheet : float or None
        The published value of the same; of NVLink, for an all-reduce's bus bandwidth, one
        direction.
    ratio : float or None
        Of the figure to it.
    ridge_flops_per_byte : float or None
        Of a rate of FLOPs: where its roof meets the one of this machine's memory.
    """

    section: str
    key: str
    unit: str
    figure: Figure
    datasheet: float | None
    ratio: float | None
    ridge_flops_per_byte: float | None


def rows(machine: Machine, published: Machine | None = None) -> Iterator[Row]:
    """Yield every figure of a machine, held against a datasheet where one is given."""
    memory = memory_bytes_per_s(machine)
    for section, unit in SECTIONS.items():
        for key in (key for of, key in machine.figures if of == section):
            figure = machine.figures[section, key]
            other = _published(published, section, key) if published else None
            ratio = figure.value / other if other else None
            ridge = figure.value / memory if memory and unit == "FLOP/s" else None
            yield Row(section, key, unit, figure, other, ratio, ridge)


def memory_bytes_per_s(machine: Machine) -> float | None:
    """Return the bandwidth of a GPU's or a CPU's main memory."""
    links = machine.bandwidth_bytes_per_s
    return links.get("hbm", links.get("dram"))


def _published(machine: Machine, section: str, key: str) -> float | None:
    """Return the datasheet's value of what a measured figure is about."""
    peaks, links = machine.peak_flops_per_s, machine.bandwidth_bytes_per_s
    if section == "peak_flops_per_s":
        return peaks.get(key)
    if section == "gemm_flops_per_s":  # tensor cores where the machine has them for the type
        return peaks.get(f"{key}_tensor", peaks.get(key))
    if section == "capacity_bytes":
        return machine.capacity_bytes.get(key)
    if section != "bandwidth_bytes_per_s":
        return None
    if key == "nccl_bus":
        both = links.get("nvlink")
        return both / 2 if both else None
    whole = next((link for link in ("hbm", "dram", "pcie") if key.startswith(f"{link}_")), key)
    return links.get(whole)


def listing(machines: Sequence[tuple[str, Machine]]) -> Table:
    """Return a table of machines by the name each is asked for with."""
    columns = (
        Column("name", "name", of=lambda pair: pair[0]),
        Column("machine", "machine", of=lambda pair: pair[1].name),
        *(Column(_listed_key(section, key), title, "si", SECTIONS[section],
                 of=partial(_listed, section, key)) for section, key, title in _LISTED),
        Column("source", "source", of=lambda pair: pair[1].source),
    )  # fmt: skip
    note = (
        "Dense peaks; PCIe per direction, NVLink both directions together; the source of every "
        "figure: perfmodel machine show NAME"
    )
    return Table.of("Machines", machines, columns, [note])


def _listed_key(section: str, key: str) -> str:
    return f"{key}_{section.removeprefix('peak_').removeprefix('bandwidth_')}"


def _listed(section: str, key: str, pair: tuple[str, Machine]) -> float | None:
    machine = pair[1]
    values: Mapping[str, float] = getattr(machine, section)
    return memory_bytes_per_s(machine) if key == "memory" else values.get(key)


FIGURES: Final = (
    Column("what", "what", of=lambda row: TITLES[row.section]),
    Column("figure", "figure", of="key"),
    Column("value", "value", of=lambda row: si(row.figure.value, row.unit)),
    Column("spread", "quartiles", "percent", of=lambda row: _spread(row.figure)),
    Column("datasheet", "datasheet",
           of=lambda row: row.datasheet and si(row.datasheet, row.unit)),
    Column("ratio", "of it", "percent"),
    Column("ridge", "ridge", "float", "FLOP/B", digits=2, of="ridge_flops_per_byte"),
    Column("source", "source", of="figure.source"),
)  # fmt: skip


def figures_table(
    machine: Machine, found: Sequence[Row], published: Machine | None = None
) -> Table:
    """Return the figures of a machine as a table; what no row has is no column."""
    measured = any(row.figure.q1 is not None for row in found)
    said = "quartiles: how far the third lies from the first, of the value" if measured else ""
    notes = filter(
        None,
        (_made_of(machine), machine.note, machine.url, said, _above(found), _of_sheet(published)),
    )
    table = Table.of(machine.name, found, FIGURES, notes)
    return table if measured else table.without("spread", "datasheet", "ratio")


def _made_of(machine: Machine) -> str:
    """Say what a GPU's peaks are made of."""
    chip = machine.chip
    if chip is None:
        return ""
    said = [chip.architecture, chip.target]
    if chip.multiprocessors:
        said.append(f"{chip.multiprocessors} multiprocessors")
    if chip.boost_clock_hz:
        said.append(f"boost clock {si(chip.boost_clock_hz, 'Hz')}")
    return ", ".join(said)


def _above(found: Sequence[Row]) -> str:
    """Say which figures are above their datasheet, and what to look at."""
    keys = dict.fromkeys(row.key for row in found if row.ratio and row.ratio > 1)
    if not keys:
        return ""
    return (
        f"above the datasheet: {', '.join(keys)}: a peak follows the clock, and the datasheet's "
        f"is at the clock it names; a bandwidth above it was measured in a cache, or the machine "
        f"is not the datasheet's"
    )


def _of_sheet(published: Machine | None) -> str:
    return f"datasheet: {published.name}: {published.note}" if published and published.note else ""


def _spread(figure: Figure) -> float | None:
    if figure.q1 is None or figure.q3 is None:
        return None
    return (figure.q3 - figure.q1) / figure.value


SERIES: Final = (
    Column("kind", "kind"),
    Column("memory", "memory"),
    Column("direction", "direction"),
    Column("clock", "clock"),
    Column("ranks", "ranks", "int"),
    Column("least_bytes", "from", "si", "B", of=lambda s: s.bytes[0]),
    Column("least_s", "time", "si", "s", of=lambda s: s.median_s[0]),
    Column("most_bytes", "to", "si", "B", of=lambda s: s.bytes[-1]),
    Column("most_s", "time", "si", "s", of=lambda s: s.median_s[-1]),
    Column("best_bytes_per_s", "best rate", "si", "B/s"),
    Column("alpha_s", "alpha", "si", "s", of=lambda s: (at := s.line()) and at.alpha_s),
    Column("line_bytes_per_s", "1/beta", "si", "B/s",
           of=lambda s: (at := s.line()) and 1 / at.beta_s_per_byte),
)  # fmt: skip

GEMMS: Final = (
    Column("name", "GEMM"),
    Column("dtype", "type"),
    Column("layout", "layout"),
    Column("shapes", "shapes", "int", of=lambda p: len(p.m)),
    Column("least_s", "shortest", "si", "s", of=lambda p: min(p.median_s)),
    Column("most_s", "longest", "si", "s", of=lambda p: max(p.median_s)),
    Column("least_flops_per_s", "slowest", "si", "FLOP/s", of=lambda p: min(p.flops_per_s)),
    Column("best_flops_per_s", "fastest", "si", "FLOP/s", of=lambda p: max(p.flops_per_s)),
)

ATTENTION: Final = (
    Column("phase", "Attention"),
    Column("dtype", "type"),
    Column("shapes", "shapes", "int", of=lambda a: len(a.heads)),
    Column("least_s", "shortest", "si", "s", of=lambda a: min(a.median_s)),
    Column("most_s", "longest", "si", "s", of=lambda a: max(a.median_s)),
)


def headline(measurement: MachineMeasurement) -> Iterator[str]:
    """Yield what a reader must know of how the figures came about."""
    devices = ", ".join((*measurement.gpus, *measurement.cpus))
    versions = ", ".join(f"{name} {version}" for name, version in measurement.versions.items())
    yield f"Measured {measurement.date} by: {measurement.command}"
    yield f"On {devices}; {measurement.ranks} rank(s), {measurement.cores} core(s); {versions}"


def result(machine: Machine, measurement: MachineMeasurement | None) -> Result:
    """Return a shipped or measured machine in every format."""
    return Result(
        _blocks(machine, measurement),
        lambda: document(machine, measurement),
        warnings=measurement.warnings if measurement else (),
    )


def _blocks(machine: Machine, measurement: MachineMeasurement | None) -> Iterator[Block]:
    """Yield what there is to show of a shipped or measured machine."""
    if measurement:
        yield list(headline(measurement))
    published = _sheet(measurement)
    yield figures_table(machine, [*rows(machine, published)], published)
    if measurement and measurement.series:
        note = "The line is fitted to relative errors, so that every size counts alike."
        yield Table.of("By size", measurement.series, SERIES, [note])
    if measurement and measurement.products:
        yield Table.of("GEMMs", measurement.products, GEMMS)
    if measurement and measurement.attention:
        yield Table.of("Attention", measurement.attention, ATTENTION)


def document(machine: Machine, measurement: MachineMeasurement | None) -> dict[str, Any]:
    """Return a machine as what JSON holds."""
    published = _sheet(measurement)
    found: dict[str, Any] = {
        "name": machine.name,
        "source": machine.source,
        "note": machine.note or None,
        "url": machine.url or None,
        "basis": machine.basis,
        "chip": None if machine.chip is None else asdict(machine.chip),
        "datasheet": published.name if published else None,
        "figures": [
            {**pick(row, "section key unit datasheet ratio ridge_flops_per_byte"),
             **asdict(row.figure)}
            for row in rows(machine, published)
        ],
        "measured": None,
    }  # fmt: skip
    if measurement:
        kept = (
            "date command ranks cores gpus cpus versions elapsed_s warnings series products "
            "attention"
        )
        found["measured"] = pick(measurement, kept)
    return found


def _sheet(measurement: MachineMeasurement | None) -> Machine | None:
    return measurement.machine.sheet if measurement else None


CHECKS: Final = (
    Column("check", "Check", wrap=False, of="name"),
    Column("status", "Status", wrap=False),
    Column("found", "Found"),
    Column("needed_for", "Needed to", wrap=False, of=lambda c: ", ".join(c.needed_for) or None),
)


def checkup(checks: Sequence[Check], purposes: Sequence[str]) -> Result:
    """Return the checks in every format."""
    found = Table.of("This machine", checks, CHECKS)
    return Result(
        [found, list(sentences(checks, purposes))], lambda: checkup_document(checks, purposes)
    )


def sentences(checks: Sequence[Check], purposes: Sequence[str]) -> Iterator[str]:
    """Yield what to do, what failed first, and whether all is there for the purposes."""
    for status in ("failed", "warning"):
        for check in checks:
            if check.status == status and check.advice:
                yield f"{status}: {check.name}: {check.found}"
                yield f"    -> {check.advice}"
    wanted = "; ".join(f"{name}: {PURPOSES[name]}" for name in purposes)
    failed = len(broken(checks))
    yield f"{f'Not ready, {failed} failed' if failed else 'Ready'} ({wanted})."


def broken(checks: Sequence[Check]) -> list[Check]:
    """Return what failed that the purposes need."""
    return [check for check in checks if check.status == "failed"]


def checkup_document(checks: Sequence[Check], purposes: Sequence[str]) -> dict[str, Any]:
    """Return the checks as what JSON holds."""
    return {
        "schema_version": 1,
        "purposes": purposes,
        "ready": not broken(checks),
        "checks": checks,
    }
