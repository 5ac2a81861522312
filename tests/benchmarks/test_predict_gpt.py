"""The study of GPTs: its rows, its page, and that sizes were not seen."""

from __future__ import annotations

import json

import pytest

from benchmarks.common import pages
from benchmarks.predict import gpt
from benchmarks.predict.gpt_sizes import BLIND, EAGER, SETS


def test_no_scored_size_was_calibrated_with() -> None:
    assert not {*BLIND} & {*EAGER}
    seen = [json.loads(path.read_text()) for path in gpt.RESULTS.glob("calibration_*.json")]
    sizes = {tuple(row["sizes"][n] for n in gpt.SYMBOLS) for rows in seen for row in rows}
    assert sizes == {*SETS["eager"]}


def test_page_has_the_scores() -> None:
    assert pages.section(gpt.PAGE, gpt.SCRIPT) == gpt.page().strip()


@pytest.mark.parametrize("name", [*gpt.STUDIES])
def test_scores_follow_from_predictions_and_measurements(name: str) -> None:
    files = sorted(gpt.RESULTS.glob(f"measured_{'h100' if 'other' in name else 'h200'}_*.json"))
    times = gpt.measured(files)
    rows = json.loads((gpt.RESULTS / f"score_{name}.json").read_text())
    assert len(rows) == len(times)
    for row in rows:
        launches = times[gpt.key(row["model"], row["parallel"], row["sizes"])]
        assert row["launches_s"] == launches
        assert row["error"] == pytest.approx(row["step_s"] / row["measured_s"] - 1)


def test_frozen_model_predicts_what_was_frozen() -> None:
    kept = json.loads((gpt.RESULTS / "predictions_same.json").read_text())["predictions"]
    model = gpt.load(gpt.RESULTS / "model_eager.json")
    rows = [r for r in kept if r["model"] == "eager"][:4]
    for row in rows:
        found = gpt.predict_operators(model, row["sizes"], gpt.PROGRAM.work_at)
        assert found.step_s == pytest.approx(row["step_s"], rel=1e-3)
