"""What a late rank's host does, and the advice that the recording allows: on built recordings."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfmodel.analysis.analyze import analyze_reports
from perfmodel.analysis.result import RunAnalysis
from perfmodel.programs.program import Options
from perfmodel.readers import read
from support.build_ranks import MS, US, training
from support.build_report import ReportBuilder


def analyzed(builder: ReportBuilder, folder: Path) -> RunAnalysis:
    return analyze_reports([builder.write(folder / "r.sqlite")], Options()).fitted


def test_a_rank_that_stalls_a_second_in_every_step_is_the_first_finding(tmp_path: Path) -> None:
    builder = ReportBuilder()
    training(builder, [0, 0, 1000 * MS, 0])
    run = analyzed(builder, tmp_path)
    first = run.findings[0]
    assert (first.kind, first.rank, first.range) == ("straggler", 2, "forward")
    assert first.title == "rank 2 is late: its host works 1.00 s longer in 'forward'"
    assert first.saving_s == pytest.approx(0.998, rel=0.01)  # the GPU has 2 ms to do meanwhile
    assert run.summary.verdict.kind == "straggler"
    assert run.summary.verdict.rank == 2
    assert run.steps is not None
    late = run.steps.facts.last_rank()
    assert late is not None
    assert late.excess is not None
    assert late.excess.seconds == pytest.approx(1.0, rel=1e-3)


@pytest.mark.parametrize(
    ("stalled", "title", "advice"),
    [
        ({}, "its host works 20.0 ms longer in 'forward'", "record what the thread does on rank 1"),
        ({"sleeps": True}, "its host sleeps 20.0 ms longer in 'forward'", "--trace=cuda,nvtx,osrt"),
        ({"call": "clock_nanosleep"}, "its host sleeps 20.0 ms longer", "remove the sleep"),
        ({"call": "pread64"}, "its host works 20.0 ms longer", "load what the next step needs"),
        ({"call": "fsync"}, "its host works 20.0 ms longer", "every n steps"),
        ({"call": "poll"}, "its host sleeps 20.0 ms longer", "which thread or process"),
        ({"call": "sqrt", "sleeps": True}, "its host sleeps 20.0 ms longer", "names the call"),
        ({"where": "checkpoint"}, "20.0 ms longer in 'checkpoint'", "every n steps"),
    ],
)
def test_advice_follows_what_the_stalled_thread_does(
    stalled: dict, title: str, advice: str, tmp_path: Path
) -> None:
    builder = ReportBuilder()
    training(builder, [0, 20 * MS], **stalled)
    first = analyzed(builder, tmp_path).findings[0]
    assert first.title.startswith("rank 1 is late: ")
    assert title in first.title
    assert advice in first.action


def test_a_thread_that_is_awake_computes(tmp_path: Path) -> None:
    builder = ReportBuilder()
    training(builder, [0, 20 * MS])
    for thread in builder.threads:  # the scheduler was recorded, and took them off before the steps
        tid = thread.global_tid
        for at, into in ((0, 0), (US, 1)):
            builder.insert("SCHED_EVENTS", start=at, isSchedIn=into, globalTid=tid)
    first = analyzed(builder, tmp_path).findings[0]
    assert "the thread runs meanwhile" in first.evidence
    assert first.action.startswith("do the host's work on rank 1 in 'forward' beside the GPU's")


def test_slow_kernels_of_one_gpu_ask_for_its_clock(tmp_path: Path) -> None:
    builder = ReportBuilder()
    training(builder, [0, 0], kernel_ns=[60 * US, 120 * US])
    first = analyzed(builder, tmp_path).findings[0]
    assert first.title == "rank 1 is late: about as many kernels take 2 times as long"
    assert "clocks.sm" in first.action


def test_equal_ranks_have_no_late_one(tmp_path: Path) -> None:
    builder = ReportBuilder()
    training(builder, [0, 0, 0, 0])
    assert "straggler" not in {f.kind for f in analyzed(builder, tmp_path).findings}


def test_times_off_the_processor_and_in_system_calls_are_read_by_thread(tmp_path: Path) -> None:
    builder = ReportBuilder()
    training(builder, [5 * MS, 7 * MS], steps=2, sleeps=True, call="poll")
    tid = builder.threads[0].global_tid
    builder.insert("SCHED_EVENTS", start=1, isSchedIn=1, globalTid=tid + 1)  # has no other event
    trace = read(builder.write(tmp_path / "r.sqlite"))
    assert trace.asleep is not None
    assert trace.system_calls is not None
    length = trace.asleep.end_ns - trace.asleep.start_ns
    assert length.tolist() == [5 * MS - 2 * US] * 2 + [7 * MS - 2 * US] * 2
    assert trace.asleep.thread.tolist() == [0, 0, 1, 1]
    calls = trace.system_calls
    assert {calls.names[name] for name in calls.name.tolist()} == {"poll"}
    begin = calls.start_ns[:1] - MS
    spent, name = calls.inside(calls.thread[:1], begin, begin + 3 * MS)
    assert spent.tolist() == [2 * MS]
    assert calls.names[int(name[0])] == "poll"
    spent, name = calls.inside(calls.thread[:1], begin - MS, begin)
    assert (spent.tolist(), name.tolist()) == ([0], [-1])
