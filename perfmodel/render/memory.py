"""Memory as tables, sentences and JSON: theory by tensor, measured peaks, and both together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from perfmodel.analysis.memory import MemoryUse, Timeline
from perfmodel.base.document import pick
from perfmodel.base.table import Column, Table
from perfmodel.base.units import percent, si
from perfmodel.programs.mlp.memory import SETTINGS
from perfmodel.render.result import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST_CURVES: Final = 6


def result(found: MemoryUse) -> Result:
    """Return theory and measurement in every format."""
    tables = [theory_table(found)] if found.listed else []
    tables += [measured_table(found)] if found.measured else []
    return Result([*tables, sentences(found)], lambda: document(found), warnings=found.warnings)


THEORY: Final = (
    Column("tensor", "Tensor", wrap=False),
    Column("use", "For"),
    Column("memory", "Memory"),
    Column("formula", "Formula", wrap=False),
    Column("bytes", "Bytes", "si", "B"),
    Column("held_bytes", "Held", "si", "B", digits=4),
    Column("seen", "In the report"),
)


def theory_table(found: MemoryUse) -> Table:
    """Return every tensor with its formula, its bytes, and whether the report saw its block."""
    rows = [
        (a.name, a.use, a.memory, a.formula, a.bytes, a.held_bytes, mark)
        for a, mark in zip(found.listed, found.seen, strict=True)
    ]
    return Table("Theory, rank 0: what the trainer asks for", THEORY, rows, _notes(found))


def _notes(found: MemoryUse) -> tuple[str, ...]:
    if found.sums is None:
        return ()
    s = found.sums
    notes = [
        f"device: {si(s.asked_bytes['device'], 'B', 4)} that stays, "
        f"+ {si(s.rounding_bytes, 'B')} by rounding to blocks of 512 B; with what is given back "
        f"CuPy's pool takes {si(s.reserved_bytes, 'B', 4)} from CUDA; pinned blocks are powers "
        f"of two",
        f"libraries ask CUDA for {si(s.apart_bytes, 'B', 4)} of device memory past the pool",
        "not counted, since no tensor shows them: the CUDA context, kernels and libraries "
        "(docs/memory.md)",
    ]
    if s.unknown:
        notes.append(f"no formula for: {', '.join(s.unknown)}")
    return tuple(notes)


def measured_table(found: MemoryUse) -> Table:
    """Return peaks by process and kind of memory, and the formulas' sums."""

    def error(t: Timeline) -> float | None:
        theory = found.theory_bytes(t.kind)
        return theory / t.peak_bytes - 1 if theory and t.peak_bytes else None

    columns = (
        Column("rank", "Rank", "int"),
        Column("memory", "Memory", of="kind"),
        Column("peak_bytes", "Peak", "si", "B", digits=4),
        Column("theory_bytes", "Theory", "si", "B", digits=4,
               of=lambda t: found.theory_bytes(t.kind)),
        Column("theory_error", "Error", "percent", of=error),
        Column("where", "Peak in range", of=lambda t: t.where or None),
        Column("allocations", "Allocations", "int"),
        Column("releases", "Released", "int"),
        Column("left_bytes", "Left at the end", "si", "B"),
    )  # fmt: skip
    title = "Measured: live bytes of CUDA's own allocations, most at once"
    return Table.of(title, found.measured or (), columns)


def sentences(found: MemoryUse) -> Sequence[str]:
    """Say how much of the GPU that is."""
    said = []
    sums = found.peaks_bytes
    if sums:
        said.append(
            "Peaks of all processes by memory: "
            + ", ".join(f"{kind} {si(size, 'B', 4)}" for kind, size in sums.items())
        )
    total = None if found.gpu is None else found.gpu.memory_bytes
    peak = found.first("device")
    most = peak.peak_bytes if peak else found.theory_bytes("device")
    if total and most and found.gpu:
        what = "A process's peak" if peak else "The count by theory"
        said.append(f"{what} is {percent(most / total, 2)} of the memory of one {found.gpu.name}")
    return said


def picture(found: MemoryUse) -> Figure:
    """Draw what theory holds by use, and what was live over time."""
    from perfmodel.render.plot.studies import LiveBytes, memory

    parts: dict[str, int] = {}
    for one in found.listed:
        if one.memory == "device" and one.stays and one.held_bytes:
            parts[one.use] = parts.get(one.use, 0) + one.held_bytes
    curves = [
        LiveBytes(
            t.kind if t.rank is None else f"rank {t.rank}, {t.kind}",
            np.asarray(t.time_ns * 1e-9, float),
            t.live_bytes,
        )
        for t in (found.measured or ())[:_MOST_CURVES]
    ]
    return memory(parts, curves, total_bytes=found.theory_bytes("device"))


def document(found: MemoryUse) -> dict[str, Any]:
    """Return theory and measurement as JSON types."""
    measured = "rank process peak_bytes peak_ns where allocations releases left_bytes"
    return {
        "case": None if found.case is None else found.case.document(),
        **pick(found, "sums warnings", peaks_by_memory_bytes="peaks_bytes"),
        "settings": SETTINGS,
        "theory": [
            {**asdict(a), "held_bytes": a.held_bytes, "seen": mark}
            for a, mark in zip(found.listed, found.seen, strict=True)
        ],
        "measured": None if found.measured is None else [
            {
                **pick(t, measured, memory="kind", blocks_bytes="blocks"),
                "theory_bytes": found.theory_bytes(t.kind),
            }
            for t in found.measured
        ],
    }  # fmt: skip
