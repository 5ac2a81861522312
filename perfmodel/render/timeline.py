"""The bars of a timeline as tables: lanes for a reader, every bar for other programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from perfmodel.base.table import Column, Table
from perfmodel.render.result import Result
from perfmodel.timing.timeline import Bar, Lane

LANES: Final = (
    Column("rank", "Rank", "int"),
    Column("lane", "Lane", wrap=False, of="name"),
    Column("bars", "Bars", "int", of=lambda lane: len(lane.bars)),
    Column("seconds", "Busy", "si", "s",
           of=lambda lane: sum(bar.end_ns - bar.start_ns for bar in lane.bars) / 1e9),
)  # fmt: skip


def result(lanes: Sequence[Lane], title: str, start_ns: int | None) -> Result:
    """Return a timeline in every format; times count from `start_ns`, or from the first bar."""
    first = min((bar.start_ns for lane in lanes for bar in lane.bars), default=0)
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
    bars: list[tuple[Lane, Bar]] = [(lane, bar) for lane in lanes for bar in lane.bars]
    note = f"{len(bars)} bars in {len(lanes)} lanes; each: --format csv; a picture: -o FILE.png"
    return Result([Table.of(title, lanes, LANES, [note])], tables=[Table.of(title, bars, columns)])
