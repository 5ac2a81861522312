"""Pages: what a benchmark puts between two markers of a document, and how it writes numbers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from perfmodel.base.table import Column, Kind, Table, render


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


def put_parts(page: Path, script: str, parts: Mapping[str, str]) -> None:
    """Replace every part of a page by its name, and print which."""
    for name, made in parts.items():
        put(page, script, made, name)
    print(f"docs/{page.name}: {', '.join(parts)}")


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
