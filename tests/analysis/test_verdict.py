"""The verdict on built reports of known faults; see also `test_recordings`."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfmodel.analysis.analyze import analyze_reports
from perfmodel.programs.program import Options
from support.build_report import ReportBuilder
from support.build_thread import Thread
from support.once import run_of

MS, US = 1_000_000, 1_000


def test_a_step_that_the_gpu_limits_says_so(tmp_path: Path) -> None:
    builder = ReportBuilder()
    thread = builder.thread()
    builder.gpu()
    for k in range(6):
        at = k * 10 * MS
        thread.range("step", at, at + 9 * MS)
        for i in range(10):
            begin = at + i * 100 * US
            start = at + i * MS + 200 * US
            thread.kernel("k", (begin, begin + 5 * US), (start, start + 995 * US))
    verdict = run_of(builder.write(tmp_path / "r.sqlite")).summary.verdict
    assert verdict.text.startswith("The GPU computes")


def test_launches_without_kernels_are_no_healthy_program(tmp_path: Path) -> None:
    builder = ReportBuilder()
    thread = builder.thread()
    builder.gpu()
    for k in range(6):
        thread.range("step", k * 10 * MS, (k * 10 + 9) * MS)
        thread.api("cudaLaunchKernel_v7000", k * 10 * MS + 1000, k * 10 * MS + 5000)
    run = run_of(builder.write(tmp_path / "r.sqlite"))
    assert run.summary.verdict.kind == "kernels_not_recorded"
    assert "6 kernel launches" in run.summary.verdict.text
    assert "--trace=cuda,nvtx" in run.summary.verdict.text


def launching(at: int, thread: Thread, kernels: int) -> None:
    for i in range(kernels):
        start = at + i * 100 * US
        thread.kernel("k", (start, start + 5 * US), (start + 8 * US, start + 60 * US))


def test_launches_and_copies_without_kernels_show_no_step(tmp_path: Path) -> None:
    builder = ReportBuilder()
    thread = builder.thread()
    builder.gpu()
    for k in range(6):
        at = k * 10 * MS
        thread.range("step", at, at + 9 * MS)
        thread.memcpy("h2d", 1_000_000, (at + 1000, at + 5000), (at + 6000, at + 90_000))
        for i in range(50):
            begin = at + (i + 1) * 100 * US
            thread.api("cudaLaunchKernel_v7000", begin, begin + 5 * US)
    said = run_of(builder.write(tmp_path / "r.sqlite")).summary
    assert said.verdict.kind == "kernels_not_recorded"
    assert "300 kernel launches and no kernel, beside 6 copies" in said.verdict.text
    assert said.fixes == ()
    assert said.bound_s is None


def test_ranges_alone_show_no_step(tmp_path: Path) -> None:
    builder = ReportBuilder()
    thread = builder.thread()
    for k in range(6):
        thread.range("step", k * 10 * MS, (k * 10 + 9) * MS)
    said = run_of(builder.write(tmp_path / "r.sqlite")).summary
    assert said.verdict.kind == "kernels_not_recorded"
    assert said.verdict.text.startswith("Neither GPU operations nor MPI calls were recorded")


@pytest.mark.parametrize("named", [True, False])
def test_one_launch_of_a_second_is_a_cold_start(named: bool, tmp_path: Path) -> None:
    builder = ReportBuilder()
    thread = builder.thread()
    builder.gpu()
    if named:
        thread.range("step 0", 0, 1320 * MS)
        launching(0, thread, 1)
    thread.kernel("first", (1 * MS, 1301 * MS), (1302 * MS, 1303 * MS))
    launching(1305 * MS, thread, 30)
    said = run_of(builder.write(tmp_path / "r.sqlite")).summary
    assert said.verdict.kind == "cold_start"
    assert said.verdict.text.startswith("One cudaLaunchKernel takes 1.30 s")
    assert "--delay" in said.verdict.text


def test_a_launch_that_waits_for_a_full_queue_is_no_cold_start(tmp_path: Path) -> None:
    builder = ReportBuilder()
    thread = builder.thread()
    builder.gpu()
    thread.range("step 0", 0, 1000 * MS)
    for i in range(20):  # the GPU works meanwhile
        start = 5 * MS + i * 50 * MS
        begin = i * 10 * US
        thread.kernel("k", (begin, begin + 5 * US), (start, start + 49 * MS))
    thread.kernel("last", (1 * MS, 950 * MS), (1005 * MS, 1010 * MS))
    said = run_of(builder.write(tmp_path / "r.sqlite")).summary
    assert said.verdict.kind != "cold_start"


def test_a_long_launch_before_many_steps_is_warm_up(tmp_path: Path) -> None:
    builder = ReportBuilder()
    thread = builder.thread()
    builder.gpu()
    thread.kernel("first", (0, 1300 * MS), (1302 * MS, 1303 * MS))
    for k in range(8):
        at = (1310 + 10 * k) * MS
        thread.range(f"step {k}", at, at + 10 * MS)
        launching(at, thread, 90)
    assert run_of(builder.write(tmp_path / "r.sqlite")).summary.verdict.kind != "cold_start"


def test_first_calls_of_many_kernels_are_a_cold_start(tmp_path: Path) -> None:
    """None is half of the step; a later launch of the same kernels takes 10 µs."""
    builder = ReportBuilder()
    thread = builder.thread()
    builder.gpu()
    thread.range("step 0", 0, 110 * MS)
    for i in range(8):
        at = i * 12 * MS
        thread.kernel(f"k{i}", (at, at + 10 * MS), (at + 10 * MS, at + 11 * MS))
    for i in range(8):
        at = (100 + i) * MS
        thread.kernel(f"k{i}", (at, at + 10 * US), (at + 20 * US, at + 100 * US))
    said = run_of(builder.write(tmp_path / "r.sqlite")).summary.verdict
    assert said.kind == "cold_start"
    assert said.text.startswith("8 first calls, such as cudaLaunchKernel, take 79.2 ms more than")


def test_a_later_call_as_long_as_the_first_is_no_cold_start(tmp_path: Path) -> None:
    builder = ReportBuilder()
    thread = builder.thread()
    builder.gpu()
    thread.range("step 0", 0, 110 * MS)
    for i in range(8):
        at = i * 12 * MS
        thread.kernel("k", (at, at + 10 * MS), (at + 10 * MS, at + 11 * MS))
    said = run_of(builder.write(tmp_path / "r.sqlite")).summary.verdict
    assert said.kind != "cold_start"


def test_a_launch_of_10_ns_is_no_cold_start(tmp_path: Path) -> None:
    builder = ReportBuilder()
    thread = builder.thread()
    builder.gpu()
    thread.kernel("k", (0, 10), (10, 30))
    said = run_of(builder.write(tmp_path / "r.sqlite")).summary.verdict
    assert said.kind != "cold_start"


def test_what_frees_memory_at_the_end_is_no_cold_start(tmp_path: Path) -> None:
    builder = ReportBuilder()
    thread = builder.thread()
    builder.gpu()
    launching(0, thread, 20)
    thread.synchronize(2 * MS, 3 * MS)
    thread.api("cudaFree_v3020", 4 * MS, 90 * MS)
    said = run_of(builder.write(tmp_path / "r.sqlite")).summary.verdict
    assert said.kind != "cold_start"


@pytest.mark.parametrize("steps", [1, 4])
def test_one_step_does_not_say_what_every_step_allocates(steps: int, tmp_path: Path) -> None:
    builder = ReportBuilder()
    thread = builder.thread()
    builder.gpu()
    for k in range(steps):
        at = 20 * k * MS
        thread.range(f"step {k}", at, at + 19 * MS)
        launching(at, thread, 50)
        thread.api("cudaMalloc_v3020", at + 6 * MS, at + 10 * MS)
        thread.api("cudaMalloc_v3020", at + 10 * MS, at + 14 * MS)
        launching(at + 14 * MS, thread, 40)
    found = run_of(builder.write(tmp_path / "r.sqlite")).findings
    assert ("allocation" in {one.kind for one in found}) == (steps > 1)


def test_a_step_that_only_sets_memory_has_no_copies(tmp_path: Path) -> None:
    builder = ReportBuilder()
    thread = builder.thread()
    builder.gpu()
    for k in range(4):
        thread.memset(4096, (k * MS, k * MS + 10 * US), (k * MS + 15 * US, (k + 1) * MS + 5 * US))
    said = run_of(builder.write(tmp_path / "r.sqlite")).summary.verdict.text
    assert said.startswith("Setting memory that nothing hides takes 99 %")


def test_inputs_from_pageable_memory_are_pinned_first(tmp_path: Path) -> None:
    """They must come: without copies a step saves 3.9 of 50 ms more, which nothing hides now."""
    builder = ReportBuilder()
    thread = builder.thread()
    builder.gpu()
    for k in range(6):
        at = 60 * k * MS
        thread.range(f"step {k}", at, at + 58 * MS)
        thread.memcpy("h2d", 200 * 10**6, (at, at + 50 * MS), (at + 20 * US, at + 50 * MS - US))
        begin = at + 51 * MS
        thread.kernel("k", (begin, begin + 10 * US), (begin + 15 * US, begin + 8 * MS))
    first, second, *_ = run_of(builder.write(tmp_path / "r.sqlite")).findings
    assert (first.kind, second.kind) == ("pageable_copy", "offloading")
    assert second.saving_s is not None
    assert first.saving_s is not None
    assert first.saving_s + second.saving_s == pytest.approx(50e-3, rel=0.03)
    assert "no kernel hides it" in second.evidence


def test_data_that_come_back_are_kept_on_the_gpu(tmp_path: Path) -> None:
    """Each step: 200 MB to the GPU in 50 ms and back in 60 ms, pageable; a kernel of 5 ms.

    The link of an H200, 64 GB/s, of which pinned copies reach 80 %, needs 3.9 ms for each way.
    """
    builder = ReportBuilder()
    thread = builder.thread()
    builder.gpu()
    for k in range(6):
        at = 120 * k * MS
        thread.range(f"step {k}", at, at + 118 * MS)
        thread.memcpy("h2d", 200 * 10**6, (at, at + 50 * MS), (at + 20 * US, at + 50 * MS - US))
        begin = at + 51 * MS
        thread.kernel("k", (begin, begin + 10 * US), (begin + 15 * US, begin + 5 * MS))
        thread.memcpy("d2h", 200 * 10**6, (begin + 20 * US, at + 116 * MS),
                      (begin + 5 * MS + 10 * US, at + 116 * MS - 5 * US))  # fmt: skip
    run = run_of(builder.write(tmp_path / "r.sqlite"))
    by_kind = {one.kind: one for one in run.findings}
    assert list(by_kind)[:2] == ["offloading", "pageable_copy"]
    assert by_kind["offloading"].saving_s == pytest.approx(110e-3, rel=0.02)
    pinned = by_kind["pageable_copy"]
    assert pinned.saving_s == pytest.approx(110e-3 - 2 * 3.9e-3, rel=0.03)
    assert "the host copies to and from pageable memory" in pinned.title
    assert "51.2 GB/s" in pinned.evidence
    assert "blocking_sync" not in by_kind
    assert run.summary.verdict.text.endswith("(92 % less).")


def test_a_step_that_the_user_names_gets_a_verdict_and_a_caveat(tmp_path: Path) -> None:
    builder = ReportBuilder()
    thread = builder.thread()
    builder.gpu()
    for k in range(6):
        at = 60 * k * MS
        thread.range(f"step {k}", at, at + 5 * MS)
        launching(at, thread, 40 + k)
        launching(at + 6 * MS, thread, 60 + 37 * k)
    path = builder.write(tmp_path / "r.sqlite")
    asked = analyze_reports([path], Options(batch_label="step *")).fitted
    assert asked.steps is not None
    assert asked.steps.unattributed > 0.5
    assert asked.summary.verdict.kind != "outside_steps"
    assert any("outside the steps" in one for one in asked.summary.caveats)
