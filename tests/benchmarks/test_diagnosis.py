"""The score of diagnosis: questions of the rule, by hand; the truth; and committed scores."""

from __future__ import annotations

import asyncio
import json
import lzma
import shutil
import subprocess
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from benchmarks.common.folders import PROFILES, ROOT
from benchmarks.diagnosis import others, strategy
from benchmarks.diagnosis.__main__ import CASES, analyzed, cases_of, scores
from benchmarks.diagnosis.edit import edited, linked, step_s
from benchmarks.diagnosis.faults import OTHER_WAYS, STEPS, TIMED
from benchmarks.diagnosis.record import PLAN, RECORDED, command, drawn, name_of
from benchmarks.diagnosis.rule import FAULTS, Score, score, totals
from perfmodel.findings import kinds

LATE = {"name": "n", "tuned": False, "kind": ["straggler"], "rank": 1, "range": "forward",
        "step_s": 0.030, "without_s": 0.010}  # fmt: skip
HEALTHY = {"name": "n", "tuned": False}


def finding(kind: str, **others: Any) -> dict[str, Any]:
    one = {"kind": kind, "title": "", "evidence": "", "range": None, "share": 0.5,
           "saving_s": 0.02}  # fmt: skip
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
    ("saving_s", "right"),
    [(0.0251, False), (0.0249, True), (0.0149, False), (0.0151, True), (None, False)],
)
def test_the_saving_is_within_a_quarter_of_the_true_one(
    saving_s: float | None, right: bool
) -> None:
    found = finding("straggler", saving_s=saving_s)
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
    known = set(kinds())
    assert known >= FAULTS
    for case in (*cases_of(CASES, unseen=False), *cases_of(CASES, unseen=True)):
        assert known >= {*case.get("kind", ())}
        assert all((PROFILES / name).is_file() for name in case["reports"])


def test_every_fault_is_planned_once_to_be_seen_and_once_not() -> None:
    plan = tomllib.loads(PLAN.read_text())
    assert {*plan["fault"]} == {*TIMED, *OTHER_WAYS}
    planted = [c for c in plan["case"] if c["fault"] in plan["fault"]]
    count = Counter((case["fault"], case["unseen"]) for case in planted)
    assert {*count.values()} == {1}
    assert len(count) == 2 * len(plan["fault"]) >= 2 * 20
    healthy = Counter(c["unseen"] for c in plan["case"] if c["fault"] not in plan["fault"])
    assert healthy == {True: 7, False: 7}


def test_the_truth_of_every_recording_is_that_of_its_plan() -> None:
    plan = tomllib.loads(PLAN.read_text())
    recorded = {c["reports"][0]: c for c in tomllib.loads(RECORDED.read_text())["case"]}
    assert len(recorded) == len(plan["case"]) == 62
    for case in plan["case"]:
        known = recorded[f"diagnosis/{name_of(case)}.sqlite.xz"]
        fault = plan["fault"].get(case["fault"], {})
        assert known["tuned"] is not case["unseen"]
        assert (known.get("kind"), known.get("range")) == (fault.get("kind"), fault.get("range"))
        assert ("step_s" in known) is bool(fault)
        if fault:
            assert known["step_s"] > 1.04 * known["without_s"]


@pytest.mark.parametrize("fault", TIMED)
def test_the_rank_of_the_truth_is_the_one_that_takes_longest(fault: str) -> None:
    truth = tomllib.loads(PLAN.read_text())["fault"][fault]
    phase, extra = TIMED[fault]
    ranks, at = 4, 2
    more = [sum(extra(r, s, ranks, at) for s in range(STEPS)) for r in range(ranks)]
    longest = {r for r in range(ranks) if more[r] > 0.9 * max(more)}
    if "rank" in truth:
        assert longest == {{"at": at, "last": ranks - 1}.get(truth["rank"], truth["rank"])}
    else:
        assert len(longest) > 1 or fault == "at_random"
    assert truth.get("range", phase) == phase


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.skipif(shutil.which("mpirun") is None, reason="needs mpirun")
def test_a_fault_makes_the_step_of_a_real_program_longer() -> None:
    def step_s(fault: str) -> float:
        words = command("heat", fault, 1, 0.02, 2)
        return float(subprocess.run(words, cwd=ROOT, check=True, capture_output=True).stdout)

    assert step_s("slow_rank") - step_s("healthy") > 0.01


def test_unseen_cases_show_nothing_but_totals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from benchmarks.diagnosis import __main__ as command_line

    text = '[[case]]\nname = "kept"\nreports = ["a"]\nkind = ["straggler"]\ntuned = false\n'
    (tmp_path / "c.toml").write_text(text + text.replace("kept", "shown").replace("false", "true"))
    late = {"findings": [finding("straggler")], "stragglers": []}
    monkeypatch.setattr(command_line, "analyzed", lambda reports: late)
    monkeypatch.setattr(command_line.scores, "__defaults__", (lambda reports: late,))
    words = ["x", "--cases", str(tmp_path / "c.toml"), "--out", str(tmp_path / "o.json")]
    for unseen in (False, True):
        monkeypatch.setattr("sys.argv", [*words, *["--unseen"] * unseen])
        command_line.main()
        printed, kept = capsys.readouterr().out, json.loads((tmp_path / "o.json").read_text())
        (said,) = kept["totals"].values()
        assert said["first"] == "1 of 1"
        assert "kept" not in printed
        assert ("shown" in printed, len(kept["cases"])) == (not unseen, int(not unseen))


def test_the_strategy_says_what_the_analysis_says() -> None:
    pytest.importorskip("mcp", reason="needs the extra perfmodel[mcp]")
    files = {"diagnosis/heat_slow_rank_4.sqlite.xz", "programs/straggler_p2_b32.sqlite.xz",
             "programs/bert_shapes.sqlite.xz"}  # fmt: skip
    cases = [c for c in cases_of(CASES, unseen=False) if c["reports"][0] in files]
    found, letters = asyncio.run(strategy.scores(cases, PROFILES))
    assert [*scores(cases, PROFILES, analyzed)] == found
    assert letters["within"] == len(found) == 3


@pytest.mark.slow
def test_the_committed_scores_and_the_table_are_those_of_the_command() -> None:
    results = ROOT / "benchmarks" / "results"
    page = (ROOT / "benchmarks" / "diagnosis" / "README.md").read_text(encoding="utf-8")
    found = [*scores(cases_of(CASES, unseen=False), PROFILES)]
    made = {
        f"{how}, looked at before": totals([one for one in found if one.made == how])
        for how in ("recorded", "edited")
    }
    assert json.loads((results / "diagnosis.json").read_text())["totals"] == made
    for said in (said for one in made.values() for said in one.values()):
        assert f"| {said} |" in page


def trace(rank: int) -> dict[str, Any]:
    """Three steps of 10 ms: a kernel of 6 ms and an all-reduce of 1 ms, launched 1 ms apart."""
    events: list[dict[str, Any]] = []
    for step in range(3):
        at, number = 1e4 * step, 2 * step
        main = {"ph": "X", "pid": 1, "tid": 1}
        events.append({**main, "cat": "user_annotation", "name": f"ProfilerStep#{step}", "ts": at,
                       "dur": 9e3, "args": {}})  # fmt: skip
        events.append({**main, "cat": "cpu_op", "name": "aten::linear", "ts": at + 50.0,
                       "dur": 10.0, "args": {}})  # fmt: skip
        for i, (name, start, length) in enumerate(
            (("gemm", at + 1e2, 6e3), ("ncclDevKernel_AllReduce", at + 61e2, 1e3))
        ):
            args = {"correlation": number + i, "stream": 7, "device": rank, "context": 1}
            launch = {**main, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "dur": 5.0}
            events.append({**launch, "ts": at + 90.0 + 1e3 * i, "args": args})
            events.append({**main, "pid": 0, "tid": 7, "cat": "kernel", "name": name, "ts": start,
                           "dur": length, "args": args})  # fmt: skip
    return {"traceEvents": events}


@pytest.fixture
def two_ranks(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / f"{rank}.json.xz" for rank in (0, 1)]
    for rank, path in enumerate(paths):
        path.write_bytes(lzma.compress(json.dumps(trace(rank)).encode()))
    return paths


@pytest.mark.parametrize(
    ("edit", "more_s"),
    [
        ({"fault": "none"}, 0.0),
        ({"fault": "loader", "ms": 8}, 8e-3),
        ({"fault": "pause", "ms": 8, "rank": 1}, 8e-3),
        ({"fault": "pageable", "ms": 5}, 5e-3),
        ({"fault": "offload", "ms": 5}, 7e-3),
        ({"fault": "link", "times": 4}, 0.0),
        ({"fault": "link", "times": 8}, 4e-3),
        ({"fault": "gpu", "times": 2, "rank": 0}, 3e-3),
    ],
)
def test_an_edit_makes_the_step_as_much_longer(
    edit: dict[str, Any], more_s: float, two_ranks: list[Path], tmp_path: Path
) -> None:
    """A step has 7 ms of work on the GPU, and 10 ms on the host."""
    found = step_s(two_ranks, edit) - step_s(two_ranks, {"fault": "none"})
    assert found == pytest.approx(more_s, abs=0.1e-3)
    for path in edited(two_ranks, edit, tmp_path):
        events = json.loads(path.read_text())["traceEvents"]
        ends: dict[Any, float] = {}
        for one in sorted((e for e in events if e["pid"] == 0), key=lambda e: float(e["ts"])):
            assert one["ts"] >= ends.get(one["tid"], 0.0)
            ends[one["tid"]] = one["ts"] + one["dur"]
        launches = {e["args"]["correlation"]: e["ts"] for e in events if "cuda" in e["cat"]}
        assert all(e["ts"] > launches[e["args"]["correlation"]] for e in events if e["pid"] == 0)


def test_arrows_lead_from_launches_to_operations() -> None:
    arrows = [e for e in linked(trace(0))["traceEvents"] if e["cat"] == "ac2g"]
    assert Counter((e["ph"], e["pid"]) for e in arrows) == {("s", 1): 6, ("f", 0): 6}


def test_statements_of_other_tools() -> None:
    late = {"name": "n", "tuned": True, "kind": ["straggler"], "rank": 1}
    told = ("profile_insufficient_nvtx: x", "top_kernel: Kernel hotspot", "nccl: Long NCCL")
    one = others.scored(late, "nsys-ai", others.Said(told, None))
    assert (one.first, one.named, one.rank, one.kinds) == (False, True, False, 3)
    assert one.said == told[1:]
    healthy = others.scored({"name": "n", "tuned": True}, "nsys-ai", others.Said(told, 1))
    assert (healthy.first, healthy.named, healthy.rank) == (None, None, None)
    with pytest.raises(KeyError, match="in no pattern"):
        others.kinds_of("TraceLens", "something new")
    assert others.parts({"idle": 0.3, "copies": 0.05, "communication": 0.4}) == (
        "communication 40%", "idle 30%", "computing"
    )  # fmt: skip
    known = set(kinds())
    for tool in others.TOOLS:
        for statement in others.OTHERS[tool]["statement"]:
            assert known >= {*statement.get("kinds", ())}


def test_the_table_of_other_tools_is_what_they_said() -> None:
    page = (ROOT / "benchmarks" / "diagnosis" / "README.md").read_text(encoding="utf-8")
    kept = json.loads((ROOT / "benchmarks" / "results" / "diagnosis_others.json").read_text())
    for tool, made in (("nsys-ai", "recorded"), ("TraceLens", "edited")):
        cases = [one for one in kept[tool]["cases"] if one["made"] == made]
        said = others.totals([others.Answer(**{**c, "said": tuple(c["said"])}) for c in cases])
        assert kept[tool][made][tool] == said
        assert all(f"| {said[question]} |" in page for question in ("first", "named", "rank"))


def test_sealed_cases_are_drawn_by_chance() -> None:
    faults = tomllib.loads(PLAN.read_text())["fault"]
    cases = drawn(8, faults)
    assert [case["fault"] for case in cases].count("healthy") == 2
    assert len({case["fault"] for case in cases}) == 7
    assert all(0 <= case["at"] < case["ranks"] for case in cases)
    assert drawn(8, faults) != cases
