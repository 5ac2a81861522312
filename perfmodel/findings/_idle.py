"""Idle time of the GPU by what the host does: its saving, its longest gap, steps that have more."""

from collections.abc import Callable
from typing import Final

from perfmodel.findings import Actions, Facts, Finding, Findings, Kind, StepFacts, si
from perfmodel.findings._host_work import BESIDE, advice_by_words
from perfmodel.findings._ranks import holding_up
from perfmodel.timing.host_timeline import CAUSE_CLAUSES, CAUSES, HOST
from perfmodel.timing.step_facts import DISPATCH

_ONE_PIECE: Final = 0.1
"""A pause of the host from this share of a step is a piece of work of its own: doing it at another
time saves so much. The longest pauses of healthy programs take 3 to 5 %, that of a data loader in
the main process 75 % (docs/findings.md)."""
_FEWEST_STEPS: Final = 2
"""Of fewer steps nobody knows whether every step does the same."""


def is_dispatch(steps: StepFacts) -> bool:
    """Whether the host's own work that the GPU waits for is that of launching.

    It is Python between operators then, in many short pauses, which is shorter where less is
    launched; not one piece of work that could be done at another time, such as loading data.
    """
    longest = steps.longest(CAUSES[HOST])
    if DISPATCH not in steps.changes or longest is None:
        return False
    where = advice_by_words(steps.mostly_in(CAUSES[HOST]))
    whole_s = steps.ledger.recorded_s  # as the gap is
    return longest.seconds < _ONE_PIECE * whole_s and where not in BESIDE


def recurs(facts: Facts) -> bool:
    """Whether so many steps were recorded that what they do is what every step does."""
    return facts.batch.instances >= _FEWEST_STEPS


def slowed(facts: Facts) -> str:
    """Say where times of the host are too long."""
    return "; recording sizes slows the host down" if facts.sizes_recorded else ""


def saving_without(cause: str, steps: StepFacts, most_s: float) -> float:
    """Return what a step saves without a cause, but for what a late rank saves by the same."""
    saving_s = min(steps.saved_s(cause), most_s)
    late = holding_up(steps)
    by_late_rank = late is not None and late.excess is not None and late.excess.kind == cause
    return saving_s - steps.straggler_saving_s if by_late_rank else saving_s


def longest_gap(cause: str, steps: StepFacts) -> str:
    """Say how long the longest gap by a cause is, and in which range; '' where there is none."""
    gap = steps.longest(cause)
    return f"; the longest gap is {si(gap.seconds, 's')}{within(gap.range)}" if gap else ""


def within(range_: str) -> str:
    """Say in which range something is; '' outside all."""
    return f" in '{range_}'" if range_ else ""


def blocking_call(cause: str, steps: StepFacts) -> str:
    """Return the call that the host is in for most of the idle time by a cause; '' if unknown."""
    most = steps.most_idle(cause)
    return most.call if most else ""


def find_long_steps(kind: Kind, advise: Callable[[Actions, StepFacts, str, str], str]) -> None:
    """Let a kind also find steps in which the GPU idles much longer by it than in the median one.

    Steps whose GPU does more are no finding: a warning says what it does. `advise` takes the words
    of a range, and a call, with most of this time, last.
    """

    @kind.rule(needs=("steps",))
    def in_long_steps(facts: Facts, actions: Actions, steps: StepFacts) -> Findings:
        """Steps whose GPU idles much longer than in the median one."""
        long = steps.long
        if long is None or long.cause != kind.key:
            return
        where = within(long.gap.range) if long.gap else ""
        gap = f"; the longest gap is {si(long.gap.seconds, 's')}{where}" if long.gap else ""
        which = f"{long.count} of {long.steps} steps"
        mean_s = steps.ledger.without_recorder_s(long.mean_s)
        paused = long.paused == long.count
        take = f"{long.count} take {si(long.longer_s, 's')} more than the median one"
        later = f"after {long.count} the next one begins {si(long.longer_s, 's')} later"
        yield Finding(
            kind.key,
            f"other work follows {which}"
            if paused
            else f"{which} take much longer than the others",
            long.saving_s,
            f"the median step takes {si(steps.step_s, 's')}, the mean one {si(mean_s, 's')}: "
            f"{later if paused else take}, in the mean; per step of all the GPU idles "
            f"{si(long.saving_s, 's')} more {CAUSE_CLAUSES[kind.key]}{gap}",
            advise(actions, steps, where, long.gap.call if long.gap else ""),
            of_mean=True,
            subject="long steps",
        )
