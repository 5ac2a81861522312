"""A fuzz target for every command: its options as click knows them, with odd values and inputs."""

from __future__ import annotations

import contextlib
import functools
import json
import lzma
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click
from click.testing import CliRunner

from benchmarks.common import folders
from perfmodel.base import escape
from perfmodel.cli import main
from perfmodel.commands import _options
from support.build_operators import operators_report
from support.build_training import training_report
from support.fuzz_draws import Draws, drawn

_EXIT_CODES: Final = (0, 1, 2, 3, 4, 5, 6, 7, 8)
LEFT_OUT: Final = ("doctor", "machine measure")
"""Commands that start processes, or measure for seconds."""
NEVER: Final = ("--jobs", "--scheduler", "--help", "--version")
"""Options that start processes, open connections, or print what a test of its own reads."""
NUMBERS: Final = (
    "0", "1", "2", "3", "5", "8", "10", "64", "784", "512", "3000", "65536", "4294967296", "-1",
    "9223372036854775807", "18446744073709551616", "9" * 400, "1e9", "1e308", "1e-320", "0.5",
    "0.05", "nan", "inf", "-inf", "1_000", "٣", "²", "", " 7", "5%", "900%", "0x10", "1e",
)  # fmt: skip
TEXTS: Final = (
    "", "*", "?", "[", "step *", "batch iteration", "/^step/", "/(a+)+$/", "/(/", "H=512", "B=0",
    "H=128:1024:128", "B=1,2,4,8", "H=1:2:0", "H=1:1000000000", "n_layer=1", "n_layer=-1",
    "seq=99999999", "image=1", "batch=2**64", "1:20", "20:1", ":", "5", "1e9", "0:0", "all",
    "25GB", "25 GB/s", "1e999B/s", "46.7ms", "-1s", "0s", "3 kB", "\x1b[2J", "\u202eevil", "é",
    "a" * 5000, "=1+1", "{}", "[]", "null", "gpu", "busy", "host", "P_mpi=1", "P_flops=1e400", "#",
    "training=0", "p=2", "D=10**9", "a=b=c", "\ud7ff", "-", "--", "layers:gpt2", "layers:nothing",
    "mlp", "layers:/dev/null", "resnet50", "vgg16", "gpt2", "h200", "h100", "none", "nothing",
)  # fmt: skip
OUT: Final = (
    "out", "out.csv", "out.json", "out.md", "out.tex", "out.txt", "out.jsonl", "out.html",
    "out.svg", "a/b.csv", "", ".", "out.nothing", "é\x1b[31m.csv",
)  # fmt: skip


@functools.cache
def _commands() -> dict[str, click.Command]:
    context = click.Context(main)
    found: dict[str, click.Command] = {}
    for name in main.list_commands(context):
        command = main.get_command(context, name)
        assert command is not None
        inner = {
            word: one
            for word in (command.list_commands(context) if isinstance(command, click.Group) else ())
            if (one := command.get_command(context, word)) is not None
        }
        found |= {f"{name} {sub}": c for sub, c in inner.items()} if inner else {name: command}
    return {name: c for name, c in found.items() if name not in LEFT_OUT}


@functools.cache
def _inputs() -> dict[str, tuple[Path, ...]]:
    """Return files to read, by the suffix that a command expects; "" holds what suits none."""
    folder = Path(tempfile.mkdtemp(prefix="perfmodel-fuzz-inputs-"))
    small = lzma.decompress(Path(__file__).with_name("small_report.sqlite.xz").read_bytes())
    (folder / "small.sqlite").write_bytes(small)
    (folder / "cut.sqlite").write_bytes(small[: len(small) // 2])
    (folder / "empty.sqlite").touch()
    (folder / "a [b] \x1b[31m; $(x) 'é'.sqlite").write_bytes(small)
    (folder / "zeros.json").write_bytes(bytes(4096))
    (folder / "deep.json").write_text("[" * 50_000)
    (folder / "nan.json").write_text('{"final": {"loss": NaN}, "epochs": [1e999]}')
    (folder / "binary.toml").write_bytes(bytes(range(256)))
    (folder / "dots.toml").write_text("a" + ".a" * 30_000 + " = 1\n")
    (folder / "head.csv").write_text("timestamp,gpu\n")
    (folder / "folder.sqlite").mkdir()
    operators_report(folder / "operators.sqlite")
    training_report(folder / "training.sqlite")
    results, package = folders.RESULTS, folders.ROOT / "perfmodel"
    golden = sorted((folders.ROOT / "tests" / "golden" / "ncu").glob("*.csv*"))
    suits = {
        ".sqlite": sorted(folder.glob("*.sqlite")),
        ".json": [
            *sorted(folder.glob("*.json")), results / "predict_model.json",
            *sorted((results / "tta").glob("*.json"))[:3], results / "utilization.json",
        ],
        ".toml": [
            *sorted(folder.glob("*.toml")), *sorted((package / "machines").glob("*.toml"))[:2],
            *sorted((package / "workloads" / "examples").glob("*.toml")),
        ],
        ".csv": [folder / "head.csv", *golden[:2],
                 *sorted((results / "utilization").glob("*.csv"))[:2]],
    }  # fmt: skip
    nothing = [folder / "nothing.sqlite", Path("/dev/null"), folder]
    return {key: tuple(paths) for key, paths in suits.items()} | {"": tuple(nothing)}


def _file(draw: Draws, suffixes: tuple[str, ...]) -> str:
    inputs = _inputs()
    fitting = [path for suffix in suffixes for path in inputs.get(suffix, ())]
    if not fitting or draw.random() < 0.1:
        fitting = [path for paths in inputs.values() for path in paths]
    return str(draw.choice(fitting))


def _value(draw: Draws, kind: click.ParamType, name: str) -> str:
    """Return a value for an option: one that it may take, mostly."""
    if isinstance(kind, _options.MachineName):
        return draw.choice(("h100", "h200", "nothing", _file(draw, (".toml",))))
    if isinstance(kind, _options.Input):
        return _file(draw, kind._suffixes)
    if isinstance(kind, _options.Out):
        return draw.choice(OUT)
    if isinstance(kind, click.Path):
        return draw.choice(("kept", "a/kept.xml", "", "."))
    if isinstance(kind, click.Choice) and draw.random() < 0.9:
        return str(draw.choice(list(kind.choices)))
    if isinstance(kind, click.types.IntParamType | click.types.FloatParamType):
        return draw.choice(NUMBERS[: 12 if draw.random() < 0.7 else None])
    if name == "files":
        return _file(draw, (".csv", ".sqlite"))
    if name == "set" and draw.random() < 0.5:
        letter = draw.choice(("D", "H", "C", "B", "p", "b", "n_layer", "seq", "x", "images"))
        return f"{letter}={draw.choice(NUMBERS)}"
    return draw.choice((*TEXTS, *NUMBERS))


def arguments(data: bytes) -> list[str]:
    """Return a command line that follows from the bytes."""
    draw = Draws(data)
    commands = _commands()
    name = draw.choice(list(commands))
    given = name.split()
    for parameter in commands[name].params:
        if isinstance(parameter, click.Argument):
            several = parameter.nargs == -1 or parameter.multiple
            for _ in range(draw.choice((1, 1, 1, 2, 3)) if several else 1):
                given.append(_value(draw, parameter.type, str(parameter.name)))
            continue
        never = bool(set(parameter.opts) & set(NEVER))
        if never or not (parameter.required or draw.random() < 0.2):
            continue
        option = draw.choice(parameter.opts)
        if isinstance(parameter, click.Option) and parameter.is_flag:
            given.append(option)
            continue
        for _ in range(draw.choice((1, 1, 2)) if parameter.multiple else 1):
            given += [option, _value(draw, parameter.type, str(parameter.name))]
    if name == "analyze" and draw.random() < 0.9:  # pictures take seconds
        given.append("--no-plots")
    return given


@contextlib.contextmanager
def _empty_folder() -> Iterator[None]:
    before = Path.cwd()
    folder = tempfile.mkdtemp(prefix="perfmodel-fuzz-run-")
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
        shutil.rmtree(folder, ignore_errors=True)


def options(data: bytes) -> None:
    """Run a command whose options were drawn; nothing but a result or an error of its own."""
    given = arguments(data)
    with _empty_folder():
        check_command(given)
        left = [path.name for path in Path.cwd().rglob(".perfmodel-*")]
    if left:
        raise AssertionError(f"left behind: {left}")


def check_command(given: list[str]) -> None:
    """Run a command: a result or an error of its own, JSON where it is asked for."""
    done = CliRunner().invoke(main, given, prog_name="perfmodel")
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    if done.exit_code not in _EXIT_CODES:
        raise AssertionError(f"exit code {done.exit_code}")
    if "Traceback" in done.output or escape._UNSAFE.search(done.output.replace("\n", "")):
        raise AssertionError(f"a terminal obeys what is printed, or a traceback: {given}")
    is_json = "--json" in given or given[-2:] == ["--format", "json"]
    if is_json and done.exit_code in (0, 7, 8) and done.stdout.startswith("{"):
        json.loads(done.stdout, parse_constant=_refused)


def _refused(word: str) -> None:
    raise AssertionError(f"{word} in JSON")


OPTION_SEEDS: Final[dict[str, list[bytes]]] = {"options": drawn(40)}
