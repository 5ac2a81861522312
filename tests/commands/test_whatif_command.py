"""`perfmodel whatif`: its text, its JSON, its figure, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.common import pages as made
from benchmarks.common import results
from benchmarks.common.folders import PROFILES, RESULTS, ROOT
from benchmarks.whatif import report as whatif_report
from perfmodel.analysis.analyze import analyze_reports, analyze_run
from perfmodel.analysis.changes import changes_of
from perfmodel.analysis.runs import measure_report, one_run
from perfmodel.base.errors import ModelError
from perfmodel.programs.program import Options
from perfmodel.render.plot.bars import SavingBar, savings
from perfmodel.render.whatif import graph_picture
from support.build_report import ReportBuilder
from support.cli import fails, perfmodel, succeeds
from support.small_model import few_draws

LADDER = PROFILES / "ladder"
FROZEN = RESULTS / "predict_model.json"
DDP = PROFILES / "programs" / "gpt_ddp.sqlite.xz"
DOCUMENT = LADDER / "document_1.sqlite.xz"


@pytest.fixture(scope="module")
def told() -> Any:
    return json.loads(perfmodel("whatif", DOCUMENT, "--model", FROZEN, "--json").stdout)


@pytest.fixture(scope="module")
def bounded() -> Any:
    with few_draws():
        return json.loads(succeeds("whatif", DOCUMENT, "--json"))


def test_json_of_bounds(bounded: Any) -> None:
    assert bounded["batch_s"] == pytest.approx(2.096e-3, abs=1e-6)
    assert bounded["low_s"] < bounded["batch_s"] < bounded["high_s"]
    assert {c["source"] for c in bounded["changes"]} == {"bound"}
    for c in bounded["changes"]:
        assert c["alone_s"] is None
        assert 0 <= c["low_s"] <= c["high_s"] <= bounded["batch_s"]
        assert c["removes"]
    assert {step["source"] for step in bounded["path"]} == {"bound"}
    assert bounded["warnings"] == []


def test_no_step_takes_less_than_nothing(bounded: Any) -> None:
    assert bounded["path"]
    assert all(0 <= step["low_s"] <= step["high_s"] for step in bounded["path"])


@pytest.mark.slow
def test_json_of_predictions(told: Any) -> None:
    assert [c["name"] for c in told["changes"][:2]] == ["nccl", "pinned"]
    first = told["changes"][1]
    assert first["source"] == "model"
    assert first["batch_s"] + first["saving_s"] == pytest.approx(told["batch_s"])
    assert first["alone_s"] < first["batch_s"]  # this launch was slower than the model's
    assert {c["source"] for c in told["changes"]} == {"model", "bound"}
    assert told["warnings"] == []
    now_s, then_s = first["phases"]["cudaMemcpyDeviceToHost"]
    assert then_s < now_s
    assert [step["name"] for step in told["path"]] == [
        "nccl",
        "resident",
        "graph",
        "model parallel",
    ]


@pytest.mark.slow
def test_json_has_the_keys_that_the_page_lists(told: Any) -> None:
    page = (ROOT / "docs" / "whatif.md").read_text(encoding="utf-8").partition("## JSON")[2]
    for key in (*told, *told["changes"][0], *told["path"][0], *told["later"][0], *told["question"],
                *told["model_parallel"]):  # fmt: skip
        assert f"`{key}`" in page, key


def test_text_says_at_most_and_answers_the_question() -> None:
    with few_draws():
        said = succeeds("whatif", LADDER / "nccl_1.sqlite.xz")
    assert "≤" in said
    assert "Next launch" not in said  # no model, no prediction
    assert "note: times are the least that this report allows, not predictions" in said
    assert "If one link or unit took no time (Amdahl)" in said
    assert "B raises the intensity" in said
    assert "By formula (rates of nccl_1, by NCCL" in said


def test_a_replayed_report_has_no_ridge_but_bounds() -> None:
    with few_draws():
        said = succeeds("whatif", LADDER / "graph_1.sqlite.xz")
    assert "no ridge" in said
    assert "Its time cannot be predicted: no rates" in said
    assert "thin" in said


@pytest.mark.slow
def test_the_figure_is_written(tmp_path: Path) -> None:
    succeeds("whatif", DOCUMENT, "--model", FROZEN, "-o", tmp_path / "a.svg")
    succeeds("whatif", DOCUMENT, "--model", FROZEN, "-o", tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir()} == {"a.svg", "out"}
    assert {"whatif.png", "the_best_sequence.csv"} < {f.name for f in (tmp_path / "out").iterdir()}


def test_the_figure_shows_every_bar() -> None:
    bars = [
        SavingBar("a", 2e-4, -1e-4, 4e-4, "model"),
        SavingBar("b", 5e-4, 4e-4, 6e-4, "bound"),
    ]
    axes = savings(bars, 1e-3, title="t")
    assert [t.get_text() for t in axes.get_yticklabels()] == ["a", "b"]
    low, high = axes.get_xlim()
    assert low < -1e-4
    assert high > 6e-4
    assert [t.get_text() for t in axes.texts] == ["200 µs  20 %", "≤ 500 µs  50 %"]
    with pytest.raises(ModelError, match="got none"):
        savings([], 1e-3)


# --- refusals


def test_two_runs_are_refused() -> None:
    said = fails(6, "whatif", DOCUMENT, LADDER / "document_2.sqlite.xz")
    assert "got 2 runs" in said


def test_a_model_needs_a_report_with_a_mark(tmp_path: Path) -> None:
    report = ReportBuilder()
    report.gpu(0)
    thread = report.thread(rank=0)
    for i in range(4):
        thread.range("batch iteration", 1_000_000 * i, 1_000_000 * i + 900_000)
    said = fails(6, "whatif", report.write(tmp_path / "bare.sqlite"), "--model", FROZEN)
    assert "configuration mark" in said


def test_a_model_of_another_workload_is_refused(tmp_path: Path) -> None:
    data = json.loads(FROZEN.read_text(encoding="utf-8"))
    other = tmp_path / "other.json"
    other.write_text(json.dumps(data | {"workload": "mine"}), encoding="utf-8")
    assert "got one of 'mine'" in fails(6, "whatif", DOCUMENT, "--model", other)


# --- what the benchmark found


def test_the_page_shows_the_benchmark_s_results() -> None:
    result = results.read(RESULTS / "whatif.json")
    shown = made.section(whatif_report.PAGE, whatif_report.SCRIPT)
    assert shown == whatif_report.made(result).strip()
    assert result["summary"]["bounds"]["hold"] == result["summary"]["bounds"]["pairs"]


# --- programs other than the trainer


def test_changes_of_any_program_need_no_model() -> None:
    table = json.loads(succeeds("whatif", DDP, "--format", "json"))
    names = [row["name"] for row in table["changes"]]
    assert names == ["kernel", "copy", "straggler"]
    for row in table["changes"]:
        assert row["saving_s"] > 0
        assert row["saving_s"] / (row["saving_s"] + row["step_s"]) == pytest.approx(row["share"])


@pytest.mark.slow
def test_a_finding_and_its_change_save_the_same_of_the_step_without_the_profiler() -> None:
    rows = {
        r["name"]: r for r in json.loads(succeeds("whatif", DDP, "--format", "json"))["changes"]
    }
    [finding] = analyze_reports([DDP], Options()).fitted.findings
    assert finding.saving_s == pytest.approx(rows[finding.key]["saving_s"])
    assert finding.share == pytest.approx(rows[finding.key]["share"])


def test_several_changes_are_replayed_at_once() -> None:
    said = succeeds("whatif", DDP, "--apply", "straggler, copy")
    assert "straggler + copy" in said.partition("Together")[2]


def test_unknown_changes_and_changes_of_the_trainer_are_refused() -> None:
    assert "expected changes of this run (straggler" in fails(6, "whatif", DDP, "--apply", "gpu")
    said = fails(6, "whatif", LADDER / "nccl_1.sqlite.xz", "--apply", "launch_bound")
    assert "got the trainer's report" in said


def test_changes_of_any_program_are_drawn_largest_first(tmp_path: Path) -> None:
    report = PROFILES / "programs" / "dataloader_b32.sqlite.xz"
    succeeds("whatif", report, "-o", tmp_path / "w.png")
    assert (tmp_path / "w.png").read_bytes().startswith(b"\x89PNG")
    run = one_run([measure_report(report, report, Options())], Options())
    found = changes_of(analyze_run(run, Options()))
    ax = graph_picture(found)
    widths = [bar.get_width() for bar in ax.patches]
    assert widths == sorted((c.saving_s for c in found.changes), reverse=True)


def test_a_command_without_a_picture_refuses_one(tmp_path: Path) -> None:
    result = perfmodel("analyze", DDP, "-o", tmp_path / "x.png")
    assert result.exit_code == 2
    assert "a folder for all of it; got 'x.png'" in result.stderr
    assert not (tmp_path / "x.png").exists()
