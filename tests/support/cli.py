"""Runs the command line in this process, and builds the reports that its tests read."""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import click
import jsonschema
from click.testing import CliRunner, Result

from perfmodel.cli import COMMANDS, main
from perfmodel.studies.documents import json_schema
from support.build_report import ReportBuilder

EVIL: Final = "\x1b[31m[bold]evil[/bold]\r\nname \u202e$x_1$"


DESCRIBED: Final = ("analyze", "compare", "predict", "study predict", "study scaling", "whatif")
"""Commands whose JSON the schema describes."""


@cache
def _schema() -> Any:
    return jsonschema.Draft202012Validator(json_schema())


@cache
def _words() -> frozenset[str]:
    """Texts that the schema asks for."""

    def within(node: Any) -> Iterator[str]:
        for key, value in node.items() if isinstance(node, dict) else enumerate(node):
            if key == "enum":
                yield from (word for word in value if isinstance(word, str))
            elif isinstance(value, dict | list):
                yield from within(value)

    return frozenset(within(_schema().schema))


def _shape(value: Any) -> Hashable:
    """What of a document the schema looks at: of documents of one shape all or none are valid."""
    match value:
        case dict():
            return frozenset((key, _shape(inner)) for key, inner in value.items())
        case list():
            shapes = [_shape(one) for one in value]
            return tuple(shapes) if len(shapes) < 8 else frozenset(shapes)
        case str():
            return value if value in _words() else str
    return type(value)


_valid: Final[set[Hashable]] = set()
"""Shapes of documents that the schema has taken."""


def _hold_against_schema(document: Any) -> None:
    shape = _shape(document)
    if shape not in _valid:
        wrong = [*_schema().iter_errors(document)]
        assert not wrong, f"{wrong[0].json_path}: {wrong[0].message}"[:500]
        _valid.add(shape)


def perfmodel(*arguments: object) -> Result:
    """Run a command, and hold JSON against its schema; exceptions but SystemExit are the test's."""
    words = [str(a) for a in arguments]
    result = CliRunner().invoke(main, words, prog_name="perfmodel", catch_exceptions=False)
    named = " ".join(words[:2]) if words[:1] == ["study"] else "".join(words[:1])
    described = named in DESCRIBED and not {"--history", "--decoder"} & {*words}
    if described and "--json" in words and result.stdout.startswith(("{", "[")):
        _hold_against_schema(json.loads(result.stdout))
    return result


def commands() -> dict[str, click.Command]:
    """Every command by its name."""
    context = click.Context(main)
    return {name: found for name in COMMANDS if (found := main.get_command(context, name))}


def leaves() -> dict[str, click.Command]:
    """Every command that does something, by its words."""
    context, found = click.Context(main), {}
    for name, command in commands().items():
        if isinstance(command, click.Group):
            inner = {word: command.get_command(context, word)
                     for word in command.list_commands(context)}  # fmt: skip
            found |= {f"{name} {word}": one for word, one in inner.items() if one}
        else:
            found[name] = command
    return found


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
