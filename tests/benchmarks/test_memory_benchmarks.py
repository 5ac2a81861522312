"""The benchmarks of memory and utilization: their fits, and what their pages show of results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.common import pages as made
from benchmarks.memory import __main__ as memory
from benchmarks.memory import mlp as memory_mlp
from benchmarks.memory import report as memory_report
from benchmarks.utilization import __main__ as utilization
from benchmarks.utilization import report as utilization_report
from perfmodel.machines.gpu_samples import Reading, series_of

REPORTS = (memory_report, utilization_report)


def resnet_lines() -> list[dict[str, Any]]:
    """A net whose memory is 100 MB + 20 MB a sample."""
    case = {"net": "resnet18", "autocast": False}
    counts = dict.fromkeys(memory_report.TERMS, 2e7) | {
        "saved_per_sample_bytes": 2e7,
    }  # fmt: skip
    batches = [
        {**case, "batch": b, "allocated_bytes": 1e8 + 2e7 * b, "reserved_bytes": None,
         "nvml_bytes": None}
        for b in (1, 2, 4, 8, 16, 32, 64, 128, 256)
    ]  # fmt: skip
    return [{**case, **counts}, *batches]


def test_a_line_over_batches_is_found_and_tested_elsewhere() -> None:
    (fit,) = memory.with_fits({"resnet": resnet_lines()})["resnet_fits"]
    assert fit["fitted_on"] == len(memory.FITTED_BATCHES)
    assert fit["constant_bytes"] == pytest.approx(1e8)
    assert fit["slope"] == pytest.approx(2e7)
    assert [t["x"] for t in fit["held_out"]] == [1, 4, 16, 64, 256]
    assert all(t["covered"] and abs(t["relative_error"]) < 1e-9 for t in fit["held_out"])


def test_theory_over_the_trainer_s_cases_spans_what_is_fitted() -> None:
    chosen = [
        c for c in memory_mlp.CASES
        if c["hidden_size"] in memory.FITTED_HIDDEN and c["batch_size"] in memory.FITTED_SIZES
    ]  # fmt: skip
    assert len(chosen) == 8
    held = [memory_mlp.theory(c)["theory_held_bytes"] for c in chosen]
    assert max(held) > 10 * min(held)


def test_a_page_shows_the_results() -> None:
    text = memory_report.resnet(memory.with_fits({"resnet": resnet_lines()}))
    row = "| ResNet-18 float32 | 8 | 260.0 MB | 260.0 MB | +0.00 % | 0 B | – | – |"
    assert row in text
    assert "100.0 MB ± 0 B | 20.00 MB ± 0 B | 20.00 MB | 0.00 % | 0.00 % | 5 of 5" in text


def test_what_is_not_counted_is_the_same_for_every_net() -> None:
    lines = json.loads(memory_report.RESULTS.read_text())["resnet"]
    counts = [r for r in lines if "saved_per_sample_bytes" in r]
    rest = [
        r["allocated_bytes"] - memory_report.theory_at(c, 1)
        for c in counts
        for r in lines
        if (r.get("net"), r.get("autocast"), r.get("batch")) == (c["net"], c["autocast"], 1)
    ]
    assert len(rest) == 4
    assert 75e6 < min(rest) < max(rest) < 95e6  # workspaces, whatever the net


def test_means_by_gpu_become_the_answer() -> None:
    series = series_of([(t / 10, Reading(g, 30.0 + 20 * g)) for t in range(20) for g in (0, 1)])
    row = {
        "flags": [], "batch_s": 2e-3, "window_s": [0.0, 2.0], "gpus": utilization.means(series),
    }  # fmt: skip
    rows = [{"name": "before", **row}, {"name": "after", **row, "batch_s": 1e-3}]
    idle = utilization_report.busy_of("document", [], 2)
    text = utilization_report.answers({"rows": rows}, {"before": idle, "after": idle})
    assert "utilization is 40 % and memory utilization – in the setting `before`" in text
    assert "takes 1.00 ms instead of 2.00 ms" in text


def test_what_is_between_the_markers_is_replaced(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    begin, end = made.markers("x.py")
    page.write_text(f"above\n\n{begin}\nold\n{end}\n\nbelow\n")
    made.put(page, "x.py", "new\n")
    assert page.read_text() == f"above\n\n{begin}\n\nnew\n\n{end}\n\nbelow\n"
    with pytest.raises(SystemExit, match="put them back"):
        made.put(page, "y.py", "new")


def test_a_long_table_moves_into_a_data_file(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    table = made.table(("step", "µs", "by"), [("a", "1", "x"), ("b", "2", "y, z"), ("c", "3", "")])
    text = f"## Some steps\n\n{table}\nthen\n\n{table}"
    shown = {"Some steps": made.Shown("^[|] b ", "step|µs"), "Some steps 2": made.Shown()}
    found = made.shorten(text, page, shown)
    assert found.text == (
        "## Some steps\n\n| step | µs |\n| --- | --- |\n| b | 2 |\n\n"
        "[All 3 rows](data/page/some-steps.csv)\n\nthen\n\n[3 rows](data/page/some-steps-2.csv)\n"
    )
    first, second = (tmp_path / "data" / "page" / f"some-steps{end}.csv" for end in ("", "-2"))
    assert found.differing() == [first.name, second.name]
    found.write()
    assert first.read_text(encoding="utf-8") == 'step,µs,by\na,1,x\nb,2,"y, z"\nc,3,\n'
    assert found.differing() == []
    assert made.shorten(text, page, {}).text == text
    assert made.shorten(text, page, shown, "other").text == text, "a part's name is not its title"
    with pytest.raises(ValueError, match="Some steps: expected rows and columns; got none"):
        made.shorten(text, page, {"Some steps": made.Shown("no such row")})


@pytest.mark.slow
@pytest.mark.parametrize("report", REPORTS, ids=lambda report: report.SCRIPT)
def test_the_page_is_of_the_results_that_are_there(report: Any) -> None:
    shown = made.section(report.PAGE, report.SCRIPT)
    assert shown == report.text(json.loads(report.RESULTS.read_text())), f"run {report.SCRIPT}"
