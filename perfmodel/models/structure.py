"""The growth of a recorded step: repeated layers, and dimensions as products of symbols."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from perfmodel.base.errors import ModelError
from perfmodel.models.recorded import RecordedCall, RecordedStep, Size
from perfmodel.models.symbols import Term

_ANCHORS: Final = ("gemm", "attention")
"""Calls that make up a layer; what is between them may differ from layer to layer."""
_SHORTEST: Final = 4
"""Calls, or sizes of a list, of a layer at least."""
MOST_LAYERS: Final = 2000
"""Most calls of a predicted step: so many are listed and timed within some seconds."""
_OFF: Final = 2
"""Repetitions may be so many fewer than layers, where the first or last of them differ."""


@dataclass(frozen=True, slots=True)
class Run:
    """`count` times the same `period` elements from `start` on."""

    start: int
    period: int
    count: int

    @property
    def end(self) -> int:
        """The first element after the run."""
        return self.start + self.period * self.count


def runs_of(tokens: Sequence[object], least: int = 2) -> tuple[Run, ...]:
    """Find the longest repetitions of a sequence, then those before and after them.

    >>> runs_of(list("xabcdabcdabcdy"))
    (Run(start=1, period=4, count=3),)
    """
    known: dict[object, int] = {}
    codes = np.array([known.setdefault(t, len(known)) for t in tokens], np.int64)
    found: list[Run] = []

    def search(first: int, last: int) -> None:
        best: Run | None = None
        part = codes[first:last]
        for period in range(_SHORTEST, len(part) // least + 1):
            same = part[:-period] == part[period:]
            edges = np.flatnonzero(np.diff(np.concatenate([[0], same.view(np.int8), [0]])))
            for begin, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
                count = 1 + (end - begin) // period
                if count >= least and (best is None or period * count > best.period * best.count):
                    best = Run(first + begin, period, count)
        if best is not None:
            search(first, best.start)
            found.append(best)
            search(best.end, last)

    search(0, len(codes))
    return tuple(found)


def grown(run: Run, more: int) -> list[int]:
    """Which of the recorded repetitions is used for each of `count + more`.

    The first and the last are used once; those between take turns.

    >>> grown(Run(0, 4, 4), 3)
    [0, 1, 2, 1, 2, 1, 3]
    """
    count = max(run.count + more, 1)
    if count == 1:
        return [run.count - 1]
    middle = range(1, run.count - 1) or range(run.count - 1, run.count)
    return [0, *(middle[i % len(middle)] for i in range(count - 2)), run.count - 1]


def repeated(elements: Sequence[int], runs: Sequence[Run], more: int) -> list[int]:
    """Elements with every run `more` repetitions longer."""
    found: list[int] = []
    at = 0
    for run in runs:
        found += elements[at : run.start]
        for i in grown(run, more):
            found += elements[run.start + i * run.period : run.start + (i + 1) * run.period]
        at = run.end
    return [*found, *elements[at:]]


@dataclass(frozen=True, slots=True)
class Structure:
    """One recorded step, and what is known of how it grows.

    Attributes
    ----------
    step : RecordedStep
    sizes : mapping
        Of the recording by symbol, and the ranks 'p'.
    depth : str
        Symbol of the number of layers; '' where nothing repeats.
    terms : tuple
        Of every call, of every size, of every dimension the product that it is.
    """

    step: RecordedStep
    sizes: Mapping[str, int]
    depth: str
    terms: tuple[tuple[tuple[Term, ...], ...], ...]

    def calls_at(self, values: Mapping[str, int]) -> list[tuple[RecordedCall, tuple[Size, ...]]]:
        """Calls of a step of other sizes, in order, each with its sizes.

        Raises
        ------
        ModelError
            If there are too many layers.
        """
        if self.depth and values[self.depth] > MOST_LAYERS:
            raise ModelError(
                f"expected {self.depth} of at most {MOST_LAYERS}, whose calls are put down one by "
                f"one; got {values[self.depth]}; predict fewer layers"
            )
        more = self.more(values)
        sizes = [self._sizes_at(i, values, more) for i in range(len(self.step.calls))]
        order = self.step.order
        return [(self.step.calls[order[k]], sizes[order[k]]) for k in self.places_at(values)]

    def sizes_at(self, place: int, values: Mapping[str, int]) -> tuple[Size, ...]:
        """Sizes of the call at a place of the recorded order, in a step of other sizes."""
        return self._sizes_at(self.step.order[place], values, self.more(values))

    def more(self, values: Mapping[str, int]) -> int:
        """Layers to add."""
        return values[self.depth] - self.sizes[self.depth] if self.depth else 0

    def places_at(self, values: Mapping[str, int]) -> list[int]:
        """Return the place of each call of `calls_at` in the recorded order, by its anchor."""
        order = self.step.order
        anchor = [self.step.calls[i].kind in _ANCHORS for i in order]
        begins = [0, *(i for i, yes in enumerate(anchor) if yes and i), len(order)]
        slots = [range(a, b) for a, b in pairwise(begins) if b > a]
        tokens = [order[s[0]] if anchor[s[0]] else -1 for s in slots]
        runs = self.layers_of(tokens)
        chosen = repeated(range(len(slots)), runs, self.more(values))
        return [place for i in chosen for place in slots[i]]

    def layers_of(self, tokens: Sequence[object]) -> tuple[Run, ...]:
        """Repetitions of a sequence that are layers."""
        return self._layers(runs_of(tokens))

    def _layers(self, runs: Sequence[Run]) -> tuple[Run, ...]:
        """Those of the runs that are layers."""
        if not self.depth:
            return ()
        layers = self.sizes[self.depth]
        return tuple(r for r in runs if layers - _OFF <= r.count <= layers)

    def _sizes_at(self, call: int, values: Mapping[str, int], more: int) -> tuple[Size, ...]:
        one = self.step.calls[call]
        at = [tuple(term.number_at(values) for term in size) for size in self.terms[call]]
        runs = _layer_runs(one, self.sizes[self.depth]) if self.depth else ()
        if not runs or not more:
            return tuple(at)
        return tuple(at[i] for i in repeated(range(len(at)), runs, more))

    def arguments_at(self, call: RecordedCall, sizes: Sequence[Size]) -> int:
        """Return the number of sizes that are arguments."""
        return call.arguments + len(sizes) - len(call.sizes)


def _layer_runs(call: RecordedCall, layers: int) -> tuple[Run, ...]:
    """Layers in the lists of tensors that an operator takes, list by list."""
    sizes = call.sizes
    if len(sizes) < 3 * _SHORTEST:
        return ()
    lists = max(int(call.said.get("depth") or 1), 1)
    long = sum(map(bool, sizes)) // lists if lists > 1 else len(sizes)
    found: list[Run] = []
    for first in range(0, long * lists, long) if long else ():
        part = sizes[first : first + long]
        found += (
            Run(first + run.start, run.period, run.count)
            for run in runs_of(part)
            if layers - _OFF <= run.count <= layers
            and len({*part[run.start : run.start + run.period]} - {()}) > 1
        )
    return tuple(found)
