"""Evidence: what tells whether the repetitions of a loop are a program's steps.

A program is a nest of loops. Description length cannot say which of them is the step: `aaaab` is as
well four micro-batches and an optimizer as four steps and an evaluation. So the levels are visited
from the innermost one outward, and the step is the first level that is complete: each repetition
has what a step has, and what is beside repetitions is no part of one. With z_i the evidence for
level i and s(z) = 1 / (1 + exp(-z)), the probability that level i is the step, and that none is, is

    P(i) = s(z_i) prod_{j<i} (1 - s(z_j)),      P(none) = prod_j (1 - s(z_j)),

since the step is level i if it is complete and no level inside it is. z is linear in the columns of
`Evidence`, with weights that `python -m benchmarks.steps` fits by maximum likelihood.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from perfmodel.base.arrays import Bool, Floats, Int64, distinct_positions
from perfmodel.timing.loops import Loop, Operations

FEATURES: Final = (
    "one", "covered", "before", "behind", "explained", "always", "in_a_row", "replaced",
    "irregular", "regular", "lacking", "own", "alternating", "update_in_each", "update_in_some",
    "several_updates", "copy_in_each", "copy_in_some", "batches_between", "result_in_each",
    "result_in_some", "reports", "size", "count", "updates_known", "on_host",
)  # fmt: skip
"""Columns of the evidence, of a level's repetitions.

`one` is 1. `covered` is the logarithm of the share of time that repetitions take, each counted up
to 1.25 times the median one: what is longer holds other work; `before` and `behind` those of the
time from the first one on, and until the last one. `explained` is the logarithm of the share of all
time in kinds of operations that every repetition has, `always` of the share of these kinds.
`in_a_row` is the share of the kinds that only some repetitions in a row have, and `replaced` of
those that replace each other, as where a program is compiled again, if each repetition has inputs
or updates. `irregular` is the share of the kinds that some repetitions lack without a period, as
where the data decide what is launched; `regular` of those that come with a period, as what an outer
loop does around an inner one; `lacking` the logarithm of how many these are. `own` is the share of
time in kinds that most repetitions lack: an optimizer's between micro-batches, hardly any between
steps and an evaluation. `alternating` is how much of the differences in length repeats with a
period of 2 to 8, as of the halves of a step. `update_in_each` says that each repetition updates
parameters, `update_in_some` that only some do, `several_updates` that each does several times;
likewise copies of inputs to the GPU, and results to the host. `batches_between` says that some
repetitions have several times as many input copies as usual, as where an evaluation follows, and
`reports` that some return a result and have the inputs and updates of the others: what they lack
with a period counts for nothing then, and lengths are those in kinds that all have. `size` and
`count` are the logarithms of the operations of a repetition and of the repetitions. The last two
choose the row of `WEIGHTS`."""
WEIGHTS: Final[Mapping[str, tuple[float, ...]]] = {
    "updates": (
        2.00,
        0.34,
        0.64,
        0.19,
        0.22,
        1.04,
        -0.25,
        -6.62,
        -4.52,
        -5.32,
        -2.15,
        -1.40,
        -6.97,
        10.66,
        -10.72,
        0.45,
        4.04,
        -4.31,
        -3.70,
        1.20,
        2.40,
        -3.65,
        -0.46,
        0.12,
        -2.31,
        0.0,
    ),
    "no_updates": (
        2.48,
        5.10,
        7.44,
        2.73,
        1.40,
        0.25,
        -12.10,
        0.21,
        -22.56,
        -5.98,
        -0.86,
        -3.12,
        -12.28,
        0.0,
        0.0,
        0.0,
        4.10,
        0.63,
        -0.62,
        3.04,
        -3.23,
        2.68,
        0.82,
        0.16,
        0.0,
        0.0,
    ),
    "host": (
        14.00,
        0.43,
        -5.81,
        -0.01,
        0.17,
        4.34,
        0.0,
        0.0,
        0.0,
        -4.93,
        -2.88,
        -10.32,
        -2.51,
        0.0,
        0.0,
        0.0,
        0.0,
        0.0,
        0.0,
        2.19,
        -2.71,
        -2.71,
        -0.17,
        -0.88,
        0.0,
        -0.36,
    ),
}
"""Weights of the columns for programs whose updates of parameters are known, for others, and for
those without a GPU. From `python -m benchmarks.steps`."""
_CAP: Final = 1.25
_EACH: Final = 0.97
"""Share of the repetitions that counts as each: the first and the last may be cut."""
_MOST_COMPARED: Final = 200_000
"""Operations whose kinds are compared, in the middle of the recording; or two repetitions."""
_MOST_CELLS: Final = 1 << 26
"""Cells of a table of kinds by repetitions, a byte each: a larger one is sorted instead."""
_PERIODS: Final = range(2, 9)
"""Lengths of turns that are looked for."""
_SURELY: Final = 0.9
"""Share of the distances between repetitions with a kind that are equal, where it has a period."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What tells whether repetitions are steps: `features` in the order of `FEATURES`.

    `whole` is how many repetitions have every operation that nearly all have, less those that have
    not: what begins where others begin as well, such as an input's copy, adds repetitions that are
    none, and what some lack joins two.
    """

    features: Floats
    whole: int


def evidence(ops: Operations, loop: Loop, until_ns: Int64) -> Evidence:
    """Return the evidence for and against a loop as the program's steps.

    Parameters
    ----------
    ops : Operations
    loop : Loop
    until_ns : int64, shape (n + 1,)
        Time spent before each operation, and that of all.

    Returns
    -------
    Evidence
    """
    first = loop.first
    following = np.append(first[1:], loop.after[-1])
    everything = float(max(until_ns[-1], 1))
    covered = repeated_ns(loop, until_ns) / everything
    kinds = _presence(ops, first, following)
    updates, inputs, results = (
        _counts(marked, first, following)
        for marked in (_begins(ops.updates), ops.to_gpu, ops.to_host)
    )
    several = inputs.max(initial=0) >= 2 * max(float(np.median(inputs)), 1.0)
    reports = float(_only_reports(inputs, results, updates))
    features = np.array([
        1.0,
        np.log(max(covered, 1e-3)),
        np.log(max(1 - until_ns[first[0]] / everything, 1e-3)),
        np.log(max(until_ns[loop.after[-1]] / everything, 1e-3)),
        np.log(max(kinds.explained, 1e-3)),
        np.log(max(kinds.always, 1e-3)),
        kinds.in_a_row,
        kinds.replaced * max(_in_each(inputs, ops.to_gpu)[0], _in_each(updates, ops.updates)[0]),
        kinds.irregular,
        kinds.regular * (1 - reports),
        np.log1p(kinds.lacking),
        kinds.own,
        _alternating(kinds.common if reports else following - first),
        *_in_each(updates, ops.updates),
        float(np.median(updates) > 1),
        *_in_each(inputs, ops.to_gpu[first[0] :]),
        float(several),
        *_in_each(results, ops.to_host[first[0] :]),
        reports,
        np.log(max(float(np.median(following - first)), 1.0)),
        np.log(len(first)),
        float(ops.updates.any()),
        float(ops.on_host),
    ])  # fmt: skip
    return Evidence(features, round(len(first) * (2 * kinds.whole - 1)))


def repeated_ns(loop: Loop, until_ns: Int64) -> float:
    """Return the time of all repetitions, each counted up to 1.25 times the median one."""
    following = np.append(loop.first[1:], loop.after[-1])
    spent = (until_ns[following] - until_ns[loop.first]).astype(np.float64)
    return float(np.minimum(spent, _CAP * np.median(spent)).sum())


def alike(ops: Operations, loop: Loop) -> float:
    """Return the share of the kinds of operations in a loop that every repetition has."""
    return _presence(ops, loop.first, loop.after).always


def _begins(marked: Bool) -> Bool:
    """Return whether a run of marked operations begins at each place."""
    begins: Bool = marked & ~np.concatenate([[False], marked[:-1]])
    return begins


def _counts(marked: Bool, first: Int64, following: Int64) -> Int64:
    """Return the number of marked operations in each repetition."""
    before = np.concatenate([[0], np.cumsum(marked)])
    counts: Int64 = before[following] - before[first]
    return counts


def _in_each(counts: Int64, marked: Bool) -> tuple[float, float]:
    """Whether each repetition has what is marked; whether it is there, but not in each.

    What another thread launches may come a repetition early or late.
    """
    usual = float(np.median(counts))
    each = float((counts > 0).mean()) >= _EACH
    each |= usual > 0 and float(np.ptp(np.cumsum(counts - usual))) <= usual
    return float(each), float(not each and marked.any())


def _only_reports(inputs: Int64, results: Int64, updates: Int64) -> bool:
    """Whether some repetitions return a result, and do not differ in inputs and updates."""
    some = 0 < float((results > 0).mean()) < _EACH
    return (
        bool(some and (inputs[1:-1] == inputs[1]).all() and (updates[1:-1] == updates[1]).all())
        if len(inputs) > 2
        else False
    )


def _alternating(lengths: Int64) -> float:
    """Share of the variance of the lengths that is between those of one place in turns of 2 to 8.

    What chance explains, (period - 1) / (n - 1), is taken off.
    """
    count, total = len(lengths), float(lengths.var())
    best = 0.0
    for period in _PERIODS:
        if total == 0 or count < 3 * period:
            break
        place = np.arange(count) % period
        mean = np.bincount(place, lengths) / np.bincount(place)
        within = float(((lengths - mean[place]) ** 2).mean())
        best = max(best, 1 - within / total - (period - 1) / (count - 1))
    return best


def _distinct(values: Int64, most: int) -> Int64:
    """Return the distinct values, all less than `most`, ascending."""
    if most > _MOST_CELLS:
        return np.unique(values)
    return distinct_positions(values, most)


@dataclass(frozen=True, slots=True)
class _Presence:
    """Which kinds of operations the repetitions have.

    Attributes
    ----------
    always, in_a_row, replaced, irregular, regular : float
        Shares of the kinds that all repetitions have (of those that not only some in a row have),
        that only some in a row have, that others replace then (the smaller side, twice), that some
        have without a period, or with one.
    lacking : int
        Kinds that some lack.
    own, explained : float
        Share of the repetitions' time in kinds that most lack; of all time in kinds that all have.
    whole : float
        Share of the repetitions that have all of the kinds that nearly all have.
    common : int64, shape (repetitions compared,)
        Operations of each in these kinds.
    """

    always: float
    in_a_row: float
    replaced: float
    irregular: float
    regular: float
    lacking: int
    own: float
    explained: float
    whole: float
    common: Int64


def _presence(ops: Operations, first: Int64, following: Int64) -> _Presence:
    """Compare the kinds of operations of the repetitions.

    Kinds that only repetitions in a row have, such as those before a program is compiled again, or
    of one length of sequences, are neither irregular nor regular.
    """
    usual = max(int(np.median(following - first)), 1)
    compared = min(len(first), max(_MOST_COMPARED // usual, 2))
    middle = (len(first) - compared) // 2
    chosen = slice(middle, middle + compared)
    begin, end = int(first[chosen][0]), int(following[chosen][-1])
    codes = ops.codes[begin:end]
    kinds = np.flatnonzero(np.bincount(codes))
    kind = np.searchsorted(kinds, np.arange(int(kinds[-1]) + 1))[codes]
    number = np.searchsorted(first[chosen], np.arange(begin, end), side="right") - 1
    count = len(kinds)
    held = _distinct(kind * compared + number, count * compared)  # by kind, then by repetition
    of, place = held // compared, held % compared
    times = np.bincount(of, minlength=count)
    same = of[1:] == of[:-1]
    gaps, of_gap = np.diff(place)[same], of[1:][same]
    pairs = times - 1
    each = times >= _EACH * compared
    firsts = np.cumsum(pairs) - pairs
    typical = np.append(gaps, 0)[np.minimum(firsts + pairs // 2, len(gaps))]
    typical = np.where(pairs > 0, typical, 0)
    alike = np.bincount(of_gap, gaps == typical[of_gap], count) >= _SURELY * pairs
    in_a_row = ~each & (typical == 1) & (np.bincount(of_gap, gaps, count) == pairs)
    begins = np.concatenate([[0], np.cumsum(times)[:-1]])
    early = in_a_row & (place[begins] < compared / 4)
    late = in_a_row & (place[begins + pairs] >= 3 * compared / 4)
    some = (pairs > 0) & ~each & ~in_a_row
    regular = some & alike & (typical > 1)
    spent = np.bincount(kind, ops.spent_ns[begin:end], count)
    seldom = (times <= compared / 2) & ~in_a_row
    has = np.bincount(place[each[of]], minlength=compared)
    everywhere = np.bincount(ops.codes, ops.spent_ns)[kinds[each | in_a_row]].sum()
    return _Presence(
        always=float(each.sum()) / max(count - float(in_a_row.sum()), 1.0),
        in_a_row=float(in_a_row.sum()) / count,
        replaced=2 * min(float(early.sum()), float(late.sum())) / count,
        irregular=float((some & ~regular).sum()) / count,
        regular=float(regular.sum()) / count,
        lacking=int((~each & ~in_a_row).sum()),
        own=float(spent[seldom].sum()) / max(float(spent.sum()), 1.0),
        explained=float(everywhere) / max(float(ops.spent_ns.sum()), 1.0),
        whole=float((has == each.sum()).mean()),
        common=np.bincount(number[each[kind]], minlength=compared),
    )


def kind_of(features: Floats) -> str:
    """Return which weights a level has."""
    return "host" if features[-1] else "updates" if features[-2] else "no_updates"


def score(features: Floats) -> float:
    """Return z, the evidence for a level as a number."""
    return float(features @ np.array(WEIGHTS[kind_of(features)]))


_REASONS: Final[Mapping[str, tuple[str, str]]] = {
    "covered": ("", "much of the time is in none of them"),
    "always": ("", "they have few operations in common"),
    "irregular": ("", "some lack operations that others have"),
    "regular": ("", "some have more operations, with a period"),
    "update_in_each": ("each updates parameters", ""),
    "update_in_some": ("", "only some update parameters"),
    "copy_in_each": ("each copies inputs to the GPU", ""),
    "copy_in_some": ("", "only some copy inputs to the GPU"),
    "result_in_each": ("each returns a result", ""),
    "several_updates": ("", "each updates parameters several times"),
}
"""Texts for a level and against it, by feature."""


def reason(features: Floats) -> str:
    """Return the strongest evidence for a level, or against it, in words."""
    said = features * np.array(WEIGHTS[kind_of(features)])
    order = [i for i in np.argsort(-np.abs(said)).tolist() if abs(said[i]) > 0.5]
    texts = [_REASONS.get(FEATURES[i], ("", ""))[int(said[i] < 0)] for i in order]
    return ", ".join([text for text in texts if text][:2]) or "operations that repeat"


def chain(z: Sequence[float]) -> Floats:
    """Return P(i) of every level and, last, that none is the step, of levels from the innermost.

    >>> chain([0.0, 0.0]).tolist()
    [0.5, 0.25, 0.25]
    """
    complete = 1.0 / (1.0 + np.exp(-np.array(z, np.float64)))
    remaining = np.concatenate([[1.0], np.cumprod(1.0 - complete)])
    return np.append(complete * remaining[:-1], remaining[-1])
