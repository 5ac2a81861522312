"""The GEMM benchmarks: their problems and floors, a rehearsal, and how ncu's tables are read."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
from writeup.counters import between

from benchmarks.common import results
from benchmarks.common.folders import ROOT
from benchmarks.common.pages import section
from benchmarks.gemm import counters as gemm_ncu
from benchmarks.gemm import report, steps
from benchmarks.gemm.hopper import RESULTS as HOPPER
from benchmarks.gemm.join import join
from benchmarks.gemm.problems import Problem, everything, floor_s, network, worth_measuring
from perfmodel.readers.ncu import Launch, parse
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
    keys = {"kernel", "m", "n", "k", "transposes", "dtype", "median_s", "round_s", "peer_median_s",
            "floor_s", "error"}  # fmt: skip
    assert all(keys <= set(r) for r in rows)
    assert all(r["error"] < 1e-6 and r["median_s"] > 0 for r in rows)
    assert {"device", "versions", "date", "command", "ceilings"} <= set(found)
    able = {math: {r["kernel"] for r in rows if r["dtype"] == math} for math in ("tf32", "tf32x3")}
    assert able["tf32"] == {"hierarchical", "cublas"}
    assert able["tf32x3"] == {"hierarchical", "cublas"}  # cuBLAS's float32 beside it


def test_launches_of_gemms_are_joined_with_the_interval_of_another_one() -> None:
    """By hand: shares 0.8 and 0.9 seen of 11 degrees of freedom, t(11) = 2.20099, sqrt(3/2)."""
    row = {
        "kernel": "thin", "what": "square", "m": 10, "n": 10, "k": 10, "transposes": "NN",
        "dtype": "float32", "H": None, "B_per_rank": None, "floor_s": 1e-6,
        "error": 1e-7, "in_l2": True,
    }  # fmt: skip
    times = {"median_s": 10e-6, "round_s": [10e-6], "peer_median_s": 8e-6, "share_of_cublas": 0.8}
    about = {"device": "GPU", "command": "c", "date": "1", "measured": {}, "versions": {}}
    one = {**about, "rows": [{**row, **times}]}
    two = {**about, "date": "2", "rows": [
        {**row, **times, "peer_median_s": 9e-6, "share_of_cublas": 0.9, "error": 2e-7}
    ]}  # fmt: skip
    joined = join([one, two])
    assert [launch["date"] for launch in joined["launches"]] == ["1", "2"]
    (found,) = joined["rows"]
    assert (found["share_of_cublas"], found["error"]) == (pytest.approx(0.85), 2e-7)
    assert [launch["round_s"] for launch in found["launches"]] == [[10e-6], [10e-6]]
    assert "round_s" not in found
    seen = (math.log(0.9 / 0.8) ** 2 / 2 + 10 * 2 * 0.002**2) / 11
    width = 2.20099 * math.sqrt(1.5 * seen)
    assert found["share_low"] == pytest.approx(math.sqrt(0.72) * math.exp(-width), rel=1e-4)
    assert join([one])["rows"][0]["share_high"] == pytest.approx(
        0.8 * math.exp(2.22814 * 2 * 0.002), rel=1e-4
    )
    with pytest.raises(ValueError, match="one GPU; got GPU and other"):
        join([one, {**two, "device": "other"}])


def test_the_page_shows_every_kernel_of_the_handout() -> None:
    found, tried = results.read(steps.RESULTS), results.read(HOPPER)
    timed, counted = found["time"]["rows"], found["counters"]["rows"]
    assert {r["kernel"] for r in timed} == set(steps.STEPS) == set(report.REMOVES)
    assert len(timed) == len(counted) == len(steps.products())
    for name, made in {
        "times": report.times(timed), "counters": report.counters(counted),
        "counters TN": report.counters(counted, "TN"), "hopper": report.hopper(tried["rows"]),
    }.items():  # fmt: skip
        assert made.strip() in section(report.PAGE, report.SCRIPT, name)


def test_the_counters_explain_what_the_page_says() -> None:
    found = results.read(steps.RESULTS)

    def row(part: str, kernel: str, transposes: str = "NN") -> dict[str, float]:
        return report.of(found[part]["rows"], kernel, "square", 4096, transposes)

    by_rows, by_columns = (row("counters", "register", t) for t in ("NN", "TN"))
    assert by_rows["l1_bytes"] > 6 * by_columns["l1_bytes"]  # 32 lines a load, or one
    assert by_rows["l1_percent"] > 90
    same = ("registers", "ffma", "shared_loads", "instructions")
    assert all(by_rows[n] == pytest.approx(by_columns[n], rel=0.05) for n in same)
    shares = {t: row("time", "register", t)["share_of_cublas"] for t in ("NN", "TN")}
    assert shares["NN"] < row("time", "tiled")["share_of_cublas"] < shares["TN"] / 2.5
    wide = row("time", "wide loads")["share_of_cublas"]
    assert wide > 2 * row("time", "tiled")["share_of_cublas"]
    assert all(r["error"] < 2e-6 for r in found["time"]["rows"])


def test_the_kernels_of_tma_and_wgmma_multiply_right() -> None:
    rows = results.read(HOPPER)["rows"]
    bound = {"tf32": 1e-3, "tf32x3": 2e-6}
    assert all(r["error"] < bound[r["dtype"]] for r in rows)
    best = {
        (r["m"], r["dtype"]): r["share_of_cublas"] for r in rows
        if r["kernel"] == ("wgmma 128x256" if r["dtype"] == "tf32" else "wgmma 128x128")
    }  # fmt: skip
    assert best[4096, "tf32"] > 0.96
    assert min(share for (_, dtype), share in best.items() if dtype == "tf32x3") > 1.9


def test_rows_of_ncu_are_named_as_they_were_launched() -> None:
    metrics = [steps.METRICS[name] for name in ("time_s", "l1_bytes", "occupancy_percent")]
    head = ["ID", "Kernel Name", *metrics]
    lines = [head, ["", "", "ns", "byte", "%"]]
    for number, (name, _) in enumerate(steps.products()):
        lines += [[str(2 * number), "marker", "1", "0", "1"],
                  [str(2 * number + 1), name, str(1000 + number), "64", "50"]]  # fmt: skip
    text = "\n".join(",".join(f'"{cell}"' for cell in line) for line in lines)
    rows = steps.counted(text)
    assert [r["kernel"] for r in rows] == [name for name, _ in steps.products()]
    assert rows[3]["time_s"] == pytest.approx(1003e-9)
    assert (rows[3]["l1_bytes"], rows[3]["occupancy_percent"]) == (64, 50)
    assert steps.total("l1_bytes", [64.0, 32.0]) == 96
    assert steps.total("occupancy_percent", [50.0, 10.0]) == 50
