"""`perfmodel completion`: what bash, zsh and fish complete, asked of the shells themselves."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.common.folders import ROOT
from perfmodel.cli import main
from perfmodel.commands._options import COMPLETING
from support.build_report import ReportBuilder
from support.cli import perfmodel, succeeds

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a report, files of other kinds, and `perfmodel` in bin/."""
    here = tmp_path_factory.mktemp("shell")
    report = ReportBuilder()
    thread = report.thread()
    for i, name in enumerate(("batch iteration", "batch 'odd'", "step")):
        thread.range(name, 10 * i, 10 * i + 5)
    report.write(here / "run.sqlite")
    shutil.copy(here / "run.sqlite", here / "my report.sqlite")
    for name in ("runner.txt", "machine.toml", ".hidden.sqlite"):
        (here / name).touch()
    (here / "deep").mkdir()
    shutil.copy(here / "run.sqlite", here / "deep")
    (here / "bin").mkdir()
    program = here / "bin" / "perfmodel"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m perfmodel "$@"\n')
    program.chmod(0o755)
    return here


def shell(folder: Path, *command: str) -> str:
    if shutil.which(command[0]) is None:
        pytest.skip(f"no {command[0]} to complete in: apt install {command[0]}")
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "HOME": str(folder)}
    done = subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


BASH = """
source <(perfmodel completion bash)
compopt() { echo "shell: $2"; }
try() {
    COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
    _perfmodel_completion perfmodel
    printf '%s\\n' "${COMPREPLY[@]}" --
}
try perfmodel ana
try perfmodel stats ru
try perfmodel stats my
try perfmodel stats deep/
try perfmodel stats de
try perfmodel machine show rtx80
try perfmodel study layers vgg
try perfmodel analyze run.sqlite --batch-range batch
try perfmodel analyze run.sqlite --counting ''
"""


def test_bash_completes(folder: Path) -> None:
    said = shell(folder, "bash", "--norc", "-c", BASH).split("--\n")
    assert [answer.split("\n")[:-1] for answer in said[:-1]] == [
        ["analyze"], ["run.sqlite"], [r"my\ report.sqlite"], ["deep/run.sqlite"],
        ["shell: default"],  # a folder: bash puts no blank behind it, we would
        ["rtx8000"], ["vgg16", "vgg19"], [r"batch\ \'odd\'", r"batch\ iteration"],
        ["document", "full"],
    ]  # fmt: skip


ZSH = r"""
zmodload zsh/zpty
zpty z zsh -f -i
lines() { [[ -e typed ]] && wc -l < typed || echo 0 }
wait_for() { until (( $(lines) >= $1 )) { zpty -r -t z out; sleep 0.05 } }
zpty -w z 'autoload -U compinit; compinit -u -D; eval "$(perfmodel completion zsh)"'
zpty -w z 'note() { print -r -- $BUFFER >> typed; BUFFER= }; zle -N note; bindkey "^G" note'
zpty -w z 'print begun >> typed'
wait_for 1
zpty -w -n z $'perfmodel analyze ru\t--batch-range batch\\ i\t\a'
wait_for 2
zpty -w -n z $'perfmodel machine show rtx80\t\a'
wait_for 3
zpty -d z
cat typed
"""


def test_zsh_completes(folder: Path) -> None:
    """In a terminal of its own; Control-G writes down what the line has become."""
    assert shell(folder, "zsh", "-f", "-c", ZSH).splitlines() == [
        "begun", r"perfmodel analyze run.sqlite --batch-range batch\ iteration ",
        "perfmodel machine show rtx8000 ",
    ]  # fmt: skip


def test_fish_completes(folder: Path) -> None:
    lines = "perfmodel completion fish | source\n" + "\n".join(
        f'complete -C "perfmodel {words}"'
        for words in ("machine show rtx80", "stats ru", "analyze run.sqlite --batch-range batch")
    )
    said = shell(folder, "fish", "--no-config", "-c", lines)
    assert said.splitlines() == [
        "rtx8000\tNVIDIA Quadro RTX 8000", "run.sqlite", "batch 'odd'", "batch iteration",
    ]  # fmt: skip


def completed(*words: str) -> list[str]:
    """What click hands to zsh: kind, word and help of every candidate."""
    env = {
        COMPLETING: "zsh_complete",
        "COMP_WORDS": " ".join(("perfmodel", *words)),
        "COMP_CWORD": str(len(words)),
    }
    said = CliRunner(env=env).invoke(main, [], prog_name="perfmodel").stdout
    return said.splitlines()[1::3]


def test_candidates_of_odd_places(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert completed("stats", ".h") == [".hidden.sqlite"]
    assert completed("study", "layers", "resnet18", "--machine", "machine") == ["machine.toml"]
    assert completed("stats", "nowhere/r") == ["nowhere/r"]  # the shell's to try
    assert "my report.sqlite" in completed("stats", "")
    assert "runner.txt" not in completed("stats", "")
    assert completed("analyze", "missing.sqlite", "--batch-range", "b") == []
    assert completed("analyze", "-", "--batch-range", "b") == []  # nothing is read from a pipe


def test_the_script_says_where_to_put_it() -> None:
    for name in ("bash", "zsh", "fish"):
        text = succeeds("completion", name)
        assert text.startswith(f"# perfmodel completion {name} > ~/")
        assert COMPLETING in text
    refused = perfmodel("completion", "csh")
    assert refused.exit_code == 2
    assert "'csh' is not one of 'bash', 'fish', 'zsh'" in refused.stderr
