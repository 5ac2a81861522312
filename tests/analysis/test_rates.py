"""Accounting: counts and times joined; sums, bounds and conservation of the model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.common.folders import ROOT
from perfmodel.analysis import rows as rows_of
from perfmodel.analysis.rates import (
    Rate,
    counted,
    fit_rates,
    fit_roofline,
    is_product,
    leaves,
    product_rates,
)
from perfmodel.analysis.result import RangeRow, RunAnalysis
from perfmodel.models.roofline import Point
from perfmodel.programs.mlp.mlp import mlp
from perfmodel.timing.samples import CLOCKS, Clock, PathTable, PathTimes
from perfmodel.workloads.spec import load
from perfmodel.workloads.work import Counts
from support.build_report import ReportBuilder
from support.build_training import Training, analyzed, training_report
from support.document_report import document_report
from support.foreign_reports import SHIPPED

EXAMPLE = ROOT / "perfmodel" / "workloads" / "examples" / "pytorch_mlp.toml"
BATCH = "batch iteration"
FIELDS = ("flops", "pci_bytes", "mpi_bytes")


def times(path: tuple[str, ...], seconds: float, **clocks: float) -> PathTimes:
    """Measure a range that took `seconds` on the host in three batches of one rank."""

    def table(value: float) -> np.ndarray:
        return np.full((1, 3), value)

    given: dict[Clock, np.ndarray] = {c: table(clocks.get(c, np.nan)) for c in CLOCKS}
    given["host"] = table(seconds)
    return PathTimes(path, given, table(1.0), table(0.0), table(np.nan), table(0.0), table(0.0))


def children(run: RunAnalysis, parent: RangeRow) -> list[RangeRow]:
    return [r for r in run.ranges if r.path[:-1] == parent.path]


@pytest.fixture(scope="module", params=["document", "full"])
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> RunAnalysis:
    path = tmp_path_factory.mktemp("runs") / "document.sqlite"
    return analyzed(document_report(path), counting=request.param).fitted


def test_a_parent_has_the_work_of_its_children_and_its_own(runs: RunAnalysis) -> None:
    counts = runs.workload.evaluate(dict(runs.identity.values))
    for row in runs.ranges:
        own = counts.get(row.label, Counts())
        for field in FIELDS:
            inner = sum(getattr(c, field) or 0 for c in children(runs, row))
            assert (getattr(row, field) or 0) == pytest.approx(getattr(own, field) + inner)
    for field in FIELDS:
        assert getattr(runs.ranges[0], field) == pytest.approx(getattr(runs.totals, field))


def test_times_and_measured_bytes_of_parents_bound_those_of_children(runs: RunAnalysis) -> None:
    for row in runs.ranges:
        inner = children(runs, row)
        for field in ("host_s", "gpu_busy_s", "measured_copy_bytes", "measured_mpi_bytes"):
            whole = getattr(row, field) or 0.0
            assert sum(getattr(c, field) or 0.0 for c in inner) <= whole * (1 + 1e-9)
        for inside in inner:
            assert (inside.gpu_projection_s or 0.0) <= (row.gpu_projection_s or 0.0) * (1 + 1e-9)
    assert runs.ranges[0].share == 1.0


@pytest.mark.parametrize("report", SHIPPED, ids=lambda p: p.stem)
@pytest.mark.parametrize("counting", ["document", "full"])
def test_fits_are_bounded_and_the_model_conserves_time(report: Path, counting: str) -> None:
    run = analyzed(report, counting=counting).fitted
    counts = run.workload.evaluate(dict(run.identity.values))
    rows = {r.label: r for r in run.ranges}
    for name, field in zip(("P_flops", "P_pci", "P_mpi"), FIELDS, strict=True):
        rate = run.rates[name]
        assert rate is not None
        seconds = [getattr(rows[n], f"{rate.clock}_s") for n in rate.ranges]
        each = [getattr(counts[n], field) / s for n, s in zip(rate.ranges, seconds, strict=True)]
        assert min(each) <= rate.value * (1 + 1e-9)
        assert rate.value <= max(each) * (1 + 1e-9)
        assert rate.low <= rate.value <= rate.high
    predicted = sum(
        work / rate.value
        for work, rate in zip(
            (run.totals.flops, run.totals.pci_bytes, run.totals.mpi_bytes),
            run.rates.values(),
            strict=True,
        )
        if rate is not None
    )
    assert run.roofline is not None
    for check, point in zip(run.model, run.points, strict=True):
        assert check.predicted_s == pytest.approx(predicted)
        roof = float(run.roofline.smooth(point.intensity_flops_per_byte))
        assert run.totals.flops / roof == pytest.approx(predicted)  # the roof is the model
        assert point.flops_per_s / roof == pytest.approx(predicted / check.measured_s)
    assert run.points[0].flops_per_s < float(
        run.roofline.smooth(run.points[0].intensity_flops_per_byte)
    )


@pytest.mark.parametrize("report", SHIPPED, ids=lambda p: p.stem)
def test_rates_are_ordered_by_clock(report: Path) -> None:
    """GPU busy is within the projection, so its rate is never lower."""
    by_clock = analyzed(report).fitted.rates_by_clock
    for name in ("P_flops", "P_pci"):
        projection, busy = by_clock[name]["gpu_projection"], by_clock[name]["gpu_busy"]
        assert projection is not None
        assert busy is not None
        assert busy.value >= projection.value
    assert by_clock["P_mpi"]["gpu_busy"] is None


# --- which ranges count


def test_of_a_label_at_several_places_the_longest_counts() -> None:
    counts = {"gemm": Counts(flops=100)}
    head = times((BATCH,), 10.0)
    measured = [head, times((BATCH, "a", "gemm"), 1.0), times((BATCH, "b", "gemm"), 4.0)]
    assert counted(measured, counts)["gemm"].path == (BATCH, "b", "gemm")
    columns = (*CLOCKS, "instances", "copy_bytes", "mpi_bytes", "gpu_ops")
    table = PathTable(
        tuple(m.path for m in measured),
        (1, 3),
        np.zeros(4, np.int64),
        np.empty(0, np.int64),
        dict.fromkeys(columns, np.empty(0)),
        dict(enumerate(measured)),
    )
    rows = rows_of.range_rows(table, counts, head, 1.0, None, "float32")
    assert [r.flops for r in rows] == [100, None, 100]


def test_leaves_are_the_innermost_ranges_with_work() -> None:
    counts = {"outer": Counts(flops=1), "inner": Counts(flops=2), "copy": Counts(pci_bytes=3)}
    measured = [
        times(("outer",), 3.0), times(("outer", "inner"), 2.0), times(("outer", "copy"), 1.0),
    ]  # fmt: skip
    assert list(leaves(measured, counts, "flops")) == ["inner"]
    assert list(leaves(measured, counts, "pci_bytes")) == ["copy"]
    assert leaves(measured, counts, "mpi_bytes") == {}


def test_elementwise_work_and_reductions_are_no_products() -> None:
    assert is_product(Counts(flops=100, dram_bytes=100))
    assert not is_product(Counts(flops=99, dram_bytes=100))
    assert not is_product(Counts(flops=100, mpi_bytes=1))


def test_without_gpu_operations_products_are_timed_on_the_host() -> None:
    measured = [times((BATCH,), 10.0), times((BATCH, "gemm"), 4.0)]
    rates, by_clock = fit_rates(measured, {"gemm": Counts(flops=100)})
    assert rates["P_flops"] is not None
    assert (rates["P_flops"].value, rates["P_flops"].clock) == (25.0, "host")
    assert by_clock["P_flops"]["gpu_projection"] is None
    assert rates["P_pci"] is rates["P_mpi"] is None


def test_products_are_timed_on_the_gpu_where_they_ran_there() -> None:
    measured = [
        times((BATCH,), 10.0, gpu_projection=9.0),
        times((BATCH, "gemm"), 4.0, gpu_projection=2.0),
        times((BATCH, "on the host"), 5.0),
    ]
    counts = {"gemm": Counts(flops=100), "on the host": Counts(flops=10)}
    found = {label: rate for label, _, rate in product_rates(measured, counts)}
    assert (found["gemm"].value, found["gemm"].clock) == (50.0, "gpu_projection")
    assert (found["on the host"].value, found["on the host"].clock) == (2.0, "host")


# --- roofline, points, model


def fitted(value: float, unit: str = "B/s") -> Rate:
    return Rate(value, value, value, unit, 1, "host", ("x",), "host", value, value)


def test_the_roof_needs_computing_and_one_link() -> None:
    totals = Counts(flops=100, pci_bytes=30, mpi_bytes=10)
    rates = {"P_flops": fitted(5.0), "P_pci": fitted(2.0), "P_mpi": fitted(1.0)}
    roof = fit_roofline("r", rates, totals)
    assert roof is not None
    assert roof.shares == {"pci": 0.75, "mpi": 0.25}
    one = fit_roofline("r", rates | {"P_mpi": None}, Counts(flops=100, pci_bytes=30))
    assert one is not None
    assert one.links_bytes_per_s == {"pci": 2.0}
    assert fit_roofline("r", rates | {"P_flops": None}, totals) is None
    assert fit_roofline("r", rates | {"P_pci": None, "P_mpi": None}, totals) is None
    assert fit_roofline("r", rates, Counts(flops=100)) is None


def test_the_model_needs_the_rate_of_all_work() -> None:
    point = Point("p", BATCH, "p", 1.0, 10.0)
    totals = Counts(flops=100, pci_bytes=30)
    rates = {"P_flops": fitted(5.0), "P_pci": fitted(2.0), "P_mpi": None}
    (check,) = rows_of.check_model([point], totals, rates)
    assert (check.predicted_s, check.measured_s) == (100 / 5 + 30 / 2, 10.0)
    assert check.relative_error == 2.5
    assert rows_of.check_model([point], totals, rates | {"P_pci": None}) == ()


@given(st.floats(1e-6, 1e3), st.floats(0.0, 3.0))
def test_bytes_that_differ_by_more_than_one_percent_are_said(size: float, factor: float) -> None:
    path = (BATCH, "copy")
    table = np.full((1, 3), size * factor)
    measured = PathTimes(path, {"host": table}, table, table, table * np.nan, table, table)
    counts = {"copy": Counts(pci_message_bytes=size)}
    said = list(rows_of.check_bytes([measured], counts))
    assert len(said) == (abs(factor - 1) > 0.01)


def test_bytes_are_not_checked_where_the_workload_or_the_report_says_nothing() -> None:
    table = np.full((1, 3), 5.0)
    unmeasured = PathTimes(
        (BATCH, "a"), {"host": table}, table, table * np.nan, table * np.nan, table, table
    )
    assert not [*rows_of.check_bytes([unmeasured], {"a": Counts(pci_message_bytes=9)})]
    measured = PathTimes((BATCH, "a"), {"host": table}, table, table, table, table, table)
    assert not [*rows_of.check_bytes([measured], {"a": Counts(flops=1)})]


# --- one rank, and workloads of the user's own


def test_one_rank_without_mpi_has_a_roof_of_pcie_alone(tmp_path: Path) -> None:
    run = analyzed(training_report(tmp_path / "r.sqlite", Training(p=1, mpi=False))).fitted
    assert run.warnings == ()
    assert run.rates["P_mpi"] is None
    assert run.roofline is not None
    assert set(run.roofline.links_bytes_per_s) == {"pci"}
    assert len(run.points) == len(run.model) == 2


def pytorch_report(path: Path, batches: int = 5) -> Path:
    """Forward and optimizer launch from the main thread, backward from autograd's."""
    report = ReportBuilder()
    report.gpu(0)
    main = report.thread(pid=100)
    autograd = report.thread(pid=100, tid=150)
    for i in range(batches):
        start = 1_000_000 * i
        main.range(BATCH, start, start + 900_000)
        for name, begin, end in (
            ("forward", 0, 200_000),
            ("backward", 250_000, 600_000),
            ("optimizer", 650_000, 800_000),
        ):
            main.range(name, start + begin, start + end)
            thread = autograd if name == "backward" else main
            launch = (start + begin + 10_000, start + begin + 20_000)
            thread.kernel("k", launch, (start + begin + 50_000, start + end - 50_000))
        autograd.kernel(
            "stray", (start + 910_000, start + 911_000), (start + 910_000, start + 920_000)
        )
    return report.write(path)


def test_autograd_s_kernels_are_attributed_by_time_unless_asked_otherwise(tmp_path: Path) -> None:
    path = pytorch_report(tmp_path / "r.sqlite")
    options = {"workload": load(EXAMPLE), "values": {"B": 300}}
    by_thread = analyzed(path, **options, by_time=False).fitted
    by_time = analyzed(path, **options).fitted
    gpu = {r.label: r.gpu_busy_s for r in by_thread.ranges}
    assert gpu["backward"] is None
    assert gpu["forward"] == pytest.approx(100e-6)
    assert by_thread.unattributed["outside_ranges"] == 10
    assert by_thread.unattributed["outside_ranges_during_batches"] == 9  # not the last stray
    assert any("9 of 20 GPU operations" in w and "--attribute thread" in w
               for w in by_thread.warnings)  # fmt: skip
    gpu = {r.label: r.gpu_busy_s for r in by_time.ranges}
    assert gpu["backward"] == pytest.approx(250e-6)
    assert gpu[BATCH] == pytest.approx(400e-6)
    assert by_time.unattributed["attributed_by_time"] == 5
    assert by_time.unattributed["outside_ranges"] == 5  # the strays, between batches


def test_a_workload_s_defaults_are_values_too(tmp_path: Path) -> None:
    run = analyzed(
        pytorch_report(tmp_path / "r.sqlite"),
        workload=load(EXAMPLE),
        values={"B": 300},
        by_time=True,
    ).fitted
    assert {s: run.identity.values[s] for s in run.workload.symbols} == {
        "D": 784, "H": 512, "C": 10, "B": 300, "p": 1, "b": 4,
    }  # fmt: skip
    assert run.rates["P_flops"] is not None
    assert run.rates["P_flops"].ranges == ("forward", "backward")
    assert {p.kind for p in run.points} == set()  # one rank moves nothing


def test_measured_counts_do_not_depend_on_the_counting(tmp_path: Path) -> None:
    for counting in ("document", "full"):
        messages = mlp(counting).evaluate({"D": 7, "H": 5, "C": 3, "B": 8, "p": 2, "b": 4})
        assert messages["MPI_Allreduce"].mpi_message_bytes == 4 * (35 + 5 + 15 + 3)
