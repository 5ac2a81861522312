"""Loops: at which places a sequence of operations begins again, at every level of its nest.

A program is a nest of loops, and its operations are what the nest unrolls to. An operation that
stands in a loop's body once (an *anchor*) occurs as often as the loop runs, and between two of its
occurrences every other such operation occurs once: anchors of one loop take turns. The body need
not be equal each time: only its anchors must be. Operations that stand in the body several times
are no anchors, but what follows one is: so pairs and fours of operations are looked at as well, and
the beginnings of runs of equal operations.

Levels nest: the anchors of an outer loop occur less often than those of the loops in it, so that
the number of occurrences orders the levels from the innermost one to the outermost.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from perfmodel.base.arrays import Bool, Int64

_GRAMS: Final = (1, 2, 4)
"""Lengths of the sequences of operations that are looked at as anchors. Longer ones add no level
in the programs of `tests/support/structured`."""
_IN_TURN: Final = 0.97
"""Share of the repetitions in which an anchor occurs exactly once."""
_MOST_ANCHORS: Final = 48
"""Anchors of one number of occurrences that are compared; those spread over the sequence."""
_MOST_GROUPS: Final = 48
"""Numbers of occurrences that are looked at, those of most operations first."""
_CLUSTERS: Final = 3
"""Loops that run equally often without taking turns, such as layers forward and backward."""
_AGREE: Final = 0.9
"""Share of repetitions that have the same operation before them, for it to belong to them."""
_SAME: Final = 0.02
"""Two levels are one if their numbers of repetitions differ by this share, or by one."""


@dataclass(frozen=True, slots=True)
class Operations:
    """A sequence of operations of one process, in the order in which it launched them.

    Attributes
    ----------
    codes : int64, shape (n,)
        Equal for equal operations, counted from 0.
    spent_ns : int64, shape (n,)
        How long each takes.
    to_gpu, to_host : bool, shape (n,)
        Which are copies between the host and the GPU.
    updates : bool, shape (n,)
        Which are known to be of an optimizer's step.
    on_host : bool
        Whether they are calls of a program without a GPU.
    """

    codes: Int64
    spent_ns: Int64
    to_gpu: Bool
    to_host: Bool
    updates: Bool
    on_host: bool = False

    def __len__(self) -> int:
        return len(self.codes)

    def slice(self, first: int, after: int) -> Operations:
        """Return those from one place to the one before another."""
        chosen = slice(first, after)
        return Operations(
            self.codes[chosen],
            self.spent_ns[chosen],
            self.to_gpu[chosen],
            self.to_host[chosen],
            self.updates[chosen],
        )

    @classmethod
    def of(cls, codes: Int64) -> Operations:
        """Operations that take equally long, of which nothing else is known."""
        no = np.zeros(len(codes), np.bool_)
        return cls(codes, np.ones(len(codes), np.int64), no, no, no)


@dataclass(frozen=True, slots=True)
class Loop:
    """One level of the nest.

    Attributes
    ----------
    first, after : int64, shape (repetitions,)
        Where each repetition begins, and the place behind its last operation.
    anchors : int
        Distinct operations, pairs and fours that each repetition has once.
    """

    first: Int64
    after: Int64
    anchors: int

    def __len__(self) -> int:
        return len(self.first)


def find_loops(codes: Int64, starts: Bool | None = None) -> tuple[Loop, ...]:
    """Find the levels of the loop nest of a sequence, the innermost one first.

    Parameters
    ----------
    codes : int64, shape (n,)
        Equal for equal operations.
    starts : bool, shape (n,), optional
        Places that begin something, such as the first operation after an optimizer's step: they
        are anchors, too.
    """
    if len(codes) < 2:
        return ()
    _, kinds = np.unique(codes, return_inverse=True)
    found: list[_Anchors] = []
    for place, grams in _sequences(kinds, starts):
        found += _anchors(place, grams)
    return tuple(
        _loop(kinds, one) for one in sorted(_merged(found), key=lambda one: -one.at.shape[1])
    )


@dataclass(frozen=True, slots=True)
class _Anchors:
    """Anchors of one loop: `at[i, j]` is the place of anchor i in repetition j; row 0 is first."""

    at: Int64
    count: int


def _sequences(kinds: Int64, starts: Bool | None) -> Iterator[tuple[Int64, Int64]]:
    """Yield places in the sequence and a code of what begins there."""
    everywhere = np.arange(len(kinds))
    begins_run = np.concatenate([[True], kinds[1:] != kinds[:-1]])
    runs = np.flatnonzero(begins_run)
    for place in [everywhere] if len(runs) == len(kinds) else [everywhere, runs]:
        grams = kinds[place]
        for length in _GRAMS:
            if length > 1:
                half = length // 2
                if len(grams) <= half:
                    break
                width = int(grams.max()) + 1
                joined = grams[:-half] * width + grams[half:]
                _, grams = np.unique(joined, return_inverse=True)
            yield place[: len(grams)], grams
    if starts is not None and starts.any():
        at = np.flatnonzero(starts)
        yield at, np.zeros(len(at), np.int64)


def _anchors(place: Int64, grams: Int64) -> Iterator[_Anchors]:
    """Group what occurs equally often and takes turns."""
    counts = np.bincount(grams)
    order = np.argsort(grams, kind="stable")
    begin = np.concatenate([[0], np.cumsum(counts)[:-1]])
    times, many = np.unique(counts[counts >= 2], return_counts=True)
    for i in np.argsort(-(times * many), kind="stable")[:_MOST_GROUPS].tolist():
        count = int(times[i])
        chosen = np.flatnonzero(counts == count)
        if len(chosen) > _MOST_ANCHORS:
            spread = np.linspace(0, len(chosen) - 1, _MOST_ANCHORS).astype(np.int64)
            by_place = np.argsort(order[begin[chosen]], kind="stable")
            kept = chosen[by_place[spread]]
        else:
            kept = chosen
        at = place[order[begin[kept][:, None] + np.arange(count)]]
        at = at[np.argsort(at[:, 0], kind="stable")]
        scale = len(chosen) / len(kept)
        for _ in range(_CLUSTERS):
            if len(at) == 0:
                break
            turns = _in_turn(at[0], at)
            yield _Anchors(at[turns], max(1, round(int(turns.sum()) * scale)))
            at = at[~turns]


def _in_turn(first: Int64, at: Int64) -> Bool:
    """Return whether anchors occur once from each occurrence of the first to its next."""
    held = at[:, :-1] < first[1:]
    held &= at[:, :-1] >= first[:-1]
    turns: Bool = (held.mean(axis=1) >= _IN_TURN) & (at[:, -1] >= first[-1])
    return turns


def _merged(found: Sequence[_Anchors]) -> list[_Anchors]:
    """Join anchors of one loop that were found among different sequences."""
    merged: list[_Anchors] = []
    for one in sorted(found, key=lambda one: (-one.at.shape[1], int(one.at[0, 0]))):
        for i, other in enumerate(merged):
            if other.at.shape == one.at.shape or other.at.shape[1] == one.at.shape[1]:
                early, late = sorted((other, one), key=lambda a: int(a.at[0, 0]))
                if _in_turn(early.at[0], late.at[-1:]).all():
                    rows = np.concatenate([early.at, late.at])
                    merged[i] = _Anchors(_edges(rows), one.count + other.count)
                    break
        else:
            merged.append(_Anchors(_edges(one.at), one.count))
    return merged


def _edges(at: Int64) -> Int64:
    """Keep the first and the last anchor of a loop."""
    first, last = at[int(np.argmin(at[:, 0]))], at[int(np.argmax(at[:, -1]))]
    return np.stack([first, last])


def _loop(kinds: Int64, anchors: _Anchors) -> Loop:
    """Where the repetitions of a loop begin and end.

    They begin before their first anchor, as far as most of them have the same operations there,
    and end as far behind their last anchor as is usual, where no other repetition begins.
    """
    first, last = anchors.at[0], anchors.at[-1]
    before = np.concatenate([[-1], last[:-1]])  # the last anchor of the repetition before
    back = 0
    while first[0] - back > 0:
        at = first - back - 1
        usual = kinds[at[0]]
        if ((kinds[at] == usual) & (at > before)).mean() < _AGREE:
            break
        back += 1
    begins = np.maximum(first - back, before + 1)
    count = len(kinds)
    following = np.append(begins[1:], count)
    rest = following[:-1] - last[:-1]
    usual = int(np.median(rest)) if len(rest) else count - int(last[-1])
    after = np.minimum(following, last + usual)
    # what follows in few repetitions only, such as an evaluation, is in none of them
    return Loop(begins, after, anchors.count)
