"""Draw a table in a terminal: the rich text of a table, imported only when drawing."""

from __future__ import annotations

import io
from typing import Final

from rich import box
from rich.cells import cell_len
from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from perfmodel.base.escape import printable
from perfmodel.base.table import MISSING, Table

_GAP: Final = 2  # blanks between two columns
_NARROWEST: Final = 16  # a text column is never shrunk below this many cells


def draw(table: Table, width: int | None, color: bool) -> str:
    """Draw `table` `width` columns wide at most; None never wraps."""
    grid = Grid(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, _GAP - 1, 0, 0))
    cells = table.cells()
    widths = _widths(table, width)
    tree = table.tree_column
    for column, cell_width in zip(table.columns, widths, strict=True):
        grid.add_column(
            Text(column.heading, style="bold"),
            justify=column.alignment,
            width=cell_width,
            no_wrap=column.kind != "text" or not column.wrap,
            overflow="fold" if column.wrap else "ellipsis",
        )
    for i, row in enumerate(cells):
        line: list[Text | Padding] = [Text(c, style="dim" if c == MISSING else "") for c in row]
        if table.levels is not None and tree is not None:
            line[tree] = Padding(line[tree], (0, 0, 0, 2 * int(table.levels[i])))
        grid.add_row(*line)
    parts = [Text(printable(table.title), style="bold")] if table.title else []
    notes = [Text(f"note: {printable(n)}", style="dim") for n in table.notes]
    needed = sum(widths) + _GAP * len(widths)
    console = Console(
        file=io.StringIO(),
        width=max(needed, width or max([needed, *(p.cell_len for p in [*parts, *notes])])),
        force_terminal=color,
        force_jupyter=False,
        color_system="standard" if color else None,
        no_color=not color,
        legacy_windows=False,
    )
    with console.capture() as capture:
        console.print(Group(*parts, grid, *notes))
    return "\n".join(line.rstrip() for line in capture.get().splitlines()) + "\n"


def _widths(table: Table, width: int | None) -> list[int]:
    """Cells per column: natural, then the widest text column shrinks until the table fits."""
    lines = [[c.heading for c in table.columns], *table.cells("  ")]
    widths = [max(cell_len(line[i]) for line in lines) for i in range(len(table.columns))]
    excess = 0 if width is None else sum(widths) + _GAP * (len(widths) - 1) - width
    while excess > 0:
        wide = [i for i, c in enumerate(table.columns) if c.kind == "text"]
        widest = max(wide, key=lambda i: widths[i], default=None)
        if widest is None or widths[widest] <= _NARROWEST:
            break
        widths[widest] -= 1
        excess -= 1
    return widths
