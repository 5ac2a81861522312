"""Traces of torch.profiler: the analysis of one program recorded both ways is the same."""

from __future__ import annotations

import gzip
import io
import json
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.common.folders import PROGRAMS
from perfmodel.analysis.analyze import analyze_reports
from perfmodel.base.errors import ReportError, SchemaError
from perfmodel.programs.program import Options
from perfmodel.programs.pytorch.names import parse
from perfmodel.readers import json_stream, read
from perfmodel.readers.trace import KERNEL, MEMCPY, MEMSET, NULL, Trace
from perfmodel.timing.nsys_stats.collect import compute
from support import build_kineto, build_operators
from support.build_operators import operators_report
from support.cli import fails, succeeds

SHAPES = ["gpt_shapes", "llama_shapes", "bert_shapes"]


def event(**changes: Any) -> dict[str, Any]:
    """One call of CUDA's."""
    return {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 10, "tid": 10,
            "ts": 1.5, "dur": 2.25, "args": {"correlation": 7}} | changes  # fmt: skip


KERNEL_EVENT = event(
    cat="kernel", name="mine", pid=0, tid=3, args={"device": 1, "stream": 3, "correlation": 7}
)


def trace_of(folder: Path, *events: Any, **beside: Any) -> Path:
    return build_kineto.write(folder / "t.json", {"traceEvents": events, **beside})


def analysis_of(*paths: Path) -> Any:
    return analyze_reports(list(paths), Options()).fitted


@pytest.mark.slow
@pytest.mark.parametrize("name", SHAPES)
def test_operators_of_both_recordings_are_equal(name: str, tmp_path: Path) -> None:
    report = PROGRAMS / f"{name}.sqlite.xz"
    trace = build_kineto.write(tmp_path / "t.json.gz", build_kineto.document(read(report)))
    one, other = analysis_of(report), analysis_of(trace)
    assert other.program.name == "pytorch"
    assert other.work.flops == one.work.flops > 0
    assert other.batch.median.value == pytest.approx(one.batch.median.value, rel=1e-6)
    found, expected = (
        {(r.name, r.phase, r.sizes): (r.count, r.kernels, r.flops) for r in a.work.by_sizes}
        for a in (other, one)
    )
    assert found == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "ranks"), [("gpt_both", 1), ("resnet34_both", 1), ("ddp_both", 2)]
)
def test_one_program_recorded_by_both_tools(name: str, ranks: int) -> None:
    """Two runs of each on an H200: the same FLOPs, and a step's time within 2 %."""
    traces = [PROGRAMS / f"{name}_rank{r}.json.xz" for r in range(ranks)]
    one, other = analysis_of(PROGRAMS / f"{name}.sqlite.xz"), analysis_of(*traces)
    truth = json.loads((PROGRAMS / f"{name}.truth.json").read_text())
    assert other.label.startswith(f"{name}_rank0")
    assert other.batch.median.value == pytest.approx(one.batch.median.value, rel=0.02)
    assert [r.rank for r in other.ranks] == [r.rank for r in one.ranks] == list(range(ranks))
    for a, b in zip(other.ranks, one.ranks, strict=True):
        assert a.gpu_busy_s == pytest.approx(b.gpu_busy_s, rel=0.02)
        assert a.compute_s == pytest.approx(b.compute_s, rel=0.02)
    kernels = [{c.category: c.count for c in run.steps.categories} for run in (one, other)]
    assert kernels[0] == kernels[1]
    assert [(c.name, c.bytes, c.count) for c in other.collectives] == [
        (c.name, c.bytes, c.count) for c in one.collectives
    ]
    if ranks == 1:
        assert other.work.flops == one.work.flops == truth["flop_counter_total"]
        assert other.work.bytes == pytest.approx(one.work.bytes, rel=0.02)
    else:
        assert other.work.flops == 8761733283840  # of half of the samples
        assert {c.waiting_s is None for c in other.collectives} == {False}


def test_lists_of_more_than_30_tensors_have_no_sizes(tmp_path: Path) -> None:
    """As in profiles/programs/gpt_both_rank0.json: a list is as empty as a number."""
    said = {"Input Dims": [[]] * 3, "Input type": ["TensorList", "TensorList", "Scalar"]}
    path = trace_of(tmp_path, event(cat="cpu_op", name="aten::_fused_adamw_", args=said))
    assert parse(read(path).range_labels).sizes == (None,)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Trace, Trace]:
    """A report, and a trace of torch.profiler that says the same."""
    report = read(PROGRAMS / "gpt_shapes.sqlite.xz")
    path = tmp_path_factory.mktemp("both") / "t.json"
    return report, read(build_kineto.write(path, build_kineto.document(report)))


def test_rows_are_those_of_the_report(both: tuple[Trace, Trace]) -> None:
    expected, found = both
    assert len(found.ranges) == len(expected.ranges)
    for kind in (KERNEL, MEMCPY, MEMSET):
        one, other = found.ops.kind == kind, expected.ops.kind == kind
        for column in ("correlation", "bytes", "stream", "copy_kind", "src_kind", "dst_kind"):
            a, b = (getattr(t.ops, column)[m] for t, m in ((found, one), (expected, other)))
            assert np.array_equal(a, b), (kind, column)
        spent = [(t.ops.end_ns - t.ops.start_ns)[m] for t, m in ((found, one), (expected, other))]
        assert np.array_equal(*spent)
    assert [g.name for g in found.gpus] == [g.name for g in expected.gpus]
    first = min(t.start_ns.min() for t in (found.ranges, found.ops, found.api))
    assert first == 0
    assert found.recorder == "torch.profiler"
    assert expected.recorder.startswith("Nsight Systems 2025.3")


def test_summaries_of_nsys_are_of_traces_too(both: tuple[Trace, Trace]) -> None:
    expected, found = both
    for name in ("cuda_gpu_mem_time_sum", "cuda_gpu_mem_size_sum"):
        assert list(compute(name, found).rows) == list(compute(name, expected).rows)


def test_one_event_of_each_kind(tmp_path: Path) -> None:
    copy = event(cat="gpu_memcpy", name="Memcpy HtoD (Pinned -> Device)", pid=1, tid=3,
                 args={"device": 1, "stream": 3, "correlation": 8, "bytes": 4096})  # fmt: skip
    fill = event(cat="gpu_memset", name="Memset (Device)", pid=1, tid=3, ts=9,
                 args={"device": 1, "stream": 3, "correlation": 9, "bytes": 64})  # fmt: skip
    said = {"Sequence number": 3, "Input Dims": [[[2, 3], [4, 3]], [], []]}
    operator = event(cat="cpu_op", name="aten::cat", ts=0.5, dur=7, args=said)
    path = trace_of(tmp_path, operator, event(), KERNEL_EVENT, copy, fill)
    trace = read(path)
    assert trace.range_labels == ("aten::cat, seq = 3, sizes = [[2, 3], [4, 3], [], []]",)
    assert trace.ranges.start_ns.tolist() == [0]
    assert trace.ranges.end_ns.tolist() == [7000]
    assert trace.api.start_ns.tolist() == [1000]
    assert trace.api.end_ns.tolist() == [3250]
    assert trace.ops.kind.tolist() == [KERNEL, MEMCPY, MEMSET]
    assert trace.ops.start_ns.tolist() == [1000, 1000, 8500]
    assert trace.ops.bytes[1:].tolist() == [4096, 64]
    assert (trace.ops.copy_kind[1], trace.ops.src_kind[1], trace.ops.dst_kind[1]) == (1, 1, 2)
    assert trace.ops.device.tolist() == [1, 1, 1]
    assert trace.ops.process.tolist() == [trace.thread_process[trace.api.thread[0]]] * 3


@pytest.mark.parametrize(("base", "ts", "utc"), [
    (1_790_857_026 * 10**9, 4471160574158.131, 1_795_328_186_574_158_131),
    (None, 1621401187223005, 1_621_401_187_223_005_000),
    (None, 12.0, None),
])  # fmt: skip
def test_times_since_the_epoch(
    base: int | None, ts: float, utc: int | None, tmp_path: Path
) -> None:
    beside = {} if base is None else {"baseTimeNanoseconds": base}
    trace = read(trace_of(tmp_path, event(ts=ts), KERNEL_EVENT | {"ts": ts}, **beside))
    assert trace.utc_start_ns == utc


def test_names_of_pytorch_before_1_13(tmp_path: Path) -> None:
    events = [event(cat="Operator", name="aten::mm", args={}), event(cat="Runtime"),
              KERNEL_EVENT | {"cat": "Kernel"}]  # fmt: skip
    trace = read(trace_of(tmp_path, *events))
    assert (len(trace.ranges), len(trace.api), len(trace.ops)) == (1, 1, 1)


def test_ids_of_threads_that_do_not_fit(tmp_path: Path) -> None:
    events = [event(tid=tid) for tid in (-7, 1 << 40, 12)]
    assert len(read(trace_of(tmp_path, *events)).threads) == 3


def test_collectives_have_the_size_that_nccl_names(tmp_path: Path) -> None:
    said = {"Collective name": "_allgather_base", "dtype": "BFloat16", "In msg nelems": 100,
            "Out msg nelems": 800, "Process Group Name": "0"}  # fmt: skip
    events = [
        event(cat="cpu_op", name="record_param_comms", args=said),
        event(cat="cpu_op", name="record_param_comms", ts=9, args=said | {
            "Collective name": "allreduce", "dtype": "Float", "Out msg nelems": 100}),
        event(cat="cpu_op", name="record_param_comms", ts=20, args=said | {"dtype": "Odd"}),
    ]  # fmt: skip
    trace = read(trace_of(tmp_path, *events))
    assert trace.nccl.bytes.tolist() == [200, 400]
    assert len(set(trace.nccl.communicator.tolist())) == 1


def test_exchanges_have_the_size_of_their_tensor_where_nothing_else_says_it(tmp_path: Path) -> None:
    shown = {"Input Dims": [[4, 8]], "Input type": ["c10::BFloat16"]}
    several = {"Input Dims": [[[2], [3]]], "Input type": ["TensorList"]}
    events = [
        event(cat="cpu_op", name="nccl:all_to_all", args=shown),
        event(cat="cpu_op", name="symm_mem::multimem_all_reduce_", ts=9, args=shown),
        event(cat="cpu_op", name="aten::add", ts=20, args=shown),
        event(cat="cpu_op", name="nccl:all_reduce", ts=30, args=several),
    ]
    trace = read(trace_of(tmp_path, *events))
    assert trace.nccl.bytes.tolist() == [64, 64]
    assert set(trace.nccl.communicator.tolist()) == {NULL}
    said = {"Collective name": "allreduce", "dtype": "Float", "In msg nelems": 100,
            "Process Group Name": "0"}  # fmt: skip
    events.append(event(cat="cpu_op", name="record_param_comms", ts=40, args=said))
    trace = read(trace_of(tmp_path, *events))
    assert trace.nccl.bytes.tolist() == [64, 400]  # nccl:all_to_all is inside such a range


@pytest.mark.parametrize("suffix", [".json", ".pt.trace.json.gz"])
def test_a_trace_is_known_by_its_content(suffix: str, tmp_path: Path) -> None:
    content = {"traceEvents": [event(), KERNEL_EVENT]}
    path = build_kineto.write(tmp_path / "named", content)
    other = path.rename(tmp_path / f"named{suffix}")
    if suffix.endswith(".gz"):
        other.write_bytes(gzip.compress(other.read_bytes()))
    assert len(read(other).ops) == 1


def test_types_and_what_a_backward_is_asked_for(tmp_path: Path) -> None:
    said = {"Input Dims": [[2, 3], [[4], [5, 6]], [], [2]], "Concrete Inputs": ["[False, True]"],
            "Input type": ["c10::BFloat16", "TensorList", "Scalar", "long int"]}  # fmt: skip
    backward = said | {"Concrete Inputs": ["", "[False, True, True]"]}
    short = said | {"Input type": ["float"]}
    events = [
        event(cat="cpu_op", name="aten::mm", args=said),
        event(cat="cpu_op", name="aten::convolution_backward", ts=9, args=backward),
        event(cat="cpu_op", name="aten::add", ts=20, args=short),
    ]
    names = parse(read(trace_of(tmp_path, *events)).range_labels)
    assert names.sizes[0] == ((2, 3), (4,), (5, 6), (), (2,))
    assert names.types[0] == ("c10::BFloat16", "TensorList", "TensorList", "Scalar", "long int")
    assert names.needed == (None, (False, True, True), None)
    assert names.types[2] is None


@pytest.mark.parametrize("odd", [7, "x", [[1], "x"], {"a": 1}, [[-1]], [[[[2]]]], [None]])
def test_sizes_that_cannot_be_read_are_no_error(odd: Any, tmp_path: Path) -> None:
    said = {"Input Dims": odd, "Input type": ["], [", "a, b"], "Sequence number": "x"}
    names = parse(read(trace_of(tmp_path, event(cat="cpu_op", name="f", args=said))).range_labels)
    assert names.name == ("f",)
    assert names.sizes == (None,)


def test_events_alone_are_a_trace(tmp_path: Path) -> None:
    path = build_kineto.write(tmp_path / "t.json", [event(), KERNEL_EVENT])
    assert len(read(path).ops) == 1


def test_a_file_in_many_blocks(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = read(small)
    monkeypatch.setattr("perfmodel.readers.json_stream._BLOCK", 700)
    found = read(small)
    assert np.array_equal(found.ops.start_ns, expected.ops.start_ns)
    assert found.range_labels == expected.range_labels


HOSTILE = {
    "no events": ({"traceEvents": []}, SchemaError, "expected a trace of torch.profiler"),
    "another document": ({"schema_version": 3}, SchemaError, "got JSON with schema_version"),
    "nothing": ({}, SchemaError, "got JSON with no keys"),
    "no object": ({"traceEvents": [7]}, SchemaError, r"traceEvents\[0\]: expected an object"),
    "no time": ([event(ts=None)], SchemaError, r"traceEvents\[0\]: expected a time"),
    "a time of text": ([event(), event(ts="soon")], SchemaError, r"traceEvents\[1\]: expected a t"),
    "a late time": ([event(), event(ts=1e300)], SchemaError, "expected a time"),
    "no number": ([event(ts=float("nan"))], SchemaError, "expected a time"),
    "a negative duration": ([event(dur=-1)], SchemaError, "expected a duration of 0 µs or more"),
    "an endless duration": ([event(dur=1e30)], SchemaError, "expected a duration"),
    "no name": ([event(name=None)], SchemaError, "expected a name"),
    "arguments in a list": ([event(args=[])], SchemaError, "arguments as an object"),
    "a huge correlation": ([event(args={"correlation": 2**70})], SchemaError, "'correlation'"),
    "a thread in a list": ([event(tid=["main"])], SchemaError, "'pid' and 'tid'"),
    "a process of text": ([event(pid="main")], SchemaError, "'pid' and 'tid'"),
    "no thread": ([event(tid=None)], SchemaError, "'pid' and 'tid'"),
    "a category in a list": ([event(cat=["kernel"])], SchemaError, "got events of category"),
    "a stream of text": ([KERNEL_EVENT | {"args": {"stream": "x"}}], SchemaError, "'stream'"),
    "negative bytes": (
        [event(cat="gpu_memset", pid=0, args={"bytes": -1})], SchemaError, "0 bytes or more"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_traces(name: str, tmp_path: Path) -> None:
    content, error, said = HOSTILE[name]
    path = build_kineto.write(tmp_path / "t.json", content)
    with pytest.raises(error, match=said) as raised:
        read(path)
    assert str(raised.value).startswith(str(path))


@pytest.mark.parametrize(("text", "said"), [
    ('{"traceEvents": [{"ph": "X", "na', "truncated"),
    ('{"traceEvents": [', "truncated"),
    ('{"traceEvents": [] ', "truncated"),
    ('{"traceEvents": [{"ph": nope}, ' + "{}, " * 50 + "]}", "damaged"),
    ('{"traceEvents": [{}]} and more', "end of the file"),
    ('{7: 8}', "expected a key"),
    ('{"traceEvents": [{"a": ' + "9" * 5000 + "}]}", "64 bits"),
    ('{"traceEvents": ' + "[" * 200_000 + "]}", "nested less deeply"),
])  # fmt: skip
def test_damaged_json(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(text)
    with pytest.raises(ReportError, match=said):
        read(path)


def test_what_unpacks_to_more_than_a_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blanks without end, and keys without end, are refused before they take time or memory."""
    monkeypatch.setattr(json_stream, "_LARGEST", 1 << 21)
    keys = ", ".join(f'"k{i}": 1' for i in range(10_001))
    for text, said in (
        ('{"traceEvents": [' + " " * (1 << 23) + "]}", "expected a value at character"),
        (f'{{"traceEvents": [], {keys}}}', "expected at most 10000 keys"),
    ):
        path = tmp_path / "trace.json.gz"
        path.write_bytes(gzip.compress(text.encode()))
        with pytest.raises(ReportError, match=said):
            read(path)


def test_only_the_values_that_are_asked_for_are_kept() -> None:
    text = b'{"a": [1], "events": [2], "b": {"c": 3}}'
    parsed = json_stream.JsonStream(io.BytesIO(text), Path("t"), "events", ("b",))
    assert [*parsed] == [2]
    assert parsed.beside == {"a": None, "b": {"c": 3}}
    assert parsed.characters == len(text)


def test_a_truncated_archive(tmp_path: Path) -> None:
    path = tmp_path / "t.json.gz"
    path.write_bytes(gzip.compress(json.dumps([event()] * 5000).encode())[:-100])
    with pytest.raises(ReportError, match=r"cannot be read|truncated"):
        read(path)


@pytest.mark.slow
def test_ranks_of_one_run_are_put_together(tmp_path: Path) -> None:
    report = PROGRAMS / "gpt_ddp.sqlite.xz"
    trace = read(report)
    paths = [
        build_kineto.write(tmp_path / f"{p}.json.gz", build_kineto.document(trace, p, p, 2))
        for p in range(2)
    ]
    found = analyze_reports(paths, Options())
    assert len(found.runs) == 1
    expected = analysis_of(report)
    assert [r.rank for r in found.runs[0].ranks] == [0, 1]
    ranks = [run.steps.ranks for run in (found.runs[0], expected) if run.steps]
    for one, other in zip(*ranks, strict=True):  # as recorded: other recorders cost other times
        assert one.step_s == pytest.approx(other.step_s, rel=1e-6)
        assert one.compute_s == pytest.approx(other.compute_s, rel=1e-6)
        assert one.communication_s == pytest.approx(other.communication_s, rel=1e-6)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace of two steps with operators, as one file."""
    folder = tmp_path_factory.mktemp("small")
    trace = read(operators_report(folder / "report.sqlite"))
    return build_kineto.write(folder / "small.json.gz", build_kineto.document(trace))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("analyze", "--section", "all", "TRACE", "--no-plots"), "small.json.gz  (torch.profiler)"),
        (("analyze", "--section", "all", "TRACE", "--json"), '"nsys_version": "torch.profiler"'),
        (("report", "TRACE", "-o", "OUT.html"), "Written"),
        (("compare", "TRACE", "--to", "TRACE", "--section", "answer"), "not significant"),
        (("timeline", "TRACE", "-o", "OUT.json"), "steps"),
        (("stats", "TRACE", "--report", "cuda_gpu_kern_sum"), "Instances"),
        (("stats", "TRACE", "--report", "nvtx_gpu_proj_sum"), "aten::mm"),
        (("whatif", "TRACE"), "Savings of changes"),
        (("utilization", "--report", "TRACE"), "GPU busy"),
    ],
)
def test_commands_take_a_trace(
    words: tuple[str, ...], said: str, small: Path, tmp_path: Path
) -> None:
    placed = {"TRACE": small, "OUT.html": tmp_path / "o.html", "OUT.json": tmp_path / "o.json"}
    assert said in succeeds(*(placed.get(word, word) for word in words))


def test_sizes_that_differ_from_step_to_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Texts of different lengths: no size is in most of the steps, only their operator is."""
    monkeypatch.setattr(build_operators, "STEPS", 6)
    trace = read(operators_report(tmp_path / "r.sqlite"))
    document = build_kineto.document(trace)
    for number, each in enumerate(document["traceEvents"]):
        if "Input Dims" in each.get("args", {}):
            dims = each["args"]["Input Dims"]
            if dims and dims[0]:
                each["args"]["Input Dims"] = [[8 + number, *dims[0][1:]], *dims[1:]]
    analysis = analyze_reports([build_kineto.write(tmp_path / "t.json", document)], Options())
    work = analysis.runs[0].work
    assert "aten::mm" in {row.name for row in work.operators}
    assert "aten::mm" not in {row.name for row in work.by_sizes}
    assert {row.bound for row in work.operators if row.name == "aten::mm"} == {None}
    counted = [row.flops for row in work.operators if row.name == "aten::mm"]
    assert all(counted)
    assert work.flops == pytest.approx(sum(row.flops or 0 for row in work.operators))
    assert work.flops >= sum(counted)
    assert work.phases[-1].flops == pytest.approx(work.flops)
    assert any("of sizes that fewer than half of the steps have" in w for w in work.warnings)


def test_a_trace_without_gpu_work_says_how_torch_profiler_records_it(
    small: Path, tmp_path: Path
) -> None:
    document = json.loads(gzip.decompress(small.read_bytes()))
    of_gpu = ("kernel", "gpu_", "cuda_", "ac2g")
    document["traceEvents"] = [
        each for each in document["traceEvents"] if not each.get("cat", "").startswith(of_gpu)
    ]
    path = build_kineto.write(tmp_path / "cpu.json", document)
    said = fails(4, "utilization", "--report", path)
    assert "activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]" in said
    assert "--trace" not in said


def test_names_that_are_no_text(tmp_path: Path) -> None:
    names = ["\ud800", "\0", "é" * 3000, ""]
    trace = read(trace_of(tmp_path, *(event(name=n, ts=i) for i, n in enumerate(names))))
    assert [trace.strings[c] for c in trace.api.name] == ["?", "\0", "é" * 3000, ""]


def test_a_disk_that_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr("perfmodel.readers.write_sqlite.SqliteWriter.add", full)
    with pytest.raises(ReportError, match=r"cannot be converted in .*free some space"):
        read(trace_of(tmp_path, event()))


def test_what_is_left_unread(tmp_path: Path) -> None:
    others = [
        event(cat="python_function", name="train.py(3): step", ts=-5, args={"Python id": 1}),
        event(cat="cuda_sync", name="Stream Sync"),
        {"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "python"}},
        {"ph": "i", "name": "[memory]", "cat": "cpu_instant_event", "ts": 3, "args": {"Bytes": 8}},
        {"ph": "s", "id": 1, "cat": "ac2g", "name": "ac2g", "ts": 1},
        {"ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", "pid": "Spans", "ts": 0},
    ]
    trace = read(trace_of(tmp_path, *others, event(), KERNEL_EVENT))
    assert (len(trace.ranges), len(trace.api), len(trace.ops)) == (0, 1, 1)


def test_a_program_without_a_gpu(tmp_path: Path) -> None:
    steps = [
        event(cat="user_annotation", name=f"ProfilerStep#{i}", ts=100 * i, dur=90, args={})
        for i in range(5)
    ]
    operators = [
        event(cat="cpu_op", name="aten::mm", ts=100 * i + 5, dur=50, args={}) for i in range(5)
    ]
    run = analysis_of(trace_of(tmp_path, *steps, *operators))
    assert run.measured.batch_label == "ProfilerStep#*"
    assert run.batch.median.value == pytest.approx(90e-6)


def test_gpu_operations_without_events_of_the_host(tmp_path: Path) -> None:
    """`activities=[ProfilerActivity.CUDA]` without its runtime calls."""
    path = trace_of(tmp_path, *[KERNEL_EVENT | {"ts": 10 * i} for i in range(6)])
    said = succeeds("analyze", "--section", "all", path)
    assert "torch.profiler recorded nothing of the host" in said
    assert "record with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]" in said
    assert "--trace=" not in said
    succeeds("timeline", path)


def test_advice_is_of_the_tool_that_recorded(tmp_path: Path) -> None:
    path = trace_of(tmp_path, event(cat="cpu_op", name="aten::mm", args={}))
    said = fails(4, "stats", path, "--report", "cuda_gpu_kern_sum")
    assert "ProfilerActivity.CUDA" in said
    assert "nsys" not in said
    assert "nsys profile --trace=mpi" in fails(4, "stats", path, "--report", "mpi_event_sum")


def test_a_gpu_without_a_name(tmp_path: Path) -> None:
    said = succeeds("analyze", "--section", "all", trace_of(tmp_path, event(), KERNEL_EVENT))
    assert "ran on     1 rank, 1 x GPU, not named in the report" in said


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("before", [
    (b"", "utf-8-sig"), (b" " * 100, "utf-8"), (b"\r\n" * 5000, "utf-8"), (b"", "utf-16"),
    (b"", "utf-16-le"), (b"", "utf-32-be"),
])  # fmt: skip
def test_json_behind_marks_and_blanks(
    before: tuple[bytes, str], packed: bool, tmp_path: Path
) -> None:
    blanks, encoding = before
    text = json.dumps(
        {"traceEvents": [event(), KERNEL_EVENT | {"name": "größer"}]}, ensure_ascii=False
    )
    content = blanks + text.encode(encoding)
    path = tmp_path / ("t.json.gz" if packed else "t.json")
    path.write_bytes(gzip.compress(content) if packed else content)
    trace = read(path)
    assert (len(trace.ops), "größer" in trace.strings) == (1, True)


@pytest.mark.parametrize("name", ["t.json", "t.json.gz"])
@pytest.mark.parametrize(("content", "expected"), [
    (b"", "the file is empty; record it again with torch.profiler.profile(activities="),
    (b" \n", "expected a trace of torch.profiler; got something else; record one with torch.prof"),
    (b"no JSON", "expected a trace of torch.profiler; got something else; record one with torch."),
])  # fmt: skip
def test_what_is_named_json_and_is_none(
    name: str, content: bytes, expected: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    with pytest.raises(ReportError) as raised:
        read(path)
    assert expected in str(raised.value)
    assert "nsys" not in str(raised.value)
