"""What a command answers: text for a reader, tables for other programs, and one document."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from perfmodel.base.document import to_json
from perfmodel.base.escape import printable
from perfmodel.base.table import Table

Block = Table | str | Sequence[str]


@dataclass(frozen=True, slots=True)
class Result:
    """One result in every format.

    Attributes
    ----------
    text : iterable of Table, str or sequence of str
        For a reader: tables, lines, and groups of lines, in order.
    document : callable, optional
        Returns everything as plain data; by default the rows and notes of the tables.
    tables : iterable of Table, optional
        For other programs; by default those of the text.
    csv : iterable of str, optional
        The tables as CSV, where it is another program's format.
    warnings : sequence of str
        What the result does not hold, and how to collect it.
    """

    text: Iterable[Block]
    document: Callable[[], Any] | None = None
    tables: Iterable[Table] | None = None
    csv: Iterable[str] | None = None
    warnings: Sequence[str] = ()

    def render(self, fmt: str = "text", width: int | None = None, color: bool = False) -> str:
        """Return the result as 'text', 'csv', 'json', 'jsonl', 'markdown' or 'latex'."""
        return "".join(self.parts(fmt, width, color))

    def parts(self, fmt: str, width: int | None = None, color: bool = False) -> Iterator[str]:
        """Yield the parts of `render` as they are made.

        What may come from a report is escaped here, or by the tables.
        """
        if fmt == "json":
            yield to_json(self._document() if self.document is None else self.document()) + "\n"
            return
        gap = ""
        for part in filter(None, self._made(fmt, width, color)):
            yield gap + part
            gap = "" if fmt == "jsonl" else "\n"

    def _made(self, fmt: str, width: int | None, color: bool) -> Iterator[str]:
        from perfmodel.base.table import render

        if fmt == "csv" and self.csv is not None:
            yield from self.csv
        elif fmt != "text":
            yield from (render(table, fmt) for table in self._tables())
        else:
            for block in self.text:
                if isinstance(block, Table):
                    yield render(block, "table", width=width, color=color)
                else:
                    lines = [block] if isinstance(block, str) else block
                    yield "".join(f"{printable(line)}\n" for line in lines)

    def _tables(self) -> Iterable[Table]:
        if self.tables is not None:
            return self.tables
        return (block for block in self.text if isinstance(block, Table))

    def _document(self) -> Any:
        """Return rows and notes of the only table, or of all as a list."""
        documents = [table.document() for table in self._tables()]
        return documents[0] if len(documents) == 1 else documents
