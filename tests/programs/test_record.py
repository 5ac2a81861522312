"""Steps that are timed before they are recorded, with stand-ins for torch and nvtx."""

from __future__ import annotations

import json
import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest

from perfmodel import RecordSteps


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is pushed, marked and started, in order."""
    found: list[str] = []

    class Cudart:
        def cudaProfilerStart(self) -> None:
            found.append("start")

        def cudaProfilerStop(self) -> None:
            found.append("stop")

    cuda = SimpleNamespace(is_available=lambda: True, synchronize=lambda: None, cudart=Cudart)
    zeros = SimpleNamespace(zero_=lambda: None)
    torch: Any = SimpleNamespace(
        cuda=cuda,
        zeros=lambda *_, **__: zeros,
        distributed=SimpleNamespace(is_available=lambda: False),
    )
    nvtx: Any = SimpleNamespace(
        mark=lambda message, domain: found.append(message),
        push_range=lambda text, domain: found.append(text),
        pop_range=lambda domain: None,
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "nvtx", nvtx)
    return found


def without_probes(events: list[str]) -> list[str]:
    return [e for e in events if not e.startswith(("first", "probe", "aten::"))]


def test_steps_are_timed_then_recorded_then_left_alone(events: list[str]) -> None:
    step = RecordSteps(warmup=2, timed=10, steps=3)
    for _ in range(20):
        with step:
            time.sleep(0.002)
    start, mark, *rest = without_probes(events)
    assert (start, rest) == ("start", ["step 0", "step 1", "step 2", "stop"])
    said = json.loads(mark)
    assert said["perfmodel_recorder"] == 1
    assert said["steps"] == 10
    assert 0.002 <= said["low_s"] <= said["step_s"] <= said["high_s"] < 0.2
    assert set(said["probe"]) == {"launch", "range", "sized_range"}


def test_a_function_is_one_step(events: list[str]) -> None:
    @RecordSteps(warmup=1, timed=5, steps=2, name="iteration")
    def train(number: int) -> int:
        return number + 1

    assert [train(i) for i in range(10)] == [*range(1, 11)]
    assert [e for e in events if e.startswith("iteration")] == ["iteration 0", "iteration 1"]
    assert events[-1] == "stop"
