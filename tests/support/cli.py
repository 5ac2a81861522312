"""Runs the command line in this process, and builds the reports that its tests read."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, Final

import click
import jsonschema
from click.testing import CliRunner, Result

from perfmodel.cli import COMMANDS, main
from perfmodel.render.analysis_json import analysis_schema
from support.build_report import ReportBuilder

EVIL: Final = "\x1b[31m[bold]evil[/bold]\r\nname \u202e$x_1$"


DESCRIBED: Final = ("analyze", "compare", "predict", "scaling", "whatif")
"""Commands whose JSON the schema of the package describes."""


@cache
def _schema() -> Any:
    return jsonschema.Draft202012Validator(json.loads(analysis_schema()))


def perfmodel(*arguments: object) -> Result:
    """Run a command, and hold JSON against its schema; exceptions but SystemExit are the test's."""
    words = [str(a) for a in arguments]
    result = CliRunner().invoke(main, words, prog_name="perfmodel", catch_exceptions=False)
    described = words[:1] and words[0] in DESCRIBED and not {"--history", "--decoder"} & {*words}
    if described and "--json" in words and result.stdout.startswith(("{", "[")):
        wrong = [*_schema().iter_errors(json.loads(result.stdout))]
        assert not wrong, f"{wrong[0].json_path}: {wrong[0].message}"[:500]
    return result


def commands() -> dict[str, click.Command]:
    """Every command by its name."""
    context = click.Context(main)
    return {name: found for name in COMMANDS if (found := main.get_command(context, name))}


def succeeds(*arguments: object) -> str:
    """Run what must succeed and return its standard output."""
    result = perfmodel(*arguments)
    assert result.exit_code == 0, result.output
    assert "error" not in result.stderr
    return result.stdout


def fails(code: int, *arguments: object) -> str:
    """Run what must fail with one line on standard error and nothing on standard output."""
    result = perfmodel(*arguments)
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    lines = [ln for ln in result.stderr.splitlines() if not ln.startswith("perfmodel: warning: ")]
    assert len(lines) == 1
    assert lines[0].startswith("perfmodel: error: ")
    assert lines[0].isprintable()
    return lines[0]


def harmless(text: str) -> bool:
    """Whether a terminal shows every line as it is."""
    return all(line.isprintable() for line in text.splitlines())


def evil_report(path: Path) -> Path:
    """Write a report in which everything that has a name is called `EVIL`."""
    report = ReportBuilder()
    report.gpu(0, name=EVIL)
    thread = report.thread(rank=0)
    for i in range(4):
        start = 1_000_000 * i
        thread.range("batch iteration", start, start + 900_000)
        thread.range(EVIL, start + 10, start + 800_000)
        thread.kernel(EVIL, (start + 20, start + 30), (start + 40, start + 90_000))
        thread.mpi(f"MPI_{EVIL}", start + 100_000, start + 200_000, 8)
    report.diagnostic(EVIL)
    return report.write(path)
