"""Generated programs with known loops: their truth, their reports, and whether steps are found."""

from __future__ import annotations

from dataclasses import fields
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from perfmodel.readers import read
from perfmodel.readers.trace import Trace, columns_of
from support.plain import plain
from support.structured import FINAL_SEED, KINDS, TUNING_SEEDS, UNSEEN_SEEDS, program
from support.structured.score import scored, table

SEEDS = (TUNING_SEEDS[0], FINAL_SEED)
known = cache(program)


def named(trace: Trace) -> dict[str, object]:
    """Columns of a trace, with names in place of codes of strings."""
    found: dict[str, object] = {}
    for events_of in ("ranges", "ops", "api", "mpi"):
        events = getattr(trace, events_of)
        found |= {f"{events_of}.{column}": getattr(events, column) for column in columns_of(events)}
        strings = trace.range_names if events_of == "ranges" else trace.strings
        found[f"{events_of}.name"] = [strings[i] if i >= 0 else None for i in events.name.tolist()]
    for field in fields(trace):
        if field.name not in ("ranges", "ops", "api", "mpi", "strings", "tables", "source"):
            found[field.name] = getattr(trace, field.name)
    del found["mpi.least_bytes"]  # a reader derives it from sizes of all-reduces
    return {name: plain(value) for name, value in found.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_truth_agrees_with_itself(kind):
    for seed in SEEDS:
        truth = (one := known(kind, seed)).truth
        operations = one.operations
        assert truth.steps in truth.answers
        assert min(truth.answers) >= 1
        assert {truth.step, *truth.also} <= truth.levels.keys()
        assert 20 <= len(operations) <= 50_000
        assert (operations.launch_ns < operations.launched_ns).all()
        assert (operations.start_ns < operations.end_ns).all()
        for level in truth.levels.values():
            assert len(level) == operations.processes
            for p, found in enumerate(level):
                assert (np.diff(found.first) >= 0).all()
                assert (found.first < found.end).all()
                assert (np.diff(found.start_ns) >= 0).all()
                assert found.end.max(initial=0) <= (operations.process == p).sum()
        steps = truth.levels[truth.step]
        assert len({len(found) for found in steps}) == 1  # all processes run all steps
        assert len(steps[0]) in truth.answers
        for found in steps:
            assert (found.end[:-1] <= found.first[1:]).all()
            assert (np.diff(found.start_ns) > 0).all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_determines_the_program(kind):
    first, second = SEEDS
    one, again, other = known(kind, first), program(kind, first), known(kind, second)
    assert one.draws == again.draws
    assert plain(one.operations) == plain(again.operations)
    assert plain(one.operations) != plain(other.operations)


@pytest.mark.parametrize("kind", ["accumulation_ranged", "cut", "prefetch", "processes", "mpi"])
def test_the_trace_in_memory_is_the_one_that_a_report_is_read_into(kind, tmp_path: Path):
    for seed in (1, 2):
        one = program(kind, seed)
        assert named(one.to_trace()) == named(read(one.to_report(tmp_path / f"{seed}.sqlite")))


def test_a_program_can_be_written_as_a_trace_of_torch_profiler(tmp_path: Path):
    one = program("accumulation_ranged", 1)
    trace = read(one.to_report(tmp_path / "trace.json"))
    assert len(trace.ops) == len(one.operations)
    assert trace.range_names == ("Optimizer.step#AdamW.step",)


@pytest.mark.slow
def test_steps_of_unseen_programs_are_found():
    """docs/analysis.md says how often, on more programs; those that hold one step are hardest."""
    scores = list(scored(KINDS, UNSEEN_SEEDS[:6]))
    by_kind = {kind: [one.right for one in scores if one.program.kind == kind] for kind in KINDS}
    assert np.mean([one.right for one in scores]) >= 0.93, table(scores)
    assert min(np.mean(right) for right in by_kind.values()) >= 0.5, table(scores)
    sure = [one.right for one in scores if (one.found.score or 0) >= 0.9]
    assert np.mean(sure) >= 0.96
    assert len(sure) >= 0.8 * len(scores)
