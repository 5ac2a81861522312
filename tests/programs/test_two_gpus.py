"""Programs on two GPUs that are neither data-parallel PyTorch nor MPI: JAX, and a pipeline."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from perfmodel.analysis.analyze import analyze_reports
from perfmodel.programs.program import Options
from perfmodel.render.summary import what_ran
from support.build_report import ReportBuilder
from support.recorded import analyzed, truth


def test_steps_of_jax_are_found_behind_compiling_and_tuning() -> None:
    """Most of the recording's GPU time is the autotuner's; the first step takes 0.56 s."""
    run, said = analyzed("jax_two_gpus"), truth("jax_two_gpus")
    steps = run.steps
    assert steps is not None
    assert (run.program.name, steps.label, steps.found_by) == ("jax", "jit_local", "declared")
    recorded = said["steps_profiled"] + said["warmup_steps"]
    assert run.run_steps.counted.stop + 1 == recorded
    assert run.batch.mean_s == pytest.approx(said["step_s_profiled"], rel=0.01)
    assert [(r.rank, r.gpu) for r in run.ranks] == [(0, 0), (1, 1)]
    assert all(r.gpu_busy_s is not None and r.gpu_busy_s > 0.9 * r.whole_s for r in steps.ranks)


def test_a_process_has_a_rank_for_each_of_its_gpus(tmp_path: Path) -> None:
    """The second GPU has most operations."""
    builder = ReportBuilder("2025.3.2")
    thread = builder.thread()
    for gpu in range(2):
        builder.gpu(gpu)
    for step in range(6):
        for i, device in enumerate((0, 1, 1)):
            at = 100_000 * step + 10_000 * i
            thread.kernel(f"k{i}", (at, at + 900), (at + 1000, at + 30_000), device=device)
    run = analyze_reports([builder.write(tmp_path / "r.sqlite")], Options()).fitted
    assert [(r.rank, r.gpu) for r in run.ranks] == [(0, 0), (1, 1)]
    assert any("2 ranks, 2 x NVIDIA H200" in line for line in what_ran(run))


def test_jax_reduces_its_gradients_in_each_step() -> None:
    run, said = analyzed("jax_two_gpus"), truth("jax_two_gpus")
    (reduced,) = run.collectives
    assert reduced.name == "NCCL AllReduce"
    assert reduced.count * (reduced.bytes or 0) == said["bytes_reduced"]
    assert run.copies == ()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pipeline", "pipeline_shared"])
def test_flops_of_a_stage_are_those_of_its_products(name: str) -> None:
    run, said = analyzed(name), truth(name)
    assert run.work is not None
    assert run.work.flops == said["flops_by_hand"]
    of_all_ranks = np.nanmean(run.run_steps.seconds())  # the warm-up is not as long on both
    assert of_all_ranks == pytest.approx(said["step_s_profiled"], rel=0.01)


@pytest.mark.parametrize("name", ["pipeline", "pipeline_shared"])
def test_a_stage_of_a_pipeline_waits_for_messages(name: str) -> None:
    run = analyzed(name)
    assert run.steps is not None
    (found,) = [f for f in run.findings if f.kind == "exposed_communication"]
    waits = [r.waiting_s for r in run.steps.ranks]
    assert found.saving_s == pytest.approx(min(w for w in waits if w is not None))
    assert "micro-batches" in found.action
    assert not [f for f in run.findings if "DistributedDataParallel" in f.action]


def test_slower_kernels_are_told_from_more_kernels() -> None:
    """GEMMs of another process take turns with those of rank 1."""
    run = analyzed("pipeline_shared")
    assert run.steps is not None
    late = run.steps.facts.last_rank()
    assert late is not None
    assert late.rank == 1
    assert late.doing == "computing: about as many kernels take 2.1 times as long"


def test_the_last_step_and_long_messages_of_nsys_are_said_in_a_line() -> None:
    run = analyzed("jax_two_gpus")
    said = list(what_ran(run))
    (batches,) = [line for line in said if line.startswith("steps  ")]
    assert batches.startswith("steps      16 per rank")
    assert batches.endswith("1 warm-up step (41.6 ms) and the last excluded")
    nsys = [line for line in said if line.startswith("nsys says")]
    assert nsys
    assert max(map(len, nsys)) < 220
    assert not [line for line in nsys if "CUDA profiling" in line]  # all processes used a GPU


def test_kernels_that_take_turns_with_another_process_are_found() -> None:
    """A time slice of an H200 is 2.5 ms."""
    run = analyzed("pipeline_shared")
    assert run.steps is not None
    (found,) = run.steps.facts.interrupted
    assert found.rank == 1
    assert found.each_s == pytest.approx(2.5e-3, rel=0.02)
    (said,) = [f for f in run.findings if f.kind == "shared_gpu"]
    assert said.title == "another process uses the GPU of rank 1"
    assert said.saving_s == pytest.approx(found.seconds)


@pytest.mark.parametrize(
    "name", ["healthy_b32", "gpt_both", "ddp_both", "empty_cache_b32", "pipeline"]
)
def test_a_gpu_of_its_own_is_not_called_shared(name: str) -> None:
    """In one step of `gpt_both` a kernel takes 1 ms longer."""
    run = analyzed(name)
    assert run.steps is not None
    assert run.steps.facts.interrupted == ()


@pytest.mark.slow
def test_two_steps_have_no_interval() -> None:
    (said,) = [s for s in what_ran(analyzed("gpt_ddp8")) if s.startswith("steps  ")]
    assert said.startswith("steps      2 per rank, median ")
    assert " ms [too few for an interval]" in said
