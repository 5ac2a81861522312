"""The blocks of a page: sections of tables, pictures, lists and notices, as frozen values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, SupportsFloat

from perfmodel.base.table import Align, Table

CLOCKS: Final = ("host", "projection", "busy")
MOST_ROWS: Final = 2000
"""More rows of a table are left out, which no browser lays out at once."""

LONGEST: Final = 200
"""Letters of a name in a table or over a bar."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One value of a table.

    Attributes
    ----------
    text : str
        As a reader sees it.
    sort : str
        Number to sort by; empty where the text is sorted by, or nothing is known.
    bar : float or None
        Length of a bar behind the text, from 0 to 1.
    clocks : tuple of float or None
        Lengths of the bars of the three clocks instead, from 0 to 1.
    level : int
        Depth in a tree.
    """

    text: str
    sort: str = ""
    bar: float | None = None
    clocks: tuple[float | None, ...] = ()
    level: int = 0


@dataclass(frozen=True, slots=True)
class Head:
    """The heading of a column; one that is not `sortable` has no order."""

    text: str
    align: Align
    sortable: bool = True


@dataclass(frozen=True, slots=True)
class Grid:
    """A table of a page; the cell at `named` names its row; a `closed` one is opened by a click.

    `finds` says of every row where it is on the timeline, if that is known of any.
    """

    kind: ClassVar[str] = "grid"
    caption: str
    heads: tuple[Head, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()
    named: int = 0
    closed: bool = False
    finds: tuple[Find, ...] = ()


@dataclass(frozen=True, slots=True)
class Find:
    """A place on the timeline: the bars of this name, of one rank or of all."""

    name: str
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class Picture:
    """An `<svg>` element of our own making, its caption, and whether it needs a wide page.

    `packed` are the bars of a timeline, which the page's script draws in its place.
    """

    kind: ClassVar[str] = "picture"
    svg: str
    caption: str
    wide: bool
    packed: str = ""


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that is not in the report, and how to collect it."""

    kind: ClassVar[str] = "notice"
    text: str
    how: str


@dataclass(frozen=True, slots=True)
class Words:
    """Paragraphs, or a list."""

    kind: ClassVar[str] = "words"
    title: str
    lines: tuple[str, ...]
    listed: bool = False


@dataclass(frozen=True, slots=True)
class Advice:
    """One finding: what, how much it would save, why, and what to do."""

    kind: ClassVar[str] = "advice"
    title: str
    saving: str
    share: float | None
    evidence: str
    action: str
    find: Find | None = None


Block = Grid | Picture | Notice | Words | Advice


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the page under a heading of its own; `key` is its anchor."""

    key: str
    title: str
    intro: str
    blocks: tuple[Block, ...]


def grid(
    table: Table,
    *,
    caption: str = "",
    sort: Mapping[str, Sequence[float | None]] | None = None,
    full: Mapping[str, float] | None = None,
    plain: Sequence[str] = (),
    drop: Sequence[str] = (),
    closed: bool = False,
    most: int = MOST_ROWS,
    finds: Sequence[Find] = (),
) -> Grid:
    """Lay a table out for a page.

    Parameters
    ----------
    table : Table
    caption : str
        Instead of the table's title.
    sort : mapping of str to sequence of float
        Numbers to sort columns by that hold text, by the column's key.
    full : mapping of str to float
        Columns with bars, and the value whose bar is full; shares have theirs without.
    plain, drop : sequence of str
        Columns of shares without bars, and columns to leave out.
    closed : bool
        Show no more than the title until it is opened.
    most : int
        Rows beyond are left out.
    finds : sequence of Find
        Where every row is on the timeline.
    """
    sort, full, kept, heads = sort or {}, full or {}, [], []
    for i, column in enumerate(table.columns):
        if column.key not in drop:
            kept.append(i)
            heads.append(Head(column.heading, column.alignment, sortable=bool(column.heading)))
    shown, tree = [*table.cells()], table.tree_column
    rows = []
    for at, values in enumerate(table.rows[:most]):
        cells = []
        for i in kept:
            column, value = table.columns[i], values[i]
            number = sort[column.key][at] if column.key in sort else value
            share = column.kind == "percent" and column.key not in plain
            whole = full.get(column.key, (100.0 if column.unit == "%" else 1.0) if share else 0.0)
            level = int(table.levels[at]) if table.levels is not None and i == tree else 0
            cells.append(Cell(cut(shown[at][i]), _key(number), _part(value, whole), level=level))
        rows.append(tuple(cells))
    named = next((n for n, i in enumerate(kept) if table.columns[i].kind == "text"), 0)
    notes, more = table.notes, len(table.rows) - len(rows)
    if more:
        notes = (*notes, f"{more:,} more rows are left out: perfmodel analyze --out writes all")
    head = caption or table.title
    return Grid(head, tuple(heads), tuple(rows), notes, named, closed, tuple(finds[:most]))


def cut(text: str) -> str:
    """Shorten what is longer than `LONGEST`."""
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def percent(share: float) -> str:
    """Show a share in whole percents, a small one in two digits."""
    return f"{100 * share:.0f} %" if share >= 0.1 else f"{100 * share:.2g} %"


def _key(number: object) -> str:
    if not isinstance(number, SupportsFloat) or math.isnan(float(number)):
        return ""
    return f"{float(number):.9g}"


def _part(value: object, whole: float) -> float | None:
    if whole <= 0 or not isinstance(value, SupportsFloat) or math.isnan(float(value)):
        return None
    return min(max(float(value) / whole, 0.0), 1.0)


@dataclass(frozen=True, slots=True)
class Step:
    """A thing to change: what it would save, where, on what grounds, and how to do it.

    `then` says what a step takes with it and those before it, and how certain that is.
    """

    title: str
    saving: str
    grounds: str
    how: str
    then: str = ""
    place: str = ""
    find: Find | None = None


@dataclass(frozen=True, slots=True)
class Study:
    """What a page says of a run beyond its analysis; general code is given it and makes none.

    Attributes
    ----------
    fixes : tuple of Step
        Before those of the findings.
    model : tuple of Block
        Below the model by formulas.
    what_if : tuple of Block
        In place of the changes of the step's graph; these are shown where it is empty.
    """

    fixes: tuple[Step, ...]
    model: tuple[Block, ...]
    what_if: tuple[Block, ...]
