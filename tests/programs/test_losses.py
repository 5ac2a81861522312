"""Findings on programs whose fault, and what it costs, are known."""

from __future__ import annotations

import os
import re
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.common.folders import PROGRAMS, unpacked
from benchmarks.idle.__main__ import KIND_OF, WITHIN, pair
from perfmodel.analysis.analyze import analyze_reports
from perfmodel.analysis.result import RunAnalysis
from perfmodel.findings import find
from perfmodel.findings._host_work import advice_by_words
from perfmodel.findings.blocking_sync import waiting_calls
from perfmodel.programs.actions import Actions
from perfmodel.programs.facts import Facts, OperatorRow
from perfmodel.programs.program import Options
from perfmodel.timing import step_graph
from perfmodel.timing.copies import CopyGroup
from perfmodel.timing.critical_path import Change
from perfmodel.timing.ledger import Ledger
from perfmodel.timing.samples import Estimate
from support.build_report import ReportBuilder

PLANTED = Path(os.environ.get("PROGRAM_REPORTS", os.devnull)) / "planted"
FIRST = {
    "item": "blocking_sync",
    "pageable": "pageable_copy",
    "straggler": "straggler",
    "launch": "launch_bound",
    "fp32": "low_precision_unused",
    "loop_optimizer": "many_small_kernels",
    "naive_attention": "unfused_attention",
    "late_allreduce": "launch_bound",
}


def operator(
    name: str, count: int, gpu_s: float, flops: float, moved: float, bound: str, least_s: float
) -> OperatorRow:
    """A row of calls of the forward pass, in a step of 10 ms."""
    return OperatorRow(
        name, "forward", "float32", "kernel", "float32", "", count, count, flops, moved, 0.0, moved,
        gpu_s, gpu_s / 10e-3, None, None, None, bound, least_s / gpu_s,
    )  # fmt: skip


def analyzed(path: Path) -> RunAnalysis:
    return analyze_reports([path], Options()).fitted


@pytest.mark.skipif(not PLANTED.exists(), reason="PROGRAM_REPORTS names no folder of reports")
@pytest.mark.parametrize("name", FIRST)
def test_the_first_finding_is_the_planted_fault(name: str) -> None:
    run = analyzed(PLANTED / f"{name}.sqlite.xz")
    assert run.findings[0].kind == FIRST[name]
    said = " ".join(f.action + f.evidence for f in run.findings)
    said = re.sub(r"nsys profile[^;]*", "", said)  # other flags would be the trainer's
    assert not any(word in said for word in ("CuPy", "cupyx", "MPI", "--"))
    if name == "item":
        assert 3.6e-3 < (run.findings[0].saving_s or 0) < 5.6e-3
    if name == "pageable":
        assert 50e-3 < (run.findings[0].saving_s or 0) < 60e-3  # 64.7 ms, less 480 MB at 51 GB/s
    if name == "straggler":
        assert "rank 1" in run.findings[0].title
    if name == "late_allreduce":
        assert run.findings[1].kind == "exposed_communication"


@pytest.mark.slow
@pytest.mark.skipif(not PLANTED.exists(), reason="PROGRAM_REPORTS names no folder of reports")
@pytest.mark.parametrize("name", FIRST)
def test_it_is_found_without_ranges_of_the_program(name: str, tmp_path: Path) -> None:
    report = unpacked(PLANTED / f"{name}.sqlite.xz", tmp_path)
    with sqlite3.connect(report) as db:
        db.execute("DELETE FROM NVTX_EVENTS WHERE eventType = 59 AND domainId = 0")
    found, known = analyzed(report).findings[0], analyzed(PLANTED / f"{name}.sqlite.xz").findings[0]
    assert found.kind == FIRST[name]
    assert found.saving_s == pytest.approx(known.saving_s, rel=0.02)


@pytest.mark.skipif(not PLANTED.exists(), reason="PROGRAM_REPORTS names no folder of reports")
def test_a_healthy_step_loses_no_more_than_its_idle_time() -> None:
    run = analyzed(PLANTED / "healthy.sqlite.xz")
    assert all((f.saving_s or 0) <= 0.75e-3 for f in run.findings)


@pytest.mark.parametrize("fault", ["item", "dataloader"])
def test_a_predicted_saving_is_near_the_measured_one(fault: str) -> None:
    row = pair(PROGRAMS / f"{fault}_b32.sqlite.xz", fault, [PROGRAMS / "healthy_b32.sqlite.xz"])
    assert row["kind"] == KIND_OF[fault]
    assert row["ratio"] == pytest.approx(1.0, abs=WITHIN)


def test_a_late_rank_costs_what_it_sleeps() -> None:
    first = analyzed(PROGRAMS / "straggler_p2_b32.sqlite.xz").findings[0]
    assert first.kind == "straggler"
    assert "its longest gap, 20.8 ms in 'forward'" in first.evidence
    assert first.saving_s == pytest.approx(20e-3, rel=0.1)


def test_a_rank_that_waits_in_nccl_is_reported_though_the_step_would_be_as_long() -> None:
    run = analyzed(PROGRAMS / "gpt_ddp.sqlite.xz")
    assert run.ranks[0].waiting_s == pytest.approx(1.24e-3, rel=0.01)  # 2.77 ms as recorded
    (late,) = (f for f in run.findings if f.kind == "straggler")
    assert late.title == "rank 1 is late: its host works 373 µs longer in 'optimizer'"
    assert (late.saving_s or 0.0) < 0.03 * run.batch.median.value
    assert late.evidence.startswith(
        "NCCL's kernels of the other ranks wait up to 1.24 ms per step for rank 1"
    )


@pytest.mark.parametrize(
    "name",
    ["healthy_b32", "item_b32", "dataloader_b32", "straggler_p2_b32", "gpt_modules_timing"],
)
def test_idle_causes_and_the_path_add_up(name: str) -> None:
    run = analyzed(PROGRAMS / f"{name}.sqlite.xz")
    steps = run.steps
    assert steps is not None
    added_s = run.ledger.recorded_s - run.ledger.step_s
    for rank, recorded in zip(run.ranks, steps.ranks, strict=True):
        causes = [c for c in steps.facts.idle if c.rank == rank.rank]
        idle_s = max((recorded.idle_s or 0.0) - added_s, 0.0)
        assert rank.idle_s == pytest.approx(idle_s)
        assert sum(c.share for c in causes) == pytest.approx(1.0 if idle_s else 0.0)
        assert sum(c.seconds for c in causes) == pytest.approx(idle_s)
        other = sum(c.seconds for c in causes if c.cause == "other")
        assert other <= max(0.03 * (rank.step_s or 0.0), 0.5e-3)
    path = steps.facts.path
    assert sum(p.share for p in path) == pytest.approx(1.0)
    assert sum(p.seconds for p in path) == pytest.approx(run.ledger.step_s)
    assert steps.facts.step_s == run.summary.step_s
    assert run.ledger.recorded_s == run.run_steps.step_s
    assert all(p.free_s <= steps.facts.step_s for p in path)


def test_data_loading_is_named_with_its_range() -> None:
    run = analyzed(PROGRAMS / "dataloader_b32.sqlite.xz")
    assert run.steps is not None
    assert run.steps.facts.idle[0].cause == "host_compute"
    assert run.steps.facts.idle[0].gaps[0].range == run.steps.facts.idle[0].range == "data"
    assert run.findings[0].action.startswith("DataLoader(num_workers")


def test_the_late_rank_is_named_with_what_it_does() -> None:
    run = analyzed(PROGRAMS / "straggler_p2_b32.sqlite.xz")
    steps, count = run.steps, run.run_steps.count
    assert steps is not None
    late = max(steps.facts.stragglers, key=lambda s: s.share_last)
    assert (late.rank, late.share_last, late.persistent) == (1, 1.0, True)
    assert late.doing == "host_compute in forward"
    assert len(steps.facts.arrivals) == 4 * count
    assert {a.rank for a in steps.facts.arrivals} == {1}
    by_step = sum(a.late_s for a in steps.facts.arrivals) / count
    assert by_step == pytest.approx(late.late_s)


@pytest.mark.skipif(not PLANTED.exists(), reason="PROGRAM_REPORTS names no folder of reports")
def test_a_rank_that_only_launches_later_is_named_with_its_idle_time() -> None:
    steps = analyzed(PLANTED.parent / "programs" / "gpt2_ddp.sqlite.xz").steps
    assert steps is not None
    late = max(steps.facts.stragglers, key=lambda s: s.share_last)
    assert (late.rank, late.doing) == (0, "launch_bound in backward")


@pytest.mark.skipif(not PLANTED.exists(), reason="PROGRAM_REPORTS names no folder of reports")
def test_a_step_without_some_work_is_no_longer() -> None:
    steps = analyzed(PLANTED / "straggler.sqlite.xz").steps
    assert steps is not None
    assert max(p.free_s for p in steps.facts.path) == pytest.approx(steps.facts.step_s)


@pytest.mark.skipif(not PLANTED.exists(), reason="PROGRAM_REPORTS names no folder of reports")
@pytest.mark.parametrize("path", ["planted/fp32", "programs/conv32"])
def test_products_on_fp32_units_are_set_against_both_ceilings(path: str) -> None:
    run = analyzed(PLANTED.parent / f"{path}.sqlite.xz")
    assert run.work is not None
    assert run.machine is not None
    assert run.steps is not None
    slow = [r for r in run.work.operators if r.unit == "float32" and r.flops]
    assert len(slow) >= 3
    faster = 0.0
    for row in slow:
        by_size = [r for r in run.work.by_sizes if (r.name, r.phase) == (row.name, row.phase)]
        memory = [(r.bytes or 0) / 4.8e12 for r in by_size]
        least = sum(max((r.flops or 0) / 67e12, m) for r, m in zip(by_size, memory, strict=True))
        tensor = sum(
            max((r.flops or 0) / 494.7e12, m) for r, m in zip(by_size, memory, strict=True)
        )
        assert row.of_ceiling == pytest.approx(least / row.gpu_s)
        assert row.of_tensor_ceiling == pytest.approx(tensor / row.gpu_s)
        faster += row.gpu_s * (1 - tensor / least)
    (found,) = (f for f in run.findings if f.kind == "low_precision_unused")
    limit = run.steps.facts.saved_s("kernel")
    assert found.saving_s == pytest.approx(min(faster, limit))
    assert ("but then the host limits the step" in found.evidence) == (faster > limit)
    assert "TF32's on tensor cores" in found.evidence


def test_products_on_fp32_units_are_said_where_the_host_limits_the_step() -> None:
    """In gpt_fp32_shapes they take three quarters of the GPU's time; the host sets the pace."""
    run = analyzed(PROGRAMS / "gpt_fp32_shapes.sqlite.xz")
    assert run.steps is not None
    assert run.steps.facts.saved_s("kernel") < 0.15 * run.steps.facts.step_s
    (found,) = (f for f in run.findings if f.kind == "low_precision_unused")
    assert "9 % of TF32's on tensor cores" in found.evidence
    assert "but then the host limits the step" in found.evidence


@pytest.mark.parametrize(
    ("dtype", "advised"), [("float", True), ("__nv_bfloat16", False), ("__half", False)]
)
def test_products_of_16_bits_on_fp32_units_are_not_advised_to_use_tf32(
    dtype: str, advised: bool, tmp_path: Path
) -> None:
    builder = ReportBuilder("2025.3.2")
    thread = builder.thread()
    builder.gpu()
    for step in range(4):  # the host waits for the GPU, which limits the step
        at = 1_000_000 * step
        thread.range(f"step {step}", at, at + 999_000)
        thread.kernel("at::native::add", (at + 1_000, at + 2_000), (at + 6_000, at + 9_000))
        kernel = f"void implicit_convolveNd_sgemm<{dtype}, (int)3, (int)1024>"
        thread.kernel(kernel, (at + 3_000, at + 4_000), (at + 9_000, at + 990_000))
        thread.synchronize(at + 5_000, at + 995_000)
    run = analyzed(builder.write(tmp_path / "r.sqlite"))
    assert any(f.kind == "low_precision_unused" for f in run.findings) == advised


@pytest.mark.parametrize("name", ["convnext_shapes", "resnet34_shapes"])
def test_findings_of_operators_save_no_more_than_kernels_do(name: str) -> None:
    run = analyzed(PROGRAMS / f"{name}.sqlite.xz")
    assert run.work is not None
    assert run.steps is not None
    limit = run.steps.facts.saved_s("kernel")
    found = [f for f in run.findings if f.kind in ("memory_bound", "kernel_below_ceiling")]
    assert all(0 <= (f.saving_s or 0) <= limit for f in found)
    assert all((f.saving_s or 0) <= (f.gpu_s or 0) for f in found)
    assert sum(f.kind == "kernel_below_ceiling" for f in found) <= 3


def test_what_the_host_hides_of_the_gpu_is_said_after_launches() -> None:
    """Half of the time of Llama's kernels is element-wise, and its host is slower than the GPU."""
    run = analyzed(PROGRAMS / "llama_shapes.sqlite.xz")
    assert run.steps is not None
    facts = run.steps.facts
    first, second = run.findings[:2]
    assert (first.kind, second.kind) == ("launch_bound", "memory_bound")
    assert (second.share or 0.0) < 0.01
    fix = run.summary.fixes[1]
    assert fix.after_previous_s == pytest.approx(1.20e-3, rel=0.02)
    assert fix.after_previous_s <= min(second.gpu_s or 0.0, facts.kernels_next_s)
    assert fix.saving_s == second.saving_s
    assert fix.step_s == pytest.approx(run.summary.fixes[0].step_s - fix.after_previous_s)


def test_memory_and_products_are_found_where_the_gpu_limits_the_step() -> None:
    """A step of 10 ms, of which 6 are one product at 40 % of its peak and 3 element-wise."""
    measured = analyzed(PROGRAMS / "healthy_b32.sqlite.xz").steps
    assert measured is not None
    steps = replace(
        measured.facts,
        ledger=Ledger(10e-3, 10e-3, Change(), measured.facts.ledger.replay),
        free_s={"kernel": 1e-3}, small=(), idle=(), kernels=(), collectives=0, recorder=None,
    )  # fmt: skip
    operators = (
        operator("mm", 8, 6e-3, 2e12, 1e9, "compute", 2.4e-3),
        replace(operator("gelu", 8, 3e-3, 0.0, 9e9, "memory", 1.7e-3), fusible_bytes=3e9),
        operator("fill_", 1, 1e-3, 0.0, 8.0, "latency", 1e-6),
    )  # fmt: skip
    facts = Facts(
        batch=Estimate(10e-3, 10e-3, 10e-3, 5, "GPU", 10e-3, 10e-3), busy_s=10e-3, gpu_ops=17,
        synchronizations=0,
        synchronize_s=0, host_s={}, copies=(), collectives=(), waiting=None, gemms=(),
        shared_gpus={}, machine=None, ranks=1, operators=operators, steps=steps,
    )  # fmt: skip
    found = {f.kind: f for f in find(facts, Actions())}
    assert found["kernel_below_ceiling"].saving_s == pytest.approx(6e-3 - 2.4e-3 / 0.8)
    assert found["memory_bound"].saving_s == pytest.approx(3e-3 - 6 / 9 * 1.7e-3 / 0.85)
    assert "3.00 GB are read of what such an operator wrote" in found["memory_bound"].evidence
    assert "gelu (forward) 3.00 ms at 57 %" in found["memory_bound"].evidence
    short = replace(steps, free_s={"kernel": 9.8e-3})
    capped = [f.saving_s for f in find(replace(facts, steps=short), Actions())]
    assert capped == pytest.approx([0.2e-3, 0.2e-3])


@pytest.mark.parametrize("kernels", [40, 440])
def test_what_does_not_repeat_has_findings(
    kernels: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Different kernels of 10 µs, launched 100 µs apart: the GPU waits nine tenths of the time."""
    monkeypatch.setattr(step_graph, "MOST_OPS", 400)
    builder = ReportBuilder()
    thread = builder.thread()
    builder.gpu()
    for i in range(kernels):
        at = 100_000 * i
        thread.kernel(f"kernel_{i}", (at, at + 4_000), (at + 5_000, at + 15_000))
    run = analyzed(builder.write(tmp_path / "r.sqlite"))
    assert run.steps is not None
    assert run.steps.found_by == "whole"
    first = run.findings[0]
    assert first.kind == "launch_bound"
    busy_s = 10e-6 * kernels
    assert first.saving_s == pytest.approx(run.summary.step_s - busy_s, rel=0.05)


@pytest.mark.parametrize(("count", "said"), [(1.0, "1 copy to"), (2.2, "2 copies to")])
def test_copies_to_the_host_are_counted(count: float, said: str) -> None:
    copies = (CopyGroup("Device-to-Host", "pageable", count, 4.0, 2e-6, 2e6, 4),)
    facts = Facts(
        batch=Estimate(10e-3, 10e-3, 10e-3, 5, "GPU", 10e-3, 10e-3), busy_s=10e-3, gpu_ops=17,
        synchronizations=0, synchronize_s=0, host_s={}, copies=copies, collectives=(), waiting=None,
        gemms=(), shared_gpus={}, machine=None, ranks=1,
    )  # fmt: skip
    assert waiting_calls(facts) == f"{said} the host (2.00 µs on the GPU)"


def test_findings_say_where_recording_sizes_slows_the_host() -> None:
    timing = PROGRAMS / "gpt_modules_timing.sqlite.xz"
    shapes = PROGRAMS / "gpt_modules.sqlite.xz"

    def said(path: Path, options: Options) -> list[bool]:
        found = analyze_reports([path], options).fitted.findings
        return ["recording sizes slows" in f.evidence for f in found if f.kind == "launch_bound"]

    assert said(shapes, Options()) == [True]
    assert said(timing, Options()) == [False]
    assert said(timing, Options(shapes=shapes)) == [False]


@pytest.mark.parametrize(
    ("what", "names"),
    [
        ("step_less", "Optimizer.step#AdamW.step, optim, optimizer_step"),
        (
            "load_ahead",
            "data, DataLoader.__next__, trainloader, load_batch, prefetch, inputs, next",
        ),
        ("load_ahead", "input pipeline, get input, augment, next batch, Dataset.__getitem__"),
        (
            "write_less",
            "checkpoint, save_model, validation, eval, log, log_metrics, logging, print",
        ),
        ("compute_less", "DistributedDataParallel.forward, FullyShardedDataParallel, retrieval"),
        ("compute_less", "log_softmax, save_for_backward, metric_learning_loss, payload, metadata"),
        (
            "compute_less",
            "load_balancing, input_layernorm, CheckpointFunction, log_prob, , nn.Module: Log.log",
        ),
    ],
)
def test_advice_on_the_host_goes_by_whole_words_of_a_range(what: str, names: str) -> None:
    assert {name: advice_by_words(name) for name in names.split(", ")} == dict.fromkeys(
        names.split(", "), what
    )


@pytest.mark.slow
@pytest.mark.skipif(not PLANTED.exists(), reason="PROGRAM_REPORTS names no folder of reports")
def test_a_forward_pass_loads_no_data() -> None:
    run = analyzed(PLANTED.parent / "programs" / "resnet50_ddp.sqlite.xz")
    assert "launch_bound" in {f.kind for f in run.findings}
    assert not any("DataLoader" in f.action for f in run.findings)


MAIN, ENGINE = "main", "engine"
GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n"
LAYERS = [(MAIN, GEMM), (MAIN, GEMM), (ENGINE, GEMM), (ENGINE, GEMM)]
SENDS = {
    "sums of layers' parts": [
        (MAIN, GEMM), (MAIN, "AllReduce"), (MAIN, GEMM), (ENGINE, GEMM), (ENGINE, "AllReduce"),
    ],
    "sequence parallel": [
        (MAIN, GEMM), (MAIN, "AllGather"), (MAIN, GEMM), (MAIN, "ReduceScatter"), (MAIN, GEMM),
        (ENGINE, GEMM), (ENGINE, "AllGather"), (ENGINE, GEMM), (ENGINE, "ReduceScatter"),
    ],
    "gradients": [*LAYERS, (ENGINE, "AllReduce"), (ENGINE, GEMM), (ENGINE, "AllReduce")],
    "gradients and buffers": [
        (MAIN, "Broadcast"), *LAYERS, (ENGINE, "AllReduce"), (ENGINE, GEMM), (ENGINE, "AllReduce"),
    ],
    "gradients by hand": [*LAYERS, (MAIN, "AllReduce"), (MAIN, "AllReduce"), (MAIN, "adam")],
    "shards": [
        (MAIN, "AllGather"), (MAIN, GEMM), (MAIN, "AllGather"), (MAIN, GEMM), (ENGINE, "AllGather"),
        (ENGINE, GEMM), (ENGINE, "ReduceScatter"), (ENGINE, GEMM), (ENGINE, "ReduceScatter"),
    ],
    "evaluation": [*LAYERS, (MAIN, "adam"), (MAIN, GEMM), (MAIN, "AllGather")],
    "evaluation of gradients": [
        *LAYERS, (ENGINE, "AllReduce"), (MAIN, "adam"), (MAIN, GEMM), (MAIN, "AllGather"),
    ],
    "one thread": [(MAIN, GEMM), (MAIN, "AllReduce"), (MAIN, GEMM), (MAIN, "AllGather")],
}  # fmt: skip


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize(
    ("sends", "said"),
    [
        ("sums of layers' parts", "tensor parallelism over fewer ranks"),
        ("sequence parallel", "tensor parallelism over fewer ranks"),
        ("gradients", "more overlap with the backward"),
        ("gradients and buffers", "more overlap with the backward"),
        ("gradients by hand", "more overlap with the backward"),
        ("shards", "FSDP"),
        ("evaluation", "start it earlier"),
        ("evaluation of gradients", "start it earlier"),
        ("one thread", "start it earlier"),
    ],
)
def test_communication_is_advised_by_what_it_is_between(
    sends: str, said: str, named: bool, tmp_path: Path
) -> None:
    """Ranges name no pass; autograd's thread launches the backward pass."""
    if not named and sends in ("sequence parallel", "shards"):
        pytest.skip("its few kernels repeat within a step, which no copy and no name tells")
    builder = ReportBuilder("2025.3.2")
    builder.gpu()
    threads = {MAIN: builder.thread(), ENGINE: builder.thread(tid=500)}
    at, gpu = 1_000_000, 1_000_000
    for op in range(4):  # PyTorch's before the steps
        threads[MAIN].range(f"aten::zeros, op_id = {op}", at, at + 900)
        at += 1000
    for step in range(12):
        begin, gpu = at, max(gpu, at)
        for who, name in SENDS[sends]:
            known = name in ("adam", GEMM)
            kernel = name if known else f"ncclDevKernel_{name}_Sum_bf16_RING_LL()"
            threads[who].kernel(kernel, (at, at + 800), (gpu + 900, gpu + 20_000), stream=7 + known)
            at, gpu = at + 1000, gpu + 20_000
        threads[MAIN].synchronize(at, gpu + 100)
        at = gpu + 1000
        if named:
            threads[MAIN].range(f"step {step}", begin - 10, at)
        at += 1000
    run = analyzed(builder.write(tmp_path / "r.sqlite"))
    (action,) = (f.action for f in run.findings if f.kind == "exposed_communication")
    assert said in action
