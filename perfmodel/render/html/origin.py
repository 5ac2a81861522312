"""Where a page comes from: the configuration, the machine and its ceilings, the files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import perfmodel
from perfmodel.analysis.result import RunAnalysis
from perfmodel.base.table import Column, Table
from perfmodel.base.units import si
from perfmodel.machines.machine import SECTIONS, Machine
from perfmodel.programs.identify import MARK_KEY
from perfmodel.readers.trace import Trace
from perfmodel.render.html.blocks import Block, Grid, Notice, grid
from perfmodel.timing.range_times import ranks_of

_SECTION_NAMES: Final = {
    "peak_flops_per_s": "peak",
    "gemm_flops_per_s": "matrix product",
    "bandwidth_bytes_per_s": "bandwidth",
    "capacity_bytes": "capacity",
    "latency_s": "latency",
}


def machine(run: RunAnalysis) -> Iterator[Block]:
    """Yield what ran, on which GPUs, and their ceilings."""
    if run.identity.config:
        yield grid(_configuration(run.identity.config))
    else:
        yield Notice(
            "The report has no configuration mark: what ran is known from its messages and flags.",
            "perfmodel's trainer leaves one; docs/trainer.md says what it holds",
        )
    if run.gpus:
        yield grid(_gpus(run))
    else:
        yield Notice("The report describes no GPU.", "profile with --trace=nvtx,cuda,mpi")
    if run.machine is not None:
        yield _ceilings(run.machine, run.precision)


def provenance(run: RunAnalysis) -> Iterator[Block]:
    """Yield the files that the page is made of, and by what."""
    columns = (
        Column("report", "Report"),
        Column("nsys", "Nsight Systems"),
        Column("schema", "Schema"),
        Column("ranks", "Ranks"),
        Column("recorded", "Recorded (UTC)"),
        Column("ranges", "NVTX ranges", "int"),
        Column("ops", "GPU operations", "int"),
        Column("mpi", "MPI calls", "int"),
    )
    rows = [
        (t.source.name, t.product_version, t.schema_version,
         ", ".join(map(str, sorted(ranks_of(t).values()))), _recorded(t), len(t.ranges),
         len(t.ops), len(t.mpi))
        for t in run.traces
    ]  # fmt: skip
    note = f"made by perfmodel {perfmodel.__version__}; the same reports give the same page"
    yield grid(Table("Reports", columns, rows, (note,)))


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
    columns = (
        Column("gpu", "GPU"),
        Column("id", "Number", "int"),
        Column("ranks", "Ranks"),
        Column("sms", "Multiprocessors", "int"),
        Column("clock", "Clock", "si", "Hz"),
        Column("bandwidth", "Memory bandwidth", "si", "B/s"),
        Column("memory", "Memory", "si", "B"),
        Column("l2", "L2", "si", "B"),
        Column("capability", "Compute capability"),
    )
    rows = [
        (g.name, g.id, ", ".join(str(r.rank) for r in run.ranks if r.gpu == g.id) or None,
         g.sm_count, g.clock_hz, g.memory_bandwidth_bytes_per_s, g.memory_bytes, g.l2_bytes,
         ".".join(map(str, g.compute_capability)) if g.compute_capability else None)
        for g in run.gpus
    ]  # fmt: skip
    return Table("GPUs, as the report describes them", columns, rows)


def _ceilings(found: Machine, precision: str) -> Grid:
    """Every figure of the machine with its source."""
    rows, values = [], []
    for section, unit in SECTIONS.items():
        for key, value in getattr(found, section).items():
            figure = found.figures.get((section, key))
            source = figure.source if figure else found.source
            rows.append((f"{_SECTION_NAMES[section]}, {key}", si(value, unit), source))
            values.append(value)
    columns = (
        Column("figure", "Ceiling"),
        Column("shown", "Value", align="right"),
        Column("source", "Source"),
    )
    note = f"products of this run are held against: {precision}"
    table = Table(f"Ceilings of {found.name}", columns, rows, (note,))
    return grid(table, sort={"shown": values})
