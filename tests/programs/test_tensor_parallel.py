"""The recorded GPT of shared layers computes what the whole one does, on a share of the FLOPs."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import perfmodel
from benchmarks.common.folders import ROOT
from profiles.programs import record
from support.build_report import ReportBuilder
from support.recorded import analyzed, truth

RANKS = 2


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_shards_sum_to_the_whole_model() -> None:
    """Of 2 blocks each rank has half, of the head all: forward once and backward twice."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {"WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "support.tensor_parallel_ranks"], stdout=subprocess.PIPE,
            text=True, cwd=ROOT,
            env={**os.environ, **shared, "RANK": str(rank), "PYTHONPATH": paths},
        )
        for rank in range(RANKS)
    ]  # fmt: skip
    for process in started:
        said, _ = process.communicate(timeout=120)
        assert process.returncode == 0
        found = json.loads(said.splitlines()[-1])
        whole, shard = found.pop("flops")
        assert max(found.values()) < 1e-5, found
        tokens, width, vocabulary = 48, 32, 50
        head = 3 * 2 * tokens * width * vocabulary
        blocks = 2 * 3 * 2 * tokens * 12 * width**2
        assert whole >= head + blocks, "and attention, where it is counted"
        assert shard - head == (whole - head) / RANKS


def test_a_recording_of_two_gpus_has_the_flops_and_sums_of_shared_blocks() -> None:
    """Each of four blocks sums its activations twice forward (bf16), twice backward (FP32)."""
    run, said = analyzed("gpt_tensor2"), truth("gpt_tensor2")
    assert run.work is not None
    assert run.work.flops == said["flop_counter_total"]
    elements = said["batch"] * said["length"] * said["width"]
    found = {(group.bytes, group.count, group.ranks) for group in run.collectives}
    calls = 2 * said["layers"]
    assert found == {(2 * elements, calls, 2), (4 * elements, calls, 2)}


def test_ranks_of_a_recording_are_started_by_a_shell() -> None:
    """Every rank has its number, and all the same port; one rank is the program itself."""
    assert record.program(1, ["gpt"])[0] == sys.executable
    shell, flag, script = record.program(4, ["gpt", "--name", "train batch %d"])
    assert (shell, flag) == ("bash", "-c")
    assert "seq 0 3" in script
    assert "WORLD_SIZE=4" in script
    assert "'train batch %d'" in script
    assert "--tensor-parallel" in record.RECORDINGS["gpt_tensor4"][1]


def test_what_could_not_be_recorded_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks that fail leave no truth; the shell that started them ends with 0."""

    def record_one(name: str, out: Path, folder: Path) -> Callable[[], None]:
        if name == "gpt_tensor4":
            raise FileNotFoundError(out / f"{name}.truth.json")
        return lambda: None

    monkeypatch.setattr(record, "record", record_one)
    monkeypatch.setattr(sys, "argv", ["record", str(tmp_path), "gpt_tensor4", "gpt_tensor8"])
    with pytest.raises(SystemExit, match=r"not recorded: gpt_tensor4$"):
        record.main()


GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n"
REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096>)"
LINEAR = "aten::linear, seq = {o}, op_id = {o}, sizes = [[64, 32], [24, 32], [24]]"
PAYLOAD = '{"NCCL communicator ID":7,"Message size [bytes]":1048576,"Reduction operation":"Sum"}'


def shared_layers(path: Path, ranks: int = 4, steps: int = 5) -> Path:
    """Write a report: a share of a layer and its sum, 20 µs forward and 40 µs backward.

    The sums of the backward pass are queued by autograd's thread.
    """
    report = ReportBuilder("2025.3.2")
    for rank in range(ranks):
        report.gpu(rank)
        main, engine = report.thread(100 + rank, rank=rank), report.thread(100 + rank, 500 + rank)
        at, op = 1_000_000, 1
        for step in range(steps):
            begin, gpu = at, at + 3000
            for thread, phase, count in ((main, "forward", 1), (engine, "backward", 2)):
                since = at
                for _ in range(count):
                    thread.range(LINEAR.format(o=op), at, at + 1500)
                    thread.kernel(GEMM, (at + 200, at + 900), (gpu, gpu + 20_000), device=rank)
                    thread.range("ncclAllReduce", at + 1600, at + 2900, domain="NCCL",
                                 jsonText=PAYLOAD)  # fmt: skip
                    thread.kernel(REDUCE, (at + 1700, at + 2800), (gpu + 20_000, gpu + 40_000),
                                  device=rank, stream=9)  # fmt: skip
                    at, gpu, op = at + 3000, gpu + 40_000, op + 1
                main.range(phase, since, at)
            main.synchronize(at, gpu + 1000)
            at = gpu + 2000
            main.range(f"step {step}", begin - 10, at)
            at += 1000
    return report.write(path)


def test_sums_of_layers_are_exposed_in_both_passes(tmp_path: Path) -> None:
    """By hand: 20 µs of all-reduces in the forward and 40 µs in the backward pass, all exposed."""
    run = perfmodel.analyze(shared_layers(tmp_path / "tp.sqlite")).analysis.fitted
    found = {f.kind: f for f in run.findings}["exposed_communication"]
    assert "3 NCCL kernels per step, 60.0 µs of them beside no computing" in found.evidence
    assert "(40.0 µs in 'backward', 20.0 µs in 'forward')" in found.evidence
    assert "tensor parallelism over fewer ranks" in found.action
    assert [
        row.part_s("communication") + row.part_s("waiting") for row in run.ranks
    ] == pytest.approx([60e-6] * 4)
    (group,) = run.collectives
    assert (group.name, group.count, group.ranks) == ("NCCL AllReduce", 3, 4)


def test_flops_are_those_of_a_rank_s_share(tmp_path: Path) -> None:
    """Three linear layers of 64 x 32 by 32 x 24, a quarter of 96 columns: 2 64 32 24 each."""
    run = perfmodel.analyze(shared_layers(tmp_path / "tp.sqlite")).analysis.fitted
    assert run.work is not None
    assert run.work.flops == 3 * 2 * 64 * 32 * 24
