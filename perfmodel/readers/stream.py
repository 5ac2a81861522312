"""Streams the large tables of an export: API calls and GPU operations, some rows at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np

from perfmodel.base.arrays import Int8, Int32, Int64
from perfmodel.readers.nsys import API_TABLE, OP_TABLES, check_export, narrow, read_strings
from perfmodel.readers.sqlite import Database
from perfmodel.readers.trace import NO_NAME, NULL

Progress = Callable[[int], object]
"""Called with the bytes of the file that were read since the call before."""


class Calls(NamedTuple):
    """Some API calls, as in `perfmodel.readers.trace.ApiCalls`, with serialized thread ids."""

    start_ns: Int64
    end_ns: Int64
    tid: Int64
    correlation: Int64
    name: Int32


class Ops(NamedTuple):
    """Some GPU operations of one kind, as in `readers.trace.GpuOps`; `pid` is serialized."""

    kind: int
    start_ns: Int64
    end_ns: Int64
    pid: Int64
    correlation: Int64
    name: Int32
    bytes: Int64
    copy_kind: Int8


class EventStream:
    """An export whose large tables are read some rows at a time.

    Parameters
    ----------
    path : Path
        The SQLite file.
    source : Path
        What errors call it.
    fast : bool
        Parse leaf pages directly. What the page reader cannot read, it may find out late: it then
        raises `perfmodel.readers.pages.Unsupported`.
    progress : callable

    Raises
    ------
    ReportError, SchemaError
        As `perfmodel.readers.nsys.read_sqlite`.
    """

    def __init__(self, path: Path, source: Path, *, fast: bool, progress: Progress) -> None:
        self._db = Database(path, fast=fast, shown=source)
        self._progress = progress
        try:
            check_export(self._db)
            self._ids, self.strings = read_strings(self._db)
        except BaseException:
            self._db.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._db.close()

    def calls(self, *, names: bool, joins: bool) -> Iterator[Calls]:
        """Yield all API calls in row order, with their names or with what joins them to GPU work.

        What is not asked for is missing (`NO_NAME`, `NULL`), which costs no memory.
        """
        needed = ["globalTid", "correlationId"]
        columns = [*(needed if joins else ()), *(["nameId"] if names else ())]
        read = self._db.event_chunks(API_TABLE, columns, needed=needed, open_ends=False)
        for rows, size in read:
            shape = rows["start"].shape
            yield Calls(
                rows["start"],
                rows["end"],
                rows["globalTid"] if joins else _missing(shape),
                rows["correlationId"] if joins else _missing(shape),
                self._ids.codes(rows["nameId"]) if names else _unnamed(shape),
            )
            self._progress(size)

    def ops(self, *, details: bool, joins: bool) -> Iterator[Ops]:
        """Yield all GPU operations kind by kind, with sizes and directions if `details`."""
        columns = ["demangledName", *(["correlationId", "globalPid"] if joins else [])]
        columns += ["bytes", "copyKind"] if details else []
        for kind, table in OP_TABLES:
            have = self._db.columns(table)
            expected = [c for c in columns if c in have]
            for rows, size in self._db.event_chunks(table, expected, open_ends=False):
                shape = rows["start"].shape
                names = rows.get("demangledName")
                directions = rows.get("copyKind")
                yield Ops(
                    kind,
                    rows["start"],
                    rows["end"],
                    rows.get("globalPid", _missing(shape)),
                    rows.get("correlationId", _missing(shape)),
                    _unnamed(shape) if names is None else self._ids.codes(names),
                    rows.get("bytes", _missing(shape)),
                    narrow(directions, shape[0], np.int8),
                )
                self._progress(size)


def _missing(shape: tuple[int, ...]) -> Int64:
    return np.broadcast_to(np.int64(NULL), shape)


def _unnamed(shape: tuple[int, ...]) -> Int32:
    return np.broadcast_to(np.int32(NO_NAME), shape)
