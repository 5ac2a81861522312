"""What the host does while a GPU idles, as far as the recording shows it, and what to do about it.

Advice is chosen by evidence: the range that the host is in, the call of the system's libraries that
it waits in, whether it runs on a processor, its line of code. Where nothing of that was recorded,
the advice is to record what decides.
"""

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Final

from perfmodel.findings import Actions, percent
from perfmodel.readers.trace import TORCH_PROFILER
from perfmodel.timing.step_facts import IdleCause

_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_OF_NETWORK: Final = re.compile(r"\b(forward|backward|parallel|softmax|loss|aten|nn)\b")
"""Words of ranges that a network's own work is in, whatever else they are called."""
_HOST_WORK: Final = (
    ("step_less", re.compile(r"\boptim(iz\w+)?\b")),
    ("load_ahead", re.compile(
        r"\b(data(sets?)?|\w*loaders?|load(s|ing)?(?! balanc)|(pre)?fetch(er|ing)?|inputs|"
        r"input(?= pipeline|$)|augment(ations?|ing)?|next(?= (batch|item|sample)|$))\b"
    )),
    ("write_less", re.compile(
        r"\b(check ?point(s|ing)?(?! (function|sequential|wrapper))|sav(es?|er|ing)|"
        r"val(id(ate|ation)?)?|eval(uate|uation)?|logg(er|ing)|log(?= (metrics?|scalars?|stats)|$)|"
        r"print(ing)?|metrics?)\b"
    )),
)  # fmt: skip
"""Advice by the words of the range that the host is in."""
BESIDE: Final = ("load_ahead", "write_less")
"""Advice on work that is no part of computing."""
_SUFFIX: Final = re.compile(r"(64)?(_chk|_unlocked|_nocancel|_time64)*(@.*)?$")
_MOSTLY: Final = 0.5
"""A thread sleeps in a gap if it runs on no processor for so much of it."""

_SELDOM: Final = 0.05
"""Below this share of its gaps a thread is said to run: a scheduler takes a processor away, too."""


def advice_by_words(name: str) -> str:
    """What to do against the host's work in a range, by its whole words: `DataLoader` has two."""
    words = " ".join(_WORD.findall(name)).lower()
    if _OF_NETWORK.search(words):
        return "compute_less"
    return next((what for what, named in _HOST_WORK if named.search(words)), "compute_less")


@cache
def _advice_by_call() -> Mapping[str, str]:
    text = files("perfmodel.findings").joinpath("system_calls.toml").read_text("utf-8")
    known: Mapping[str, list[str]] = tomllib.loads(text)
    return {name: what for what, names in known.items() for name in names}


def advice_by_call(call: str) -> str | None:
    """What to do against a call of the system's libraries, by its name; None of an unknown one.

    >>> advice_by_call("clock_nanosleep"), advice_by_call("pread64"), advice_by_call("sqrt")
    ('sleep_less', 'load_ahead', None)
    """
    return _advice_by_call().get(_SUFFIX.sub("", call.removeprefix("__")))


def sleeps(idle: IdleCause | None) -> bool:
    """Whether the host's thread sleeps or waits for others in most of its gaps, as recorded."""
    if idle is None:
        return False
    waits = advice_by_call(idle.wait) in ("sleep_less", "wait_for_others")
    return waits or (idle.asleep is not None and idle.asleep >= _MOSTLY)


def in_gaps(idle: IdleCause | None) -> str:
    """Say what the recording shows of the host where it is outside CUDA; '' for nothing."""
    if idle is None:
        return ""
    parts = []
    if idle.asleep is not None:
        sleeping = f"sleeps for {percent(idle.asleep)} of such gaps"
        parts.append(f"the thread {sleeping if idle.asleep >= _SELDOM else 'runs meanwhile'}")
    if idle.wait:
        parts.append(f"it is in {idle.wait}" if parts else f"the thread is in {idle.wait}")
    return f"; {', and '.join(parts)}" if parts else ""


def against_host_work(idle: IdleCause | None, where: str, recorder: str, actions: Actions) -> str:
    """What to do against work of the host between launches.

    Parameters
    ----------
    idle : IdleCause or None
        The idle time by it.
    where : str
        ` in 'RANGE'`, '' for none.
    recorder : str
        As `Recorder.name`.
    actions : Actions
    """
    by_words = advice_by_words(where)
    if by_words != "compute_less":
        return actions.advise(by_words, where=where)
    if idle is not None and (by_call := advice_by_call(idle.wait)) is not None:
        return actions.advise(by_call, where=where, call=idle.wait)
    seen = idle is not None and (idle.asleep is not None or (idle.gaps and idle.gaps[0].line))
    # an engine's host has one thing to do
    if "compute_less" in actions.texts or (seen and not sleeps(idle)):
        return actions.advise("compute_less", where=where)
    if seen:
        return actions.advise("wake_up", where=where)
    torch = recorder == TORCH_PROFILER
    return actions.advise("record_stacks" if torch else "record_host", where=where)
