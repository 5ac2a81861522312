"""Traces that other projects published: each is read whole, or refused for a true reason.

They are of AMD-AGI/TraceLens, facebookresearch/HolisticTraceAnalysis, facebookresearch/param,
pytorch/kineto (of its history, too) and deepseek-ai/profile-data.
"""

from __future__ import annotations

import json
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Final

import pytest
from readers.test_kineto_variants import LAUNCH, OPERATOR, STEP, WORK, as_of_2021

from perfmodel.base.errors import SchemaError
from perfmodel.base.files import opened_unpacked
from perfmodel.readers import read
from perfmodel.readers.trace import KERNEL, Trace
from support import build_serving
from support.build_kineto import trace_event, write
from support.public_recordings import NAMES, folder, small

TRACES: Final = [name for name in NAMES if name.endswith(".json.xz")]

REFUSED: Final = {
    "*_et.json.gz": "got an execution trace of PyTorch, which has no times of GPU work",
    "908_results.json.gz": "got JSON of rocprofv3, which has no operators and no steps of PyTorch",
    "cpu_op_map*.json": "got JSON with aten::_softmax",
    "openapi.json": "got JSON with openapi, info",
    "s3_init_config.json": "got JSON with HOW TO UPDATE THE BINARIES",
    "q111.json": "got JSON with id, version",
    "test_mm*.json": "got JSON with ",
    "test_native_basic_ops.json": "got JSON with torch.",
    "aten_ops.json": "got JSON with aten::add",
    "llama2.json": "got JSON with torch.mm",
    "mm_range.json": "got JSON with torch.baddbmm, torch.bmm",
}
"""Files that are no traces of torch.profiler, and what they are."""

_RANGES: Final = ("user_annotation", "cpu_op", "Operator")
_KERNELS: Final = ("kernel", "Kernel")
_COPIES: Final = ("gpu_memcpy", "gpu_memset", "Memcpy", "Memset")


def events_of(path: Path) -> list[dict[str, Any]]:
    with opened_unpacked(path) as stream:
        said = json.loads(stream.read().decode("utf-8", "replace"), strict=False)
    events = said["traceEvents"] if isinstance(said, dict) else said
    return [each for each in events if each.get("ph") == "X"]


def check(path: Path) -> Trace:
    """Compare a trace with its JSON: nothing that is read is lost, and ids join as they did."""
    trace, events = read(path), events_of(path)
    kinds = [each.get("cat") for each in events]
    names = {each["name"] for each in events if each.get("cat") == "user_annotation"}
    on_gpu = [e for e in events if e.get("cat") == "gpu_user_annotation" and e["name"] not in names]
    mtia = [each["name"] for each in events if each.get("cat") == "mtia_ccp_events"]
    kernels = sum(map(kinds.count, _KERNELS)) + sum(
        name not in ("dma_request", "event_wait", "event_record") for name in mtia
    )
    copies = sum(map(kinds.count, _COPIES)) + mtia.count("dma_request")
    modules = [each for each in events if each["name"].startswith("nn.Module: ")]
    assert len(trace.ranges) == sum(map(kinds.count, _RANGES)) + len(on_gpu) + len(modules)
    assert int((trace.ops.kind == KERNEL).sum()) == kernels
    assert len(trace.ops) == kernels + copies
    calls = {
        int(each["args"]["correlation"])
        for each in events
        if "untime" in each.get("cat", "") or each.get("cat") == "cuda_driver"
        if "correlation" in each["args"]
    }
    assert set(trace.api.correlation.tolist()) == calls
    assert len(trace.processes) <= 1
    return trace


GPU_ONLY = trace_event("gpu_user_annotation", "nccl:all_reduce", pid=0, tid=7, dur=9)
BOTH = trace_event("gpu_user_annotation", "ProfilerStep#3", pid=0, tid=7, dur=9)
BUILT: Final[dict[str, list[dict[str, Any]]]] = {
    "a replayed decode": build_serving.decode("vllm")["traceEvents"],
    "a capture": build_serving.capture("sglang")["traceEvents"],
    "the host alone": [STEP, OPERATOR, LAUNCH],
    "kernels and launches alone": [LAUNCH, WORK, {**WORK, "ts": 50}],
    "ids that are texts": [as_of_2021(event) for event in (STEP, OPERATOR, LAUNCH, WORK)],
    "modules": [STEP, LAUNCH, WORK, trace_event("python_function", "nn.Module: Net_0"),
                trace_event("python_function", "train.py(3): main")],
    "ranges of the GPU": [STEP, LAUNCH, WORK, GPU_ONLY, BOTH],
}  # fmt: skip
"""Events of traces as others wrote them."""


@pytest.mark.parametrize("name", BUILT)
def test_built_traces(name: str, tmp_path: Path) -> None:
    check(write(tmp_path / "t.json", {"traceEvents": BUILT[name]}))


@pytest.mark.parametrize("name", TRACES)
def test_small_traces(name: str) -> None:
    check(small(name))


def test_a_trace_of_2021_has_its_step_and_gpu() -> None:
    trace = check(small("training_v100_2021.json.xz"))
    assert "ProfilerStep#2" in trace.range_labels
    assert {gpu.name for gpu in trace.gpus} == {"Tesla V100-DGXS-32GB"}
    assert {gpu.sm_count for gpu in trace.gpus} == {80}


@pytest.mark.slow
def test_every_public_trace() -> None:
    paths = sorted(path for path in folder().rglob("*.json*") if path.name not in NAMES)
    assert paths, f"expected traces below {folder()}; got none; set PERFMODEL_PUBLIC to another"
    wrong = []
    for path in paths:
        reason = next((why for name, why in REFUSED.items() if fnmatch(path.name, name)), None)
        try:
            check(path)
        except SchemaError as error:
            if reason is None or reason not in str(error):
                wrong.append(str(error))
        except Exception as error:
            wrong.append(f"{path}: {type(error).__name__}: {error}")
        else:
            if reason is not None:
                wrong.append(f"{path}: expected to be refused: {reason}; got a trace")
    assert not wrong, "\n".join(wrong)
