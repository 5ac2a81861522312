"""Ceilings: spreads, lines through series, what is shown, and measuring the CPU for real."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.base.errors import PerfmodelError
from perfmodel.base.parallel import cores
from perfmodel.machines.devices import named
from perfmodel.machines.machine import Figure, Machine
from perfmodel.machines.measure import host, measurement
from perfmodel.machines.measure.host_calls import python_calls
from perfmodel.machines.measure.kernels import of_module
from perfmodel.machines.measure.measure import measure
from perfmodel.machines.measure.measurement import (
    FULL,
    QUICK,
    Found,
    MachineMeasurement,
    Products,
    Series,
    Spread,
    best_product,
    load,
    products_of_the_trainer,
    save,
)
from perfmodel.machines.measure.ranks import Ranks, connect
from perfmodel.render import machines as report
from support.cli import fails, succeeds
from support.measured_machine import MEASURED
from support.trainer_runs import environment, mpirun_command

SIZES = (4096, 65536, 1048576, 16777216)


def line(alpha_s: float, beta_s_per_byte: float, noise: float = 0.0) -> Series:
    random = np.random.default_rng(3)
    spreads = {}
    for size in SIZES:
        t = (alpha_s + size * beta_s_per_byte) * (1 + noise * random.standard_normal())
        spreads[size] = Spread(t, t, t, 9)
    return Series.of("copy", "pinned", "h2d", "host", 1, spreads)


# --- numbers


def test_a_spread_is_median_and_quartiles() -> None:
    spread = Spread.of([5.0, 1.0, 2.0, 4.0, 3.0])
    assert spread == Spread(3.0, 2.0, 4.0, 5)
    assert spread.rate(12.0, "how") == Figure(4.0, "how", 3.0, 6.0, 5)
    assert spread.figure("how") == Figure(3.0, "how", 2.0, 4.0, 5)


@given(st.floats(1e-7, 1e-3), st.floats(1e-13, 1e-8))
def test_a_line_without_noise_is_found_again(alpha: float, beta: float) -> None:
    found = line(alpha, beta).line()
    assert found is not None
    assert found.alpha_s == pytest.approx(alpha, rel=1e-6)
    assert found.beta_s_per_byte == pytest.approx(beta, rel=1e-6)


def test_every_size_counts_alike_in_a_line() -> None:
    """10 µs and 20 GB/s within 10 %, where plain least squares would lose the 10 µs."""
    found = line(1e-5, 5e-11, noise=0.03).line()
    assert found is not None
    assert found.alpha_s == pytest.approx(1e-5, rel=0.1)
    assert found.beta_s_per_byte == pytest.approx(5e-11, rel=0.1)


def test_no_line_through_two_sizes_or_below_zero() -> None:
    one = line(1e-5, 5e-11)
    assert replace(one, bytes=one.bytes[:2]).line() is None
    falling = tuple(reversed(one.median_s))
    assert replace(one, median_s=falling).line() is None


def test_rates_count_two_flops_per_multiply_add() -> None:
    """An 8 x 4 x 2 product is 128 FLOP."""
    one = Products.of("square", "tf32", "nn", {(8, 4, 2): Spread(2.0, 1.0, 4.0, 3)})
    assert one.flops_per_s == (64.0,)
    best = best_product(one, "BLAS")
    assert best.figures["gemm_flops_per_s", "tf32"] == Figure(64.0, "BLAS, 8 x 4 x 2", 32, 128, 3)
    assert best.figures["peak_flops_per_s", "tf32_tensor"].value == 64.0
    assert set(best_product(one, "BLAS", tensor=False).figures) == {("gemm_flops_per_s", "tf32")}


def test_the_trainer_s_products_have_their_flops() -> None:
    """2 D H B' of the large ones, 2 C H B' of the thin ones, at every H and B'."""
    found = {name: shapes for name, _, shapes in products_of_the_trainer(FULL.hidden, FULL.batches)}
    count = len(FULL.hidden) * len(FULL.batches)
    assert all(len(shapes) == count for shapes in found.values())
    for i, (h, b) in enumerate((h, b) for h in FULL.hidden for b in FULL.batches):
        flops = {name: 2 * np.prod(shapes[i]) for name, shapes in found.items()}
        large = {name for name, count in flops.items() if count == 2 * 784 * h * b}
        assert large == {"forward 1", "backward 3"}
        assert {count for name, count in flops.items() if name not in large} == {20 * h * b}
    assert min(FULL.hidden) == 64
    assert max(FULL.batches) == 12000


def test_a_cpu_s_products_take_seconds_on_two_slow_cores() -> None:
    """Under a minute all in all: 50 GFLOP/s of float32 were seen on two busy cores."""
    flops = sum(
        2 * m * n * k
        for _, _, shapes in products_of_the_trainer(FULL.host_hidden, FULL.host_batches)
        for m, n, k in shapes
    )
    assert flops * (FULL.repeats + 2) / 50e9 < 10


# --- what is shown


def test_measured_figures_are_held_against_the_datasheet() -> None:
    figures = {
        ("peak_flops_per_s", "float32"): 60.3e12,
        ("gemm_flops_per_s", "tf32"): 400e12,
        ("gemm_flops_per_s", "float32"): 50e12,
        ("bandwidth_bytes_per_s", "hbm"): 4e12,
        ("bandwidth_bytes_per_s", "hbm_read"): 4.4e12,
        ("bandwidth_bytes_per_s", "pcie_h2d_pageable"): 16e9,
        ("bandwidth_bytes_per_s", "nccl_bus"): 360e9,
        ("bandwidth_bytes_per_s", "mpi_bus"): 5e9,
        ("latency_s", "launch"): 2e-6,
    }
    machine = Machine.of("H", "measured", {key: Figure(v, "how") for key, v in figures.items()})
    rows = {(row.section, row.key): row for row in report.rows(machine, named("h200"))}
    ratios = {key: row.ratio for (_, key), row in rows.items()}
    assert rows["peak_flops_per_s", "float32"].ratio == pytest.approx(0.9)
    assert ratios["tf32"] == pytest.approx(400 / 494.7)
    assert rows["gemm_flops_per_s", "float32"].ratio == pytest.approx(50 / 67)
    assert ratios["hbm"] == pytest.approx(4 / 4.8)
    assert ratios["hbm_read"] == pytest.approx(4.4 / 4.8)
    assert ratios["pcie_h2d_pageable"] == pytest.approx(16 / 64)
    assert ratios["nccl_bus"] == pytest.approx(360 / 450)  # NVLink counts both directions
    assert ratios["mpi_bus"] is None
    assert ratios["launch"] is None
    assert rows["peak_flops_per_s", "float32"].ridge_flops_per_byte == pytest.approx(60.3 / 4)
    assert rows["latency_s", "launch"].ridge_flops_per_byte is None


def test_what_is_above_the_datasheet_is_said() -> None:
    """A core at its boost clock is above a peak at the base clock: the sheet's note says which."""
    found = MachineMeasurement(
        machine=Machine.of("E", "measured", {
            ("peak_flops_per_s", "float32"): Figure(9e12, "how"),
            ("bandwidth_bytes_per_s", "dram"): Figure(300e9, "how"),
        }),
        gpus=(), cpus=("AMD EPYC 9654 96-Core Processor",), date="", command="", ranks=1, cores=96,
        versions={},
    )  # fmt: skip
    _, table = report.result(found.machine, found).text
    above, sheet = table.notes
    assert above.startswith("above the datasheet: float32: ")
    assert sheet == f"datasheet: AMD EPYC 9654 (socket): {named('epyc-9654').note}"


def test_the_list_names_every_machine_and_source() -> None:
    text = succeeds("machine", "list", "--format", "csv")
    for name in ("k80", "t4", "rtx8000", "v100", "a100-40", "a100-80", "h100", "h200", "epyc-9654"):
        assert f"\n{name}," in text
    assert "float64_flops_per_s" in text.splitlines()[0]
    assert "NVIDIA H200 SXM" in succeeds("machine", "list")


def test_a_shipped_machine_is_shown_with_sources_and_ridges() -> None:
    text = succeeds("machine", "show", "v100")
    assert "NVIDIA V100 Tensor Core GPU, data sheet" in text
    assert "17.44" in text  # FLOP/B, as in the ResNet study
    assert "quartiles" not in text
    content = json.loads(succeeds("machine", "show", "v100", "--json"))
    (peak,) = [f for f in content["figures"] if f["key"] == "float32"]
    assert peak["value"] == 15.7e12
    assert peak["unit"] == "FLOP/s"
    assert peak["ridge_flops_per_byte"] == pytest.approx(17.44, abs=0.005)
    assert content["measured"] is None


def test_a_measured_machine_is_shown_with_ratios_and_series(tmp_path: Path) -> None:
    path = tmp_path / "machine.toml"
    save(replace(MEASURED, warnings=("L2: no such thing",)), path)
    text = succeeds("machine", "show", path)
    assert "89.6 %" in text  # 60 of 67 TFLOP/s
    assert "83.3 %" in text  # 4 of 4.8 TB/s
    assert "By size" in text
    assert "GEMMs" in text
    content = json.loads(succeeds("machine", "show", path, "--json"))
    assert content["datasheet"] == "NVIDIA H200 SXM"
    assert content["measured"]["series"][0]["bytes"] == [4096, 65536, 1048576]
    assert content["measured"]["warnings"] == ["L2: no such thing"]


def test_a_machine_that_is_unknown_is_refused(tmp_path: Path) -> None:
    assert "see perfmodel machine list" in fails(1, "machine", "show", "nothing")
    assert "measure again" in fails(6, "machine", "show", tmp_path / "none.toml")


# --- measuring


SMALL = replace(QUICK, host_bytes=8 << 20, host_batches=(64,), host_squares=(64,))


def test_the_cpu_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measurement, "QUICK", SMALL)
    out = tmp_path / "cpu.toml"
    text = succeeds("machine", "measure", "--quick", "--device", "cpu", "-o", out)
    assert text.endswith(f"Written: {out}\n")
    found = load(out)
    assert found.gpus == ()
    assert found.cpus == (host.name(),)
    assert not found.warnings
    assert found.cores == cores()
    machine = found.machine
    assert set(machine.gemm_flops_per_s) == {"float32", "float64"}
    assert set(machine.bandwidth_bytes_per_s) == {"dram", "dram_copy", "dram_triad", "l2"}
    assert all(1e8 < value < 1e14 for value in machine.bandwidth_bytes_per_s.values())
    assert all(1e7 < value < 1e15 for value in machine.gemm_flops_per_s.values())
    assert {p.name for p in found.products} >= {"square", "forward 1", "backward 3"}
    assert set(found.elapsed_s) == {
        "memory", "products float32", "products float64", "trainer's products float32",
        "host calls",
    }  # fmt: skip
    assert {"python", "numpy", "perfmodel"} <= set(found.versions)


def test_a_part_that_comes_too_late_is_left_out(tmp_path: Path) -> None:
    out = tmp_path / "late.toml"
    succeeds("machine", "measure", "--quick", "--device", "cpu", "--seconds", 1e-9, "-o", out)
    found = load(out)
    assert found.machine.figures == {}
    assert len(found.warnings) == 5
    assert all("--seconds" in warning for warning in found.warnings)


def test_a_part_that_fails_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(effort: object) -> Found:
        raise MemoryError("no room")

    monkeypatch.setattr(host, "memory", fail)
    said: list[str] = []
    only = ["memory", "products float32", "products float64"]
    *_, last = measure(Ranks(), SMALL, device="cpu", say=said.append, only=only)
    assert last.warnings == ("memory: MemoryError: no room",)
    assert last.machine.bandwidth_bytes_per_s == {}
    assert set(last.machine.gemm_flops_per_s) == {"float32", "float64"}
    assert said[0] == "memory: left out: MemoryError: no room"


def test_a_triad_is_one() -> None:
    a, b = (np.random.default_rng(i).random(40_000) for i in range(2))
    out = np.zeros(40_000)
    host._triad(a, b, out, slice(1, 39_999))
    assert (out[1:-1] == a[1:-1] + 0.5 * b[1:-1]).all()
    assert out[0] == out[-1] == 0


def test_a_folder_that_is_missing_is_said_before_measuring(tmp_path: Path) -> None:
    said = fails(1, "machine", "measure", "--device", "cpu", "-o", tmp_path / "no" / "m.toml")
    assert "create the folder first" in said


def test_mpi_that_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", None)
    with pytest.raises(PerfmodelError, match="expected mpi4py"):
        connect({"OMPI_COMM_WORLD_SIZE": "2"})
    assert connect({}).size == 1


@pytest.mark.slow
@pytest.mark.mpi
def test_ranks_measure_all_reduces_and_the_first_writes(tmp_path: Path) -> None:
    out = tmp_path / "ranks.toml"
    command = mpirun_command(2, "-m", "perfmodel", "machine", "measure")
    done = subprocess.run(
        [*command, "--quick", "--device", "cpu", "-o", str(out)],
        env=environment(), capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(f"Written: {out}\n") == done.stdout.count("Measured ") == 1
    assert done.stderr.count("MPI all-reduce:") == 1
    found = load(out)
    assert found.ranks == 2
    assert "mpi" in found.versions
    (series,) = found.series
    assert (series.kind, series.memory, series.ranks) == ("mpi_allreduce", "host", 2)
    assert series.bytes == QUICK.reduce_bytes
    bus = found.machine.bandwidth_bytes_per_s["mpi_bus"]
    assert bus == pytest.approx(series.best_bytes_per_s)  # 2 (p - 1) / p is 1 of two ranks


@pytest.mark.slow
@pytest.mark.mpi
def test_all_ranks_end_when_the_first_cannot_write(tmp_path: Path) -> None:
    command = mpirun_command(2, "-m", "perfmodel", "machine", "measure")
    done = subprocess.run(
        [*command, "--quick", "--device", "cpu", "-o", str(tmp_path / "no" / "m.toml")],
        env=environment(), capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode != 0
    assert "create the folder first" in done.stderr


def test_host_calls_are_timed_alone_and_with_mpi() -> None:
    """A fixed piece of Python takes a fraction of a millisecond to some; it is on a quiet core."""
    found = python_calls(Ranks(), 3)
    figure = found.figures["latency_s", "python"]
    assert set(found.figures) == {("latency_s", "python")}
    assert 1e-5 < figure.value < 0.1
    assert figure.repeats == 3


def test_only_some_parts_are_measured() -> None:
    *_, found = measure(Ranks(), QUICK, device="cpu", only=["host calls"])
    assert set(found.elapsed_s) == {"host calls"}
    with pytest.raises(PerfmodelError, match="take from memory, products float32"):
        list(measure(Ranks(), QUICK, device="cpu", only=["nothing"]))


def test_a_module_without_kernels_is_refused() -> None:
    with pytest.raises(PerfmodelError, match="expected math to have kernels"):
        of_module("math")
    with pytest.raises(PerfmodelError, match="set PYTHONPATH"):
        of_module("no.such.module")
