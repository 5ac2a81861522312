"""Writes docs/columns.md: the names of all columns that commands print, as a test holds them.

python docs/columns.py
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from unittest import mock

from click.testing import CliRunner

from perfmodel.base.table import Table
from perfmodel.cli import main

ROOT: Final = Path(__file__).resolve().parent.parent
PAGE: Final = ROOT / "docs" / "columns.md"
BASE: Final = "profiles/h200x2_2ranks_base_nsys2025.3.1.sqlite"
HALO: Final = "profiles/programs/halo.sqlite.xz"
PROGRAM: Final = "profiles/programs/gpt_shapes.sqlite.xz"
PINNED: Final = "profiles/h200x2_2ranks_pinned_nsys2025.3.1.sqlite.xz"
LADDER: Final = "profiles/ladder/document_1.sqlite.xz"
CAMPAIGN: Final = tuple(
    f"profiles/campaign/h200x4_p{p}_host_float32_H512_B3000.sqlite.xz" for p in (1, 2, 4)
)
MODEL: Final = "benchmarks/results/predict_model.json"
SIZES: Final = ("-D", "784", "-H", "512", "-C", "10", "-B", "3000", "-p", "2")

COMMANDS: Final[tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...]] = (
    ("analyze", (BASE,), (
        "ranges", "rates", "copies", "collectives", "ranks", "findings", "skew", "stragglers",
        "categories", "kernels", "idle", "gaps", "late_ranks", "points", "runs",
    )),
    ("analyze", (HALO,), (
        *12 * ("",), "messages", "waiting", "chains", "ranges_by_rank", "late_ranks", "outliers",
        "", "",
    )),
    ("stats", (BASE,), (
        "nvtx_gpu_proj_sum", "nvtx_pushpop_sum", "cuda_gpu_kern_sum", "cuda_gpu_mem_time_sum",
        "cuda_gpu_mem_size_sum", "cuda_api_sum", "mpi_event_sum",
    )),
    ("compare", (BASE, PINNED), ("rows",)),
    ("study splits", (BASE,), ("splits", "measured")),
    ("study scaling", CAMPAIGN, ("strong or weak", "communication", "all-reduces")),
    ("study layers", ("resnet18", "--machine", "h200", "--ranks", "4"), ("layers", "exchange")),
    ("memory", ("profiles/memory/document.sqlite.xz",), ("theory", "recorded")),
    ("utilization", ("--report", BASE), ("busy", "idle", "gaps")),
    ("whatif", (LADDER, "--model", MODEL), ("changes", "path", "free", "removed")),
    ("whatif", (HALO, "--apply", "communication"), ("changes of any program", "")),
    ("predict", (PROGRAM,), ("roles", "lanes", "operators")),
    ("study predict", ("--model", MODEL, *SIZES), ("phases",)),
    ("study predict --sweep", ("--model", MODEL, *SIZES, "--sweep", "H=512,1024"), ("sweep",)),
    ("study calibrate", CAMPAIGN, ("terms",)),
    ("study formulas", (), ("formulas",)),
    ("timeline", (BASE,), ("bars",)),
    ("study tta", ("benchmarks/results/tta/rule.json",), ("runs", "spread")),
    ("counters", ("tests/golden/ncu/h200_cublas.csv.xz", *SIZES[:8]), ("work", "roof", "formulas")),
    ("machine list", (), ("machines",)),
    ("machine show", ("h200",), ("figures",)),
)  # fmt: skip
"""Command, an example that prints tables of it, and what they are called here: '' where they stand
already."""

_INTRO: Final = """# Columns

What `--format csv`, `--format jsonl` and data frames call the columns of every table. Names are
stable: one goes away, or changes its meaning, only in a release whose changelog says so; new ones
may come at the end. A test compares this page with what the commands print.

A name ends in its unit: `_s`, `_ns`, `_bytes`, `_flops`, `_bytes_per_s`, `_flops_per_s`. Numbers
are in base units, shares are fractions of one; what is missing is empty in CSV and null in JSON.
`level` is a row's depth in a tree. In JSON lines every row also has `table`, the table's heading.
The columns of `perfmodel stats` are those of `nsys stats`. Each name is followed by its heading.
"""


def drawn(command: str, arguments: tuple[str, ...]) -> list[Table]:
    """Return the tables that a command draws, instead of drawing them."""
    found: list[Table] = []

    def note(table: Table, *_: object, **__: object) -> str:
        found.append(table)
        return ""

    words = [*command.removesuffix(" --sweep").split(), *arguments, "--format", "jsonl"]
    with contextlib.chdir(ROOT), mock.patch("perfmodel.base.table.parts", note):
        CliRunner().invoke(main, words, catch_exceptions=False)
    return found


def tables() -> Iterator[tuple[str, str, list[tuple[str, str]]]]:
    """Yield command, table and the names and headings of its columns."""
    for command, arguments, called in COMMANDS:
        found = drawn(command, arguments)
        if len(found) != len(called):
            raise ValueError(f"{command}: found {[t.title for t in found]}, wanted {called}")
        for name, table in ((n, t) for n, t in zip(called, found, strict=True) if n):
            keys, heads = table.records()[0], [column.heading for column in table.columns]
            first = ["Depth"] if len(keys) == len(heads) + 1 else []
            yield command, name, list(zip(keys, first + heads, strict=True))


def page() -> str:
    """Return the page."""
    lines, last = [_INTRO], ""
    for command, table, columns in tables():
        if command != last:
            lines.append(f"## perfmodel {command}\n")
        last = command
        listed = ", ".join(
            f"`{key}` {head}" if head not in ("", key) else f"`{key}`" for key, head in columns
        )
        lines.append(f"**{table}**: {listed}\n")
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
