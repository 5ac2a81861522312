"""GPTs on four and eight GPUs: predictions, scores, and the page's part."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import nullcontext
from pathlib import Path

import pytest

from benchmarks.common import pages, results
from benchmarks.common.folders import SUPPORT, unpacked
from benchmarks.predict import gpt_ranks, one
from benchmarks.predict.gpt_sizes import BLIND, EAGER, SETS, SYMBOLS


def test_the_sizes_that_were_not_seen_are_others() -> None:
    assert not {*BLIND} & {*EAGER}
    seen = [json.loads(path.read_text()) for path in one.GPT.glob("calibration_*.json")]
    sizes = {tuple(row["sizes"][n] for n in SYMBOLS) for rows in seen for row in rows}
    assert sizes == {*SETS["eager"]}


@pytest.mark.slow
def test_ranks_are_predicted_nearly_as_was_frozen() -> None:
    """DDP's host takes a little longer since four GPUs were timed."""
    kept = json.loads(gpt_ranks.PREDICTED.read_text())
    assert len(kept) == 2 * (2 * 2 * 2 + 1)
    for row, now in zip(kept, gpt_ranks.predicted(), strict=True):
        assert gpt_ranks.of_case(row) == gpt_ranks.of_case(now)
        assert row["step_s"] * 0.98 < now["step_s"] < row["step_s"] * 1.08
        assert now["communication_s"] == pytest.approx(row["communication_s"], rel=2e-3)


def test_shipped_recordings_of_eight_gpus_are_inside() -> None:
    kept = json.loads(gpt_ranks.PREDICTED.read_text())
    rows = [row for row in kept if "report" in row]
    assert {row["report"] for row in rows} == {*gpt_ranks.SHIPPED.values()}
    for row in rows:
        truth = json.loads((one.PROGRAMS / f"{row['report']}.truth.json").read_text())
        assert row["low_s"] < truth["step_s_bare"] < row["high_s"]


def measured_rows(factors: list[float]) -> list[list[dict]]:
    """Rows of launches whose steps take so many times what was predicted."""
    kept = json.loads(gpt_ranks.PREDICTED.read_text())
    return [
        [
            {"k": k, "sizes": r["sizes"], "gpu": r["gpu"], "compiled": False,
             "parallel": r["parallel"], "step_s": [9.0, factor * r["step_s"], 0.0]}
            for k, r in enumerate(kept) if r["sizes"]["p"] == 4 and "H200" in r["gpu"]
        ]
        for factor in factors
    ]  # fmt: skip


def test_steps_of_several_launches_are_scored_by_their_median(tmp_path: Path) -> None:
    """Launches of 1.00, 1.02 and 1.50 times the prediction: 2 % off, as the second one."""
    for launch, rows in enumerate(measured_rows([1.0, 1.02, 1.5])):
        results.write(tmp_path / f"ranks4_{launch}" / f"ranks4_{launch}.json", rows)
    (tmp_path / "other.json").write_text('{"rows": []}')
    found = gpt_ranks.score([tmp_path])
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
    found = gpt_ranks.score([tmp_path])
    assert not any(row["inside"] for row in found["steps"])
    assert "0 of 4 steps lie inside their interval; the mean error is 67 %" in gpt_ranks.text(
        found, []
    )


@pytest.mark.slow
def test_the_communication_of_a_report_is_that_of_the_last_rank(tmp_path: Path) -> None:
    """A recording of eight GPUs in the place of one by gpt_runs: rank 4 is late."""
    kept = json.loads(gpt_ranks.PREDICTED.read_text())
    (row,) = [r for r in kept if r.get("report") == "gpt_ddp8"]
    results.write(tmp_path / "r.json", [{"k": 3, **row, "step_s": [row["step_s"]]}])
    report = one.PROGRAMS / "gpt_ddp8.sqlite.xz"
    shutil.copy(report, tmp_path / "r_3_timing.sqlite.xz")
    found = gpt_ranks.score([tmp_path])
    assert found["steps"] == [], "Nsight Systems was there"
    (shown,) = found["exposed"]
    assert shown["last_rank"] == 4
    assert shown["measured_communication_s"] == pytest.approx(4.04e-3, rel=0.01)
    assert shown["measured_exposed_s"] == pytest.approx(0.483e-3, rel=0.01)
    assert shown["exposed_s"] == row["exposed_communication_s"]
    assert shown["waiting_s"] > 15e-3
    assert gpt_ranks.text(found, []).count("| DDP |") == 1


def test_steps_under_nsight_systems_are_not_scored_where_there_is_no_report(
    tmp_path: Path,
) -> None:
    """A launch that was to be recorded, and whose reports were not made."""
    (rows,) = measured_rows([2.0])
    results.write(tmp_path / "recorded.json", [row | {"recorded": True} for row in rows])
    found = gpt_ranks.score([tmp_path])
    assert (found["steps"], found["exposed"]) == ([], [])


@pytest.mark.parametrize("made", [4, 3])
def test_a_launch_is_recorded_and_cut_into_a_report_of_each_gpt(
    made: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    def exported(command: list[str], report: Path) -> Path:
        asked.append(command)
        unpacked(SUPPORT / "small_report.sqlite.xz", report)
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
    assert pages.section(gpt_ranks.PAGE, gpt_ranks.SCRIPT, "ranks") == made.strip()
