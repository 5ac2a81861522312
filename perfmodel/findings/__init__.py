"""Findings: what the steps of a run lose, ranked by what each would save, and what to change.

A kind of finding is a module of this package that is called as its key and defines `KIND`: the
functions that find it, and all words and rules for it. Modules that several kinds share begin with
an underscore. No code outside this package knows the key of a kind.
"""

import pkgutil
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from typing import Any, Final, Literal, NotRequired, TypedDict

from perfmodel.base.units import percent, si
from perfmodel.programs.actions import Actions
from perfmodel.programs.facts import Facts
from perfmodel.timing.host_timeline import CAUSES, LAUNCH
from perfmodel.timing.step_facts import StepFacts

__all__ = [
    "WITHOUT",
    "WORTH",
    "Actions",
    "Facts",
    "Finding",
    "Findings",
    "Kind",
    "Part",
    "StepFacts",
    "find",
    "keyed",
    "kinds",
    "percent",
    "share_of_recorded",
    "share_of_step",
    "si",
    "worth",
]

WORTH: Final = 0.01
"""Findings that would save less than this share of a step are not reported."""
WITHOUT: Final = "Without that"
"""The remedy where no few words say one."""
_COMPARABLE: Final = 0.5
"""A loss that keeps a step out of a CUDA graph comes before launches from this share of theirs."""

Part = Literal["compute", "communication", "waiting", "copies", "idle"]
"""A part of a rank's step: parts add up to it."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One loss, with the evidence for it and what to change.

    Attributes
    ----------
    kind : str
        Key of its `Kind`.
    title : str
    saving_s : float or None
        Upper bound per step, without the profiler that recorded it where that makes steps longer;
        None where it is unknown. Savings overlap: they do not add up.
    evidence, action : str
    of_mean : bool
        Whether it is lost in some steps only, and the saving is the mean over all of them.
    share : float or None
        Of the step that `saving_s` is of: of one step for all findings of a run.
    line, range : str or None
        Source line and range of the loss; None if the report has none.
    rank : int or None
        The rank that causes it; None where no single one does.
    subject : str
        The subject where a run may have several of its kind: a range, kernel, operator,
        direction or GPU. A finding is the same as another one of its kind, rank and subject.
    change : str
        Key of `StepFacts.changes`: the change of the graph whose replay says the saving; a key
        without a change there is that of a bound, or of shorter kernels.
    gpu_s : float or None
        GPU time that it saves, however much of that the host hides; None of other findings.
    key : str
        Its name: the kind, with '-2' behind it of the second one of a kind.
    waits : str
        What the GPU waits for, where the title is 'the GPU waits ' and this; else ''.
    remedy : str
        The advice in a few words, before what a step then takes: 'Fuse them:', 'Without that'.
    """

    kind: str
    title: str
    saving_s: float | None
    evidence: str
    action: str
    of_mean: bool = False
    share: float | None = None
    line: str | None = None
    range: str | None = None
    rank: int | None = None
    subject: str = ""
    change: str = ""
    gpu_s: float | None = None
    key: str = ""
    waits: str = ""
    remedy: str = ""

    @property
    def saving(self) -> str:
        """The saving in words, such as '3.2 ms (12 %)'; '' where unknown."""
        if self.saving_s is None:
            return ""
        return f"{si(self.saving_s, 's')} ({percent(self.share or 0.0)})"


class Grounds(TypedDict):
    """What `--evidence` shows of a kind, as the rules of `perfmodel/render/evidence.toml`.

    `formula` is the saving in words, and `inputs` are paths of its numbers in analysis.json. Rows
    of the event table `table` with the values `where` are listed, those with most of the column
    `by` first, or with `least`.
    """

    formula: str
    inputs: Sequence[str]
    table: str
    where: Mapping[str, Any]
    by: str
    least: NotRequired[bool]


Findings = Iterator[Finding]
Find = Callable[..., Findings]
"""Takes `Facts`, `Actions` and the facts that it needs, in the order of `needs`."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of finding: what is known of it, whatever the run.

    Attributes
    ----------
    key : str
        As `analysis.json` names it; the name of its module.
    change : str
        What is different in the step without the loss, in words.
    remedy : str
        The advice in a few words, before what a step then takes; the advice of a finding says how.
    grounds : Grounds
    part : {'compute', 'communication', 'waiting', 'copies', 'idle'} or None
        The part of a step that is shorter without it; None where the title says all.
    limits : str
        The sentence that says that it limits a step, where that is not the part's: with `{title}`
        and `{share}` of a step.
    of_ranks : bool
        Whether it is about ranks: one of them may cause it.
    forbids_graph : bool
        Whether a step with it cannot be captured in a CUDA graph.
    several : bool
        Whether a run may have several, which their titles tell apart.
    shortens_kernels : bool
        Whether kernels are shorter without it.
    replays : str
        Key of `StepFacts.changes`: what is replayed without it; '' is `key`.
    kernels : tuple of str
        Categories of kernels that it is about: the largest of these has its place.
    other_kernels : bool
        Whether it is about all categories but `kernels`.
    precedence : int
        Of findings that save as much the one with the smaller number is first, then by key.
    rules : list of tuple
        Functions that find it, in the order in which they are asked; what each needs, and unless.
    """

    key: str
    change: str
    remedy: str
    grounds: Grounds
    part: Part | None = None
    limits: str = "{title}"
    of_ranks: bool = False
    forbids_graph: bool = False
    several: bool = False
    shortens_kernels: bool = False
    replays: str = ""
    kernels: tuple[str, ...] = ()
    other_kernels: bool = False
    precedence: int = 0
    rules: list[tuple[Find, tuple[str, ...], tuple[str, ...]]] = field(default_factory=list)

    def is_about(self, category: str) -> bool:
        """Whether it is about kernels of a category."""
        return (category in self.kernels) != self.other_kernels

    def rule(
        self, needs: tuple[str, ...] = (), unless: tuple[str, ...] = ()
    ) -> Callable[[Find], Find]:
        """Register a function that yields findings of this kind.

        Parameters
        ----------
        needs, unless : tuple of str
            Fields of `Facts`. The function is called with `Facts`, `Actions` and the facts of
            `needs`, where these are known and not empty; it is not called where a fact of `unless`
            is.
        """

        def register(find: Find) -> Find:
            self.rules.append((find, needs, unless))
            return find

        return register

    def findings(self, facts: Facts, actions: Actions) -> Findings:
        """Yield what the functions of this kind find."""
        for find, needs, unless in self.rules:
            needed = [getattr(facts, name) for name in needs]
            if all(map(_known, needed)) and not any(_known(getattr(facts, n)) for n in unless):
                yield from find(facts, actions, *needed)


def _known(fact: object) -> bool:
    return fact is not None and not (isinstance(fact, Sized) and len(fact) == 0)


@cache
def kinds() -> Mapping[str, Kind]:
    """Return all kinds by their keys, in the order in which they are asked."""
    names = [one.name for one in pkgutil.iter_modules(__path__) if not one.name.startswith("_")]
    known: list[Kind] = [import_module(f"{__name__}.{name}").KIND for name in names]
    return {kind.key: kind for kind in sorted(known, key=lambda one: (one.precedence, one.key))}


def find(facts: Facts, actions: Actions) -> tuple[Finding, ...]:
    """Return the findings worth at least one percent of a step, largest saving first, with places.

    All facts are of the step without the profiler, where that makes it longer: what only the
    profiler makes slow is no finding then, and work of the GPU that a slow host hides may be one.
    """
    ranked = _ranked(facts, actions)
    return keyed([_placed(_of_kind(one, facts), facts.steps) for one in ranked])


def keyed(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Name findings by their kinds, with a number behind the second one of a kind."""
    keys = [one.kind for one in findings]
    before = [keys[:i].count(key) for i, key in enumerate(keys)]
    return tuple(
        replace(one, key=f"{one.kind}-{n + 1}" if n else one.kind)
        for one, n in zip(findings, before, strict=True)
    )


def _of_kind(one: Finding, facts: Facts) -> Finding:
    """Give a finding the remedy and the change of its kind, where it has none of its own.

    An engine replays graphs, or its advice is by its own options: the words of a kind do not fit.
    """
    kind = kinds()[one.kind]
    remedy = one.remedy or (WITHOUT if facts.serving else kind.remedy)
    if kind.of_ranks and one.rank is not None:
        remedy = f"With rank {one.rank} like the others"
    return replace(one, remedy=remedy, change=one.change or kind.replays or kind.key)


def _placed(one: Finding, steps: StepFacts | None) -> Finding:
    """Give a finding the place of the longest gap, or of the largest kernel, that it is about."""
    if steps is None:
        return one
    if one.kind in CAUSES:
        gap = steps.longest(one.kind)
        return one if gap is None else replace(one, line=gap.line, range=gap.range or None)
    if one.rank is not None or one.line is not None:  # it has its own place
        return one
    kind = kinds()[one.kind]
    kernel = next((k for k in steps.kernels if kind.is_about(k.category)), None)
    return one if kernel is None else replace(one, line=kernel.line)


def _ranked(facts: Facts, actions: Actions) -> tuple[Finding, ...]:
    """Return the findings of a step that are worth it, largest saving first.

    A step that waits for the GPU or allocates memory cannot be captured in a CUDA graph: such a
    finding comes before that of launches, if it saves half as much. Unknown savings come last.
    Work of the GPU that the host hides comes after all others, where it would save enough once
    launches cost nothing. A saving is between nothing and the whole step. The step is the median
    one; where a finding is of some steps only, the mean one, for all findings: what each step loses
    is the same share of the recording.
    """
    step_s = facts.batch.value
    if step_s <= 0:
        return ()
    every = [one for kind in kinds().values() for one in kind.findings(facts, actions)]
    most_s = max((one.saving_s for one in every if one.saving_s is not None), default=0.0)
    unequal = facts.host_ranks or (facts.steps and facts.steps.long)
    if unequal and (most_s > step_s or any(worth(one, facts) for one in every if one.of_mean)):
        step_s = facts.mean_s
    bounded = [_of_step(one, step_s, facts) for one in every]
    by_launches = CAUSES[LAUNCH]
    launches_s = max((f.saving_s or 0.0 for f in bounded if f.kind == by_launches), default=0.0)
    next_s = facts.steps.kernels_next_s if facts.steps and launches_s >= WORTH * step_s else 0.0

    def later_s(one: Finding) -> float:
        """Saving of GPU time once launches no longer limit the step."""
        return min(one.gpu_s or 0.0, next_s)

    def order(one: Finding) -> tuple[bool, bool, float, bool, float]:
        saving_s = one.saving_s or 0.0
        first = kinds()[one.kind].forbids_graph and saving_s >= _COMPARABLE * launches_s
        rank_s = max(saving_s, launches_s) if first else saving_s
        hidden = one.share is not None and one.share < WORTH
        if hidden:
            rank_s = later_s(one)
        return one.saving_s is None, hidden, -rank_s, one.kind == by_launches, -saving_s

    worth_it = (
        one
        for one in bounded
        if one.share is None or one.share >= WORTH or later_s(one) >= WORTH * step_s > 0
    )
    return tuple(sorted(worth_it, key=order))


def _of_step(one: Finding, step_s: float, facts: Facts) -> Finding:
    """Bound a saving by nothing and the step that it is of, and compute its share of that step."""
    if one.saving_s is None:
        return one
    own_s = step_s if one.of_mean else facts.batch.value
    saving_s = min(max(one.saving_s, 0.0), own_s)
    return replace(one, saving_s=saving_s, share=saving_s / own_s)


def worth(one: Finding, facts: Facts) -> bool:
    """Whether a finding may save at least one percent of a step, or nobody knows how much."""
    return one.saving_s is None or one.saving_s >= WORTH * facts.batch.value


def share_of_step(facts: Facts, seconds: float) -> str:
    """Say so many seconds as a share of the step without the profiler."""
    step_s = facts.batch.value
    return f"{si(seconds, 's')} of {si(step_s, 's')}, {percent(seconds / step_s)}"


def share_of_recorded(facts: Facts, seconds: float) -> str:
    """Say time of the host, which the profiler makes longer, as a share of the recorded step."""
    step_s = facts.recorded_s or facts.batch.value
    recorded = " as recorded" if step_s > facts.batch.value else ""
    return f"{si(seconds, 's')} of {si(step_s, 's')}{recorded}, {percent(seconds / step_s)}"
