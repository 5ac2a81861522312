"""Periods: what repeats in a sequence of operations, calls or ranges, and in their names."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np

from perfmodel.base.arrays import Bool, Int64

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

_LITTLE: Final = 0.05
"""Share of the time of steps with batches of their own that what is done now and then takes."""
_SHARED: Final = 3.0
"""An evaluation between steps without copies takes so many times longer in operations that they
have than in others."""
_FEW, _SMALL = 2, 0.1
"""So many kernels, or this share of a step's, make a result of many steps, such as a mean loss."""
_IN_COMMON: Final = (0.1, 0.9)
"""Least and largest share of a layer's operations in the forward pass that are in its backward
pass, too."""
_WINDOW, _DRAWS = 131072, 4
"""Operations whose autocorrelation is computed, and how often, with other random directions: the
mean has less noise."""

_DIGITS: Final = re.compile(r"\d+")

Cut = tuple[int, int, int]
"""Where the first period begins, its length, and how often it repeats."""


def pattern_of(name: str) -> str:
    """A range's name with every run of digits as `*`: what the names of steps have in common."""
    return _DIGITS.sub("*", name)


@dataclass(frozen=True, slots=True)
class Operations:
    """A sequence of operations.

    Attributes
    ----------
    codes : int64, shape (n,)
        Equal for equal operations.
    spent_ns : int64, shape (n,)
        How long each takes.
    to_gpu, to_host : bool, shape (n,)
        Which are copies between the host and the GPU.
    updates : bool, shape (n,)
        Which are an optimizer's, by name.
    """

    codes: Int64
    spent_ns: Int64
    to_gpu: Bool
    to_host: Bool
    updates: Bool

    @property
    def copies(self) -> Bool:
        """Which are copies in either direction."""
        return self.to_gpu | self.to_host

    @classmethod
    def of(cls, codes: Int64) -> Operations:
        """Operations that take equally long, of which nothing else is known."""
        no = np.zeros(len(codes), np.bool_)
        return cls(codes, np.ones(len(codes), np.int64), no, no, no)


def repetitions_of(ops: Operations) -> tuple[Int64, Int64] | None:
    """Find what a sequence repeats: where each repetition begins, and what comes after it.

    What repeats without a break may occur elsewhere, too, such as before and after a validation.
    Together the repetitions are at least half of the sequence, or, where breaks part them, three
    quarters: less could be the layers of a network. Breaks must not part what is nothing but a few
    operations, several times: those are iterations within a step. After a long set-up, such as a
    compiler's search for the fastest kernels, they may be less if they go on until the end. Where
    epochs repeat, the steps in them are taken. Where the data decide what is launched, such as by a
    mixture of experts, only what is in every repetition once is looked at.
    """
    cut = period_of(ops.codes, least=0.0)
    found = None if cut is None else _steps_by(ops, cut)
    found = found or _by_steady_codes(ops.codes)
    if found is None and cut is not None:  # which may be a coincidence of iterations
        inner = _within(ops, cut[0], cut[1])
        found = None if inner is None else _steps_by(ops, inner)
    return found


def _steps_by(ops: Operations, cut: Cut) -> tuple[Int64, Int64] | None:
    """Where the steps of a period begin, and what comes after each; None if it is not a step's."""
    begins = _most_of(ops, cut)
    return None if begins is None else _steps_of_epochs(ops, begins, cut[1])


def _most_of(ops: Operations, cut: Cut) -> Int64 | None:
    """Where repetitions begin, elsewhere, too; None if they are too little or part of a step."""
    first, period, repeats = cut
    if _are_layers(ops, cut):
        return None
    everywhere = _occurrences(ops.codes, first + period * np.arange(repeats), period)
    count, held = len(ops.codes), period * len(everywhere)
    lasts = repeats >= _SURELY and first + period * (repeats + 1) > count
    step = slice(first, first + period)
    parted = len(everywhere) > repeats and (
        _inner_iterations(ops.codes[step]) or _in_time_steps(ops, step, everywhere)
    )
    most = held >= _PARTED * count or lasts
    if not most and held >= count / 2 and repeats >= _STEADY:
        most = _is_no_part(ops, step, _left_over(everywhere, period, count))
    return everywhere if period * repeats >= count / 2 or (most and not parted) else None


def _within(ops: Operations, first: int, period: int) -> Cut | None:
    """What takes most of the time of two periods, of which the first may begin anywhere in it."""
    two = slice(first, first + 2 * period)
    inner = period_of(ops.codes[two], 0.0, ops.spent_ns[two])
    return None if inner is None else (first + inner[0], inner[1], inner[2])


def _are_layers(ops: Operations, cut: Cut) -> bool:
    """Whether what repeats are the layers' backward passes of one recorded step.

    Then their forward passes repeat as often before. Both have some kinds of operations in common:
    none would be a set-up, all would be steps or an evaluation.
    """
    first, period, repeats = cut
    before = period_of(ops.codes[:first], least=0.0)
    layer = slice(first, first + period)
    if before is None or before[1] < _STEADY or ops.copies[layer].any():
        return False
    other = slice(before[0], before[0] + before[1])
    more, fewer = sorted((before[2], repeats), reverse=True)
    as_often = more - fewer <= 1 or abs(more - 2 * fewer) <= 1  # DDP's buckets: of two layers each
    common = float(np.isin(ops.codes[other], ops.codes[layer]).mean())
    return as_often and _IN_COMMON[0] <= common <= _IN_COMMON[1]


def _left_over(begins: Int64, period: int, count: int) -> Int64:
    """Places from the first repetition until the end of a sequence that are in no repetition."""
    left = np.ones(count, np.bool_)
    left[: begins[0]] = False
    left[(begins[:, None] + np.arange(period)).ravel()] = False
    return np.flatnonzero(left)


def _steps_of_epochs(ops: Operations, begins: Int64, period: int) -> tuple[Int64, Int64]:
    """The repetitions, or what repeats within each of them, as long as that are steps of an epoch.

    Parameters
    ----------
    ops : Operations
    begins : int64, shape (repetitions,)
        Where each begins.
    period : int
        How many operations each has.

    Returns
    -------
    begins, ends : int64, shape (steps,)
        Where each step begins, and what comes after it.
    """
    first = int(begins[0])
    inner = _within(ops, first, period)
    if inner is None or period < _LEAST_REPEATS * inner[1]:
        return begins, begins + period
    at, length, repeats = inner[0], inner[1], min(inner[2], period // inner[1])
    step, rest = slice(at, at + length), np.arange(at + length * repeats, at + period)
    a_batch = ops.to_gpu[rest].any() and not ops.copies[step].any()
    if a_batch or not _is_no_part(ops, step, rest, repeats > len(begins)):
        return begins, begins + period
    found = _occurrences(ops.codes, at + length * np.arange(repeats), length)
    return _steps_of_epochs(ops, found, length)


def _is_no_part(ops: Operations, step: slice, rest: Int64, often: bool = True) -> bool:
    """Whether what is left beside repetitions is no part of a step.

    Layers, micro-batches and iterations of a solver repeat as well. What comes between those is a
    batch, or operations of other kinds: an optimizer's, an embedding's. Between the steps of two
    epochs are batches of an evaluation, or copies of results. Not every optimizer's kernels are
    known by name, and one of elementwise operations has none that a forward pass lacks: only where
    the repetitions update parameters are they steps without further evidence.

    Parameters
    ----------
    ops : Operations
    step : slice
        The operations of one repetition.
    rest : int64, shape (n,)
        Places of what is left, ascending.
    often : bool
        Whether there are more repetitions than places where something is left.
    """
    if ops.copies[step].all():
        return False
    kernels = rest[~ops.copies[rest]]
    own = kernels[~np.isin(ops.codes[kernels], ops.codes[step])]
    sent, sent_between = int(ops.to_gpu[step].sum()), int(ops.to_gpu[rest].sum())
    everything = float(ops.spent_ns[step.start : int(rest.max(initial=step.stop - 1)) + 1].sum())
    if len(kernels) == 0:  # an optimizer on the host sends the parameters, which takes long
        return float(ops.spent_ns[rest][ops.to_gpu[rest]].sum()) <= _LITTLE * everything
    complete = bool(ops.copies[step].any() and ops.updates[step].any())
    updated = bool(ops.updates[kernels].any())
    if ops.updates[own].any() or (updated and not complete):
        return False  # micro-batches, and their optimizer
    batches_between = sent_between >= 2 * sent > 0
    needed = sent_between > 0 and sent == 0  # by the repetitions, which get no batch of their own
    if complete and not needed and (batches_between or not updated):
        return True
    if updated and sent_between < sent:
        return False  # another network's step
    spent, new = (float(ops.spent_ns[at].sum()) for at in (kernels, own))
    if ops.to_host[rest].any() and len(kernels) <= max(_FEW, _SMALL * (step.stop - step.start)):
        return spent <= _LITTLE * everything  # a result, such as a mean loss
    if not ops.copies[step].any():
        return often and len(own) > 0 and new <= (spent - new) / _SHARED
    if sent and (complete or batches_between):
        return new <= max(spent - new, _LITTLE * everything)
    return False


def _in_time_steps(ops: Operations, step: slice, begins: Int64) -> bool:
    """Whether equal operations, which are a part of a step, part repetitions again and again."""
    period = step.stop - step.start
    ends = begins[:-1] + period
    breaks = [ops.codes[a:b] for a, b in zip(ends, begins[1:], strict=True) if b > a]
    if len(breaks) < _STEADY or not all(np.array_equal(one, breaks[0]) for one in breaks):
        return False
    at = np.flatnonzero(begins[1:] > ends)[0]
    rest = np.arange(ends[at], begins[at + 1])
    if ops.to_gpu[rest].any():  # a prompt, of which tokens are generated
        return False
    own = ~np.isin(ops.codes[rest], ops.codes[step]) & ~ops.copies[rest]
    return float(ops.spent_ns[rest][own].sum()) > float(ops.spent_ns[rest][~own].sum())


def _inner_iterations(pattern: Int64) -> bool:
    """Whether what repeats is, where others break it, nothing but iterations within a step."""
    again = period_of(pattern, 1.0)
    return len(pattern) < _SHORTEST or again is not None


def _by_steady_codes(codes: Int64) -> tuple[Int64, Int64] | None:
    """Repetitions by codes that occur equally often, most of them in turns.

    One of them begins a repetition: that after which most others come before it comes again.
    Repetitions are three quarters of the sequence, most of about one length, and no part of a step.
    Two codes are enough if none is over twice as long as the usual one.
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
        even = usual >= _SHORTEST and lengths.max() <= 2 * usual and 1 < len(at) == turns[best] + 1
        in_turns = turns[best] + 1 >= max(_STEADY, len(at) / 2) or even
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


def period_of(codes: Int64, least: float = 0.5, spent_ns: Int64 | None = None) -> Cut | None:
    """Find the period of a sequence: where it begins, its length, and how often it repeats.

    The beginning may differ (set-up, warm-up). Distances between occurrences of the rarest codes,
    and those at which most are equal, propose periods; the shortest of those that explain most of
    the sequence (of its time, where that is given) without a break is taken, if it is at least half
    of it (or another share, `least`).
    """
    count = len(codes)
    weights = np.ones(count, np.int64) if spent_ns is None else spent_ns
    until = np.concatenate([[0], np.cumsum(weights)])
    found: list[tuple[int, Cut]] = []
    for period in _proposed(codes):
        same = codes[period:] == codes[:-period]
        edges = np.flatnonzero(np.diff(np.concatenate([[0], same.view(np.int8), [0]])))
        starts, stops = edges[::2], edges[1::2]
        if len(starts) == 0:
            continue
        longest = int(np.argmax(until[stops + period] - until[starts]))
        first, length = int(starts[longest]), int(stops[longest] - starts[longest]) + period
        repeats = length // period
        if repeats >= _LEAST_REPEATS:
            # end with the recording, so that what is left over is set-up
            first += length - repeats * period if first + length == count else 0
            held = int(until[first + period * repeats] - until[first])
            found.append((held, (first, period, repeats)))
    covered = max((held for held, _ in found), default=0)
    if covered < until[-1] * least or not found:
        return None
    return min((cut for held, cut in found if held >= _NEARLY * covered), key=lambda cut: cut[1])


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
    often = sorted((g for g in votes if g <= _MOST_PERIOD), key=lambda g: -votes[g])[:_MOST_TRIED]
    return list(dict.fromkeys([*often, *_correlated(inverse)]))


def _correlated(kinds: Int64) -> list[int]:
    """Distances at which most operations are equal, in the last `_WINDOW` of them.

    The autocorrelation, by Fourier transforms, of unit vectors of random directions, one for each
    kind of operation: equal ones add 1, others about 0 (Wiener-Khinchin).
    """
    kinds = kinds[-_WINDOW:]
    if len(kinds) < _LEAST_REPEATS:
        return []
    random = np.random.default_rng(0)
    equal = np.zeros(len(kinds))
    for _ in range(_DRAWS):
        angles = random.uniform(0, 2 * np.pi, int(kinds.max(initial=0)) + 1)
        transformed = np.fft.fft(np.exp(1j * angles)[kinds], 2 * len(kinds))
        equal += np.fft.ifft(np.abs(transformed) ** 2).real[: len(kinds)]
    most = np.argsort(-equal[1 : len(kinds) // _LEAST_REPEATS + 1], kind="stable")
    return [int(lag) + 1 for lag in most[:_MOST_LAGS]]
