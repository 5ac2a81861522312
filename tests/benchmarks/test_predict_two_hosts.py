"""Steps that hosts' reports predicted before they were timed."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from benchmarks.common import folders
from benchmarks.predict.one_runs import HOST_CASES, arguments
from benchmarks.predict.two_hosts import HOSTS, repeats, scored, text

PAGE = (folders.DOCS / "pytorch_predict.md").read_text(encoding="utf-8")


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


@pytest.mark.parametrize("folder", sorted(HOSTS.iterdir()), ids=lambda folder: folder.name)
def test_predictions_were_committed_before_steps_were_timed(folder: Path) -> None:
    def first(name: str) -> tuple[int, str]:
        asked = ["git", "log", "--diff-filter=A", "--format=%ct %h", "--", str(folder / name)]
        said = subprocess.run(asked, cwd=folders.ROOT, capture_output=True, text=True, check=False)
        if not (lines := said.stdout.splitlines()):
            pytest.skip("the history of commits is not here")
        time, commit = lines[-1].split()
        return int(time), commit

    predicted, measured = first("predictions.json"), first("measured_1.json")
    if predicted[1] == measured[1]:
        pytest.skip("the history of commits is not here")
    assert predicted < measured


def test_every_prediction_is_of_a_recorded_program_and_a_case() -> None:
    cases = [[name, sizes, options] for name, sizes, options in HOST_CASES]
    for file in HOSTS.glob("*/predictions.json"):
        recorded = {path.name.split(".")[0] for path in file.parent.glob("*.sqlite.xz")}
        for row in json.loads(file.read_text(encoding="utf-8")):
            assert row["report"] in recorded
            assert [row["report"], row["changed"], row["options"]] in cases
            assert row["low_s"] <= row["step_s"] <= row["high_s"]


def test_the_page_has_the_scores_of_what_was_committed() -> None:
    rows = scored()
    for line in [*text(rows)][1:]:
        group, bound, steps, error, _, _, _, inside, wide = cells(line)
        shown = [c for c in map(cells, PAGE.splitlines()) if c[:2] == [group, bound]]
        for found in shown:
            assert found[2:6] == [steps, error, inside, wide]
    one = [row for row in rows if row["group"] == "one report"]
    assert len(one) == 85
    assert f"{len(one)} steps" in PAGE
    _, gpu, host = map(cells, repeats(one))
    assert host[1] in PAGE
    assert f"{float(gpu[2].rstrip('%')):.1f} % where the GPU sets it" in PAGE


@pytest.mark.slow
def test_today_s_code_meets_what_the_page_says_of_it() -> None:
    shown = {
        (group, bound): rest[4:]
        for group, bound, *rest in (c for c in map(cells, PAGE.splitlines()) if len(c) == 10)
    }
    lines = [cells(line) for line in text(scored(today=True, only="one report"))]
    found = {(c[0], c[1]): [c[2], c[3], c[7], c[8]] for c in lines}
    for key in (("one report", "GPU"), ("one report", "host")):
        steps, error, inside, wide = shown[key]
        assert found[key][0] == steps
        for said, now in zip((error, inside, wide), found[key][1:], strict=True):
            assert float(now.rstrip("%")) == pytest.approx(float(said.rstrip("%")), abs=1.0)


def test_flags_of_a_case_are_the_reports_changed() -> None:
    folder = HOSTS / "h200_a"
    words = arguments("llama_small", {"d_model": 896, "batch": 10}, folder, {"accumulate": 2})
    assert words[0] == "llama"
    assert {"--width=896", "--heads=14", "--kv-heads=7", "--batch=10", "--accumulate=2"} <= {*words}
