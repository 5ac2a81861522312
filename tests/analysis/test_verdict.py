"""The verdict and the first screen: on known faults, and on every kind of program."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest

from benchmarks.common.folders import PROFILES, PROGRAMS
from perfmodel.analysis.analyze import analyze_reports
from perfmodel.analysis.result import RunAnalysis
from perfmodel.programs.program import Options
from perfmodel.render.first_screen import LINES, WIDTH, brief, screen
from support.build_report import ReportBuilder
from support.cli import succeeds

MS = 1_000_000
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
    for fix in said.fixes:
        assert fix.saving_s is None or fix.saving_s >= 0
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


def test_json_and_the_screen_show_one_object() -> None:
    path = PROGRAMS / "straggler_p2_b32.sqlite.xz"
    document = json.loads(succeeds("analyze", path, "--json"))
    said = analyzed(path).summary
    assert document["verdict"]["text"] == document["summary"]["verdict"]["text"]
    assert document["verdict"]["text"] == said.verdict.text
    assert document["summary"]["fixes"][0]["saving_s"] == said.fixes[0].saving_s
    printed = succeeds("analyze", path).splitlines()
    assert printed == screen(analyzed(path))


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
