"""The verdict and the first screen: on known faults, and on every kind of program."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from rich.cells import cell_len

from benchmarks.common.folders import PROFILES, PROGRAMS
from perfmodel.analysis.analyze import analyze_reports
from perfmodel.analysis.result import RunAnalysis
from perfmodel.analysis.verdict import Fix
from perfmodel.programs.program import Options
from perfmodel.render.first_screen import LINES, WIDTH, brief, screen
from support.build_report import ReportBuilder
from support.build_thread import Thread
from support.cli import succeeds

MS, US = 1_000_000, 1_000
BASE = PROFILES / "h200x2_2ranks_base_nsys2025.3.1.sqlite"
EVERY = (
    BASE, *(PROGRAMS / f"{name}.sqlite.xz" for name in (
        "straggler_p2_b32", "healthy_b32", "item_b32", "halo", "gpt_shapes", "jax_gpt", "gpt_ddp",
        "gpt_fsdp8", "cupy_streams", "video",
    )),
)  # fmt: skip


@cache
def analyzed(path: Path) -> RunAnalysis:
    return analyze_reports([path], Options()).fitted


def one_step(run: RunAnalysis, fix: Fix) -> float:
    """The step that a fix is of, or the mean one; no saving is more than all of it."""
    mean = any(one.of_mean for one in run.findings if one.kind == fix.kind)
    return (run.batch.mean_s if mean else run.summary.step_s) * (1 + 1e-9)


@pytest.mark.parametrize("path", EVERY, ids=lambda path: path.name.partition(".")[0])
def test_a_screen_has_room_on_a_terminal_and_its_numbers_agree(path: Path) -> None:
    run = analyzed(path)
    lines, said = screen(run), run.summary
    assert 5 < len(lines) <= LINES
    assert max(map(len, lines)) <= WIDTH
    assert said.verdict.text.split()[0] in "\n".join(lines)
    assert said.step_s <= said.recorded_s
    for bar in said.bars:
        parts = (bar.compute_s, bar.communication_s, bar.waiting_s, bar.copies_s, bar.idle_s)
        assert min(parts) >= 0
        assert sum(parts) == pytest.approx(bar.step_s, rel=1e-9)
    if said.bars and run.steps is not None and run.program.step_clock == "gpu":
        longest = max(bar.step_s for bar in said.bars)  # drawn and said of one step
        assert longest == pytest.approx(said.step_s, rel=0.05)
    for fix in said.fixes:
        assert fix.saving_s is None or fix.saving_s >= 0
        assert fix.step_s is None or fix.saving_s is None or one_step(run, fix) >= fix.saving_s
    assert said.bound_s is None or 0 < said.bound_s <= said.step_s
    assert said.verdict.text in brief(run)


@pytest.mark.parametrize(
    ("name", "kind", "rank"),
    [
        ("straggler_p2_b32", "straggler", 1),
        ("halo", "waiting_mpi", 3),
        ("item_b32", "blocking_sync", None),
        ("dataloader_b32", "host_compute", None),
        ("empty_cache_b32", "allocation", None),
    ],
)
def test_the_planted_fault_is_the_verdict(name: str, kind: str, rank: int | None) -> None:
    verdict = analyzed(PROGRAMS / f"{name}.sqlite.xz").summary.verdict
    assert (verdict.kind, verdict.rank) == (kind, rank)
    assert verdict.saving_s is not None


def test_a_step_that_the_gpu_limits_says_so() -> None:
    verdict = analyzed(PROGRAMS / "resnet34_both_rank0.json.xz").summary.verdict
    assert verdict.text.startswith("The GPU computes")


def test_launches_without_kernels_are_no_healthy_program(tmp_path: Path) -> None:
    builder = ReportBuilder()
    thread = builder.thread()
    builder.gpu()
    for k in range(6):
        thread.range("step", k * 10 * MS, (k * 10 + 9) * MS)
        thread.api("cudaLaunchKernel_v7000", k * 10 * MS + 1000, k * 10 * MS + 5000)
    run = analyzed(builder.write(tmp_path / "r.sqlite"))
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
    said = analyzed(builder.write(tmp_path / "r.sqlite")).summary
    assert said.verdict.kind == "kernels_not_recorded"
    assert "300 kernel launches and no kernel, beside 6 copies" in said.verdict.text
    assert said.fixes == ()
    assert said.bound_s is None


def test_ranges_alone_show_no_step(tmp_path: Path) -> None:
    builder = ReportBuilder()
    thread = builder.thread()
    for k in range(6):
        thread.range("step", k * 10 * MS, (k * 10 + 9) * MS)
    said = analyzed(builder.write(tmp_path / "r.sqlite")).summary
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
    said = analyzed(builder.write(tmp_path / "r.sqlite")).summary
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
    said = analyzed(builder.write(tmp_path / "r.sqlite")).summary
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
    assert analyzed(builder.write(tmp_path / "r.sqlite")).summary.verdict.kind != "cold_start"


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
    said = analyzed(builder.write(tmp_path / "r.sqlite")).summary.verdict
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
    said = analyzed(builder.write(tmp_path / "r.sqlite")).summary.verdict
    assert said.kind != "cold_start"


def test_a_launch_of_10_ns_is_no_cold_start(tmp_path: Path) -> None:
    builder = ReportBuilder()
    thread = builder.thread()
    builder.gpu()
    thread.kernel("k", (0, 10), (10, 30))
    said = analyzed(builder.write(tmp_path / "r.sqlite")).summary.verdict
    assert said.kind != "cold_start"


def test_what_frees_memory_at_the_end_is_no_cold_start(tmp_path: Path) -> None:
    builder = ReportBuilder()
    thread = builder.thread()
    builder.gpu()
    launching(0, thread, 20)
    thread.synchronize(2 * MS, 3 * MS)
    thread.api("cudaFree_v3020", 4 * MS, 90 * MS)
    said = analyzed(builder.write(tmp_path / "r.sqlite")).summary.verdict
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
    found = analyzed(builder.write(tmp_path / "r.sqlite")).findings
    assert ("allocation" in {one.kind for one in found}) == (steps > 1)


def test_a_step_that_only_sets_memory_has_no_copies(tmp_path: Path) -> None:
    builder = ReportBuilder()
    thread = builder.thread()
    builder.gpu()
    for k in range(4):
        thread.memset(4096, (k * MS, k * MS + 10 * US), (k * MS + 15 * US, (k + 1) * MS + 5 * US))
    said = analyzed(builder.write(tmp_path / "r.sqlite")).summary.verdict.text
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
    first, second, *_ = analyzed(builder.write(tmp_path / "r.sqlite")).findings
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
    run = analyzed(builder.write(tmp_path / "r.sqlite"))
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


def test_json_and_the_screen_show_one_object() -> None:
    path = PROGRAMS / "straggler_p2_b32.sqlite.xz"
    document = json.loads(succeeds("analyze", path, "--json"))
    said = analyzed(path).summary
    assert document["verdict"]["text"] == document["summary"]["verdict"]["text"]
    assert document["verdict"]["text"] == said.verdict.text
    assert document["summary"]["fixes"][0]["saving_s"] == said.fixes[0].saving_s
    printed = succeeds("analyze", path).splitlines()
    at = next(i for i, line in enumerate(printed) if line.startswith("More: "))
    assert printed[at] == "More: --section idle|kernels|ranges|ranks|findings|levels|all"
    whole = screen(analyzed(path))
    assert (printed[:at], printed[at + 1 :]) == (whole[:at], whole[at + 1 :])


def test_a_finding_has_its_place_its_evidence_and_its_certainty() -> None:
    lines = screen(analyzed(PROGRAMS / "item_b32.sqlite.xz"))
    at = next(i for i, line in enumerate(lines) if line.startswith(" 1 "))
    assert lines[at].split()[-1] in ("replayed", "estimate")
    assert any(line.startswith("   in 'optimizer' · ") for line in lines[at + 1 : at + 3])


def test_a_place_that_the_title_names_is_said_once() -> None:
    lines = screen(analyzed(PROGRAMS / "straggler_p2_b32.sqlite.xz"))
    at = next(i for i, line in enumerate(lines) if line.startswith(" 1 rank 1 is late"))
    assert "'forward'" in "".join(lines[at : at + 2])
    assert not any(line.startswith(("   rank 1 in", "   in 'forward'")) for line in lines)


def test_what_would_be_cut_to_nothing_is_left_out() -> None:
    for path in EVERY:
        for line in screen(analyzed(path)):
            assert not (line.startswith("   -> ") and line.endswith("…"))


def test_colours_change_no_letter() -> None:
    run = analyzed(PROGRAMS / "straggler_p2_b32.sqlite.xz")
    painted = screen(run, color=True)
    assert painted != screen(run)
    assert [re.sub(r"\x1b\[[\d;]*m", "", line) for line in painted] == screen(run)
    bar = next(line for line in painted if line.startswith(" rank 0"))
    assert "\x1b[34m=" in bar
    assert "\x1b[33m~" in bar


def test_wide_letters_take_two_columns_of_the_screen() -> None:
    run = replace(analyzed(PROGRAMS / "healthy_b32.sqlite.xz"), label="訓練" * 30)
    assert max(map(cell_len, screen(run))) <= WIDTH


def test_a_rank_that_is_longer_in_some_steps_is_late_in_the_mean_step() -> None:
    """Rank 0 writes a checkpoint after every sixth step: the median step has none of it."""
    run = analyzed(PROFILES / "diagnosis" / "heat_checkpoint_root_4.sqlite.xz")
    first = run.findings[0]
    assert (first.kind, first.rank, first.range) == ("waiting_mpi", 0, "checkpoint")
    assert first.of_mean
    assert first.saving_s is not None
    then = f"{1e3 * (run.batch.mean_s - first.saving_s):.2f} ms in place of "
    assert f"{then}{1e3 * run.batch.mean_s:.2f} ms" in run.summary.verdict.text
    assert run.summary.fixes[0].step_s == pytest.approx(run.batch.mean_s - first.saving_s)


def test_a_long_name_leaves_room_for_the_gpu_and_the_number_of_steps() -> None:
    run = replace(analyzed(BASE), label="a_report_whose_name_is_far_too_long_for_a_line" * 2)
    assert screen(run)[0].endswith("… · MLP trainer · 2 ranks, NVIDIA H200 · 38 steps")
    assert len(screen(run)[0]) == WIDTH


def test_savings_of_the_trainer_are_of_its_step_without_the_profiler() -> None:
    """Recorded 2.437 ms, of which the profiler adds 0.311: 1.674 - 0.311 are saved."""
    said, first = analyzed(BASE).summary, analyzed(BASE).findings[0]
    assert first.saving_s is not None
    assert first.saving_without_recorder_s == pytest.approx(
        first.saving_s - (said.recorded_s - said.step_s)
    )
    assert f"in place of {1e3 * said.step_s:.2f} ms" in said.verdict.text


def test_a_fix_that_saves_no_more_says_so() -> None:
    run = analyzed(PROGRAMS / "item_b32.sqlite.xz")
    first, second, *others = run.findings
    none = replace(second, after_previous_s=0.0)
    run = replace(run, findings=(first, none, *others))
    (line,) = (one for one in screen(run) if one.startswith(" 2 "))
    assert "no less" in line


@pytest.mark.slow
def test_sections_are_parts_of_all() -> None:
    path = PROGRAMS / "straggler_p2_b32.sqlite.xz"
    whole = succeeds("analyze", path, "--section", "all")
    for section in ("idle", "kernels", "ranges", "ranks", "findings"):
        for line in succeeds("analyze", path, "--section", section).splitlines():
            assert line in whole


def test_a_line_for_each_run() -> None:
    lines = succeeds("analyze", BASE, "--brief").splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("h200x2_2ranks_base_nsys2025.3.1: step 2.44 ms")


def test_what_some_steps_lose_is_a_share_of_the_mean_step_without_the_profiler() -> None:
    run = analyzed(PROGRAMS / "video.sqlite.xz")
    first, said = run.findings[0], run.summary
    assert first.of_mean
    whole = run.batch.mean_s - (said.recorded_s - said.step_s)
    assert first.share == pytest.approx((first.true_saving_s or 0.0) / whole)
    assert said.fixes[0].step_s == pytest.approx(whole - (first.true_saving_s or 0.0))
    assert said.fixes[0].step_s > said.step_s  # no less than a step without the loss
