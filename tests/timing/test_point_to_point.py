"""Messages between ranks: matched, with who waits for whom and why."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.common.folders import PROGRAMS
from perfmodel.analysis.analyze import analyze_reports
from perfmodel.analysis.result import RunAnalysis
from perfmodel.programs.program import Options
from perfmodel.timing.run_exchanges import exchanges_of
from support.build_report import ReportBuilder
from support.build_thread import Thread

NSYS = os.environ.get("PERFMODEL_NSYS", "")
RECORDS = pytest.mark.skipif(not NSYS, reason="PERFMODEL_NSYS names no nsys")
MS = 1_000_000


def analyzed(path: Path) -> RunAnalysis:
    return analyze_reports([path], Options()).fitted


def check_halo(run: RunAnalysis) -> None:
    """Rank 3 computes 2.0 ms longer: it is named, with its range."""
    finding = run.findings[0]
    assert finding.kind == "waiting_mpi"
    assert "rank 3" in finding.title
    assert "'compute'" in finding.evidence
    assert run.messages is not None
    assert run.messages.unmatched == 0
    assert run.messages.ranks[0].rank == 3
    assert {(p.sender, p.receiver) for p in run.messages.pairs} == {
        (a, b % 8) for a in range(8) for b in (a - 1, a + 1)
    }
    assert all(p.messages == 1 and p.bytes == 8192 for p in run.messages.pairs)


def test_the_late_rank_of_a_halo_exchange_is_named() -> None:
    run = analyzed(PROGRAMS / "halo.sqlite.xz")
    check_halo(run)
    assert run.findings[0].saving_s == pytest.approx(2.0e-3, rel=0.1)
    assert run.messages is not None
    first, second, *_ = run.messages.ranks
    assert first.caused_s > 10 * second.caused_s
    waits = {r.rank: r.waiting_s for r in run.messages.ranks}
    found = exchanges_of(run.measured)
    stop = run.batch.warmup + run.batch.count
    by_step = found.seconds_by_step(stop, waiting=True)[:, run.batch.warmup :]
    assert dict(zip(found.ranks, by_step.mean(axis=1), strict=True)) == pytest.approx(waits)
    assert [r.waiting_s for r in run.ranks] == pytest.approx(np.median(by_step, axis=1).tolist())
    assert all(r.part_s("waiting") + r.part_s("communication") < r.whole_s for r in run.ranks)
    late = {r.range: r.more_s for r in run.ranges_by_rank if r.rank == 3}
    assert late["compute"] == pytest.approx(2.0e-3, rel=0.1)
    assert late["exchange"] < 0


def record(folder: Path, way: str, *, report_per_rank: bool) -> list[Path]:
    """Profile the halo exchange of eight ranks and export its reports."""
    name = "rank%q{OMPI_COMM_WORLD_RANK}" if report_per_rank else "all"
    profile = [NSYS, "profile", "-o", str(folder / name), "--sample=none", "--cpuctxsw=none",
               "--trace=nvtx,mpi", "--mpi-impl=openmpi"]  # fmt: skip
    ranks = ["mpirun", "--oversubscribe", "-n", "8"]
    program = [sys.executable, str(PROGRAMS / "halo.py"), *way.split()]
    command = [*ranks, *profile, *program] if report_per_rank else [*profile, *ranks, *program]
    for _ in range(3):  # one of several sessions at once may lose nsys's agent, and its report
        done = subprocess.run(command, capture_output=True, timeout=120)
        if len(list(folder.glob("*.nsys-rep"))) == (8 if report_per_rank else 1):
            break
        for left in folder.iterdir():
            left.unlink()
    done.check_returncode()
    paths = []
    for report in sorted(folder.glob("*.nsys-rep")):
        paths.append(report.with_suffix(".sqlite"))
        export = [NSYS, "export", "-q", "true", "-t", "sqlite", "-o", str(paths[-1]), str(report)]
        subprocess.run(export, check=True, capture_output=True, timeout=120)
    return paths


@pytest.mark.slow
@RECORDS
@pytest.mark.usefixtures("one_profile")
@pytest.mark.parametrize("way", ["waitall 5", "blocking 5"])
def test_a_halo_exchange_recorded_here(way: str, tmp_path: Path) -> None:
    (report,) = record(tmp_path, way, report_per_rank=False)
    check_halo(analyzed(report))


@RECORDS
@pytest.mark.usefixtures("one_profile")
def test_a_late_rank_leads_back_to_the_one_that_it_waited_for(tmp_path: Path) -> None:
    (report,) = record(tmp_path, "chain 5", report_per_rank=False)
    run = analyzed(report)
    assert run.findings[0].title.startswith("ranks wait for messages of rank 5, which is ")
    assert "'compute'" in run.findings[0].evidence
    assert run.messages is not None
    passed = {(c.rank, c.peer, c.origin) for c in run.messages.chains}
    assert {(2, 3, 5), (4, 3, 5)} <= passed


@RECORDS
@pytest.mark.usefixtures("one_profile")
def test_the_rank_that_is_late_to_a_collective_is_named(tmp_path: Path) -> None:
    (report,) = record(tmp_path, "sum 5", report_per_rank=False)
    finding = analyzed(report).findings[0]
    assert finding.kind == "waiting_mpi"
    assert "rank 3 comes last to" in finding.evidence
    assert "longer in 'compute'" in finding.evidence


@RECORDS
@pytest.mark.usefixtures("one_profile")
def test_ranks_wait_for_the_root_of_a_broadcast(tmp_path: Path) -> None:
    """Ranks 3 to 7 in reverse order, of which rank 3 is the fourth, counted from 0."""
    (report,) = record(tmp_path, "root 5", report_per_rank=False)
    run = analyzed(report)
    found = exchanges_of(run.measured)
    rows = found.named("MPI_Bcast") & (found.step >= 0)
    assert set(found.peer[rows].tolist()) == {3}
    assert set(found.cause_rank[rows & (found.rank != 3)].tolist()) <= {3, -1}
    assert (found.wait_ns[rows & (found.rank == 3)] == 0).all()
    assert run.late[0].rank == 3
    assert run.late[0].persistent
    (group,) = (g for g in run.collectives if g.name == "MPI_Bcast")
    assert (group.ranks, group.count) == (5, 5 / 8)


@RECORDS
@pytest.mark.usefixtures("one_profile")
@pytest.mark.parametrize("report_per_rank", [False, True])
def test_a_halo_exchange_without_ranges(report_per_rank: bool, tmp_path: Path) -> None:
    """Steps are the 20 exchanges, though every fifth one has a reduction behind it.

    All compute for 11 ms, rank 3 for 21.
    """
    run = analyze_reports(record(tmp_path, "plain 5", report_per_rank=report_per_rank), Options())
    fitted = run.fitted
    assert fitted.steps is not None
    assert fitted.steps.found_by == "found"
    assert fitted.batch.count + fitted.batch.warmup == 20
    assert 20e-3 < fitted.batch.median.value < 40e-3  # a period, not five
    compute = [r.compute_s or 0.0 for r in fitted.ranks]  # on a busy machine all is longer
    assert int(np.argmax(compute)) == 3
    assert compute[3] - np.median(compute) == pytest.approx(10e-3, rel=0.5)
    finding = fitted.findings[0]
    assert finding.title.startswith("ranks wait for messages of rank 3, which is ")
    assert "outside MPI" in finding.evidence
    assert finding.saving_s == pytest.approx(10e-3, rel=0.5)


@pytest.mark.slow
@RECORDS
@pytest.mark.usefixtures("one_profile")
def test_non_blocking_reductions_of_pairs_without_ranges(tmp_path: Path) -> None:
    """Rank 2 waits 10 ms for rank 3; the other pairs are equal."""
    (report,) = record(tmp_path, "pairs 5", report_per_rank=False)
    run = analyzed(report)
    assert run.batch.count + run.batch.warmup in (19, 20)  # the last may lack its computing
    (group,) = [g for g in run.collectives if g.name == "MPI_Iallreduce"]
    assert group.ranks == 2
    assert 0.9 < group.count <= 1.0  # per step of all: one rank may end a step earlier
    waiting = {r.rank: r.waiting_s or 0.0 for r in run.ranks}
    assert waiting[2] == pytest.approx(10e-3, rel=0.5)
    assert max(waiting, key=waiting.__getitem__) == 2
    assert "rank 3" in run.findings[0].evidence


@pytest.mark.slow
@RECORDS
@pytest.mark.usefixtures("one_profile")
def test_reports_of_one_rank_each_whose_clocks_are_off(tmp_path: Path) -> None:
    reports = record(tmp_path, "waitall 10", report_per_rank=True)
    check_halo(analyze_reports(reports, Options()).fitted)
    for rank, report in enumerate(reports):
        with sqlite3.connect(report) as db:
            db.execute(
                "UPDATE TARGET_INFO_SESSION_START_TIME SET utcEpochNs = utcEpochNs + ?",
                ((rank * 5 % 8 - 3) * 4 * MS,),
            )
    run = analyze_reports(reports, Options()).fitted
    check_halo(run)
    assert any("contradict the order" in w for w in run.warnings)


@pytest.mark.parametrize("off_ms", [0, 40, -40])
def test_messages_align_the_clocks_of_two_reports(off_ms: int, tmp_path: Path) -> None:
    """Each rank is late once in two steps, by 3 ms: whatever the clocks say, so they wait."""
    paths = []
    for rank in (0, 1):
        builder = ReportBuilder(utc_start_ns=10**18 + rank * off_ms * MS, world_size=2)
        thread = builder.thread(100, rank=rank)
        for step in range(6):
            at, late = 10 * MS * (step + 1), step % 2 == rank
            thread.range(f"step {step}", at, at + 9 * MS)
            sent = at + (4 * MS if late else MS)
            thread.mpi("MPI_Isend", sent, sent + 1000, 100, "p2p", remoteRank=1 - rank, tag=0)
            got = at + 4 * MS + (1000 if late else 5000)
            thread.mpi("MPI_Recv", sent + 1000, got, 100, "p2p", remoteRank=1 - rank, tag=0)
        paths.append(builder.write(tmp_path / f"{rank}.sqlite"))
    run = analyze_reports(paths, Options()).fitted
    assert run.messages is not None
    assert sum(r.waiting_s for r in run.messages.ranks) == pytest.approx(3e-3, rel=0.01)
    assert any("order of messages" in w for w in run.warnings) == (off_ms != 0)


def test_waiting_is_that_of_the_receiver_until_the_message_is_sent(tmp_path: Path) -> None:
    builder = ReportBuilder(world_size=2)
    zero, one = two_ranks(builder)
    for step in range(4):
        at = 10 * MS * (step + 1)
        one.mpi("MPI_Recv", at + MS, at + 5 * MS, 100, "p2p", remoteRank=0, tag=7)
        zero.mpi("MPI_Send", at + 4 * MS, at + 5 * MS, 100, "p2p", remoteRank=1, tag=7)
    run = analyzed(builder.write(tmp_path / "r.sqlite"))
    assert run.messages is not None
    (pair,) = run.messages.pairs
    assert (pair.sender, pair.receiver, pair.messages, pair.bytes) == (0, 1, 1.0, 100.0)
    assert pair.waiting_s == pytest.approx(3e-3)
    assert run.messages.ranks[0].rank == 0
    assert run.messages.ranks[0].caused_s == pytest.approx(3e-3)


def test_a_sender_waits_for_a_late_receiver(tmp_path: Path) -> None:
    builder = ReportBuilder(world_size=2)
    zero, one = two_ranks(builder)
    for step in range(4):
        at = 10 * MS * (step + 1)
        zero.mpi("MPI_Ssend", at + MS, at + 7 * MS, 100, "p2p", remoteRank=1, tag=0)
        one.mpi("MPI_Recv", at + 6 * MS, at + 7 * MS, 100, "p2p", remoteRank=0, tag=0)
    messages = analyzed(builder.write(tmp_path / "r.sqlite")).messages
    assert messages is not None
    assert messages.ranks[0].rank == 1
    assert messages.ranks[0].caused_s == pytest.approx(5e-3)


def two_ranks(builder: ReportBuilder) -> tuple[Thread, Thread]:
    """Two ranks with four steps of 10 ms."""
    zero, one = builder.thread(100, rank=0), builder.thread(200, rank=1)
    for step in range(4):
        for thread in (zero, one):
            thread.range(f"step {step}", 10 * MS * (step + 1), 10 * MS * (step + 1) + 9 * MS)
    return zero, one


def waits_of(path: Path) -> tuple[int, dict[tuple[int, int], float]]:
    """Ends that are left, and waiting by pair in ms."""
    found = analyzed(path).messages
    assert found is not None
    return found.unmatched, {(p.sender, p.receiver): p.waiting_s * 1e3 for p in found.pairs}


def test_an_exchange_with_one_rank_is_one_row_of_both(tmp_path: Path) -> None:
    builder = ReportBuilder(world_size=2)
    zero, one = two_ranks(builder)
    for at in range(10 * MS, 50 * MS, 10 * MS):
        zero.mpi("MPI_Sendrecv", at + MS, at + 5 * MS, 100, "p2p", remoteRank=1, tag=0)
        one.mpi("MPI_Sendrecv", at + 4 * MS, at + 5 * MS, 100, "p2p", remoteRank=0, tag=0)
    unmatched, waiting = waits_of(builder.write(tmp_path / "r.sqlite"))
    assert unmatched == 0
    assert waiting[1, 0] + waiting[0, 1] == pytest.approx(3.0)


def test_a_message_of_any_source_is_the_first_that_was_sent(tmp_path: Path) -> None:
    builder = ReportBuilder(world_size=2)
    zero, one = two_ranks(builder)
    for at in range(10 * MS, 50 * MS, 10 * MS):
        one.mpi("MPI_Recv", at + MS, at + 5 * MS, 100, "p2p", remoteRank=-1, tag=None)
        zero.mpi("MPI_Send", at + 4 * MS, at + 5 * MS, 100, "p2p", remoteRank=1, tag=7)
    unmatched, waiting = waits_of(builder.write(tmp_path / "r.sqlite"))
    assert unmatched == 0
    assert waiting == {(0, 1): pytest.approx(3.0)}


def test_persistent_requests_post_a_message_with_every_start(tmp_path: Path) -> None:
    builder = ReportBuilder(world_size=2)
    zero, one = two_ranks(builder)
    zero.mpi("MPI_Send_init", 1, 2, 100, "p2p", remoteRank=1, tag=7, requestHandle=5)
    one.mpi("MPI_Recv_init", 1, 2, 100, "p2p", remoteRank=0, tag=7, requestHandle=6)
    for at in range(10 * MS, 50 * MS, 10 * MS):
        one.mpi("MPI_Start", at, at + 10, None, "start-wait", requestHandle=6)
        one.mpi("MPI_Wait", at + MS, at + 5 * MS, None, "start-wait", requestHandle=6)
        zero.mpi("MPI_Start", at + 4 * MS, at + 5 * MS, None, "start-wait", requestHandle=5)
        zero.mpi("MPI_Wait", at + 6 * MS, at + 7 * MS, None, "start-wait", requestHandle=5)
    unmatched, waiting = waits_of(builder.write(tmp_path / "r.sqlite"))
    assert unmatched == 0
    assert waiting == {(0, 1): pytest.approx(3.0)}


def test_ranks_of_a_communicator_are_those_of_the_world(tmp_path: Path) -> None:
    """Rank 1 of the odd ranks' communicator is rank 3; a row of no rank is MPI_PROC_NULL's."""
    builder = ReportBuilder(world_size=4)
    threads = [builder.thread(100 * (rank + 1), rank=rank) for rank in range(4)]
    for rank in (1, 3):
        builder.insert(
            "MPI_COMMUNICATORS", rank=rank, timestamp=0, commHandle=70 + rank,
            parentHandle=threads[rank].world, localRank=rank // 2, size=2, groupRoot=1,
            groupRootUid=0,
        )  # fmt: skip
    for at in range(10 * MS, 50 * MS, 10 * MS):
        for thread in threads:
            thread.range(f"step {at // MS}", at, at + 9 * MS)
        for rank, begin in ((1, MS), (3, 4 * MS)):
            other = {"remoteRank": 1 - rank // 2, "commHandle": 70 + rank, "tag": 0}
            threads[rank].mpi("MPI_Sendrecv", at + begin, at + 5 * MS, 100, "p2p", **other)
        nobody = {"remoteRank": None, "tag": None}
        threads[0].mpi("MPI_Send", at + MS, at + 2 * MS, 0, "p2p", **nobody)
    unmatched, waiting = waits_of(builder.write(tmp_path / "r.sqlite"))
    assert unmatched == 0
    assert waiting.keys() == {(1, 3), (3, 1)}
    assert sum(waiting.values()) == pytest.approx(3.0)


def test_a_call_without_a_name_has_no_other_calls_name(tmp_path: Path) -> None:
    builder = ReportBuilder()
    for rank, name in enumerate(("MPI_Send", "MPI_Recv")):
        thread = builder.thread(100 + rank, rank=rank)
        for i in range(4):
            thread.range(f"step {i}", MS * (i + 1), MS * (i + 1) + 900_000)
            unnamed = {"textId": None} if rank == 0 else {}
            begin = MS * (i + 1) + 1000
            thread.mpi(name, begin, begin + 5000, 8, "p2p", remoteRank=1 - rank, tag=0, **unnamed)
    builder.string("MPI_Send_init")  # the last one
    run = analyzed(builder.write(tmp_path / "unnamed.sqlite"))
    assert run.messages is not None
    assert {(p.sender, p.receiver) for p in run.messages.pairs} == {(0, 1)}
