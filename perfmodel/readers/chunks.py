"""Parts of a large table that are read at a time, and the places of the rows left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from perfmodel.base.arrays import Bool, Int64


@dataclass(frozen=True, slots=True)
class Chunks:
    """Rows of a table that are read at a time, shape (chunks,).

    Attributes
    ----------
    rows : int64
        Number of rows.
    first_ns, starts_ns, ends_ns : int64
        First start, last start and last end.
    least, most : int64
        Correlation ids.
    """

    rows: Int64
    first_ns: Int64
    starts_ns: Int64
    ends_ns: Int64
    least: Int64
    most: Int64

    @classmethod
    def of(cls, found: Sequence[tuple[int, ...]]) -> Chunks:
        """Put together what `of_rows` returns of every chunk."""
        return cls(*np.array(found, np.int64).reshape(-1, len(cls.__slots__)).T)

    @staticmethod
    def of_rows(table: Any) -> tuple[int, ...]:
        """Describe one chunk, of one row at least."""
        start, end, ids = table.start_ns, table.end_ns, table.correlation
        extremes = start.min(), start.max(), end.max(), ids.min(), ids.max()
        return len(table), *(int(value) for value in extremes)

    def holding(self, window: tuple[int, int], named: Int64, ids: Int64) -> Bool:
        """Mark the chunks that may hold rows in a window, or of these numbers or ids.

        So are those with the last start and the last end.
        """
        low, high = window
        keep: Bool = (self.first_ns < high) & (self.ends_ns >= low)
        keep |= np.searchsorted(ids, self.least) < np.searchsorted(ids, self.most, side="right")
        keep[np.searchsorted(np.cumsum(self.rows), named, side="right")] = True
        if len(keep):
            keep[[self.starts_ns.argmax(), self.ends_ns.argmax()]] = True
        return keep


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Places of the GPU operations and API calls that a trace was read without.

    Attributes
    ----------
    file : Path
        What was read: the report, or a temporary file made of it.
    stamp : tuple of int
        `perfmodel.readers.checks.stamp` of it when reading began.
    ops : tuple of Chunks
        Operations of every kind in it.
    api : Chunks
    """

    file: Path
    stamp: tuple[int, ...]
    ops: tuple[Chunks, ...]
    api: Chunks

    @property
    def op_counts(self) -> list[int]:
        """Number of operations of every kind."""
        return [int(chunks.rows.sum()) for chunks in self.ops]
