"""Reports of very many threads, streams or processes: their time is linear in the events."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.robustness.many import COMMANDS, COUNTS, STEPS, measured, write
from perfmodel.readers import read
from perfmodel.timing.levels import _medians
from perfmodel.timing.step_facts import StepFacts
from support.cpu_time import assert_linear


@pytest.mark.parametrize("kind", COUNTS)
def test_a_report_has_as_many_as_asked_for(kind: str, tmp_path: Path) -> None:
    trace = read(write(kind, 50, tmp_path / "report.sqlite"))
    assert len(trace.ops) == len(trace.api) == 50 * STEPS
    assert len(trace.threads) == (1 if kind == "streams" else 50)
    assert len(trace.processes) == (50 if kind == "processes" else 1)
    assert len({*trace.ops.stream.tolist()}) == (50 if kind == "streams" else 1)


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("kind", COUNTS)
def test_a_command_ends_with_an_answer_or_one_line(kind: str, command: str, tmp_path: Path) -> None:
    report = write(kind, 1000, tmp_path / "report.sqlite")
    row = measured(command, report)
    assert not row["traceback"]
    assert row["status"] == 0 or row["error"].startswith("perfmodel: error: expected at most 500")


def test_layers_are_timed_in_linear_time() -> None:
    generator = np.random.default_rng(1)
    place = generator.integers(0, 7, 1000)
    spent = generator.random(1000)
    by_hand = [float(np.median(spent[place == i])) for i in range(7)]
    assert _medians(place, spent) == by_hand
    assert_linear(lambda n: _medians(np.arange(n), np.ones(n)), 20_000)


def test_idle_time_of_many_ranks_is_summed_in_linear_time() -> None:
    def most(ranks: int) -> float:
        causes = [
            SimpleNamespace(rank=rank, cause=c, seconds=float(rank))
            for rank in range(ranks)
            for c in "ab"
        ]
        facts: Any = SimpleNamespace(idle=causes)
        return StepFacts.idle_s(facts)

    assert most(5) == 8.0
    assert_linear(most, 1000)
