"""Findings on the GPU itself: page migrations of unified memory, kernels of one block or thread."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perfmodel.analysis.analyze import analyze_reports
from perfmodel.analysis.result import RunAnalysis
from perfmodel.programs.program import Options
from perfmodel.readers.trace import ONE_BLOCK
from support.build_kineto import write
from support.build_report import ReportBuilder

STEPS, STEP_NS = 6, 1_000_000


def analyzed(tmp_path: Path, *, migrate: bool, **shape: Any) -> RunAnalysis:
    """Steps of one kernel of 700 µs, during which 3 pages of 64 KiB migrate in 100 µs each."""
    builder = ReportBuilder("2025.3.2")
    builder.gpu()
    main = builder.thread()
    for step in range(STEPS):
        t = step * STEP_NS
        main.range(f"step {step}", t, t + 900_000)
        main.kernel("reduce", (t + 1_000, t + 5_000), (t + 9_000, t + 709_000), **shape)
        for page in range(3 if migrate else 0):
            at = t + 10_000 + page * 150_000
            builder.insert(
                "CUPTI_ACTIVITY_KIND_MEMCPY", start=at, end=at + 100_000, deviceId=0, contextId=1,
                streamId=0, globalPid=main.global_pid, bytes=65_536,
                copyKind=11 if page else 12, srcKind=4, dstKind=4,
            )  # fmt: skip
    return analyze_reports([builder.write(tmp_path / "r.sqlite")], Options()).fitted


def test_page_migrations(tmp_path: Path) -> None:
    run = analyzed(tmp_path, migrate=True, gridX=100, gridY=1, gridZ=1)
    assert run.steps is not None
    unified = run.steps.facts.unified
    assert unified is not None
    assert (unified.count, unified.to_gpu_bytes, unified.to_host_bytes) == (3, 131_072, 65_536)
    assert unified.seconds == pytest.approx(300e-6)
    (finding,) = (f for f in run.findings if f.kind == "page_migration")
    assert finding.saving_s == pytest.approx(300e-6)
    assert (
        "3 migrations per step move 131 kB to the GPU and 65.5 kB to the host" in finding.evidence
    )
    assert "cudaMemPrefetchAsync" in finding.action
    assert run.unattributed["without_launch"] == 0
    assert not [w for w in run.warnings if "begin the recording earlier" in w]


def test_pages_that_move_back_after_the_last_step(tmp_path: Path) -> None:
    """The host reads the result of the only step: that is no part of it, but is said."""
    builder = ReportBuilder("2025.3.2")
    builder.gpu()
    main = builder.thread()
    main.kernel("add", (1_000, 5_000), (9_000, 909_000))
    main.synchronize(6_000, 910_000)
    for i, (at, kind) in enumerate([(10_000, 11), (200_000, 11), (920_000, 12), (1_200_000, 12)]):
        builder.insert(
            "CUPTI_ACTIVITY_KIND_MEMCPY", start=at, end=at + 150_000, deviceId=0, contextId=1,
            streamId=0, globalPid=main.global_pid, bytes=(i + 1) * 10**6, copyKind=kind, srcKind=4,
            dstKind=4,
        )  # fmt: skip
    run = analyze_reports([builder.write(tmp_path / "r.sqlite")], Options()).fitted
    assert run.steps is not None
    unified = run.steps.facts.unified
    assert unified is not None
    assert (unified.count, unified.to_gpu_bytes, unified.to_host_bytes) == (2, 3e6, 0)
    assert unified.later_bytes == 7e6
    (finding,) = (f for f in run.findings if f.kind == "page_migration")
    assert finding.saving_s == pytest.approx(300e-6)
    assert "7.00 MB more move to the host after the last step" in finding.evidence
    said = run.summary.verdict.text
    assert said.startswith("Pages of unified memory move between host and GPU for 33 % of each st")
    assert "Copies" not in said


def test_pages_that_move_between_two_steps_are_in_the_first_one(tmp_path: Path) -> None:
    """As in the time of a step, which lasts until the next one begins."""
    builder = ReportBuilder("2025.3.2")
    builder.gpu()
    main = builder.thread()
    for step in range(STEPS):
        t = step * STEP_NS
        main.range(f"step {step}", t, t + 800_000)
        main.kernel("reduce", (t + 1_000, t + 5_000), (t + 9_000, t + 709_000))
        builder.insert(
            "CUPTI_ACTIVITY_KIND_MEMCPY", start=t + 850_000, end=t + 900_000, deviceId=0,
            contextId=1, streamId=0, globalPid=main.global_pid, bytes=65_536, copyKind=12,
            srcKind=4, dstKind=4,
        )  # fmt: skip
    run = analyze_reports([builder.write(tmp_path / "r.sqlite")], Options()).fitted
    assert run.steps is not None
    unified = run.steps.facts.unified
    assert unified is not None
    assert unified.count == pytest.approx(1.0, rel=0.3)  # but for the last one
    assert unified.later_bytes == 65_536


def test_no_migrations(tmp_path: Path) -> None:
    run = analyzed(tmp_path, migrate=False, gridX=100, gridY=1, gridZ=1)
    assert run.steps is not None
    assert run.steps.facts.unified is None
    assert not {f.kind for f in run.findings} & {"page_migration", "single_block"}


@pytest.mark.parametrize(("threads", "what"), [(256, "block"), (1, "thread")])
def test_a_kernel_of_one_block(tmp_path: Path, threads: int, what: str) -> None:
    shape = {"gridX": 1, "gridY": 1, "gridZ": 1, "blockX": threads, "blockY": 1, "blockZ": 1}
    run = analyzed(tmp_path, migrate=False, **shape)
    (finding,) = (f for f in run.findings if f.kind == "single_block")
    assert finding.title == f"reduce runs in one {what}"
    assert finding.saving_s == pytest.approx(700e-6 * 131 / 132)
    assert "on one of 132 multiprocessors" in finding.evidence


def test_torch_profiler_records_shapes_of_launches(tmp_path: Path) -> None:
    events: list[dict[str, Any]] = []
    for i in range(4):
        call = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1,
                "ts": 100 * i, "dur": 5, "args": {"correlation": i + 1}}  # fmt: skip
        args = {"device": 0, "stream": 7, "correlation": i + 1, "grid": [1, 1, 1],
                "block": [32, 1, 1]}  # fmt: skip
        events += [call, call | {"cat": "kernel", "name": "mine", "ts": 100 * i + 10, "dur": 80,
                                 "args": args}]  # fmt: skip
    path = write(tmp_path / "t.json", {"traceEvents": events})
    run = analyze_reports([path], Options()).fitted
    assert run.steps is not None
    assert run.steps.kernels[0].single == ONE_BLOCK
