"""Types of NumPy arrays in annotations, and large arrays handed out in pieces."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]
Int8 = npt.NDArray[np.int8]
Bool = npt.NDArray[np.bool_]

_DENSE: Final = 4


def distinct_rows(*columns: npt.NDArray[Any]) -> tuple[Int64, Int64]:
    """Distinct rows of integer columns, as ``np.unique(rows, axis=0, return_inverse=True)``.

    Where few values are possible they are marked in a table, in time linear in rows.

    Parameters
    ----------
    *columns : integer arrays, shape (n,)

    Returns
    -------
    rows : int64, shape (m, columns)
        Ascending.
    number : int64, shape (n,)
        Each row's position among these.
    """
    if len(columns[0]) == 0:
        return np.empty((0, len(columns)), np.int64), np.empty(0, np.int64)
    lows = [int(column.min()) for column in columns]
    widths = [int(column.max()) - low + 1 for column, low in zip(columns, lows, strict=True)]
    if math.prod(widths) >= 1 << 62:
        rows, number = np.unique(np.column_stack(columns), axis=0, return_inverse=True)
        return rows.astype(np.int64), number.ravel()
    code = np.zeros(len(columns[0]), np.int64)
    for column, low, width in zip(columns, lows, widths, strict=True):
        code = code * width + (column - low)
    if math.prod(widths) <= _DENSE * len(code) + (1 << 16):
        seen = np.zeros(math.prod(widths), np.bool_)
        seen[code] = True
        found, number = np.flatnonzero(seen), (np.cumsum(seen) - 1)[code]
    else:
        found, number = np.unique(code, return_inverse=True)
    rows = np.empty((len(found), len(columns)), np.int64)
    for i in range(len(columns) - 1, -1, -1):
        found, rest = np.divmod(found, widths[i])
        rows[:, i] = rest + lows[i]
    return rows, number


def distinct_positions(positions: Int32 | Int64, size: int) -> Int64:
    """Distinct positions in a table of `size` rows, ascending, in time linear in both."""
    seen = np.zeros(size, np.bool_)
    seen[positions] = True
    return np.flatnonzero(seen)


def release_freed() -> None:
    """Return to the system what was freed, where the C library (glibc) keeps it for later."""
    _glibc("malloc_trim", 0)


def keep_freed() -> None:
    """Keep what is freed for what is allocated next, if it is not too much.

    Where large arrays come and go, the system would else take back and clear their pages each time.
    """
    for option, size in ((_MMAP_THRESHOLD, 1 << 25), (_TRIM_THRESHOLD, 1 << 27)):
        _glibc("mallopt", option, size)


_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3


def _glibc(name: str, *arguments: int) -> None:
    import ctypes

    with suppress(OSError, AttributeError, TypeError):  # another C library
        getattr(ctypes.CDLL(None), name)(*arguments)


_BYTES: Final = 1 << 26  # beyond what an allocator keeps when it is freed: 32 MiB for glibc


class Arena:
    """Memory of one type, taken from the system in large parts that go back to it whole.

    Small arrays that live long, allocated between large ones that do not, would keep the memory
    of these from being used again. What is not written to takes no memory.
    """

    def __init__(self, kind: npt.DTypeLike) -> None:
        self._kind = np.dtype(kind)
        self._left: npt.NDArray[Any] = np.empty(0, self._kind)

    def zeros(self, size: int) -> npt.NDArray[Any]:
        """Return an array of zeros."""
        if size > len(self._left):
            self._left = np.zeros(max(size, _BYTES // self._kind.itemsize), self._kind)
        piece, self._left = self._left[:size], self._left[size:]
        return piece

    def kept(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return a copy of values."""
        piece = self.zeros(len(values))
        piece[:] = values
        return piece

    def __reduce__(self) -> tuple[type[Arena], tuple[np.dtype[Any]]]:
        return Arena, (self._kind,)  # what is left need not travel to another process


class Growing:
    """Columns of equal length that grow at their ends, by name.

    Where they are large, the system moves their pages: no column is in memory twice.
    """

    def __init__(self) -> None:
        self.columns: dict[str, npt.NDArray[Any]] = {}

    def append(self, columns: Mapping[str, npt.NDArray[Any]]) -> None:
        """Add rows."""
        for name, values in columns.items():
            known = self.columns.get(name)
            if known is None:
                self.columns[name] = values.copy()
            else:
                count = len(known)
                known.resize(count + len(values), refcheck=False)
                known[count:] = values
