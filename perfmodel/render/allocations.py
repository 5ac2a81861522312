"""Text, tables and JSON of the peak of PyTorch's memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from perfmodel.analysis.allocations import Alive, Peak
from perfmodel.base.document import pick
from perfmodel.base.table import Column, Table
from perfmodel.base.units import percent, si
from perfmodel.render.result import Result

_MOST_ROWS: Final = 20


def result(found: Sequence[Peak]) -> Result:
    """Return the peaks of all GPUs, and what is alive at each."""
    text: list[Any] = []
    tables = []
    for peak in found:
        apart = 1 - peak.end_bytes / peak.reserved_bytes if peak.reserved_bytes else 0.0
        text.append([
            f"GPU {peak.device}: peak {si(peak.peak_bytes, 'B', 4)} in blocks; at the end "
            f"{si(peak.end_bytes, 'B', 4)} of {si(peak.reserved_bytes, 'B', 4)} reserved "
            f"({percent(apart)} cached or fragmented)"
        ])  # fmt: skip
        text.append(_table(peak, peak.alive[:_MOST_ROWS]))
        tables.append(_table(peak, peak.alive))
    return Result(text, lambda: document(found), tables=tables)


def _table(peak: Peak, rows: Sequence[Alive]) -> Table:
    columns = (
        Column(
            "line",
            "Allocated by",
            of=lambda r: r.line or "(no Python frame, such as the backward pass)",
            wrap=False,
        ),
        Column("module", "Module", of=lambda r: r.module),
        Column("blocks", "Blocks", "int", of=lambda r: r.blocks),
        Column("bytes", "Bytes", "si", "B", digits=4, of=lambda r: r.bytes),
        Column("share", "Of the peak", "percent", of=lambda r: r.bytes / max(peak.peak_bytes, 1)),
    )
    return Table.of(f"Memory alive at the peak of GPU {peak.device}", rows, columns)


def document(found: Sequence[Peak]) -> dict[str, Any]:
    """Return peaks as plain data."""
    return {
        "gpus": [
            {
                **pick(peak, "device peak_bytes end_bytes reserved_bytes"),
                "alive": [pick(row, "line module blocks bytes") for row in peak.alive],
                "curve": {
                    "time_us": peak.time_us.tolist(),
                    "in_use_bytes": peak.in_use_bytes.tolist(),
                },
            }
            for peak in found
        ]
    }
