"""Rows of a large table that overlap a window of time."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from perfmodel.base.arrays import Bool, Int64
from perfmodel.readers.chunks import Chunks
from perfmodel.readers.trace import join, rows

_NONE: Final[Any] = np.empty(0, np.int64)


def overlaps(start_ns: Int64, end_ns: Int64, window: tuple[int, int]) -> Bool:
    """Mark what overlaps a window, or begins and ends at once in it."""
    low, high = window
    kept: Bool = (start_ns < high) & ((end_ns > low) | ((start_ns == end_ns) & (start_ns >= low)))
    return kept


class InWindow:
    """Rows of one table of events, added some at a time, of which those in a window are kept.

    So are the ones with the last start and the last end of what is added at a time.

    Parameters
    ----------
    window : (int, int)
        Its start and end in ns.
    chunks : Chunks
        Of the table.
    named, ids : int64 array
        Numbers and correlation ids, ascending, of rows that are kept, too.

    Attributes
    ----------
    chosen : bool array, shape (chunks,)
        Chunks that are to be added; or else all rows at once.
    """

    def __init__(
        self, window: tuple[int, int], chunks: Chunks, named: Int64 = _NONE, ids: Int64 = _NONE
    ) -> None:
        self._window, self._named, self._ids = window, named, ids
        self.chosen = chunks.holding(window, named, ids)
        first = np.cumsum(chunks.rows) - chunks.rows
        self._firsts = iter(first[self.chosen].tolist())
        self._all = int(chunks.rows.sum())
        self._tables: list[Any] = []
        self._rows: list[Int64] = []

    def __len__(self) -> int:
        return sum(map(len, self._rows))

    def append(self, table: Any) -> None:
        """Add the rows of the next chunk."""
        first = 0 if len(table) == self._all else next(self._firsts)
        keep = overlaps(table.start_ns, table.end_ns, self._window)
        low, high = np.searchsorted(self._named, (first, first + len(table)))
        keep[self._named[low:high] - first] = True
        if len(self._ids):
            ids = table.correlation
            near = np.flatnonzero((ids >= self._ids[0]) & (ids <= self._ids[-1]))
            keep[near[np.isin(ids[near], self._ids)]] = True
        if len(table):
            keep[[table.start_ns.argmax(), table.end_ns.argmax()]] = True
        at = np.flatnonzero(keep)
        self._tables.append(rows(table, at))
        self._rows.append(at + first)

    def take(self) -> tuple[Any, Int64]:
        """Return the rows that are kept and their numbers; drop them here."""
        return join(self._tables), np.concatenate(self._rows)
