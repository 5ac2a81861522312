"""Findings on programs whose fault, and what it costs, are known."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks.idle.__main__ import KIND_OF, WITHIN, pair
from perfmodel.analysis.analyze import analyze_reports
from perfmodel.analysis.result import RunAnalysis
from perfmodel.programs.findings import KINDS
from perfmodel.programs.program import Options

PROFILES = Path(__file__).parents[2] / "profiles" / "programs"
PLANTED = Path(os.environ.get("PROGRAM_REPORTS", "/nonexistent")) / "planted"
FIRST = {
    "item": "blocking_sync",
    "pageable": "pageable_copy",
    "straggler": "straggler",
    "launch": "launch_bound",
    "fp32": "low_precision_unused",
    "loop_optimizer": "many_small_kernels",
    "naive_attention": "unfused_attention",
    "late_allreduce": "launch_bound",
}


def analyzed(path: Path) -> RunAnalysis:
    return analyze_reports([path], Options()).fitted


@pytest.mark.skipif(not PLANTED.exists(), reason="PROGRAM_REPORTS names no folder of reports")
@pytest.mark.parametrize("name", FIRST)
def test_the_first_finding_is_the_planted_fault(name: str) -> None:
    run = analyzed(PLANTED / f"{name}.sqlite.xz")
    assert run.findings[0].kind == FIRST[name]
    assert {f.kind for f in run.findings} <= set(KINDS)
    said = " ".join(f.action + f.evidence for f in run.findings)
    assert not any(word in said for word in ("CuPy", "cupyx", "MPI", "--"))
    if name == "item":
        assert 3.6e-3 < (run.findings[0].saving_s or 0) < 5.6e-3
    if name == "pageable":
        assert 60e-3 < (run.findings[0].saving_s or 0) < 70e-3
    if name == "straggler":
        assert "rank 1" in run.findings[0].title
    if name == "late_allreduce":
        assert run.findings[1].kind == "exposed_communication"


@pytest.mark.skipif(not PLANTED.exists(), reason="PROGRAM_REPORTS names no folder of reports")
def test_a_healthy_step_loses_no_more_than_its_idle_time() -> None:
    run = analyzed(PLANTED / "healthy.sqlite.xz")
    assert all((f.saving_s or 0) <= 0.75e-3 for f in run.findings)


@pytest.mark.parametrize("fault", ["item", "dataloader"])
def test_a_predicted_saving_is_near_the_measured_one(fault: str) -> None:
    row = pair(PROFILES / f"{fault}_b32.sqlite.xz", fault, PROFILES / "healthy_b32.sqlite.xz")
    assert row["kind"] == KIND_OF[fault]
    assert row["ratio"] == pytest.approx(1.0, abs=WITHIN)


def test_a_late_rank_costs_what_it_sleeps() -> None:
    first = analyzed(PROFILES / "straggler_p2_b32.sqlite.xz").findings[0]
    assert first.kind == "straggler"
    assert first.saving_s == pytest.approx(20e-3, rel=0.1)


def test_a_rank_that_waits_in_nccl_is_reported_though_the_step_would_be_as_long() -> None:
    run = analyzed(PROFILES / "gpt_ddp.sqlite.xz")
    waiting = max(r.waiting_s or 0.0 for r in run.steps.ranks) if run.steps else 0.0
    assert waiting == pytest.approx(12.7e-3, rel=0.01)
    (late,) = (f for f in run.findings if f.kind == "straggler")
    assert late.title == "the other ranks wait for rank 1"
    assert (late.saving_s or 0.0) < 0.03 * run.batch.median.value
    assert "15.7 ms per step" in late.evidence


@pytest.mark.parametrize("name", ["healthy_b32", "item_b32", "dataloader_b32", "straggler_p2_b32"])
def test_idle_causes_and_the_path_add_up(name: str) -> None:
    run = analyzed(PROFILES / f"{name}.sqlite.xz")
    steps = run.steps
    assert steps is not None
    for rank in steps.ranks:
        causes = [c for c in steps.idle if c.rank == rank.rank]
        assert sum(c.share for c in causes) == pytest.approx(1.0)
        assert sum(c.seconds for c in causes) == pytest.approx(rank.idle_s or 0.0)
        other = sum(c.seconds for c in causes if c.cause == "other")
        assert other <= max(0.03 * rank.batch_s, 0.5e-3)
    path = steps.facts.path
    assert sum(p.share for p in path) == pytest.approx(1.0)
    assert sum(p.seconds for p in path) == pytest.approx(steps.median_s, rel=0.1)
    assert steps.facts.step_s == pytest.approx(steps.median_s, rel=0.02)
    assert all(p.free_s <= steps.facts.step_s * 1.01 for p in path)


def test_data_loading_is_named_with_its_range() -> None:
    steps = analyzed(PROFILES / "dataloader_b32.sqlite.xz").steps
    assert steps is not None
    assert steps.idle[0].cause == "host_compute"
    assert steps.idle[0].gaps[0].range == "data"


def test_the_late_rank_is_named_with_what_it_does() -> None:
    steps = analyzed(PROFILES / "straggler_p2_b32.sqlite.xz").steps
    assert steps is not None
    late = max(steps.facts.stragglers, key=lambda s: s.share_last)
    assert (late.rank, late.share_last, late.persistent) == (1, 1.0, True)
    assert late.doing == "host_compute in forward"
