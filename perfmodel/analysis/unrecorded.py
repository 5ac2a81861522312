"""Findings by what they save of the step without the profiler that recorded it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from perfmodel.programs.findings import Facts, Finding


def by_true_savings(
    facts: Facts, find: Callable[[Facts], tuple[Finding, ...]]
) -> tuple[Finding, ...]:
    """Return the findings of the step without the profiler, each with its recorded saving, too.

    What only the profiler makes slow is no finding then, and work of the GPU that a slow host hides
    may be one. Where the profiler does not make the step longer, recorded savings hold.

    Parameters
    ----------
    facts : Facts
        As recorded.
    find : callable
        Finds and ranks.
    """
    recorded, steps = find(facts), facts.steps
    without_s = steps.recorder.without_s if steps and steps.recorder else None
    if without_s is None or steps is None:
        return recorded
    if steps.unrecorded is None:
        return tuple(replace(f, saving_without_recorder_s=f.saving_s) for f in recorded)
    part = without_s / steps.step_s
    batch = replace(facts.batch, value=facts.batch.value * part)
    shorter = replace(facts, steps=steps.unrecorded, batch=batch, mean_s=facts.mean_s * part)
    as_recorded = {(f.kind, f.title): f for f in recorded}
    found = []
    for one in find(shorter):
        said = as_recorded.get((one.kind, one.title), replace(one, saving_s=0.0))
        found.append(replace(said, saving_without_recorder_s=one.saving_s))
    return tuple(found)
