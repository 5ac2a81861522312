"""One result in every format: what comes from outside is harmless, and `--json` is an alias."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import click
import pytest

from perfmodel.base.document import pick, plain, to_json
from perfmodel.base.table import Column, Table
from perfmodel.commands._options import FORMATS
from perfmodel.render.result import Result
from support.build_training import training_report
from support.cli import leaves, perfmodel, succeeds

EVIL = "a\x1b[31m\nb"
COLUMNS = (Column("name", "Name"), Column("host_s", "Host", "si", "s"))
RESULT = Result(
    ["first " + EVIL, Table("T", COLUMNS, [(EVIL, 2.5e-6)]), ["one " + EVIL, "two"]],
    document=lambda: {"name": EVIL, "bad": float("nan"), "path": Path("a/b")},
)


def test_text_is_lines_and_tables_in_order() -> None:
    lines = RESULT.render().splitlines()
    assert lines[0] == r"first a\x1b[31m b"
    assert lines[2] == "T"
    assert "2.50 µs" in lines[5]
    assert lines[-2:] == [r"one a\x1b[31m b", "two"]


def test_other_formats_hold_the_tables_alone() -> None:
    (row,) = csv.DictReader(io.StringIO(RESULT.render("csv"), newline=""))
    assert row == {"name": EVIL, "host_s": "2.5e-06"}  # data: it reads back as it was
    assert json.loads(RESULT.render("jsonl")) == {"table": "T", "name": EVIL, "host_s": 2.5e-6}
    for fmt in ("markdown", "latex", "jsonl", "json"):
        assert "\x1b" not in RESULT.render(fmt)


def test_json_is_the_document_or_the_tables() -> None:
    assert json.loads(RESULT.render("json")) == {"name": EVIL, "bad": None, "path": "a/b"}
    table = Table("T", COLUMNS, [("a", float("inf"))], notes=("n",))
    one = {"title": "T", "rows": [{"name": "a", "host_s": None}], "notes": ["n"]}
    assert json.loads(Result([table]).render("json")) == one
    assert json.loads(Result([table, table]).render("json")) == [one, one]


def test_documents_are_plain() -> None:
    assert plain({1: (1 + 0.0, None, True), "x": [float("-inf")]}) == {
        "1": [1.0, None, True], "x": [None],
    }  # fmt: skip
    assert pick(3 + 4j, "real", size="__abs__.__name__") == {"real": 3.0, "size": "__abs__"}
    assert to_json({"a": "\x7f"}, None) == r'{"a": "\u007f"}'


def _with_formats() -> list[tuple[str, click.Command]]:
    return [(name, one) for name, one in leaves().items()
            if any(p.name == "as_json" for p in one.params)]  # fmt: skip


def test_formats_are_the_same_everywhere() -> None:
    commands = _with_formats()
    assert {name for name, _ in commands} == {
        "analyze", "compare", "counters", "doctor", "machine list", "machine measure",
        "machine show", "memory", "predict", "stats", "study calibrate", "study formulas",
        "study layers", "study predict", "study scaling", "study splits", "study tta", "timeline",
        "utilization", "whatif",
    }  # fmt: skip
    for name, command in commands:
        (option,) = (p for p in command.params if p.name == "fmt")
        assert isinstance(option.type, click.Choice), name
        assert tuple(option.type.choices) == FORMATS, name
        assert option.default == "text", name


@pytest.mark.parametrize("command", [("machine", "list"), ("study", "layers", "alexnet")])
def test_json_is_short_for_format_json(command: tuple[str, ...]) -> None:
    assert succeeds(*command, "--json") == succeeds(*command, "--format", "json")
    refused = perfmodel(*command, "--json", "--format", "csv")
    assert refused.exit_code == 2
    assert "leave one out" in refused.output


def test_paths_that_are_said_are_harmless(tmp_path: Path) -> None:
    report = training_report(tmp_path / "run.sqlite")
    said = succeeds("analyze", report, "--no-plots", "-o", tmp_path / "o\x1b[31mut")
    assert "Written: " in said
    assert "\x1b" not in said
