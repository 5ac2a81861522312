"""Machines: the published peaks, and ceilings derived from what a report says of its GPU."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from perfmodel.base.errors import PerfmodelError
from perfmodel.base.gpu import Gpu
from perfmodel.machines.machine import SECTIONS, datasheet, find, known, named, shipped
from perfmodel.readers import read
from support.foreign_reports import SHIPPED

UNKNOWN = Gpu(0, "NVIDIA Imaginary", 100, 1_500_000_000, 10**12, None, None, (8, 0), None)

PEAKS = [  # NVIDIA's data sheets: dense TFLOP/s and GB/s
    ("K80", {"float64": 2.91, "float32": 8.73}, 480),
    ("T4", {"float32": 8.1, "float16_tensor": 65}, 320),
    ("RTX 8000", {"float32": 16.3}, 672),
    ("V100", {"float64": 7.8, "float32": 15.7, "float16_tensor": 125}, 900),
    ("A100", {"float64": 9.7, "float32": 19.5, "tf32_tensor": 156, "float16_tensor": 312}, 1555),
    ("H100", {"float64": 34, "float32": 67, "tf32_tensor": 494.7, "float16_tensor": 989.4}, 3350),
    ("H200", {"float64": 34, "float32": 67, "tf32_tensor": 494.7, "float16_tensor": 989.4}, 4800),
]  # fmt: skip


@pytest.mark.parametrize(("name", "peaks", "hbm"), PEAKS, ids=[p[0] for p in PEAKS])
def test_published_peaks(name: str, peaks: dict[str, float], hbm: float) -> None:
    machine = next(
        m for m in known() if name in m.name and m.bandwidth_bytes_per_s["hbm"] == hbm * 1e9
    )
    for precision, tera in peaks.items():
        assert machine.peak_flops_per_s[precision] == pytest.approx(tera * 1e12)


@pytest.mark.parametrize(("name", "ridge"), [("V100", 17.44), ("A100", 12.54)])
def test_ridge_points_of_the_resnet_study(name: str, ridge: float) -> None:
    machine = next(
        m for m in known() if name in m.name and m.bandwidth_bytes_per_s["hbm"] <= 1555e9
    )
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
        assert peaks.get("tf32_tensor", 0.0) < 900e12
        assert peaks.get("float16_tensor", 0.0) < 1500e12 or "B200" in machine.name


def test_every_machine_names_its_source_and_is_positive() -> None:
    names = [m.name for m in known()]
    assert len(names) >= 7
    assert names == sorted(names)
    assert len(set(names)) == len(names)
    for machine in known():
        assert machine.source
        assert all(v > 1e11 for v in machine.peak_flops_per_s.values())
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


def test_another_gpu_s_ceilings_follow_from_the_report() -> None:
    """100 multiprocessors of 64 cores at 1.5 GHz, 2 FLOP each and cycle: 19.2 TFLOP/s."""
    machine = find(UNKNOWN)
    assert machine.name == "NVIDIA Imaginary"
    assert machine.peak_flops_per_s == {"float32": 19.2e12}
    assert machine.bandwidth_bytes_per_s == {"hbm": 1e12}
    assert "TARGET_INFO_GPU" in machine.source


def test_what_the_report_does_not_say_is_missing() -> None:
    for change in ({"sm_count": None}, {"clock_hz": None}, {"compute_capability": None},
                   {"compute_capability": (99, 9)}):  # fmt: skip
        assert find(replace(UNKNOWN, **change)).peak_flops_per_s == {}
    assert find(replace(UNKNOWN, memory_bandwidth_bytes_per_s=None)).bandwidth_bytes_per_s == {}


def test_the_derived_peak_of_a_known_gpu_agrees_with_its_data_sheet() -> None:
    """An H200: 132 multiprocessors of 128 cores at 1.98 GHz."""
    h200 = replace(
        UNKNOWN, name="not in the table", sm_count=132, clock_hz=1_980_000_000,
        compute_capability=(9, 0),
    )  # fmt: skip
    assert find(h200).peak_flops_per_s["float32"] == pytest.approx(67e12, rel=2e-3)


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


@pytest.mark.parametrize(("name", "choices"), [("a100", "a100-40, a100-80,"), ("", "v100"),
                                               ("nothing", "epyc-9654")])  # fmt: skip
def test_a_name_of_none_or_several_is_refused(name: str, choices: str) -> None:
    with pytest.raises(PerfmodelError, match=choices):
        named(name)


def test_short_names_are_unique_and_lead_back() -> None:
    assert [machine for _, machine in shipped()] == list(known())
    assert all(named(name) is machine for name, machine in shipped())
    assert datasheet(["NVIDIA Imaginary"]) is None


@pytest.mark.parametrize("name", ["nvidia a100-sxm4-40gb", "A100-40", "NVIDIA A100 40 GB"])
def test_a_machine_is_found_by_the_name_that_cuda_reports(name: str) -> None:
    assert named(name) is named("a100-40")
