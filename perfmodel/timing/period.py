"""Periods: what repeats in a sequence of operations, calls or ranges, and in their names."""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from perfmodel.base.arrays import Int64

_LEAST_REPEATS: Final = 3
"""A sequence is periodic if it repeats at least so often."""
_NEARLY: Final = 0.9
"""Periods that explain this share of what the best one explains are as good; the shortest wins."""
_PARTED: Final = 0.75
"""Share of a sequence that repetitions hold at least where others than the first break them."""
_SHORTEST: Final = 8
"""Where breaks part them, shorter repetitions are iterations of a solver within its time steps."""
_SURELY: Final = 10
"""So often only steps repeat until the recording ends, however long set-up was before."""
_STEADY: Final = 4
"""So many codes that take turns are a step's, whatever else differs."""
_REGULAR: Final = 0.8
"""Of their length at most the rest is beyond twice the usual one: layers have other parts of a step
between them."""
_TOGETHER, _TOGETHER_SHARE = 3, 0.1
"""So many codes, and this share of those in every repetition, that occur in the same half of the
repetitions or fewer are no choice of the data: they are the loss and the optimizer, and what
repeats are layers, or they are batches of another kind."""
_GROUPS, _MOST_STEADY, _MOST_COMPARED = 5, 200, 50_000_000
"""Groups of codes that occur equally often that are looked at, the largest first; codes of one; and
how many places are compared to choose the first of them."""
_MOST_PERIOD: Final = 200_000
_MOST_CODES, _FEW_CODES, _MOST_LAGS, _MOST_TRIED = 400, 8, 64, 100
"""Codes looked at for a period; those of them that may occur several times in one, and how often;
periods tried."""

_DIGITS: Final = re.compile(r"\d+")

Cut = tuple[int, int, int]
"""Where the first period begins, its length, and how often it repeats."""


def pattern_of(name: str) -> str:
    """A range's name with every run of digits as `*`: what the names of steps have in common."""
    return _DIGITS.sub("*", name)


def repetitions_of(codes: Int64) -> tuple[Int64, Int64] | None:
    """Find what a sequence repeats: where each repetition begins, and what comes after it.

    What repeats without a break may occur elsewhere, too, such as before and after a validation.
    Together the repetitions are at least half of the sequence, or, where breaks part them, three
    quarters: less could be the layers of a network. Breaks must not part what is nothing but a few
    operations, several times: those are iterations within a step. After a long set-up, such as a
    compiler's search for the fastest kernels, they may be less if they go on until the end. Where
    the data decide what is launched, such as by a mixture of experts, only what is in every
    repetition once is looked at.
    """
    cut = period_of(codes, least=0.0)
    if cut is None:
        return _by_steady_codes(codes)
    first, period, repeats = cut
    everywhere = _occurrences(codes, first + period * np.arange(repeats), period)
    count, held = len(codes), period * len(everywhere)
    lasts = repeats >= _SURELY and first + period * (repeats + 1) > count
    parted = len(everywhere) > repeats and _inner_iterations(codes[first : first + period])
    if period * repeats >= count / 2 or ((held >= _PARTED * count or lasts) and not parted):
        return everywhere, everywhere + period
    return _by_steady_codes(codes)


def _inner_iterations(pattern: Int64) -> bool:
    """Whether what repeats is, where others break it, nothing but iterations within a step."""
    again = period_of(pattern, 1.0)
    return len(pattern) < _SHORTEST or again is not None


def _by_steady_codes(codes: Int64) -> tuple[Int64, Int64] | None:
    """Repetitions by codes that occur equally often, most of them in turns.

    One of them begins a repetition: that after which most others come before it comes again.
    Repetitions are three quarters of the sequence, most of about one length, and no part of a step.
    """
    _, inverse, counts = np.unique(codes, return_inverse=True, return_counts=True)
    times, kinds = np.unique(counts[counts >= _LEAST_REPEATS], return_counts=True)
    order = np.argsort(inverse, kind="stable")
    places = np.split(order, np.cumsum(counts)[:-1])
    for i in np.argsort(-kinds, kind="stable")[:_GROUPS].tolist():
        at = np.array([places[c] for c in np.flatnonzero(counts == times[i])[:_MOST_STEADY]])
        after = np.column_stack([at[:, 1:], np.full(len(at), len(codes))])
        tried = slice(max(_MOST_COMPARED // at.size, 1))
        turns = [int(((first < at) & (at < last)).all(axis=1).sum())
                 for first, last in zip(at[tried], after[tried], strict=True)]  # fmt: skip
        best = int(np.argmax(turns))
        begins = at[best]
        lengths = np.diff(begins)
        usual = int(np.median(lengths))
        regular = np.minimum(lengths, 2 * usual).sum() >= _REGULAR * lengths.sum()
        most = lengths.sum() + usual >= _PARTED * len(codes)
        in_turns = turns[best] + 1 >= max(_STEADY, len(at) / 2)
        if in_turns and regular and most and not _parts_of_a_step(codes, begins):
            return begins, np.append(begins[1:], min(int(begins[-1]) + usual, len(codes)))
    return None


def _parts_of_a_step(codes: Int64, begins: Int64) -> bool:
    """Whether many codes occur in the same few repetitions only, other than the first.

    The last repetition goes on until the end of the sequence.
    """
    number = np.searchsorted(begins, np.arange(begins[0], len(codes)), side="right") - 1
    _, kind = np.unique(codes[begins[0] :], return_inverse=True)
    inside = np.zeros((int(kind.max()) + 1, len(begins)), np.bool_)
    inside[kind, number] = True
    times = inside.sum(axis=1)
    few = inside[(times <= len(begins) / 2) & inside[:, 1:].any(axis=1)]
    together = np.unique(few, axis=0, return_counts=True)[1].max(initial=0)
    always = int((times == len(begins)).sum())
    return bool(together >= max(_TOGETHER, _TOGETHER_SHARE * always))


def _occurrences(codes: Int64, known: Int64, period: int) -> Int64:
    """Where a sequence has what it has at `known`, which follow each other, without overlaps."""
    pattern = codes[known[0] : known[0] + period]
    values, counts = np.unique(codes, return_counts=True)
    rarest = int(np.argmin(counts[np.searchsorted(values, pattern)]))
    begins = np.flatnonzero(codes == pattern[rarest]) - rarest
    begins = begins[(begins >= 0) & (begins + period <= len(codes))]
    begins = begins[(begins + period <= known[0]) | (begins >= known[-1] + period)]
    found, free = [], 0
    for begin in begins.tolist():
        if begin >= free and np.array_equal(codes[begin : begin + period], pattern):
            found.append(begin)
            free = begin + period
    return np.sort(np.concatenate([known, np.array(found, np.int64)]))


def period_of(codes: Int64, least: float = 0.5) -> Cut | None:
    """Find the period of a sequence: where it begins, its length, and how often it repeats.

    The beginning may differ (set-up, warm-up). Distances between occurrences of the rarest codes
    propose periods; the shortest of those that explain most of the sequence without a break is
    taken, if it is at least half of it (or another share, `least`).
    """
    count = len(codes)
    found = []
    for period in _proposed(codes):
        same = codes[period:] == codes[:-period]
        edges = np.flatnonzero(np.diff(np.concatenate([[0], same.view(np.int8), [0]])))
        starts, stops = edges[::2], edges[1::2]
        if len(starts) == 0:
            continue
        longest = int(np.argmax(stops - starts))
        first, length = int(starts[longest]), int(stops[longest] - starts[longest]) + period
        repeats = length // period
        if repeats >= _LEAST_REPEATS:
            # end with the recording, so that what is left over is set-up
            first += length - repeats * period if first + length == count else 0
            found.append((first, period, repeats))
    covered = max((period * repeats for _, period, repeats in found), default=0)
    if covered < count * least or not found:
        return None
    return min((f for f in found if f[1] * f[2] >= _NEARLY * covered), key=lambda f: f[1])


def _proposed(codes: Int64) -> list[int]:
    """Distances that may be a period, the most frequent first.

    A code that occurs m times a period repeats at the m-th occurrence after each.
    """
    _, inverse, counts = np.unique(codes, return_inverse=True, return_counts=True)
    order = np.argsort(inverse, kind="stable")
    places = np.split(order, np.cumsum(counts)[:-1])
    rare = [i for i in np.argsort(counts, kind="stable").tolist() if counts[i] >= _LEAST_REPEATS]
    votes: dict[int, int] = {}
    for rank, code in enumerate(rare[:_MOST_CODES]):
        at = places[code]
        lags = min(len(at) // 2, _MOST_LAGS) if rank < _FEW_CODES else 1
        for lag in range(1, lags + 1):
            size, times = np.unique(at[lag:] - at[:-lag], return_counts=True)
            for gap, n in zip(size[times >= 2].tolist(), times[times >= 2].tolist(), strict=True):
                votes[gap] = votes.get(gap, 0) + n * gap
    return sorted((g for g in votes if g <= _MOST_PERIOD), key=lambda g: -votes[g])[:_MOST_TRIED]
