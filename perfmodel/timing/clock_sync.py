"""Clocks of a job's reports, aligned by what its collectives and messages allow.

No rank leaves a collective before all have come, and no message arrives before it was sent: each
bounds the difference of two reports' clocks from one side. The bounds of all together are a system
of difference constraints, whose shortest paths are the tightest ones (Cormen et al., Introduction
to Algorithms, 3rd ed., 24.4).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from perfmodel.base.arrays import Bool, Int64

FAR: Final = 1 << 60
"""A bound that is none."""


@dataclass(frozen=True, slots=True)
class Alignment:
    """Shifts that put all reports on the first one's clock.

    Attributes
    ----------
    shift_ns : int64, shape (reports,)
        To add to a report's times; 0 where its UTC times agree with what happened.
    bound_ns : int64, shape (reports,)
        A report's clock is known to so much, either way; `FAR` where one way is not.
    moved, drifting : int64
        Reports that were shifted, and those that no constant shift puts right: their shift is the
        one that is wrong by the least.
    """

    shift_ns: Int64
    bound_ns: Int64
    moved: Int64
    drifting: Int64


def utc_shifts(utc_start_ns: Sequence[int | None]) -> list[int]:
    """Return the shifts of reports' times, by their UTC starts, so that the first begins at 0."""
    base = min((t for t in utc_start_ns if t is not None), default=0)
    return [(base if t is None else t) - base for t in utc_start_ns]


def collective_limits(start_ns: Int64, end_ns: Int64, report: Int64) -> Int64:
    """Bounds by collectives that let nobody go before all have come, such as an all-reduce.

    Parameters
    ----------
    start_ns, end_ns : int64, shape (ranks, collectives)
    report : int64, shape (ranks,)
        Index of the report that a rank is in: ranks of one report share a clock.

    Returns
    -------
    int64, shape (reports, reports)
        What report j's shift is above report i's, at most.
    """
    reports = int(report.max(initial=0)) + 1
    come = np.full((reports, start_ns.shape[1]), np.iinfo(np.int64).min)
    gone = np.full((reports, start_ns.shape[1]), np.iinfo(np.int64).max)
    np.maximum.at(come, report, start_ns)
    np.minimum.at(gone, report, end_ns)
    return np.array([(left - come).min(axis=1, initial=FAR) for left in gone], np.int64)


def align(limits: Int64, guess_ns: Int64 | None = None) -> Alignment:
    """Find shifts within all bounds.

    If the clocks agree as far as one can tell, they stay. If not, the middle between the bounds is
    taken (Cristian 1989 so reads a remote clock from a message's round trip), or a better guess.

    Parameters
    ----------
    limits : int64, shape (reports, reports)
        As `collective_limits` returns them.
    guess_ns : int64, shape (reports,), optional
        Shifts to take where those of 0 are not possible.
    """
    count = len(limits)
    low, high = -limits[:, 0], limits[0].copy()
    drifting = low > high
    drifting[0] = False
    known = _tightest(limits, ~drifting)
    if (np.diagonal(known) < 0).any():
        drifting |= _contradicting(limits, ~drifting)
        known = _tightest(limits, ~drifting)
    least, most = -known[:, 0], known[0].copy()
    back, forth = known[:, 0].copy(), known[0].copy()  # to and from the reports with a shift
    shift = np.zeros(count, np.int64)
    for i in range(1, count):
        if drifting[i]:
            continue
        lowest, highest = int(-back[i]), int(forth[i])
        wanted = 0 if max(-lowest, highest) > FAR // 2 else lowest + (highest - lowest) // 2
        if guess_ns is not None:
            wanted = int(guess_ns[i])
        fits = lowest <= 0 <= highest
        shift[i] = 0 if fits else min(max(wanted, lowest), highest)
        np.minimum(back, known[:, i] - shift[i], out=back)
        np.minimum(forth, known[i] + shift[i], out=forth)
    for i in np.flatnonzero(drifting).tolist():
        low[i] = (shift - limits[i])[~drifting].max()
        high[i] = (shift + limits[:, i])[~drifting].min()
        if not high[i] <= 0 <= low[i]:
            shift[i] = high[i] + (low[i] - high[i]) // 2
    bound = np.where(drifting, low - high, np.maximum(most - shift, shift - least))
    bound[0] = 0
    bound[bound > FAR // 2] = FAR
    return Alignment(shift, bound, np.flatnonzero(shift), np.flatnonzero(drifting))


def _contradicting(limits: Int64, used: Bool) -> Bool:
    """Reports in use that no shift puts in order with the ones before them."""
    found = np.zeros(len(limits), np.bool_)
    taken, known = np.empty(0, np.int64), np.empty((0, 0), np.int64)
    for i in np.flatnonzero(used).tolist():
        above = (limits[i, taken][:, None] + known).min(axis=0, initial=FAR)
        below = (known + limits[taken, i]).min(axis=1, initial=FAR)
        if (above + below).min(initial=0) < 0:
            found[i] = True
            continue
        known = np.minimum(known, below[:, None] + above)
        known = np.block([[known, below[:, None]], [above, np.zeros((1, 1), np.int64)]])
        taken = np.append(taken, i)
    return found


def _tightest(limits: Int64, used: Bool) -> Int64:
    """Shortest paths between all reports in use (Floyd and Warshall)."""
    found = np.where(used[:, None] & used[None, :], limits, FAR)
    np.fill_diagonal(found, np.minimum(np.diagonal(found), 0))
    through = np.empty_like(found)
    for k in np.flatnonzero(used).tolist():
        np.add(found[:, [k]], found[k], out=through)
        np.minimum(found, through, out=found)
    return np.minimum(found, FAR)
