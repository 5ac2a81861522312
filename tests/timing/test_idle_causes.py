"""Idle time by cause: reports with one known gap of 4 ms in every step."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from perfmodel.analysis.analyze import analyze_reports
from perfmodel.analysis.result import RunAnalysis
from perfmodel.analysis.steps import StepBreakdown, idle_causes
from perfmodel.programs.program import Options
from perfmodel.timing.host_timeline import CAUSES, plain_call
from support.build_report import ReportBuilder
from support.build_thread import Thread

MS = 1_000_000
US = 1_000


def blocking(t: Thread, at: int) -> None:
    """The host waits for the first kernel and 4 ms more, then launches."""
    t.api("cudaStreamSynchronize_v3020", at + 1 * MS, at + 6 * MS - 20 * US)


def pageable_read(t: Thread, at: int, kind: str = "d2h") -> None:
    """A copy of a few bytes to pageable memory returns late."""
    end = at + 6 * MS
    t.memcpy(kind, 4, (at + MS, end - 20 * US), (end - 50 * US, end - 40 * US))


def allocation(t: Thread, at: int) -> None:
    t.api("cudaMalloc_v3020", at + 1 * MS, at + 6 * MS - 20 * US)


def host(t: Thread, at: int) -> None:
    t.range("data", at + 1 * MS, at + 6 * MS - 20 * US)


def mpi(t: Thread, at: int) -> None:
    t.mpi("MPI_Allreduce", at + 1 * MS, at + 6 * MS - 20 * US, 8)


def launches(t: Thread, at: int) -> None:
    """Launch after launch, each for a kernel of 1 µs: 40 of 100 µs."""
    for i in range(40):
        start = at + 2 * MS + i * 100 * US
        t.kernel("small", (start, start + 90 * US), (start + 91 * US, start + 92 * US))


def staging(t: Thread, at: int) -> None:
    """The host copies into a staging buffer for 4 ms before the copy starts."""
    end = at + 6 * MS
    t.memcpy("h2d", 10**6, (at + MS, end), (end - 20 * US, end - 10 * US))


def run_of(path: Path, work: Callable[[Thread, int], None], **second: int) -> RunAnalysis:
    """Four steps of 10 ms: a kernel of 2 ms, a gap, and from 6 ms one of 4 ms."""
    builder = ReportBuilder()
    thread = builder.thread()
    builder.gpu()
    for i in range(5):
        at = 10 * MS * (i + 1)
        thread.range(f"step {i}", at - 50 * US, at + 10 * MS - 60 * US)
        thread.kernel("first", (at - 20 * US, at - 10 * US), (at, at + 2 * MS))
        work(thread, at)
        called = second.get("called_ns", 6 * MS - 15 * US)
        thread.kernel(
            "second", (at + called, at + called + 5 * US), (at + 6 * MS, at + 10 * MS),
            stream=second.get("stream", 7),
        )  # fmt: skip
    report = builder.write(path / "r.sqlite")
    return analyze_reports([report], Options()).fitted


def steps_of(path: Path, work: Callable[[Thread, int], None], **second: int) -> StepBreakdown:
    found = run_of(path, work, **second).steps
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("work", "cause", "call", "where"),
    [
        (blocking, "blocking_sync", "cudaStreamSynchronize", "step *"),
        (pageable_read, "blocking_sync", "cudaMemcpyAsync", "step *"),
        (partial(pageable_read, kind="a2h"), "blocking_sync", "cudaMemcpyAsync", "step *"),
        (allocation, "allocation", "cudaMalloc", "step *"),
        (host, "host_compute", "cudaLaunchKernel", "data"),
        (mpi, "communication", "MPI_Allreduce", "step *"),
        (launches, "launch_bound", "cudaLaunchKernel", "step *"),
        (staging, "pageable_copy", "cudaMemcpyAsync", "step *"),
    ],
)
def test_a_gap_is_given_to_what_the_host_did(
    work: Callable[[Thread, int], None], cause: str, call: str, where: str, tmp_path: Path
) -> None:
    """As recorded; only the step of many launches takes less without the recorder."""
    run = run_of(tmp_path, work)
    steps = run.steps
    assert steps is not None
    recorded = idle_causes(run.measured.steps, run.run_steps)
    first, added_s = recorded[0], run.ledger.recorded_s - run.ledger.step_s
    assert first.cause == steps.facts.idle[0].cause == cause
    assert (added_s > 0) == (work is launches)
    assert first.seconds == pytest.approx(4e-3, rel=0.03)
    assert steps.facts.idle[0].seconds == pytest.approx(first.seconds - added_s)
    rank, idle_s = steps.ranks[0], sum(c.seconds for c in recorded)
    assert idle_s == pytest.approx((rank.step_s or 0.0) - (rank.gpu_busy_s or 0.0))
    if cause != "communication":  # which is exposed, and not idle, time of the rank
        assert idle_s == pytest.approx(rank.idle_s)
    assert (first.gaps[0].call, first.gaps[0].range) == (call, where)
    assert len(first.gaps) == 3


@pytest.mark.parametrize(("copying", "cause"), [(2.5, "pageable_copy"), (1.5, "blocking_sync")])
def test_a_call_that_mostly_copies_to_pageable_memory_is_no_wait(
    copying: float, cause: str, tmp_path: Path
) -> None:
    """Of a call of 4 ms; the GPU idles before the copy and after it."""

    def fetching(t: Thread, at: int) -> None:
        begin = at + int(2.5 * MS)
        gpu = (begin, begin + int(copying * MS))
        t.memcpy("d2h", 10**6, (at + 2 * MS - 20 * US, at + 6 * MS - 20 * US), gpu)

    steps = steps_of(tmp_path, fetching)
    assert steps.facts.idle[0].cause == cause
    assert steps.facts.saved_s(cause) > 0


def test_an_operation_that_was_queued_waited_for_another(tmp_path: Path) -> None:
    steps = steps_of(tmp_path, lambda t, at: None, called_ns=500 * US, stream=9)
    assert [(c.cause, c.share) for c in steps.facts.idle] == [("dependency", 1.0)]


def test_graph_launches_are_a_cause_of_their_own(tmp_path: Path) -> None:
    def graph(t: Thread, at: int) -> None:
        t.graph_launch((at + 2 * MS, at + 5 * MS), (at + 5 * MS, at + 6 * MS))

    steps = steps_of(tmp_path, graph)
    assert steps.facts.idle[0].cause == "other"
    assert steps.facts.idle[0].seconds == pytest.approx(3e-3, rel=0.01)


def test_a_step_without_the_cause_is_shorter_by_it(tmp_path: Path) -> None:
    steps = steps_of(tmp_path, host)
    facts = steps.facts
    assert facts.step_s == pytest.approx(10e-3)
    assert facts.free_s["host_compute"] == pytest.approx(6e-3, rel=0.02)
    assert facts.path[0].kind in ("host_compute", "kernel")
    assert sum(p.seconds for p in facts.path) == pytest.approx(10e-3, rel=0.01)


def test_names_of_calls_and_causes() -> None:
    assert plain_call("cudaMemcpyAsync_v3020") == "cudaMemcpyAsync"
    assert plain_call("cuLaunchKernel") == "cuLaunchKernel"
    assert len(set(CAUSES)) == len(CAUSES) == 8
