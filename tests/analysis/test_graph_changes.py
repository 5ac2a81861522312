"""What changes of the graph save: the same as the findings say, and several at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.common.folders import PROFILES, PROGRAMS
from perfmodel.analysis.analyze import analyze_reports
from perfmodel.analysis.runs import measure_report
from perfmodel.analysis.whatif import TITLES, GraphChanges, graph_changes
from perfmodel.programs.findings import rules
from perfmodel.programs.program import Options
from perfmodel.timing.critical_path import PATH_KINDS

NAMES = ("straggler_p2_b32", "gpt_ddp", "convnext_shapes", "dataloader_b32", "pipeline", "halo")


def changes(path: Path, *together: str) -> GraphChanges:
    return graph_changes([measure_report(path, path, Options())], Options(), together)


def report(name: str) -> Path:
    return PROGRAMS / f"{name}.sqlite.xz"


@pytest.mark.parametrize("name", [*NAMES, *(
    pytest.param(name, marks=pytest.mark.slow)
    for name in ("gpt_straggler8", "gpt_fp32_shapes", "item_b32", "empty_cache_b32", "cupy_streams")
)])  # fmt: skip
def test_savings_are_those_of_the_findings_in_their_order(name: str) -> None:
    """To the last digit; but for findings of some steps only, which are no change of a step."""
    path = report(name)
    found = [f for f in analyze_reports([path], Options()).fitted.findings
             if f.kind in TITLES and not f.of_mean]  # fmt: skip
    said = changes(path)
    count: dict[str, int] = {}
    named = []
    for f in found:
        count[f.kind] = count.get(f.kind, 0) + 1
        named.append(f.kind if count[f.kind] == 1 else f"{f.kind}_{count[f.kind]}")
    shown = [c for c in said.changes if c.name in named]
    assert [c.name for c in shown] == named
    assert [c.saving_s for c in shown] == [f.true_saving_s or 0.0 for f in found]
    savings = [c.saving_s for c in said.changes]
    assert savings == sorted(savings, reverse=True)
    assert all(c.step_s == said.step_s - c.saving_s for c in said.changes)


def test_a_report_of_the_trainer_without_its_mark_has_changes() -> None:
    said = changes(PROFILES / "h200x2_2ranks_base_nsys2025.3.1.sqlite")
    assert said.changes[0].name == "launch_bound"


@pytest.mark.slow
def test_the_late_rank_and_launches_are_replayed_at_once() -> None:
    """Alone each saves what is listed; together more than each, and no more than the step."""
    path = report("straggler_p2_b32")
    alone = {c.name: c.saving_s for c in changes(path).changes}
    one = changes(path, "straggler").together
    assert one is not None
    assert one.saving_s == alone["straggler"] == pytest.approx(20e-3, rel=0.1)
    both = changes(path, "straggler", "launch_bound").together
    assert both is not None
    assert both.name == "straggler + launch_bound"
    assert alone["straggler"] + 0.5 * alone["launch_bound"] < both.saving_s
    assert both.step_s > 0


def test_two_changes_may_save_more_than_each_alone() -> None:
    """Without its reads the host still launches too slowly, and the other way round."""
    path = report("item_b32")
    alone = {c.name: c.saving_s for c in changes(path).changes}
    both = changes(path, "blocking_sync", "launch_bound").together
    assert both is not None
    assert both.saving_s > alone["blocking_sync"] + alone["launch_bound"]


def test_without_a_gpu_the_ranks_own_work_and_mpi_are_changes() -> None:
    """Rank 3 of eight computes 2 ms longer than the others of a step of 4.7 ms."""
    found = {c.name: c for c in changes(report("halo")).changes}
    assert {"host_compute", "communication", "waiting_mpi"} <= found.keys()
    assert "kernel" not in found
    assert found["waiting_mpi"].saving_s == pytest.approx(2e-3, rel=0.1)
    steps = analyze_reports([report("halo")], Options()).fitted.steps
    assert steps is not None
    assert steps.facts.straggler_saving_s == pytest.approx(2e-3, rel=0.1)
    assert {p.kind for p in steps.facts.path} == {"host_compute", "communication"}


def test_all_kinds_of_work_have_a_change() -> None:
    assert {*PATH_KINDS} - {"dependency"} <= TITLES.keys()
    assert {*TITLES} - {*PATH_KINDS} <= {kind for rule in rules() for kind in rule.kinds}
