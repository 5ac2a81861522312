"""Formulas beside counters: what is compared, how batches are told, and the words for why."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.common import results
from benchmarks.common.folders import RESULTS
from perfmodel.analysis.counters import (
    METRICS,
    as_counted,
    batches_of,
    by_range,
    compare,
    explain,
    warnings,
)
from perfmodel.base.errors import WorkloadError
from perfmodel.programs.mlp.mlp import mlp
from perfmodel.readers.ncu import Launch
from support.build_ncu import FFMA, L2, READ, TF32, TIME, WRITE, Kernel, wide
from support.cli import perfmodel, succeeds

VALUES = {"D": 784, "H": 512, "C": 10, "B": 3000, "p": 1, "b": 4}
FIRST = 2 * 784 * 512 * 3000
OPERANDS = 4 * (784 * 512 + 784 * 3000 + 512 * 3000)
BATCH = "batch iteration"


def launch(name: str = "forward GEMM 1", kernel: str = "sgemm", **counts: float | None) -> Launch:
    names = {"time": TIME, "read": READ, "write": WRITE, "l2": L2, "ffma": FFMA, "tf32": TF32}
    full: dict[str, float | None] = dict.fromkeys(METRICS, 0.0)
    return Launch(kernel, (BATCH, name), full | {names[k]: v for k, v in counts.items()})


def words(*launches: Launch) -> str:
    (one,) = compare(by_range(launches), mlp(), VALUES, 1)
    return "; ".join(explain(one))


@given(batches=st.integers(1, 9), per_batch=st.lists(st.integers(1, 4), min_size=1, max_size=5))
def test_batches_are_told_by_a_kernel_that_runs_once_in_each(batches, per_batch):
    launches = [launch(kernel=f"k{i}") for i, n in enumerate([1, *per_batch]) for _ in range(n)]
    before = [Launch("setup", (), {})] * 7
    assert batches_of([*before, *launches * batches], BATCH) == batches


def test_batches_are_told_by_phases_though_a_kernel_ran_once():
    ranges = [(BATCH, "forward"), (BATCH, "forward", "forward GEMM 1"), (BATCH, "step")]
    batch = [Launch("k", ranges[0], {}), Launch("gemm", ranges[1], {}), Launch("k", ranges[2], {})]
    assert batches_of([Launch("fill", ranges[0], {}), *batch * 3], BATCH) == 3


def test_a_batch_is_compared_however_many_were_counted():
    launches = [launch(ffma=FIRST / 2, read=OPERANDS, l2=3.0 * OPERANDS)] * 3
    (one,) = compare(by_range(launches), mlp(), VALUES, 3)
    assert (one.model_flops, one.flops, one.flops_ratio) == (FIRST, FIRST, 1.0)
    assert (one.model_dram_bytes, one.dram_ratio) == (OPERANDS, 1.0)
    assert explain(one) == (
        "as many operations as the formulas count",
        "L2 moved 3.0 times DRAM's bytes: blocks read operands again",
    )


def test_tiles_are_padding():
    assert words(launch(ffma=1_208_975_360.0)).startswith(
        "0.39 % more operations than needed: tiles that extend beyond the matrices"
    )


def test_tensor_cores_are_what_scalar_counters_miss():
    said = words(launch(tf32=1.02 * FIRST, ffma=1000.0))
    assert "tensor cores did 100.0 % of the operations" in said
    assert "scalar units alone would say 0.0 % of the formulas'" in said
    assert "2.00 % more operations than needed" in said


def test_tensor_cores_that_were_not_counted_are_said():
    scalar = {m: v for m, v in launch(ffma=1e6).metrics.items() if "tensor" not in m}
    blind = Launch("gemm_tn", (BATCH, "forward GEMM 1"), scalar)
    said = words(blind)
    assert said.startswith("scalar units did 0.1 % of the operations, and those of tensor cores")
    assert "collect sm__ops_path_tensor_src_*" in said
    (warned,) = warnings(compare(by_range([blind]), mlp(), VALUES, 1))
    assert f"forward GEMM 1: {said}".startswith(warned)
    assert "those of tensor cores were not counted" in warned
    assert warnings(compare(by_range([launch(ffma=FIRST / 2)]), mlp(), VALUES, 1)) == ()


@pytest.mark.parametrize("products", [2, 3])
def test_split_products_are_said(products):
    said = words(launch(tf32=1.01 * products * FIRST))
    assert f"{products} GEMMs of TF32 numbers stand for one of float32" in said
    assert "1.00 % more operations" in said


COUNTED = results.read(RESULTS / "gemm_counters.json")["rows"]


@pytest.mark.parametrize("math", ["float32", "tf32", "tf32x3"])
@pytest.mark.parametrize("kernel", ["cublas", "hierarchical"])
def test_what_an_h200_counted_of_the_networks_products_is_explained(kernel, math):
    """H = 512, B' = 1500: a product with C = 10 fills a tenth to a third of its tiles."""
    rows = [r for r in COUNTED if (r["kernel"], r["dtype"], r["H"]) == (kernel, math, 512)]
    launches = [
        launch(r["what"], r["kernels"][0], time=r["time_s"], ffma=r["scalar_flops"] / 2,
               tf32=r["tensor_flops"], read=r["dram_bytes"], l2=r["l2_bytes"])
        for r in rows
    ]  # fmt: skip
    assert bool(rows) == (math != "tf32x3" or kernel == "hierarchical")
    if not rows:
        return
    found = compare(by_range(launches), mlp(), VALUES | {"B": 1500}, 1)
    said = {one.counted.name: explain(one) for one in found}
    assert len(said) == 5
    for name, sentences in said.items():
        thin = name not in ("forward GEMM 1", "backward GEMM 3")
        text = "; ".join(sentences)
        assert ("3 GEMMs of TF32" in text) == (math == "tf32x3")
        assert ("tensor cores did" in text) == (math != "float32")
        assert "exp and division" not in text
        assert not thin or "a matrix is narrower than the tiles" in text


def test_functions_are_several_instructions():
    said = words(launch("forward", "sigmoid", ffma=20 * 512 * 3000.0))
    assert "times the formulas' operations: exp and division are several instructions" in said


def test_bytes_that_stay_in_l2_and_that_are_read_again():
    assert "DRAM moved 40 % less" in words(launch(read=0.6 * OPERANDS))
    assert "DRAM moved 2.00 times the bytes" in words(launch(read=2.0 * OPERANDS))
    assert "DRAM" not in words(launch(read=None, ffma=FIRST / 2))


def test_sizes_of_another_run_are_asked_about():
    def said(times: float, **values: int) -> tuple[str, ...]:
        ranges = by_range([launch(ffma=times * FIRST / 2), launch("step", "descend")])
        return warnings(compare(ranges, mlp(), VALUES | values, 1))

    assert said(1.0) == said(1.3) == ()
    for found in (said(2.0), said(0.5), said(1.0, p=2), said(1.0, B=9000)):
        assert [s.partition(": ")[0] for s in found] == ["forward GEMM 1"]
        assert "check that the sizes, --ranks, --dtype and --batches" in found[0]


def test_fewer_operations_are_other_sizes():
    assert "50.0 % fewer operations" in words(launch(ffma=FIRST / 4))


def test_fused_steps_are_told_by_the_ranges():
    plain = [launch(), launch("forward"), launch("forward GEMM 2")]
    assert as_counted(None, by_range(plain)).ranges == mlp().ranges
    fused = [launch(kernel="gemm"), launch("forward", "output_layer")]
    assert as_counted(None, by_range(fused)).ranges == mlp(fused="all").ranges
    products = [launch(kernel="cutlass_tensorop"), launch("forward", "output_layer")]
    assert as_counted(None, by_range(products)).ranges == mlp(fused="products").ranges
    own = mlp("document")
    assert as_counted(own, by_range(plain)) is own


def test_no_range_with_formulas_is_refused():
    with pytest.raises(WorkloadError, match="got elsewhere; collect with ncu --nvtx"):
        compare(by_range([launch("elsewhere")]), mlp(), VALUES, 1)


def test_the_command_compares_file_by_file(tmp_path: Path):
    for name, padding in (("a.csv", 1.0), ("b.csv", 1.5)):
        counts = dict.fromkeys(METRICS, 0.0) | {TIME: 1000.0, FFMA: padding * FIRST / 2}
        (tmp_path / name).write_text(wide([Kernel("gemm", counts, (BATCH, "forward GEMM 1"))] * 2))
    sizes = ["-D", 784, "-H", 512, "-C", 10, "-B", 3000]
    both = [tmp_path / "a.csv", tmp_path / "b.csv"]
    found = json.loads(succeeds("counters", *both, *sizes, "--json"))["formulas"]
    assert [(f["source"], f["batches"], f["flops"]["ratio"]) for f in found] == [
        ("a.csv", 2, 1.0),
        ("b.csv", 2, 1.5),
    ]
    text = succeeds("counters", both[0], *sizes, "--batches", 1)
    assert "per step (counted: 1)" in text
    assert "2.0000" in text
    assert perfmodel("counters", both[0], "-D", 784).exit_code == 5
