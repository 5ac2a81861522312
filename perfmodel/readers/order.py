"""The one order of events, and how processes, threads and names are numbered: by time and meaning.

A `Trace` is made in this order, so that an analysis depends neither on the order in which a file
stores its rows nor on the ids in it.

- Events of a table are in the order in which they start. Of those that start at once the longest
  comes first, and one that never ended before all others, so that a parent comes before what is
  inside it. What starts and ends at once follows the columns of `_TIES`; events that are equal in
  these, too, are alike, and may come in any order.
- GPU operations are in this order within each kind, MPI calls within each table of the report.
- Processes are numbered by their rank, then by their GPU, then by their first event; threads by
  their process, then by their first event.
- Names of ranges are numbered in the order in which they first occur.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final, TypeVar

import numpy as np

from perfmodel.base.arrays import Bool, Int32, Int64
from perfmodel.readers.codes import Ids
from perfmodel.readers.trace import (
    NO_NAME,
    NULL,
    PROCESS_BITS,
    ApiCalls,
    Events,
    GpuOps,
    MpiCalls,
    NcclRanges,
    Ranges,
    rows,
)

E = TypeVar("E", bound=Events)
_Key = Callable[[Int64], Any]

_TIES: Final[Mapping[type[Events], tuple[str, ...]]] = {
    Ranges: ("thread", "style", "other_thread"),
    GpuOps: (
        "process", "device", "stream", "bytes", "copy_kind", "src_kind", "dst_kind",
    ),
    ApiCalls: ("thread",),
    MpiCalls: ("thread", "communicator", "own", "peer", "tag", "size_bytes", "least_bytes"),
    NcclRanges: ("thread", "communicator", "bytes"),
}  # fmt: skip
"""Columns that decide between events with the same start and end; behind them the text of the name.
Correlation ids and requests say nothing of an event: they are not among them."""

_BLOCKS: Final[Mapping[type[Events], str]] = {GpuOps: "kind", MpiCalls: "source"}
"""The column by which a table is first of all."""

_NEVER: Final = int(np.iinfo(np.int64).max)
_ROWS: Final = 1 << 18
"""Rows of which the first occurrences are sought at a time, so that they take little memory."""


def row_order(table: Events, texts: Sequence[str] = (), begun: Int64 | None = None) -> Int64 | None:
    """Return the rows of a table in order, None where they are.

    Parameters
    ----------
    table : Events
        Its rows must be by the column of `_BLOCKS`, if it has one.
    texts : sequence of str
        What the codes in its column `name` stand for.
    begun : int64 array, shape (n,), optional
        As in `ordered_ranges`.
    """
    blocks: Any = getattr(table, _BLOCKS.get(type(table), ""), np.empty(0, np.int8))
    edges = [0, *(np.flatnonzero(blocks[1:] != blocks[:-1]) + 1).tolist(), len(table)]
    keys = [*_keys(table, texts, begun)]
    found = None
    for first, last in pairwise(edges):
        mine = _block_order(table.start_ns[first:last], first, keys)
        if mine is not None:
            found = np.arange(len(table)) if found is None else found
            found[first:last] = mine
    return found


def _keys(table: Any, texts: Sequence[str], begun: Int64 | None) -> Iterator[_Key]:
    """Yield what decides between events that start at once, of some rows."""

    def shortness(row: Int64) -> Int64:
        end = table.end_ns[row]
        return np.where(end == NULL, NULL, -end)

    def text(row: Int64) -> Int64:
        named = [texts[code] if code >= 0 else "" for code in table.name[row].tolist()]
        return np.unique(named, return_inverse=True)[1]

    if hasattr(table, "end_ns"):
        yield shortness
    for name in _TIES[type(table)]:
        yield getattr(table, name).__getitem__
    if begun is not None:
        yield begun.__getitem__
    if hasattr(table, "name"):
        yield text


def _block_order(start: Int64, first: int, keys: Sequence[_Key]) -> Int64 | None:
    """Order the rows of one block, which begins at the row `first`; one pass where they are."""
    order = None
    if (start[1:] < start[:-1]).any():
        order = np.argsort(start, kind="stable")
        start, order = start[order], order + first
    equal = start[1:] == start[:-1]
    at: Int64 | slice = slice(None)
    for key in keys:  # of rows that are equal so far
        if not equal.any():
            break
        place, group = _equal_rows(equal)
        at = place if isinstance(at, slice) else at[place]
        value = key(at + first if order is None else order[at])
        same = group[1:] == group[:-1]
        if (same & (value[1:] < value[:-1])).any():
            better = np.lexsort((value, group))
            order = np.arange(first, first + len(start)) if order is None else order
            order[at], value = order[at[better]], value[better]
        equal = same & (value[1:] == value[:-1])
    return order


def _equal_rows(equal: Bool) -> tuple[Int64, Int64]:
    """Return the rows that are equal to a neighbour, and the number of each group of them."""
    kept = np.append(equal, False)
    kept[1:] |= equal
    rows = np.flatnonzero(kept)
    return rows, np.cumsum(~np.append(False, equal)[rows])


def in_order(table: E, texts: Sequence[str] = (), begun: Int64 | None = None) -> E:
    """Return a table with its rows in the order of `row_order`."""
    order = row_order(table, texts, begun)
    found: E = table if order is None else rows(table, order)
    return found


def ordered_ranges(
    ranges: Ranges, names: Sequence[str], begun: Int64 | None = None
) -> tuple[Ranges, Int64 | None]:
    """Return ranges in order, with their names numbered as they first occur.

    Parameters
    ----------
    ranges : Ranges
    names : sequence of str
    begun : int64 array, shape (n,), optional
        Numbers with which the recorder counted the ranges as they began. Where its clock is coarse,
        they say which of two ranges with the same start and end is the parent.

    Returns
    -------
    ranges : Ranges
    names : int64 array or None
        The names by their new numbers, None where these are the old ones.
    """
    ranges = in_order(ranges, names, begun)
    first = np.full(len(names) + 1, _NEVER)  # the last is that of no name
    for begin in range(0, len(ranges), _ROWS):
        part = ranges.name[begin : begin + _ROWS]
        np.minimum.at(first, part, np.arange(begin, begin + len(part)))
    old = np.argsort(first[:-1], kind="stable")
    if (old[1:] > old[:-1]).all():
        return ranges, None
    code = np.full(len(names) + 1, NO_NAME, np.int32)
    code[old] = np.arange(len(old), dtype=np.int32)
    return replace(ranges, name=code[ranges.name]), old


@dataclass(frozen=True, slots=True)
class Numbered:
    """Serialized ids of a report's processes and threads, in order.

    Attributes
    ----------
    processes : int64, shape (q,)
    threads : int64, shape (t,)
    """

    processes: Int64
    threads: Int64

    @property
    def thread_process(self) -> Int32:
        """Position in `processes` of every thread's."""
        return self.process(self.threads & PROCESS_BITS)

    def process(self, ids: Int64) -> Int32:
        """Return the positions of some processes, -1 for what is none."""
        return Ids(self.processes).codes(ids)

    def thread(self, ids: Int64) -> Int32:
        """Return the positions of some threads."""
        return Ids(self.threads).codes(ids)


def numbered(
    begun: Iterable[tuple[int, int]], gpu: Mapping[int, int], ranks: Mapping[int, int]
) -> Numbered:
    """Number processes and threads.

    Parameters
    ----------
    begun : iterable of (int, int)
        Threads with the starts of first events in ns; the first of these counts.
    gpu, ranks : mapping of int to int
        GPU and rank by process, of those that have one.
    """
    of_thread: dict[int, int] = {}
    of_process: dict[int, int] = {}
    for thread, at in begun:
        of_thread[thread] = min(of_thread.get(thread, at), at)
        process = thread & PROCESS_BITS
        of_process[process] = min(of_process.get(process, at), at)

    def place(process: int) -> tuple[int, ...]:
        return *(known.get(process, _NEVER) for known in (ranks, gpu, of_process)), process

    processes = sorted({*of_process, *gpu, *ranks}, key=place)
    threads = sorted(of_thread, key=lambda t: (place(t & PROCESS_BITS), of_thread[t], t))
    return Numbered(np.array(processes, np.int64), np.array(threads, np.int64))
