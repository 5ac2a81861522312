"""The study of GPTs: its rows, its page, and that sizes were not seen."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.common import pages, results
from benchmarks.common.folders import unpacked
from benchmarks.predict import gpt, gpt_ranks
from benchmarks.predict.gpt_sizes import BLIND, EAGER, SETS


def test_no_scored_size_was_calibrated_with() -> None:
    assert not {*BLIND} & {*EAGER}
    seen = [json.loads(path.read_text()) for path in gpt.RESULTS.glob("calibration_*.json")]
    sizes = {tuple(row["sizes"][n] for n in gpt.SYMBOLS) for rows in seen for row in rows}
    assert sizes == {*SETS["eager"]}


def test_page_has_the_scores() -> None:
    assert pages.section(gpt.PAGE, gpt.SCRIPT) == gpt.page().strip()


@pytest.mark.parametrize("name", [*gpt.STUDIES])
def test_scores_follow_from_predictions_and_measurements(name: str, tmp_path: Path) -> None:
    files = sorted(gpt.RESULTS.glob(f"measured_{'h100' if 'other' in name else 'h200'}_*.json"))
    gpt.score(gpt.RESULTS / f"predictions_{name}.json", files, tmp_path / "score.json")
    found, kept = (
        results.read(path) for path in (tmp_path / "score.json", gpt.RESULTS / f"score_{name}.json")
    )
    assert found == kept


def test_frozen_model_predicts_what_was_frozen() -> None:
    kept = results.read(gpt.RESULTS / "predictions_same.json")["predictions"]
    model = gpt.load(gpt.RESULTS / "model_eager.json")
    rows = [r for r in kept if r["model"] == "eager"][:4]
    for row in rows:
        found = gpt.predict_operators(model, row["sizes"], gpt.PROGRAM.call_at)
        assert found.step_s == pytest.approx(
            row["step_s"], rel=2e-3
        )  # they read reports a little better now


# --- four and eight GPUs


@pytest.mark.slow
def test_the_frozen_models_predict_ranks_as_was_frozen() -> None:
    kept = json.loads(gpt_ranks.PREDICTED.read_text())
    assert len(kept) == 2 * 2 * 2
    same = results.read(gpt.RESULTS / "predictions_same.json")["predictions"]
    before = {gpt_ranks.of_case(r): r["step_s"] for r in same if r["model"] == "eager"}
    for row, now in zip(kept, gpt_ranks.predicted(), strict=True):
        assert gpt_ranks.of_case(row) == gpt_ranks.of_case(now)
        assert now["step_s"] == pytest.approx(
            row["step_s"], rel=2e-3
        )  # reports are read a little better now
        if row["parallel"] == "ddp":
            assert row["step_s"] == pytest.approx(before[gpt_ranks.of_case(row)], rel=1e-9)


def measured_rows(factors: list[float]) -> list[list[dict]]:
    """Rows of launches whose steps take so many times what was predicted."""
    kept = json.loads(gpt_ranks.PREDICTED.read_text())
    return [
        [
            {"k": k, "sizes": r["sizes"], "compiled": False, "parallel": r["parallel"],
             "step_s": [9.0, factor * r["step_s"], 0.0]}
            for k, r in enumerate(kept) if r["sizes"]["p"] == 4
        ]
        for factor in factors
    ]  # fmt: skip


def test_steps_of_several_launches_are_scored_by_their_median(tmp_path: Path) -> None:
    """Launches of 1.00, 1.02 and 1.50 times the prediction: 2 % off, as the second one."""
    for launch, rows in enumerate(measured_rows([1.0, 1.02, 1.5])):
        results.write(tmp_path / f"ranks4_{launch}" / f"ranks4_{launch}.json", rows)
    (tmp_path / "other.json").write_text('{"rows": []}')
    found = gpt_ranks.score([tmp_path], None)
    assert len(found["steps"]) == 4, "eight GPUs were not measured"
    for row in found["steps"]:
        assert row["error"] == pytest.approx(1 / 1.02 - 1)
        assert len(row["launches_s"]) == 3
        assert row["launch_low_s"] < row["measured_s"] < row["launch_high_s"]
        assert row["inside"] is (row["low_s"] <= 1.02 * row["step_s"] <= row["high_s"])
    assert found["exposed"] == []
    text = gpt_ranks.text(found, [])
    assert text.startswith("4 of 4 steps lie inside their interval; the mean error is 2 %")
    assert "3 launches | -2 % | yes |" in text


def test_a_step_outside_its_interval_is_said(tmp_path: Path) -> None:
    (rows,) = measured_rows([3.0])
    results.write(tmp_path / "ranks4_1.json", rows)
    found = gpt_ranks.score([tmp_path], None)
    assert not any(row["inside"] for row in found["steps"])
    assert "0 of 4 steps lie inside their interval; the mean error is 67 %" in gpt_ranks.text(
        found, []
    )


@pytest.mark.slow
def test_the_communication_of_a_report_is_that_of_the_last_rank(tmp_path: Path) -> None:
    """A recording of eight GPUs in the place of one by gpt_runs: rank 4 is late."""
    kept = json.loads(gpt_ranks.PREDICTED.read_text())
    (row,) = [r for r in kept if r["parallel"] == "ddp" and r["sizes"]["n_layer"] == 8
              and r["sizes"]["p"] == 8]  # fmt: skip
    results.write(tmp_path / "r.json", [{"k": 3, **row, "step_s": [row["step_s"]]}])
    report = gpt.REPORTS / "gpt_ddp8.sqlite.xz"
    shutil.copy(report, tmp_path / "r_3_timing.sqlite.xz")
    found = gpt_ranks.score([tmp_path], None)
    assert found["steps"] == [], "Nsight Systems was there"
    (one,) = found["exposed"]
    assert one["last_rank"] == 4
    assert one["measured_communication_s"] == pytest.approx(4.04e-3, rel=0.01)
    assert one["measured_exposed_s"] == pytest.approx(0.483e-3, rel=0.01)
    assert one["exposed_s"] == row["exposed_communication_s"]
    assert one["waiting_s"] > 15e-3
    assert gpt_ranks.text(found, []).count("| DDP |") == 1


def test_steps_under_nsight_systems_are_not_scored_where_there_is_no_report(
    tmp_path: Path,
) -> None:
    """A launch that was to be recorded, and whose reports were not made."""
    (rows,) = measured_rows([2.0])
    results.write(tmp_path / "recorded.json", [row | {"recorded": True} for row in rows])
    found = gpt_ranks.score([tmp_path], None)
    assert (found["steps"], found["exposed"]) == ([], [])


@pytest.mark.parametrize("made", [4, 3])
def test_a_launch_is_recorded_and_cut_into_a_report_of_each_gpt(
    made: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    def exported(command: list[str], report: Path) -> Path:
        asked.append(command)
        unpacked(gpt.REPORTS / "gpt_ddp8.sqlite.xz", report)
        with sqlite3.connect(report) as file:
            for k in range(made):
                file.execute(
                    "INSERT INTO NVTX_EVENTS (start, end, eventType, text, globalTid) "
                    "SELECT min(start), max(end), 59, ?, min(globalTid) FROM NVTX_EVENTS",
                    (f"size {k} timing",),
                )
        file.close()
        return report

    monkeypatch.setattr(gpt_ranks, "exported", exported)
    monkeypatch.setattr("lzma.compress", lambda data, preset: data[:9])
    with nullcontext() if made == 4 else pytest.raises(SystemExit, match="4 reports; got 3"):
        gpt_ranks.record(tmp_path / "launches", 8)
    reports = [f"recorded_{k}_timing.sqlite.xz" for k in range(made)]
    assert sorted(path.name for path in (tmp_path / "launches").iterdir()) == reports
    ((_, _, script),) = asked
    assert "seq 0 7" in script
    assert "--tag recorded --both --record --modes timing" in script


@pytest.mark.slow
def test_the_page_has_what_is_known_of_ranks() -> None:
    made = gpt_ranks.text(results.read(gpt_ranks.SCORED), gpt_ranks.of_shipped())
    assert pages.section(gpt.PAGE, gpt.SCRIPT, "ranks") == made.strip()


@pytest.mark.slow
def test_a_model_of_fewer_recordings_does_not_replace_a_recorded_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = gpt.load(gpt.RESULTS / "model_eager.json")
    kept = tmp_path / "gpt" / "model_eager.json"
    monkeypatch.setattr(results.folders, "RESULTS", tmp_path)
    monkeypatch.setattr(results.folders, "BUILD", tmp_path / "build")
    monkeypatch.setattr(gpt, "RESULTS", kept.parent)
    kept.parent.mkdir()
    gpt.keep_model("eager", replace(model, steps=model.steps[:2]))
    few = kept.read_text()
    gpt.keep_model("eager", model)
    whole = kept.read_text()
    assert whole == gpt.as_text(model)
    gpt.keep_model("eager", replace(model, steps=model.steps[:2]))
    assert kept.read_text() == whole
    assert (tmp_path / "build" / "gpt" / "model_eager.json").read_text() == few
