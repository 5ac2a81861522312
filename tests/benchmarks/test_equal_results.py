"""The comparer of two checkouts' results: what counts as equal, and how a difference reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.common.folders import ROOT
from benchmarks.equal_results.__main__ import (
    ABSENT,
    ARGUMENTS,
    CASES,
    Rules,
    case_name,
    compare_cases,
    compare_files,
    read_cases,
    renamed_arguments,
)

EXACT = Rules()

BEFORE = {"pace_s": 0.25, "note": "found by thin runs", "rows": [{"p": 1}, {"p": 2}]}


def lines(before: object, after: object, rules: Rules = EXACT) -> list[str]:
    files = (json.dumps(before), json.dumps(after))
    return [str(found) for found in compare_files("a.json", *files, rules)]


def test_equal_values_have_no_difference_in_whatever_order_their_keys_are() -> None:
    assert lines(BEFORE, dict(reversed(BEFORE.items()))) == []
    assert lines({"x": [float("nan"), 1]}, {"x": [float("nan"), 1.0]}) == []


def test_gpus_may_be_in_any_order_and_other_lists_may_not() -> None:
    assert lines({"gpus": [{"id": 1}, {"id": 0}]}, {"gpus": [{"id": 0}, {"id": 1}]}) == []
    assert len(lines({"rows": [{"id": 1}, {"id": 0}]}, {"rows": [{"id": 0}, {"id": 1}]})) == 2


def test_a_difference_is_a_line_with_its_path_before_and_after() -> None:
    after = {**BEFORE, "pace_s": 0.25000000000000006, "rows": [{"p": True}, {"q": 2}, {}]}
    assert lines(BEFORE, after) == [
        "a.json.pace_s: 0.25 -> 0.25000000000000006",
        "a.json.rows length: 2 -> 3",
        "a.json.rows[0].p: 1 -> true",
        "a.json.rows[1].p: 2 -> (absent)",
        "a.json.rows[1].q: (absent) -> 2",
    ]


def test_listed_names_and_words_may_change_and_no_others() -> None:
    rules = Rules(renamed={"pace_s": "step_s"}, reworded={"thin": "trim"})
    after = {"step_s": 0.25, "note": "found by trim runs", "rows": BEFORE["rows"]}
    assert lines(BEFORE, after, rules) == []
    assert lines({"pace_s": "thinner"}, {"pace_s": "trimner"}, rules) == [
        "a.json.step_s: thinner -> (absent)",
        "a.json.pace_s: (absent) -> trimner",
    ]


def test_a_name_with_a_part_in_brackets_is_renamed_too() -> None:
    rules = Rules(renamed={"wide": "large"})
    assert lines({"wide [float32]": 1}, {"large [float32]": 1}, rules) == []


def traced(lane: int, *names: str, start: float = 1.0) -> str:
    events = [
        {"ph": "M", "name": "process_name", "pid": 0, "tid": 0, "args": {"name": "rank 0"}},
        {"ph": "M", "name": "thread_name", "pid": 0, "tid": lane, "args": {"name": "kernels"}},
    ]
    for name in names:
        bar = {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": lane, "ts": start}
        events.append({**bar, "dur": 2.0, "args": {}})
    return json.dumps({"traceEvents": events})


def test_events_of_a_trace_are_compared_by_lane_whatever_its_number() -> None:
    assert list(compare_files("a.json", traced(1, "sum"), traced(4, "sum"), EXACT)) == []
    assert list(compare_files("a.json", traced(1, "sum"), traced(4, "sum", "gap"), EXACT))
    assert list(compare_files("a.json", traced(1, "sum", "sum"), traced(1, "sum"), EXACT))
    assert list(compare_files("a.json", traced(1, "sum"), traced(1, "sum", start=1.5), EXACT))


def test_arguments_may_be_written_otherwise_after(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ARGUMENTS, r"\btable\b", "text")
    assert renamed_arguments(["stats", "--format", "table"]) == ["stats", "--format", "text"]


def test_tables_printed_one_after_another_are_compared_with_a_file_each(tmp_path: Path) -> None:
    files = {
        "before/stats/0.stdout.csv": "Time,Range\n1,forward\n\nCount,Kernel\n2,gemm\n",
        "after/stats/0.stdout.csv": "Written: two files\n",
        "after/stats/out/kernels.csv": "Count,Kernel\n2,gemm\n",
        "after/stats/out/ranges.csv": "Time,Range\n1,forward\n",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    sides = tmp_path / "before", tmp_path / "after"
    assert compare_cases(["stats"], *sides, EXACT, 2)["differences"] == 0
    (tmp_path / "after/stats/out/kernels.csv").write_text("Count,Kernel\n3,gemm\n")
    assert compare_cases(["stats"], *sides, EXACT, 2)["differences"] == 1


def test_values_that_follow_one_another_are_a_list() -> None:
    assert list(compare_files("a.json", '{"p": 1}\n{"p": 2}', '[{"p": 1}, {"p": 2}]', EXACT)) == []
    assert len(list(compare_files("a.json", '{"p": 1}\n{"p": 2}', '[{"p": 1}]', EXACT))) == 1


def test_a_tolerance_holds_where_its_pattern_is_found() -> None:
    rules = Rules(tolerances={r"\.p_value": 1e-9})
    near = 0.03 * (1 + 1e-10)
    assert lines({"p_value": 0.03}, {"p_value": near}, rules) == []
    assert len(lines({"p_value": 0.03}, {"p_value": 0.03 * (1 + 1e-8)}, rules)) == 1
    assert len(lines({"median": 0.03}, {"median": near}, rules)) == 1
    assert len(lines({"p_value": 0.03}, {"p_value": None}, rules)) == 1


def test_tables_are_compared_by_column_and_to_the_last_digit() -> None:
    rules = Rules(renamed={"pace": "step"})
    before = "name,pace\na,1.50\n"
    assert list(compare_files("a.csv", before, "name,step\na,1.50\n", rules)) == []
    found = [str(d) for d in compare_files("a.csv", before, "name,step\na,1.5\n", rules)]
    assert found == ["a.csv[1].step: 1.50 -> 1.5"]
    assert list(compare_files("a.csv", before, "pace,name\n1.50,a\n", EXACT))  # order counts
    found = [str(d) for d in compare_files("a.csv", before, "name,more\nb,2\n", EXACT)]
    assert found == [
        "a.csv.pace: (a column) -> (absent)",
        "a.csv.more: (absent) -> (a column)",
        "a.csv[1].name: a -> b",
    ]
    assert [str(d) for d in compare_files("a.csv", ABSENT, before, EXACT)] == [
        "a.csv: (absent) -> (a file)"
    ]
    two = "\n".join((before, "pace\n2"))  # two tables in one file
    assert list(compare_files("a.csv", two, two.replace("pace", "step"), rules)) == []
    found = [str(d) for d in compare_files("a.csv", two, two.replace("2", "3"), EXACT)]
    assert found == ["a.csv[4][0]: 2 -> 3"]


def test_text_is_compared_by_words_whatever_their_padding_and_wrapping() -> None:
    before = "range   time\n------------\nforward 1.5 ms\n"
    rules = Rules(renamed={"time": "duration"})
    assert (
        list(compare_files("a.txt", before, "range duration\n-----\nforward\n1.5 ms", rules)) == []
    )
    found = [str(d) for d in compare_files("a.txt", before, before.replace("1.5", "1.6"), EXACT)]
    assert found == ["a.txt behind 'range time forward': 1.5 -> 1.6"]
    words_only = before.replace("forward", "backward")
    assert list(compare_files("a.txt", before, words_only, Rules(only_numbers=True))) == []


def test_of_a_picture_only_its_text_counts() -> None:
    before = (
        '<style>a {b: 1}</style><g x="1"><!-- 4.70 MB --><path d="M 1 2"/></g><text>p = 2</text>'
    )
    moved = before.replace('"1"', '"3"').replace("M 1 2", "M 1 7").replace("b: 1", "b: 2")
    assert list(compare_files("a.svg", before, moved, EXACT)) == []
    found = [str(d) for d in compare_files("a.html", before, moved.replace("4.70", "4.71"), EXACT)]
    assert found == ["a.html behind '': 4.70 -> 4.71"]


def test_every_case_has_a_name_of_its_own_and_quick_ones_are_among_all() -> None:
    text = CASES.read_text("utf-8")
    every, quick = (
        {str(commands): case_name(commands) for commands in read_cases(text, ROOT, quick=quick)}
        for quick in (False, True)
    )
    assert len(set(every.values())) == len(every)
    assert quick.items() < every.items()
    assert 80 < len(quick) < len(every) / 10
