"""Pages: what a benchmark puts between two markers of a document, and how it writes numbers."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from perfmodel.base.table import Column, Kind, Table, render

_TABLE: Final = re.compile(r"^\|.*\n\|[-:| ]+\|\n(?:\|.*(?:\n|\Z))*", re.MULTILINE)


def put(page: Path, script: str, made: str, name: str = "") -> None:
    """Replace what stands between the markers of `script`, or of its part `name`, in a page.

    Raises
    ------
    SystemExit
        If the page has no such markers.
    """
    begin, end = markers(script, name)
    text = page.read_text(encoding="utf-8")
    if begin not in text or end not in text:
        raise SystemExit(f"{page}: expected the lines {begin} and {end}; got none; put them back")
    before, _, rest = text.partition(begin)
    after = rest.partition(end)[2]
    page.write_text(f"{before}{begin}\n\n{made.strip()}\n\n{end}{after}", encoding="utf-8")


def put_parts(
    page: Path, script: str, parts: Mapping[str, str], shown: Mapping[str, Shown] | None = None
) -> None:
    """Replace every part of a page by its name, write its data files, and print which."""
    for name, text in parts.items():
        made = shorten(text, page, shown or {}, name)
        put(page, script, made.text, name)
        made.write()
    print(f"docs/{page.name}: {', '.join(parts)}")


@dataclass(frozen=True, slots=True)
class Shown:
    """Rows and columns of a long table that its page shows; a data file has the whole table.

    Attributes
    ----------
    rows : str
        Regular expression that is searched in a row as Markdown; without it the page shows none.
    columns : str
        Regular expression that is searched in a column's title.
    """

    rows: str = r"(?!)"
    columns: str = ""


@dataclass(frozen=True, slots=True)
class Shortened:
    """A text with parts of its long tables, and the whole tables as CSV files beside its page."""

    text: str
    files: Mapping[Path, str]

    def write(self) -> None:
        """Write the data files."""
        for path, text in self.files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")

    def differing(self) -> list[str]:
        """Return the names of data files that are missing or hold something else."""
        return [
            path.name for path, text in self.files.items()
            if not path.exists() or path.read_text(encoding="utf-8") != text
        ]  # fmt: skip


def shorten(made: str, page: Path, shown: Mapping[str, Shown], name: str = "") -> Shortened:
    """Move long tables into data files beside the page.

    Parameters
    ----------
    made : str
        Markdown.
    page : Path
        Page of the text; its tables go to data/PAGE/TABLE.csv beside it.
    shown : mapping
        What the page shows of a table. The key is the name of the part, or the title of the section
        if `name` is empty; "TITLE 2" is the second table of it. Other tables stay whole.
    name : str
        Name of the part that the text is.

    Raises
    ------
    ValueError
        If a column or row is asked for that the table does not have.
    """
    files: dict[Path, str] = {}
    counts: dict[str, int] = {}

    def short(found: re.Match[str]) -> str:
        titles = re.findall(r"^#+ (.+)$", made[: found.start()], re.MULTILINE)
        of = name or (titles[-1] if titles else "")
        counts[of] = counts.get(of, 0) + 1
        key = of if counts[of] == 1 else f"{of} {counts[of]}"
        if key not in shown:
            return found[0]
        head, line, *rows = map(_cells, found[0].splitlines())
        file = page.parent / "data" / page.stem / (re.sub(r"\W+", "-", key.lower()) + ".csv")
        files[file] = _csv([head, *rows])
        link = file.relative_to(page.parent).as_posix()
        some = [row for row in rows if re.search(shown[key].rows, _line(row))]
        places = [i for i, title in enumerate(head) if re.search(shown[key].columns, title)]
        if not places or (not some and shown[key] != Shown()):
            raise ValueError(f"{page.name}, {key}: expected rows and columns; got none")
        if not some:
            return f"[{len(rows)} rows]({link})\n"
        kept = [_line([row[i] for i in places]) for row in (head, line, *some)]
        return "\n".join(kept) + f"\n\n[All {len(rows)} rows]({link})\n"

    return Shortened(_TABLE.sub(short, made), files)


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().removeprefix("|").removesuffix("|").split("|")]


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _csv(rows: Iterable[Sequence[str]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def written_in(file: Path) -> Callable[..., str]:
    """Return a function that writes a section of a file of texts, by name and with its values."""
    text = file.read_text(encoding="utf-8")
    found = dict(re.findall(r"^%% ([\w ]+)\n(.*?)\n(?=^%%|\Z)", text, re.MULTILINE | re.DOTALL))
    return lambda name, **values: found[name].format(**values) if values else found[name]


def section(page: Path, script: str, name: str = "") -> str:
    """Return what stands between the markers."""
    begin, end = markers(script, name)
    return page.read_text(encoding="utf-8").partition(begin)[2].partition(end)[0].strip()


def markers(script: str, name: str = "") -> tuple[str, str]:
    """Return the lines before and behind what a script makes."""
    if name:
        return f"<!-- made by {script}: {name} -->", f"<!-- end of {name} -->"
    return f"<!-- made by {script}: do not edit -->", f"<!-- end of what {script} made -->"


def table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table of text; empty without lines."""
    body = [f"| {' | '.join(line)} |" for line in lines]
    if not body:
        return ""
    return "\n".join([f"| {' | '.join(head)} |", "|" + "---|" * len(head), *body]) + "\n"


def markdown(columns: str | Iterable[str], rows: Iterable[tuple[Any, ...]]) -> str:
    """Return a Markdown table of numbers with units.

    Parameters
    ----------
    columns : str or iterable of str
        Titles, in one text separated by semicolons. Behind a title's last `=` stands what is below
        it: `int`, `float.2` and `percent.0` with digits, else a unit; nothing behind it is text.
    """
    titles = columns.split("; ") if isinstance(columns, str) else columns
    found = tuple(_column(str(i), title) for i, title in enumerate(titles))
    return render(Table("", found, tuple(rows)), "markdown").strip()


def _column(key: str, said: str) -> Column:
    title, equals, what = said.rpartition("=")
    kind, _, digits = what.partition(".")
    if not equals:
        return Column(key, said)
    kinds: dict[str, Kind] = {"int": "int", "float": "float", "percent": "percent", "text": "text"}
    unit = "" if kind in kinds else kind
    return Column(key, title, kinds.get(kind, "si"), unit, digits=int(digits) if digits else None)


def percent(value: float | None, digits: int = 1, *, signed: bool = False) -> str:
    """Write a fraction as a percentage."""
    return "–" if value is None else f"{100 * value:{'+' if signed else ''}.{digits}f} %"


def short(value: float | None) -> str:
    """Write a positive number with three significant digits, but whole numbers in full."""
    if value is None:
        return ""
    digits = 0 if value >= 99.95 else 1 if value >= 9.995 else 2
    return f"{value:.{digits}f}"


def microseconds(seconds: float | None) -> str:
    """Write seconds as microseconds, with three significant digits."""
    return short(None if seconds is None else seconds * 1e6)
