"""TOML of strangers, whose depth is bounded before it is parsed; terminals without UTF-8."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from perfmodel.base.document import parse_toml
from perfmodel.base.escape import substitute_unencodable
from support.cli import fails, succeeds

DEEP = 30_000


@pytest.mark.parametrize(
    "text",
    [
        ".".join(["a"] * DEEP) + " = 1",
        "[" + ".".join(["a"] * DEEP) + "]\nx = 1",
        "[[" + " . ".join(["a"] * DEEP) + "]]\nx = 1",
        ".".join(['"="'] * DEEP) + " = 1",
        ".".join(["'#'"] * DEEP) + " = 1",
        "x = {" + ".".join(["a"] * 65) + " = 1}",
    ],
    ids=["key", "table", "array of tables", "basic strings", "literal strings", "inline"],
)
def test_a_key_of_too_many_parts_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="a key of more than 64 parts"):
        parse_toml(text)


@pytest.mark.parametrize("number", ["0x" + "f" * 4000, "-0b" + "1_" * 9000, "0o" + "7" * 300])
@pytest.mark.parametrize("text", ["x = {}", "x = [1, {}]", 'x = "0x1" # \ny = {}'])
def test_a_number_of_too_many_digits_is_refused(text: str, number: str) -> None:
    """Python would convert it, and raise where a message shows it."""
    with pytest.raises(ValueError, match="a number of more than 64 bits"):
        parse_toml(text.format(number))


def test_the_largest_numbers_of_toml_in_every_base() -> None:
    most = 2**63 - 1
    text = f"x = [{most}, {most:#x}, {most:#o}, {most:#b}, 0b{'_'.join('1' * 63)}]"
    assert parse_toml(text) == {"x": [most] * 5}


@pytest.mark.parametrize(
    "text",
    [
        ".".join(["a"] * 64) + " = 1",
        f"x = '0x{'f' * 4000}'",
        f'x = "{"a." * DEEP}"',
        f"x = '{'a.' * DEEP}'",
        f'x = """{"a." * DEEP}"""',
        f"x = '''\n{'a.' * DEEP}'''",
        f"# {'a.' * DEEP}\nx = 'it'",
        'x = "a \\" b"  # "',
    ],
)
def test_dots_in_text_are_text(text: str) -> None:
    assert parse_toml(text) == tomllib.loads(text)


@pytest.mark.parametrize("text", ['"' * 10**6, '"\\' * 10**5, "'" * 10**6, 'x="""' * 10**5])
def test_strings_without_an_end_take_linear_time(text: str) -> None:
    with pytest.raises(ValueError, match=r"\(at "):
        parse_toml(text)


PEAK = (
    "import atexit, re, runpy, sys\n"
    "status = lambda: open('/proc/self/status').read()\n"
    "atexit.register(lambda: print(re.search(r'VmHWM:\\s+(\\d+)', status())[1]))\n"
    "runpy.run_module('perfmodel', run_name='__main__')\n"
)
"""Runs the command line, and prints the most memory that it had, in kB."""


def test_no_command_takes_more_than_200_mb_for_it(tmp_path: Path) -> None:
    path = tmp_path / "deep.toml"
    path.write_text(".".join(["a"] * DEEP) + " = 1\n")
    done = subprocess.run(
        [sys.executable, "-c", PEAK, "study", "formulas", "--workload", str(path)],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode in (1, 5, 6)
    assert "a key of more than 64 parts" in done.stderr
    assert int(done.stdout) < 200_000
    assert "a key of more than 64 parts" in fails(6, "machine", "show", path)


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "ascii"])
@pytest.mark.parametrize(
    "command", [["machine", "list"], ["study", "layers", "resnet18"], ["--help"]]
)
def test_a_terminal_without_utf_8_gets_text_it_can_show(encoding: str, command: list[str]) -> None:
    written = io.BytesIO()
    terminal = io.TextIOWrapper(written, encoding=encoding)
    substitute_unencodable(terminal)
    terminal.write(succeeds(*command))
    terminal.flush()
    assert "─" not in written.getvalue().decode(encoding)


@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
def test_a_process_of_a_terminal_without_utf_8_writes_what_it_can_show(encoding: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "perfmodel", "study", "layers", "resnet18"],
        capture_output=True, timeout=60, env={**os.environ, "PYTHONIOENCODING": encoding},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    if encoding != "ascii":  # click writes UTF-8 where Python says ASCII
        assert "─" not in done.stdout.decode(encoding)
