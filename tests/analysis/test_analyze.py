"""The whole analysis: the document's numbers, real reports, and reports that lack something."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.common.folders import BASE, PROFILES, ROOT
from perfmodel.analysis.rates import Rate
from perfmodel.analysis.result import Analysis, RunAnalysis
from support.build_report import VERSIONS
from support.build_training import analyzed
from support.document_report import document_report

SHARED = PROFILES / "h200x1_2ranks_nsys2024.2.3.sqlite.xz"
CPU = ROOT / "tests" / "reports" / "cpu_2ranks_nsys2024.2.3.sqlite"
BATCH = "batch iteration"
PHASES = "forward + backward + step"
BYTES = 2 * 4 * (784 * 512 + 512 + 10 * 512 + 10)


def rate(run: RunAnalysis, name: str) -> Rate:
    found = run.rates[name]
    assert found is not None
    return found


def host(run: RunAnalysis) -> dict[str, float]:
    return {r.label: r.host_s for r in run.ranges if r.host_s is not None}


# --- the document: Figure 11 in, Questions 2.4 to 2.6 out


@pytest.fixture(scope="module", params=VERSIONS)
def document(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    path = tmp_path_factory.mktemp("document") / "document.sqlite"
    return analyzed(document_report(path, request.param))


def test_the_document_is_identified(document: Analysis) -> None:
    run = document.fitted
    assert run.identity.values == {"D": 784, "H": 512, "C": 10, "B": 3000, "p": 2, "b": 4}
    assert run.workload.counting == "document"
    assert run.totals.flops == 4 * 1500 * 512 * (784 + 10) == 2_439_168_000
    assert run.totals.pci_bytes == run.totals.mpi_bytes == BYTES == 3_256_400


def test_the_document_s_throughputs(document: Analysis) -> None:
    run = document.fitted
    flops = rate(run, "P_flops")
    assert flops.value == pytest.approx(1.632697e12, rel=1e-6)  # from the printed medians
    assert flops.value == pytest.approx(1.632730e12, rel=5e-5)  # as the document prints it
    assert rate(run, "P_pci").value == pytest.approx(1.2720e10, rel=5e-5)
    assert rate(run, "P_mpi").value == pytest.approx(7.9502e9, rel=5e-5)
    clocks = {name: rate(run, name).clock for name in run.rates}
    assert clocks == {"P_flops": "gpu_projection", "P_pci": "gpu_projection", "P_mpi": "host"}
    for name in run.rates:
        found = rate(run, name)
        assert found.low <= found.value <= found.high
        assert found.instances == 38
    gemms = ("forward GEMM 1", "forward GEMM 2", "backward GEMM 1", "backward GEMM 3")
    assert flops.ranges == gemms
    assert tuple(label for label, _, _ in run.products) == gemms


def test_the_document_s_roofline(document: Analysis) -> None:
    run = document.fitted
    assert run.roofline is not None
    assert run.roofline.shares == {"pci": 0.5, "mpi": 0.5}
    whole, phases = run.points
    assert (whole.kind, phases.kind) == (BATCH, PHASES)
    assert whole.intensity_flops_per_byte == phases.intensity_flops_per_byte
    assert whole.intensity_flops_per_byte == pytest.approx(2_439_168_000 / (2 * BYTES))
    assert whole.intensity_flops_per_byte == pytest.approx(374.5, abs=0.05)


def test_the_document_s_model_misses_its_own_batch(document: Analysis) -> None:
    whole, phases = document.fitted.model
    assert whole.predicted_s == phases.predicted_s == pytest.approx(2.160e-3, abs=5e-7)
    assert whole.measured_s == pytest.approx(4.958e-3)
    assert whole.relative_error == pytest.approx(-0.564, abs=5e-4)
    assert phases.measured_s == pytest.approx(2.910e-3, rel=1e-3)
    assert phases.relative_error == pytest.approx(-0.25, abs=0.01)


def test_the_document_s_first_batch_warms_up(document: Analysis) -> None:
    batch = document.fitted.batch
    assert (batch.count, batch.warmup) == (19, 1)
    assert batch.warmup_s == pytest.approx(9.941e-3)
    assert batch.median.value == pytest.approx(4.958e-3)
    assert batch.median.low < batch.median.value < batch.median.high


def test_with_the_first_batch_the_medians_are_the_same(tmp_path: Path) -> None:
    """As the document has it: 40 instances, outliers and all."""
    path = document_report(tmp_path / "document.sqlite")
    without, whole = analyzed(path).fitted, analyzed(path, warmup=0).fitted
    assert (whole.batch.count, whole.batch.warmup) == (20, 0)
    assert host(whole) == pytest.approx(host(without))
    for name in whole.rates:
        assert rate(whole, name).value == pytest.approx(rate(without, name).value)
        assert rate(whole, name).instances == 40


def test_full_counting_of_the_document(tmp_path: Path) -> None:
    run = analyzed(document_report(tmp_path / "document.sqlite"), counting="full").fitted
    assert "backward GEMM 2" in rate(run, "P_flops").ranges
    assert "copying images host -> device" in rate(run, "P_pci").ranges
    assert run.totals.pci_bytes == BYTES + 4 * (784 + 10) * 1500
    assert run.totals.mpi_bytes == BYTES / 2
    assert run.points[1].kind == "copying images host -> device + forward + backward + step"


# --- real reports (profiles/README.md)


def test_three_clocks_of_a_real_forward_pass() -> None:
    """The median forward pass reads 924, 713 and 77 µs: P_flops differs ninefold with the clock."""
    run = analyzed(SHARED).fitted
    (forward,) = (r for r in run.ranges if r.label == "forward")
    assert forward.host_s == pytest.approx(924e-6, rel=2e-3)
    assert forward.gpu_projection_s == pytest.approx(713e-6, rel=2e-3)
    assert forward.gpu_busy_s == pytest.approx(77e-6, rel=1e-2)
    by_clock = run.rates_by_clock["P_flops"]
    assert by_clock["gpu_busy"] is not None
    assert by_clock["host"] is not None
    assert by_clock["gpu_busy"].value > 9 * by_clock["host"].value


def test_a_real_report_on_one_gpu() -> None:
    run = analyzed(SHARED).fitted
    assert (run.batch.count, run.batch.warmup) == (38, 2)
    assert run.batch.median.value == pytest.approx(4.432e-3, rel=1e-3)
    assert {row.rank: row.gpu for row in run.ranks} == {0: 0, 1: 0}
    kinds = {(c.direction, c.memory): c.bytes_per_s for c in run.copies}
    assert kinds["Host-to-Device", "pageable"] == pytest.approx(27.3e9, rel=1e-2)
    assert kinds["Host-to-Device", "pinned"] == pytest.approx(45.0e9, rel=1e-2)
    assert any("share GPU 0" in f.title for f in run.findings)
    assert run.machine is not None
    assert "H200" in run.machine.name


def test_a_real_report_counted_in_full() -> None:
    """The full count has 0.63 % more GEMM FLOPs, and image copies on PCIe; times are the same."""
    document, full = analyzed(BASE).fitted, analyzed(BASE, counting="full").fitted
    assert full.batch == document.batch
    gemms = [sum(f for _, f, _ in run.products) for run in (document, full)]
    assert gemms[1] / gemms[0] == pytest.approx(1.0063, abs=1e-4)
    assert not [w for w in full.warnings if "the formula gives" in w]
    assert full.model
    assert full.model[0].predicted_s > document.model[0].predicted_s


def test_a_real_report_without_a_gpu() -> None:
    run = analyzed(CPU).fitted
    assert run.workload.name == "unknown"
    assert run.machine is None
    assert run.roofline is None
    assert run.points == ()
    assert set(run.rates.values()) == {None}
    assert all(r.gpu_busy_s is None and r.gpu_projection_s is None for r in run.ranges)
    assert any("no GPU operation was recorded" in w for w in run.warnings)
    assert run.collectives[0].bytes == 524_288
