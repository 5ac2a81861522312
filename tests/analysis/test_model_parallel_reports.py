"""Reports of model parallel runs: z2 is all-reduced in `forward`, and nothing in `backward`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perfmodel.analysis.result import RangeRow, RunAnalysis
from support.build_training import MODEL, Training, analyzed, model_report, training_report


def row(run: RunAnalysis, label: str) -> RangeRow:
    return next(r for r in run.ranges if r.label == label)


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> RunAnalysis:
    path = model_report(tmp_path_factory.mktemp("model") / "r.sqlite")
    return analyzed(path, counting="full").fitted


def test_nothing_is_warned_of(full: RunAnalysis) -> None:
    assert full.warnings == ()
    assert full.workload.name == "MLP, model parallel"
    assert full.identity.source == "the report's configuration mark"


def test_flops_and_bytes_are_the_formulas(full: RunAnalysis) -> None:
    """D=784, H=512, C=10, B=3000, p=2, b=4: H' = 256 units on all 3000 images."""
    assert row(full, "forward GEMM 1").flops == 2 * 784 * 256 * 3000
    assert row(full, "backward GEMM 2").flops == 2 * 256 * 10 * 3000
    copied = row(full, "copying images host -> device")
    assert copied.pci_bytes == copied.measured_copy_bytes == 4 * 794 * 3000 == 9_528_000
    for name in ("cudaMemcpyDeviceToHost", "cudaMemcpyHostToDevice"):
        assert row(full, name).pci_bytes == row(full, name).measured_copy_bytes == 120_000
    reduced = row(full, "MPI_Allreduce")
    assert reduced.mpi_bytes == reduced.measured_mpi_bytes == 120_000
    n = 256 * 784 + 256 + 10 * 256 + 10
    products = 2 * 256 * 3000 * (2 * 784 + 3 * 10)
    elementwise = 9 * (256 + 10) * 3000 + 2 * n + 2 * 256 * 794 + 30_000 // 2
    assert full.totals.flops == products + elementwise


def test_the_all_reduce_belongs_to_forward(full: RunAnalysis) -> None:
    batch = "batch iteration"
    for name in ("cudaMemcpyDeviceToHost", "MPI_Allreduce", "cudaMemcpyHostToDevice"):
        assert row(full, name).path == (batch, "forward", name)
    assert row(full, "forward").mpi_bytes == row(full, batch).mpi_bytes == 120_000
    assert row(full, "forward").measured_mpi_bytes == 120_000
    assert row(full, "forward").pci_bytes == 240_000
    assert not row(full, "backward").mpi_bytes
    assert not row(full, "backward").pci_bytes


def test_rates_come_from_the_same_ranges_as_data_parallel(full: RunAnalysis) -> None:
    """All-reduce 140 µs; copies 9.528 MB in 95 µs, 0.12 MB in 90 µs each way (built so)."""
    p_mpi, p_pci = full.rates["P_mpi"], full.rates["P_pci"]
    assert p_mpi is not None
    assert p_pci is not None
    assert p_mpi.value == pytest.approx(120_000 / 140e-6)
    assert p_mpi.ranges == ("MPI_Allreduce",)
    assert p_pci.value == pytest.approx((9_528_000 + 240_000) / (95e-6 + 2 * 90e-6))
    assert full.rates["P_flops"] is not None
    assert {name for name, *_ in full.products} == {
        "forward GEMM 1", "forward GEMM 2", "backward GEMM 1", "backward GEMM 2", "backward GEMM 3"
    }  # fmt: skip
    assert [point.kind for point in full.points] == [
        "batch iteration", "copying images host -> device + forward + backward + step"
    ]  # fmt: skip


def test_the_document_s_counting_counts_both_directions(tmp_path: Path) -> None:
    run = analyzed(model_report(tmp_path / "r.sqlite")).fitted
    assert run.warnings == ()
    assert run.totals.mpi_bytes == 2 * 120_000
    assert run.totals.pci_bytes == 2 * 120_000
    assert run.totals.flops == 4 * 256 * 3000 * 794


def test_hidden_units_need_not_divide(tmp_path: Path) -> None:
    """513 on 2 ranks: 257 and 256, 256.5 in the mean; nothing that is sent changes."""
    run = analyzed(model_report(tmp_path / "r.sqlite", Training(H=513, parallel="model"))).fitted
    assert run.warnings == ()
    assert row(run, "forward GEMM 1").flops == 2 * 784 * 513 * 3000 / 2
    assert row(run, "MPI_Allreduce").measured_mpi_bytes == 120_000


def test_a_report_per_rank(tmp_path: Path) -> None:
    mark = json.dumps({
        "perfmodel_config": 1, "input_size": 784, "hidden_size": 512, "num_classes": 10,
        "batch_size": 3000, "ranks": 2, "dtype": "float32", "parallel": "model", "run_id": "x",
    })  # fmt: skip
    paths = [
        training_report(tmp_path / f"r{k}.sqlite", MODEL, ranks=[k], world_size=2, mark=mark)
        for k in range(2)
    ]
    analysis = analyzed(*paths)
    assert len(analysis.runs) == 1
    assert analysis.fitted.warnings == ()
    assert len(analysis.fitted.ranks) == 2


def test_without_a_mark_one_message_does_not_tell_the_network(tmp_path: Path) -> None:
    """One all-reduce of C B elements is no four gradients: nothing is guessed from it."""
    run = analyzed(training_report(tmp_path / "r.sqlite", MODEL)).fitted
    assert run.workload.name == "unknown"
    assert any("no configuration mark" in w for w in run.warnings)


def test_a_data_parallel_report_that_claims_to_be_model_parallel_is_doubted(
    tmp_path: Path,
) -> None:
    run = analyzed(model_report(tmp_path / "r.sqlite", Training())).fitted
    said = [w for w in run.warnings if "the formula gives" in w]
    assert len(said) == 4
    assert any("MPI_Allreduce: the formula gives 120.0 kB of MPI" in w for w in said)
