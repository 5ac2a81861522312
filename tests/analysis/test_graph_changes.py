"""What changes of the graph save: the same as the findings say, and several at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.common.folders import BASE, PROGRAMS
from perfmodel.analysis.changes import TITLES, GraphChanges, changes_of
from perfmodel.analysis.runs import measure_report
from perfmodel.analysis.whatif import graph_changes
from perfmodel.programs.findings import rules
from perfmodel.programs.program import Options
from perfmodel.timing.critical_path import PATH_KINDS
from perfmodel.timing.step_facts import DISPATCH
from support.once import run_of

NAMES = ("straggler_p2_b32", "gpt_ddp", "convnext_shapes", "dataloader_b32", "pipeline", "halo")


def changes(path: Path, *together: str) -> GraphChanges:
    return changes_of(run_of(path), together)


def report(name: str) -> Path:
    return PROGRAMS / f"{name}.sqlite.xz"


@pytest.mark.parametrize("name", [*NAMES, *(
    pytest.param(name, marks=pytest.mark.slow)
    for name in ("gpt_straggler8", "gpt_fp32_shapes", "item_b32", "empty_cache_b32", "cupy_streams")
)])  # fmt: skip
def test_savings_are_those_of_the_findings(name: str) -> None:
    """To the last digit; but for findings of some steps only, which are no change of a step."""
    path = report(name)
    found = [f for f in run_of(path).findings if f.kind in TITLES and not f.of_mean]
    said = changes(path)
    count: dict[str, int] = {}
    named = []
    for f in found:
        count[f.kind] = count.get(f.kind, 0) + 1
        named.append(f.kind if count[f.kind] == 1 else f"{f.kind}_{count[f.kind]}")
    shown = [c for c in said.changes if c.name in named]
    assert {c.name: c.saving_s for c in shown} == {
        name: f.true_saving_s or 0.0 for name, f in zip(named, found, strict=True)
    }
    savings = [c.saving_s for c in said.changes]
    assert savings == sorted(savings, reverse=True)
    assert all(c.step_s == said.step_s - c.saving_s for c in said.changes)


def test_a_report_of_the_trainer_without_its_mark_has_changes() -> None:
    said = changes(BASE)
    assert said.changes[0].name == "launch_bound"
    assert graph_changes([measure_report(BASE, BASE, Options())], Options()) == said


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


def test_two_changes_save_most_of_both() -> None:
    path = report("item_b32")
    alone = {c.name: c.saving_s for c in changes(path).changes}
    both = changes(path, "blocking_sync", "host_compute").together
    assert both is not None
    assert 0.95 < both.saving_s / (alone["blocking_sync"] + alone["host_compute"]) <= 1.0


def test_findings_say_what_they_save_after_those_before_them() -> None:
    """Launches alone and after the synchronization; never more than alone, nor than the step."""
    run = run_of(report("item_b32"))
    sync, launches = run.findings
    assert (sync.kind, launches.kind) == ("blocking_sync", "launch_bound")
    assert sync.after_previous_s == sync.true_saving_s
    both = changes(report("item_b32"), "blocking_sync", "launch_bound").together
    assert both is not None
    assert (sync.after_previous_s or 0.0) + (launches.after_previous_s or 0.0) == pytest.approx(
        both.saving_s, rel=0.01
    )
    first, second = run.summary.fixes
    assert first.step_s == run.summary.step_s - (sync.true_saving_s or 0.0)
    assert second.step_s == pytest.approx(both.step_s, rel=0.01)


def test_short_pauses_between_launches_are_launching_and_a_long_one_is_work() -> None:
    """An eager program without a fault waits for launches; a loader in the step is other work."""
    kinds = {
        name: [f.kind for f in run_of(report(name)).findings]
        for name in ("healthy_b32", "gpt_unnamed", "dataloader_b32")
    }
    assert kinds["healthy_b32"] == kinds["gpt_unnamed"] == ["launch_bound"]
    assert kinds["dataloader_b32"][0] == "host_compute"


def test_what_forbids_a_cuda_graph_comes_before_launches() -> None:
    run = run_of(report("empty_cache_b32"))
    first, second = run.findings
    assert (first.kind, second.kind) == ("allocation", "launch_bound")
    assert (first.true_saving_s or 0.0) < (second.true_saving_s or 0.0)
    assert (second.after_previous_s or 0.0) <= (second.true_saving_s or 0.0)


def test_types_ceilings_and_bandwidths_are_changes_where_sizes_are_known() -> None:
    found = {c.name: c.saving_s for c in changes(report("gpt_fp32_shapes")).changes}
    assert {"gemms_at_ceiling", "bf16_for_fp32", "twice_the_bandwidth"} <= found.keys()
    assert max(found[name] for name in ("gemms_at_ceiling", "bf16_for_fp32")) <= found["kernel"]


def test_without_a_gpu_the_ranks_own_work_and_mpi_are_changes() -> None:
    """Rank 3 of eight computes 2 ms longer than the others of a step of 4.7 ms."""
    found = {c.name: c for c in changes(report("halo")).changes}
    assert {"host_compute", "communication", "waiting_mpi"} <= found.keys()
    assert "kernel" not in found
    assert found["waiting_mpi"].saving_s == pytest.approx(2e-3, rel=0.1)
    steps = run_of(report("halo")).steps
    assert steps is not None
    assert steps.facts.straggler_saving_s == pytest.approx(2e-3, rel=0.1)
    assert {p.kind for p in steps.facts.path} == {"host_compute", "communication"}


def test_all_kinds_of_work_have_a_change() -> None:
    assert {*PATH_KINDS} - {"dependency"} <= TITLES.keys()
    asked = {DISPATCH, "gemms_at_ceiling", "bf16_for_fp32", "twice_the_bandwidth",
             "twice_the_network"}  # fmt: skip
    kinds = {kind for rule in rules() for kind in rule.kinds}
    assert {*TITLES} - {*PATH_KINDS} - asked <= kinds


def test_changes_of_the_gpu_that_the_host_hides_are_listed_and_applied() -> None:
    run = run_of(report("llama_shapes"))
    found = changes_of(run, ("launch_bound", "memory_bound"))
    alone = {row.name: row for row in found.changes}
    assert alone["memory_bound"].saving_s < 0.01 * found.step_s
    assert found.together is not None
    assert found.together.saving_s > alone["launch_bound"].saving_s + 0.1 * found.step_s
    assert "twice_the_bandwidth" in alone
