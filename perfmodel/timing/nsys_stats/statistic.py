"""One summary report as data: CSV as `nsys stats` writes it, and a table for other formats."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perfmodel.base.table import Table

_SPECIAL = re.compile(r'[,"\r\n]')


@dataclass(frozen=True, slots=True)
class Statistic:
    """One summary report: headers as `nsys stats` writes them, rows of numbers and names.

    `digits` is the number of decimals of every column: 0 for integers, None for text.
    """

    name: str
    headers: tuple[str, ...]
    digits: tuple[int | None, ...]
    rows: tuple[tuple[Any, ...], ...]


def to_csv(statistic: Statistic) -> str:
    """Write a statistic as `nsys stats --format csv` does, without the blank line at its end.

    Fields that hold a comma, quote or line break are quoted, as RFC 4180 wants it; nsys doubles
    no quotes.
    """
    lines = [statistic.headers]
    for row in statistic.rows:
        lines.append(tuple(_cell(v, d) for v, d in zip(row, statistic.digits, strict=True)))
    return "".join(",".join(map(_field, line)) + "\n" for line in lines)


def _field(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if _SPECIAL.search(text) else text


def to_table(statistic: Statistic) -> Table:
    """Return a statistic as a table for the other formats; keys are the headers nsys uses."""
    from perfmodel.base.table import Column, Table

    columns = tuple(
        Column(header, header, "text" if digits is None else "float" if digits else "int",
               digits=digits or None, wrap=False)
        for header, digits in zip(statistic.headers, statistic.digits, strict=True)
    )  # fmt: skip
    return Table(statistic.name, columns, statistic.rows)


def _cell(value: Any, digits: int | None) -> str:
    if value is None:
        return ""
    return f"{value:.{digits}f}" if digits else str(value)
