"""GPU operations and API calls of a large report by process, packed until each is measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from perfmodel.base.arrays import Arena, Int64
from perfmodel.readers.chunks import Chunks
from perfmodel.readers.codes import Codes, Ids, split_rows
from perfmodel.readers.order import in_order, row_order
from perfmodel.readers.trace import (
    NULL,
    PROCESS_BITS,
    ApiCalls,
    GpuOps,
    Trace,
    columns_of,
    join,
    rows,
)

_NARROW: Final = tuple((np.iinfo(kind).max, kind) for kind in (np.uint8, np.uint16, np.uint32))
_LARGEST: Final = 1 << 62
_Column = tuple[int | None, int, Any]
"""First value where differences are kept, least of what is kept, and how much above it each is."""
_ALIGNED: Final = 8
_ROW: Final = "row"


class Packed:
    """Rows of a table, added some at a time; every column in as few bytes as its values need.

    A part of a column is kept as its least value and what the others are above it, in one, two or
    four bytes each, or else its first value and the same of their differences. Of equal values
    nothing more is kept.
    """

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._parts: list[tuple[int, dict[str, _Column]]] = []
        self._types: dict[str, Any] = {}

    def __len__(self) -> int:
        return sum(count for count, _ in self._parts)

    def append(self, columns: dict[str, Any]) -> None:
        """Add rows."""
        self._types = {name: values.dtype for name, values in columns.items()}
        count = len(next(iter(columns.values())))
        if count:
            packed = {name: self._packed(values, name == _ROW) for name, values in columns.items()}
            self._parts.append((count, packed))

    def _packed(self, values: Any, by_step: bool) -> _Column:
        first, above, low = None, values, int(values.min())
        width = int(values.max()) - low
        if (by_step and width) or _NARROW[-1][0] < width < _LARGEST:
            first, above = int(values[0]), np.diff(values)
            low = int(above.min())
            width = int(above.max()) - low
        if width == 0:
            return first, low, None
        kind = next((k for most, k in _NARROW if width <= most), None)
        if kind is None:
            first, above, low, kind = None, values, 0, values.dtype
        size = len(above) * np.dtype(kind).itemsize
        place = self._arena.zeros(-(-size // _ALIGNED) * _ALIGNED)[:size].view(kind)
        np.subtract(above, low, out=place, casting="unsafe")
        return first, low, place

    def columns(self) -> dict[str, Any]:
        """Return all rows as they were."""
        return {name: self.column(name) for name in self._types}

    def column(self, name: str) -> Any:
        """Return one column of all rows."""
        found = np.empty(len(self), self._types[name])
        begin = 0
        for count, packed in self._parts:
            first, low, above = packed[name]
            place = found[begin : begin + count]
            values = place if first is None else place[1:]
            values[:] = low
            if above is not None:
                np.add(values, above, out=values, casting="unsafe")
            if first is not None:
                place[0] = first
                np.cumsum(place, out=place)
            begin += count
        return found


class Split:
    """Rows of one table by process.

    Parameters
    ----------
    column : str
        The table's column of codes of processes or threads.
    codes : Codes
        Their serialized ids; grow.
    arenas : dict
        Memory of every process; grows.

    Attributes
    ----------
    none
        The table without rows.
    """

    def __init__(self, column: str, codes: Codes, arenas: dict[int, Arena]) -> None:
        self._column, self._codes, self._arenas = column, codes, arenas
        self._packed: dict[int, Packed] = {}
        self.none: Any = None
        self._rows = 0
        self._chunks: list[tuple[int, ...]] = []

    def __len__(self) -> int:
        return self._rows

    @property
    def chunks(self) -> Chunks:
        """Return the pieces that were added."""
        return Chunks.of(self._chunks)

    def count(self, process: int) -> int:
        """Rows of a process that were not taken."""
        return len(self._packed[process]) if process in self._packed else 0

    def append(self, table: Any) -> None:
        """Add rows."""
        self.none = rows(table, slice(0, 0))
        distinct = self._codes.distinct
        ids = np.where(distinct == NULL, NULL, distinct & PROCESS_BITS)
        row = np.arange(self._rows, self._rows + len(table))
        for process, at in split_rows(ids, getattr(table, self._column)):
            if process not in self._packed:
                arena = self._arenas.setdefault(process, Arena(np.uint8))
                self._packed[process] = Packed(arena)
            columns = {name: getattr(table, name)[at] for name in columns_of(table)}
            self._packed[process].append({**columns, _ROW: row[at]})
        self._rows += len(table)
        if len(table):
            self._chunks.append(Chunks.of_rows(table))

    def take(self, processes: Sequence[int], *, keep: bool = False) -> tuple[Any, Int64]:
        """Return the rows of some processes and their numbers; drop or keep them."""
        packed = [self._packed[p] for p in processes if p in self._packed]
        for process in () if keep else processes:
            self._packed.pop(process, None)
        if not packed:
            return self.none, np.empty(0, np.int64)
        parts = [packed.pop(0).columns() for _ in range(len(packed))]
        if len(parts) == 1:
            columns = parts[0]
        else:
            columns = {n: np.concatenate([part.pop(n) for part in parts]) for n in [*parts[0]]}
        row = columns.pop(_ROW)
        return type(self.none)(**columns), row


def rows_of_report(rows: Sequence[Int64], counts: Sequence[int]) -> Int64:
    """Number rows of tables that lie one behind the other, given all tables' numbers of rows."""
    first = np.cumsum([0, *counts[:-1]]).tolist()
    return np.concatenate([at + n for at, n in zip(rows, first, strict=True)])


def ordered(
    trace: Trace, ops: GpuOps, row: Int64, api: ApiCalls, processes: Codes, threads: Codes
) -> tuple[GpuOps, ApiCalls, Int64]:
    """Number processes and threads, which are codes, as the trace does, and put events into order.

    `row` are the rows of the report's operations that `ops` are; they are returned behind these.
    """
    process = Ids(trace.processes).codes(processes.distinct)
    thread = Ids(trace.threads).codes(threads.distinct)
    ops = replace(ops, process=process[ops.process])
    order = row_order(ops, trace.strings)
    if order is not None:
        ops, row = rows(ops, order), row[order]
    return ops, in_order(replace(api, thread=thread[api.thread]), trace.strings), row


@dataclass(frozen=True, slots=True)
class EventsByProcess:
    """GPU operations and API calls of a report whose `Trace` holds none.

    Attributes
    ----------
    ops : sequence of Split
        One for each kind of operation.
    api : Split
    processes, threads : Codes
        What `GpuOps.process` and `ApiCalls.thread` are codes of.
    arenas : dict
        Memory of every process.
    """

    ops: Sequence[Split]
    api: Split
    processes: Codes
    threads: Codes
    arenas: dict[int, Arena]

    def count(self, trace: Trace) -> Int64:
        """Operations and calls of every process of the trace."""
        tables = (*self.ops, self.api)
        return np.array([sum(t.count(p) for t in tables) for p in trace.processes.tolist()])

    def take(
        self, trace: Trace, processes: Sequence[int], *, keep: bool = False
    ) -> tuple[GpuOps, ApiCalls, Int64]:
        """Return the operations and calls of some processes, and drop or keep them here.

        Parameters
        ----------
        trace : Trace
            Of the report; numbers its threads and processes.
        processes : sequence of int
            Positions in it; -1 for what no process is recorded of.

        Returns
        -------
        ops, api
        rows : int64 array
            Rows of the report's operations that the former are.
        """
        keys = [int(trace.processes[p]) if p >= 0 else NULL for p in processes]
        found = [split.take(keys, keep=keep) for split in self.ops]
        api, _ = self.api.take(keys, keep=keep)
        for key in () if keep else keys:
            self.arenas.pop(key, None)
        row = rows_of_report([at for _, at in found], [*map(len, self.ops)])
        ops = join([table for table, _ in found])
        return ordered(trace, ops, row, api, self.processes, self.threads)

    def whole(self, trace: Trace) -> Trace:
        """Return the trace with all operations and calls."""
        ops, api, _ = self.take(trace, range(-1, len(trace.processes)))
        return replace(trace, ops=ops, api=api, left_out=None)
