"""Steps by an optimizer's ranges, where what repeats is several of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.common.folders import PROGRAMS
from perfmodel.analysis.analyze import analyze_reports
from perfmodel.programs.program import Options
from perfmodel.programs.pytorch.program import PyTorchProgram
from perfmodel.readers import read
from perfmodel.timing.spans import Steps
from support.build_report import ReportBuilder
from support.build_thread import Thread

SHORT = ["embed", "gemm_64", "softmax_64", "gemm_64"]
LONG = ["embed", "gemm_512", "softmax_512", "softmax_512", "gemm_512"]


def written(tmp_path: Path, steps: list[list[str]], name: str = "AdamW") -> Path:
    """Every step launches its kernels and a copy, then an optimizer's; no range is a step's."""
    builder = ReportBuilder("2025.3.2")
    thread: Thread = builder.thread()
    builder.gpu()
    at = 0
    for kernels in steps:
        for kernel in kernels:
            thread.kernel(kernel, (at, at + 100), (at + 200, at + 900))
            at += 1000
        thread.range(f"Optimizer.step#{name}.step, op_id = {at}", at, at + 900)
        thread.kernel("at::native::adam", (at + 100, at + 200), (at + 300, at + 800))
        at += 1000
    return builder.write(tmp_path / "r.sqlite")


def found(tmp_path: Path, steps: list[list[str]]) -> Steps:
    return PyTorchProgram().steps(read(written(tmp_path, steps)), Options())[1]


@pytest.mark.parametrize(
    "period",
    [
        [SHORT],  # one optimizer in each step
        [SHORT, LONG],  # two networks, each with its optimizer
    ],
)
def test_a_period_that_is_a_step_stays_whole(period: list[list[str]], tmp_path: Path) -> None:
    steps = found(tmp_path, period * 4)
    assert (steps.found_by, len(steps)) == ("found", 4)


def test_checkpoints_between_steps_are_found_in_a_recording() -> None:
    """Nine steps, after every third a checkpoint: the first and the last step do not count."""
    truth = json.loads((PROGRAMS / "video.truth.json").read_text())
    run = analyze_reports([PROGRAMS / "video.sqlite.xz"], Options()).fitted
    assert run.work is not None
    assert run.steps is not None
    assert (run.steps.found_by, run.batch.count) == ("found", truth["steps_profiled"] - 2)
    assert run.work.flops == truth["flops"]
    mean_s = truth["step_s_profiled"] + truth["checkpoint_s"] * 2 / run.batch.count
    assert run.batch.mean_s == pytest.approx(mean_s, rel=0.1)
    (said,) = [f for f in run.findings if "other work follows 2 of 7 steps" in f.title]
    assert said.kind == "host_compute"
    assert "after 2 the next one begins 25" in said.evidence, "a checkpoint of 259 ms"
