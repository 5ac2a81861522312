"""The GEMM benchmarks: their problems and floors, a rehearsal, and how ncu's tables are read."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from writeup.counters import between

from benchmarks.gemm import counters as gemm_ncu
from benchmarks.gemm.problems import Problem, everything, floor_s, network, worth_measuring
from perfmodel.readers.ncu import Launch, parse
from support.folders import ROOT
from trainer.kernels import GEMMS

WIDE = """==PROF== Connected to process 77
something the program says
==PROF== Profiling "marker": 0%....50%....100% - 3 passes
"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","dram__bytes_read.sum","dram__bytes_write.sum","gpu__time_duration.sum","smsp__sass_thread_inst_executed_op_ffma_pred_on.sum"
"","","","","","","","","byte","Kbyte","nsecond","inst"
"0","77","python","h","before(float)","1","7","(1, 1, 1)","1","1","1","1"
"1","77","python","h","marker()","1","7","(1, 1, 1)","0","0","1,024","0"
"2","77","python","h","gemm_tiled","1","7","(32, 32, 1)","11,056,384","2.5","38,016.00","1,208,975,360"
"3","77","python","h","marker()","1","7","(1, 1, 1)","0","0","1,000","0"
"4","77","python","h","void cutlass::Kernel<a, b>(Params)","1","7","(128, 1, 1)","100","1","1,500","10"
"5","77","python","h","splitKreduce<int>","1","7","(128, 1, 1)","200","n/a","500","1"
==PROF== Disconnected from process 77
"""  # noqa: E501


def test_rows_between_markers_are_one_product() -> None:
    parts = between(parse(WIDE).launches, gemm_ncu.MARKER)
    assert [len(part) for part in parts] == [1, 2]
    counted = gemm_ncu.count(parts[1])
    assert counted["time_s"] == pytest.approx(2e-6)
    assert counted["dram_bytes"] is None  # not 301: ncu did not count a part
    assert counted["kernels"][1] == "splitKreduce<int>"


def test_an_fma_is_two_operations_and_tensor_operations_are_added() -> None:
    metrics: dict[str, float | None] = dict.fromkeys(gemm_ncu.METRICS, 0.0)
    metrics["smsp__sass_thread_inst_executed_op_ffma_pred_on.sum"] = 100.0
    metrics["smsp__sass_thread_inst_executed_op_dadd_pred_on.sum"] = 5.0
    metrics["sm__ops_path_tensor_src_tf32_dst_fp32.sum"] = 1000.0
    counted = gemm_ncu.count([Launch("k", (), metrics)])
    assert counted["flops"] == 2 * 100 + 5 + 1000
    assert counted["tensor_flops"] == 1000


def test_the_networks_products_have_the_model_s_flops() -> None:
    """2 B' H (2 D + 3 C), as perfmodel's `full` count: docs/model.md."""
    h, b = 512, 1500
    assert sum(p.flops for p in network(h, b)) == 2 * b * h * (2 * 784 + 3 * 10)


def test_floors_by_hand() -> None:
    square = Problem("square", 8192, 8192, 8192)
    assert floor_s(square, "float32", 6e12) == pytest.approx(2 * 8192**3 / 67e12)
    thin = Problem("backward GEMM 2", 10, 4096, 12000)  # 197 MB: HBM
    assert floor_s(thin, "float32", 6e12) == pytest.approx(
        4 * (10 * 12000 + 12000 * 4096 + 10 * 4096) / 4.8e12
    )
    small = Problem("backward GEMM 2", 10, 512, 1500)  # 3.2 MB: L2
    assert floor_s(small, "float32", 6e12) == pytest.approx(
        4 * (10 * 1500 + 1500 * 512 + 10 * 512) / 6e12
    )


def test_everything_is_measured_by_its_kernels() -> None:
    problems = everything()
    assert len(problems) == 6 + 5 * 5
    for problem in problems:
        assert worth_measuring("cublas", problem)
        assert worth_measuring("hierarchical", problem)
        assert worth_measuring("thin", problem) == (10 in (problem.m, problem.n, problem.k))


def test_a_rehearsal_writes_a_row_for_every_kernel(tmp_path: Path) -> None:
    out = tmp_path / "gemm.json"
    command = [sys.executable, "-m", "benchmarks.gemm", "--dry-run", "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    rows = found["rows"]
    assert {r["kernel"] for r in rows} == set(GEMMS)
    assert {r["dtype"] for r in rows} == {"float32", "tf32", "tf32x3", "float64"}
    keys = {"kernel", "m", "n", "k", "transposes", "dtype", "median_s", "spread", "peer_median_s",
            "floor_s", "error"}  # fmt: skip
    assert all(keys <= set(r) for r in rows)
    assert all(r["error"] < 1e-6 and r["median_s"] > 0 for r in rows)
    assert {"device", "versions", "date", "command", "ceilings"} <= set(found)
    able = {math: {r["kernel"] for r in rows if r["dtype"] == math} for math in ("tf32", "tf32x3")}
    assert able["tf32"] == {"hierarchical", "cublas"}
    assert able["tf32x3"] == {"hierarchical", "cublas"}  # cuBLAS's float32 beside it
