"""An all-to-all by NCCL's sends and receives is told from a pipeline by the range around it."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfmodel.analysis.analyze import analyze_reports
from perfmodel.analysis.result import RunAnalysis
from perfmodel.programs.program import Options
from support.build_report import ReportBuilder

STEPS, STEP_NS, LATE_NS = 6, 20_000_000, 5_000_000
KERNEL = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"


def analyzed(tmp_path: Path, label: str) -> RunAnalysis:
    """Two ranks; in every step the second one works on the host for 5 ms, then they exchange."""
    builder = ReportBuilder("2025.3.2")
    for gpu in range(2):
        builder.gpu(gpu)
    threads = [builder.thread(100 + rank, rank=rank) for rank in range(2)]
    for step in range(STEPS):
        t = 1_000_000 + step * STEP_NS
        ends = t + 3_000_000 + LATE_NS + 1_000_000
        for rank, thread in enumerate(threads):
            late = LATE_NS if rank else 0
            thread.range(f"step {step}", t, t + 12_000_000)
            thread.kernel(
                "gemm", (t + 10_000, t + 15_000), (t + 20_000, t + 2_000_000), device=rank
            )
            call = t + 2_500_000 + late
            thread.range(label, call - 1000, call + 9000)
            thread.kernel(KERNEL, (call, call + 5000), (call + 500_000, ends), device=rank)
    return analyze_reports([builder.write(tmp_path / "r.sqlite")], Options()).fitted


def test_a_late_rank_of_an_all_to_all(tmp_path: Path) -> None:
    run = analyzed(tmp_path, "nccl:all_to_all")
    assert run.steps is not None
    assert {g.name for g in run.collectives} == {"NCCL AllToAll"}
    waits = [rank.waiting_s for rank in run.steps.ranks]
    assert waits == [pytest.approx(LATE_NS * 1e-9), 0.0]
    late = run.steps.facts.last_rank()  # no host waits for the GPU: no step would be shorter
    assert late is not None
    assert (late.rank, late.share_last, late.late_s) == (1, 1.0, pytest.approx(LATE_NS * 1e-9))
    assert "ranks wait for each other's messages" not in [f.title for f in run.findings]


def test_sends_and_receives_without_such_a_range(tmp_path: Path) -> None:
    run = analyzed(tmp_path, "nccl:send")
    assert {g.name for g in run.collectives} == {"NCCL SendRecv"}
