"""The graph of whole runs: replayed as recorded, and with MPI's exchanges, worked by hand."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from analysis.test_order_free import (
    ALL,
    ALL_TRACES,
    QUICK,
    QUICK_TRACES,
    events_named,
    others,
    source_of,
    written_events,
)

from perfmodel.analysis.runs import time_runs
from perfmodel.programs.program import Options
from perfmodel.readers import read
from perfmodel.timing.critical_path import Change, Replay
from perfmodel.timing.run import Run
from perfmodel.timing.run_exchanges import exchanges_of, kernels_of, lane_ranks
from perfmodel.timing.run_graph import graphs_of
from perfmodel.timing.step_graph import MPI_OP, StepGraph
from support.build_report import ReportBuilder
from support.build_thread import Thread

MS = 1_000_000
STEPS = 8
US = 1000


def parts(run: Run) -> tuple[list[StepGraph], list[int], list[np.ndarray]]:
    reports = run.steps
    return graphs_of(reports, lane_ranks(reports), kernels_of(reports), exchanges_of(run))


def node_times(replay: Replay, change: Change) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """When every operation begins and ends, and every piece of the host ends, by lane, in ns."""
    times, passed = replay._run(change), replay._passed(change, replay._scales(change))
    start, end, base = (np.array(t, np.int64) for t in (times.start, times.end, times.base))
    found = []
    for lane, (first, last) in enumerate(pairwise(replay._first_op.tolist())):
        pieces = np.arange(*replay._first_piece[lane : lane + 2])
        moved = np.searchsorted(replay._nodes.wait, pieces, side="right") + lane
        found.append((start[first:last], end[first:last], base[moved] + passed[pieces + 1]))
    return found


@pytest.mark.parametrize("name", others([*ALL, *ALL_TRACES], [*QUICK, *QUICK_TRACES]))
def test_a_replay_without_changes_is_the_recording(name: str, tmp_path: Path) -> None:
    """Every operation and every piece of the host, to a microsecond, before any scaling.

    One exception: an operation that the clocks put before its own launching call begins with it.
    """
    if name.startswith("built/"):
        path = written_events(events_named(name), tmp_path / "trace.json")
    else:
        path = source_of(name)
    for run in time_runs([read(path)], Options()):
        if not run.steps:
            continue
        graphs, shifts, together = parts(run)
        times = node_times(Replay(graphs, shifts, together), Change())
        for graph, shift, (start, end, host_end) in zip(graphs, shifts, times, strict=True):
            edges = graph.host_edge_ns + shift
            called = edges[:-1][graph.op_call]
            begins = np.maximum(graph.op_start_ns + shift, called)
            ends = np.maximum(graph.op_end_ns + shift, begins)
            assert np.abs(start - begins).max(initial=0) <= US
            assert np.abs(end - ends).max(initial=0) <= US
            assert np.abs(host_end - edges[1:]).max(initial=0) <= US


Step = Callable[[Thread, int, int], None]
"""Adds a step of a rank, which begins at some time."""


def run_of(step: Step, path: Path, *, length_ms: int, second: Step | None = None) -> Run:
    """Two ranks, whose steps are ranges; `second` is what another thread of each rank does."""
    builder = ReportBuilder()
    for rank in range(2):
        thread = builder.thread(100 + rank, rank=rank)
        other = builder.thread(100 + rank, tid=7 + rank) if second else None
        for i in range(STEPS):
            at = (10 + i * length_ms) * MS
            thread.range(f"step {i}", at, at + length_ms * MS)
            step(thread, rank, at)
            if second and other:
                second(other, rank, at)
    (run,) = time_runs([read(builder.write(path / "r.sqlite"))], Options())
    return run


def step_ms(run: Run, *free: str, change: Change | None = None) -> float:
    return Replay(*parts(run)).step_s(change or Change(free=frozenset(free))) * 1e3


def reduction(thread: Thread, rank: int, at: int) -> None:
    """2 or 5 ms of work, and 1 ms that an all-reduce takes when both have come."""
    thread.mpi("MPI_Allreduce", at + (2, 5)[rank] * MS, at + 6 * MS, 8)


def test_a_collective_waits_for_the_last_rank(tmp_path: Path) -> None:
    run = run_of(reduction, tmp_path, length_ms=6)
    assert step_ms(run) == pytest.approx(6)
    assert step_ms(run, "communication") == pytest.approx(5)
    assert step_ms(run, "host_compute") == pytest.approx(1)
    faster = Change(scale={(1, "host_compute"): 0.4})
    assert step_ms(run, change=faster) == pytest.approx(3)
    path = Replay(*parts(run)).critical_path(Change())
    assert path == pytest.approx({"host_compute": 5e-3, "communication": 1e-3})


def ring(thread: Thread, rank: int, at: int) -> None:
    """Rank 0 computes 4 ms and sends; rank 1 receives 1 ms later, and computes for 2 ms."""
    if rank == 0:
        thread.mpi("MPI_Send", at + 4 * MS, at + 4 * MS + US, 8, "p2p", remoteRank=1, tag=0)
    else:
        thread.mpi("MPI_Recv", at + MS, at + 5 * MS, 8, "p2p", remoteRank=0, tag=0)


def test_a_message_waits_for_its_sender(tmp_path: Path) -> None:
    run = run_of(ring, tmp_path, length_ms=7)
    assert step_ms(run) == pytest.approx(7)
    assert step_ms(run, change=Change(scale={(0, "host_compute"): 0.0})) == pytest.approx(
        4, abs=0.01
    )
    receiver = Change(scale={(1, "host_compute"): 0.0})
    assert step_ms(run, change=receiver) == pytest.approx(7)  # the sender's own time


def non_blocking(thread: Thread, rank: int, at: int) -> None:
    """A reduction that begins after 1 ms and is waited for from 3 on; rank 1 comes at 5."""
    post = (1, 5)[rank]
    thread.mpi("MPI_Iallreduce", at + post * MS, at + post * MS + US, 8, requestHandle=77)
    wait = (3 * MS, 5 * MS + 2 * US)[rank]
    thread.mpi("MPI_Wait", at + wait, at + 6 * MS, None, "start-wait", requestHandle=77)


def test_what_does_not_block_is_waited_for_where_it_is_completed(tmp_path: Path) -> None:
    run = run_of(non_blocking, tmp_path, length_ms=8)
    graph = parts(run)[0][0]
    posted = np.flatnonzero(graph.op_kind == MPI_OP)
    assert len(posted) > 0
    assert (graph.op_waiter[posted] == graph.op_call[posted] + 2).all()
    assert step_ms(run) == pytest.approx(8)
    faster = Change(scale={(1, "host_compute"): 0.0})
    assert step_ms(run, change=faster) == pytest.approx(3 + 2, abs=0.01)


def test_another_thread_that_calls_mpi_is_a_chain_of_its_own(tmp_path: Path) -> None:
    """Its all-reduces end 1 ms after the second rank's thread has come, at 4 ms of 6."""

    def barrier(thread: Thread, rank: int, at: int) -> None:
        thread.mpi("MPI_Barrier", at + (1, 3)[rank] * MS, at + 4 * MS)

    def idle(thread: Thread, rank: int, at: int) -> None:
        thread.mpi("MPI_Comm_rank", at + 5 * MS, at + 5 * MS + US, source="other")

    run = run_of(idle, tmp_path, length_ms=6, second=barrier)
    graphs, shifts, together = parts(run)
    assert [len(graph.others) for graph in graphs] == [1, 1, 0, 0]
    times = node_times(Replay(graphs, shifts, together), Change())
    assert all(
        (np.abs(host_end - graph.host_edge_ns[1:]) <= US).all()
        for graph, (_, _, host_end) in zip(graphs, times, strict=True)
    )
    first = Change(scale={(3, "host_compute"): 0.5})
    ends = node_times(Replay(graphs, shifts, together), first)[2][2]
    assert (
        ends[2] == times[2][2][2] - 2 * MS
    )  # the first rank's thread waits less: its work is left
