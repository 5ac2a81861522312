"""The score of diagnosis: each question of the rule, by hand; and the committed scores."""

from __future__ import annotations

import json
import tomllib
from typing import Any

import pytest

from benchmarks.common.folders import PROFILES, ROOT
from benchmarks.diagnosis.__main__ import CASES, FAULTS, Score, score, scores, totals
from perfmodel.programs.findings import rules

LATE = {"name": "n", "tuned": False, "kind": ["straggler"], "rank": 1, "range": "forward",
        "step_s": 0.030, "without_s": 0.010}  # fmt: skip
HEALTHY = {"name": "n", "tuned": False}


def finding(kind: str, **others: Any) -> dict[str, Any]:
    one = {"kind": kind, "title": "", "evidence": "", "range": None, "share": 0.5,
           "saving_s": 0.02, "saving_without_recorder_s": None}  # fmt: skip
    return one | others


def scored(case: dict[str, Any], *findings: dict[str, Any], late: int | None = 1) -> Score:
    ranks = [] if late is None else [{"rank": late}]
    return score(case, {"findings": [*findings], "stragglers": ranks})


def test_all_right() -> None:
    one = scored(LATE, finding("straggler", evidence="in forward"))
    assert (one.first, one.rank, one.range, one.saving, one.quiet) == (True,) * 4 + (None,)
    assert (one.saving_s, one.true_s) == (0.02, pytest.approx(0.02))


def test_all_wrong() -> None:
    one = scored(LATE, finding("launch_bound"), late=0)
    assert (one.first, one.rank, one.range, one.saving) == (False,) * 4
    assert scored(LATE, late=None).first is False


def test_the_second_finding_is_not_the_first() -> None:
    one = scored(LATE, finding("launch_bound"), finding("straggler", range="forward"))
    assert (one.first, one.range, one.saving) == (False, True, True)


@pytest.mark.parametrize(
    ("saving_s", "without", "right"),
    [(0.0251, None, False), (0.0249, None, True), (0.0149, None, False), (0.0151, None, True),
     (0.5, 0.02, True), (0.02, 0.5, False), (None, None, False)],
)  # fmt: skip
def test_the_saving_without_the_profiler_counts(
    saving_s: float | None, without: float | None, right: bool
) -> None:
    found = finding("straggler", saving_s=saving_s, saving_without_recorder_s=without)
    assert scored(LATE, found).saving is right


@pytest.mark.parametrize(
    ("kind", "share", "quiet"),
    [("straggler", 0.1, False), ("straggler", 0.099, True), ("launch_bound", 0.9, True),
     ("host_compute", 0.2, False), ("blocking_sync", None, True)],
)  # fmt: skip
def test_false_alarms(kind: str, share: float | None, quiet: bool) -> None:
    one = scored(HEALTHY, finding("memory_bound"), finding(kind, share=share))
    assert (one.quiet, one.first, one.rank, one.saving) == (quiet, None, None, None)


def test_kinds_and_reports_of_the_cases_exist() -> None:
    kinds = {kind for rule in rules() for kind in rule.kinds}
    assert kinds >= FAULTS
    for case in tomllib.loads(CASES.read_text())["case"]:
        assert kinds >= {*case.get("kind", ())}
        assert all((PROFILES / name).is_file() for name in case["reports"])


@pytest.mark.slow
def test_the_committed_scores_and_the_table_are_those_of_the_command() -> None:
    committed = json.loads((ROOT / "benchmarks" / "results" / "diagnosis.json").read_text())
    found = [*scores(tomllib.loads(CASES.read_text())["case"], PROFILES)]
    assert committed["totals"] == {"recorded, looked at before": totals(found)}
    page = (ROOT / "benchmarks" / "diagnosis" / "README.md").read_text(encoding="utf-8")
    for said in totals(found).values():
        assert f"| {said} |" in page
