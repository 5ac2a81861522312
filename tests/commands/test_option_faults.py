"""Options and inputs that once ended in a traceback or never ended; each found by fuzzing."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from perfmodel.analysis.counters import command
from perfmodel.cli import main
from support.build_operators import STEPS, operators_report


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return operators_report(tmp_path_factory.mktemp("report") / "operators.sqlite")


@pytest.mark.parametrize("name", ["analyze", "whatif", "study splits", "study scaling"])
@pytest.mark.parametrize("warmup", [STEPS, 65_536])
def test_a_warmup_of_all_steps_is_refused(name: str, warmup: int, report: Path) -> None:
    done = CliRunner().invoke(main, [*name.split(), str(report), "--warmup", str(warmup)])
    assert done.exit_code == 4, done.output
    assert "no finished step is left" in done.stderr
    assert "lower --warmup" in done.stderr


@pytest.mark.parametrize("ranks", ["65537", "9" * 400])
def test_more_ranks_than_can_be_split_are_refused(ranks: str) -> None:
    sizes = ["-D", "784", "-H", "512", "-C", "10", "-B", "3000"]
    done = CliRunner().invoke(main, ["study", "splits", *sizes, "-p", ranks])
    assert done.exit_code == 5, done.output
    assert "expected 1 to 65536 ranks" in done.stderr


def test_a_trace_of_all_batches_into_a_folder_has_its_picture(report: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = CliRunner().invoke(main, ["timeline", str(report), "--perfetto", "-o", str(out)])
    assert done.exit_code == 0, done.output
    assert (out / "timeline.png").stat().st_size > 10_000


def test_an_unknown_network_is_refused_before_its_batch_is_asked_for(report: Path) -> None:
    done = CliRunner().invoke(main, ["analyze", str(report), "--workload", "layers:nothing"])
    assert "got 'nothing'" in done.stderr
    assert "--batch-size" not in done.stderr


@pytest.mark.parametrize("dtype", ["tf32", "float8"])
def test_types_of_operators_are_taken(dtype: str, report: Path) -> None:
    for words in (["analyze", str(report)], ["study", "layers", "gpt2", "--machine", "h200"]):
        done = CliRunner().invoke(main, [*words, "--dtype", dtype, "--json"])
        assert done.exit_code == 0, done.output


def test_a_command_to_be_copied_holds_nothing_that_a_terminal_obeys() -> None:
    words = ["counters", "--command", "--range", "it's \x1b[2J \\ \u202e", "--", "python", "a b.py"]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    assert "\x1b" not in done.stdout
    assert "\u202e" not in done.stdout
    said = subprocess.run(
        ["bash", "-c", f"printf '%s\\0' {done.stdout}"], capture_output=True, text=True, check=True,
        env={**os.environ, "LC_ALL": "C.UTF-8"},
    )  # fmt: skip
    meant = command(["python", "a b.py"], ranges=["it's \x1b[2J \\ \u202e"])
    assert said.stdout.split("\0") == [*meant, ""]
