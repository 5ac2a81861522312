"""Every real table of Nsight Compute in tests/golden/ncu is read, and says what can be."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.common.folders import TESTS
from perfmodel.analysis.counters import as_counted, batches_of, by_kernel, by_range, compare, place
from perfmodel.machines.devices import named
from perfmodel.readers.ncu import read_counters

TABLES = sorted((TESTS / "golden" / "ncu").glob("*.csv*"))


def test_there_are_tables():
    assert TABLES


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.name)
def test_a_real_table_is_read(path: Path):
    read = read_counters([path])
    assert read.warnings == ()
    h200 = named("h200")
    for found in by_kernel(read.launches):
        assert found.name
        assert found.flops is not None
        assert found.flops >= 0
        above = place(found, h200).above
        assert not [word for word in above if "L1" not in word and "L2" not in word]
        values = [v for v in found.counts.values() if v is not None]
        assert values
        assert min(values) >= 0


SIZES = {"D": 784, "H": 512, "C": 10, "B": 3000, "p": 1, "b": 4}
RATIOS = {
    "cublas": (1.0039, 1.0625),
    "cublas_tf32": (1.0462, 1.3101),
    "hierarchical": (1.0033, 1.0651),
    "fused_tf32x3": (2.1217, 2.3202),  # two products of TF32 numbers for one of float32
}


@pytest.mark.parametrize(("name", "ratios"), RATIOS.items())
def test_the_trainer_counts_what_the_formulas_say_and_its_tiles(name, ratios):
    (path,) = (path for path in TABLES if path.name == f"h200_{name}.csv.xz")
    launches = read_counters([path]).launches
    assert {one.device for one in launches} == {"NVIDIA H200"}
    assert {one.ranges[:2] for one in launches} == {("GPU parallel train", "batch iteration")}
    ranges = by_range(launches)
    batches = batches_of(launches, "batch iteration")
    found = {
        one.counted.name: one.flops_ratio
        for one in compare(ranges, as_counted(None, ranges), SIZES, batches)
    }
    assert batches == 3
    assert found["forward GEMM 1"] == pytest.approx(ratios[0], abs=1e-4)
    assert found["backward GEMM 3"] == pytest.approx(ratios[1], abs=1e-4)
    assert found["step"] == pytest.approx(1.0006 if "fused" not in name else 1.2508, abs=1e-4)


def test_tma_passes_the_counter_of_l1_by():
    (path,) = (path for path in TABLES if path.name == "h200_cublas_tf32.csv.xz")
    past = {one.name for one in by_range(read_counters([path]).launches) if one.past_l1}
    assert past == {"forward GEMM 1", "backward GEMM 3"}


def test_constants_loaded_by_half_instructions_are_no_operations():
    (path,) = (path for path in TABLES if path.name == "h200_cublas.csv.xz")
    for one in by_kernel(read_counters([path]).launches):
        assert one.flops_of("fp16") == 0.0
