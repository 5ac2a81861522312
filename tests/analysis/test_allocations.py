"""Recordings of PyTorch's allocator: the peak, what is alive at it, and files that do harm."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from perfmodel.analysis.allocations import BEFORE, Alive, Peak, peak_of
from perfmodel.base.errors import ReportError
from perfmodel.readers.allocator_snapshot import read_snapshot
from perfmodel.readers.profiler_memory import read_profiler
from support.build_kineto import trace_event, write
from support.cli import perfmodel
from support.public_recordings import small

MEMORY = Path(__file__).parents[2] / "profiles" / "memory"
PROGRAMS = MEMORY.parent / "programs"
OF_TORCH = {
    "PARAMETER": "parameters", "OPTIMIZER_STATE": "optimizer", "GRADIENT": "gradients",
    "INPUT": "activations", "ACTIVATION": "activations", "AUTOGRAD_DETAIL": "activations",
    "TEMPORARY": "activations",
}  # fmt: skip
"""Kinds by the categories of torch.profiler."""


def event(action: str, address: int, size: int, *frames: tuple[str, str, int]) -> dict[str, Any]:
    shown = [{"filename": f, "name": n, "line": k} for f, n, k in frames]
    return {"action": action, "addr": address, "size": size, "time_us": address, "frames": shown}


def freed(address: int, size: int, *frames: tuple[str, str, int]) -> list[dict[str, Any]]:
    return [event(f"free_{word}", address, size, *frames) for word in ("requested", "completed")]


LAYER = (
    ("??", "at::_ops::empty_memory_format::call(c10::ArrayRef<c10::SymInt>)", 0),
    ("??", "at::_ops::addmm::call(at::Tensor const&)", 0),
    ("/x/torch/nn/modules/linear.py", "forward", 12),
    ("/home/me/model.py", "forward", 7),
)
BACKWARD = (
    ("??", "at::_ops::mm::call(at::Tensor const&)", 0),
    ("??", "torch::autograd::Engine::thread_init(int)", 0),
)
CUBLAS = (("??", "at::cuda::getCurrentCUDABlasHandle()", 0), *BACKWARD)
ADAM = (("/x/torch/optim/adamw.py", "step", 9), ("/home/me/model.py", "train", 30))
TRAIN = (("/home/me/model.py", "train", 31),)


def snapshot(path: Path, *events: dict[str, Any], held: int = 100, reserved: int = 512) -> Path:
    blocks = [
        {"address": 1, "size": held, "state": "active_allocated"},
        {"address": 1 + held, "size": reserved - held, "state": "inactive"},
    ]
    segment = {"device": 0, "address": 1, "total_size": reserved, "blocks": blocks}
    path.write_bytes(pickle.dumps({"segments": [segment], "device_traces": [[*events]]}))
    return path


def plain(path: Path) -> Path:
    """100 bytes before the recording; 30 by a layer, 50 by nothing known; the peak is 180."""
    return snapshot(
        path, event("alloc", 200, 30, *LAYER), event("alloc", 300, 50), *freed(300, 50),
        *freed(200, 30),
    )  # fmt: skip


def test_the_peak_and_what_is_alive(tmp_path: Path) -> None:
    (found,) = read_snapshot(plain(tmp_path / "s.pickle"))
    peak = peak_of(found)
    assert (peak.peak_bytes, peak.end_bytes, peak.reserved_bytes) == (180, 100, 512)
    assert (peak.peak_us, peak.phase, peak.peak_reserved_bytes) == (300, "backward", 512)
    assert peak.in_use_bytes.tolist() == [130, 180, 130, 100]
    assert peak.alive == (
        Alive("before the recording", BEFORE, "", "", 1, 100),
        Alive("activations", "", "", "", 1, 50),
        Alive("activations", "model.py:7 forward", "linear", "aten::addmm", 1, 30),
    )
    assert sum(row.bytes for row in peak.alive) == peak.peak_bytes


def step(base: int) -> list[dict[str, Any]]:
    """One step: 30 saved, 8 for a moment, a gradient of 20, 4 of the optimizer for a moment."""
    return [
        event("alloc", base, 30, *LAYER), event("alloc", base + 1, 8, *BACKWARD),
        event("alloc", base + 2, 20, *BACKWARD), *freed(base + 1, 8, *BACKWARD),
        *freed(base, 30, *BACKWARD), event("alloc", base + 3, 4, *ADAM),
        *freed(base + 3, 4, *ADAM), *freed(base + 2, 20, *TRAIN),
    ]  # fmt: skip


def test_the_kind_follows_from_the_passes_that_allocate_and_free(tmp_path: Path) -> None:
    path = snapshot(tmp_path / "s.pickle", *step(1000), *step(2000), *step(3000))
    peak = peak_of(read_snapshot(path)[0])
    # every parameter has a gradient of its size: 20 of the 100 bytes from before are parameters
    assert peak.by_kind == {"parameters": 20, "optimizer": 80, "gradients": 20, "activations": 38}
    assert peak.peak_bytes == 158
    assert peak.curves_bytes["gradients"].max() == 20
    assert peak.curves_bytes["workspace"].max() == 4
    assert sum(peak.curves_bytes.values()).tolist() == peak.in_use_bytes.tolist()


def test_states_and_workspaces_outlive_the_step_that_made_them(tmp_path: Path) -> None:
    events = [
        event("alloc", 5, 20, *TRAIN), event("alloc", 6, 7, *CUBLAS), *step(1000)[:-2],
        event("alloc", 7, 40, *ADAM), *step(1000)[-2:], *step(2000), *step(3000),
    ]  # fmt: skip
    peak = peak_of(read_snapshot(snapshot(tmp_path / "s.pickle", *events, held=67))[0])
    assert peak.by_kind == {
        "parameters": 20, "optimizer": 40, "gradients": 20, "activations": 38, "workspace": 7,
    }  # fmt: skip


def test_reserved_memory_is_known_at_the_peak(tmp_path: Path) -> None:
    segment = {"action": "segment_alloc", "addr": 0, "size": 400, "time_us": 150}
    path = snapshot(
        tmp_path / "s.pickle", segment, event("alloc", 200, 30, *LAYER), *freed(200, 30, *TRAIN),
        {**segment, "action": "segment_free"}, {**segment, "action": "alloc", "size": 1},
        *freed(0, 1),
    )  # fmt: skip
    peak = peak_of(read_snapshot(path)[0])
    assert (peak.peak_reserved_bytes, peak.reserved_bytes) == (912, 512)


def test_the_command_prints_it(tmp_path: Path) -> None:
    said = perfmodel("memory", str(plain(tmp_path / "s.pickle")), "--json")
    (gpu,) = json.loads(said.stdout)["gpus"]
    assert gpu["peak_bytes"] == 180
    assert [row["bytes"] for row in gpu["alive"]] == [100, 50, 30]


def recorded() -> Peak:
    (found,) = read_profiler(MEMORY / "torch_cpu.json.xz")
    return peak_of(found)


def test_kinds_in_a_trace_are_those_that_pytorch_says_of_its_tensors() -> None:
    truth = json.loads((MEMORY / "torch_cpu.truth.json").read_text(encoding="utf-8"))
    expected: dict[str, int] = {}
    for category, size in truth["peak_bytes"].items():
        expected[OF_TORCH[category]] = expected.get(OF_TORCH[category], 0) + size
    peak = recorded()
    assert peak.by_kind == expected
    assert peak.peak_bytes == sum(expected.values())


def test_memory_follows_by_arithmetic_from_the_program() -> None:
    width, layers, words, tokens = 64, 3, 100, 8 * 32
    a_layer = 2 * width + width * 4 * width + 4 * width + 4 * width * width + width
    parameters = 4 * (words * width + layers * a_layer + width * words + words)
    peak = recorded()
    assert peak.by_kind["parameters"] == parameters
    steps = 4 * len({"words", "head", "head's"} | {(i, j) for i in range(layers) for j in range(6)})
    assert peak.by_kind["optimizer"] == 2 * parameters + steps
    inner = [row for row in peak.alive if row.operator == "aten::clamp_min"]
    assert [row.bytes for row in inner] == [4 * tokens * 4 * width] * layers
    assert inner[0].module == "Net_0.Sequential_0.Block_0"
    assert inner[0].line.startswith("torch_cpu.py:")
    backward = next(row for row in peak.alive if row.operator == "aten::threshold_backward")
    assert backward.module == "Net_0.Sequential_0.Block_2"  # of the forward operator


def test_a_forward_pass_on_a_gpu_has_its_peak_in_an_operator(tmp_path: Path) -> None:
    """A GPU holds 1000 B of weights before; those of the host do not count."""

    def host(category: str, name: str, ts: float, dur: float) -> dict[str, Any]:
        return trace_event(category, name, tid=10, ts=ts, dur=dur)

    events = [
        host("user_annotation", "ProfilerStep#2", 0, 100),
        host("python_function", "net.py(5): main", 0, 100),
        host("python_function", "nn.Module: Net_0", 5, 80),
        host("cpu_op", "aten::embedding", 10, 10),
        host("python_function", "nn.Module: Linear_1", 25, 40),
        host("cpu_op", "aten::addmm", 30, 20), host("cpu_op", "aten::gelu", 52, 8),
    ]  # fmt: skip
    in_use = 1000
    for ts, size, address in ((12, 64, 1), (35, 500, 2), (55, 30, 3), (58, -30, 3), (70, -64, 1)):
        in_use += size
        said = {"Total Reserved": 4096, "Total Allocated": in_use, "Bytes": size, "Addr": address,
                "Device Id": 0, "Device Type": 1}  # fmt: skip
        of_host = said | {"Bytes": 7, "Addr": 90 + ts, "Device Type": 0, "Device Id": -1}
        for args in (said, of_host):
            instant = {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "ts": ts}
            events.append({**instant, "pid": 10, "tid": 10, "args": args})
    (found,) = read_profiler(write(tmp_path / "t.json", {"traceEvents": events}))
    peak = peak_of(found)
    assert (peak.device, peak.phase, peak.operator) == (0, "forward", "aten::gelu")
    assert (peak.peak_reserved_bytes, peak.peak_bytes) == (4096, 1594)
    alive = {row.operator: (row.bytes, row.module, row.line) for row in peak.alive}
    assert alive["aten::addmm"] == (500, "Net_0.Linear_1", "net.py:5 in main")
    assert alive["aten::embedding"] == (64, "Net_0", "net.py:5 in main")
    assert sum(row.bytes for row in peak.alive) == 1594


def test_a_forward_pass_on_a_gpu_is_read() -> None:
    """A forward pass of TraceLens's bert-small on an H100: the logits are the largest block."""
    (found,) = read_profiler(small("bert_h100.json.xz"))
    peak = peak_of(found)
    assert (peak.device, peak.phase, peak.operator) == (0, "forward", "aten::addmm")
    assert peak.peak_reserved_bytes > peak.peak_bytes > found.in_use_bytes[0] > 0
    logits = next(row for row in peak.alive if row.operator == "aten::addmm")
    assert logits.bytes == pytest.approx(141 * 30522 * 2, rel=0.15)
    assert logits.module.endswith("Linear_25")


def test_a_report_without_memory_gives_an_estimate() -> None:
    said = perfmodel("memory", str(PROGRAMS / "gpt_fp32_shapes.sqlite.xz"), "--json")
    found = json.loads(said.stdout)
    assert found["estimated"]
    assert max(found["curve_bytes"]) == found["peak_bytes"] == sum(found["by_kind"].values())
    activations = found["by_kind"]["activations"] + found["by_kind"]["gradients"]
    assert sum(row["bytes"] for row in found["alive"]) == pytest.approx(activations, rel=0.01)


class Harm:
    """What would create a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("harmful", [True, False])
def test_other_files_are_refused_and_nothing_is_executed(tmp_path: Path, harmful: bool) -> None:
    made, path = tmp_path / "made", tmp_path / "s.pickle"
    path.write_bytes(pickle.dumps(Harm(made)) if harmful else pickle.dumps({"segments": []}))
    with pytest.raises(ReportError, match="expected a snapshot of PyTorch's allocator"):
        read_snapshot(path)
    assert not made.exists()
