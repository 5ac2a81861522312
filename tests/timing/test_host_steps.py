"""Steps of programs without a GPU, by their MPI calls and by ranges that are parts of a step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from perfmodel.readers import read
from perfmodel.timing.candidates import find_steps
from perfmodel.timing.spans import Steps
from support.build_report import ReportBuilder
from support.build_thread import Thread

MS = 1_000_000
RANKS = 4
Step = Callable[[Thread, int, int, int], None]
"""Adds a step of a rank: thread, rank, number, start in ns."""


def program(
    step: Step, path: Path, *, steps: int = 20, step_ms: int = 10, finalize: bool = True
) -> Steps:
    """Steps of four ranks behind a long MPI_Init, some set-up of the first rank, and a barrier."""
    builder = ReportBuilder(world_size=RANKS)
    for rank in range(RANKS):
        thread = builder.thread(100 + rank, rank=rank)
        thread.mpi("MPI_Init", 0, 900 * MS, source="other")
        if rank == 0:
            thread.mpi("MPI_Send", 901 * MS, 902 * MS, 8, "p2p", remoteRank=1, tag=9)
        thread.mpi("MPI_Barrier", 903 * MS, 904 * MS)
        for i in range(steps):
            step(thread, rank, i, 905 * MS + i * step_ms * MS)
        if finalize:
            end = 905 * MS + steps * step_ms * MS
            thread.mpi("MPI_Finalize", end, end + 500 * MS, source="other")
    return find_steps(read(builder.write(path / "r.sqlite")))


def halo(thread: Thread, rank: int, i: int, at: int) -> None:
    """Exchange with the neighbours that there are; every tenth step a norm, every fifth a file."""
    peers = [r for r in (rank - 1, rank + 1) if 0 <= r < RANKS]
    for n, (name, peer) in enumerate((n, p) for n in ("MPI_Irecv", "MPI_Isend") for p in peers):
        start, request = at + 1000 * n, 100 * rank + n
        thread.mpi(name, start, start + 500, 64, "p2p", remoteRank=peer, tag=0,
                   requestHandle=request)  # fmt: skip
    for n in range(2 * len(peers)):  # a row for every request
        thread.mpi("MPI_Waitall", at + MS, at + 2 * MS, source="start-wait",
                   requestHandle=100 * rank + n)  # fmt: skip
    if i % 10 == 9:
        thread.mpi("MPI_Allreduce", at + 8 * MS, at + 9 * MS, 8)
    if i % 5 == 4:
        thread.mpi("MPI_File_write_at_all", at + 3 * MS, at + 4 * MS, source="other")
    if i % 3 == 0:
        thread.mpi("MPI_Test", at + 5 * MS, at + 5 * MS + 100, source="start-wait")


def counts(steps: Steps) -> list[int]:
    counted: list[int] = np.bincount(steps.process).tolist()
    return counted


def test_halo_exchanges_are_steps_whatever_some_steps_do_more(tmp_path: Path) -> None:
    steps = program(halo, tmp_path)
    assert steps.found_by == "found"
    assert counts(steps) == [20] * RANKS
    assert steps.confidence > 0.98
    first = steps.start_ns[steps.number == 0]
    assert first.tolist() == [905 * MS] * RANKS
    inner = steps.number < 19
    assert (steps.end_ns + 1 - steps.start_ns)[inner].tolist() == [10 * MS] * 19 * RANKS


def grid(thread: Thread, rank: int, i: int, at: int) -> None:
    """Two sizes of reductions, of which each repeats by itself."""
    for n, size in enumerate((8, 8, 4096)):
        thread.mpi("MPI_Allreduce", at + 2 * n * MS, at + (2 * n + 1) * MS, size)


def sizes(thread: Thread, rank: int, i: int, at: int) -> None:
    """A message of another size and to another rank in every step, then a reduction."""
    thread.mpi("MPI_Send", at, at + MS, 100 + i, "p2p", remoteRank=(rank + i) % RANKS, tag=i)
    thread.mpi("MPI_Allreduce", at + 2 * MS, at + 3 * MS, 8)


def test_sizes_and_ends_of_messages_may_change(tmp_path: Path) -> None:
    assert {*counts(program(sizes, tmp_path))} <= {19, 20}  # the last has no end


def parts(thread: Thread, rank: int, i: int, at: int) -> None:
    """Ranges for the parts of a step, none for the step."""
    thread.range("compute", at, at + 6 * MS)
    thread.range("exchange", at + 6 * MS, at + 10 * MS - 1)
    thread.mpi("MPI_Allreduce", at + 7 * MS, at + 9 * MS, 8)


def test_ranges_of_parts_repeat_as_the_step_does(tmp_path: Path) -> None:
    steps = program(parts, tmp_path)
    assert steps.found_by == "found"
    assert counts(steps) == [20] * RANKS
    assert steps.confidence > 0.95


@pytest.mark.parametrize("around", [True, False])
def test_named_steps_are_found_inside_a_range_of_all_and_behind_long_set_up(
    around: bool, tmp_path: Path
) -> None:
    def named(thread: Thread, rank: int, i: int, at: int) -> None:
        if i == 0 and around:
            thread.range("solve", 904 * MS, 1200 * MS)
        if i == 0 and not around:
            thread.range("read input", 904 * MS - 800 * MS, 904 * MS)
        thread.range(f"iter {i}", at, at + 9 * MS)

    steps = program(named, tmp_path)
    assert (steps.label, steps.found_by) == ("iter *", "declared")
    assert counts(steps) == [20] * RANKS


@pytest.mark.parametrize(("steps", "fill_ms"), [(20, 10), (9, 10), (4, 10), (20, 5)])
def test_ranges_of_any_name_behind_long_set_up_are_steps_if_they_follow_each_other(
    steps: int, fill_ms: int, tmp_path: Path
) -> None:
    """Set-up without calls takes most of the time; four ranges, or ranges apart, are no steps."""

    def solve(thread: Thread, rank: int, i: int, at: int) -> None:
        if i < 30:
            return
        thread.range(f"solve {i}", at, at + fill_ms * MS - 1000)
        for n in range(i % 3 + 1):  # a number that differs, so that only the ranges repeat
            thread.mpi("MPI_Allreduce", at + n * MS, at + n * MS + 1000, 8 * (i + 1) ** 2)

    found = program(solve, tmp_path, steps=30 + steps)
    if steps < 5 or fill_ms < 9:
        assert "solve" not in found.label
        return
    assert (found.label, found.found_by) == ("solve *", "declared")
    assert counts(found) == [steps] * RANKS


def test_tasks_of_workers_are_no_steps(tmp_path: Path) -> None:
    """The master serves as many tasks as three workers together, which take what is left."""

    def task(thread: Thread, rank: int, i: int, at: int) -> None:
        for n in range(3 if rank == 0 else 1):
            if rank == 3 and i % 3:
                continue
            start = at + 2 * n * MS
            thread.mpi("MPI_Recv", start, start + MS, 8, "p2p", remoteRank=0, tag=1)
            thread.mpi("MPI_Send", start + MS, start + 2 * MS, 64, "p2p", remoteRank=0, tag=2)

    steps = program(task, tmp_path)
    assert steps.found_by == "whole"
    assert steps.start_ns.min() >= 900 * MS  # not MPI_Init
    assert steps.end_ns.max() <= 905 * MS + 200 * MS  # not MPI_Finalize


def test_ranks_that_died_have_fewer_steps_and_none_in_which_they_were_stopped(
    tmp_path: Path,
) -> None:
    def dying(thread: Thread, rank: int, i: int, at: int) -> None:
        if rank == 1 and i > 10:
            return
        if i <= 11:  # the others wait for rank 1 until they are killed
            end = at + (MS if i < 11 else 900 * MS)
            thread.mpi("MPI_Allreduce", at, end, 8)

    steps = program(dying, tmp_path, finalize=False)
    assert steps.found_by == "found"
    assert set(counts(steps)) <= {10, 11}
    assert int((steps.end_ns - steps.start_ns).max()) <= 11 * MS


@pytest.mark.parametrize(("validation_ms", "expected"), [(3, 16), (9, 20)])
def test_ranges_of_one_name_in_two_phases_are_steps_of_one_kind(
    validation_ms: int, expected: int, tmp_path: Path
) -> None:
    """Sixteen of 9 ms in `train`, and four of other length or as long in `validate`."""

    def phase(thread: Thread, rank: int, i: int, at: int) -> None:
        if i in (0, 16):
            steps = 16 if i == 0 else 4
            thread.range("train" if i == 0 else "validate", at, at + 10 * steps * MS - 1)
        length = 9 if i < 16 else validation_ms
        thread.range(f"iter {i}", at, at + length * MS)

    steps = program(phase, tmp_path)
    assert steps.label == "iter *"
    assert counts(steps) == [expected] * RANKS


def test_a_rank_that_runs_ahead_does_not_change_the_steps(tmp_path: Path) -> None:
    """Rank 3 makes its steps of 2 ms in groups of five, and waits 42 ms before each group."""

    def ahead(thread: Thread, rank: int, i: int, at: int) -> None:
        start = at - 8 * (i % 5) * MS if rank == 3 else at
        thread.mpi("MPI_Send", start, start + 1000, 64, "p2p", remoteRank=(rank + 1) % 4, tag=0)
        thread.mpi("MPI_Recv", start + 2000, start + MS, 64, "p2p", remoteRank=rank - 1, tag=0)
        if i % 5 == 4:
            thread.mpi("MPI_Allreduce", start + MS + 1, start + MS + 1000, 8)

    assert counts(program(ahead, tmp_path)) == [19] * RANKS  # the last has no end


@pytest.mark.parametrize(("compute_ms", "counted"), [(1, 20), (6, 19)])
def test_a_last_step_without_its_computing_does_not_count(
    compute_ms: int, counted: int, tmp_path: Path
) -> None:
    def step(thread: Thread, rank: int, i: int, at: int) -> None:
        """Exchange at the start of 10 ms, and compute after it."""
        thread.mpi("MPI_Allreduce", at, at + (10 - compute_ms) * MS, 8)

    assert counts(program(step, tmp_path)) == [counted] * RANKS
