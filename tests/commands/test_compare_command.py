"""`perfmodel compare` and `perfmodel.compare`: syntax, formats, exit codes, frames."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import pandas as pd
import pytest

import perfmodel as api
from benchmarks.common.folders import ROOT
from perfmodel.base.errors import WorkloadError
from support.build_training import Training, training_report
from support.cli import evil_report, fails, harmless, perfmodel, succeeds


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Three launches of a slow configuration (b), three of a fast one (a)."""
    folder = tmp_path_factory.mktemp("compare")
    paces = {"b1": 6, "b2": 7, "b3": 6, "a1": 2, "a2": 2, "a3": 3}
    return {
        name: training_report(folder / f"{name}.sqlite", Training(pace=(pace,) * 8 + (pace + i,)))
        for i, (name, pace) in enumerate(paces.items())  # no launch is another's copy
    }


def test_before_and_after(reports: dict[str, Path]) -> None:
    result = perfmodel("compare", reports["b1"], reports["a1"], "--section", "all")
    assert result.exit_code == 0
    assert "A step takes 6.000 ms before, 2.000 ms after" in result.stdout
    assert "Ranges (host time per step, slowest rank)" in result.stdout
    assert "note: runs of one configuration are assumed to differ by 10 %" in result.stdout
    (warning,) = result.stderr.splitlines()
    assert warning.startswith("perfmodel: warning: 1 run before and 1 after do not show")


def test_the_first_screen_answers(reports: dict[str, Path]) -> None:
    result = perfmodel("compare", reports["b1"], reports["a1"], "--fail-if-slower", 5)
    assert (result.exit_code, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert lines[0] == "b1 -> a1 · 9 and 9 steps"
    assert lines[1].startswith("step 6.000 ms before, 2.000 ms after, ratio 0.333 [")
    said = " ".join(result.stdout.split())
    assert "VERDICT A step is 3x as fast (2.00 ms in place of 6.00 ms), more than noise" in said
    assert "Gate: a step is not more than 5 % slower (ratio " in said
    assert "! 1 run before, 1 after: 10 % between runs is assumed; 3 of each measure it" in said
    assert "More: --section answer|ranges|" in said
    assert "1 warning: --section warnings" in said
    back = perfmodel("compare", reports["a1"], reports["b1"], "--fail-if-slower", 5)
    assert back.exit_code == 7
    assert "Gate: a step is more than 5 % slower" in back.stdout


PAIRS = [
    ("profiles/programs/item_b32.sqlite.xz", "profiles/programs/healthy_b32.sqlite.xz"),
    ("profiles/programs/healthy_b32.sqlite.xz", "profiles/programs/straggler_p2_b32.sqlite.xz"),
    ("profiles/programs/gpt_shapes.sqlite.xz", "profiles/programs/gpt_fp32_shapes.sqlite.xz"),
    (
        "profiles/campaign/h200x2_p2_host_float32_H512_B3000.sqlite.xz",
        "profiles/campaign/h200x2_p2_pinned_float32_H512_B3000.sqlite.xz",
    ),
    (
        "profiles/diagnosis/heat_slow_rank_4.sqlite.xz",
        "profiles/diagnosis/heat_healthy_4.sqlite.xz",
    ),
]


@pytest.mark.parametrize(
    ("pair", "turned"), [*((pair, False) for pair in PAIRS), (PAIRS[0], True), (PAIRS[-1], True)]
)
def test_the_first_screen_fits(pair: tuple[str, str], turned: bool) -> None:
    before, after = (ROOT / path for path in (pair[::-1] if turned else pair))
    lines = perfmodel("compare", before, after, "--fail-if-slower", 5).stdout.splitlines()
    assert 10 < len(lines) <= 24
    assert max(map(len, lines)) <= 80
    for words in (" VERDICT  ", "Gate: ", " before   |", " NOW      ", "More: "):
        assert any(line.startswith(words) for line in lines), words


def test_work_is_said_before_times() -> None:
    one, other = (ROOT / path for path in PAIRS[2])
    said = json.loads(succeeds("compare", one, other, "--json"))["summary"]
    assert said["text"].startswith(
        "A step has 2,048 tokens in place of 4,608. A token takes 80 % longer (8.88 µs in place of "
        "4.93 µs), which is not significant"
    )


def test_findings_that_went_away_and_appeared() -> None:
    one, other = (ROOT / path for path in PAIRS[0])
    found = json.loads(succeeds("compare", one, other, "--json"))["summary"]
    assert [x["kind"] for x in found["gone"]] == ["blocking_sync"]
    assert found["new"] == []
    assert found["fix"]["kind"] == "launch_bound"
    assert found["verdict"] == "within noise"
    parts = ("compute_s", "communication_s", "waiting_s", "copies_s", "idle_s")
    for side in ("before", "after"):
        bar = found[side]
        assert sum(bar[part] for part in parts) == pytest.approx(bar["step_s"])
    turned = json.loads(succeeds("compare", other, one, "--json"))["summary"]
    assert (turned["gone"], turned["new"]) == (found["new"], found["gone"])


def test_a_slowdown_has_the_reason_of_the_change_back() -> None:
    one, other = (
        ROOT / "profiles" / "programs" / f"{x}_b32.sqlite.xz" for x in ("healthy", "dataloader")
    )
    slower, faster = (
        json.loads(succeeds("compare", *pair, "--json"))["summary"]["text"]
        for pair in ((one, other), (other, one))
    )
    assert slower.startswith("A step takes 4.68x as long (58.9 ms in place of 12.6 ms), more than ")
    assert "43.8 ms of the 46.3 ms lost in 'data'" in slower
    assert "43.8 ms of the 46.3 ms saved in 'data'" in faster
    assert "the GPU idles 44.4 ms less while the CPU works between kernel launches" in faster


@pytest.mark.parametrize(
    "words",
    [
        ["b1", "b2", "b3", "--to", "a1", "a2", "a3", "--json"],
        ["--json", "b1", "b2", "b3", "--to", "a1", "a2", "a3"],
        ["b1", "b2", "b3", "--to", "a1", "--to", "a2", "--to", "a3", "--json"],
    ],
)
def test_sets_of_reports(reports: dict[str, Path], words: list[str]) -> None:
    told = json.loads(succeeds("compare", *(reports.get(w, w) for w in words)))
    for side in ("before", "after"):
        assert [x["label"] for x in told[side]["launches"]] == [f"{side[0]}{i}" for i in (1, 2, 3)]
    assert told["launch_noise"] is None
    assert told["batch"]["verdict"] == "faster"
    assert told["warnings"] == []


@pytest.mark.parametrize("words", [["b1"], ["b1", "b2", "a1"], ["b1", "--to"], ["--to", "a1"], []])
def test_wrong_usage(reports: dict[str, Path], words: list[str]) -> None:
    result = perfmodel("compare", *(reports.get(w, w) for w in words))
    assert (result.exit_code, result.stdout) == (2, "")
    if len(words) in (1, 3):
        assert "perfmodel compare BEFORE... --to AFTER..." in result.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--json", "--format", "csv"], "leave one out"),
        (["--least", "nan"], "--least': expected a percentage such as 5 %; got nan"),
    ],
)
def test_options_that_say_nothing_are_refused(
    reports: dict[str, Path], words: list[str], said: str
) -> None:
    result = perfmodel("compare", reports["b1"], reports["a1"], *words)
    assert result.exit_code == 2
    assert said in " ".join(result.output.split())  # with --json errors are JSON


def test_exit_codes_are_as_elsewhere(reports: dict[str, Path], tmp_path: Path) -> None:
    assert "missing.sqlite" in fails(3, "compare", reports["b1"], tmp_path / "missing.sqlite")
    said = fails(4, "compare", reports["b1"], reports["a1"], "--batch-range", "nosuch")
    assert "expected ranges called 'nosuch'" in said
    fails(4, "compare", reports["b1"], reports["a1"], "--warmup", 9)


def test_options_reach_the_verdicts(reports: dict[str, Path]) -> None:
    def told(*options: object) -> dict[str, object]:
        pair = reports["b1"], reports["a1"]
        return json.loads(succeeds("compare", *pair, "--json", *options))  # type: ignore[no-any-return]

    assert told()["launch_noise"] == pytest.approx(0.1)  # type: ignore[index]
    assert told("--launch-noise", 50)["batch"]["verdict"] == "within noise"  # type: ignore[index]
    assert told("--least", 300)["batch"]["verdict"] == "within noise"  # type: ignore[index]
    narrow, wide = (told("--launch-noise", n)["batch"] for n in (0, 10))
    assert narrow["ratio_low"] > wide["ratio_low"]  # type: ignore[index]
    assert told("--warmup", 3)["after"]["launches"][0]["batches"] == 6  # type: ignore[index]


def test_one_table_of_all_rows(reports: dict[str, Path]) -> None:
    pair = reports["b1"], reports["a1"]
    rows = list(csv.DictReader(io.StringIO(succeeds("compare", *pair, "--format", "csv"))))
    assert float(rows[0]["before_s"]) == pytest.approx(6e-3)
    assert rows[0]["verdict"] == "faster"
    assert {r["group"] for r in rows} == {"range", "link", "kernel", "idle"}
    document = json.loads(succeeds("compare", *pair, "--format", "json"))
    assert len(document["rows"]) + len(document["idle"]) == len(rows)
    assert document == json.loads(succeeds("compare", *pair, "--json"))
    for fmt in ("markdown", "latex"):
        assert "batch iteration" in succeeds("compare", *pair, "--format", fmt)


def test_hostile_names_are_harmless(tmp_path: Path, reports: dict[str, Path]) -> None:
    evil = evil_report(tmp_path / "evil.sqlite")
    for options in ([], ["--all"], ["--format", "json"], ["--json"]):
        result = perfmodel("compare", evil, evil, *options)
        assert result.exit_code == 0
        assert harmless(result.stdout)
        assert harmless(result.stderr)
    assert "evil" in succeeds("compare", reports["b1"], evil)


def test_the_document_shows_what_is_printed() -> None:
    root = ROOT
    page = (root / "docs" / "compare.md").read_text(encoding="utf-8")
    command = re.search(r"```sh\nperfmodel (.*?)\n```\n\n```text\n(.*?)```", page, re.DOTALL)
    assert command is not None
    words = [root / w if w.startswith("profiles/") else w for w in command[1].split()]
    assert command[2] in succeeds(*words)


# --- notebooks


def test_frames(reports: dict[str, Path]) -> None:
    found = api.compare(reports["b1"], str(reports["a1"]))
    assert isinstance(found, api.Compared)
    assert found.ranges["before_s"][0] == pytest.approx(6e-3)
    assert list(found.ranges["verdict"].unique()) == ["faster"]
    assert set(found.links["group"]) == {"link"}
    parts = (found.ranges, found.links, found.kernels, found.idle)
    assert len(found.rows) == sum(map(len, parts))
    assert found.differences == ()
    assert len(found.warnings) == 1
    assert found.to_dict()["batch"]["verdict"] == "faster"
    assert str(found).startswith("b1 -> a1 · 9 and 9 steps")
    assert isinstance(found.kernels, pd.DataFrame)


def test_sets_of_reports_in_a_notebook(reports: dict[str, Path]) -> None:
    before = [api.read(reports[n]) for n in ("b1", "b2", "b3")]
    after = [reports[n] for n in ("a1", "a2", "a3")]
    found = api.compare(before, after, least=0.05, warmup=0)
    assert found.comparison.batch.launches == (3, 3)
    assert found.comparison.least == 0.05
    with pytest.raises(WorkloadError, match="least from 0 to 1000 percent"):
        api.compare(before, after, least=-1.0)
    with pytest.raises(WorkloadError, match="attribute='thread' or 'time'"):
        api.compare(before, after, attribute="nosuch")
