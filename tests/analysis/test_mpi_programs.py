"""MPI programs without a GPU and without ranges: who waits, for whom, and what that costs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from perfmodel.analysis.analyze import analyze_reports
from perfmodel.analysis.result import RunAnalysis
from perfmodel.programs.program import Options
from perfmodel.readers.trace import distinct_calls
from perfmodel.render import tables
from perfmodel.timing.timeline import select, window_of
from support.build_report import ReportBuilder
from support.build_thread import Thread

MS = 1_000_000
RANKS, STEPS = 4, 21
Step = Callable[[Thread, int, int, int], None]
"""Adds a step of a rank: thread, rank, number and start in ns."""


def builder_of(step: Step, *, finalize: bool = True, groups: bool = False) -> ReportBuilder:
    """Four ranks that make MPI calls in steps of 10 ms."""
    builder = ReportBuilder(world_size=RANKS)
    for rank in range(RANKS):
        thread = builder.thread(100 + rank, rank=rank)
        if groups:  # ranks 0 and 1, ranks 2 and 3
            builder.insert("MPI_COMMUNICATORS", rank=rank, timestamp=0, commHandle=thread.world + 1,
                           size=2, localRank=rank % 2, groupRoot=rank // 2 * 2,
                           groupRootUid=0)  # fmt: skip
        thread.mpi("MPI_Init", 0, 500 * MS, source="other")
        for i in range(STEPS):
            step(thread, rank, i, 501 * MS + 10 * i * MS)
        if finalize:
            end = 501 * MS + 10 * STEPS * MS
            thread.mpi("MPI_Finalize", end, end + MS, source="other")
    return builder


def analyzed(builder: ReportBuilder, tmp_path: Path) -> RunAnalysis:
    return analyze_reports([builder.write(tmp_path / "r.sqlite")], Options({})).fitted


def reduction(late_ms: Callable[[int, int], int]) -> Step:
    """A reduction of which each rank comes some ms after the third of a step, and all go at 9."""

    def step(thread: Thread, rank: int, i: int, at: int) -> None:
        thread.mpi("MPI_Allreduce", at, at + 1000, 16)
        thread.mpi("MPI_Barrier", at + (3 + late_ms(rank, i)) * MS, at + 9 * MS)

    return step


def test_the_late_rank_is_named_by_its_time_outside_mpi(tmp_path: Path) -> None:
    run = analyzed(builder_of(reduction(lambda rank, i: 5 * (rank == 2))), tmp_path)
    finding = run.findings[0]
    assert finding.title == "ranks wait for rank 2, which is 5.00 ms longer outside MPI"
    assert finding.saving_s == pytest.approx(5e-3, rel=1e-3)
    assert "rank 2 comes last to" in finding.evidence
    assert "is 5.00 ms longer outside MPI than the median of the others" in finding.evidence
    assert {r.rank: r.waiting_s for r in run.ranks} == pytest.approx(
        {0: 5e-3, 1: 5e-3, 2: 0.0, 3: 5e-3}, abs=2e-6
    )


def test_waiting_in_every_third_step_is_not_hidden_by_medians(tmp_path: Path) -> None:
    run = analyzed(builder_of(reduction(lambda r, i: 5 * (r == 1 and i % 3 == 2))), tmp_path)
    finding = run.findings[0]
    assert finding.title == "ranks wait for rank 1 in some steps"
    assert finding.saving_s == pytest.approx(7 / 20 * 5e-3, rel=1e-2)  # without the first step
    assert finding.share == pytest.approx(finding.saving_s / run.batch.mean_s)
    assert "5.00 ms in 7 of 20 steps" in finding.evidence
    assert "rank 1 comes last to" in finding.evidence


def test_waiting_longer_than_a_median_step_is_a_share_of_the_mean_one(tmp_path: Path) -> None:
    def step(thread: Thread, rank: int, i: int, at: int) -> None:
        at, longer = at + i // 3 * 50 * MS, 50 * (i % 3 == 2)
        thread.mpi("MPI_Allreduce", at, at + 1000, 16)
        begin = at + (3 + longer * (rank == 1)) * MS
        thread.mpi("MPI_Barrier", begin, at + (9 + longer) * MS)

    run = analyzed(builder_of(step, finalize=False), tmp_path)
    finding, batch = run.findings[0], run.batch
    assert finding.title == "ranks wait for rank 1 in some steps"
    assert finding.saving_s == pytest.approx(6 / 19 * 50e-3)  # 1 to 19, which all ranks have
    assert finding.saving_s > batch.median.value
    assert finding.share == pytest.approx(finding.saving_s / batch.mean_s)


def test_waiting_that_grows_is_said_to_grow(tmp_path: Path) -> None:
    run = analyzed(builder_of(reduction(lambda rank, i: i // 4 if rank == 3 else 0)), tmp_path)
    assert "of the steps and" in run.findings[0].evidence
    assert run.findings[0].evidence.count("it grows") == 1


def test_a_non_blocking_reduction_holds_ranks_in_the_call_that_waits_for_it(
    tmp_path: Path,
) -> None:
    """All post at 1 ms but rank 1, at 5; they wait from 2 ms (rank 1 from 6) to 7."""

    def step(thread: Thread, rank: int, i: int, at: int) -> None:
        post = at + (5 if rank == 1 else 1) * MS
        thread.mpi("MPI_Iallreduce", post, post + 1000, 4096, requestHandle=7)
        thread.mpi("MPI_Wait", post + MS, at + 7 * MS, source="start-wait", requestHandle=7)

    run = analyzed(builder_of(step), tmp_path)
    (group,) = run.collectives
    assert group.name == "MPI_Iallreduce"
    assert group.seconds == pytest.approx(5e-3, rel=1e-3)
    assert group.waiting_s == pytest.approx(3e-3, rel=1e-3)
    assert group.transfer_s == pytest.approx(2e-3, rel=1e-3)
    finding = run.findings[0]
    assert "rank 1 comes last to 100 %" in finding.evidence
    assert finding.saving_s == pytest.approx(4e-3, rel=1e-2)  # rank 1 is 4 ms longer outside MPI


def test_a_request_that_is_only_tested_tells_no_waiting(tmp_path: Path) -> None:
    def step(thread: Thread, rank: int, i: int, at: int) -> None:
        thread.mpi("MPI_Iallreduce", at, at + 1000, 4096, requestHandle=7)
        thread.mpi("MPI_Test", at + 5 * MS, at + 6 * MS, source="start-wait", requestHandle=7)
        thread.mpi("MPI_Barrier", at + 8 * MS, at + 9 * MS)

    run = analyzed(builder_of(step), tmp_path)
    begun = next(g for g in run.collectives if g.name == "MPI_Iallreduce")
    assert (begun.transfer_s, begun.waiting_s) == (None, None)


def test_ranks_wait_for_those_of_their_communicator_only(tmp_path: Path) -> None:
    """Ranks 0 and 1 reduce at 1 ms, ranks 2 and 3 at 1 and 6: the first pair waits for nobody."""

    def step(thread: Thread, rank: int, i: int, at: int) -> None:
        pair = thread.world + 1
        begin = at + (6 if rank == 3 else 1) * MS
        end = at + (2 if rank < 2 else 7) * MS
        thread.mpi("MPI_Allreduce", begin, end, 4096, commHandle=pair)
        if rank < 2:  # and once more: the pairs' collectives differ in number
            thread.mpi("MPI_Allreduce", at + 3 * MS, at + 4 * MS, 4096, commHandle=pair)

    run = analyzed(builder_of(step, groups=True), tmp_path)
    assert not any("differ in number" in w for w in run.warnings)
    assert {g.ranks for g in run.collectives} == {2}
    assert {r.rank: r.waiting_s for r in run.ranks} == pytest.approx(
        {0: 0.0, 1: 0.0, 2: 5e-3, 3: 0.0}
    )
    assert run.skew is not None
    assert run.skew.ranks[0].rank == 3
    assert run.skew.ranks[0].per_batch_s == pytest.approx(5e-3)
    assert "rank 2 waits longest" in run.findings[0].evidence
    assert "rank 3 comes last to" in run.findings[0].evidence


def test_a_fence_waits_for_the_last_rank(tmp_path: Path) -> None:
    def step(thread: Thread, rank: int, i: int, at: int) -> None:
        begin = at + (8 if rank == 0 else 2) * MS
        thread.mpi("MPI_Put", begin - 2000, begin - 1000, source="other")
        thread.mpi("MPI_Win_fence", begin, at + 9 * MS, source="other")

    run = analyzed(builder_of(step), tmp_path)
    (group,) = run.collectives
    assert (group.name, group.bytes) == ("MPI_Win_fence", None)
    assert run.findings[0].saving_s == pytest.approx(6e-3, rel=1e-2)
    assert "rank 0 comes last" in run.findings[0].evidence
    assert not any("no message" in w for w in run.warnings)


def test_a_run_that_was_stopped_says_who_waited_then(tmp_path: Path) -> None:
    """Rank 1 ends in step 10, in which the others wait until they are killed."""

    def step(thread: Thread, rank: int, i: int, at: int) -> None:
        if i < 10 or (i == 10 and rank != 1):
            end = at + (MS if i < 10 else 900 * MS)
            thread.mpi("MPI_Allreduce", at, end, 16)

    run = analyzed(builder_of(step, finalize=False), tmp_path)
    (said,) = [w for w in run.warnings if "MPI_Finalize" in w]
    assert "ranks 0, 1, 2, 3 never reached MPI_Finalize" in said
    assert "ranks 0, 2, 3 then waited in MPI_Allreduce, up to 900 ms, rank 1 did not" in said
    assert run.batch.median.value == pytest.approx(10e-3, rel=1e-3)
    assert run.collectives[0].waiting_s is not None  # matched, but for the last ones


def test_ranks_cut_at_one_time_are_not_said_to_wait_in_calls_that_returned(tmp_path: Path) -> None:
    def step(thread: Thread, rank: int, i: int, at: int) -> None:
        for n in range(4):  # a burst of short calls, then one of which ranks 0 to 2 wait
            thread.mpi("MPI_Barrier", at + n * 1000, at + n * 1000 + 500)
        begin = at + (2 + 3 * (rank == 3)) * MS
        thread.mpi("MPI_Allreduce", begin, at + 6 * MS, 16)

    run = analyzed(builder_of(step, finalize=False), tmp_path)
    (said,) = [w for w in run.warnings if "MPI_Finalize" in w]
    assert "then waited" not in said


def test_processes_without_mpi_calls_have_no_communication_but_a_warning(tmp_path: Path) -> None:
    builder = ReportBuilder()
    for rank in range(2):
        thread = builder.thread(100 + rank, rank=rank)
        for i in range(6):
            thread.range(f"step {i}", 10 * i * MS, (10 * i + 9) * MS)
    run = analyzed(builder, tmp_path)
    assert run.batch.median.value == pytest.approx(9e-3)
    for row in run.ranks:
        assert (row.compute_s, row.communication_s, row.waiting_s) == (None, None, None)
    (said,) = [w for w in run.warnings if "no MPI call was recorded" in w]
    assert "--trace=nvtx,mpi" in said


def test_waiting_of_a_rank_is_its_median_step_s(tmp_path: Path) -> None:
    """Rank 1 sends 3 ms late, but in one step 8: a mean would be more than the rank is in MPI."""

    def step(thread: Thread, rank: int, i: int, at: int) -> None:
        late = (8 if i == 10 else 3) * MS if rank == 1 else 0
        if rank == 1:
            thread.mpi("MPI_Send", at + late, at + late + 1000, 64, "p2p", remoteRank=0, tag=0)
        if rank == 0:
            end = at + (8 if i == 10 else 3) * MS
            thread.mpi("MPI_Recv", at, end, 64, "p2p", remoteRank=1, tag=0)
        thread.mpi("MPI_Barrier", at + 9 * MS - 1000, at + 9 * MS)

    run = analyzed(builder_of(step), tmp_path)
    waiting = {r.rank: r.waiting_s for r in run.ranks}
    assert waiting[0] == pytest.approx(3e-3, rel=1e-3)
    assert run.ranks[0].communication_s == pytest.approx(1e-6, rel=1e-2)
    assert run.skew is not None
    busy = {r.rank: r.busy_s for r in run.skew.ranks}
    assert busy[0] == pytest.approx(7e-3, rel=1e-2)


def test_waiting_in_collectives_is_not_said_to_be_unseen(tmp_path: Path) -> None:
    """Some messages, and a reduction in which all wait for rank 1, which is longer in `work`."""

    def step(thread: Thread, rank: int, i: int, at: int) -> None:
        late = (6 if rank == 1 else 2) * MS
        thread.range("work", at, at + late)
        thread.mpi("MPI_Allreduce", at + late, at + 7 * MS, 16)
        if rank == 0:
            thread.mpi("MPI_Isend", at + 8 * MS, at + 8 * MS + 1, 8, "p2p", remoteRank=1, tag=0)
        if rank == 1:
            thread.mpi("MPI_Recv", at + 8 * MS, at + 8 * MS + 2, 8, "p2p", remoteRank=0, tag=0)

    run = analyzed(builder_of(step), tmp_path)
    assert [f.title for f in run.findings] == [
        "ranks wait for rank 1, which is 4.00 ms longer in 'work'"
    ]
    assert "4.00 ms longer in 'work'" in run.findings[0].evidence


def test_the_text_has_the_collectives_with_most_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def step(thread: Thread, rank: int, i: int, at: int) -> None:
        thread.mpi("MPI_Barrier", at, at + MS)
        thread.mpi("MPI_Gatherv", at + 2 * MS, at + 2 * MS + 10 * i, 8 + i)

    run = analyzed(builder_of(step), tmp_path)
    count = STEPS - 1  # Barrier and 19 sizes, of neither the first step nor the last
    assert len(run.collectives) >= count
    monkeypatch.setattr(tables, "_SHOWN_COLLECTIVES", 5)
    shown = tables.collectives_text(run)
    assert len(shown.rows) == 5
    assert shown.rows[0][0] == "MPI_Barrier"
    assert f"{count - 5} more rows are left out" in shown.notes[-1]


def test_a_call_for_several_requests_is_one_call(tmp_path: Path) -> None:
    def step(thread: Thread, rank: int, i: int, at: int) -> None:
        for request in range(3):
            thread.mpi("MPI_Waitall", at, at + MS, source="start-wait", requestHandle=request)
        thread.mpi("MPI_Barrier", at + 2 * MS, at + 3 * MS)

    path = builder_of(step).write(tmp_path / "r.sqlite")
    run = analyze_reports([path], Options({}), whole=True).fitted
    assert len(distinct_calls(run.traces[0].mpi)) == RANKS * (2 * STEPS + 2)
    lanes = select(run.measured, window_of(run.measured, range(5, 6)))
    assert len([lane for lane in lanes if lane.name == "MPI"]) == RANKS
    assert not any("(2)" in lane.name for lane in lanes)


def test_a_rank_that_begins_late_is_named_though_the_warm_up_is_left_out(tmp_path: Path) -> None:
    """Rank 2 comes to the first reduction 300 ms after the others."""

    def step(thread: Thread, rank: int, i: int, at: int) -> None:
        begin = at if i else 501 * MS
        shift = 300 * MS
        start = begin + (shift if i or rank == 2 else 0)
        thread.mpi("MPI_Allreduce", start, begin + shift + MS, 16)

    builder = ReportBuilder(world_size=RANKS)
    for rank in range(RANKS):
        thread = builder.thread(100 + rank, rank=rank)
        for i in range(STEPS):
            step(thread, rank, i, 501 * MS + 10 * i * MS)
    run = analyzed(builder, tmp_path)
    (said,) = [w for w in run.warnings if "comes late" in w]
    assert "waits 300 ms in MPI_Allreduce of batch 0 for rank 2" in said
    assert run.batch.median.value == pytest.approx(10e-3, rel=1e-3)


def test_one_rank_of_several_does_not_tell_its_waiting(tmp_path: Path) -> None:
    builder = ReportBuilder(world_size=RANKS)
    thread = builder.thread(100, rank=0)
    for i in range(STEPS):
        at = 10 * i * MS
        thread.mpi("MPI_Send", at, at + MS, 64, "p2p", remoteRank=1, tag=0)
        thread.mpi("MPI_Recv", at + 2 * MS, at + 5 * MS, 64, "p2p", remoteRank=1, tag=1)
    run = analyzed(builder, tmp_path)
    assert run.messages is not None
    assert run.messages.unmatched == 2 * (STEPS - 2)  # neither the first step nor the last
    assert run.ranks[0].waiting_s is None
    assert run.ranks[0].communication_s == pytest.approx(4e-3)


def test_what_is_between_steps_of_the_host_is_not_said_to_be_in_one(tmp_path: Path) -> None:
    def step(thread: Thread, rank: int, i: int, at: int) -> None:
        start = at + (500 * MS if i > 9 else 0)  # half a second of other work in the middle
        thread.range(f"step {i}", start, start + 9 * MS)
        thread.mpi("MPI_Allreduce", start + MS, start + 2 * MS, 16)

    run = analyzed(builder_of(step, finalize=False), tmp_path)
    assert run.batch.median.value == pytest.approx(9e-3)
    said = [w for w in run.warnings if "time is in no step" in w]
    assert said
    assert not any("counts as time of that step" in w for w in run.warnings)
