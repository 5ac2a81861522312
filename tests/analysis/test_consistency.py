"""One quantity has one value, wherever it is shown; what is missing is left out everywhere."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from benchmarks.common.folders import ROOT
from perfmodel.analysis.analyze import analyze, analyze_reports
from perfmodel.models.roofline import Roofline
from perfmodel.programs.program import Options
from perfmodel.readers import read
from support.build_report import ReportBuilder
from support.build_training import Training, training_report

MLP = {"D": 10, "H": 10, "C": 5, "B": 20, "b": 4}


def without_copies(path: Path, last_open: bool = False) -> Path:
    """Two ranks with products and an all-reduce, but no copies: as a run on CPUs has them."""
    report = ReportBuilder()
    for rank in (0, 1):
        t = report.thread(pid=100 + rank, rank=rank)
        for i in range(12):
            s = 1_000_000 * i
            t.range("batch iteration", s, s + 900_000)
            t.range("forward", s + 1_000, s + 400_000)
            t.range("forward GEMM 1", s + 2_000, s + 300_000)
            t.range("backward", s + 401_000, s + 800_000)
            t.range("MPI_Allreduce", s + 500_000, s + 700_000)
            t.mpi("MPI_Allreduce", s + 500_100, s + 699_000, size=660)
        if last_open:
            t.range("batch iteration", 12_000_000, None)
    return report.write(path)


def test_missing_copies_are_missing_in_intensity_roof_and_model(tmp_path: Path) -> None:
    path = without_copies(tmp_path / "r.sqlite")
    run = analyze([read(path)], Options(values=MLP)).fitted
    batch, point = run.ranges[0], run.points[0]
    assert batch.pci_bytes == 0
    assert batch.flops is not None
    assert batch.mpi_bytes
    assert point.intensity_flops_per_byte == pytest.approx(batch.flops / batch.mpi_bytes)
    assert point.flops_per_s == pytest.approx(batch.rate)
    assert run.roofline is not None
    assert set(run.roofline.shares) == {"mpi"}
    assert point.flops_per_s < float(run.roofline.smooth(point.intensity_flops_per_byte))
    assert run.model
    assert any("left out" in w for w in run.warnings)


def test_batches_that_never_ended_are_not_counted(tmp_path: Path) -> None:
    path = without_copies(tmp_path / "r.sqlite", last_open=True)
    run = analyze([read(path)], Options(values=MLP, warmup=0)).fitted
    assert run.batch.count == 12
    assert run.ranges[0].count == 24
    assert any("never ended" in w for w in run.warnings)


def test_given_ranks_that_the_report_contradicts_are_warned_of() -> None:
    root = ROOT
    path = root / "profiles" / "h200x2_2ranks_base_nsys2025.3.1.sqlite"
    run = analyze([read(path)], Options(values={"p": 1})).fitted
    assert any("p = 1 was given and overrides the 2 ranks" in w for w in run.warnings)


def test_a_roof_takes_each_point_s_own_mix_of_bytes() -> None:
    roof = Roofline("r", 1e12, {"pci": 1e10, "mpi": 5e9}, {"pci": 0.5, "mpi": 0.5})
    alone = roof.for_shares({"pci": 1.0})
    assert alone.bandwidth_bytes_per_s == pytest.approx(1e10)
    assert roof.for_shares({"nvlink": 1.0}) is roof


def test_crossing_and_backward_ranges_are_warned_of(tmp_path: Path) -> None:
    report = ReportBuilder()
    t = report.thread(rank=0)
    for i in range(6):
        s = 1_000_000 * i
        t.range("batch iteration", s, s + 800_000)
        t.range("forward", s + 600_000, s + 900_000)
    t.range("late", 7_000_000, 6_900_000)
    run = analyze([read(report.write(tmp_path / "r.sqlite"))], Options(values={})).fitted
    assert any("overlap without nesting" in w for w in run.warnings)
    assert any("1 ranges or GPU operations end before they start" in w for w in run.warnings)


def test_copies_without_a_size_are_warned_of(tmp_path: Path) -> None:
    path = training_report(tmp_path / "r.sqlite", Training(pace=(1,)))
    with closing(sqlite3.connect(path)) as db:
        changed = db.execute("UPDATE CUPTI_ACTIVITY_KIND_MEMCPY SET bytes = -1").rowcount
        db.commit()
    said = f"r.sqlite: {changed} copies have no size, or one below 0, and count as 0 bytes"
    options = Options(values={"D": 784, "H": 512, "C": 10, "B": 3000})
    assert changed > 0
    for run in (analyze([read(path)], options), analyze_reports([path], options)):
        assert any(said in w for w in run.fitted.warnings)
