"""Replayed kernels of Nsight Systems' reports: the operators in which their nodes were captured."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from perfmodel.analysis.analyze import analyze
from perfmodel.programs.program import Options
from perfmodel.readers import read
from perfmodel.readers.nsys import read_by_process
from perfmodel.readers.share import share
from perfmodel.readers.stacks import PYTHON_DOMAIN
from support.build_report import ReportBuilder
from support.build_stacks import python_stack
from support.build_thread import MARK, Thread

ADD = "aten::add_, op_id = 2, sizes = [[8], [8]]"
MM = "aten::mm, op_id = 1, sizes = [[{m}, 32], [32, 16]]"
GEMM = "nvjet_sm90_tst_128x192_64x5_1x4_h_bz_coopB_NTN"
COPY = "void at::native::vectorized_elementwise_kernel<4, float>"
PROFILES = Path(__file__).parents[2] / "profiles"


def node(thread: Thread, at: int, number: int, original: int | None = None) -> None:
    thread.report.insert(
        "CUDA_GRAPH_NODE_EVENTS", start=at, end=at, eventClass=77, globalTid=thread.global_tid,
        nameId=thread.report.string("node"), graphNodeId=number, originalGraphNodeId=original,
    )  # fmt: skip


def captured(thread: Thread, rows: int) -> None:
    """Capture a GEMM of so many rows and a copy; the graph is cloned, then instantiated."""
    thread.api("cudaStreamBeginCapture_v10000", 1_000, 1_100)
    for i, label in enumerate((MM.format(m=rows), ADD)):
        at = 2_000 + 1_000 * i
        thread.range(label, at, at + 900)
        thread.api("cudaLaunchKernel_v7000", at + 100, at + 300)
        node(thread, at + 200, 100 + i)
        node(thread, 6_000 + i, 200 + i, 100 + i)
        node(thread, 7_000 + i, 300 + i)  # as the driver does, before it says what it clones
        node(thread, 7_100 + i, 300 + i, 200 + i)
    thread.api("cudaStreamEndCapture_v10000", 5_000, 5_100)


def replayed(thread: Thread, device: int) -> None:
    """Replay it 4 times: the copy runs first, on another stream."""
    for step in range(4):
        at = 100_000 * (step + 1)
        thread.range(f"step {step}", at, at + 50_000)
        launch = thread.api("cudaGraphLaunch_v10000", at + 100, at + 1_000)
        for name, begin, number in ((COPY, 2_000, 301), (GEMM, 2_500, 300)):
            thread.kernel(
                name, None, (at + begin, at + begin + 9_000), device=device, stream=7 + number,
                correlation=launch, graphNodeId=number,
            )  # fmt: skip
        thread.api("cudaStreamSynchronize_v3020", at + 1_100, at + 20_000)


@pytest.fixture
def report(tmp_path: Path) -> Path:
    """Two processes, whose nodes have the same ids."""
    built = ReportBuilder("2025.3.2")
    for rank, rows in enumerate((64, 128)):
        built.gpu(rank)
        thread = built.thread(100 + rank, rank=rank)
        captured(thread, rows)
        replayed(thread, rank)
    return built.write(tmp_path / "graphs.sqlite")


def test_kernels_have_the_operator_of_their_node(report: Path) -> None:
    run = analyze([read(report)], Options()).fitted
    assert run.work is not None
    rows = {row.name: row for row in run.work.operators}
    # the mean of both ranks' 2 M K N, once a step; by their order the copy would be the GEMM
    assert rows["aten::mm"].flops == 2 * (64 + 128) / 2 * 32 * 16
    assert rows["aten::mm"].count == rows["aten::add_"].count == 1
    assert run.work.modelled == 1


def test_kernels_have_the_line_of_their_node(tmp_path: Path) -> None:
    built = ReportBuilder("2025.3.2")
    built.gpu(0)
    thread = built.thread()
    captured(thread, 64)
    replayed(thread, 0)
    domain = thread.register_domain(PYTHON_DOMAIN)
    file = built.string("/home/ada/model.py")
    for name, line, at in (("attend", 7, 2_000), ("add", 9, 3_000), ("replay", 1, 100_000)):
        stack = python_stack((built.string(name), file, line))
        thread.event(MARK, at, domainId=domain, binaryData=stack)
    run = analyze([read(built.write(tmp_path / "r.sqlite"))], Options()).fitted
    assert run.steps is not None
    lines = {kernel.name: kernel.line for kernel in run.steps.kernels}
    assert lines[GEMM] == "/home/ada/model.py:7 in attend"


def test_parts_of_a_large_report_have_the_same_nodes(report: Path) -> None:
    trace, events = read_by_process(report)
    assert events.whole(trace).ops.node.tolist() == read(report).ops.node.tolist()


def test_a_shared_report_keeps_its_nodes(report: Path, tmp_path: Path) -> None:
    small = tmp_path / "small.sqlite"
    share(report, small)
    assert read(small).ops.node.tolist() == read(report).ops.node.tolist()
    assert (read(small).graph_nodes.start_ns == read(report).graph_nodes.start_ns).all()


def test_a_node_without_an_origin_is_of_no_capture(tmp_path: Path) -> None:
    built = ReportBuilder("2025.3.2")
    built.gpu(0)
    thread = built.thread()
    node(thread, 7_000, 300)
    node(thread, 7_001, 301, 9)
    replayed(thread, 0)
    assert (read(built.write(tmp_path / "r.sqlite")).ops.node == -1).all()


def test_kernels_of_a_recorded_graph_were_captured_in_their_ranges() -> None:
    trace = read(PROFILES / "ladder" / "graph_2.sqlite.xz")
    op = np.flatnonzero(trace.ops.node >= 0)
    assert len(op) == 2360  # 2242 kernels and 118 sets
    where = trace.graph_nodes
    found: Counter[tuple[str, str]] = Counter()
    for row in op.tolist():
        thread, at = (column[trace.ops.node[row]] for column in (where.thread, where.start_ns))
        ranges = trace.ranges
        around = (ranges.thread == thread) & (ranges.start_ns <= at) & (ranges.end_ns >= at)
        inner = trace.range_labels[ranges.name[np.flatnonzero(around)[-1]]]
        name = trace.strings[trace.ops.name[row]] if trace.ops.name[row] >= 0 else "set"
        if "gemm" in name or "AllReduce" in name or "descend" in name:
            found[name.split("_f32")[0], inner.split(" GEMM")[0]] += 1
    kinds = {(name, inner) for name, inner in found}
    assert {inner for name, inner in kinds if "gemm" in name} == {"forward", "backward"}
    assert {inner for name, inner in kinds if "AllReduce" in name} == {"ncclAllReduce"}
    assert {inner for name, inner in kinds if "descend" in name} == {"step"}
