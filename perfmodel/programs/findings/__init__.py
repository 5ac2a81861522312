"""Findings: what the steps of a run lose, ranked by what each would save, and what to change.

A finding is a function in a module of this package, under the decorator `finding`. It is asked of
every program that has the facts it needs; no other code knows its name.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterator, Sequence, Sized
from dataclasses import dataclass, fields, replace
from functools import cache
from importlib import import_module
from typing import Any, Final

from perfmodel.base.units import percent, si
from perfmodel.programs.actions import Actions
from perfmodel.programs.facts import Facts
from perfmodel.programs.findings.places import located

WORTH: Final = 0.01
"""Findings that would save less than this share of a step are not reported."""
_NEVER_CAPTURED: Final = ("blocking_sync", "allocation")
_COMPARABLE: Final = 0.5


@dataclass(frozen=True, slots=True)
class Finding:
    """One loss, with the evidence for it and what to change.

    Attributes
    ----------
    kind : str
        A key that its function is registered with.
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
        Source line and range of the loss; None if the report has none (`places`).
    rank : int or None
        The rank that causes it; None where no single one does.
    subject : str
        What it is about where a run may have several of its kind: a range, kernel, operator,
        direction or GPU. A finding is the same as another one of its kind, rank and subject.
    change : str
        Key of `StepFacts.changes`: the change of the graph whose replay says the saving; '' is the
        key that is called as the kind.
    gpu_s : float or None
        GPU time that it saves, however much of that the host hides; None of other findings.
    key : str
        Its name: the kind, with '-2' behind it of the second one of a kind.
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

    @property
    def saving(self) -> str:
        """The saving in words, such as '3.2 ms (12 %)'; '' where unknown."""
        if self.saving_s is None:
            return ""
        return f"{si(self.saving_s, 's')} ({percent(self.share or 0.0)})"


Find = Callable[..., Iterator[Finding]]
"""Takes `Facts`, `Actions` and the facts that it needs, in the order of `needs`."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A registered function, the kinds of its findings, and when it is asked.

    It is asked where all facts of `needs` are known, and none of `unless`: fields of `Facts`.
    """

    kinds: tuple[str, ...]
    needs: tuple[str, ...]
    unless: tuple[str, ...]
    find: Find

    def findings(self, facts: Facts, actions: Actions) -> Iterator[Finding]:
        """Yield what the function finds.

        Raises
        ------
        ValueError
            If a finding is of another kind than the function is registered with.
        """
        needed: list[Any] = [getattr(facts, name) for name in self.needs]
        if not all(map(_known, needed)) or any(_known(getattr(facts, n)) for n in self.unless):
            return
        for found in self.find(facts, actions, *needed):
            if found.kind not in self.kinds:
                raise ValueError(f"expected one of {', '.join(self.kinds)}; got {found.kind!r}")
            yield found


def _known(fact: object) -> bool:
    return fact is not None and not (isinstance(fact, Sized) and len(fact) == 0)


_RULES: Final[list[Rule]] = []


def finding(
    *kinds: str, needs: tuple[str, ...] = (), unless: tuple[str, ...] = ()
) -> Callable[[Find], Find]:
    """Register a function that yields findings.

    Parameters
    ----------
    *kinds : str
        Of its findings, as `analysis.json` names them.
    needs, unless : tuple of str
        Fields of `Facts`. The function is called with `Facts`, `Actions` and the facts of `needs`,
        where these are known and not empty; it is not called where a fact of `unless` is.

    Raises
    ------
    ValueError
        If there is no kind, or no such field.
    """
    known = {field.name for field in fields(Facts)}
    unknown = {*needs, *unless} - known
    if unknown or not kinds:
        what = f"fields of Facts ({', '.join(sorted(known))})" if unknown else "a kind"
        raise ValueError(f"expected {what}; got {', '.join(sorted(unknown)) or 'none'}")

    def register(function: Find) -> Find:
        _RULES.append(Rule(kinds, needs, unless, function))
        return function

    return register


@cache
def _import_rules() -> None:
    for module in pkgutil.iter_modules(__path__):
        import_module(f"{__name__}.{module.name}")


def rules() -> tuple[Rule, ...]:
    """Return all registered functions, in the order of their modules and in them."""
    _import_rules()
    return tuple(sorted(_RULES, key=lambda rule: rule.find.__module__))


def find(facts: Facts, actions: Actions) -> tuple[Finding, ...]:
    """Return the findings worth at least one percent of a step, largest saving first, with places.

    All facts are of the step without the profiler, where that makes it longer: what only the
    profiler makes slow is no finding then, and work of the GPU that a slow host hides may be one.
    """
    return keyed(located(_ranked(facts, actions), facts.steps))


def keyed(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Name findings by their kinds, with a number behind the second one of a kind."""
    kinds = [one.kind for one in findings]
    before = [kinds[:i].count(kind) for i, kind in enumerate(kinds)]
    return tuple(
        replace(one, key=f"{one.kind}-{n + 1}" if n else one.kind)
        for one, n in zip(findings, before, strict=True)
    )


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
    found = [one for rule in rules() for one in rule.findings(facts, actions)]
    most_s = max((one.saving_s for one in found if one.saving_s is not None), default=0.0)
    unequal = facts.host_ranks or (facts.steps and facts.steps.long)
    if unequal and (most_s > step_s or any(worth(one, facts) for one in found if one.of_mean)):
        step_s = facts.mean_s
    shown = [_of_step(one, step_s) for one in found]
    launches_s = max((f.saving_s or 0.0 for f in shown if f.kind == "launch_bound"), default=0.0)
    next_s = facts.steps.kernels_next_s if facts.steps and launches_s >= WORTH * step_s else 0.0

    def later_s(one: Finding) -> float:
        """Saving of GPU time once launches no longer limit the step."""
        return min(one.gpu_s or 0.0, next_s)

    shown = [
        one
        for one in shown
        if one.share is None or one.share >= WORTH or later_s(one) >= WORTH * step_s > 0
    ]

    def order(one: Finding) -> tuple[bool, bool, float, bool, float]:
        saving_s = one.saving_s or 0.0
        first = one.kind in _NEVER_CAPTURED and saving_s >= _COMPARABLE * launches_s
        rank_s = max(saving_s, launches_s) if first else saving_s
        hidden = one.share is not None and one.share < WORTH
        if hidden:
            rank_s = later_s(one)
        return one.saving_s is None, hidden, -rank_s, one.kind == "launch_bound", -saving_s

    return tuple(sorted(shown, key=order))


def _of_step(one: Finding, step_s: float) -> Finding:
    """Bound a saving by nothing and the step, and compute its share."""
    if one.saving_s is None:
        return one
    saving_s = min(max(one.saving_s, 0.0), step_s)
    return replace(one, saving_s=saving_s, share=saving_s / step_s)


def worth(one: Finding, facts: Facts) -> bool:
    """Whether a finding may save at least one percent of a step, or nobody knows how much."""
    return one.saving_s is None or one.saving_s >= WORTH * facts.batch.value


def share_of_step(facts: Facts, seconds: float) -> str:
    """Say so many seconds as a share of the step."""
    step_s = facts.batch.value
    return f"{si(seconds, 's')} of {si(step_s, 's')}, {percent(seconds / step_s)}"
