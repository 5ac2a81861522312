"""The step without its recorder: hand-worked costs, and recordings whose time without is known."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.common.folders import PROGRAMS
from perfmodel.analysis.analyze import analyze_reports
from perfmodel.analysis.runs import time_runs
from perfmodel.analysis.steps import break_down, idle_causes
from perfmodel.programs import steps_of_run
from perfmodel.programs.program import Options
from perfmodel.readers import read
from perfmodel.render.tables import idle_text
from perfmodel.timing.critical_path import Change, Replay
from perfmodel.timing.host_timeline import HOST, LAUNCH
from perfmodel.timing.recorder import (
    Recorder,
    Timed,
    costs_of,
    each_ns,
    events_of,
    fitted,
    shorter_ns,
    unrecorded,
    without_recorder,
)
from perfmodel.timing.run_exchanges import exchanges_of
from perfmodel.timing.step_graph import KERNEL_OP, StepGraph, last_steps

US = 1000
STEPS = 5
NSYS = "Nsight Systems 2025.3.2"
LAUNCH_US, SIZED_US, RANGE_US = costs_of(NSYS).ns / US


def test_the_idle_table_says_what_is_idle_without_the_profiler() -> None:
    """`gpt_shapes` takes 8.6 ms without nsys (its truth), 5 ms of which its GPU works."""
    (run,) = analyze_reports([PROGRAMS / "gpt_shapes.sqlite.xz"], Options()).runs
    steps, (rank,) = run.steps, run.ranks
    assert steps is not None
    recorder = steps.facts.recorder
    assert recorder is not None
    assert rank.step_s == pytest.approx(recorder.without_s)
    assert rank.recorded_step_s == recorder.step_s
    assert rank.gpu_busy_s is not None
    assert rank.idle_s == pytest.approx(3.2e-3, rel=0.02)
    assert rank.idle_s == pytest.approx((recorder.without_s or 0.0) - rank.gpu_busy_s)
    assert steps.ranks[0].idle_s == pytest.approx(17.6e-3, rel=0.01)
    assert 8.6e-3 - rank.gpu_busy_s == pytest.approx(rank.idle_s, abs=1e-3)
    table = idle_text(run)
    assert "idle time is that without nsys, gaps are as recorded" in table.notes
    assert sum(row["seconds"] for row in table.objects()) == pytest.approx(rank.idle_s, rel=0.01)


def graph(op_us: int = 1, slow: float | None = 1.0, sized: int = 0) -> StepGraph:
    """Steps of a launch of 10 µs and a pause of 90 µs in which `sized` operators are pushed."""
    edges = np.append(0, np.cumsum(np.tile([10, 90], STEPS))) * US
    apart = max(100, op_us + 1)  # the GPU may be behind the host
    start = (5 + apart * np.arange(STEPS)) * US
    return StepGraph(
        host_edge_ns=edges,
        host_kind=np.tile([LAUNCH, HOST], STEPS).astype(np.int8),
        host_call=np.tile([True, False], STEPS),
        host_drains=np.zeros(2 * STEPS, np.bool_),
        op_start_ns=start,
        op_end_ns=start + op_us * US,
        op_stream=np.zeros(STEPS, np.int32),
        op_step=np.arange(STEPS, dtype=np.int32),
        op_call=np.arange(0, 2 * STEPS, 2, dtype=np.int32),
        op_kind=np.full(STEPS, KERNEL_OP, np.int8),
        op_small=np.full(STEPS, -1, np.int32),
        op_waiter=np.full(STEPS, -1, np.int32),
        launch_ns=10 * US,
        host_sized=np.tile([0, sized], STEPS).astype(np.int32),
        host_ranges=np.tile([1, 0], STEPS).astype(np.int32),
        recorder=NSYS,
        slow=slow,
    )


def estimate(one: StepGraph, gpu_s: float = 1e-6, timed: Timed | None = None) -> Recorder:
    replay = Replay([one], [0], [np.full(STEPS, -1)])
    return without_recorder(replay, [one], replay.step_s(Change()), gpu_s, timed)


def test_launches_and_ranges_cost_the_pieces_they_lie_in() -> None:
    one = graph(sized=3)
    shorter = shorter_ns(one)
    in_call = 0.3 * LAUNCH_US + RANGE_US
    in_pause = 0.7 * LAUNCH_US + 3 * SIZED_US
    assert shorter[:2] == pytest.approx(np.array([in_call, in_pause]) * US, abs=1)
    assert events_of(one).tolist() == [1, 3, 1]
    assert each_ns(one) == pytest.approx(np.array([LAUNCH_US, SIZED_US, RANGE_US]) * US)


def test_a_slow_recorder_costs_more_and_no_piece_goes_below_its_least_part() -> None:
    usual, slow = (shorter_ns(graph(slow=k))[1] for k in (1.0, 2.0))
    assert slow == pytest.approx(usual * 2**1.25, rel=1e-3)
    assert shorter_ns(graph(sized=100))[1] == 0.85 * 90 * US


def test_the_host_limited_step_is_shorter_by_its_costs() -> None:
    found = estimate(graph(sized=3))
    cost_us = LAUNCH_US + 3 * SIZED_US + RANGE_US
    assert found.step_s == pytest.approx(100e-6)
    assert found.without_s == pytest.approx((100 - cost_us) * 1e-6, abs=1e-8)
    assert found.low_s is not None
    assert found.without_s is not None
    assert found.high_s is not None
    assert found.low_s < found.without_s < found.high_s <= found.step_s
    assert (found.source, found.name, found.matters) == ("estimated", "nsys", True)
    assert set(found.by_kind) == {"launch", "sized_range", "range"}


def test_the_gpu_s_work_hides_the_recorder() -> None:
    found = estimate(graph(op_us=200, sized=3), gpu_s=200e-6)
    assert found.step_s == pytest.approx(201e-6)
    assert found.without_s == pytest.approx(201e-6)
    assert found.low_s == pytest.approx(200e-6)
    assert not found.matters


def test_no_estimate_is_below_the_gpu_s_work() -> None:
    found = estimate(graph(sized=20), gpu_s=80e-6)
    assert found.without_s == found.low_s == pytest.approx(80e-6)


def test_without_calls_nothing_is_known_and_the_reason_is_said() -> None:
    found = estimate(graph(slow=None))
    assert (found.without_s, found.low_s, found.source) == (None, None, "")
    assert found.reason == "no CUDA API calls of the steps were recorded"
    assert "unknown without nsys: no CUDA" in str(found)


def test_the_last_steps_keep_their_costs() -> None:
    few = last_steps(graph(sized=3), 1)
    assert len(np.unique(few.op_step)) == 3
    assert events_of(few).tolist() == [1, 3, 1]
    assert len(unrecorded([few]).shorter_ns[0]) == len(few.host_kind)


def test_both_times_are_one_line() -> None:
    said = Recorder("nsys", 31.1e-3, 18.9e-3, 17.2e-3, 22e-3, "estimated")
    assert str(said) == "step 31.1 ms recorded, about 19 ms without nsys (17 ms to 22 ms)"
    measured = replace(said, source="measured")
    assert str(measured) == "step 31.1 ms recorded, 19 ms without nsys (17 ms to 22 ms)"


def marked(*texts: str) -> Timed | None:
    trace = SimpleNamespace(marks=[(0, 0, text) for text in texts])
    return Timed.of([trace])  # type: ignore[list-item]


def test_what_the_program_timed_counts_first() -> None:
    said = {"perfmodel_recorder": 1, "step_s": 70e-6, "low_s": 69e-6, "high_s": 72e-6,
            "probe": {"range": [0, 2e-6]}}  # fmt: skip
    timed = marked('{"perfmodel_config":1}', json.dumps(said))
    assert timed == Timed(70e-6, 69e-6, 72e-6, range_s=2e-6)
    found = estimate(graph(), timed=timed)
    assert (found.without_s, found.low_s, found.high_s) == (70e-6, 69e-6, 72e-6)
    assert found.source == "measured"
    assert found.by_kind["range"] == pytest.approx(2e-6)
    assert found.by_kind["launch"] == pytest.approx(LAUNCH_US * 1e-6)


def test_the_slowest_rank_s_mark_counts() -> None:
    ranks = (json.dumps({"perfmodel_recorder": 1, "step_s": s, "low_s": s, "high_s": s})
             for s in (1e-3, 3e-3, 2e-3))  # fmt: skip
    assert marked(*ranks) == Timed(3e-3, 3e-3, 3e-3)


@pytest.mark.parametrize(
    "text",
    [
        '{"perfmodel_recorder": 1}',
        '{"perfmodel_recorder": 1, "step_s": 0, "low_s": 0, "high_s": 0}',
        '{"perfmodel_recorder": 1, "step_s": 1, "low_s": 2, "high_s": 3}',
        '{"perfmodel_recorder": 1, "step_s": NaN, "low_s": 1, "high_s": 1}',
        '{"perfmodel_recorder": 1, "step_s": 1, "low_s": 1, "high_s": 1, "probe": 3}',
        '["perfmodel_recorder"]',
        '{"perfmodel_recorder"',
    ],
)
def test_a_mark_that_cannot_be_is_left_out(text: str) -> None:
    assert marked(text) is None


@pytest.mark.parametrize(
    ("name", "within"),
    [("gpt_unnamed", 0.1), ("resnet34_shapes", 0.1), ("gpt_compiled_shapes", 0.02)],
)
def test_recordings_whose_time_without_a_profiler_is_known(name: str, within: float) -> None:
    run = time_runs([read(PROGRAMS / f"{name}.sqlite.xz")], Options())[0]
    found = break_down(run.steps, exchanges_of(run), steps_of_run(run)).facts.recorder
    truth = json.loads((PROGRAMS / f"{name}.truth.json").read_text("utf-8"))["step_s_bare"]
    assert found is not None
    assert found.low_s is not None
    assert found.high_s is not None
    assert found.without_s == pytest.approx(truth, rel=within)
    assert found.low_s <= truth <= found.high_s


def test_costs_are_fitted_to_a_measured_step() -> None:
    one = graph(sized=3)
    replay = Replay([one], [0], [np.full(STEPS, -1)])
    found = Recorder("nsys", 100e-6, 60e-6, 58e-6, 61e-6, "measured")
    assert replay.step_s(fitted(replay, [one], found)) == pytest.approx(60e-6, rel=0.02)
    usual = replay.step_s(fitted(replay, [one], replace(found, source="estimated")))
    assert usual == replay.step_s(unrecorded([one]))


def test_findings_are_those_of_the_step_without_the_profiler() -> None:
    """What was planted comes first: reads of results, where recording makes launches the worst."""
    run = analyze_reports([PROGRAMS / "item_b32.sqlite.xz"], Options()).fitted
    facts = run.steps.facts if run.steps else None
    assert facts is not None
    assert facts.recorder is not None
    assert run.ledger.step_s == facts.step_s == facts.recorder.without_s
    assert [f.kind for f in run.findings][:2] == ["blocking_sync", "launch_bound"]
    for finding in run.findings:
        assert finding.saving_s is not None
        assert finding.saving_s <= facts.step_s


def test_idle_time_of_launches_is_shorter_first() -> None:
    run = analyze_reports([PROGRAMS / "dataloader_b32.sqlite.xz"], Options()).fitted
    assert run.steps is not None
    less, causes = run.steps.facts, idle_causes(run.measured.steps, run.run_steps)
    recorded = {one.cause: one.seconds for one in causes}
    assert less.idle_s("host_compute") == recorded["host_compute"]
    saved = less.ledger.recorded_s - less.step_s
    assert less.idle_s("launch_bound") == pytest.approx(recorded["launch_bound"] - saved, rel=1e-6)
