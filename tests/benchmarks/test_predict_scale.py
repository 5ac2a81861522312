"""Predictions of 4 and 8 GPUs: nothing was fitted after the freeze; the page is what was found."""

from __future__ import annotations

import pytest

from benchmarks.common import results
from benchmarks.common.folders import PROGRAMS, plain
from benchmarks.common.pages import section
from benchmarks.predict import scale
from benchmarks.predict.report import PAGE
from perfmodel.analysis.analyze import analyze
from perfmodel.programs.program import Options
from perfmodel.readers import read
from perfmodel.studies.mlp.case import mlp_case
from perfmodel.studies.models.model import load
from perfmodel.studies.models.predict import predict

FOUND = results.read(scale.OUT)


def test_the_model_saw_one_and_two_gpus_only() -> None:
    runs = load(plain(scale.MODEL)).runs
    assert 300 < len(runs) <= FOUND["trained_on"]
    assert {str(run["source"])[:3] for run in runs} == {"p1_", "p2_"}


def test_predictions_are_the_frozen_models() -> None:
    model, said = load(plain(scale.MODEL)), {p["case"]: p for p in FOUND["predictions"]}
    assert len(said) == 36
    for row in FOUND["rows"]:
        again = predict(model, mlp_case(row["sizes"], row["settings"]))
        assert row["predicted_s"] == said[row["case"]]["predicted_s"]
        assert again.batch_s == pytest.approx(row["predicted_s"], rel=1e-9)
        assert row["error"] == pytest.approx(row["predicted_s"] / row["measured_s"] - 1)
        assert len(row["measured"]) == 3


def test_the_page_says_what_was_found() -> None:
    assert section(PAGE, "benchmarks.predict.scale --document").strip() == scale.made(FOUND).strip()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt_ddp8", "gpt_fsdp8"])
def test_eight_ranks_of_a_gpt_are_analyzed(name: str) -> None:
    report = PROGRAMS / f"{name}.sqlite.xz"
    trace = read(report)
    (run,) = analyze([trace], Options()).runs
    assert {gpu.name for gpu in trace.gpus} == {"NVIDIA H200"}
    assert len(run.steps.ranks) == 8
    assert all(rank.whole_s > (rank.gpu_busy_s or 0.0) > 0 for rank in run.steps.ranks)
