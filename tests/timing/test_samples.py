"""Resampled medians, the warm-up, and times arranged by path, rank and batch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from perfmodel.base.arrays import Floats
from perfmodel.readers import read
from perfmodel.timing.run import time_run
from perfmodel.timing.samples import (
    CLOCKS,
    PathTimes,
    tabulate,
)
from perfmodel.timing.step_times import count_warmup
from support.build_report import ReportBuilder
from support.build_training import Training, training_report
from support.foreign_reports import SHIPPED

BATCH = "batch iteration"

seconds = st.floats(1e-9, 10.0, allow_nan=False)
tables = hnp.arrays(
    np.float64,
    st.tuples(st.integers(1, 3), st.integers(1, 12)),
    elements=st.one_of(seconds, st.just(float("nan"))),
)


def measured(path: Path, label: str = BATCH) -> dict[str, PathTimes]:
    run = time_run([read(path)], label, label="run")
    return {m.label: m for m in tabulate(run.range_times, run.ranks, label)}


@pytest.mark.parametrize(
    ("batches", "expected"),
    [
        ([], 0),
        ([5.0], 0),
        ([9.0, 1.0], 0),  # too few to tell
        ([9.0, 1.0, 1.0], 1),
        ([9.0, 3.0, 1.0, 1.0, 1.0, 1.0], 2),
        ([1.0, 9.0, 1.0, 1.0, 1.0, 1.0], 0),  # an outlier later on is kept
        ([1.2, 1.0, 1.0, 1.0], 0),  # within a quarter of the usual
        ([8.0, 7.0, 6.0, 5.0, 1.0, 1.0], 3),  # never more than half
        ([0.0, 0.0, 0.0, 0.0], 0),
        ([4.0, 1.0, 1.0, np.nan], 1),  # the last batch was cut short
        ([1.0, 1.0, 1.0, np.nan], 0),
        ([np.nan, 1.0, 1.0, 1.0], 0),
        ([np.nan] * 4, 0),
    ],
)
def test_warmup_is_counted_from_the_start(batches: list[float], expected: int) -> None:
    assert count_warmup(np.array([batches])) == expected


def test_one_slow_rank_makes_a_batch_slow() -> None:
    steady, warming = [1.0] * 6, [3.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    assert count_warmup(np.array([steady, warming])) == 1


@settings(derandomize=True, deadline=None)
@given(tables)
def test_warmup_is_never_more_than_half(table: Floats) -> None:
    assert 0 <= count_warmup(table) <= table.shape[1] // 2


@pytest.mark.parametrize("report", SHIPPED, ids=lambda p: p.stem)
def test_real_reports_warm_up_for_a_few_batches(report: Path) -> None:
    """The first batches compile kernels: they take 10 to 100 times the median."""
    host = measured(report)[BATCH].seconds["host"]
    count = count_warmup(host)
    assert count in (1, 2, 3)
    assert np.nanmin(host[:, 0]) > 5 * np.nanmedian(host)
    assert np.nanmax(host[:, count:]) < 3 * np.nanmedian(host)


def test_times_are_arranged_by_rank_and_batch(tmp_path: Path) -> None:
    training = Training(pace=(8, 1, 2))
    found = measured(training_report(tmp_path / "r.sqlite", training, lag_ns=77))
    np.testing.assert_allclose(found[BATCH].seconds["host"], 2 * [[8e-3, 1e-3, 2e-3]])
    np.testing.assert_allclose(found["step"].seconds["gpu_busy"], 2 * [[160e-6, 20e-6, 40e-6]])
    assert np.all(found["cudaMemcpyDeviceToHost"].copy_bytes == sum(training.gradients))
    assert np.all(found["MPI_Allreduce"].mpi_bytes == sum(training.gradients))
    assert np.isnan(found["MPI_Allreduce"].seconds["gpu_busy"]).all()
    for m in found.values():
        host, projection, busy = (m.seconds[clock] for clock in CLOCKS)
        assert host.shape == (2, 3)
        assert np.all((busy <= projection) | np.isnan(busy))


def test_parents_come_before_children_in_order_of_time(tmp_path: Path) -> None:
    run = time_run([read(training_report(tmp_path / "r.sqlite"))], BATCH, label="run")
    labels = [m.label for m in tabulate(run.range_times, run.ranks, BATCH)]
    assert labels == [
        "batch iteration", "copying images host -> device", "forward", "forward GEMM 1",
        "forward GEMM 2", "backward", "backward GEMM 1", "backward GEMM 2", "backward GEMM 3",
        "cudaMemcpyDeviceToHost", "MPI_Allreduce", "cudaMemcpyHostToDevice", "step",
    ]  # fmt: skip


def test_ranges_repeated_in_a_batch_are_added_up(tmp_path: Path) -> None:
    report = ReportBuilder()
    thread = report.thread(rank=0)
    for start in (0, 10_000):
        thread.range(BATCH, start, start + 9_000)
        for i in range(3):
            thread.range("micro", start + 1_000 * i, start + 1_000 * i + 500)
    found = measured(report.write(tmp_path / "r.sqlite"))["micro"]
    np.testing.assert_allclose(found.seconds["host"], [[1.5e-6, 1.5e-6]])
    assert found.instances.tolist() == [[3.0, 3.0]]


def test_batches_in_ranges_of_several_names_are_put_together(tmp_path: Path) -> None:
    """Epochs with names of their own must not split the batches."""
    report = ReportBuilder()
    thread = report.thread(rank=0)
    for epoch in range(3):
        thread.range(f"epoch {epoch}", 10_000 * epoch, 10_000 * epoch + 9_000)
        for i in range(2):
            start = 10_000 * epoch + 4_000 * i + 10
            thread.range(BATCH, start, start + 1_000 * (epoch + 1))
            thread.range("forward", start + 1, start + 101)
    found = measured(report.write(tmp_path / "r.sqlite"))
    assert found["forward"].path == (BATCH, "forward")
    np.testing.assert_allclose(found[BATCH].seconds["host"], [[1e-6, 1e-6, 2e-6, 2e-6, 3e-6, 3e-6]])


def test_a_range_that_never_ended_has_no_time(tmp_path: Path) -> None:
    report = ReportBuilder()
    thread = report.thread(rank=0)
    for i, end in enumerate((1_900, 2_900, None)):
        thread.range(BATCH, 1_000 * (i + 1), end)
    found = measured(report.write(tmp_path / "r.sqlite"))[BATCH]
    np.testing.assert_allclose(found.seconds["host"], [[9e-7, 9e-7, np.nan]])
