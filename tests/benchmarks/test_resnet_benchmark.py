"""The ResNet benchmark: plans, medians, how ncu's tables are kept and summed, the page it makes."""

from __future__ import annotations

import json
import lzma
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.common import pages as made
from benchmarks.resnet import __main__ as resnet
from benchmarks.resnet import report as resnet_report
from benchmarks.resnet.report import measured, with_times
from perfmodel.machines.devices import known
from perfmodel.workloads.cnns import resnet as network
from perfmodel.workloads.layers import total, training_bytes

H200 = next(m for m in known() if "H200" in m.name)
SASS = "smsp__sass_thread_inst_executed_op_{}_pred_on.sum"
COLUMNS = (
    "gpu__time_duration.sum", "dram__bytes_read.sum", "dram__bytes_write.sum", "lts__t_bytes.sum",
    SASS.format("fadd"), SASS.format("fmul"), SASS.format("ffma"),
    "sm__ops_path_tensor_src_tf32_dst_fp32.sum",
)  # fmt: skip
UNITS = ("ns", "byte", "Kbyte", "byte", "inst", "inst", "inst", "inst")
SPIN = ("at::cuda::(anonymous namespace)::spin_kernel(long)", 9, 9, 9, 9, 9, 9, 9, 9)
KERNELS = {
    "forward": [("conv<a, b>(float *)", 1000, 64, 1, 128, 1, 2, 500, 0),
                ("gemm_tf32", 2000, 32, 0, 96, 0, 0, 7, 4000)],
    "backward": [("wgrad", 3000, 96, 2, 300, 0, 0, 1000, 8000)],
    "step": [("sgd", 500, 10, 0.5, 40, 20, 20, 10, 0)],
}  # fmt: skip


def table() -> str:
    """What ncu writes of one step between markers, with what it prints around it."""
    rows: list[tuple[Any, ...]] = [("before", *[5] * 8)]
    for kernels in KERNELS.values():
        rows += [SPIN, *kernels]
    rows.append(SPIN)
    lines = [("ID", "Process ID", "Kernel Name", *COLUMNS), ("", "", "", *UNITS)]
    lines += [(i, 77, *row) for i, row in enumerate(rows)]
    return "==PROF== Connected\n" + "\n".join(",".join(f'"{v}"' for v in x) for x in lines) + "\n"


@pytest.fixture
def result(tmp_path: Path) -> dict[str, Any]:
    """Results as the benchmark writes them: one cell, its table beside them."""
    assert resnet.keep(table(), tmp_path / "r18.csv.xz") == 9
    about = {"device": "NVIDIA H200", "torch": "2", "cudnn": 9, "image": 224}
    cell = {"net": "resnet18", "batch": 10, "math": "tf32", "mode": "alone"}
    common = {"about": about, "date": "2026-01-02", "command": "python x", "problems": []}
    times = {"forward_s": 1e-3, "backward_s": 2e-3, "step_s": 5e-4, "host_s": 3e-3}
    samples = [{**cell, "round": -1, "first_step_s": 0.25, "allocated_bytes": 4e8,
                "reserved_bytes": 5e8, "device_bytes": 1e9}]  # fmt: skip
    samples += [{**cell, "round": i, "total_s": t, **times} for i, t in enumerate((5e-3, 4e-3))]
    return {
        "time": {**common, "rows": resnet.medians(samples)},
        "counters": {
            **common, "rows": [{**cell, "profiled_step_s": 9.0}],
            "tables": {"resnet18": {"file": "r18.csv.xz", "kernels": 9}},
        },
    }  # fmt: skip


def test_a_table_keeps_the_needed_columns(result: dict[str, Any], tmp_path: Path) -> None:
    text = lzma.decompress((tmp_path / "r18.csv.xz").read_bytes()).decode()
    assert text.startswith('"ID","Kernel Name","gpu__time_duration.sum"')
    assert "Process" not in text
    assert text.count("spin_kernel") == 4


def test_counters_are_summed_by_phase(result: dict[str, Any], tmp_path: Path) -> None:
    rows = {r["phase"]: r for r in resnet_report.counted(result["counters"], tmp_path)}
    assert rows["forward"]["scalar_flops"] == 1 + 2 + 2 * 507
    assert rows["forward"]["tensor_flops"] == 4000
    assert rows["backward"]["dram_bytes"] == 96 + 2000
    assert rows["step"]["kernel_time_s"] == pytest.approx(500e-9)
    whole = rows["all"]
    assert whole["kernels"] == 4
    for key in ("scalar_flops", "tensor_flops", "dram_bytes", "l2_bytes"):
        assert whole[key] == sum(rows[p][key] for p in resnet_report.PHASES)
    assert whole["half_flops"] is None  # not collected, which is not none
    assert whole["l1_bytes"] is None


def test_a_table_without_all_markers_is_refused(result: dict[str, Any], tmp_path: Path) -> None:
    result["counters"]["rows"] *= 2
    with pytest.raises(SystemExit, match="expected 8 markers for 2 steps; got 4"):
        resnet_report.counted(result["counters"], tmp_path)


def test_whole_phases_of_a_step_that_was_cut_off_count(
    result: dict[str, Any], tmp_path: Path
) -> None:
    rows, lines = result["counters"]["rows"], table().splitlines()
    cut = [i for i, line in enumerate(lines) if "spin_kernel" in line][2] + 1  # amid its last phase
    text = "\n".join([*lines, *lines[3:cut]]) + "\n"
    assert resnet.keep(text, tmp_path / "r18.csv.xz") == 9 + cut - 3
    rows.append({**rows[0], "math": "fp32", "profiled_step_s": None})
    found = [(r["math"], r["phase"]) for r in resnet_report.counted(result["counters"], tmp_path)]
    assert found[:4] == [("tf32", phase) for phase in (*resnet_report.PHASES, "all")]
    assert found[4:] == [("fp32", "forward"), ("fp32", "backward")]


def test_the_tables_of_the_page(result: dict[str, Any], tmp_path: Path) -> None:
    counts = resnet_report.counted(result["counters"], tmp_path)
    joined = [r for r in with_times(result, counts) if r["phase"] == "all"]
    assert joined[0]["total_s"] == pytest.approx(4.5e-3)
    assert joined[0]["flops"] == joined[0]["scalar_flops"] + joined[0]["tensor_flops"]
    page = measured(result, counts, H200)
    flops = total(network("resnet18"), 10).flops
    assert f"{flops / 4.5e-3 / 1e12:.1f} TFLOP/s" in page
    assert f"{100 * flops / 4.5e-3 / 494.7e12:.1f} %" in page
    assert "resnet18 250 ms, later 4.5 ms" in page


def test_why_a_part_ended_early_is_said(result: dict[str, Any], tmp_path: Path) -> None:
    counts = resnet_report.counted(result["counters"], tmp_path)
    result["counters"]["problems"] = ["exit codes [1]: 69 s under the profiler\ntime is over\n"]
    assert "`python x`. It ended early: time is over.\n" in measured(result, counts, H200)


STUB = """#!/bin/sh
case "$*" in *tensor*) echo "Failed to find metric {}"; exit 1 ;; esac
echo "time is over"; cat {}; exit 1
"""


def test_a_table_is_kept_where_ncu_ends_with_an_error(tmp_path: Path) -> None:
    stub, csv = tmp_path / "ncu", tmp_path / "table.csv"
    csv.write_text(table())
    stub.write_text(STUB.format(resnet.METRICS[-1], csv))
    stub.chmod(0o755)
    text, _, problem = resnet.count(str(stub), ["true"], 5.0)
    assert text == "time is over\n" + table()
    assert problem.rstrip().endswith(table().rstrip()[-500:])


def test_processes_are_ended_at_their_limit() -> None:
    sleep = [sys.executable, "-c", "import time; print('begun', flush=True); time.sleep(60)"]
    assert resnet.run([sleep, sleep], [{}, {}], 0.5) == "ended after 0 s"
    fails = [sys.executable, "-c", "raise SystemExit('no GPU')"]
    assert "exit codes [1]" in resnet.run([fails], [{}], 5.0)
    assert resnet.run([[sys.executable, "-c", ""]], [{}], 5.0) == ""


def test_a_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    path.write_text('{"a": 1}\n{"a": 2, "b"')
    assert resnet.read_rows(path) == [{"a": 1}]
    assert resnet.read_rows(tmp_path / "none") == []


@pytest.mark.parametrize("part", resnet.PARTS)
def test_plans_end_in_time(part: str) -> None:
    limit = 330 if part == "counters" else 90
    assert sum(p.seconds for p in resnet.plans(part, False)) <= limit
    assert {n for p in resnet.plans(part, False) for n in p.net.split(",")} == set(resnet.NETS)


def test_torch_counted_what_the_layers_say() -> None:
    """FLOPs to the last digit, the tensors saved for the backward pass within 0.3 %."""
    found = json.loads(resnet.RESULTS.read_text(encoding="utf-8"))["theory"]["rows"]
    assert {r["net"] for r in found} == set(resnet.NETS)
    for r in found:
        net = network(r["net"], r["image"])
        ours = total(net)
        assert (r["parameters"], r["forward_flops"]) == (ours.parameters, ours.forward_flops)
        assert r["backward_flops"] == ours.backward_flops
        held = training_bytes(net, 1) - 12 * ours.parameters
        assert held == pytest.approx(r["saved_bytes"], rel=3e-3)


def test_the_page_is_what_the_results_make_it() -> None:
    for name, part in resnet_report.parts(resnet.RESULTS).items():
        shown = made.section(resnet_report.PAGE, resnet_report.SCRIPT, name)
        assert shown == part.strip(), "run: python -m benchmarks.resnet --document"
