"""Figures of groups of values: count, total, median, deviation, rounded as SQLite rounds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from perfmodel.readers.codes import check_sum
from perfmodel.trace import Bool, Int32, Int64

_FINE: Final = 15
_SIGNIFICANT: Final = 16
_WHOLE: Final = 2.0**52


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


def summarize(codes: Int32, values: Int64, groups: int, valid: Bool | None = None) -> Groups:
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
    if valid is not None:
        codes, values = codes[valid], values[valid]
    check_sum(values)
    timed = np.bincount(codes, minlength=groups).astype(np.int64)
    small = codes.astype(np.uint16) if groups < 2**16 else codes
    ordered = values[np.argsort(small, kind="stable")]
    ends = np.cumsum(timed)
    mean, median, stddev = (np.full(groups, np.nan) for _ in range(3))
    total, low, high = (np.zeros(groups, np.int64) for _ in range(3))
    for g, (lo, hi) in enumerate(zip((ends - timed).tolist(), ends.tolist(), strict=True)):
        n = hi - lo
        if n == 0:
            continue
        part = np.partition(ordered[lo:hi], ((n - 1) // 2, n // 2))
        total[g], low[g], high[g] = part.sum(), part.min(), part.max()
        mean[g] = total[g] / n
        median[g] = (float(part[(n - 1) // 2]) + float(part[n // 2])) / 2
        stddev[g] = np.sqrt(np.square(part - mean[g]).sum() / (n - 1)) if n > 1 else 0.0
    return Groups(count, timed, total, low, high, mean, median, stddev)


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
