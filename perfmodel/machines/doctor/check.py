"""One check: what was found, and what that means for what is to be done."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from perfmodel.machines.doctor.place import Place

Status = Literal["ok", "warning", "failed", "not needed"]
State = Literal["good", "doubtful", "broken", "absent"]

PURPOSES: Final = {
    "analyze": "read reports, print and draw",
    "collect": "profile a program with Nsight Systems",
    "mpi": "run several ranks",
    "gpu": "train or measure on a GPU",
    "count": "count with Nsight Compute",
}
"""What a machine may be wanted for."""


@dataclass(frozen=True, slots=True)
class Probe:
    """What a question found.

    Attributes
    ----------
    state : {'good', 'doubtful', 'broken', 'absent'}
        ``absent``: there is no such thing here; ``broken``: there is, and it does not work.
    found : str
    advice : str
        What to do; empty where it is good.
    """

    state: State
    found: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Question:
    """A check that can be made.

    Attributes
    ----------
    name : str
    needed_for : frozenset of str
        Of `PURPOSES`; empty: nobody needs it, and its absence is no news.
    ask : callable
        Must not be trusted: it may raise.
    """

    name: str
    needed_for: frozenset[str]
    ask: Callable[[Place], Probe]


@dataclass(frozen=True, slots=True)
class Check:
    """A check that was made.

    Attributes
    ----------
    name : str
    status : {'ok', 'warning', 'failed', 'not needed'}
    found : str
    advice : str
        What to do; empty if nothing.
    needed_for : tuple of str
    """

    name: str
    status: Status
    found: str
    advice: str
    needed_for: tuple[str, ...]


def make(question: Question, place: Place) -> Probe:
    """Put a question; one that fails by itself says so, and the others go on."""
    try:
        return question.ask(place)
    except Exception as error:
        return Probe(
            "broken",
            f"the check itself failed: {type(error).__name__}: {error}",
            "report it as an error of perfmodel",
        )


def judge(question: Question, probe: Probe, purposes: Sequence[str]) -> Check:
    """Say what was found means for these purposes.

    Only what they need can fail. What nobody asked for is "not needed" if it is not there, and a
    warning if it is there and does not work.
    """
    needed = bool(question.needed_for & set(purposes))
    status: dict[State, Status] = {
        "good": "ok",
        "doubtful": "warning",
        "broken": "failed" if needed else "warning",
        "absent": "failed" if needed else "not needed",
    }
    order = tuple(name for name in PURPOSES if name in question.needed_for)
    return Check(question.name, status[probe.state], probe.found, probe.advice, order)
