"""Aligns the clocks of a job's reports by what its collectives allow."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfmodel.base.arrays import Int64


@dataclass(frozen=True, slots=True)
class Alignment:
    """Shifts that put all reports on the first one's clock.

    Attributes
    ----------
    shift_ns : int64, shape (reports,)
        To add to a report's times; 0 where its UTC times agree with the collectives.
    bound_ns : int64, shape (reports,)
        A report's clock is known to so much, either way.
    moved, drifting : int64
        Reports that were shifted, and those that no constant shift puts right, which are not.
    """

    shift_ns: Int64
    bound_ns: Int64
    moved: Int64
    drifting: Int64


def align(start_ns: Int64, end_ns: Int64, report: Int64) -> Alignment:
    """Find shifts with which nobody leaves a collective before everybody has come.

    The n-th collective ends on no rank before it has started on every rank. Between the first
    report and another one, each of their collectives bounds the shift of the other's clock from
    both sides; the bounds of all together leave an interval. If 0 is in it, the clocks agree as
    far as one can tell. If not, its middle is taken (Cristian 1989 so reads a remote clock from
    a message's round trip).

    Parameters
    ----------
    start_ns, end_ns : int64, shape (ranks, collectives)
        Of collectives that let nobody go before all have come, such as an all-reduce.
    report : int64, shape (ranks,)
        Index of the report that a rank is in: ranks of one report share a clock.
    """
    reports = int(report.max(initial=0)) + 1
    come = np.full((reports, start_ns.shape[1]), np.iinfo(np.int64).min)
    gone = np.full((reports, start_ns.shape[1]), np.iinfo(np.int64).max)
    np.maximum.at(come, report, start_ns)
    np.minimum.at(gone, report, end_ns)
    high = (gone[0] - come).min(axis=1)
    low = (come[0] - gone).max(axis=1)
    empty = low > high
    agrees = (low <= 0) & (high >= 0)
    shift = np.where(agrees | empty, 0, low + (high - low) // 2)
    bound = np.where(empty, low - high, np.maximum(high - shift, shift - low))
    shift[0] = bound[0] = 0
    others = np.arange(reports) > 0
    return Alignment(
        shift,
        bound,
        np.flatnonzero(others & ~agrees & ~empty),
        np.flatnonzero(others & empty),
    )
