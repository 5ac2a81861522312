"""Messages between ranks: matched, with who waits for whom and why."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from perfmodel.analysis.analyze import analyze_reports
from perfmodel.analysis.result import RunAnalysis
from perfmodel.programs.program import Options
from support.build_report import ReportBuilder

PROFILES = Path(__file__).parents[2] / "profiles" / "programs"
NSYS = os.environ.get("PERFMODEL_NSYS", "")
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
    run = analyzed(PROFILES / "halo.sqlite.xz")
    check_halo(run)
    assert run.findings[0].saving_s == pytest.approx(2.0e-3, rel=0.1)
    assert run.messages is not None
    first, second, *_ = run.messages.ranks
    assert first.caused_s > 10 * second.caused_s
    late = {r.range: r.more_s for r in run.ranges_by_rank if r.rank == 3}
    assert late["compute"] == pytest.approx(2.0e-3, rel=0.1)
    assert late["exchange"] < 0


@pytest.mark.skipif(not NSYS, reason="PERFMODEL_NSYS names no nsys")
@pytest.mark.parametrize("way", [[], ["blocking"]])
def test_a_halo_exchange_recorded_here(way: list[str], tmp_path: Path) -> None:
    report = tmp_path / "halo"
    profile = [NSYS, "profile", "-o", str(report), "--sample=none", "--cpuctxsw=none",
               "--trace=nvtx,mpi", "--mpi-impl=openmpi"]  # fmt: skip
    program = ["mpirun", "--oversubscribe", "-n", "8", sys.executable, str(PROFILES / "halo.py")]
    subprocess.run([*profile, *program, *way], check=True, capture_output=True, timeout=120)
    export = [NSYS, "export", "-q", "true", "-t", "sqlite", "-o", f"{report}.sqlite"]
    subprocess.run([*export, f"{report}.nsys-rep"], check=True, capture_output=True, timeout=120)
    check_halo(analyzed(Path(f"{report}.sqlite")))


def test_waiting_is_that_of_the_receiver_until_the_message_is_sent(tmp_path: Path) -> None:
    builder = ReportBuilder(world_size=2)
    zero, one = builder.thread(100, rank=0), builder.thread(200, rank=1)
    for step in range(4):
        at = 10 * MS * (step + 1)
        for thread in (zero, one):
            thread.range(f"step {step}", at, at + 9 * MS)
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
    zero, one = builder.thread(100, rank=0), builder.thread(200, rank=1)
    for step in range(4):
        at = 10 * MS * (step + 1)
        for thread in (zero, one):
            thread.range(f"step {step}", at, at + 9 * MS)
        zero.mpi("MPI_Ssend", at + MS, at + 7 * MS, 100, "p2p", remoteRank=1, tag=0)
        one.mpi("MPI_Recv", at + 6 * MS, at + 7 * MS, 100, "p2p", remoteRank=0, tag=0)
    messages = analyzed(builder.write(tmp_path / "r.sqlite")).messages
    assert messages is not None
    assert messages.ranks[0].rank == 1
    assert messages.ranks[0].caused_s == pytest.approx(5e-3)
