"""Traces of torch.profiler as its versions, other accelerators and other programs write them."""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

import pytest

import perfmodel
from perfmodel.base.errors import ReportError, SchemaError
from perfmodel.readers import json_stream, read
from perfmodel.readers.nvtx import GPU_DOMAIN
from perfmodel.readers.trace import KERNEL, MEMCPY, MEMSET, NULL
from support import build_kineto
from support.build_kineto import trace_event as event

STEP = event("user_annotation", "ProfilerStep#3", ts=0, dur=50)
OPERATOR = event("cpu_op", "aten::mm", ts=1, dur=20)
LAUNCH = event("cuda_runtime", "cudaLaunchKernel", ts=2, dur=3, args={"correlation": 7})
WORK = event(
    "kernel", "gemm", pid=0, tid=3, ts=9, dur=30,
    args={"device": 0, "stream": 3, "correlation": 7},
)  # fmt: skip


def trace_of(folder: Path, *events: Any, **beside: Any) -> Path:
    return build_kineto.write(folder / "t.json", {"traceEvents": events, **beside})


def as_of_2021(each: dict[str, Any]) -> dict[str, Any]:
    """Name an event as PyTorch 1.8.1 does: ids as texts, other categories, times in whole µs."""
    categories = {"user_annotation": "Operator", "cpu_op": "Operator", "cuda_runtime": "Runtime",
                  "kernel": "Kernel", "gpu_memcpy": "Memcpy", "gpu_memset": "Memset"}  # fmt: skip
    on_gpu = each["cat"] in ("kernel", "gpu_memcpy", "gpu_memset")
    tid = f"stream {each['tid']}" if on_gpu else str(each["tid"])
    return each | {"cat": categories[each["cat"]], "tid": tid, "pid": str(each["pid"])}


def test_ids_that_are_texts_are_those_that_they_say(tmp_path: Path) -> None:
    events = [STEP, OPERATOR, LAUNCH, WORK | {"args": {"correlation": 7}}]
    expected = read(trace_of(tmp_path, *events))
    found = read(trace_of(tmp_path, *map(as_of_2021, events)))
    assert found.range_labels == expected.range_labels == ("ProfilerStep#3", "aten::mm")
    assert found.threads.tolist() == expected.threads.tolist()
    assert found.processes.tolist() == expected.processes.tolist()
    assert found.ops.stream.tolist() == expected.ops.stream.tolist() == [3]
    assert found.ops.device.tolist() == expected.ops.device.tolist() == [0]
    assert found.ops.process.tolist() == [found.thread_process[found.api.thread[0]]]


def test_a_thread_may_have_a_name(tmp_path: Path) -> None:
    events = [LAUNCH | {"tid": "main"}, OPERATOR | {"tid": "main"}, LAUNCH | {"tid": "reader"}]
    found = read(trace_of(tmp_path, *events))
    assert len(found.threads) == 2
    assert found.api.thread[0] == found.ranges.thread[0] != found.api.thread[1]


@pytest.mark.parametrize("correlation", ["7", 7])
def test_numbers_that_are_texts(correlation: object, tmp_path: Path) -> None:
    copy = event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", pid=0, tid=3, args={
        "device": "0", "stream": str(2**64 - 1), "bytes": "64", "correlation": correlation,
    })  # fmt: skip
    trace = read(trace_of(tmp_path, LAUNCH, copy))
    assert trace.ops.correlation.tolist() == trace.api.correlation.tolist() == [7]
    assert (trace.ops.bytes[0], trace.ops.stream[0]) == (64, -1)


@pytest.mark.parametrize("key", ["Input Dims", "Input dims"])
def test_sizes_under_both_names(key: str, tmp_path: Path) -> None:
    trace = read(trace_of(tmp_path, OPERATOR | {"args": {key: [[2, 3], []], "Input type": []}}))
    assert trace.range_labels == ("aten::mm, sizes = [[2, 3], []]",)


@pytest.mark.parametrize(("key", "facts"), [
    ("deviceProperties", {"numSms": 80, "computeMajor": 7, "computeMinor": 0}),
    ("computeProperties", {"multiProcessorCount": 80, "major": 7, "minor": 0}),
])  # fmt: skip
def test_what_the_gpu_is(key: str, facts: dict[str, int], tmp_path: Path) -> None:
    said = {key: [{"id": 0, "name": "Tesla V100", "totalGlobalMem": 34084028416, **facts}]}
    (gpu,) = read(trace_of(tmp_path, LAUNCH, WORK, **said)).gpus
    assert (gpu.name, gpu.sm_count, gpu.compute_capability) == ("Tesla V100", 80, (7, 0))


def test_a_gpu_of_which_only_the_name_is_known(tmp_path: Path) -> None:
    said = [{"id": 17, "name": "ARTEMIS"}, {"name": "no number"}, {"id": 18, "name": ""}]
    gpu, other = read(trace_of(tmp_path, LAUNCH, WORK, deviceProperties=said)).gpus
    assert other.name == "unnamed GPU"
    assert (gpu.id, gpu.name, gpu.sm_count, gpu.compute_capability) == (17, "ARTEMIS", None, None)


@pytest.mark.parametrize("category", [
    "hip_runtime", "hip_driver", "xpu_runtime", "privateuse1_runtime", "cuda_driver",
])  # fmt: skip
def test_calls_of_other_runtimes(category: str, tmp_path: Path) -> None:
    launch = LAUNCH | {"cat": category, "name": "hipModuleLaunchKernel"}
    trace = read(trace_of(tmp_path, launch, WORK))
    assert [trace.strings[c] for c in trace.api.name] == ["hipModuleLaunchKernel"]
    assert trace.api.correlation.tolist() == trace.ops.correlation.tolist()


@pytest.mark.parametrize(("name", "direction", "memory"), [
    ("CopyDeviceToHost", 2, (2, 7)),
    ("CopyHostToDevice", 1, (7, 2)),
    ("CopyDeviceToDevice2D", 8, (2, 2)),
    ("Memcpy HtoD (Host -> Device)", 1, (7, 2)),
    ("Memcpy <unknown> (? -> ?)", 0, (7, 7)),
    ("Memcpy M2D (Host -> Device)", 1, (7, 2)),
    ("Copy", 0, (7, 7)),
])  # fmt: skip
def test_copies_of_rocm_and_xpu(
    name: str, direction: int, memory: tuple[int, int], tmp_path: Path
) -> None:
    copy = WORK | {"cat": "gpu_memcpy", "name": name}
    ops = read(trace_of(tmp_path, LAUNCH, copy)).ops
    assert (ops.kind[0], ops.copy_kind[0]) == (MEMCPY, direction)
    assert (ops.src_kind[0], ops.dst_kind[0]) == memory
    assert ops.bytes[0] == NULL


def test_roctracer_has_copies_as_kernels(tmp_path: Path) -> None:
    names = ["CopyDeviceToHost", "FillBuffer", "CopyDeviceToHostKernel"]
    trace = read(trace_of(tmp_path, LAUNCH, *(WORK | {"name": name} for name in names)))
    assert sorted(trace.ops.kind.tolist()) == [KERNEL, MEMCPY, MEMSET]
    assert trace.strings[trace.ops.name[0]] == "CopyDeviceToHostKernel"


def test_work_and_calls_of_mtia(tmp_path: Path) -> None:
    def on_device(name: str, **args: Any) -> dict[str, Any]:
        return event("mtia_ccp_events", name, pid=17, tid=3536, ts=9, args={"stream": 101, **args})

    start = event("mtia_runtime", "runFunction - job_prep_and_submit_for_execution",
                  args={"correlation": 5, "device": 17})  # fmt: skip
    events = [
        start, start | {"name": "synchronize", "pid": 17},
        event("mtia_runtime", "predictor_executor::run", args={"device": 17}),
        on_device("fc-dtype_Float", correlation=5),
        on_device("dma_request", direction="HOST_TO_DEVICE", size=1852),
        event("mtia_ccp_events", "dma_request", pid=17, tid=801,
              args={"direction": "DEVICE_TO_HOST", "size": 16}),
        on_device("event_wait", wait_on_stream=104), on_device("event_record", correlation=5),
    ]  # fmt: skip
    trace = read(trace_of(tmp_path, *events))
    assert [trace.strings[c] for c in trace.api.name] == [start["name"]]
    ops = trace.ops
    assert ops.kind.tolist() == [KERNEL, MEMCPY, MEMCPY]
    copies = zip(*(c[1:].tolist() for c in (ops.copy_kind, ops.bytes, ops.stream)), strict=True)
    assert sorted(copies) == [(1, 1852, 101), (2, 16, 801)]
    assert ops.correlation.tolist() == [5, NULL, NULL]
    assert set(ops.device.tolist()) == {17}
    assert ops.stream[0] == 101
    assert len(trace.processes) == 1


def test_an_array_alone_with_windows_paths(tmp_path: Path) -> None:
    """A backslash before n begins an escape, so that it cannot be told from a line's end."""
    path = tmp_path / "t.json"
    said = json.dumps([LAUNCH, WORK, OPERATOR | {"name": "PATH"}])
    path.write_text(said.replace("PATH", r"C:\Users\x\.venv\new.py"))
    assert read(path).range_labels == ("C:\\Users\\x\\.venv\new.py",)


@pytest.mark.parametrize("block", [7, 64, 1 << 20])
def test_texts_and_numbers_that_are_not_json(
    block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_stream, "_BLOCK", block)
    bad = r"""[{"ph": "X", "cat": "cpu_op", "name": "a\x\u12_\\\q nan, infCONTROL", "ts": 1,
        "dur": 2, "pid": 1, "tid": 1, "args": {"GB/s": inf, "o": -nan, "p": NaN, "q": -Infinity,
        "r": N/A}},
        {"ph": "X", "cat": "cpu_op", "name": "\ud83d\ude00\/\z", "ts": 3, "dur": 1, "pid": 1,
        "tid": 1}]""".replace("CONTROL", "\x01\n")
    path = tmp_path / "t.json"
    path.write_text(bad)
    names = read(path).range_labels
    assert names == ("a\\x\\u12_\\\\q nan, inf\x01\n", "\N{GRINNING FACE}/\\z")


@pytest.mark.parametrize("block", [50, 1 << 20])
def test_names_with_quotation_marks(
    block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Frames of torch.compile have the text of a dict as their file."""
    monkeypatch.setattr(json_stream, "_BLOCK", block)
    line = """{
    "ph": "X", "cat": "cpu_op", "name": "NAME", "pid": 1, "tid": 1,
    "ts": 1, "dur": 2,
    "args": {
      "Record function id": 0
    }
  }"""
    names = ['{"device": "cpu", "dtype": nan}(12): run', r"a\"b\" C:\z", "plain", "\\"]
    text = ", ".join(line.replace("NAME", name) for name in names)
    (tmp_path / "t.json").write_text(f'{{"traceEvents": [{text}]}}')
    assert {*read(tmp_path / "t.json").range_labels} == {
        '{"device": "cpu", "dtype": nan}(12): run', 'a"b" C:\\z', "plain", "\\",
    }  # fmt: skip


@pytest.mark.parametrize("text", ['[{"a": "b\\', '[{"a": "b\\u1', '[{"a": "\\q', '[{"a": na'])
def test_a_file_that_ends_in_a_bad_text_is_truncated(text: str, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(text)
    with pytest.raises(ReportError, match="truncated"):
        read(path)


def test_an_error_behind_a_repair_is_said_where_it_is(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text('[{"a": "\\q"}, {"b": "c"}, ?' + " " * 100)
    with pytest.raises(ReportError, match="at character 26"):
        read(path)


def test_annotations_that_only_the_gpu_has(tmp_path: Path) -> None:
    def on_gpu(name: str, **changes: Any) -> dict[str, Any]:
        return event("gpu_user_annotation", name, pid=0, tid=3, ts=9, dur=30) | changes

    events = [
        on_gpu("ProfilerStep#3"), STEP, LAUNCH, WORK,  # before and behind its host's
        on_gpu("ProfilerStep#3"), on_gpu("forward"), on_gpu("forward", tid=4, ts=12),
    ]  # fmt: skip
    trace = read(trace_of(tmp_path, *events))
    domains = [trace.range_domains[c] for c in trace.ranges.name]
    assert domains == ["", GPU_DOMAIN, GPU_DOMAIN]
    assert [trace.range_labels[c] for c in trace.ranges.name] == ["ProfilerStep#3"] + [
        "forward"
    ] * 2
    assert trace.ranges.start_ns.tolist() == [0, 9000, 12000]
    assert trace.ranges.end_ns.tolist() == [50_000, 39_000, 42_000]
    host, *rows = trace.ranges.thread.tolist()
    assert len({host, *rows}) == 3
    assert host == trace.api.thread[0]
    assert len(trace.processes) == 1


def test_steps_that_only_the_gpu_has(tmp_path: Path) -> None:
    step = event("gpu_user_annotation", "ProfilerStep#3", pid=0, tid=3, ts=9, dur=30)
    trace = read(trace_of(tmp_path, WORK, step))
    assert trace.range_labels == ("ProfilerStep#3",)
    assert len(trace.processes) == 1
    assert trace.ops.process.tolist() == [trace.thread_process[trace.ranges.thread[0]]]


def test_kernels_alone(tmp_path: Path) -> None:
    """Each counts as launched when it begins."""
    trace = read(trace_of(tmp_path, WORK, WORK | {"ts": 99}))
    assert (len(trace.ranges), len(trace.api), len(trace.ops)) == (0, 2, 2)
    assert trace.api.start_ns.tolist() == trace.ops.start_ns.tolist() == [0, 90_000]
    assert len({*trace.ops.correlation.tolist()}) == 2
    assert "nothing of the host" in trace.diagnostics[0].text


def test_operations_of_annotations_that_only_the_gpu_has(tmp_path: Path) -> None:
    """Each step holds the kernels that run in it."""
    steps = [
        event("gpu_user_annotation", f"ProfilerStep#{i}", pid=0, tid=3, ts=100 * i, dur=90)
        for i in range(8)
    ]
    kernels = [WORK | {"ts": 100 * i + at} for i in range(8) for at in (5, 45)]
    found = perfmodel.analyze(trace_of(tmp_path, *kernels, *steps)).to_dict()
    assert found["batch"]["found_by"] == "declared"
    assert found["levels"][0]["count"] == 8
    assert [rank["gpu_busy_s"] for rank in found["ranks"]] == pytest.approx([60e-6])


def test_the_host_alone(tmp_path: Path) -> None:
    trace = read(trace_of(tmp_path, STEP, OPERATOR))
    assert (len(trace.ranges), len(trace.api), len(trace.ops)) == (2, 0, 0)


@pytest.mark.parametrize(
    "said", [None, [], {"rank": 1}, {"rank": 2, "world_size": 2}, {"rank": "1", "world_size": 2}]
)
def test_ranks_that_are_none(said: Any, tmp_path: Path) -> None:
    trace = read(trace_of(tmp_path, STEP, LAUNCH, WORK, distributedInfo=said))
    assert (trace.ranks, trace.world_size) == ({}, None)
    last = {"backend": "nccl", "rank": 1, "world_size": 2}
    trace = read(trace_of(tmp_path, STEP, LAUNCH, WORK, distributedInfo=last))
    assert ([*trace.ranks.values()], trace.world_size) == ([1], 2)


def test_many_kernels_before_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perfmodel.readers.kineto._ROWS", 100)
    trace = read(trace_of(tmp_path, *[WORK] * 250, LAUNCH, WORK))
    assert len(trace.processes) == 1
    assert set(trace.ops.process.tolist()) == {trace.thread_process[trace.api.thread[0]]} == {0}


def test_a_range_that_recording_cut_off_has_no_end(tmp_path: Path) -> None:
    trace = read(trace_of(tmp_path, OPERATOR | {"dur": -1623142623460172}, LAUNCH, WORK))
    assert trace.ranges.end_ns.tolist() == [NULL]


def test_operations_without_a_time_are_left_out(tmp_path: Path) -> None:
    """Kineto of early 2021 writes kernels at 0 (pytorch/kineto, issue 109)."""
    lost = WORK | {"ts": 0, "dur": 0}
    late = [each | {"ts": 1_615_207_264_505_000} for each in (LAUNCH, WORK)]
    trace = read(trace_of(tmp_path, lost, *late, lost))
    assert trace.ops.start_ns.tolist() == trace.api.start_ns.tolist() == [0]
    said = [(d.severity, d.text) for d in trace.diagnostics]
    assert said == [("warning", "torch.profiler recorded no times of 2 GPU operations")]


@pytest.mark.parametrize("suffix", [".json.xz", ".json.zst", ".pt.trace.json.zst"])
def test_compressed_traces(suffix: str, tmp_path: Path) -> None:
    content = json.dumps({"traceEvents": [LAUNCH, WORK]}).encode()
    path = tmp_path / f"t{suffix}"
    if suffix.endswith(".xz"):
        path.write_bytes(lzma.compress(content))
    else:
        path.write_bytes(build_kineto.zstd_frames(content[:40], content[40:]))
    assert len(read(path).ops) == 1


@pytest.mark.parametrize(("magic", "suffix"), [
    (b"\x1f\x8b", ".gz"), (b"\xfd7zXZ", ".xz"), (b"\x28\xb5\x2f\xfd", ".zst"),
])  # fmt: skip
def test_a_packed_trace_under_another_name(magic: bytes, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(magic + bytes(100))
    with pytest.raises(ReportError, match=rf"name it \.json\{suffix}"):
        read(path)


@pytest.mark.parametrize(("content", "reason"), [
    ({"schema": "1.1.0", "pid": 1, "nodes": [{}]}, "got an execution trace of PyTorch, which has"),
    ({"traceEvents": [event("python_function", "f")]}, "got events of category 'python_function'"),
    ([event("", "f")], "got events of no category"),
    ([{**event("", "aten::mm"), "pid": "CPU functions"}], "torch.autograd.profiler, which do not"),
])  # fmt: skip
def test_what_is_no_trace_of_torch_profiler(content: Any, reason: str, tmp_path: Path) -> None:
    path = build_kineto.write(tmp_path / "t.json", content)
    with pytest.raises(SchemaError) as raised:
        read(path)
    assert "expected a trace of torch.profiler, with operators or kernels" in str(raised.value)
    assert reason in str(raised.value)
    assert "record one with torch.profiler.profile" in str(raised.value)


def test_json_of_rocprofv3(tmp_path: Path) -> None:
    content = {"rocprofiler-sdk-tool": [{"buffer_records": {}}]}
    with pytest.raises(SchemaError, match=r"got JSON of rocprofv3.*--output-format rocpd"):
        read(build_kineto.write(tmp_path / "t.json", content))


def test_another_tools_file_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text('{"rocprofiler-sdk-tool": [{"cut off')
    with pytest.raises(SchemaError, match="rocprofv3"):
        read(path)
