"""Pipes: `-` for standard input and output, JSON lines, columns that stay."""

from __future__ import annotations

import contextlib
import gzip
import json
import lzma
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from benchmarks.common.folders import PROFILES, ROOT
from perfmodel.cli import main
from support.cli import leaves, perfmodel, succeeds


def piped(content: bytes, *arguments: object) -> Result:
    return CliRunner().invoke(
        main, [str(a) for a in arguments], input=content, prog_name="perfmodel",
        catch_exceptions=False,
    )  # fmt: skip


# --- standard input


@pytest.mark.parametrize("pack", [bytes, gzip.compress, lzma.compress])
def test_a_report_through_a_pipe_is_the_report(
    report: Path, pack: Callable[[bytes], bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    done = piped(pack(report.read_bytes()), "stats", "-", "--format", "jsonl")
    assert done.exit_code == 0, done.stderr
    assert done.stdout == succeeds("stats", report, "--format", "jsonl")
    assert list(tmp_path.iterdir()) == []


def test_every_output_of_a_piped_report(report: Path, tmp_path: Path) -> None:
    arguments = ("-o", tmp_path / "out", "--db", tmp_path / "results.db", "--json", "--no-plots")
    done = piped(report.read_bytes(), "analyze", "-", *arguments)
    assert done.exit_code == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["label"] == "stdin"
    assert said["batch"] == json.loads(succeeds("analyze", report, "--json"))["batch"]
    assert (tmp_path / "out" / "ranges.csv").stat().st_size > 0
    assert (tmp_path / "results.db").stat().st_size > 0


def test_what_no_pipe_can_give(report: Path) -> None:
    content = report.read_bytes()
    twice = piped(content, "compare", "-", "-")
    assert (twice.exit_code, twice.stdout) == (2, "")
    assert "expected - once; got it again" in twice.stderr
    empty = piped(b"", "analyze", "-")
    assert (empty.exit_code, empty.stdout) == (2, "")
    assert "the command before it wrote nothing" in empty.stderr
    cut = piped(content[:5000], "analyze", "-")
    assert (cut.exit_code, cut.stdout) == (3, "")
    assert "stdin.sqlite: the file is truncated" in cut.stderr
    other = piped(b"<html>", "stats", "-")
    assert other.exit_code == 3
    assert "expected an SQLite export of Nsight Systems; got something else" in other.stderr


@pytest.mark.skipif(os.name != "posix", reason="needs a terminal")
def test_a_terminal_is_no_report() -> None:
    ours, theirs = os.openpty()
    command = [sys.executable, "-m", "perfmodel", "analyze", "-"]
    done = subprocess.run(command, stdin=theirs, capture_output=True, text=True, timeout=60)
    os.close(ours), os.close(theirs)
    assert done.returncode == 2
    assert "xz -dc run.sqlite.xz | perfmodel analyze -" in done.stderr


def test_counters_of_ncu_through_a_pipe() -> None:
    csv = ROOT / "tests" / "golden" / "ncu" / "h200_cublas.csv.xz"
    done = piped(lzma.decompress(csv.read_bytes()), "counters", "-", "--format", "jsonl")
    assert done.exit_code == 0, done.stderr
    assert done.stdout == succeeds("counters", csv, "--format", "jsonl")


# --- standard output


def test_a_trace_and_a_picture_to_standard_output(bare: Path, tmp_path: Path) -> None:
    done = perfmodel("timeline", bare, "--perfetto", "-o", "-")
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["traceEvents"]
    assert "bars in" in done.stderr
    succeeds("timeline", bare, "-o", tmp_path / "one.png")
    done = perfmodel("timeline", bare, "-o", "-")
    assert done.stdout_bytes == (tmp_path / "one.png").read_bytes()


def test_a_model_goes_from_one_command_to_the_next() -> None:
    reports = [
        PROFILES / "campaign" / f"h200x4_p{p}_host_float32_H512_B3000.sqlite.xz" for p in (2, 4)
    ]
    made = perfmodel("study", "calibrate", *reports, "-o", "-")
    assert made.exit_code == 0, made.stderr
    assert "Written" not in made.output
    sizes = ("-D", 784, "-H", 512, "-C", 10, "-B", 3000, "-p", 2)
    asked = piped(
        made.stdout_bytes, "study", "predict", "--model", "-", *sizes, "--format", "jsonl"
    )
    assert asked.exit_code == 0, asked.stderr
    assert "forward" in [json.loads(line)["phase"] for line in asked.stdout.splitlines()]


def test_a_folder_does_not_fit_into_a_pipe(report: Path) -> None:
    result = perfmodel("analyze", report, "-o", "-")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "got -; take --format without -o" in result.stderr


# --- JSON lines and columns


def test_json_lines_are_the_rows_of_the_tables(report: Path, tmp_path: Path) -> None:
    succeeds("analyze", report, "-o", tmp_path, "--no-plots", "-q")
    rows = [json.loads(ln) for ln in succeeds("analyze", report, "--format", "jsonl").splitlines()]
    for path in tmp_path.glob("*.csv"):
        header, *lines = path.read_text(encoding="utf-8").splitlines()
        own = [row for row in rows if row["table"] == path.stem]
        assert len(own) == len(lines)
        assert all(list(row) == ["table", *header.split(",")] for row in own)
    assert {row["table"] for row in rows} == {p.stem for p in tmp_path.glob("*.csv")}


def test_nothing_but_tables(report: Path) -> None:
    for fmt in ("jsonl", "markdown", "latex"):
        said = succeeds("study", "splits", report, "--format", fmt)
        assert "better" not in said.splitlines()[-1]
        assert "\x1b" not in said
    assert "note" not in succeeds("study", "splits", report, "--format", "jsonl")


@pytest.mark.slow
def test_columns_are_those_that_are_documented() -> None:
    import columns

    with contextlib.chdir(ROOT):
        wanted = columns.PAGE.read_text(encoding="utf-8")
        assert columns.page() == wanted, "a column changed: python docs/columns.py, changelog"


def test_every_command_with_tables_has_its_columns_documented() -> None:
    import columns

    shown = {command for command, *_ in columns.COMMANDS}
    having = {
        name
        for name, command in leaves().items()
        for option in command.params
        if option.name == "fmt" and "jsonl" in option.type.choices
    }
    assert having - {"doctor", "machine measure"} <= shown  # they ask the machine for seconds


def test_head_ends_a_command_in_silence(report: Path) -> None:
    words = [sys.executable, "-m", "perfmodel", "stats", str(report)]
    done = subprocess.run(
        ["bash", "-c", 'set -o pipefail; "$@" | head -n 1', "bash", *words],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.stderr == ""
    assert done.stdout.count("\n") == 1
