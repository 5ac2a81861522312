"""Stacks: lines of code and modules of launches, from traces of PyTorch and of Nsight Systems."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from perfmodel.analysis.analyze import analyze_reports
from perfmodel.programs.program import Options
from perfmodel.readers import read
from perfmodel.readers.frames import FRAMEWORK, LIBRARY, USER, python_frame
from perfmodel.readers.stacks import PYTHON_DOMAIN
from perfmodel.readers.trace import KERNEL, Trace
from perfmodel.timing.launched import launched
from perfmodel.timing.stack_times import nodes_at
from support.build_kineto import trace_event, write
from support.build_report import ReportBuilder
from support.build_stacks import chain, launches, python_stack
from support.build_thread import MARK
from support.cli import fails, succeeds
from support.public_recordings import small

BERT: Final = (
    "moca/library/model_hub/huggingface/model/adapters/text_base_model.py:28 in run_on_input"
)
SGLANG: Final = "/sgl-workspace/sglang/python/sglang/srt/"

LINES: Final = (
    ("bert_h100", 8266, BERT, "BertLMHeadModel_0.BertModel_0.BertEmbeddings_0.Embedding_2"),
    ("bert_h100", 9297, BERT, "BertLMHeadModel_0.BertModel_0.BertEncoder_0.BertLayer_2"
     ".BertIntermediate_2.GELUActivation_2"),
    ("sglang_decode_mi300x", 92169, SGLANG + "layers/attention/aiter_backend.py:1654 in "
     "init_forward_metadata_replay_cuda_graph", None),
    ("sglang_decode_mi300x", 92178, SGLANG + "model_executor/cuda_graph_runner.py:1333 in replay",
     None),
    ("vllm_decode_rocm", 505113, "vllm/compilation/cuda_graph.py:208 in __call__", None),
    ("normalization_mi300x", 44, "test_perf_model.py:35 in forward", "Net_0.InstanceNorm2d_1"),
    # of autograd's thread, while Python waits in backward()
    ("normalization_mi300x", 145, "test_perf_model.py:64 in create_normalization_layer_trace",
     None),
    ("stacks_v100", 34441, "resnet50_profiler_api.py:46 in <module>", None),
    ("stacks_v100", 34811, "resnet50_profiler_api.py:46 in <module>", None),
    ("stacks_v100", 45529, "resnet50_profiler_api.py:51 in <module>", None),
)  # fmt: skip
"""Kernels of published traces by their correlation ids, with the line and the module that a person
read off the events around their launches."""


def place(trace: Trace, row: int) -> tuple[str | None, str | None]:
    """Line and module of the launch of a GPU operation."""
    found = launched(trace)
    at = np.flatnonzero(found.op == row)
    node = int(nodes_at(trace, found.thread[at], found.at_ns[at])[0])
    stacks = trace.stacks
    line, module = (stacks.line[node], stacks.module[node]) if node >= 0 else (-1, -1)
    return (
        stacks.frames[line] if line >= 0 else None,
        stacks.modules[module] if module >= 0 else None,
    )


@pytest.mark.parametrize(("name", "launch", "line", "module"), LINES)
def test_lines_of_published_traces(name: str, launch: int, line: str, module: str | None) -> None:
    trace = read(small(f"{name}.json.xz"))
    rows = np.flatnonzero((trace.ops.correlation == launch) & (trace.ops.kind == KERNEL))
    assert {place(trace, row) for row in rows.tolist()} == {(line, module)}


def launch_at(ts: float, number: int, tid: int = 1) -> list[dict[str, Any]]:
    """A call, and the kernel that it launches."""
    same = {"correlation": number}
    return [
        trace_event("cuda_runtime", "cudaLaunchKernel", tid=tid, ts=ts, args=same),
        trace_event("kernel", "k", pid=0, tid=7, ts=ts + 5, args=same),
    ]


@pytest.mark.parametrize("key", ["Call stack", "Call Stack"])
def test_stacks_that_operators_name(key: str, tmp_path: Path) -> None:
    """As PyTorch wrote them in 2021, the innermost frame first."""
    conda = "/opt/conda/lib/python3.7/site-packages/"
    main, loss = "train.py(46): <module>", "train.py(51): <module>"
    forward = f"{conda}torch/nn/functional.py(1753): linear;net.py(12): forward;{main}"
    library = f"{conda}timm/layers/mlp.py(43): forward"

    def operator(name: str, ts: float, stack: str) -> dict[str, Any]:
        return trace_event("Operator", name, tid=1, ts=ts, dur=40, args={key: stack})

    events = [
        operator("ProfilerStep#3", 0, "elsewhere.py(1): step"), *launch_at(50, 1),
        operator("aten::linear", 100, forward), *launch_at(110, 2),
        operator("aten::addmm", 200, f"{conda}torch/a.py(3): f;{library};{main}"),
        *launch_at(210, 3),
        operator("aten::mul", 300, f"{conda}torch/autograd/profiler.py(614): __enter__"),
        *launch_at(310, 4), operator("aten::nll_loss", 400, loss), *launch_at(410, 5),
    ]  # fmt: skip
    trace = read(write(tmp_path / "t.json", {"traceEvents": events}))
    rows = trace.ops.correlation.argsort().tolist()
    assert [place(trace, row)[0] for row in rows] == [
        None, "net.py:12 in forward", "train.py:46 in <module>", None, "train.py:51 in <module>",
    ]  # fmt: skip
    path = trace.stacks.path(int(trace.stacks.node[trace.stacks.node >= 0][1]))
    assert path == ("train.py:46 in <module>", "timm/layers/mlp.py:43 in forward")


def test_autograd_s_thread_is_where_python_waits(tmp_path: Path) -> None:
    def function(name: str, ts: float, dur: float) -> dict[str, Any]:
        return trace_event("python_function", name, tid=1, ts=ts, dur=dur)

    events = [
        trace_event("user_annotation", "ProfilerStep#3", tid=1, ts=0, dur=2000),
        function("bench.py(30): <module>", 0, 1000), function("bench.py(64): run", 10, 900),
        function("nn.Module: Net_0", 20, 200), function("bench.py(35): forward", 25, 190),
        function("nn.Module: Norm_1", 30, 100), *launch_at(50, 1),
        function("<built-in method batch_norm of type object>", 40, 30), *launch_at(180, 2),
        function("torch/_tensor.py(592): backward", 300, 400), *launch_at(400, 3, tid=2),
        *launch_at(950, 4), *launch_at(1200, 5),
    ]  # fmt: skip
    trace = read(write(tmp_path / "t.json", {"traceEvents": events}))
    rows = trace.ops.correlation.argsort().tolist()
    assert [place(trace, row) for row in rows] == [
        ("bench.py:35 in forward", "Net_0.Norm_1"), ("bench.py:35 in forward", "Net_0"),
        ("bench.py:64 in run", None), ("bench.py:30 in <module>", None), (None, None),
    ]  # fmt: skip


def test_whose_code_a_frame_is() -> None:
    assert python_frame("train.py(3): <module>") == ("train.py:3 in <module>", USER)
    assert python_frame("code.py(3): <module>")[1] == USER
    assert python_frame("code.py(30): interact")[1] == FRAMEWORK
    assert python_frame("/opt/conda/lib/python3.11/site-packages/timm/x.py(3): f") == (
        "timm/x.py:3 in f", LIBRARY
    )  # fmt: skip
    assert python_frame("<frozen os>(709): __getitem__")[1] == FRAMEWORK
    assert python_frame("/tmp/torchinductor_me/ob/cob.py(31): call")[1] == FRAMEWORK


def traced(folder: Path) -> Path:
    """A trace: two steps, in which the host sleeps in `load` and launches in a module."""
    events: list[dict[str, Any]] = []

    def add(cat: str, name: str, ts: float, dur: float, tid: int = 1, **args: Any) -> None:
        pid = 0 if cat == "kernel" else 1
        events.append({"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts,
                       "dur": dur, "args": args})  # fmt: skip

    add("python_function", "train.py(40): <module>", 0, 9000)
    add("python_function", "train.py(30): main", 1, 8998)
    for step in range(4):
        t = 2000.0 * step + 10
        add("user_annotation", f"ProfilerStep#{step}", t, 1990)
        add("python_function", "train.py(7): load", t + 10, 900)
        add("python_function", "torch/utils/data/dataloader.py(700): __next__", t + 11, 890)
        add("python_function", "nn.Module: Net_0", t + 1000, 800)
        add("python_function", "torch/nn/modules/module.py(1773): _call_impl", t + 1001, 790)
        add("python_function", "train.py(12): forward", t + 1002, 780)
        add("python_function", "nn.Module: Linear_0", t + 1010, 300)
        for i, at in enumerate((1020, 1100, 1400)):
            number = 10 * step + i + 1
            add("cpu_op", "aten::mm", t + at, 50)
            add("cuda_runtime", "cudaLaunchKernel", t + at + 5, 10, correlation=number)
            add("kernel", "gemm" if i < 2 else "other", t + at + 30, 40, tid=7, device=0,
                stream=7, correlation=number)  # fmt: skip
    return write(folder / "t.json", {"traceEvents": events})


def test_places_of_kernels_gaps_and_findings(tmp_path: Path) -> None:
    run = analyze_reports([traced(tmp_path)], Options()).fitted
    assert run.steps is not None
    kernels = {k.name: (k.line, k.module) for k in run.steps.kernels}
    assert kernels == {
        "gemm": ("train.py:12 in forward", "Net.Linear"), "other": ("train.py:12 in forward", "Net")
    }  # fmt: skip
    gap = run.steps.facts.longest("host_compute")
    assert gap is not None
    assert gap.line == "train.py:7 in load"
    first = next(f for f in run.findings if f.kind == "host_compute")
    assert (first.line, first.range) == ("train.py:7 in load", None)


def test_the_command_writes_places_and_folded_stacks(tmp_path: Path) -> None:
    trace, folded = traced(tmp_path), tmp_path / "folded.txt"
    found = json.loads(succeeds("analyze", "--section", "all", trace, "--json", "--stacks", folded))
    assert {f["line"] for f in found["findings"]} >= {"train.py:7 in load"}
    assert found["kernels"]["largest"][0]["module"] == "Net.Linear"
    main = "train.py:40 in <module>;train.py:30 in main;nn.Module: Net_0;train.py:12 in forward"
    lines = folded.read_text().splitlines()
    steps = found["batch"]["count"]
    assert f"{main};nn.Module: Linear_0;gemm {80 * steps}" in lines
    assert f"{main};other {40 * steps}" in lines
    assert "at train.py:7 in load" in succeeds("analyze", "--section", "all", trace)


def test_stacks_that_are_not_there(tmp_path: Path) -> None:
    events = json.loads(traced(tmp_path).read_text())["traceEvents"]
    bare = [e for e in events if e["cat"] != "python_function"]
    path = write(tmp_path / "bare.json", {"traceEvents": bare})
    assert "with_stack=True" in fails(3, "analyze", path, "--stacks", tmp_path / "x.txt")
    assert not (tmp_path / "x.txt").exists()


def test_call_chains_of_nsys(tmp_path: Path) -> None:
    builder = ReportBuilder("2025.3.2")
    launches(builder, chain=5)
    own = "/home/ada/bin/solver"
    frames = ("cuLaunchKernel", "/usr/lib/libcuda.so.1"), ("Solver::step(int)", own), ("main", own)
    chain(builder, "CUDA_CALLCHAINS", 5, *frames)
    trace = read(builder.write(tmp_path / "r.sqlite"))
    assert place(trace, 0) == ("solver: Solver::step(int)", None)
    assert trace.stacks.path(int(trace.stacks.node[0])) == (
        "solver: main", "solver: Solver::step(int)"
    )  # fmt: skip


def test_sampled_call_chains_of_nsys(tmp_path: Path) -> None:
    builder = ReportBuilder("2025.3.2")
    launches(builder)
    tid = builder.threads[0].global_tid
    for number, start in ((1, 500), (2, 900_500)):
        builder.insert("COMPOSITE_EVENTS", id=number, start=start, globalTid=tid)
    chain(builder, "SAMPLING_CALLCHAINS", 1, ("memcpy", "/lib/libc.so.6"), ("f()", "/bin/mine"))
    chain(builder, "SAMPLING_CALLCHAINS", 2, ("g()", "/bin/mine"))
    trace = read(builder.write(tmp_path / "r.sqlite"))
    assert [place(trace, row)[0] for row in (0, 1)] == ["mine: f()", "mine: g()"]


def test_a_frame_of_the_profiler_is_no_place(tmp_path: Path) -> None:
    builder = ReportBuilder("2025.3.2")
    launches(builder)
    tid = builder.threads[0].global_tid
    for number, start in ((1, 500), (2, 900_500)):
        builder.insert("COMPOSITE_EVENTS", id=number, start=start, globalTid=tid)
    chain(builder, "SAMPLING_CALLCHAINS", 1, ("f()", "/home/ada/mine"))
    profiler = "/opt/nvidia/nsight-systems/2025.3.1/target-linux-x64/libcupti.so.13.0"
    chain(builder, "SAMPLING_CALLCHAINS", 2, ("cuptiGetTimestamp", profiler), ("0x1", "[Unknown]"))
    trace = read(builder.write(tmp_path / "r.sqlite"))
    assert [place(trace, row)[0] for row in (0, 1)] == ["mine: f()", None]


def test_python_backtraces_of_nsys(tmp_path: Path) -> None:
    builder = ReportBuilder("2025.3.2")
    launches(builder)
    main = builder.threads[0]
    domain = main.register_domain(PYTHON_DOMAIN)
    name, file = builder.string("step"), builder.string("/home/ada/train.py")
    top, torch = builder.string("&lt;module&gt;"), builder.string("/x/site-packages/torch/a.py")
    stack = python_stack((name, torch, 9), (name, file, 21), (top, file, 40))
    main.event(MARK, 1500, domainId=domain, binaryData=stack)
    main.event(MARK, 1600, domainId=domain, binaryData=stack[:-8])
    trace = read(builder.write(tmp_path / "r.sqlite"))
    assert place(trace, 1) == ("/home/ada/train.py:21 in step", None)
    assert trace.stacks.frames[0] == "/home/ada/train.py:40 in <module>"


def test_annotated_modules_without_stacks(tmp_path: Path) -> None:
    builder = ReportBuilder("2025.3.2")
    main = builder.thread()
    main.range("nn.Module: GPT", 0, 9000)
    main.range("nn.Module: GPT.h.0", 100, 5000)
    main.kernel("gemm", (200, 300), (400, 500))
    trace = read(builder.write(tmp_path / "r.sqlite"))
    assert place(trace, 0) == (None, "GPT.h.0")
