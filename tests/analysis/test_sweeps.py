"""Sweeps: how intensity and performance follow a symbol, in words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perfmodel.analysis.result import RunAnalysis
from perfmodel.analysis.sweeps import elasticity, trends
from perfmodel.programs.mlp.mlp import mlp
from perfmodel.workloads.spec import load
from support.build_queued import QueuedTraining, queued_report
from support.build_training import Training, analyzed, shared_report
from support.foreign_reports import SHIPPED

VALUES = {"D": 784, "H": 512, "C": 10, "B": 3000, "p": 2, "b": 4}


@pytest.mark.parametrize(
    ("symbol", "flops", "moved"),
    [("B", 1.0, 0.0), ("H", 1.0, 1.0), ("b", 0.0, 1.0), ("D", 0.99, 0.99), ("p", -1.0, 0.66)],
)
def test_exponents_of_the_document_s_count(symbol: str, flops: float, moved: float) -> None:
    found = elasticity(mlp("document"), VALUES, symbol)
    assert found is not None
    assert found[0] == pytest.approx(flops, abs=0.01)
    assert found[1] == pytest.approx(moved, abs=0.01)


def test_exponents_where_the_formulas_move_nothing(tmp_path: Path) -> None:
    (tmp_path / "w.toml").write_text('[symbols]\nN = "n"\n[ranges.x]\nflops = "N"\n')
    assert elasticity(load(tmp_path / "w.toml"), {"N": 4}, "N") is None


def test_exponents_at_the_least_values() -> None:
    ones = dict.fromkeys(VALUES, 1)
    for symbol in VALUES:
        found = elasticity(mlp("document"), ones, symbol)
        assert found is None or all(abs(slope) < 5 for slope in found)


def sweep(*trainings: Training) -> list[RunAnalysis]:
    return [analyzed(shared_report(training)).fitted for training in trainings]


def test_a_sweep_over_batches_is_explained() -> None:
    runs = sweep(Training(B=1500), Training(B=3000), Training(B=6000))
    (said,) = trends(runs)
    assert said.startswith("B: intensity rises with B, because FLOPs go as B^1.00 and bytes as B^")
    assert said.endswith("measured FLOP/s per rank changed 4.00x from B = 1500 to 6000.")


def test_a_sweep_over_hidden_units_is_explained() -> None:
    (said,) = trends(sweep(Training(H=256), Training(H=1024)))
    assert said.startswith("H: intensity hardly changes with H")
    assert "4.00x from H = 256 to 1024" in said


def test_a_grid_is_explained_symbol_by_symbol() -> None:
    grid = [Training(H=H, B=B) for H in (128, 256) for B in (1500, 3000)]
    h, b = trends(sweep(*grid))
    assert (h[:2], b[:2]) == ("H:", "B:")


def test_a_sweep_over_ranks_is_explained() -> None:
    """Every rank has a GPU of its own, so that the number of GPUs goes with p."""
    (said,) = trends(sweep(Training(p=2), Training(p=4)))
    assert said.startswith(
        "p: intensity falls with p, because FLOPs go as p^-1.00 and bytes as p^0."
    )
    assert "from p = 2 to 4" in said


def test_runs_of_other_settings_are_not_compared(tmp_path: Path) -> None:
    def run(name: str, H: int, **config: object) -> Path:
        mark = json.dumps({"perfmodel_config": 1, **config})
        return shared_report(Training(H=H), name=name, mark=mark)

    paths = [run("a", 256, overlap=False), run("b", 512, overlap=True), run("c", 512, gemm=[1])]
    assert trends(analyzed(*paths).runs) == ()
    (said,) = trends(analyzed(*paths, run("d", 1024, overlap=False)).runs)
    assert "from H = 256 to 1024" in said


def test_only_like_is_compared_with_like() -> None:
    """Runs that differ in two symbols, in memory kind or not at all say nothing of one symbol."""
    both = sweep(Training(), Training(H=256, B=6000))
    kinds = sweep(Training(), Training(H=256, memory="pinned"))
    same = sweep(Training(), Training())
    assert trends(both) == trends(kinds) == trends(same) == ()


def test_runs_without_a_workload_are_not_compared() -> None:
    known, unknown = Training(), Training(gpu=False, mpi=False, p=1)
    assert trends(sweep(known, unknown)) == ()
    assert trends(sweep(unknown, unknown)) == ()


def test_a_workload_with_defaults_can_be_swept(tmp_path: Path) -> None:
    """Values that nobody gave are the workload's defaults."""
    text = '[symbols]\nN = {default = 8}\n[ranges.forward]\nflops = "N"\npci = "N"\n'
    (tmp_path / "w.toml").write_text(text)
    paths = [shared_report(Training(pace=(1,)), name=str(i)) for i in range(2)]
    runs = analyzed(*paths, workload=load(tmp_path / "w.toml")).runs
    assert trends(runs) == ()
    assert {run.identity.values["N"] for run in runs} == {8}


def test_the_sweep_of_the_shipped_reports() -> None:
    (said,) = trends(analyzed(*SHIPPED).runs)
    assert said.startswith("H: intensity hardly changes with H")
    assert "from H = 512 to 2048" in said


def test_runs_that_reduce_differently_are_told_apart(tmp_path: Path) -> None:
    """Each kind of run is explained by its own formulas; a graph is no other size."""
    paths = [shared_report(Training(B=b), name=str(b)) for b in (1500, 3000)]
    for b in (1500, 3000):
        paths.append(queued_report(tmp_path / f"nccl{b}.sqlite", QueuedTraining(B=b)))
    said = trends(analyzed(*paths).runs)
    assert [s.split(":")[0] for s in said] == ["MLP, data parallel", "MLP, data parallel, NCCL"]
    assert all(": B: intensity rises with B" in s for s in said)
    plain, graph = (QueuedTraining(B=b, graph=g) for b, g in ((1500, ""), (3000, "node")))
    alone = [queued_report(tmp_path / f"{t.B}g.sqlite", t) for t in (plain, graph)]
    assert trends(analyzed(*alone).runs) == ()
