"""Run cases with the perfmodel that PYTHONPATH names, and keep all that they print and write.

Started by equal_results as a process of its own, with a job on standard input as JSON: where
the checkout is, the folder of the results, how many cases run at once, and the commands of every
case. Only `perfmodel.cli.main` is asked of the checkout, so that it does not matter where its
modules lie. Paths and the version are replaced in what is kept: they differ between checkouts.
"""

from __future__ import annotations

import gc
import json
import os
import re
import shutil
import signal
import sys
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from types import ModuleType
from typing import Any, Final

import click

Case = list[list[str]]  # its commands, each a list of arguments

TIMEOUT_S: Final = 300  # of one case


def run_job(checkout: Path, results: Path, jobs: int, cases: Mapping[str, Case]) -> None:
    """Run each case in a fork of this process: nothing that one leaves behind reaches another."""
    perfmodel = import_module("perfmodel")
    if not Path(str(perfmodel.__file__)).is_relative_to(checkout):
        sys.exit(f"expected perfmodel in {checkout}; got {perfmodel.__file__}")
    main = import_module("perfmodel.cli").main
    import_all(perfmodel)
    own = own_files(checkout)
    hidden = {str(checkout): "HERE", str(Path.cwd()): "HERE", perfmodel.__version__: "VERSION"}
    for started, (name, commands) in enumerate(cases.items()):
        if started >= jobs:
            os.wait()
        if os.fork() == 0:
            signal.alarm(TIMEOUT_S)
            run_case(main, own, hidden, results / name, commands)
            os._exit(0)
    with suppress(ChildProcessError):
        while True:
            os.wait()


def import_all(package: ModuleType) -> None:
    """Import once, not in every fork; where a module fails, the command that needs it says so."""
    modules = (
        module.name
        for module in walk_packages(package.__path__, f"{package.__name__}.", lambda _: None)
    )
    for module in ("pandas", "scipy.stats", "sympy", *modules):
        if not module.endswith("__main__"):
            with suppress(Exception):
                import_module(module)
    gc.freeze()


def own_files(checkout: Path) -> dict[str, str]:
    """The checkout's models, machines and workloads by name, wherever they lie."""
    places = (checkout / "perfmodel", checkout / "benchmarks")
    files = (path for place in places for path in place.rglob("*.*"))
    return {path.name: str(path) for path in files if path.suffix in (".json", ".toml")}


def run_case(
    main: click.Group,
    own: Mapping[str, str],
    hidden: Mapping[str, str],
    folder: Path,
    commands: Case,
) -> None:
    """Run the commands of one case; commands.json is written last and marks a complete case."""
    shutil.rmtree(folder, ignore_errors=True)
    out = folder / "out"
    out.mkdir(parents=True)
    hidden = {str(out): "OUT", **hidden}
    codes: list[Any] = []
    for i, command in enumerate(commands):
        for fd, name in ((1, f"{i}.stdout{suffix(command)}"), (2, f"{i}.stderr.txt")):
            os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT), fd)
        arguments = [argument.replace("{out}", str(out)) for argument in command]
        for j, argument in enumerate(arguments):
            if asked := re.fullmatch(r"\{own:(.+)\}", argument):
                arguments[j] = own.get(asked[1], asked[1])
                hidden = {arguments[j]: asked[1], **hidden}
        try:
            main(arguments)
        except SystemExit as end:
            codes.append(end.code)
        except BaseException:
            traceback.print_exc()
            codes.append("traceback")
        sys.stdout.flush()
        sys.stderr.flush()
    for path in (path for path in folder.rglob("*") if path.is_file()):
        text = path.read_bytes().decode("utf-8", "replace")
        for long, short in hidden.items():
            text = text.replace(long, short)
        path.write_text(text, encoding="utf-8", newline="")
    (folder / "exit_codes.json").write_text(json.dumps(codes))
    (folder / "commands.json").write_text(json.dumps(commands))


def suffix(command: Sequence[str]) -> str:
    """How the file of a command's standard output ends: by the format that it asks for."""
    if "--json" in command:
        return ".json"
    form = command[command.index("--format") + 1] if "--format" in command else "text"
    return f".{form}" if form in ("json", "jsonl", "csv") else ".txt"


if __name__ == "__main__":
    job = json.load(sys.stdin)
    run_job(Path(job["checkout"]), Path(job["results"]), job["jobs"], job["cases"])
