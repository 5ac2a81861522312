"""Machines: the published peaks, and ceilings derived from what a report says of its GPU."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from perfmodel.base.errors import PerfmodelError
from perfmodel.machines.devices import datasheet, find, known, named, shipped
from perfmodel.machines.machine import SECTIONS
from perfmodel.readers import read
from support.foreign_reports import SHIPPED

PEAKS = [  # data sheets: dense TFLOP/s and GB/s
    ("k80", {"float64": 2.91, "float32": 8.73}, 480),
    ("t4", {"float32": 8.1, "float16_tensor": 65}, 320),
    ("rtx8000", {"float32": 16.3}, 672),
    ("v100", {"float64": 7.8, "float32": 15.7, "float16_tensor": 125}, 900),
    ("v100-pcie", {"float64": 7, "float32": 14, "float16_tensor": 112}, 900),
    ("a100-40", {"float64": 9.7, "float32": 19.5, "tf32_tensor": 156, "float16_tensor": 312}, 1555),
    ("a10g", {"float32": 35, "bfloat16_tensor": 70}, 600),
    ("l40s", {"float32": 91.6, "bfloat16_tensor": 362.05, "float8_tensor": 733}, 864),
    ("rtx4090", {"float32": 82.6, "float16_tensor": 165.2, "float16_tensor_float16": 330.3}, 1008),
    ("rtx5090", {"float32": 104.8, "bfloat16_tensor": 209.5, "float4_tensor": 1676}, 1792),
    ("h100", {"float64": 34, "float32": 67, "tf32_tensor": 494.7, "float16_tensor": 989.4}, 3350),
    ("h100-pcie", {"float32": 51.2, "bfloat16_tensor": 756, "float8_tensor": 1513}, 2000),
    ("h20", {"bfloat16_tensor": 148, "float8_tensor": 296}, 4000),
    ("h200", {"float64": 34, "float32": 67, "tf32_tensor": 494.7, "float16_tensor": 989.4}, 4800),
    ("b200", {"bfloat16_tensor": 2250, "float8_tensor": 4500, "float4_tensor": 9000}, 8000),
    ("gb200", {"bfloat16_tensor": 2500, "float8_tensor": 5000, "float4_tensor": 10000}, 8000),
    ("mi250x", {"float32": 23.95, "float16_tensor": 191.5}, 1638.4),
    ("mi300x", {"float32": 163.4, "bfloat16_tensor": 1307.4, "float8_tensor": 2614.9}, 5300),
    ("mi355x", {"float64": 78.6, "bfloat16_tensor": 2516.6, "float4_tensor": 10066}, 8000),
]  # fmt: skip


@pytest.mark.parametrize(("name", "peaks", "hbm"), PEAKS, ids=[p[0] for p in PEAKS])
def test_published_peaks(name: str, peaks: dict[str, float], hbm: float) -> None:
    machine = named(name)
    assert machine.bandwidth_bytes_per_s["hbm"] == pytest.approx(hbm * 1e9)
    for precision, tera in peaks.items():
        assert machine.peak_flops_per_s[precision] == pytest.approx(tera * 1e12)


@pytest.mark.parametrize(("name", "ridge"), [("v100", 17.44), ("a100-40", 12.54)])
def test_ridge_points_of_the_resnet_study(name: str, ridge: float) -> None:
    machine = named(name)
    found = machine.peak_flops_per_s["float32"] / machine.bandwidth_bytes_per_s["hbm"]
    assert found == pytest.approx(ridge, abs=0.005)


def test_three_tf32_products_stand_for_one_of_float32() -> None:
    for machine in known():
        tensor = machine.peak_flops_per_s.get("tf32_tensor")
        assert machine.peak_flops_per_s.get("tf32x3_tensor") == (tensor and tensor / 3)
        assert machine.peak_flops_per_s.get("tf32x2_tensor") == (tensor and tensor / 2)


def test_no_peak_is_one_with_sparsity() -> None:
    """989 TFLOP/s (TF32) and 1979 (fp16) are widely copied for the H100: twice the dense ones."""
    for machine in known():
        peaks = machine.peak_flops_per_s
        newest = machine.chip is not None and machine.chip.target in (
            "sm_100", "sm_103", "gfx950",
        )  # fmt: skip
        assert peaks.get("tf32_tensor", 0.0) < 900e12 or newest
        assert peaks.get("float16_tensor", 0.0) < 1500e12 or newest


def test_every_machine_names_its_source_and_is_positive() -> None:
    names = [m.name for m in known()]
    assert len(names) >= 80
    assert names == sorted(names)
    assert len(set(names)) == len(names)
    for machine in known():
        assert machine.source
        assert all(v > 1e11 for v in machine.peak_flops_per_s.values()), machine.name
        assert all(1e9 < v < 1e14 for v in machine.bandwidth_bytes_per_s.values())


@pytest.mark.parametrize("report", SHIPPED, ids=lambda p: p.stem)
def test_the_gpus_of_real_reports_are_known(report: Path) -> None:
    for gpu in read(report, parts=()).gpus:
        machine = find(gpu)
        assert "H200" in machine.name
        assert machine.peak_flops_per_s["float32"] == 67e12
        said = gpu.memory_bandwidth_bytes_per_s
        assert said is not None
        assert machine.bandwidth_bytes_per_s["hbm"] == pytest.approx(said, rel=0.01)


# TFLOP/s; L2 in KiB; reading it in GB/s: 2048 B per clock of 1.53 GHz, 5120 B of 1.41 GHz
MORE_PEAKS = [
    ("v100", {"float16": 31.4}, 6144, 3133),
    ("t4", {}, 4096, None),
    ("rtx8000", {"float16": 32.6, "float16_tensor": 130.5}, 6144, None),
    ("a100-40", {"float16": 78, "float64_tensor": 19.5, "bfloat16_tensor": 312}, 40960, 7219),
    ("a100-80", {"float16": 78, "float64_tensor": 19.5, "bfloat16_tensor": 312}, 40960, 7219),
    ("h100", {"float16": 133.8, "float64_tensor": 67, "float8_tensor": 1978.9}, 51200, None),
    ("h200", {"float16": 133.8, "float64_tensor": 67, "float8_tensor": 1978.9}, 61440, None),
]  # fmt: skip


@pytest.mark.parametrize(("name", "peaks", "l2", "reading"), MORE_PEAKS, ids=lambda v: str(v))
def test_published_caches_and_other_types(
    name: str, peaks: dict[str, float], l2: int, reading: float | None
) -> None:
    machine = named(name)
    for precision, tera in peaks.items():
        assert machine.peak_flops_per_s[precision] == pytest.approx(tera * 1e12)
    assert machine.capacity_bytes["l2"] == l2 * 1024
    found = machine.bandwidth_bytes_per_s.get("l2_read")
    assert found == (reading and pytest.approx(reading * 1e9, rel=1e-3))


def test_the_cpu_s_peaks_follow_from_its_clock() -> None:
    """96 cores at 2.4 GHz, two 256-bit multiply-adds per cycle; 12 channels of 4.8 GT/s, 8 B."""
    epyc = named("epyc-9654")
    assert epyc.peak_flops_per_s["float64"] == pytest.approx(96 * 2.4e9 * 16, rel=1e-3)
    assert epyc.peak_flops_per_s["float32"] == pytest.approx(96 * 2.4e9 * 32, rel=1e-3)
    assert epyc.bandwidth_bytes_per_s == {"dram": pytest.approx(12 * 4.8e9 * 8)}


def test_every_figure_has_a_source_and_a_place() -> None:
    for machine in known():
        for (section, key), figure in machine.figures.items():
            assert getattr(machine, section)[key] == figure.value
            assert len(figure.source) > 5
            assert figure.repeats is None
        count = sum(len(getattr(machine, section)) for section in SECTIONS)
        derived = 2 * ("tf32_tensor" in machine.peak_flops_per_s)  # of split TF32
        assert count == len(machine.figures) + derived


def test_l2_of_the_h200_is_what_reports_say() -> None:
    l2 = named("h200").figures["capacity_bytes", "l2"]
    assert "TARGET_INFO_GPU" in l2.source
    for path in SHIPPED:
        with sqlite3.connect(path) as report:
            (found,) = report.execute("SELECT DISTINCT l2CacheSize FROM TARGET_INFO_GPU").fetchone()
        assert found == l2.value


@pytest.mark.parametrize("name", ["h200", "H200", "NVIDIA H200 SXM", "nvidia h200"])
def test_a_machine_is_found_by_its_names(name: str) -> None:
    assert named(name) is datasheet(["something else", "NVIDIA H200"])


@pytest.mark.parametrize(("name", "choices"), [
    ("a100", "a100-40, a100-80, a100-pcie-40,"), ("", "v100"), ("nothing", "epyc-9654"),
])  # fmt: skip
def test_a_name_of_none_or_several_is_refused(name: str, choices: str) -> None:
    with pytest.raises(PerfmodelError, match=choices):
        named(name)


def test_short_names_are_unique_and_lead_back() -> None:
    assert [machine for _, machine in shipped()] == list(known())
    assert all(named(name) is machine for name, machine in shipped())
    assert datasheet(["NVIDIA Imaginary"]) is None


@pytest.mark.parametrize("name", ["nvidia a100-sxm4-40gb", "A100-40", "NVIDIA A100 40 GB SXM"])
def test_a_machine_is_found_by_the_name_that_cuda_reports(name: str) -> None:
    assert named(name) is named("a100-40")
