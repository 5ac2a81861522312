"""Dictionary encoding: small integer codes for identifiers in int64 columns, and sums by code."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from perfmodel.base.arrays import Int32, Int64
from perfmodel.base.errors import ReportError
from perfmodel.readers.trace import NO_NAME

_SAMPLE: Final = 997
_DENSE: Final = 4
_FEW: Final = 8
_LARGEST: Final = 9.2e18
_MOST: Final = int(np.iinfo(np.int64).max)


def factorize(values: Int64) -> tuple[Int32, Int64]:
    """Return codes and ascending distinct values such that ``distinct[codes] == values``.

    Reports hold few distinct threads and names over millions of rows, so candidates come from a
    sample; rows that no candidate explains add theirs. Linear in rows.
    """
    if len(values) == 0:
        return np.empty(0, np.int32), np.empty(0, np.int64)
    distinct = np.unique(values[:: max(1, len(values) // _SAMPLE)])
    while True:
        if len(distinct) <= _FEW:  # a few comparisons are faster than a search
            codes = np.zeros(len(values), np.int32)
            for value in distinct[1:]:
                codes += values >= value
        else:
            found = np.searchsorted(distinct, values)
            codes = np.minimum(found, len(distinct) - 1).astype(np.int32)
        missing = values[distinct.take(codes) != values]
        if len(missing) == 0:
            return codes, distinct
        distinct = np.union1d(distinct, missing)


class Codes:
    """Codes of the values met so far, in the order in which they came, with the least of each."""

    def __init__(self) -> None:
        self._known: dict[int, int] = {}
        self._least: list[int] = []

    def of(self, values: Int64, measured: Int64 | Int32) -> Int32:
        """Return the code of every value: its position in `distinct`.

        Parameters
        ----------
        values : int64 array, shape (n,)
        measured : integer array, shape (n,)
            Of this `least` is kept.
        """
        codes, distinct = factorize(values)
        recode = [self._known.setdefault(v, len(self._known)) for v in distinct.tolist()]
        self._least += [_MOST] * (len(self._known) - len(self._least))
        for code, one in zip(recode, least(codes, measured, len(distinct)), strict=True):
            self._least[code] = min(self._least[code], one)
        return np.array(recode, np.int32)[codes]

    @property
    def distinct(self) -> Int64:
        """The values, by code."""
        return np.array([*self._known], np.int64)

    @property
    def least(self) -> dict[int, int]:
        """Least that was measured, by value."""
        return dict(zip(self._known, self._least, strict=True))


def least(codes: Int32, measured: Int64 | Int32, groups: int) -> list[int]:
    """Return the least measured value by code; every code occurs."""
    if groups == 1:
        return [int(measured.min())]
    found = np.full(groups, np.iinfo(measured.dtype).max, measured.dtype)  # else it takes longer
    np.minimum.at(found, codes, measured)
    return [*map(int, found)]


def split_rows(ids: Int64, rows: Int32 | None = None) -> Iterator[tuple[int, Int64 | slice]]:
    """Yield every distinct id with its rows; row i has the id `ids[rows[i]]`, or `ids[i]`."""
    codes, distinct = factorize(ids)
    if len(distinct) == 0:
        return
    if len(distinct) == 1:
        yield int(distinct[0]), slice(None)
        return
    codes = codes if rows is None else codes[rows]
    order = np.argsort(codes.astype(np.uint16) if len(distinct) < 2**16 else codes, kind="stable")
    bounds = np.cumsum(np.bincount(codes, minlength=len(distinct)))[:-1]
    yield from zip(distinct.tolist(), np.split(order, bounds), strict=True)


def sums(codes: Int32 | Int64, values: Int64, groups: int) -> Int64:
    """Sum values by code.

    Raises
    ------
    ReportError
        If they leave the range of 64-bit integers.
    """
    check_sum(values)
    total = np.zeros(groups, np.int64)
    np.add.at(total, codes.astype(np.intp, copy=False), values)  # others are not added fast
    return total


def check_sum(values: Int64) -> None:
    """Raise `ReportError` if values, all of them together, may not be added up exactly."""
    most = max(int(values.max()), -int(values.min())) if len(values) else 0
    if most * len(values) > _LARGEST:
        check_magnitude(magnitude(values))


def magnitude(values: Int64) -> float:
    """Sum of the absolute values, as a float that cannot overflow."""
    return float(np.abs(values.astype(np.float64)).sum())


def check_magnitude(total: float) -> None:
    """Raise `ReportError` if a sum of absolute values may leave the range of 64-bit integers."""
    if total > _LARGEST:
        raise ReportError("times or sizes add up to more than 2^63: the report is damaged")


class Ids:
    """Codes of identifiers: the position of every id in the list it was made from.

    Parameters
    ----------
    ids : int64 array
        Distinct ids, in the order of the things they name; the first of equal ids counts.
    """

    def __init__(self, ids: Int64) -> None:
        order = np.argsort(ids, kind="stable")
        self._sorted, first = np.unique(ids[order], return_index=True)
        self._position = order[first].astype(np.int32)
        self._dense: Int32 | None = None
        if len(self._sorted) and self._sorted[0] >= 0:
            top = int(self._sorted[-1])
            if top < _DENSE * len(self._sorted) + 1024:
                self._dense = np.full(top + 2, NO_NAME, np.int32)
                self._dense[self._sorted] = self._position

    def codes(self, ids: Int64) -> Int32:
        """Return the position of every id, `NO_NAME` where it is unknown or NULL."""
        if len(self._sorted) == 0:
            return np.full(len(ids), NO_NAME, np.int32)
        if self._dense is not None:
            last = len(self._dense) - 1
            inside = np.where((ids >= 0) & (ids < last), ids, last)
            return self._dense[inside]
        at = np.minimum(np.searchsorted(self._sorted, ids), len(self._sorted) - 1)
        found = np.where(self._sorted[at] == ids, self._position[at], NO_NAME)
        return found.astype(np.int32)
