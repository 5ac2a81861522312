"""Figures of groups of values: count, total, median, deviation, rounded as SQLite rounds."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from perfmodel.base.arena import Arena
from perfmodel.base.arrays import Bool, Int32, Int64
from perfmodel.readers.codes import check_magnitude, magnitude

_FINE: Final = 15
_SIGNIFICANT: Final = 16
_WHOLE: Final = 2.0**52
_BLOCK: Final = 1 << 18


@dataclass(frozen=True, slots=True)
class Groups:
    """Summary of int64 values by group: `count` instances, of which `timed` have a value."""

    count: Int64
    timed: Int64
    total: Int64
    minimum: Int64
    maximum: Int64
    mean: Any
    median: Any
    stddev: Any


class Tally:
    """Values by group, added chunk by chunk: as many bytes as their exact medians need.

    A chunk is kept sorted by group, in 4 bytes a value where that is enough.
    """

    def __init__(self) -> None:
        self._chunks: list[npt.NDArray[Any]] = []
        self._codes: list[Int64] = []
        self._counts: list[Int64] = []
        self._magnitude = 0.0
        self._narrow, self._wide = Arena(np.uint32), Arena(np.int64)

    def add(self, codes: Int32 | Int64, values: Int64) -> None:
        """Add values with their group codes, which are not negative.

        Raises
        ------
        ReportError
            If the sum of all values leaves the range of 64-bit integers.
        """
        if len(values) == 0:
            return
        self._magnitude += magnitude(values)
        check_magnitude(self._magnitude)
        small = codes.astype(np.uint16) if int(codes.max()) < 2**16 else codes
        order = np.argsort(small, kind="stable")
        code, ordered = small[order], values[order]
        heads = np.flatnonzero(np.concatenate([[True], code[1:] != code[:-1]]))
        fits = ordered.min() >= 0 and ordered.max() < 2**32
        self._chunks.append((self._narrow if fits else self._wide).kept(ordered))
        self._codes.append(code[heads].astype(np.int64))
        self._counts.append(np.diff(np.append(heads, len(code))))

    def merge(self, other: Tally, recode: Int64) -> None:
        """Add another tally's values behind one's own; its code i is `recode[i]` here."""
        self._magnitude += other._magnitude
        check_magnitude(self._magnitude)
        self._chunks += other._chunks
        self._codes += [recode[codes] for codes in other._codes]
        self._counts += other._counts

    def groups(self, size: int) -> Groups:
        """Summarize the groups 0 to `size` - 1; a group without values counts none."""
        if not self._chunks:
            none = np.zeros(size, np.int64)
            nan = np.full(size, np.nan)
            return Groups(none, none, none, none, none, nan, nan.copy(), nan.copy())
        code, counts = np.concatenate(self._codes), np.concatenate(self._counts)
        chunk = np.repeat(np.arange(len(self._codes)), [len(c) for c in self._codes])
        first = np.concatenate([np.cumsum(c) - c for c in self._counts])
        order = np.argsort(code, kind="stable")
        pieces = np.searchsorted(code[order], np.arange(size + 1))
        timed, total, low, high = (np.zeros(size, np.int64) for _ in range(4))
        mean, median, stddev = (np.full(size, np.nan) for _ in range(3))
        for g, (lo, hi) in enumerate(pairwise(pieces.tolist())):
            if lo == hi:
                continue
            where = (a[order[lo:hi]].tolist() for a in (chunk, first, counts))
            part = np.concatenate(
                [self._chunks[c][f : f + n] for c, f, n in zip(*where, strict=True)]
            )
            n = len(part)
            timed[g], total[g] = n, part.sum(dtype=np.int64)
            mean[g] = total[g] / n
            stddev[g] = _deviation(part, float(mean[g])) if n > 1 else 0.0
            part.partition(((n - 1) // 2, n // 2))
            median[g] = (float(part[(n - 1) // 2]) + float(part[n // 2])) / 2
            low[g], high[g] = part.min(), part.max()
        return Groups(timed, timed, total, low, high, mean, median, stddev)


def _deviation(values: npt.NDArray[Any], mean: float) -> float:
    """Sample standard deviation, block by block: the same however the values came in."""
    squares = (
        float(np.square(values[i : i + _BLOCK].astype(np.float64) - mean).sum())
        for i in range(0, len(values), _BLOCK)
    )
    return math.sqrt(math.fsum(squares) / (len(values) - 1))


def summarize(
    codes: Int32 | Int64, values: Int64, groups: int, valid: Bool | None = None
) -> Groups:
    """Summarize `values` by group code.

    Median of an even count is the mean of the middle two; the standard deviation is the sample
    one (n - 1), 0.0 for a single value. Groups must not be empty; values that are not `valid`
    count as instances only.

    Raises
    ------
    ReportError
        If a sum leaves the range of 64-bit integers.
    """
    count = np.bincount(codes, minlength=groups).astype(np.int64)
    tally = Tally()
    tally.add(*((codes, values) if valid is None else (codes[valid], values[valid])))
    return replace(tally.groups(groups), count=count)


def round_half_up(value: float, digits: int = 1) -> float:
    """Round to one or more decimals, half away from zero, as SQLite before 3.43 does.

    Nsight Systems 2024.2 rounds with it. It adds half a unit, and below about 4e12 also 3e-16 of
    the value, in extended precision, and takes up to sixteen digits off the sum one by one, with
    their rounding errors: so 1.25 gives 1.3, and so does the double just below it.

    Source: `sqlite3_str_vappendf`, case etFLOAT, of SQLite 3.40.
    """
    if abs(value) > _WHOLE:
        return value
    left = np.longdouble(abs(value))
    half = np.longdouble(0.5) / 10**digits
    if digits + (math.frexp(value)[1] - 1) // 3 < _FINE:
        half += left * np.longdouble(3e-16)
    left += half
    exponent = max(len(str(int(left))) - 1, 0)
    left /= np.longdouble(10**exponent)
    while left < 1:
        left *= 10
        exponent -= 1
    wanted = exponent + 1 + digits
    units = 0
    for _ in range(min(wanted, _SIGNIFICANT)):
        digit = int(left)
        left = (left - digit) * 10
        units = 10 * units + digit
    return math.copysign(units * 10 ** max(wanted - _SIGNIFICANT, 0) / 10**digits, value)
