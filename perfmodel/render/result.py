"""The result of a command: text for a reader, tables for other programs, and one document."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from perfmodel.base.document import to_json_parts
from perfmodel.base.escape import printable
from perfmodel.base.table import Table, json_parts, render, wrapped

Block = Table | str | Sequence[str] | Callable[[bool], Sequence[str]]
"""A function returns lines, with ANSI styles where it is called with True."""
_LONGEST_NAME = 60


@dataclass(frozen=True, slots=True)
class Result:
    """One result in every format.

    Attributes
    ----------
    text : iterable of Table, str, sequence of str or callable
        For a reader, in order: tables, lines, groups of lines, and functions that return lines,
        escaped, with ANSI styles where they are called with True.
    document : callable, optional
        Returns everything as plain data; by default the rows and notes of the tables.
    tables : iterable of Table, optional
        For other programs; by default those of the text.
    made : mapping of str to iterable of (str, str or iterable of str)
        Formats that another function writes: the name and the content of every file, in parts
        where it is large.
    warnings : sequence of str
        What the result does not hold, and how to collect it.
    """

    text: Iterable[Block] = ()
    document: Callable[[], Any] | None = None
    tables: Iterable[Table] | None = None
    made: Mapping[str, Iterable[tuple[str, str | Iterable[str]]]] = field(default_factory=dict)
    warnings: Sequence[str] = ()

    def render(
        self, fmt: str = "text", width: int | None = None, color: bool = False, fold: bool = False
    ) -> str:
        """Return the result as 'text', 'csv', 'json', 'jsonl', 'markdown' or 'latex'.

        With `fold` no line of the text is wider than `width`: lines are broken, and columns of
        tables continue below.
        """
        return "".join(self.parts(fmt, width, color, fold))

    def parts(
        self, fmt: str, width: int | None = None, color: bool = False, fold: bool = False
    ) -> Iterator[str]:
        """Yield the parts of `render` as they are made.

        What may come from a report is escaped here, or by the tables.
        """
        if fmt == "text" and fmt not in self.made:
            contents: Iterable[Iterable[str]] = (
                [block] for block in self._text(width, color, fold)
            )
        else:
            contents = (content for _, content in self.files(fmt))
        gap = ""
        for content in contents:
            for part in filter(None, content):
                yield gap + part
                gap = ""
            gap = "" if fmt == "jsonl" else "\n"

    def files(self, fmt: str) -> Iterator[tuple[str, Iterable[str]]]:
        """Yield name and content, in parts, of every file that keeps the result in a format."""
        from perfmodel.base.table import parts

        if fmt in self.made:
            for name, content in self.made[fmt]:
                yield name, [content] if isinstance(content, str) else content
        elif fmt == "json":
            yield "result", self._json()
        else:
            for table in self._tables():
                yield file_name(table.title), parts(table, fmt)

    def _json(self) -> Iterator[str]:
        tables = [] if self.document else [*self._tables()]
        if self.document is not None:
            yield from to_json_parts(self.document())
        elif len(tables) == 1:
            yield from json_parts(tables[0], 1)
        else:
            for i, table in enumerate(tables):
                yield ",\n " if i else "[\n "
                yield from json_parts(table, 1, 1)
            yield "\n]" if tables else "[]"
        yield "\n"

    def _text(self, width: int | None, color: bool, fold: bool) -> Iterator[str]:
        for block in self.text:
            if isinstance(block, Table):
                yield render(block, "table", width=width, color=color, fold=fold)
            elif callable(block):
                yield "".join(f"{line}\n" for line in block(color))
            else:
                lines = map(printable, [block] if isinstance(block, str) else block)
                broken = (
                    part
                    for line in lines
                    for part in (wrapped(line, width) if fold and width else [line])
                )
                yield "".join(f"{line}\n" for line in broken)

    def _tables(self) -> Iterable[Table]:
        if self.tables is not None:
            return self.tables
        return (block for block in self.text if isinstance(block, Table))


def file_name(title: str) -> str:
    """Return how the file of a table is called: its title up to what changes from run to run.

    Examples
    --------
    >>> file_name("Where a median batch goes (5 batches, 2 ranks)")
    'where_a_median_batch_goes'
    """
    words = re.split(r"[(:,;]|\s\d", title)[0].lower()
    return re.sub(r"[^a-z0-9]+", "_", words).strip("_")[:_LONGEST_NAME] or "table"
