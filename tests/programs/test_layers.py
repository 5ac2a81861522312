"""The layers of a network count the steps of reports that name no sizes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.common.folders import PROFILES, PROGRAMS, unpacked
from perfmodel.analysis.analyze import analyze_reports
from perfmodel.base.errors import WorkloadError
from perfmodel.programs.layers import LayeredStep
from perfmodel.programs.program import Options
from perfmodel.workloads.layers import total
from perfmodel.workloads.networks import network
from support.cli import perfmodel as run_cli

GPT_DDP = {"n_layer": 8, "vocab": 16384, "positions": 512, "tied": 0}
BERT = {"n_layer": 4, "d_model": 512, "n_head": 8, "vocab": 10000, "positions": 256}
UNNAMED = {
    "n_layer": 4, "d_model": 512, "n_head": 8, "vocab": 8192, "positions": 256, "tied": 0,
}  # fmt: skip


def analyzed(name: str, word: str, batch: int, sizes: dict[str, int], *more: str) -> dict[str, Any]:
    settings = [x for key, n in sizes.items() for x in ("--set", f"{key}={n}")]
    done = run_cli(
        "analyze", PROGRAMS / f"{name}.sqlite.xz", "--workload", f"layers:{word}", "-B", batch,
        *settings, *more, "--json",
    )  # fmt: skip
    assert done.exit_code == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_phases_of_two_ranks_have_the_layers_work() -> None:
    """16 samples a rank; NCCL's kernels, which run beside the backward, are no part of it."""
    found = analyzed("gpt_ddp", "gpt2", 32, GPT_DDP)
    cost = total(network("gpt2", **GPT_DDP), 16, 2)
    assert found["work"] == {
        "flops_per_step": cost.flops,
        "bytes_per_step": cost.forward_bytes + cost.backward_bytes + 2 * cost.update_bytes,
        "from": "layers",
        "attention": "full",
        "modelled_share": 1.0,
    }
    rows = {row["name"]: row for row in found["operators"]}
    assert list(rows) == ["backward", "(communication)", "forward", "optimizer"]
    assert rows["forward"]["flops"] == cost.forward_flops
    assert rows["backward"]["flops"] == cost.backward_flops
    assert rows["optimizer"]["bytes"] == 2 * cost.update_bytes  # in float32
    assert rows["(communication)"]["flops"] is None
    assert rows["backward"]["unit"] == "bfloat16_tensor"
    assert rows["backward"]["read_bytes"] is None
    compute = np.mean([rank["compute_s"] for rank in found["ranks"]])
    spent = sum(r["gpu_s"] for r in rows.values() if r["flops"] is not None)
    assert spent == pytest.approx(compute, rel=0.05)  # copies and memsets, too
    assert found["mfu"]["of_step"] == pytest.approx(
        cost.flops / max(r["step_s"] for r in found["ranks"]) / 989.4e12
    )


def test_layers_and_operators_count_the_same() -> None:
    """A report with sizes: FLOPs to the last one, and the same utilization."""
    layers = analyzed("bert_shapes", "bert-base", 24, BERT)
    done = run_cli("analyze", PROGRAMS / "bert_shapes.sqlite.xz", "--json")
    shapes = json.loads(done.stdout)
    truth = json.loads((PROGRAMS / "bert_shapes.truth.json").read_text(encoding="utf-8"))
    assert layers["work"]["flops_per_step"] == shapes["work"]["flops_per_step"]
    assert layers["work"]["flops_per_step"] == truth["flop_counter_total"]
    assert layers["mfu"]["of_step"] == pytest.approx(shapes["mfu"]["of_step"], rel=1e-12)
    assert (shapes["work"]["from"], layers["work"]["from"]) == ("shapes", "layers")


def test_without_phases_the_step_is_one() -> None:
    found = analyzed("gpt_unnamed", "gpt2", 16, UNNAMED)
    cost = total(network("gpt2", **UNNAMED), 16)
    (row,) = found["operators"]
    assert (row["name"], row["flops"]) == ("step", cost.flops)
    forward = analyzed("gpt_unnamed", "gpt2", 16, {**UNNAMED, "training": 0})
    assert forward["work"]["flops_per_step"] == cost.forward_flops


def test_a_causal_mask_and_a_type_are_options() -> None:
    found = analyzed(
        "gpt_unnamed", "gpt2", 16, UNNAMED, "--attention", "causal", "--dtype", "float32"
    )
    assert found["work"]["attention"] == "causal"
    assert found["work"]["flops_per_step"] == total(network("gpt2", causal=1, **UNNAMED), 16).flops
    mfu = found["mfu"]
    assert (mfu["unit"], mfu["ran_unit"]) == ("tf32_tensor", "float32")
    assert any("times the FLOPs" in warning for warning in found["warnings"]) == (
        mfu["of_busy"] * mfu["peak_flops_per_s"] > mfu["ran_peak_flops_per_s"]
    )


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("layers:gpt2",), "give --batch-size"),
        (("layers:gpt3", "-B", "16"), "expected one of the networks"),
        (("layers:gpt2", "-B", "16", "--set", "H=3"), "settings among n_layer"),
        (("layers:gpt2", "-B", "15"), "expected a batch that 2 ranks divide; got 15"),
        (("layers:gpt2", "-B", str(2**62)), "over 2^62 FLOPs"),
        (("layers:gpt2", "-B", "16", "--set", "training=2"), "training=1"),
        (("layers:vgg16", "-B", "16", "--attention", "causal"), "got causal"),
    ],
)
def test_what_cannot_be_counted(words: tuple[str, ...], says: str) -> None:
    two_ranks = PROFILES / "h200x2_2ranks_base_nsys2025.3.1.sqlite"
    report = two_ranks if "ranks" in says else PROGRAMS / "gpt_unnamed.sqlite.xz"
    done = run_cli("analyze", report, "--workload", *words)
    assert done.exit_code
    assert says in " ".join(done.stderr.split())


def test_a_report_without_a_gpu_has_no_layers() -> None:
    path = PROGRAMS / "halo.sqlite.xz"
    done = run_cli("analyze", path, "--workload", "layers:resnet18", "-B", 8)
    assert done.exit_code == WorkloadError.exit_code
    assert "expected steps with GPU operations" in done.stderr


def test_a_step_goes_to_other_processes_and_back(tmp_path: Path) -> None:
    """Two reports are read by two processes, which a network must reach."""
    from perfmodel.base.parallel import Engine

    packed = PROGRAMS / "gpt_unnamed.sqlite.xz"
    paths = [unpacked(packed, tmp_path / f"{name}.sqlite") for name in ("a", "b")]
    step = LayeredStep(network("gpt2", **UNNAMED), 16)
    found = analyze_reports(paths, Options(layers=step), Engine(2))
    works = [run.work for run in found.runs]
    assert all(work is not None for work in works)
    ranks = sum(len(run.ranks) for run in found.runs)
    assert ranks == 2
    assert np.isfinite([work.flops for work in works if work]).all()


def test_the_api_takes_a_network() -> None:
    import perfmodel

    path = PROGRAMS / "gpt_unnamed.sqlite.xz"
    net = network("gpt2", **UNNAMED)
    run = perfmodel.analyze(path, workload=net, B=16).analysis.fitted
    assert run.work is not None
    assert run.work.flops == total(net, 16).flops
    with pytest.raises(WorkloadError, match="expected B, the samples"):
        perfmodel.analyze(path, workload=net)


def test_a_batch_that_the_ranks_do_not_divide_is_refused() -> None:
    from perfmodel.programs.layers import with_counts

    with pytest.raises(WorkloadError, match="that 3 ranks divide"):
        with_counts([], LayeredStep(network("resnet18"), 16), 3)
