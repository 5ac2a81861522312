"""Rows of a large table that overlap a window of time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from perfmodel.base.arrays import Bool, Int64
from perfmodel.readers.trace import join, rows


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
    also : callable
        Given some rows and the number of the first one: which of them are kept, too.
    """

    def __init__(self, window: tuple[int, int], also: Callable[[Any, int], Bool]) -> None:
        self._window, self._also = window, also
        self._tables: list[Any] = []
        self._rows: list[Int64] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def append(self, table: Any) -> None:
        """Add rows."""
        keep = overlaps(table.start_ns, table.end_ns, self._window)
        keep |= self._also(table, self._count)
        if len(table):
            keep[[table.start_ns.argmax(), table.end_ns.argmax()]] = True
        at = np.flatnonzero(keep)
        self._tables.append(rows(table, at))
        self._rows.append(at + self._count)
        self._count += len(table)

    def take(self) -> tuple[Any, Int64]:
        """Return the rows that are kept and their numbers; drop them here."""
        return join(self._tables), np.concatenate(self._rows)
