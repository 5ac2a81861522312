"""What is said of recordings of programs, each of which is analyzed once.

Steps and exchanges keep the rules of all programs; the first screen, the verdict and the changes of
the graph agree with what was measured.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from rich.cells import cell_len

from benchmarks.common.folders import BASE, PROFILES, PROGRAMS, TESTS
from perfmodel.analysis.analyze import analyze_run
from perfmodel.analysis.changes import WORDS, GraphChanges, changes_of
from perfmodel.analysis.result import RunAnalysis
from perfmodel.analysis.runs import measure_report, one_run
from perfmodel.analysis.steps import idle_causes
from perfmodel.analysis.verdict import Fix
from perfmodel.findings import Part, kinds
from perfmodel.programs import steps_of_run
from perfmodel.programs.program import Options
from perfmodel.readers.trace import NULL
from perfmodel.render.analysis_json import analysis_document
from perfmodel.render.first_screen import LINES, WIDTH, brief, screen
from perfmodel.timing.critical_path import PATH_KINDS
from perfmodel.timing.late_ranks import _met
from perfmodel.timing.run_exchanges import exchanges_of
from support.cli import succeeds
from support.foreign_reports import SHIPPED
from support.once import analysis_of, run_of

GOLDEN = TESTS / "golden" / "programs"
PARTS = get_args(Part)


def report(name: str) -> Path:
    return PROGRAMS / f"{name}.sqlite.xz"


def recording(name: str) -> RunAnalysis:
    return run_of(report(name))


# --- steps


FEW = [
    BASE,
    *map(report, ("gpt_ddp", "gpt_unnamed", "cupy_streams", "jax_gpt", "pipeline", "halo")),
]
OTHERS = sorted({*PROGRAMS.glob("*.sqlite.xz"), *PROGRAMS.glob("*.json.xz"), *SHIPPED} - {*FEW})


@pytest.mark.parametrize(
    "path",
    [*FEW, *(pytest.param(path, marks=pytest.mark.slow) for path in OTHERS)],
    ids=lambda path: path.name.partition(".")[0],
)
def test_parts_of_every_step_add_up(path: Path) -> None:
    run = run_of(path)
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
        assert sum(map(rank.part_s, PARTS)) == pytest.approx(rank.step_s)
        exposed_s = rank.part_s("communication") + rank.part_s("waiting")
        assert exposed_s <= (rank.collectives_s or 0.0) * (1 + 1e-9)
    for row in run.ranks:  # without the recorder
        if row.compute_s is None:
            continue
        assert sum(map(row.part_s, PARTS)) == pytest.approx(row.step_s)
        assert (row.step_s or 0.0) <= (row.recorded_step_s or 0.0)
    busy = [r.gpu_busy_s for r in run.steps.ranks if r.gpu_busy_s is not None]
    if busy:
        total = sum(category.seconds for category in run.steps.categories)
        assert total == pytest.approx(np.mean(busy))


@pytest.mark.parametrize(
    ("name", "whole"),
    [("dataloader_b32", True), ("gpt_ddp", False), ("ddp_both", True), ("jax_two_gpus", False)],
)
def test_a_gap_is_inside_the_step_that_it_is_counted_from(name: str, whole: bool) -> None:
    """On its own GPU; those of ranks that run behind the first one began long after it."""
    run = run_of(report(name), whole=whole).measured
    steps = steps_of_run(run)
    for measured in run.steps:
        gaps = measured.gaps
        step_ns = measured.times.step_ns[gaps.lane, gaps.step]
        kept = gaps.into_ns != NULL  # of the longest gaps where not all of the report is
        assert kept.all() if whole else kept.any()
        assert gaps.into_ns[kept].min() >= 0
        assert (gaps.into_ns + gaps.idle_ns <= step_ns)[kept & (step_ns >= 0)].all()
        shown = [gap for cause in idle_causes(run.steps, steps) for gap in cause.gaps]
        longest = measured.times.step_ns.max() * 1e-9
        assert all(0 <= gap.in_step_s < longest for gap in shown)


# --- exchanges


EXCHANGING = [
    *map(report, (
        "halo", "straggler_p2_b32", "pipeline", "gpt_fsdp8", "jax_two_gpus",
    )),
    BASE, PROFILES / "ladder" / "nccl_1.sqlite.xz",
    PROFILES / "ddp" / "ddp_p2_H512_B3000.sqlite.xz",
]  # fmt: skip


@pytest.mark.parametrize("path", EXCHANGING, ids=lambda path: path.name.partition(".")[0])
def test_recordings_keep_the_rules(path: Path) -> None:
    """Waiting is a part of communication, nobody waits for itself, and all tables agree."""
    run = run_of(path)
    found = exchanges_of(run.measured)
    assert (found.cause_rank != found.rank).all()
    known = found.wait_ns != NULL
    assert known.any()
    assert (found.wait_ns[known] >= 0).all()
    assert (found.wait_ns <= found.spent_ns)[known].all()
    assert (found.cause_rank[~known | (found.wait_ns == 0)] == -1).all()
    window = slice(run.batch.warmup, run.batch.warmup + run.batch.count)
    waited = found.seconds_by_step(window.stop, waiting=True)[:, window]
    for steps in run.measured.steps:
        spent = steps.times.communication_ns[:, window] * 1e-9
        assert (waited[:, : spent.shape[1]] <= spent + 1e-9).all()
    for row in run.ranks:
        assert (row.waiting_s or 0.0) <= (row.collectives_s or row.step_s or 0.0)
    for group in run.collectives:
        if group.library != "mpi" and group.waiting_s is not None:
            assert group.waiting_s + (group.transfer_s or 0.0) == pytest.approx(group.seconds)
    assert sum(row.caused_s for row in run.late) <= sum(row.waiting_s for row in run.late) + 1e-9


def test_ranks_met_last_where_both_had_come_to_an_exchange() -> None:
    """As a loop over all exchanges of each pair finds it."""
    run = recording("halo")
    found = exchanges_of(run.measured)
    waits = np.flatnonzero(found.cause_rank >= 0)
    met = _met(found, waits)
    assert len(waits) > 100
    for row, got in zip(waits.tolist(), met.tolist(), strict=True):
        pair = {int(found.rank[row]), int(found.cause_rank[row])}
        came = [
            int(found.post_ns[found.instance == number].max())
            for number in np.intersect1d(*(found.instance[found.rank == rank] for rank in pair))
            if number >= 0
        ]
        begin = int(found.begin_ns[row])
        assert got == max((at for at in came if at < begin), default=begin)


# --- the verdict and the first screen


EVERY = [BASE, *map(report, (
    "straggler_p2_b32", "healthy_b32", "item_b32", "halo", "gpt_shapes", "jax_gpt", "gpt_ddp",
    "gpt_fsdp8", "cupy_streams", "video",
))]  # fmt: skip


def one_step(run: RunAnalysis, fix: Fix) -> float:
    """The step that a fix is of, or the mean one; no saving is more than all of it."""
    mean = any(one.of_mean for one in run.findings if one.kind == fix.kind)
    return (run.batch.mean_s if mean else run.summary.step_s) * (1 + 1e-9)


@pytest.mark.parametrize("path", EVERY, ids=lambda path: path.name.partition(".")[0])
def test_a_screen_has_room_on_a_terminal_and_its_numbers_agree(path: Path) -> None:
    run = run_of(path)
    lines, said = screen(run), run.summary
    assert 5 < len(lines) <= LINES
    assert max(map(len, lines)) <= WIDTH
    assert said.verdict.text.split()[0] in "\n".join(lines)
    assert said.step_s <= said.recorded_s
    for bar in said.bars:
        parts = [bar.part_s(part) for part in PARTS]
        assert min(parts) >= 0
        assert sum(parts) == pytest.approx(bar.step_s, rel=1e-9)
    if said.bars and run.steps is not None and run.program.step_clock == "gpu":
        longest = max(bar.whole_s for bar in said.bars)  # drawn and said of one step
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
    verdict = recording(name).summary.verdict
    assert (verdict.kind, verdict.rank) == (kind, rank)
    assert verdict.saving_s is not None


def test_json_and_the_screen_show_one_object() -> None:
    path = report("straggler_p2_b32")
    document = json.loads(succeeds("analyze", path, "--json"))
    said = run_of(path).summary
    assert document["verdict"]["text"] == document["summary"]["verdict"]["text"]
    assert document["verdict"]["text"] == said.verdict.text
    assert document["summary"]["fixes"][0]["saving_s"] == said.fixes[0].saving_s
    printed = succeeds("analyze", path).splitlines()
    at = next(i for i, line in enumerate(printed) if line.startswith("More: "))
    assert printed[at] == "More: --section idle|kernels|ranges|ranks|findings|levels|all"
    whole = screen(run_of(path))
    assert (printed[:at], printed[at + 1 :]) == (whole[:at], whole[at + 1 :])


def test_a_finding_has_its_place_its_evidence_and_its_certainty() -> None:
    lines = screen(recording("item_b32"))
    at = next(i for i, line in enumerate(lines) if line.startswith(" 1 "))
    assert lines[at].split()[-1] in ("replayed", "estimate")
    assert any(line.startswith("   in 'optimizer' · ") for line in lines[at + 1 : at + 3])


def test_a_place_that_the_title_names_is_said_once() -> None:
    lines = screen(recording("straggler_p2_b32"))
    at = next(i for i, line in enumerate(lines) if line.startswith(" 1 rank 1 is late"))
    assert "'forward'" in "".join(lines[at : at + 2])
    assert not any(line.startswith(("   rank 1 in", "   in 'forward'")) for line in lines)


def test_what_would_be_cut_to_nothing_is_left_out() -> None:
    for path in EVERY:
        for line in screen(run_of(path)):
            assert not (line.startswith("   -> ") and line.endswith("…"))


def test_colours_change_no_letter() -> None:
    run = recording("straggler_p2_b32")
    painted = screen(run, color=True)
    assert painted != screen(run)
    assert [re.sub(r"\x1b\[[\d;]*m", "", line) for line in painted] == screen(run)
    bar = next(line for line in painted if line.startswith(" rank 0"))
    assert "\x1b[34m=" in bar
    assert "\x1b[33m~" in bar


def test_wide_letters_take_two_columns_of_the_screen() -> None:
    run = replace(recording("healthy_b32"), label="訓練" * 30)
    assert max(map(cell_len, screen(run))) <= WIDTH


def test_a_rank_that_is_longer_in_some_steps_is_late_in_the_mean_step() -> None:
    """Rank 0 writes a checkpoint after every sixth step: the median step has none of it."""
    run = run_of(PROFILES / "diagnosis" / "heat_checkpoint_root_4.sqlite.xz")
    first = run.findings[0]
    assert (first.kind, first.rank, first.range) == ("waiting_mpi", 0, "checkpoint")
    assert first.of_mean
    assert first.saving_s is not None
    whole = f"the mean step of {1e3 * run.batch.mean_s:.2f} ms takes at best "
    assert f"{whole}{1e3 * (run.batch.mean_s - first.saving_s):.2f} ms" in run.summary.verdict.text
    assert run.summary.fixes[0].step_s == pytest.approx(run.batch.mean_s - first.saving_s)


def test_a_long_name_leaves_room_for_the_gpu_and_the_number_of_steps() -> None:
    run = replace(run_of(BASE), label="a_report_whose_name_is_far_too_long_for_a_line" * 2)
    assert screen(run)[0].endswith("… · MLP trainer · 2 ranks, NVIDIA H200 · 38 steps")
    assert len(screen(run)[0]) == WIDTH


def test_savings_of_the_trainer_are_of_its_step_without_the_profiler() -> None:
    """Recorded 2.441 ms, of which the profiler adds 0.311: 1.679 - 0.311 are saved."""
    said, first = run_of(BASE).summary, run_of(BASE).findings[0]
    assert [rank.batches for rank in run_of(BASE).ranks] == [said.steps, said.steps]
    assert first.saving_s == pytest.approx(1.6792e-3 - (said.recorded_s - said.step_s), rel=1e-4)
    assert f"in place of {1e3 * said.step_s:.2f} ms" in said.verdict.text


def test_a_fix_that_saves_no_more_says_so() -> None:
    run = recording("item_b32")
    first = run.findings[0]
    again = replace(first, key="again", title="the same again")
    run = replace(run, findings=(first, again))
    (line,) = (one for one in screen(run) if one.startswith(" 2 "))
    assert "no less" in line


@pytest.mark.slow
def test_sections_are_parts_of_all() -> None:
    path = report("straggler_p2_b32")
    whole = succeeds("analyze", path, "--section", "all")
    for section in ("idle", "kernels", "ranges", "ranks", "findings"):
        for line in succeeds("analyze", path, "--section", section).splitlines():
            assert line in whole


def test_a_line_for_each_run() -> None:
    lines = succeeds("analyze", BASE, "--brief").splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("h200x2_2ranks_base_nsys2025.3.1: step 2.44 ms")


def test_what_some_steps_lose_is_a_share_of_the_mean_step_without_the_profiler() -> None:
    run = recording("video")
    first, said = run.findings[0], run.summary
    assert first.of_mean
    whole = run.batch.mean_s - (said.recorded_s - said.step_s)
    assert first.share == pytest.approx((first.saving_s or 0.0) / whole)
    assert said.fixes[0].step_s == pytest.approx(whole - (first.saving_s or 0.0))
    assert said.fixes[0].step_s > said.step_s  # no less than a step without the loss


# --- golden results


@pytest.mark.parametrize("name", ["gpt_ddp", "gpt_unnamed"])
def test_golden(name: str) -> None:
    document = analysis_document(analysis_of(report(name)))
    keys = ("program", "batch", "ranks", "kernels", "collectives")
    assert_close(
        {key: document[key] for key in keys}, json.loads((GOLDEN / f"{name}.json").read_text())
    )


def assert_close(got: Any, expected: Any, path: str = "") -> None:
    if isinstance(expected, dict):
        assert got.keys() >= expected.keys(), path
        for key, value in expected.items():
            assert_close(got[key], value, f"{path}.{key}")
    elif isinstance(expected, list):
        assert len(got) == len(expected), path
        for i, value in enumerate(expected):
            assert_close(got[i], value, f"{path}[{i}]")
    elif isinstance(expected, float):
        assert got == pytest.approx(expected, rel=1e-9), path
    else:
        assert got == expected, path


# --- changes of the graph


NAMES = ("straggler_p2_b32", "gpt_ddp", "gpt_shapes", "dataloader_b32", "pipeline", "halo")


def changes(path: Path, *together: str) -> GraphChanges:
    return changes_of(run_of(path), together)


@pytest.mark.parametrize("name", [*NAMES, *(
    pytest.param(name, marks=pytest.mark.slow)
    for name in ("gpt_straggler8", "gpt_fp32_shapes", "item_b32", "empty_cache_b32", "cupy_streams")
)])  # fmt: skip
def test_savings_are_those_of_the_findings(name: str) -> None:
    """To the last digit; but for findings of some steps only, which are no change of a step."""
    path = report(name)
    found = [f for f in run_of(path).findings if f.saving_s is not None and not f.of_mean]
    said = changes(path)
    keys = [f.key for f in found]
    shown = [c for c in said.changes if c.name in keys]
    assert {c.name: c.saving_s for c in shown} == pytest.approx(
        {f.key: f.saving_s or 0.0 for f in found}, rel=1e-12
    )
    savings = [c.saving_s for c in said.changes]
    assert savings == sorted(savings, reverse=True)
    assert all(c.step_s == said.step_s - c.saving_s for c in said.changes)


def test_a_report_of_the_trainer_without_its_mark_has_changes() -> None:
    said = changes(BASE)
    assert said.changes[0].name == "launch_bound"
    run = one_run([measure_report(BASE, BASE, Options())], Options())
    assert changes_of(analyze_run(run, Options())) == said


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
    run = recording("item_b32")
    sync, launches = run.findings
    assert (sync.kind, launches.kind) == ("blocking_sync", "launch_bound")
    both = changes(report("item_b32"), "blocking_sync", "launch_bound").together
    assert both is not None
    first, second = run.summary.fixes
    assert first.after_previous_s == pytest.approx(first.saving_s)
    assert (first.after_previous_s or 0.0) + (second.after_previous_s or 0.0) == pytest.approx(
        both.saving_s
    )
    assert first.step_s == run.summary.step_s - (sync.saving_s or 0.0)
    assert second.step_s == both.step_s


def test_short_pauses_between_launches_are_launching_and_a_long_one_is_work() -> None:
    """An eager program without a fault waits for launches; a loader in the step is other work."""
    kinds = {
        name: [f.kind for f in recording(name).findings]
        for name in ("healthy_b32", "gpt_unnamed", "dataloader_b32")
    }
    assert kinds["healthy_b32"] == kinds["gpt_unnamed"] == ["launch_bound"]
    assert kinds["dataloader_b32"][0] == "host_compute"


def test_what_forbids_a_cuda_graph_comes_before_launches() -> None:
    run = recording("empty_cache_b32")
    first, second = run.findings
    assert (first.kind, second.kind) == ("allocation", "launch_bound")
    assert (first.saving_s or 0.0) < (second.saving_s or 0.0)
    fix = run.summary.fixes[1]
    assert fix.saving_s == second.saving_s
    assert 0 < (fix.after_previous_s or 0.0) <= (second.saving_s or 0.0)


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
    steps = recording("halo").steps
    assert steps is not None
    assert steps.facts.straggler_saving_s == pytest.approx(2e-3, rel=0.1)
    assert {p.kind for p in steps.facts.path} == {"host_compute", "communication"}


def test_all_kinds_of_work_have_a_change() -> None:
    of_findings = {kind.replays or kind.key for kind in kinds().values()}
    assert {*PATH_KINDS} <= {*WORDS} | of_findings
    assert not {*WORDS} & of_findings


def test_changes_of_the_gpu_that_the_host_hides_are_listed_and_applied() -> None:
    run = recording("llama_shapes")
    found = changes_of(run, ("launch_bound", "memory_bound"))
    alone = {row.name: row for row in found.changes}
    assert alone["memory_bound"].saving_s < 0.01 * found.step_s
    assert found.together is not None
    assert found.together.saving_s > alone["launch_bound"].saving_s + 0.1 * found.step_s
    assert "twice_the_bandwidth" in alone
