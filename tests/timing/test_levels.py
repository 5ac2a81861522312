"""Levels around and inside steps: layers, phases, epochs; few declared steps; what names say."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import perfmodel
from benchmarks.common.folders import PROGRAMS
from perfmodel.analysis.analyze import analyze_reports
from perfmodel.base.errors import SchemaError
from perfmodel.programs.program import Options
from perfmodel.timing.declared import said_by
from support.build_kineto import trace_event as event
from support.cli import succeeds

MS = 1000  # times of these traces are in µs


class Program:
    """Kernels that calls launch, and ranges; the GPU does one after the other."""

    def __init__(self, *, lag: float = 5) -> None:
        self.events: list[Any] = []
        self.busy_until, self.lag, self.launches = 0.0, lag, 0

    def call(self, at: float, pid: int = 1) -> int:
        self.launches += 1
        made = event("cuda_runtime", "cudaLaunchKernel", pid=pid, tid=100, ts=at, dur=2)
        self.events.append(made | {"args": {"correlation": self.launches}})
        return self.launches

    def kernel(self, name: str, at: float, dur: float, call: int | None = None) -> None:
        start = max(at + self.lag, self.busy_until)
        self.busy_until = start + dur
        where = {"device": 0, "stream": 7, "correlation": call or self.call(at)}
        self.events.append(event("kernel", name, pid=0, tid=7, ts=start, dur=dur, args=where))

    def range(self, name: str, at: float, dur: float, pid: int = 1) -> None:
        self.events.append(event("user_annotation", name, pid=pid, tid=100, ts=at, dur=dur))

    def write(self, path: Path) -> Path:
        path.write_text(json.dumps({"traceEvents": self.events}))
        return path


def training(layers: int, *, steps: int = 6, slow: int | None = None) -> Program:
    """Steps of an embedding, layers forward and backward, a loss and an optimizer."""
    made = Program()
    for i in range(steps):
        at = 3.0 * MS * i
        names = ["embed", *["qkv", "attn", "proj", "mlp"] * layers, "loss",
                 *["mlp_b", "proj_b", "attn_b", "qkv_b"] * layers, "embed_b",
                 "adam_multi_tensor_apply_kernel"]  # fmt: skip
        for k, name in enumerate(names):
            is_slow = slow is not None and 1 + 4 * slow <= k < 5 + 4 * slow
            made.kernel(name, at + 4 * k, 30 if is_slow else 10)
    return made


def found(path: Path, **options: Any) -> dict[str, Any]:
    result: dict[str, Any] = perfmodel.analyze(path, **options).to_dict()
    return result


def level(result: dict[str, Any], name: str) -> dict[str, Any]:
    (row,) = (row for row in result["levels"] if row["name"] == name)
    return dict(row)


@pytest.mark.parametrize("layers", [3, 6, 12])
def test_layers_without_names_are_counted_and_numbered(layers: int, tmp_path: Path) -> None:
    result = found(training(layers, slow=1).write(tmp_path / "t.json"))
    for way in ("layer forward", "layer backward"):
        row = level(result, way)
        assert (row["count"], row["per_parent"], row["parent"]) == (6 * layers, layers, "step")
        times = [one for one in result["layers"] if one["name"] == way]
        assert [one["number"] for one in times] == list(range(layers))
        assert [one["number"] for one in times if one["differs"]] == [1][: way.endswith("forward")]


def test_layers_inside_a_cuda_graph_have_their_own_time(tmp_path: Path) -> None:
    """One call launches all of them."""
    made = Program()
    for i in range(6):
        made.range(f"ProfilerStep#{i}", 3.0 * MS * i, 2900)
        call = made.call(3.0 * MS * i + 10)
        for k in range(24):
            made.kernel(f"part_{k % 4}", 3.0 * MS * i + 20, 50, call)
        made.kernel("head", 3.0 * MS * i + 20, 100, call)
    path = made.write(tmp_path / "t.json")
    result = found(path)
    row = level(result, "layer")
    assert row["per_parent"] == 6
    assert row["median_s"] == pytest.approx(200e-6)
    assert row["gpu_share"] == pytest.approx(1200 / 1300)
    assert [one["seconds"] for one in result["layers"]] == pytest.approx([200e-6] * 6)
    with pytest.raises(SchemaError, match="CUDA graphs launch at once"):
        found(path, level="layer")


def test_a_share_is_of_all_work_of_the_recording(tmp_path: Path) -> None:
    made = Program()
    for i in range(20):
        if i == 7:
            made.range("ProfilerStep#7", 1.0 * MS * i, 950)
        for k in range(10):
            made.kernel(f"kernel {k}", 1.0 * MS * i + 50 * k, 40)
    result = found(made.write(tmp_path / "t.json"))
    assert level(result, "ProfilerStep#*")["gpu_share"] == pytest.approx(1 / 20)
    assert result["batch"]["confidence"] == pytest.approx(1 / 20)


@pytest.mark.parametrize("steps", [2, 3])
def test_few_steps_hold_what_the_host_waits_for(steps: int, tmp_path: Path) -> None:
    """17 of the 22.3 ms that each step declares pass in a DataLoader, before the first kernel."""
    made = Program()
    for i in range(steps):
        at = 22.3 * MS * i
        made.range(f"ProfilerStep#{i}", at, 22.3 * MS)
        for k in range(10):
            made.kernel(f"kernel {k}", at + 17 * MS + 500 * k, 400)
    result = found(made.write(tmp_path / "t.json"))
    assert result["batch"]["count"] == steps
    assert result["batch"]["median_s"] == pytest.approx(22.3e-3, rel=1e-3)
    assert level(result, "ProfilerStep#*")["median_s"] == pytest.approx(22.3e-3)


@pytest.mark.parametrize("first", [True, False])
def test_steps_of_a_process_that_launches_nothing(first: bool, tmp_path: Path) -> None:
    made = Program()
    for i in range(4):
        for k in range(10):
            made.kernel(f"kernel {k}", 1.0 * MS * i + 50 * k, 40)
    launched = list(made.events)
    made.events = []
    for i in range(4):
        made.range(f"ProfilerStep#{i}", 1.0 * MS * i, 950, pid=77)
    made.events = made.events + launched if first else launched + made.events
    result = found(made.write(tmp_path / "t.json"))
    assert result["batch"]["found_by"] == "declared"
    assert result["ranks"][0]["gpu_busy_s"] == pytest.approx(400e-6)


def test_another_level_is_the_unit_of_every_command(tmp_path: Path) -> None:
    made = Program()
    for epoch in range(3):
        for i in range(5):
            at = 1.0 * MS * (5 * epoch + i)
            made.range(f"train_step {i}", at, 950)
            for k in range(10):
                made.kernel(f"kernel {k}", at + 50 * k, 40)
        made.range(f"epoch {epoch}", 5.0 * MS * epoch, 4990)
    path = made.write(tmp_path / "t.json")
    assert level(found(path), "epoch *")["count"] == 3
    result = found(path, level="epoch")
    assert result["batch"]["count"] == 3
    assert result["batch"]["median_s"] == pytest.approx(4.5e-3, rel=0.1)
    said = succeeds("compare", path, path, "--level", "epoch")
    assert "3 steps" in said
    assert "epoch" in succeeds("timeline", path, "--level", "epoch", "--format", "csv")
    with pytest.raises(SchemaError, match="got epoch among the ranges"):
        found(path, level="phase")


def test_every_rank_keeps_its_layers() -> None:
    """The loops of the two ranks' processes are called differently."""
    report = PROGRAMS / "straggler_p2_b32.sqlite.xz"
    assert len(found(report, level="layer")["ranks"]) == 2


def test_a_step_that_names_its_epoch_is_no_epoch(tmp_path: Path) -> None:
    made = Program()
    for i in range(10):
        made.range(f"epoch {i // 5} step {i % 5}", 1.0 * MS * i, 950)
        for k in range(10):
            made.kernel(f"kernel {k}", 1.0 * MS * i + 50 * k, 40)
    result = found(made.write(tmp_path / "t.json"))
    assert (result["batch"]["found_by"], result["levels"][0]["count"]) == ("declared", 10)


@pytest.mark.parametrize(("said", "names"), [
    ("step", ("ProfilerStep#3", "step 3", "Step#3", "train_step", "batch iteration", "iter 5",
              "epoch 1 step 3", "epoch * step *", "train_loss_step 3", "step[EXTEND bs=1 toks=2]",
              "execute_diffusion_1_256x256",
              "execute_context_1(888)_generation_0(0)")),
    ("epoch", ("epoch 3", "Epoch", "train_batches", "steps")),
    ("micro_batch", ("micro_batch 2", "micro-step", "accumulation step 2", "accumulate")),
    ("phase", ("forward", "backward pass", "Optimizer.step#AdamW.step", "allreduce", "loss",
               "DeepSpeedEngine.forward", "optimizer_step 3")),
    ("layer", ("layer 3", "FSDP::pre_forward (blocks.9)")),
    (None, ("batch_norm calibration", "BatchNorm2d", "iterator warmup", "stepper", "ncclAllReduce",
            "FSDP::post_backward_accumulate", "LinearWithGradAccumulation", "MPI_Allreduce",
            "flash_attn::_flash_attn_forward", "RegisterPostBackwardFunction")),
])  # fmt: skip
def test_what_names_say(said: str | None, names: Sequence[str]) -> None:
    levels = {name: one.level if (one := said_by(name)) else None for name in names}
    assert levels == dict.fromkeys(names, said)


def autograd_functions(category: str, name: str = "Redistribute") -> Program:
    """Ranges that hold all GPU work, at unequal distances and of unequal kernels."""
    made = Program()
    made.events.append(event("cpu_op", "aten::mm", pid=1, tid=100, ts=0, dur=1))
    for i, pause in enumerate([0, 900, 40, 300, 45, 1700, 50, 420, 48, 60, 2100, 52]):
        at = sum([0, 900, 40, 300, 45, 1700, 50, 420, 48, 60, 2100, 52][: i + 1]) + 30 * i
        made.events.append(event(category, name, pid=1, tid=100, ts=at, dur=25))
        for k in range(1 + i % 3):
            made.kernel(f"kernel_{i * 7 % 5}", at + 4 * k, 3 + pause % 7)
    return made


@pytest.mark.parametrize(
    ("category", "found_by"),
    [("user_annotation", "declared"), ("Operator", "declared"), ("cpu_op", "whole")],
)
def test_an_operator_declares_no_step(category: str, found_by: str, tmp_path: Path) -> None:
    """Until 2021 the category of an annotation is that of an operator."""
    run = analyze_reports(
        [autograd_functions(category).write(tmp_path / "t.json")], Options()
    ).fitted
    assert run.steps.found_by == found_by
    assert all(c.source != "declared" for c in run.steps.candidates) == (category == "cpu_op")


def test_an_annotation_may_be_called_as_an_operator(tmp_path: Path) -> None:
    made = autograd_functions("user_annotation")
    made.events.append(event("cpu_op", "Redistribute", pid=1, tid=100, ts=9000, dur=1))
    assert (
        analyze_reports([made.write(tmp_path / "t.json")], Options()).fitted.steps.found_by
        == "declared"
    )


@pytest.mark.parametrize("seq", ["", ", seq = 41, op_id = 7"])
def test_ranges_that_autograd_numbers_declare_no_step(seq: str, tmp_path: Path) -> None:
    """Nsight Systems has operators as ranges, as `emit_nvtx` names them."""
    made = autograd_functions("user_annotation", f"Redistribute{seq}")
    found = analyze_reports([made.write(tmp_path / "t.json")], Options()).fitted.steps.found_by
    assert (found == "declared") == (not seq)


def test_ranks_of_a_run_have_one_step(tmp_path: Path) -> None:
    """Alone, the ranges of one rank are its steps, and those of the other hold too little."""
    paths, alone = [], []
    for rank, outside in enumerate((0, 9)):
        made = Program()
        made.events.append(event("cpu_op", "aten::mm", pid=1, tid=100, ts=0, dur=1))
        for i, at in enumerate([0, 900, 1500, 2900, 3300, 5000]):
            made.range("work", at, 100)
            for k in range(4):
                made.kernel(f"kernel_{(i * 7 + k) % 5}", at + 9 * k, 10)
            for k in range(outside if i % 2 else 0):
                made.kernel(f"other_{(i * 3 + k * k) % 7}", at + 150 + 9 * k, 25)
        document = {"traceEvents": made.events, "baseTimeNanoseconds": 1_790_857_026 * 10**9,
                    "distributedInfo": {"rank": rank, "world_size": 2}}  # fmt: skip
        path = tmp_path / f"rank{rank}.json"
        path.write_text(json.dumps(document))
        paths.append(path)
        alone.append(analyze_reports([path], Options()).fitted.steps)
    assert [one.found_by for one in alone] == ["declared", "whole"]
    (run,) = analyze_reports(paths, Options()).runs
    labels = {(report.steps.label, report.steps.found_by) for report in run.measured.steps}
    assert len(labels) == 1
    assert len({row.batches for row in run.ranks}) == 1


@pytest.mark.parametrize("stray", [0, 3])
def test_a_program_of_the_cpu_is_timed_by_its_operators(stray: int, tmp_path: Path) -> None:
    """Whatever calls of CUDA are recorded, which launch nothing."""
    made = Program()
    for i in range(40):
        name = "aten::addmm" if i % 3 else "MyFunction"
        made.events.append(
            event("cpu_op", name, pid=1, tid=100 + i % 2, ts=50 * MS * i, dur=40 * MS)
        )
    for i in range(stray):
        at = 500 * MS + 10 * i
        made.events.append(
            event("cuda_runtime", "cudaGetDevice", pid=1, tid=100, ts=at, args={"correlation": i})
        )
    path = made.write(tmp_path / "t.json")
    run = analyze_reports([path], Options()).fitted
    assert run.batch.median.value == pytest.approx((39 * 50 + 40) * 1e-3)
    said = " ".join(succeeds("analyze", path).split())
    assert "No GPU work was recorded: a step takes the CPU 1.99 s" in said
    assert "activities=[CPU, CUDA]" in said
    assert "CPU 100 %" in said
    assert "MPI" not in said


def test_kernels_whose_calls_were_not_recorded(tmp_path: Path) -> None:
    """The GPU's times are known, and that nothing is known of what the GPU waits for is said."""
    made = training(4)
    made.events = [e for e in made.events if e["cat"] != "cuda_runtime"]
    made.events.append(event("cpu_op", "aten::mm", pid=1, tid=100, ts=0, dur=17 * MS))
    path = made.write(tmp_path / "t.json")
    run = analyze_reports([path], Options()).fitted
    assert run.ranks[0].gpu == 0
    assert run.batch.count == 4
    assert run.ranks[0].gpu_busy_s == pytest.approx(36 * 10e-6, rel=0.05)
    assert "No CUDA calls were recorded" in succeeds("analyze", path)


def test_pauses_that_outlast_the_steps_are_said(tmp_path: Path) -> None:
    made = Program()
    at = 0.0
    for i in range(30):
        made.range(f"step {i}", at, 40)
        made.kernel("work", at + 5, 10)
        at += 3000 if i % 4 == 3 else 50
    assert "Pauses between steps last as long as" in succeeds(
        "analyze", made.write(tmp_path / "t.json")
    )
