"""Utilization: series, the recorder, NVML's answers, idle time by range and cause, the command."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.common.folders import BASE, PROFILES
from perfmodel.analysis.analyze import analyze
from perfmodel.analysis.utilization import Idle, answer, idle_of
from perfmodel.base.errors import PerfmodelError, ReportError, SchemaError
from perfmodel.machines.gpu_samples import (
    COUNTERS,
    NvmlSampler,
    Reading,
    Recorder,
    read_series,
    record_command,
    series_of,
    to_csv,
)
from perfmodel.programs.program import Options
from perfmodel.readers import read
from perfmodel.readers.gpu import read_metrics
from support.build_report import ReportBuilder
from support.build_training import Training, training_report
from support.cli import fails, perfmodel, succeeds


class Steady:
    """Two GPUs that always say the same; slower than the period if asked to be."""

    def __init__(self, takes_s: float = 0.0) -> None:
        self.asked = 0
        self._takes_s = takes_s

    def sample(self) -> Sequence[Reading]:
        self.asked += 1
        time.sleep(self._takes_s)
        return [Reading(0, 40.0, 10.0, 1e9), Reading(1, 60.0)]


# --- series

readings = st.builds(
    Reading,
    gpu=st.integers(0, 3),
    **{name: st.none() | st.floats(0, 1e12).map(lambda v: float(f"{v:.12g}")) for name in COUNTERS},
)  # fmt: skip


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 10**6).map(lambda n: n / 1e3), readings), min_size=1))
def test_a_series_survives_its_csv(
    tmp_path_factory: pytest.TempPathFactory, samples: list[tuple[float, Reading]]
) -> None:
    path = tmp_path_factory.mktemp("series") / "s.csv"
    series = series_of(samples)
    path.write_text(to_csv(series), encoding="utf-8")
    back = read_series(path)
    assert np.array_equal(back.time_s, series.time_s)
    assert np.array_equal(back.gpu, series.gpu)
    for name in COUNTERS:
        assert np.array_equal(back.values[name], series.values[name], equal_nan=True)


def test_a_mean_is_one_over_time() -> None:
    """By hand: at 0, 1 and 4 s, samples stand for 1, 2 and 3 s: (10 + 2 x 20 + 3 x 40) / 6."""
    series = series_of([(0.0, Reading(0, 10.0)), (1.0, Reading(0, 20.0)), (4.0, Reading(0, 40.0))])
    assert series.mean("gpu_percent") == pytest.approx(170 / 6)
    assert series.mean("power_w") is None
    assert series.largest("gpu_percent") == 40
    assert series.largest("power_w") is None


def test_windows_hold_their_start_and_not_their_end() -> None:
    series = series_of([(float(t), Reading(0, float(t))) for t in range(10)])
    assert series.window(2, 5).time_s.tolist() == [2, 3, 4]
    with pytest.raises(SchemaError, match=r"none among those from 0\.0 s to 9\.0 s"):
        series.window(20, 30)


def test_what_is_no_series_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.csv"
    for text in ("", "a,b\n1,2\n", "time_s,gpu,gpu_percent\n"):
        path.write_text(text)
        with pytest.raises(SchemaError, match="perfmodel utilization -- COMMAND"):
            read_series(path)
    path.write_text("time_s,gpu,gpu_percent\n1,0,many\n")
    with pytest.raises(SchemaError, match="expected rows of numbers; got could not convert"):
        read_series(path)
    with pytest.raises(ReportError):
        read_series(tmp_path / "none.csv")


# --- recording


def test_a_command_is_sampled_while_it_runs() -> None:
    command = [sys.executable, "-c", "import time; time.sleep(0.25); raise SystemExit(3)"]
    series, code = record_command(command, Steady(), 0.02)
    assert code == 3
    assert series.gpus == (0, 1)
    assert len(series.of(0)) >= 5
    assert 0.2 < series.time_s[-1] < 5
    assert series.mean("gpu_percent") == pytest.approx(50)


def test_a_slow_sampler_is_asked_without_a_rest() -> None:
    sampler = Steady(takes_s=0.02)
    with Recorder(sampler, 0.001) as recorder:
        time.sleep(0.2)
    assert 2 <= sampler.asked <= 11
    assert (np.diff(recorder.series().of(0).time_s) >= 0.02).all()


def test_a_sampler_that_fails_says_why() -> None:
    class Broken:
        def sample(self) -> Sequence[Reading]:
            raise RuntimeError("the GPU fell off the bus")

    with Recorder(Broken(), 0.01) as recorder:
        time.sleep(0.03)
    with pytest.raises(PerfmodelError, match="fell off the bus"):
        recorder.series()


def test_a_command_that_is_not_there_is_named() -> None:
    with pytest.raises(PerfmodelError, match="no-such-program"):
        record_command(["no-such-program-here"], Steady(), 0.1)


# --- NVML


class FakeError(Exception):
    """NVML's."""


def fake_nvml(**answers: Any) -> ModuleType:
    """A module with NVML's functions; power is a counter that this GPU does not have."""

    def unsupported(*_: object) -> None:
        raise FakeError("Not Supported")

    module = ModuleType("pynvml")
    module.__dict__.update(
        {
            "NVMLError": FakeError, "NVML_CLOCK_SM": 1, "NVML_PCIE_UTIL_TX_BYTES": 0,
            "NVML_PCIE_UTIL_RX_BYTES": 1, "nvmlInit": lambda: None,
            "nvmlDeviceGetCount": lambda: 2, "nvmlDeviceGetHandleByIndex": lambda i: i,
            "nvmlDeviceGetName": lambda handle: b"NVIDIA H200",
            "nvmlDeviceGetUtilizationRates": lambda h: SimpleNamespace(gpu=97, memory=12),
            "nvmlDeviceGetMemoryInfo": lambda h: SimpleNamespace(used=5 << 30),
            "nvmlDeviceGetClockInfo": lambda h, kind: 1980,
            "nvmlDeviceGetPowerUsage": unsupported,
            "nvmlDeviceGetPcieThroughput": lambda h, counter: 1000 * (counter + 1),
            **answers,
        }
    )  # fmt: skip
    return module


def test_nvml_s_units_become_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml())
    sampler = NvmlSampler([1])
    assert sampler.names() == {1: "NVIDIA H200"}
    (found,) = sampler.sample()
    assert found == Reading(1, 97.0, 12.0, 5.0 * 2**30, 1.98e9, None, 1e6, 2e6)
    (found,) = NvmlSampler([0], pcie=False).sample()
    assert found.pcie_tx_bytes_per_s is None


def test_what_is_missing_of_nvml_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_driver() -> None:
        raise FakeError("Driver Not Loaded")

    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(PerfmodelError, match="pip install nvidia-ml-py"):
        NvmlSampler()
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(nvmlInit=no_driver))
    with pytest.raises(PerfmodelError, match="Driver Not Loaded"):
        NvmlSampler()
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml())
    with pytest.raises(PerfmodelError, match="NVML lists 2"):
        NvmlSampler([2])


# --- idle time


def idle(path: Path) -> Idle:
    return idle_of(analyze([read(path)], Options()).fitted)


def test_idle_time_by_hand(tmp_path: Path) -> None:
    """Batches of 100 µs: copying 10 to 40 (a copy 20 to 40), forward 40 to 100 (a kernel 50 to 80).

    The GPU works 50 of 110 µs from start to start. It idles 10 µs until forward has launched its
    kernel, and 50 until the next batch's copy, most of which no range of the next batch holds. The
    trainer's six batches are those of its host: these parts are scaled to its 100 µs.
    """
    report = ReportBuilder()
    report.gpu(0)
    thread = report.thread(rank=0)
    for i in range(6):
        at = 110_000 * i
        thread.range("batch iteration", at, at + 100_000)
        thread.range("copying images host -> device", at + 10_000, at + 40_000)
        thread.memcpy("h2d", 64, (at + 11_000, at + 12_000), (at + 20_000, at + 40_000),
                      src="pageable")  # fmt: skip
        thread.range("forward", at + 40_000, at + 100_000)
        thread.kernel("gemm", (at + 41_000, at + 42_000), (at + 50_000, at + 80_000))
    found = idle(report.write(tmp_path / "i.sqlite"))
    (rank,) = found.ranks
    assert (rank.batches, rank.recorded_step_s) == (6, pytest.approx(100e-6))
    assert found.busy_share == pytest.approx(50 / 110)
    rows = {(row.range, row.cause): row.seconds for row in found.ranges}
    assert rows == {
        ("", "launch_bound"): pytest.approx(50e-6 * 100 / 110),
        ("forward", "launch_bound"): pytest.approx(10e-6 * 100 / 110),
    }


REAL = [
    BASE,
    PROFILES / "h200x1_2ranks_nsys2024.2.3.sqlite.xz",
    PROFILES / "ladder" / "document_1.sqlite.xz",
    PROFILES / "ladder" / "graph_1.sqlite.xz",
]


@pytest.mark.parametrize("path", REAL, ids=lambda path: path.name)
def test_busy_and_idle_fill_the_step(path: Path) -> None:
    """Ranges are as recorded; causes are without what the recorder adds to a step."""
    found = idle(path)
    assert found.busy_share + sum(row.share for row in found.ranges) == pytest.approx(1, abs=0.02)
    assert sum(found.shares.values()) == pytest.approx(sum(row.share for row in found.ranges))
    added_s = sum((rank.recorded_step_s or 0.0) - (rank.step_s or 0.0) for rank in found.ranks)
    by_rank = (sum(cause.seconds for cause in found.causes) + added_s) / len(found.ranks)
    assert sum(row.seconds for row in found.ranges) == pytest.approx(by_rank)
    assert 0 < found.busy_share < 1


def test_a_rare_pause_does_not_count() -> None:
    """The first evaluation of that run compiles for 1.55 s between two batches."""
    assert all((rank.recorded_step_s or 1.0) < 3e-3 for rank in idle(REAL[2]).ranks)


def test_long_gaps_that_are_usual_are_idle_time(tmp_path: Path) -> None:
    """Loading 0.2 s before every batch: the GPU works 50 ms of 250."""
    report = ReportBuilder()
    report.gpu(0)
    thread = report.thread(rank=0)
    for i in range(6):
        at = 250_000_000 * i
        thread.range("batch iteration", at, at + 50_000_000)
        thread.kernel("gemm", (at, at + 1), (at, at + 50_000_000))
    found = idle(report.write(tmp_path / "l.sqlite"))
    assert found.busy_share == pytest.approx(0.2)
    assert found.shares == {"host_compute": pytest.approx(0.8)}


def test_advice_is_that_of_the_findings() -> None:
    run = analyze([read(BASE)], Options()).fitted
    said = answer(None, [BASE]).advice
    assert len(said) == 4
    for text, finding in zip(said, run.findings, strict=False):
        assert text.startswith(f"{finding.title}, up to ")
        assert text.endswith(finding.action)


def test_a_report_without_gpu_work_is_refused(tmp_path: Path) -> None:
    path = training_report(tmp_path / "c.sqlite", Training(gpu=False))
    assert "--trace=cuda,nvtx" in fails(4, "utilization", "--report", path)


# --- GPU metrics


def test_metrics_of_a_report(tmp_path: Path) -> None:
    report = ReportBuilder("2025.3.2")
    report.thread(rank=0)
    for gpu in (0, 1):
        kind = 0x4E_0000_0000 | gpu
        for metric, name in ((3, "SMs Active [Throughput %]"), (4, "GPC Clock Frequency [MHz]")):
            report.insert("TARGET_INFO_GPU_METRICS", typeId=kind, typeName="GPU Metrics",
                          metricId=metric, metricName=name)  # fmt: skip
            for at in range(4):
                report.insert("GPU_METRICS", timestamp=1000 * at, typeId=kind, metricId=metric,
                              value=10 * gpu + at)  # fmt: skip
    found = read_metrics(report.write(tmp_path / "g.sqlite"))
    means = {(m.gpu, m.name[:3]): m.mean for m in found}
    assert means == {(0, "SMs"): 1.5, (0, "GPC"): 1.5, (1, "SMs"): 11.5, (1, "GPC"): 11.5}
    assert read_metrics(BASE) == ()


# --- the command


def test_a_series_beside_a_report(tmp_path: Path) -> None:
    path = tmp_path / "s.csv"
    samples = [(t / 10, Reading(0, 85.0 if t >= 20 else 0.0)) for t in range(60)]
    path.write_text(to_csv(series_of(samples)))
    text = succeeds(
        "utilization", path, "--report", BASE, "--window", "2:", "-o", tmp_path / "u.png"
    )
    assert "NVML says 85 %, the report 15 %" in text
    assert "-> the GPU waits for the host, up to " in text
    assert "copying images host -> device  CPU-bound" in text
    assert (tmp_path / "u.png").read_bytes().startswith(b"\x89PNG")
    found = json.loads(succeeds("utilization", path, "--report", BASE, "--window", "1:3", "--json"))
    assert found["gpus"][0]["means"]["gpu_percent"] == pytest.approx(42.5)
    assert found["report"]["busy_share"] == pytest.approx(0.147, abs=1e-3)


def test_a_low_series_alone_asks_for_a_report(tmp_path: Path) -> None:
    path = tmp_path / "s.csv"
    path.write_text(to_csv(series_of([(0.0, Reading(0, 20.0)), (1.0, Reading(0, 20.0))])))
    assert "--report REPORT" in succeeds("utilization", path)


@pytest.mark.parametrize("window", ["5", "5:1", "a:b", "-1:2", ":0"])
def test_odd_windows_are_refused(window: str, tmp_path: Path) -> None:
    path = tmp_path / "s.csv"
    path.write_text(to_csv(series_of([(0.0, Reading(0, 20.0))])))
    result = perfmodel("utilization", path, f"--window={window}")
    assert result.exit_code == 2
    assert "FROM:TO" in result.stderr


def test_a_command_is_run_saved_and_its_code_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml())
    out = tmp_path / "out"
    code = "import sys, time; time.sleep(0.1); sys.exit(len(sys.argv))"
    result = perfmodel(
        "utilization", "-o", out, "--period", "0.02", "--gpu", "0",
        "--", sys.executable, "-c", code, "--window", "x",
    )  # fmt: skip
    assert result.exit_code == 3  # of the command: its own --window came through
    assert "97.0 %" in result.stdout
    series = read_series(out / "samples.csv")
    assert series.gpus == (0,)
    assert math.isnan(series.values["power_w"][0])


def test_without_nvml_the_command_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert "nvidia-ml-py" in fails(1, "utilization", "--", sys.executable, "-c", "pass")


def test_there_is_one_source(tmp_path: Path) -> None:
    assert perfmodel("utilization").exit_code == 2
    assert perfmodel("utilization", tmp_path / "s.csv", "--", "true").exit_code == 2


def test_a_report_is_no_series(tmp_path: Path) -> None:
    path = tmp_path / "report.sqlite"
    path.write_bytes(b"SQLite format 3\0\x10\x00\xd8")
    with pytest.raises(ReportError, match=r"bytes that are no text; .* --report report\.sqlite"):
        read_series(path)
