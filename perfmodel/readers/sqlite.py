"""Opens a SQLite report read-only and hands out its tables as int64 columns."""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from itertools import count, islice, takewhile
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import quote

import numpy as np

from perfmodel.base.arrays import Bool, Int32, Int64
from perfmodel.base.errors import PerfmodelError, SchemaError
from perfmodel.readers.checks import EXPORT, broken, changed, check_file, stamp
from perfmodel.readers.pages import (
    COUNT_BYTES,
    Damaged,
    Numbered,
    PageFile,
    Texts,
    Unsupported,
    as_text,
    decode,
)
from perfmodel.readers.trace import NULL

_ROWS = 1 << 18  # read at a time where SQLite reads them
_HEADLINE = "*** in database main ***\n"  # of what quick_check finds in a b-tree
_SCHEMA_STEPS = 1_000_000  # of SQLite's machine; a real export's schema takes some 10 000
_LATEST = 2**62  # in ns, 146 years: the difference of two times fits in 64 bits


class Database:
    """A report's tables, read by the page parser where it can and by sqlite3 where it cannot.

    Nothing in the file is executed: it is opened read-only and immutable, its schema is not
    trusted, and only ordinary tables are read, never views or virtual tables. What SQLite reads of
    a table it checks first: a scan of a damaged b-tree may lose rows, repeat them, or never end.

    Parameters
    ----------
    path : Path
        The SQLite file.
    fast : bool
        Whether to parse leaf pages directly (`perfmodel.readers.pages`); both ways give the same
        arrays.
    shown : Path, optional
        What errors call the file: where it came from, if it is a temporary one.

    Raises
    ------
    ReportError
        If the file is missing, empty, not SQLite, truncated, or has an unfinished transaction; on
        leaving the ``with`` block, if it changed meanwhile.
    """

    def __init__(self, path: Path, *, fast: bool = True, shown: Path | None = None) -> None:
        self.path = shown or path
        self._file = path
        self._stamp = stamp(path)
        check_file(path, self.path)
        uri = f"file:{quote(os.fsencode(path.resolve()))}?mode=ro&immutable=1"
        try:
            self._connection = sqlite3.connect(uri, uri=True)
        except sqlite3.Error as error:
            raise broken(self.path, error) from error
        try:
            self._connection.text_factory = decode
            self._connection.execute("PRAGMA trusted_schema=OFF")
            self._connection.execute("PRAGMA cell_size_check=ON")
            self._connection.execute("PRAGMA ignore_check_constraints=ON")
            steps = iter(range(_SCHEMA_STEPS // 10_000))
            self._connection.set_progress_handler(lambda: next(steps, None) is None, 10_000)
            self._schema = read_schema(self._connection)
            self._connection.set_progress_handler(None, 0)
        except (sqlite3.Error, ValueError) as error:  # a NUL in a table's name is a ValueError
            self._connection.close()
            raise broken(self.path, error) from error
        self._sound: set[str] = set()
        self._pages: PageFile | None = None
        if fast:
            try:
                self._pages = PageFile(path)
            except Unsupported:
                self._pages = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, value: BaseException | None, trace: object) -> None:
        self.close()
        if isinstance(value, PerfmodelError | None) and stamp(self._file) != self._stamp:
            raise changed(self.path) from value

    def close(self) -> None:
        """Close the file."""
        self._connection.close()
        if self._pages is not None:
            self._pages.close()

    @property
    def tables(self) -> frozenset[str]:
        """Names of the ordinary tables."""
        return frozenset(self._schema)

    @property
    def views(self) -> frozenset[str]:
        """Names of the views, which are never read: a view may compute anything."""
        named = self._connection.execute("SELECT name FROM sqlite_master WHERE type = 'view'")
        return frozenset(name for (name,) in named.fetchall() if isinstance(name, str))

    def only_if(self, wanted: bool) -> Database:
        """Return this report, or the same without its tables."""
        if wanted:
            return self
        bare = copy(self)
        bare._schema = {}
        return bare

    def columns(self, table: str) -> tuple[str, ...]:
        """Names of the columns of `table`, in stored order; empty if there is no such table."""
        return tuple(self._schema[table].columns) if table in self._schema else ()

    def read(self, table: str, columns: Sequence[str]) -> dict[str, Int64]:
        """Read integer columns over all rows, in row order.

        Parameters
        ----------
        table : str
        columns : sequence of str
            Columns to read; one the table does not have comes back filled with `NULL`.

        Returns
        -------
        dict of str to int64 array, shape (rows,)
            SQL NULL is `perfmodel.readers.trace.NULL`. Empty arrays if the table is absent.

        Raises
        ------
        ReportError
            If the file is damaged.
        SchemaError
            If a column holds something that is no 64-bit integer.
        """
        present = [c for c in columns if c in self.columns(table)]
        if not present:
            return dict.fromkeys(columns, np.empty(0, np.int64))
        arrays = self._read_pages(table, present)
        if arrays is None:
            none = [np.empty((len(present), 0), np.int64)]
            parts = [np.stack(part) for part, _ in self._chunks(table, present, fast=False)]
            arrays = [np.ascontiguousarray(c) for c in np.concatenate(none + parts, axis=1)]
        found = dict(zip(present, arrays, strict=True))
        filler = np.full(len(arrays[0]), NULL) if len(present) < len(columns) else arrays[0]
        return {c: found.get(c, filler) for c in columns}

    def read_events(
        self, table: str, columns: Sequence[str], *, needed: Sequence[str] = (), open_ends: bool
    ) -> dict[str, Int64]:
        """Read `start`, `end` and other columns of a table of events, as `read` does.

        Parameters
        ----------
        table : str
        columns : sequence of str
        needed : sequence of str
            Those of `columns` without which the table means nothing.
        open_ends : bool
            Whether events may be without an end.

        Raises
        ------
        SchemaError
            Also if a needed column is missing, or a time is none.
        """
        self._check_events(table, needed)
        found = self.read(table, ["start", "end", *columns])
        self._check_times(table, found, open_ends=open_ends)
        return found

    def event_chunks(
        self,
        table: str,
        columns: Sequence[str],
        *,
        needed: Sequence[str] = (),
        open_ends: bool,
        chosen: Bool | None = None,
    ) -> Iterator[tuple[dict[str, Int64], int]]:
        """Read a table of events as `read_events` does, some rows at a time.

        Of what it would yield, only the `chosen` chunks, where they are given.

        Yields
        ------
        columns : dict of str to int64 array
        bytes : int
            Of the file that they took, as far as it is known.

        Raises
        ------
        ReportError, SchemaError
            As `read_events` does, but not before the rows are come to.
        Unsupported
            If the page reader finds rows that it cannot read, after it has read others: read the
            report again with ``fast=False``.
        """
        self._check_events(table, needed)
        names = ["start", "end", *columns]
        present = [c for c in names if c in self.columns(table)]
        for arrays, size in self._chunks(table, present, chosen=chosen) if present else ():
            found = dict(zip(present, arrays, strict=True))
            for name in names:
                found.setdefault(name, np.full(len(arrays[0]), NULL))
            self._check_times(table, found, open_ends=open_ends)
            yield found, size

    def collect(
        self,
        table: str,
        columns: Sequence[str],
        made: Callable[[dict[str, Int64]], Any],
        into: Callable[[], Any],
        needed: Sequence[str] = (),
        *,
        open_ends: bool = False,
    ) -> Any:
        """Append what is made of events, some at a time; of all where they are odd, or none are.

        Of its chunks only those that it has `chosen`, where what it is appended to has.
        """
        found = into()
        try:
            chosen = getattr(found, "chosen", None)
            chunks = self.event_chunks(
                table, columns, needed=needed, open_ends=open_ends, chosen=chosen
            )
            for rows, _ in chunks:
                found.append(made(rows))
        except (Unsupported, SchemaError):
            found = into()
        if not len(found):
            rows = self.read_events(table, columns, needed=needed, open_ends=open_ends)
            found.append(made(rows))
        return found

    def _check_events(self, table: str, needed: Sequence[str]) -> None:
        absent = {"start", "end", *needed}.difference(self.columns(table))
        if table in self._schema and absent:
            raise SchemaError(
                f"{self.path}: {table} has no column {', '.join(sorted(absent))}: the export is "
                f"half-written or not of Nsight Systems; make it again with: {EXPORT}"
            )

    def _check_times(self, table: str, found: dict[str, Int64], *, open_ends: bool) -> None:
        for name in ("start", "end"):
            times = found[name]
            odd = (times <= -_LATEST) | (times >= _LATEST)
            if open_ends and name == "end":
                odd &= times != NULL
            if odd.any():
                raise SchemaError(
                    f"{self.path}: {table}.{name}: expected times in ns; got "
                    f"{'none' if times[odd][0] == NULL else times[odd][0]} in {odd.sum()} of "
                    f"{len(times)} rows; "
                    f"the export is damaged: make it again with: {EXPORT}"
                )

    def read_text(
        self, table: str, column: str, kind: type[Texts] = Texts
    ) -> tuple[Int32, list[str], Numbered | None]:
        """Read a text column as codes into a list of its distinct strings; -1 stands for NULL.

        With them come the numbers in the texts, where that `kind` cuts them out.
        """
        if column not in self.columns(table):
            return np.empty(0, np.int32), [], None
        if self._pages is not None and self._schema[table].root:
            stored = self._schema[table]
            with suppress(Unsupported):
                return self._pages.read_text(stored.root, stored.columns.index(column), kind)
        codes: dict[str | None, int] = {None: -1}
        texts = (as_text(v) for (v,) in self.rows(table, [column]))
        array = np.fromiter((codes.setdefault(t, len(codes) - 1) for t in texts), np.int32)
        return array, [text for text in codes if text is not None], None

    def rows(
        self, table: str, columns: Sequence[str], where: str = ""
    ) -> Iterator[tuple[Any, ...]]:
        """Iterate over the rows of a small table; absent columns are None, absent tables empty.

        Only over those that hold something in the column `where`, if one is named.
        """
        if table not in self._schema:
            return
        have = self.columns(table)
        chosen = ", ".join(quoted(c) if c in have else "NULL" for c in columns)
        try:
            self._check(table)
            asked = f"SELECT {chosen} FROM {quoted(table)} NOT INDEXED"
            if where:
                asked += f" WHERE {quoted(where) if where in have else 'NULL'} IS NOT NULL"
            found = self._connection.execute(asked)
            # not the cursor itself: left in the middle it would be closed, too late for SQLite
            yield from map(tuple, found)
        except (sqlite3.Error, Damaged) as error:
            raise broken(self.path, error) from error

    def _on_pages(
        self, table: str, columns: Sequence[str]
    ) -> tuple[int, list[int], int | None, tuple[int, int]] | None:
        """Return the arguments of the page reader; None where it cannot read the columns."""
        stored = self._schema[table]
        if self._pages is None or stored.root == 0 or stored.real & set(columns):
            return None
        at = [stored.columns.index(c) for c in columns]
        return stored.root, at, stored.alias, stored.header_bytes

    def _read_pages(self, table: str, columns: Sequence[str]) -> list[Int64] | None:
        try:
            where = self._on_pages(table, columns)
            return self._pages.read(*where) if self._pages and where else None
        except Unsupported:
            return None
        except Damaged as error:
            raise broken(self.path, error) from error

    def _chunks(
        self, table: str, columns: list[str], *, fast: bool = True, chosen: Bool | None = None
    ) -> Iterator[tuple[list[Int64], int]]:
        where = self._on_pages(table, columns) if fast else None
        if self._pages is None or where is None:
            rows = self.rows(table, columns)
            read = (
                [self._integer(v, table) for row in islice(rows, _ROWS) for v in row]
                for _ in count()
            )
            for number, flat in enumerate(takewhile(bool, read)):
                if chosen is None or chosen[number]:
                    part = np.array(flat, np.int64).reshape(-1, len(columns)).T
                    yield [np.ascontiguousarray(c) for c in part], 0
            return
        try:
            yield from self._pages.chunks(*where, chosen=chosen)
        except Damaged as error:
            raise broken(self.path, error) from error

    def _check(self, table: str) -> None:
        """Let SQLite check that pages are used once, rows in order, and NOT NULL where it says."""
        stored = self._schema[table]
        if table in self._sound:
            return
        if self._pages is not None and stored.root:
            with suppress(Unsupported):
                self._pages.check(stored.root, stored.header_bytes)
        found = self._connection.execute(f"PRAGMA quick_check({quoted(table)})").fetchone()[0]
        if found != "ok":
            raise Damaged(found.removeprefix(_HEADLINE).partition("\n")[0])
        self._sound.add(table)

    def _integer(self, value: Any, table: str) -> int:
        if value is None:
            return NULL
        if type(value) is not int:
            raise SchemaError(
                f"{self.path}: {table}: expected integers; got {type(value).__name__} "
                f"{repr(value)[:40]}; the export is damaged or not of Nsight Systems: make it "
                f"again with: {EXPORT}"
            )
        return value


_REAL: Final = re.compile("REAL|FLOA|DOUB", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Stored:
    """An ordinary table: root page (0: read it with SQL), columns, rowid alias, REAL columns.

    `header_bytes` are the least and the most that the header of a row's record can have.
    """

    root: int
    columns: list[str]
    alias: int | None
    real: set[str]
    header_bytes: tuple[int, int]


def read_schema(connection: sqlite3.Connection) -> dict[str, Stored]:
    """Return the ordinary tables by name; views and virtual tables are none of them.

    Raises
    ------
    sqlite3.Error
        If SQLite cannot read the schema.
    """
    schema: dict[str, Stored] = {}
    statement = "SELECT name, rootpage FROM sqlite_master WHERE type = 'table'"
    for name, root in connection.execute(statement).fetchall():
        if not isinstance(name, str) or not isinstance(root, int) or root <= 0:
            continue  # virtual tables have no root page
        info = connection.execute(f"PRAGMA table_xinfo({quoted(name)})").fetchall()
        stored = [column for _, column, _, _, _, _, hidden in info if not hidden]
        indexes = connection.execute(f"PRAGMA index_list({quoted(name)})").fetchall()
        keys = [i for i, row in enumerate(info) if row[5]]
        alias = keys[0] if len(keys) == 1 and not any(i[3] == "pk" for i in indexes) else None
        if alias is not None and str(info[alias][2]).upper() != "INTEGER":
            alias = None
        generated = any(row[6] for row in info)
        real = {column for _, column, kind, *_ in info if _REAL.search(str(kind))}
        whole = sum(str(row[2]).upper() in ("INTEGER", "INT") for row in info)
        long = COUNT_BYTES * (len(info) - whole)  # the type of a whole number takes one byte
        header = (1 + len(stored), 2 + whole + long)
        schema[name] = Stored(0 if generated else root, stored, alias, real, header)
    return schema


def quoted(name: str) -> str:
    """Return a name as SQL writes it."""
    return '"' + name.replace('"', '""') + '"'


def needed_columns(
    db: Database, path: Path, table: str, needed: Sequence[str], more: Sequence[str] = ()
) -> dict[str, Int64]:
    """Return columns of a table by its column `start`; empty ones if the table is absent.

    Parameters
    ----------
    path : Path
        What errors call the report.
    needed : sequence of str
        Columns that must be there, without NULL; `start` is one of them.
    more : sequence of str
        Columns that may be absent or NULL, which is `perfmodel.readers.trace.NULL`.

    Raises
    ------
    SchemaError
        If a needed column is absent or holds NULL.
    """
    absent = sorted(set(needed).difference(db.columns(table)))
    if table in db.tables and absent:
        raise SchemaError(
            f"{path}: {table} has no column {', '.join(absent)}; make the export again, with "
            f"Nsight Systems 2023 or later: {EXPORT}"
        )
    found = db.read(table, [*needed, *more])
    for name in needed:
        if (found[name] == NULL).any():
            raise SchemaError(
                f"{path}: {table}.{name}: expected numbers; got NULL; make the export again with: "
                f"{EXPORT}"
            )
    order = np.argsort(found["start"], kind="stable")
    return {name: column[order] for name, column in found.items()}
