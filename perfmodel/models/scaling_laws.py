"""Laws of scaling: Amdahl's, Gustafson's, the serial fraction of one point, and of all points.

Sources: [A] G. M. Amdahl, *Validity of the single processor approach to achieving large scale
computing capabilities*, AFIPS Spring Joint Computer Conference 30, 483-485, 1967; [G] J. L.
Gustafson, *Reevaluating Amdahl's law*, Communications of the ACM 31(5), 532-533, 1988; [K] A. H.
Karp, H. P. Flatt, *Measuring parallel processor performance*, Communications of the ACM 33(5),
539-543, 1990.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.base.errors import ModelError

Law = Literal["Amdahl", "Gustafson"]
INTERVAL: Final = (2.5, 97.5)
"""Percentiles of the 95 % interval."""


def amdahl(ranks: int, serial: float) -> float:
    """Return the speed-up 1 / (s + (1 - s) / p) of a fixed problem [A].

    Parameters
    ----------
    ranks : int
        p.
    serial : float
        s, the share of one rank's time that is not divided among ranks. At -1 / (p - 1) and below
        nothing is left of the time: infinity.

    Examples
    --------
    >>> round(amdahl(4, 0.25), 4)  # 1 / (1/4 + 3/16)
    2.2857
    """
    left = serial + (1 - serial) / _checked(ranks)
    return 1 / left if left > 0 else float("inf")


def gustafson(ranks: int, serial: float) -> float:
    """Return the scaled speed-up p - s (p - 1) of a problem that grows with the ranks [G].

    Parameters
    ----------
    ranks : int
        p.
    serial : float
        s, the share of the time on p ranks that one rank would take just as long for.

    Examples
    --------
    >>> gustafson(4, 0.25)
    3.25
    """
    return _checked(ranks) - serial * (ranks - 1)


def karp_flatt(speedup: float, ranks: int) -> float:
    """Return e = (1/S - 1/p) / (1 - 1/p), the serial fraction from one speed-up [K].

    Where e grows with p, the loss is not a serial share but overhead that grows with the ranks;
    above 1 the ranks are slower than one, below 0 faster than p of them.

    Raises
    ------
    ModelError
        If there are fewer than two ranks, or the speed-up is not above 0.

    Examples
    --------
    >>> round(karp_flatt(2.2857142857, 4), 4)
    0.25
    """
    _tells(speedup, ranks)
    return (1 / speedup - 1 / ranks) / (1 - 1 / ranks)


def weak_fraction(speedup: float, ranks: int) -> float:
    """Return (p - S) / (p - 1), the s of Gustafson's law from one scaled speed-up [G].

    Raises
    ------
    ModelError
        As `karp_flatt`.

    Examples
    --------
    >>> weak_fraction(3.25, 4)
    0.25
    """
    _tells(speedup, ranks)
    return (ranks - speedup) / (ranks - 1)


@dataclass(frozen=True, slots=True)
class Fit:
    """A law fitted to speed-ups.

    Attributes
    ----------
    law : {'Amdahl', 'Gustafson'}
    serial : float
        s, not limited to 0 to 1: outside, the law does not describe the run.
    low, high : float or None
        95 % interval by resampling, None where one number a point was given.
    misfit : float or None
        Largest relative error of the law's speed-ups; None for one point, which it always fits.
    """

    law: Law
    serial: float
    low: float | None
    high: float | None
    misfit: float | None


def fit(law: Law, ranks: Sequence[int], speedups: Sequence[float], drawn: Floats | None) -> Fit:
    """Fit the serial fraction by least squares, where the law is linear in it.

    Amdahl: 1/S - 1/p = s (1 - 1/p), in times of one rank. Gustafson: p - S = s (p - 1).

    Parameters
    ----------
    law : {'Amdahl', 'Gustafson'}
    ranks : sequence of int
        p above 1; the speed-ups are over one rank.
    speedups : sequence of float, the same length
    drawn : array, shape (resamples, points), optional
        The same speed-ups in resamples of the measurements.

    Raises
    ------
    ModelError
        If there is no point of two or more ranks, or a speed-up is not above 0.
    """
    if not ranks or len(ranks) != len(speedups):
        raise ModelError(
            f"expected a speed-up for each of one or more numbers of ranks; got {len(speedups)} "
            f"for {len(ranks)}; measure one rank and more"
        )
    for one, of in zip(speedups, ranks, strict=True):
        _tells(one, of)
    p = np.array(ranks, float)
    serial = float(_solve(law, p, np.array([speedups], float))[0])
    low = high = None
    if drawn is not None:
        low, high = (float(q) for q in np.percentile(_solve(law, p, drawn), INTERVAL))
    of_law = amdahl if law == "Amdahl" else gustafson
    errors = [abs(of_law(n, serial) / s - 1) for n, s in zip(ranks, speedups, strict=True)]
    return Fit(law, serial, low, high, max(errors) if len(errors) > 1 else None)


def _solve(law: Law, p: Floats, speedups: Floats) -> Floats:
    if law == "Amdahl":
        x, y = 1 - 1 / p, 1 / speedups - 1 / p
    else:
        x, y = p - 1, p - speedups
    found: Floats = y @ x / (x @ x)
    return found


def _checked(ranks: int) -> int:
    if ranks < 1:
        raise ModelError(f"expected one or more ranks; got {ranks}; give how many there were")
    return ranks


def _tells(speedup: float, ranks: int) -> None:
    if ranks < 2 or not speedup > 0:
        raise ModelError(
            f"expected a speed-up above 0 on two or more ranks; got {speedup} on {ranks}; leave "
            "this point out"
        )
