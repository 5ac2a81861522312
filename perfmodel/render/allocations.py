"""Text, tables, JSON and a picture of the peak of PyTorch's memory, recorded or estimated."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from perfmodel.analysis.allocations import EARLIER, Alive, Peak
from perfmodel.base.document import pick
from perfmodel.base.table import Column, Table
from perfmodel.base.units import percent, si
from perfmodel.models.lifetimes import Peak as Estimate
from perfmodel.readers.allocator_snapshot import CPU
from perfmodel.render.result import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST_ROWS: Final = 20
_NUMBER: Final = re.compile(r"\d+")
_NOTES: Final = {
    EARLIER: "record from the program's start to tell what was allocated before the recording"
}
_ESTIMATED: Final = (
    "no memory was recorded: an estimate from the operators' sizes, and from who reads what; what "
    "operators hold for a moment inside is not counted; record with torch.profiler's "
    "profile_memory=True or torch.cuda.memory._dump_snapshot()"
)


def result(found: Sequence[Peak]) -> Result:
    """Return the peaks of all devices, and what is alive at each."""
    text: list[Any] = []
    tables = []
    for peak in found:
        who = _device(peak.device)
        text.append([*_lines(who, peak)])
        kinds = _kinds(f"Peak of {who} by kind", peak.by_kind, peak.peak_bytes)
        text += [kinds, _table(who, peak, _together(peak.alive)[:_MOST_ROWS])]
        tables += [kinds, _table(who, peak, peak.alive)]
    return Result(text, lambda: document(found), tables=tables)


def _together(rows: Sequence[Alive]) -> list[Alive]:
    """Rows of modules that differ in numbers alone, such as layers, as one."""
    found: dict[tuple[str, ...], Alive] = {}
    for row in rows:
        module = _NUMBER.sub("*", row.module)
        key = row.kind, row.operator, module, row.line
        same = found.get(key)
        found[key] = replace(row, module=module) if same is None else replace(
            same, blocks=same.blocks + row.blocks, bytes=same.bytes + row.bytes
        )  # fmt: skip
    return sorted(found.values(), key=lambda row: -row.bytes)


def _device(number: int) -> str:
    return "the host" if number == CPU else f"GPU {number}"


def _lines(who: str, peak: Peak) -> Sequence[str]:
    where = f" in the {peak.phase} pass" if peak.phase in ("forward", "backward") else (
        " in the optimizer" if peak.phase else ""
    )  # fmt: skip
    by = f", by {peak.operator}" if peak.operator else ""
    at = "" if peak.peak_us is None else (
        f" at {si((peak.peak_us - int(peak.time_us[0])) * 1e-6, 's')}"
    )  # fmt: skip
    lines = [f"{who}: peak {si(peak.peak_bytes, 'B', 4)} in blocks{at}{where}{by}"]
    for when, used, reserved in (
        ("at the peak", peak.peak_bytes, peak.peak_reserved_bytes),
        ("at the end", peak.end_bytes, peak.reserved_bytes),
    ):
        if reserved:
            lines.append(
                f"{when} {si(used, 'B', 4)} of {si(reserved, 'B', 4)} reserved "
                f"({percent(max(1 - used / reserved, 0.0))} cached or fragmented)"
            )
    return lines


def _kinds(title: str, by_kind: Mapping[str, int], whole: int) -> Table:
    rows = sorted(by_kind.items(), key=lambda row: -row[1])
    columns = (
        Column("kind", "Kind", of=lambda r: r[0]),
        Column("bytes", "Bytes", "si", "B", digits=4, of=lambda r: r[1]),
        Column("share", "Of the peak", "percent", of=lambda r: r[1] / max(whole, 1)),
    )
    notes = tuple(note for kind, note in _NOTES.items() if by_kind.get(kind))
    return Table.of(title, rows, columns, notes)


def _table(who: str, peak: Peak, rows: Sequence[Alive]) -> Table:
    columns = (
        Column("kind", "Kind", of=lambda r: r.kind, wrap=False),
        Column("operator", "Operator", of=lambda r: r.operator, wrap=False),
        Column("module", "Module", of=lambda r: r.module),
        Column("line", "Allocated by", of=lambda r: r.line),
        Column("blocks", "Blocks", "int", of=lambda r: r.blocks or None),
        Column("bytes", "Bytes", "si", "B", digits=4, of=lambda r: r.bytes),
        Column("share", "Of the peak", "percent", of=lambda r: r.bytes / max(peak.peak_bytes, 1)),
    )
    return Table.of(f"Memory alive at the peak of {who}", rows, columns)


def document(found: Sequence[Peak]) -> dict[str, Any]:
    """Return peaks as plain data."""
    return {
        "gpus": [
            {
                **pick(
                    peak,
                    "device peak_bytes peak_us operator phase peak_reserved_bytes end_bytes "
                    "reserved_bytes by_kind",
                ),
                "alive": [
                    pick(row, "kind line module operator blocks bytes") for row in peak.alive
                ],
                "curve": {
                    "time_us": peak.time_us.tolist(),
                    "in_use_bytes": peak.in_use_bytes.tolist(),
                },
            }
            for peak in found
        ]
    }


def picture(found: Sequence[Peak]) -> Figure:
    """Draw what is alive at the peak by kind, and the curve of every kind."""
    from perfmodel.render.plot.studies import LiveBytes, memory

    peak = max(found, key=lambda one: one.peak_bytes)
    seconds = np.asarray((peak.time_us - peak.time_us[:1]) * 1e-6, np.float64)
    curves = [LiveBytes("all", seconds, peak.in_use_bytes)]
    curves += [LiveBytes(kind, seconds, curve) for kind, curve in peak.curves_bytes.items()]
    return memory(peak.by_kind, curves, label=f"Peak of {_device(peak.device)} by kind")


def estimate(found: Estimate, source: str) -> Result:
    """Return an estimated peak, and which operators' tensors are alive at it."""
    kinds = _kinds("Estimated peak by kind", found.by_kind, found.bytes)
    columns = (
        Column("operator", "Written by", of=lambda r: r.name, wrap=False),
        Column("phase", "Phase", of=lambda r: r.phase),
        Column("tensors", "Tensors", "int", of=lambda r: r.count),
        Column("bytes", "Bytes", "si", "B", digits=4, of=lambda r: r.bytes),
        Column("share", "Of the peak", "percent", of=lambda r: r.bytes / max(found.bytes, 1)),
    )
    title = "Tensors alive at the estimated peak"
    alive, every = (Table.of(title, rows, columns)
                    for rows in (found.alive[:_MOST_ROWS], found.alive))  # fmt: skip
    line = f"{source}: peak {si(found.bytes, 'B', 4)} of a step, estimated"
    return Result(
        [[line], kinds, alive],
        lambda: {
            "estimated": True,
            **pick(found, "by_kind", peak_bytes="bytes"),
            "alive": [pick(row, "phase bytes", operator="name", tensors="count")
                      for row in found.alive],
            "curve_bytes": [*found.curve],
        },
        tables=(kinds, every),
        warnings=(_ESTIMATED,),
    )  # fmt: skip
