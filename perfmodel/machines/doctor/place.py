"""The machine that is asked: programs on its PATH, files of its kernel, each with a timeout."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

LONGEST_S: Final = 60.0
"""No answer is waited for longer, whatever is asked."""
_POLITE_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What a program said.

    Attributes
    ----------
    code : int or None
        Exit status; None if it is not there, cannot be started or did not finish.
    text : str
        What it printed on both outputs; else why there is no status.
    """

    code: int | None
    text: str

    @property
    def ok(self) -> bool:
        """Whether it ended well."""
        return self.code == 0

    @property
    def last_line(self) -> str:
        """The last line that says something, which is where programs put their error."""
        lines = [line.strip() for line in self.text.splitlines() if line.strip(" -*=")]
        return lines[-1] if lines else "no output"

    @property
    def first_line(self) -> str:
        """The first line that says something."""
        lines = [line.strip() for line in self.text.splitlines() if line.strip(" -*=")]
        return lines[0] if lines else "no output"

    def json(self) -> dict[str, Any]:
        """Return the JSON object on the last line that is one; empty where there is none."""
        for line in reversed(self.text.splitlines()):
            if line.startswith("{"):
                try:
                    return dict(json.loads(line))
                except ValueError:
                    continue
        return {}


@dataclass(frozen=True, slots=True)
class Place:
    """Where questions are put.

    Parameters
    ----------
    environment : mapping of str to str
        Of the programs that are started; programs are found on its PATH.
    root : Path
        What stands for ``/``: ``proc`` is read below it.
    python : str
        The interpreter whose packages count.
    patience : float
        Times every timeout.
    """

    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    root: Path = Path("/")
    python: str = sys.executable
    patience: float = 1.0

    def which(self, program: str) -> str | None:
        """Return where a program is on the PATH, None if nowhere."""
        return shutil.which(program, path=self.environment.get("PATH", ""))

    def read(self, path: str) -> str | None:
        """Return the text of a file of the kernel's, None if there is none to read."""
        try:
            return (self.root / path).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None

    def ask(
        self, *command: str, seconds: float = 10.0, more: Mapping[str, str] | None = None
    ) -> Answer:
        """Run a program in an empty folder and wait; what it started ends with it.

        Parameters
        ----------
        seconds : float
            How long it may take.
        more : mapping of str to str, optional
            Added to the environment.
        """
        limit = min(LONGEST_S, seconds * self.patience)
        with tempfile.TemporaryDirectory(prefix="perfmodel-") as folder:
            return _run(command, folder, {**self.environment, **(more or {})}, limit)

    def ask_python(self, code: str, *, seconds: float = 20.0) -> Answer:
        """Run some lines of Python in a process of their own: a package may crash or hang."""
        return self.ask(self.python, "-c", code, seconds=seconds)


def _run(
    command: Sequence[str], folder: str, environment: Mapping[str, str], limit: float
) -> Answer:
    output = Path(folder) / ".said"  # a file: a grandchild that lives on would hold a pipe open
    with output.open("wb") as said:
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT,
                cwd=folder, env=environment, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            return Answer(None, f"cannot be started: {error.strerror or error}")
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end(process)
    text = output.read_text(encoding="utf-8", errors="replace")
    return Answer(code, text if code is not None else f"{text}\nno answer within {limit:g} s")


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process, politely first so that mpirun ends its ranks, and all of its session."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_POLITE_S)
    if hasattr(os, "killpg"):  # not on Windows
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.wait()
