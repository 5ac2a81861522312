"""The growth of a recorded step: repeated layers, and dimensions as products of symbols."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import pairwise
from typing import Final

import numpy as np

from perfmodel.base.errors import ModelError
from perfmodel.models.recorded import RecordedCall, RecordedStep, Size
from perfmodel.models.symbols import Term, terms_of, value_at

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
    depth : str
        Symbol of the number of layers; '' where nothing repeats.
    terms : tuple
        Of every call, of every size, of every dimension the products that it can be.
    unresolved : tuple of str
        Dimensions that are no product of symbols; they keep their recorded value.
    """

    step: RecordedStep
    depth: str
    terms: tuple[tuple[tuple[tuple[Term, ...], ...], ...], ...]
    unresolved: tuple[str, ...] = field(default=())

    def calls_at(self, values: Mapping[str, int]) -> list[tuple[RecordedCall, tuple[Size, ...]]]:
        """Calls of a step of other sizes, in order, each with its sizes.

        Raises
        ------
        ModelError
            If a dimension is ambiguous at these sizes.
        """
        if self.depth and values[self.depth] > MOST_LAYERS:
            raise ModelError(
                f"expected {self.depth} of at most {MOST_LAYERS}, whose calls are put down one by "
                f"one; got {values[self.depth]}; predict fewer layers"
            )
        more = self._more(values)
        sizes = [self._sizes_at(i, values, more) for i in range(len(self.step.calls))]
        order = self.step.order
        return [(self.step.calls[order[k]], sizes[order[k]]) for k in self.places_at(values)]

    def sizes_at(self, place: int, values: Mapping[str, int]) -> tuple[Size, ...]:
        """Sizes of the call at a place of the recorded order, in a step of other sizes."""
        return self._sizes_at(self.step.order[place], values, self._more(values))

    def _more(self, values: Mapping[str, int]) -> int:
        """Layers to add."""
        return values[self.depth] - self.step.symbols[self.depth] if self.depth else 0

    def places_at(self, values: Mapping[str, int]) -> list[int]:
        """Return the place of each call of `calls_at` in the recorded order, by its anchor."""
        order = self.step.order
        anchor = [self.step.calls[i].kind in _ANCHORS for i in order]
        begins = [0, *(i for i, yes in enumerate(anchor) if yes and i), len(order)]
        slots = [range(a, b) for a, b in pairwise(begins) if b > a]
        tokens = [order[s[0]] if anchor[s[0]] else -1 for s in slots]
        runs = self._layers(runs_of(tokens))
        chosen = repeated(range(len(slots)), runs, self._more(values))
        return [place for i in chosen for place in slots[i]]

    def _layers(self, runs: Sequence[Run]) -> tuple[Run, ...]:
        """Those of the runs that are layers."""
        if not self.depth:
            return ()
        layers = self.step.symbols[self.depth]
        return tuple(r for r in runs if layers - _OFF <= r.count <= layers)

    def _sizes_at(self, call: int, values: Mapping[str, int], more: int) -> tuple[Size, ...]:
        one = self.step.calls[call]
        at = [
            tuple(
                value_at(terms, values, f"dimension {k + 1} of argument {j + 1} of {one.name}")
                for k, terms in enumerate(size)
            )
            for j, size in enumerate(self.terms[call])
        ]
        runs = _layer_runs(one, self.step, self.depth)
        if not runs or not more:
            return tuple(at)
        return tuple(at[i] for i in repeated(range(len(at)), runs, more))

    def arguments_at(self, call: RecordedCall, sizes: Sequence[Size]) -> int:
        """Return the number of sizes that are arguments."""
        return call.arguments + len(sizes) - len(call.sizes)


def depth_of(steps: Sequence[RecordedStep]) -> str:
    """The symbol that counts layers: the longest repetition of anchors has it, in every report.

    Raises
    ------
    ModelError
        If several symbols fit.
    """
    counts = []
    for step in steps:
        tokens = [i for i in step.order if step.calls[i].kind in _ANCHORS]
        found = runs_of(tokens)
        if not found:
            return ""
        counts.append(max(found, key=lambda r: r.period * r.count).count)
    fitting = [
        name
        for name in steps[0].symbols
        if name != "p"
        and len({s.symbols[name] - c for s, c in zip(steps, counts, strict=True)}) == 1
        and 0 <= steps[0].symbols[name] - counts[0] <= _OFF
    ]
    if len(fitting) > 1:
        raise ModelError(
            f"the number of layers is ambiguous: {' and '.join(fitting)} fit the repetitions of "
            f"every report; calibrate with one more report in which they differ"
        )
    return fitting[0] if fitting else ""


def structures(steps: Sequence[RecordedStep], take: Sequence[str] = ()) -> tuple[Structure, ...]:
    """Infer of every report's dimensions which products of symbols they are.

    The ranks are no symbol of a dimension: what ranks share is counted apart.

    Parameters
    ----------
    steps : sequence of RecordedStep
    take : sequence of str
        Products, as `Term.text` says them with or without their factor, that are meant where the
        reports allow several; the first that fits.
    """
    depth = depth_of(steps)
    kept = {n for n in steps[0].symbols if n not in (depth, "p")}
    named = [{n: v for n, v in s.symbols.items() if n in kept} for s in steps]
    return tuple(_structure(i, steps, named, depth, take) for i in range(len(steps)))


def _taken(options: tuple[Term, ...], take: Sequence[str]) -> tuple[Term, ...]:
    """Those of the products that are said to be meant, if any is."""
    for text in take:
        for term in options:
            if text in (term.text, replace(term, factor=Fraction(1)).text):
                return (term,)
    return options


def _structure(
    mine: int,
    steps: Sequence[RecordedStep],
    named: Sequence[Mapping[str, int]],
    depth: str,
    take: Sequence[str],
) -> Structure:
    step = steps[mine]
    groups = [_groups(s) for s in steps]
    terms: list[list[list[tuple[Term, ...]]] | None] = []
    seen: dict[int, dict[tuple[Term, ...], int]] = {}
    for call in step.calls:
        found = _matched(call, mine, steps, named, groups, depth)
        terms.append(found)
        for size, each in zip(_short(call, step, depth), found or (), strict=False):
            for number, options in zip(size, each, strict=True):
                counts = seen.setdefault(number, {})
                counts[options] = counts.get(options, 0) + 1
    unresolved: list[str] = []
    complete = []
    for call, known in zip(step.calls, terms, strict=True):
        short = _short(call, step, depth)
        dims = [*(known or [])]
        dims += [[_usual(n, seen, call, unresolved) for n in s] for s in short[len(dims) :]]
        dims = [[_taken(options, take) for options in size] for size in dims]
        complete.append(_spread(call, step, depth, dims))
    return Structure(step, depth, tuple(complete), tuple(dict.fromkeys(unresolved)))


def _usual(
    number: int, seen: Mapping[int, Mapping[tuple[Term, ...], int]], call: RecordedCall,
    unresolved: list[str],
) -> tuple[Term, ...]:  # fmt: skip
    """Return the role of a number of this report elsewhere in it; else itself."""
    options = seen.get(number)
    if options:
        return max(options, key=lambda o: options[o])
    if number > 1:
        unresolved.append(f"{number} of {call.name}")
    return terms_of([number, number], [{"": 1}, {"": 2}])


def _short(call: RecordedCall, step: RecordedStep, depth: str) -> tuple[Size, ...]:
    """Sizes, with the layers of a long list joined."""
    return tuple(call.sizes[i] for i in _kept(call, step, depth))


def _layer_runs(call: RecordedCall, step: RecordedStep, depth: str) -> tuple[Run, ...]:
    """Layers in the lists of tensors that an operator takes, list by list."""
    sizes = call.sizes
    if not depth or len(sizes) < 3 * _SHORTEST:
        return ()
    layers = step.symbols[depth]
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


def _kept(call: RecordedCall, step: RecordedStep, depth: str) -> list[int]:
    found: list[int] = []
    at = 0
    for run in _layer_runs(call, step, depth):
        found += range(at, run.start + run.period)
        at = run.end
    return [*found, *range(at, len(call.sizes))]


def _spread(
    call: RecordedCall,
    step: RecordedStep,
    depth: str,
    dims: Sequence[Sequence[tuple[Term, ...]]],
) -> tuple[tuple[tuple[Term, ...], ...], ...]:
    """Give every size of a long list the terms of its place in the first layer."""
    at = {i: j for j, i in enumerate(_kept(call, step, depth))}
    found = []
    runs = _layer_runs(call, step, depth)
    for i in range(len(call.sizes)):
        run = next((r for r in runs if r.start <= i < r.end), None)
        first = i if run is None else run.start + (i - run.start) % run.period
        found.append(tuple(dims[at[first]]))
    return tuple(found)


def _groups(step: RecordedStep) -> dict[tuple[str, str], list[RecordedCall]]:
    found: dict[tuple[str, str], list[RecordedCall]] = {}
    for call in step.calls:
        found.setdefault((call.name, call.phase), []).append(call)
    return found


def _matched(
    call: RecordedCall,
    mine: int,
    steps: Sequence[RecordedStep],
    named: Sequence[Mapping[str, int]],
    groups: Sequence[Mapping[tuple[str, str], Sequence[RecordedCall]]],
    depth: str,
) -> list[list[tuple[Term, ...]]] | None:
    """Terms of a call's dimensions by the calls of other reports that it corresponds to."""
    own = _short(call, steps[mine], depth)
    place = groups[mine][call.name, call.phase].index(call)
    found: list[list[tuple[Term, ...]]] | None = None
    for i, step in enumerate(steps):
        if i == mine:
            continue
        others = list(enumerate(groups[i].get((call.name, call.phase), ())))
        others.sort(key=lambda pair: abs(pair[0] - place))
        for _, other in others:
            theirs = _short(other, step, depth)
            shared = min(len(own), len(theirs))  # what writes into a given tensor has one more
            if other.layout != call.layout or [len(s) for s in theirs[:shared]] != [
                len(s) for s in own[:shared]
            ]:
                continue
            pair = [
                [terms_of((a, b), (named[mine], named[i])) for a, b in zip(s, t, strict=True)]
                for s, t in zip(own, theirs, strict=False)
            ]
            joined = (
                pair
                if found is None
                else [
                    [tuple(term for term in x if term in y) for x, y in zip(s, t, strict=True)]
                    for s, t in zip(found, pair, strict=False)
                ]
            )
            if all(options for size in joined for options in size):
                found = joined
                break
    return found
