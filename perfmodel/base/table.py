"""One table type, rendered as text, CSV, JSON, Markdown or LaTeX."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, islice, repeat, zip_longest
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from perfmodel.base.escape import escape_json, escape_latex, escape_markdown, printable
from perfmodel.base.units import si

if TYPE_CHECKING:
    import pandas as pd

    from perfmodel.base.arrays import Int64

Kind = Literal["text", "int", "float", "si", "percent", "more"]
Align = Literal["left", "right", "center"]
FORMATS: Final = ("table", "csv", "json", "jsonl", "markdown", "latex")
MISSING: Final = "–"
_GAP: Final = 2  # blanks between two columns
_AT_ONCE: Final = 1 << 13  # rows
_OWN: Final = frozenset({str, int, bool, type(None)})
_NARROWEST: Final = 16  # a text column is never shrunk below this many cells
_MOST_KEYS: Final = 2
"""Columns that are repeated where a table continues: a number, such as a rank, and a name."""
_LABEL: Final = re.compile(r"\s+|[\w ]{1,10}?\s{2,}")
"""What the further lines of a long line of text are indented by."""
_NARROW: Final = re.compile("[ -~\xa0-\u02ff\u0370-\u0482\u2010-\u2027\u2190-\u22ff\u2500-\u25fc]*")
"""Texts of characters that take one cell of a terminal each; of others rich knows the widths."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column: what its values are and how they are shown.

    Parameters
    ----------
    key : str
        Name in CSV, JSON and data frames; carries the unit, such as ``host_s``.
    title : str
        Heading in text, Markdown and LaTeX.
    kind : {'text', 'int', 'float', 'si', 'percent', 'more'}
        ``si``: numbers in base units, shown with an SI prefix and `unit`, raw in CSV and JSON.
        ``percent``: fractions of one, shown times 100; percents already if `unit` is ``'%'``.
        ``more``: likewise by how much something is longer; from twice on, how many times as long.
    unit : str
        Unit without prefix; added to the heading of ``int`` and ``float`` columns.
    align : {'left', 'right', 'center'}, optional
        By default text is left and numbers are right aligned.
    digits : int, optional
        Significant digits of ``si`` (3), decimals of ``float`` (six significant digits) and
        ``percent`` (1).
    wrap : bool
        Whether a text too long for the terminal continues on the next line or ends in '…'.
    of : str or callable, optional
        Where `Table.of` finds the value: an attribute, which may be dotted (None where one on the
        way is), or a function of the row's object; the attribute called `key` by default.
    names : mapping of str to str
        What a reader sees in place of some texts; CSV, JSON and data frames have the texts.
    """

    key: str
    title: str
    kind: Kind = "text"
    unit: str = ""
    align: Align | None = None
    digits: int | None = None
    wrap: bool = True
    of: str | Callable[[Any], object] = ""
    names: Mapping[str, str] = field(default_factory=dict)

    @property
    def alignment(self) -> Align:
        """The alignment in effect."""
        return self.align or ("left" if self.kind == "text" else "right")

    @property
    def heading(self) -> str:
        """The title, with the unit where the values do not carry it."""
        title = printable(self.title)
        return f"{title} ({self.unit})" if self.unit and self.kind in ("int", "float") else title

    def show(self, value: object) -> str:
        """Format one value for a reader; None and NaN (missing) give an en dash."""
        value = _plain(value)
        if value is None:
            return MISSING
        if self.kind == "text" or not isinstance(value, (int, float)):
            return printable(self.names.get(str(value), str(value)))
        if self.kind == "si":
            return si(value, self.unit, 3 if self.digits is None else self.digits)
        if self.kind == "more" and value >= 1:
            return f"{1 + value:.1f} times as long"
        if self.kind in ("percent", "more"):
            scaled = value if self.unit == "%" else 100 * value
            return f"{scaled:.{1 if self.digits is None else self.digits}f} %"
        if self.kind == "int":
            return f"{value:,d}" if isinstance(value, int) else f"{value:,.0f}"
        return f"{value:.6g}" if self.digits is None else f"{value:,.{self.digits}f}"


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under columns, with a title and notes for what a number cannot say.

    Parameters
    ----------
    title : str
    columns : tuple of Column
    rows : sequence of sequences
        One value per column; None is missing.
    notes : tuple of str
        Shown below the table (not in CSV).
    levels : sequence of int, optional
        Depth of every row in a tree: indents the first text column by two blanks a level, and
        becomes the first column, ``level``, in CSV, JSON and data frames.
    """

    title: str
    columns: tuple[Column, ...]
    rows: Sequence[Sequence[object]]
    notes: tuple[str, ...] = ()
    levels: Sequence[int] | None = None

    def _repr_markdown_(self) -> str:
        """Show the table in a notebook."""
        return render(self, "markdown")

    @classmethod
    def of(
        cls,
        title: str,
        items: Iterable[object],
        columns: Sequence[Column],
        notes: Iterable[str] = (),
        levels: Sequence[int] | None = None,
    ) -> Table:
        """Build a table of objects, a row each: every column says where its value is."""
        found = [c.of if callable(c.of) else partial(_reach, c.of or c.key) for c in columns]
        rows = [[value(item) for value in found] for item in items]
        return cls(title, tuple(columns), rows, tuple(notes), levels)

    def first(self, most: int, where: str) -> Table:
        """Return the table with `most` rows; a note says `where` the others are."""
        if len(self.rows) <= most:
            return self
        note = f"{most} of {len(self.rows)}; all of them {where}"
        levels = None if self.levels is None else self.levels[:most]
        return replace(self, rows=self.rows[:most], notes=(*self.notes, note), levels=levels)

    def without(self, *keys: str) -> Table:
        """Return the table without the columns of these keys."""
        kept = [i for i, column in enumerate(self.columns) if column.key not in keys]
        rows = [[row[i] for i in kept] for row in self.rows]
        return replace(self, columns=tuple(self.columns[i] for i in kept), rows=rows)

    def blocks(self) -> Iterator[Sequence[Sequence[object]]]:
        """Yield the columns of `keys`, of some rows at a time, as they are."""
        rows = self.rows
        for start in range(0, len(rows), _AT_ONCE):
            columns = rows.columns(start, start + _AT_ONCE) if isinstance(rows, Rows) else [
                *zip(*rows[start : start + _AT_ONCE], strict=True)
            ]  # fmt: skip
            levels = self._levels()
            if levels is not None:
                columns = [[*map(int, levels[start : start + _AT_ONCE])], *columns]
            yield columns

    @property
    def keys(self) -> list[str]:
        """Keys of the columns as CSV, JSON and data frames hold them."""
        keys = [c.key for c in self.columns]
        return keys if self._levels() is None else ["level", *keys]

    def _levels(self) -> Sequence[int] | None:
        """The column of levels, unless one of the columns has its name."""
        return None if any(c.key == "level" for c in self.columns) else self.levels

    def records(self) -> tuple[list[str], Iterator[list[Any]]]:
        """Keys, and raw rows in base units one by one, as CSV, JSON and data frames hold them."""
        rows = ([_plain(v) for v in row] for row in self.rows)
        levels = self._levels()
        if levels is None:
            return self.keys, rows
        return self.keys, ([int(n), *r] for n, r in zip(levels, rows, strict=True))

    def objects(self) -> Iterator[dict[str, Any]]:
        """Yield the rows by key as JSON holds them: what is not finite is None."""
        keys, rows = self.records()
        return (dict(zip(keys, map(_finite, row), strict=True)) for row in rows)

    def document(self) -> dict[str, Any]:
        """Return title, rows and notes as JSON holds them."""
        return {"title": self.title, "rows": [*self.objects()], "notes": list(self.notes)}

    @property
    def tree_column(self) -> int | None:
        """The column that `levels` indents: the first text column."""
        return next((i for i, c in enumerate(self.columns) if c.kind == "text"), None)

    def cells(self, indent: str = "") -> Iterator[list[str]]:
        """Yield every row as a reader sees it, the tree column prefixed by `indent` a level."""
        tree = self.tree_column
        levels = repeat(0) if self.levels is None or tree is None else self.levels
        for level, row in zip(levels, self.rows, strict=False):
            shown = [c.show(v) for c, v in zip(self.columns, row, strict=True)]
            if level and tree is not None:
                shown[tree] = indent * int(level) + shown[tree]
            yield shown


def _reach(path: str, item: object) -> Any:
    """Return an attribute, which may be dotted; None where one on the way is."""
    for name in path.split("."):
        if item is None:
            return None
        item = getattr(item, name)
    return item


def render(
    table: Table,
    fmt: str = "table",
    *,
    width: int | None = None,
    color: bool = False,
    fold: bool = False,
) -> str:
    """Render `table` as text that ends in a newline.

    Parameters
    ----------
    table : Table
    fmt : {'table', 'csv', 'json', 'jsonl', 'markdown', 'latex'}
        CSV and JSON hold raw numbers in base units, the others formatted ones with units.
        ``jsonl`` is an object a row, on a line of its own, which also names the table.
    width : int, optional
        Terminal columns for ``table``; None never wraps. Numbers are never cut: text columns
        shrink to 16 columns, and the rest sticks out.
    color : bool
        Whether ``table`` may use ANSI styles.
    fold : bool
        Whether columns beyond `width` continue below, after the column of names.

    Raises
    ------
    ValueError
        If there is no such format.
    """
    return "".join(parts(table, fmt, width=width, color=color, fold=fold))


def parts(
    table: Table,
    fmt: str,
    *,
    width: int | None = None,
    color: bool = False,
    fold: bool = False,
) -> Iterator[str]:
    """Yield what `render` returns, some rows at a time: of a million all lines take gigabytes."""
    if fmt == "table":
        for one in _folded(table, width) if fold and width else [table]:
            yield _draw(one, width, color)
    elif fmt not in FORMATS:
        raise ValueError(f"expected a format among {', '.join(FORMATS)}; got {fmt!r}")
    elif fmt == "json":
        yield from json_parts(table, 2, ensure_ascii=False)
        yield "\n"
    elif fmt == "jsonl":
        first = {} if "table" in table.keys else {"table": table.title}
        for lines in _json_objects(table, "\n", first=first):
            yield lines + "\n"
    else:
        yield from {"csv": _csv, "markdown": _markdown, "latex": _latex}[fmt](table)


def json_parts(
    table: Table, indent: int, level: int = 0, *, ensure_ascii: bool = True
) -> Iterator[str]:
    """Yield the table's document as JSON, `level` levels deep in another one; see `parts`."""
    outer, inner, row, cell = ("\n" + " " * indent * (level + i) for i in range(4))
    title, notes = (
        escape_json(json.dumps(text, ensure_ascii=ensure_ascii, indent=indent))
        for text in (table.title, list(table.notes))
    )
    yield f'{{{inner}"title": {title},{inner}"rows": ['
    gap = ""
    for objects in _json_objects(table, f",{row}", cell, row, ensure_ascii=ensure_ascii):
        yield f"{gap}{row}{objects}"
        gap = ","
    notes = notes.replace("\n", inner)
    yield f'{inner if gap else ""}],{inner}"notes": {notes}{outer}}}'


def _json_objects(
    table: Table,
    between: str,
    before: str = "",
    after: str = "",
    *,
    first: Mapping[str, str] | None = None,
    ensure_ascii: bool = False,
) -> Iterator[str]:
    """Yield the rows as JSON objects, some at a time, with `between` two of them.

    `before` stands before every key, `after` behind the last value, `first` in every object.
    """
    gap = f",{before}" if before else ", "
    encode = json.JSONEncoder(
        ensure_ascii=ensure_ascii, allow_nan=False, default=str, separators=(gap, ": ")
    ).encode
    pairs = [
        f"{encode(key)}: {encode(value)}".replace("%", "%%") for key, value in (first or {}).items()
    ]
    pairs += [f"{encode(key)}: ".replace("%", "%%") + "%s" for key in table.keys]
    written = f"{{{before}{gap.join(pairs)}{after}}}".__mod__
    for columns in table.blocks():
        cells = (_json_cells(column, encode) for column in columns)
        yield escape_json(between.join(map(written, zip(*cells, strict=True))))


def _json_cells(values: Sequence[object], encode: Callable[[object], str]) -> Iterable[str]:
    """Write the values of a column as JSON; what is not finite is null."""
    kinds = set(map(type, values))
    if kinds == {int}:
        return map(str, values)
    if kinds == {float} and all(map(math.isfinite, cast("Sequence[float]", values))):
        return map(repr, values)
    if kinds == {str}:
        return map(encode, values)
    return [encode(_finite(_plain(value))) for value in values]


class Rows(Sequence[tuple[Any, ...]]):
    """Rows that are made when they are asked for, some at a time, by column.

    A report with a million range names has a million groups, of which a screen shows few.

    Parameters
    ----------
    order : int64 array, shape (n,)
        What `make` is given of the rows asked for.
    make : callable
        Returns the columns of some rows.
    """

    def __init__(self, order: Int64, make: Callable[[Int64], Sequence[Sequence[Any]]]) -> None:
        self._order, self._make = order, make

    def __len__(self) -> int:
        return len(self._order)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Rows) and [*self] == [*other]

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        for start in range(0, len(self), _AT_ONCE):
            yield from zip(*self.columns(start, start + _AT_ONCE), strict=True)

    def columns(self, start: int, stop: int) -> Sequence[Sequence[Any]]:
        """Return the columns of some rows."""
        return self._make(self._order[start:stop])

    def __getitem__(self, at: Any) -> Any:
        rows = zip(*self._make(self._order[at if isinstance(at, slice) else [at]]), strict=True)
        return tuple(rows) if isinstance(at, slice) else next(rows)


def _blocks(lines: Iterable[str]) -> Iterator[str]:
    """Join lines, some thousands at a time."""
    each = iter(lines)
    while block := "".join(islice(each, _AT_ONCE)):
        yield block


def to_frame(table: Table) -> pd.DataFrame:
    """Return raw values in base units as a data frame; its column names carry the units."""
    import pandas as pd

    keys, found = table.records()
    rows = [*found]
    kinds = {"level": "int"} | {c.key: c.kind for c in table.columns}
    types = {
        "int": "Int64",
        "float": "float64",
        "si": "float64",
        "percent": "float64",
        "more": "float64",
    }
    columns = {}
    for i, key in enumerate(keys):
        values = [row[i] for row in rows]
        columns[key] = pd.Series(values, dtype=types.get(kinds[key], "object"), name=key)
    frame = pd.DataFrame(columns)
    frame.attrs["title"] = table.title
    return frame


def _plain(value: object) -> Any:
    """Python's own number for a NumPy scalar; None for what is missing."""
    if type(value) in _OWN:
        return value
    if not isinstance(value, (str, int, float)) and hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float):
        return None if math.isnan(value) else float(value)
    return value


def _finite(value: Any) -> Any:
    return None if type(value) is float and math.isinf(value) else value


def _csv(table: Table) -> Iterator[str]:
    line: list[str] = []

    class Sink:
        def write(self, text: str) -> None:
            line[:] = [text.removesuffix("\r\n") + "\n"]

    def written(row: Sequence[object]) -> str:
        writer.writerow(row)
        return line[0]

    keys, rows = table.records()
    writer = csv.writer(Sink(), lineterminator="\r\n")  # so that a lone \r is quoted as well
    for block in _blocks(map(written, chain([keys], rows))):
        yield re.sub(r"[\ud800-\udfff]", "\ufffd", block)


def _markdown(table: Table) -> Iterator[str]:
    rules = {"left": ":--", "right": "--:", "center": ":-:"}
    lines = chain(
        [[escape_markdown(c.heading) for c in table.columns]],
        [[rules[c.alignment] for c in table.columns]],
        ([escape_markdown(cell) for cell in row] for row in table.cells("\u2003")),
    )
    if table.title:
        yield f"**{escape_markdown(table.title)}**\n\n"
    yield from _blocks(f"| {' | '.join(line)} |\n" for line in lines)
    for note in table.notes:
        yield f"\nNote: {escape_markdown(note)}\n"


def _latex(table: Table) -> Iterator[str]:
    def line(cells: Iterable[str]) -> str:
        return " & ".join(cells) + " \\\\\n"

    shape = "".join(c.alignment[0] for c in table.columns)
    head = ["% needs \\usepackage{booktabs}", r"\begin{table}[htbp]", r"\centering"]
    head += [rf"\caption{{{escape_latex(table.title)}}}", r"\par\smallskip"] if table.title else []
    head += [rf"\begin{{tabular}}{{{shape}}}", r"\toprule"]
    yield "\n".join(head) + "\n" + line(escape_latex(c.heading) for c in table.columns)
    yield "\\midrule\n"
    for block in _blocks(line(map(escape_latex, row)) for row in table.cells("\u2003")):
        yield block.replace("\u2003", r"\hspace*{1em}")
    foot = [r"\bottomrule", r"\end{tabular}"]
    foot += [rf"\par\smallskip{{\footnotesize {escape_latex(note)}\par}}" for note in table.notes]
    yield "\n".join([*foot, r"\end{table}"]) + "\n"


def wrapped(line: str, width: int) -> list[str]:
    """Break a line of text into lines of `width` cells, all but the first one indented.

    What follows a name and two blanks, or the line's own blanks, is aligned below itself.
    """
    if _cells(line) <= width:
        return [line]
    found = _LABEL.match(line)
    indent = min(found.end() if found else 2, width // 3)
    first, *others = _wrapped(line, width)
    rest = line[len(first) :].strip()
    if not others or not rest:
        return [first, *others]
    return [first, *(" " * indent + part for part in _wrapped(rest, width - indent))]


def _folded(table: Table, width: int) -> list[Table]:
    """Return tables of as many columns as have room, each with the columns up to the names."""
    widths = _widths(table, width)
    names = table.tree_column if table.tree_column is not None else 0
    head = [*range(names + 1 if names < _MOST_KEYS else 1)]
    taken = sum(widths[i] + _GAP for i in head)
    groups: list[list[int]] = [[]]
    used = taken - _GAP
    for i in range(len(widths)):
        if i in head:
            continue
        if groups[-1] and used + _GAP + widths[i] > width:
            groups.append([])
            used = taken - _GAP
        groups[-1].append(i)
        used += _GAP + widths[i]
    if len(groups) == 1:
        return [table]
    found = []
    for at, group in enumerate(groups):
        kept = [*head, *group]
        rows = [[row[i] for i in kept] for row in table.rows]
        notes = table.notes if at == len(groups) - 1 else ()
        columns = tuple(table.columns[i] for i in kept)
        found.append(Table(table.title * (at == 0), columns, rows, notes, table.levels))
    return found


def _draw(table: Table, width: int | None, color: bool) -> str:
    """Draw `table` `width` columns wide at most; None never wraps."""
    widths = _widths(table, width)
    total = sum(widths) + _GAP * (len(widths) - 1)
    notes = [f"note: {printable(n)}" for n in table.notes]
    outside = [printable(table.title), *notes]
    room = max(total + _GAP, width or max(map(_cells, outside)))
    room = width if width is not None and total <= width else room
    bold, dim = ("1", "2") if color else ("", "")
    headings = [_lines(c.heading, c, w) for c, w in zip(table.columns, widths, strict=True)]
    highest = max(map(len, headings))
    headings = [[""] * (highest - len(lines)) + lines for lines in headings]
    drawn = [styled(line, bold) for line in _wrapped(outside[0], room) if table.title]
    drawn += _side_by_side(headings, widths, [bold] * len(widths))
    drawn.append("─" * total)
    for i, row in enumerate(table.cells()):
        cells, styles = [], []
        for at, (cell, column) in enumerate(zip(row, table.columns, strict=True)):
            deep = table.levels is not None and at == table.tree_column
            indent = 2 * int(table.levels[i]) if table.levels is not None and deep else 0
            lines = _lines(cell, column, max(widths[at] - indent, 1))
            cells.append([" " * indent + line for line in lines])
            styles.append(dim if cell == MISSING else "")
        drawn += _side_by_side(cells, widths, styles)
    drawn += [styled(line, dim) for note in notes for line in _wrapped(note, room)]
    return "\n".join(line.rstrip() for line in drawn) + "\n"


def _side_by_side(
    cells: Sequence[Sequence[str]], widths: Sequence[int], styles: Sequence[str]
) -> Iterator[str]:
    """Put the lines of the cells of one row next to each other."""
    for lines in zip_longest(*cells, fillvalue=""):
        padded = [line + " " * (w - _cells(line)) for line, w in zip(lines, widths, strict=True)]
        yield (" " * _GAP).join(map(styled, padded, styles))


def styled(text: str, style: str) -> str:
    """A text between the escape sequences of an ANSI style, '' for none."""
    return f"\x1b[{style}m{text}\x1b[0m" if style and text.strip() else text


def _lines(text: str, column: Column, width: int) -> list[str]:
    """The lines of a cell, aligned in `width` terminal cells."""
    if _cells(text) > width:
        if column.kind == "text" and not column.wrap:
            return [cut_cells(text, width)]
        lines = _wrapped(text, width)
    else:
        lines = [text]
    if column.alignment == "left":
        return lines
    share = 1 if column.alignment == "right" else 2
    stripped = [line.rstrip() for line in lines]
    return [" " * ((width - _cells(line)) // share) + line for line in stripped]


def cut_cells(text: str, width: int) -> str:
    """End a text that takes more than `width` cells of a terminal in '…'."""
    if _cells(text) <= width:
        return text
    from rich.cells import set_cell_size

    return set_cell_size(text, width - 1) + "…"


def _wrapped(text: str, width: int) -> list[str]:
    """Break a text into lines of `width` cells at most, between words where that is possible."""
    if _cells(text) <= width:
        return [text]
    lines = [""]
    for word in re.findall(r"\s*\S+\s*", text):
        if _cells(lines[-1] + word.rstrip()) <= width:
            lines[-1] += word
        elif _cells(word.rstrip()) <= width:
            lines.append(word)
        else:
            from rich.cells import chop_cells

            lines += chop_cells(word, width)
    return [line.rstrip() for line in lines if line]


def _cells(text: str) -> int:
    """Terminal cells that a text takes."""
    if _NARROW.fullmatch(text):
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def _widths(table: Table, width: int | None) -> list[int]:
    """Cells per column: natural, then the widest text column shrinks until the table fits."""
    lines = [[c.heading for c in table.columns], *table.cells("  ")]
    widths = [max(_cells(line[i]) for line in lines) for i in range(len(table.columns))]
    excess = 0 if width is None else sum(widths) + _GAP * (len(widths) - 1) - width
    while excess > 0:
        wide = [i for i, c in enumerate(table.columns) if c.kind == "text"]
        widest = max(wide, key=lambda i: widths[i], default=None)
        if widest is None or widths[widest] <= _NARROWEST:
            break
        widths[widest] -= 1
        excess -= 1
    return widths
