"""Steps by an optimizer's ranges, where what repeats is several of them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.common.folders import PROGRAMS
from perfmodel.analysis.analyze import analyze_reports
from perfmodel.programs.program import Options
from perfmodel.programs.pytorch.program import PyTorchProgram
from perfmodel.readers import read
from perfmodel.render.summary import what_ran
from perfmodel.timing.steps import Steps
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
        [SHORT, SHORT, SHORT, LONG],
        [SHORT, SHORT, [*SHORT, "checkpoint"]],
        [SHORT, SHORT, [*SHORT, *LONG]],
    ],
)
def test_steps_that_alternate_end_with_the_optimizers(
    period: list[list[str]], tmp_path: Path
) -> None:
    steps = found(tmp_path, period * 4)
    assert (steps.found_by, len(steps), steps.confidence) == ("optimizer", 4 * len(period), 1.0)
    lengths = [1000 * (len(kernels) + 1) for kernels in period * 4]
    assert (steps.end_ns - steps.end_ns[0]).tolist() == [
        sum(lengths[1 : i + 1]) for i in range(len(lengths))
    ]
    assert steps.number.tolist() == list(range(len(steps)))


@pytest.mark.parametrize(
    "period",
    [
        [SHORT],  # one optimizer in each step
        [SHORT, LONG],  # two networks, each with its optimizer
        [[*SHORT * 16], SHORT, SHORT, SHORT],  # a roll-out, and four updates by it
    ],
)
def test_a_period_that_is_a_step_stays_whole(period: list[list[str]], tmp_path: Path) -> None:
    steps = found(tmp_path, period * 4)
    assert (steps.found_by, len(steps)) == ("kernels", 4)


@pytest.mark.parametrize(("kernels", "ns"), [(2, 500), (1, 800)])
def test_five_updates_of_a_critic_and_one_of_a_generator_are_one_step(
    kernels: int, ns: int, tmp_path: Path
) -> None:
    """The generator's optimizer launches more kernels, or longer ones."""
    builder = ReportBuilder("2025.3.2")
    thread = builder.thread()
    builder.gpu()
    at = 0
    for i in range(6 * 6):
        generates = i % 6 == 5
        for kernel in LONG if generates else SHORT:
            thread.kernel(kernel, (at, at + 100), (at + 200, at + 900))
            at += 1000
        begin = at
        for _ in range(kernels if generates else 1):
            gpu = (at + 100, at + 100 + (ns if generates else 500))
            thread.kernel("at::native::adam", (at + 10, at + 90), gpu)
            at += 1000
        thread.range(f"Optimizer.step#Adam.step, op_id = {at}", begin, at - 10)
    steps = PyTorchProgram().steps(read(builder.write(tmp_path / "r.sqlite")), Options())[1]
    assert (steps.found_by, len(steps)) == ("kernels", 6)


def test_steps_that_all_differ_end_with_the_optimizers(tmp_path: Path) -> None:
    """Every batch has a length of its own; before the first step nothing is known of its start."""
    steps = [[f"{kernel}_{i}" for kernel in SHORT[:3] * 2] for i in range(6)]
    made = found(tmp_path, steps)
    assert (made.found_by, len(made)) == ("optimizer", 5)
    assert np.diff(made.end_ns).tolist() == [7000] * 4
    roll_out = [[f"act_{i}" for i in range(40)], *steps]
    assert found(tmp_path, [*roll_out, *roll_out[::-1]]).found_by == "whole"


def test_the_summary_says_how_steps_end(tmp_path: Path) -> None:
    run = analyze_reports([written(tmp_path, [SHORT, SHORT, SHORT, LONG] * 4)], Options()).fitted
    assert run.batch.count == 16 - 2  # without the first and the last
    assert any("each ends with an optimizer's step" in line for line in what_ran(run))


def test_checkpoints_between_steps_are_found_in_a_recording() -> None:
    """Nine steps, after every third a checkpoint: the first and the last step do not count."""
    truth = json.loads((PROGRAMS / "video.truth.json").read_text())
    run = analyze_reports([PROGRAMS / "video.sqlite.xz"], Options()).fitted
    assert run.work is not None
    assert run.steps is not None
    assert (run.steps.found_by, run.batch.count) == ("kernels", truth["steps_profiled"] - 2)
    assert run.work.flops == truth["flops"]
    mean_s = truth["step_s_profiled"] + truth["checkpoint_s"] * 2 / run.batch.count
    assert run.batch.mean_s == pytest.approx(mean_s, rel=0.1)
    (said,) = [f for f in run.findings if "other work follows 2 of 7 steps" in f.title]
    assert said.kind == "host_compute"
    assert "after 2 the next one begins 25" in said.evidence, "a checkpoint of 259 ms"


def test_no_half_of_an_iteration_of_two_networks_is_a_step(tmp_path: Path) -> None:
    """Batches of sizes of their own; the discriminator's optimizer takes three times as long."""
    builder = ReportBuilder("2025.3.2")
    thread: Thread = builder.thread()
    builder.gpu()
    at = 0
    for i in range(28):
        for kernel in [f"gemm_{i // 2 * 7 % 15}_{k}" for k in range(6)]:
            thread.kernel(kernel, (at, at + 100), (at + 200, at + 900))
            at += 1000
        thread.range(f"Optimizer.step#Adam.step, op_id = {at}", at, at + 900)
        thread.kernel("at::native::adam", (at + 100, at + 200), (at + 300, at + 450 + i % 2 * 300))
        at += 1000
    trace = read(builder.write(tmp_path / "r.sqlite"))
    assert PyTorchProgram().steps(trace, Options())[1].found_by == "whole"
