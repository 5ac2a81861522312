"""What is concluded from a run's steps."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from perfmodel.analysis.analyze import analyze_reports
from perfmodel.programs.program import Options
from perfmodel.timing.small_kernels import MANY, SmallKernels
from perfmodel.timing.step_facts import _small
from support.build_report import ReportBuilder


def test_ranges_with_many_small_kernels_are_found_among_many() -> None:
    """In time linear in the ranges; those of other lanes and steps outside do not count."""
    number = 200_000
    ones, place = np.ones(number, np.int64), np.arange(number)
    count = np.where(place == 7, 2 * MANY, 1)
    count[8:10] = 2 * MANY
    lane, step = (place == 8).astype(np.int64), np.where(place == 9, 5, 1)
    names = tuple(f"range {i}" for i in range(number))
    small = SmallKernels(names, lane, step, place, count, ones, 100 * ones, 200 * ones, 9 * ones)
    reports: Any = [SimpleNamespace(small=small)]
    began = time.process_time()
    [(found, _)] = _small(reports, slice(1, 3), lambda _: 0.0)
    assert time.process_time() - began < 2
    assert (found.range, found.saving_s) == ("range 7", 0.0)


@pytest.mark.parametrize(
    ("more_ms", "said"),
    [
        (lambda step, place: 2.5 * (place == step * 5 % 12), "another process uses"),
        (lambda step, place: 1.8 * (place == step * 5 % 12), "another process may use"),
        (lambda step, place: 2.5 * (step % 3 == 1 and place == 4), ""),
        (lambda step, place: 2.5 * (step % 3 == 1 and place % 4 == 0), ""),
        (lambda step, place: 2.5 * (step == 4), ""),
        (lambda step, place: 2.5 * (place == step * 5 % 12) * (1 + step % 4), ""),
    ],
    ids=["slices", "other slices", "one kernel", "one of each layer", "a long step", "unlike"],
)
def test_interruptions_come_by_chance(
    more_ms: Callable[[int, int], float], said: str, tmp_path: Path
) -> None:
    """Kernels that take longer in the same steps have more to do there: longer sequences."""
    builder = ReportBuilder("2025.3.2")
    thread = builder.thread()
    builder.gpu()
    at = 0
    for step in range(10):
        begin = at
        for place in range(12):
            end = at + 406_000 + int(1e6 * more_ms(step, place))
            thread.kernel(f"kernel_{place % 3}", (at, at + 5_000), (at + 6_000, end))
            at = end + 2_000
        thread.range(f"step {step}", begin, at - 10)
    run = analyze_reports([builder.write(tmp_path / "r.sqlite")], Options()).fitted
    found = [f.title for f in run.findings if f.kind == "shared_gpu"]
    assert found == ([f"{said} the GPU of rank 0"] if said else [])
