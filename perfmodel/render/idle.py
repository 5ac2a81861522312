"""Why GPUs idle and what decides a step, as tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from perfmodel.analysis.steps import StepBreakdown
from perfmodel.base.table import Column, Table
from perfmodel.base.units import si
from perfmodel.timing.step_facts import IdleCause

_SHOWN: Final = 0.01
"""Causes and kinds below this share of a step are left to the JSON."""

IDLE: Final = (
    Column("rank", "Rank", "int"),
    Column("cause", "The GPU idles by"),
    Column("seconds", "Per step", "si", "s"),
    Column("share", "of idle", "percent", digits=0),
    Column("longest", "Longest gap", of=lambda c: _longest(c)),
)

PATH: Final = (
    Column("kind", "Critical path"),
    Column("seconds", "Per step", "si", "s"),
    Column("share", "Share", "percent", digits=0),
    Column("free_s", "Step without it", "si", "s"),
)


def blocks(steps: StepBreakdown) -> Iterator[Table]:
    """Yield the tables that have rows."""
    for table in (idle_text(steps), path_text(steps)):
        if table.rows:
            yield table


def idle_text(steps: StepBreakdown) -> Table:
    """Idle time by rank and cause, with the longest gap of each."""
    rows = [c for c in steps.idle if c.seconds >= _SHOWN * steps.median_s]
    return Table.of("Why the GPU idles (median step)", rows, IDLE)


def path_text(steps: StepBreakdown) -> Table:
    """What the chain that decides a step consists of."""
    rows = [p for p in steps.facts.path if p.share >= _SHOWN]
    notes = ["Step without it: the steps replayed with this kind of work taking no time"]
    return Table.of("What decides a step", rows, PATH, notes)


def _longest(cause: IdleCause) -> str:
    gap = cause.gaps[0]
    where = f" in {gap.range}" if gap.range else ""
    return f"{si(gap.seconds, 's')} at {gap.start_s:.4f} s, {gap.call}{where}"
