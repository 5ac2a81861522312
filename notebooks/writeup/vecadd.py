"""Vector addition for notebooks: programs on a CPU and a GPU, with copies and unified memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from perfmodel.base.table import Column, Table
from writeup.shipped import Part, read_part

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BYTES: Final = 12
"""Of an addition: two float32 read, one written."""
WAYS: Final = {
    "python": "loop in Python", "loop": "loop in C++", "numpy": "NumPy", "thread": "one thread",
    "block": "one block", "grid": "full grid",
}  # fmt: skip
MEMORIES: Final = {"host": "CPU", "explicit": "GPU, copies", "unified": "GPU, unified"}
SHOWN: Final = (
    ("host", "loop", "total_s"), ("host", "numpy", "total_s"), ("explicit", "thread", "total_s"),
    ("explicit", "grid", "total_s"), ("unified", "grid", "total_s"),
    ("explicit", "grid", "kernel_s"),
)  # fmt: skip
"""Memory, way and part of the lines that are drawn."""


@dataclass(frozen=True, slots=True)
class Program:
    """One program that adds two arrays of so many floats, in seconds.

    `kernel_s` is None on the CPU.
    """

    memory: str
    way: str
    floats: int
    total_s: float
    kernel_s: float | None

    @property
    def label(self) -> str:
        """Where and how."""
        return f"{MEMORIES[self.memory]}: {WAYS[self.way]}"


def read_programs(path: Path) -> tuple[tuple[Program, ...], Part]:
    """Read what benchmarks.vecadd timed."""
    found = read_part(path, "time", "python -m benchmarks.vecadd --part time")
    programs = tuple(
        Program(r["memory"], r["way"], round(1e6 * r["millions"]), r["seconds"]["total_s"],
                r["seconds"].get("kernel_s"))
        for r in found.rows
    )  # fmt: skip
    return programs, found


def find(programs: Sequence[Program], memory: str, way: str, floats: int) -> Program | None:
    """Return one program, or None if it was not timed."""
    wanted = (memory, way, floats)
    return next((p for p in programs if (p.memory, p.way, p.floats) == wanted), None)


def programs_table(programs: Sequence[Program], floats: int) -> Table:
    """Return the programs of one size: in all, the kernel, and what it moves a second."""
    columns = (
        Column("program", "program"), Column("total_s", "time", "si", "s"),
        Column("kernel_s", "kernel", "si", "s"), Column("rate", "it moves", "si", "B/s"),
        Column("share", "of the time", "percent"),
    )  # fmt: skip
    rows = [
        (p.label, p.total_s, p.kernel_s, p.kernel_s and BYTES * p.floats / p.kernel_s,
         p.kernel_s and p.kernel_s / p.total_s)
        for p in programs if p.floats == floats
    ]  # fmt: skip
    return Table(f"Adding two arrays of {floats:,} floats", columns, rows)


def draw_programs(programs: Sequence[Program], bytes_per_s: float, ax: Axes) -> Axes:
    """Draw times over the size, beside the time of the bytes at a bandwidth."""
    from perfmodel.render.plot.lines import Series, lines, reference
    from perfmodel.render.plot.style import Measure

    series = {}
    for memory, way, part in SHOWN:
        mine = sorted(
            (p.floats, getattr(p, part)) for p in programs if (p.memory, p.way) == (memory, way)
        )
        if mine:
            what = ", kernel" if part == "kernel_s" else ""
            label = f"{MEMORIES[memory]}: {WAYS[way]}{what}"
            series[label] = Series([n / 1e6 for n, _ in mine], [s for _, s in mine])
    sizes = sorted({p.floats for p in programs})
    bound = [BYTES * n / bytes_per_s for n in sizes]
    series["12 n bytes at peak"] = reference([n / 1e6 for n in sizes], bound)
    millions = Measure("Millions of floats", scale="log")
    return lines(series, millions, Measure("Time", "s", "log"), ticked=True, ax=ax)
