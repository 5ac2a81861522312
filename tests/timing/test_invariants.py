"""What holds of every report: parts of a step add up, and nothing is busier than it lasts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.common.folders import PROGRAMS
from perfmodel.analysis.analyze import analyze_reports
from perfmodel.programs.program import Options
from support.foreign_reports import SHIPPED

FEW = [
    *(report for report in SHIPPED if report.suffix == ".sqlite"),
    *(
        PROGRAMS / f"{name}.sqlite.xz"
        for name in ("gpt_ddp", "gpt_unnamed", "cupy_streams", "jax_gpt", "pipeline", "halo")
    ),
]
ALL = sorted({*PROGRAMS.glob("*.sqlite.xz"), *PROGRAMS.glob("*.json.xz"), *SHIPPED} - {*FEW})


@pytest.mark.parametrize(
    "report",
    [*FEW, *(pytest.param(report, marks=pytest.mark.slow) for report in ALL)],
    ids=lambda path: path.name.partition(".")[0],
)
def test_parts_of_every_step_add_up(report: Path) -> None:
    run = analyze_reports([report], Options(), whole=True).fitted
    for measured in run.measured.steps:
        times = measured.times
        known = times.step_ns >= 0
        parts = times.compute_ns + times.copy_ns + times.exposed_ns + times.idle_ns
        np.testing.assert_array_equal(parts[known], times.step_ns[known])
        assert (times.idle_ns[known] >= 0).all()
        assert (times.busy_ns[known] <= times.step_ns[known])[
            times.device[known.nonzero()[0]] >= 0
        ].all()
        present = times.busy_ns >= 0
        rounded = np.abs(measured.exclusive_ns.sum(axis=2) - times.busy_ns)[present]
        assert (rounded <= measured.count.sum(axis=2)[present]).all()  # half a ns an operation
    if run.steps is None:
        return
    for rank in run.steps.ranks:
        parts_s = rank.compute_s + rank.exposed_communication_s
        parts_s += (rank.copy_s or 0.0) + (rank.idle_s or 0.0)
        assert parts_s == pytest.approx(rank.batch_s)
        assert (rank.waiting_s or 0.0) <= rank.communication_s * (1 + 1e-9)
    busy = [r.gpu_busy_s for r in run.steps.ranks if r.gpu_busy_s is not None]
    if busy:
        total = sum(category.seconds for category in run.steps.categories)
        assert total == pytest.approx(np.mean(busy))
