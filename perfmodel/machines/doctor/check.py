"""One check of this machine: what is asked of it, what was found, and what to do."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

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


Status = Literal["ok", "warning", "failed", "not needed"]
State = Literal["good", "doubtful", "broken", "absent"]

PURPOSES: Final = {
    "analyze": "read reports, print and draw",
    "collect": "profile a program with Nsight Systems",
    "mpi": "run several ranks",
    "gpu": "train or measure on a GPU",
    "count": "count with Nsight Compute",
}
"""What a machine may be used for."""


@dataclass(frozen=True, slots=True)
class Probe:
    """What a question found.

    Attributes
    ----------
    state : {'good', 'doubtful', 'broken', 'absent'}
        ``absent``: there is no such thing here; ``broken``: there is, and it does not work.
    found : str
    advice : str
        What to do; empty where it is good.
    """

    state: State
    found: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Question:
    """A check that can be made.

    Attributes
    ----------
    name : str
    needed_for : frozenset of str
        Of `PURPOSES`; empty: nobody needs it, and its absence is no news.
    ask : callable
        Must not be trusted: it may raise.
    """

    name: str
    needed_for: frozenset[str]
    ask: Callable[[Place], Probe]


@dataclass(frozen=True, slots=True)
class Check:
    """A check that was made.

    Attributes
    ----------
    name : str
    status : {'ok', 'warning', 'failed', 'not needed'}
    found : str
    advice : str
        What to do; empty if nothing.
    needed_for : tuple of str
    """

    name: str
    status: Status
    found: str
    advice: str
    needed_for: tuple[str, ...]


def make(question: Question, place: Place) -> Probe:
    """Put a question; one that fails by itself says so, and the others go on."""
    try:
        return question.ask(place)
    except Exception as error:
        return Probe(
            "broken",
            f"the check itself failed: {type(error).__name__}: {error}",
            "report it as an error of perfmodel",
        )


def judge(question: Question, probe: Probe, purposes: Sequence[str]) -> Check:
    """Say what was found means for these purposes.

    Only what they need can fail. What nobody asked for is "not needed" if it is not there, and a
    warning if it is there and does not work.
    """
    needed = bool(question.needed_for & set(purposes))
    status: dict[State, Status] = {
        "good": "ok",
        "doubtful": "warning",
        "broken": "failed" if needed else "warning",
        "absent": "failed" if needed else "not needed",
    }
    order = tuple(name for name in PURPOSES if name in question.needed_for)
    return Check(question.name, status[probe.state], probe.found, probe.advice, order)


Version = tuple[int, ...]

SHIPPED_WITH: Final[tuple[tuple[Version, Version], ...]] = (
    ((2022, 4), (12, 0)),
    ((2023, 1), (12, 1)),
    ((2023, 2), (12, 2)),
    ((2023, 3), (12, 3)),
    ((2023, 4), (12, 4)),
    ((2024, 2), (12, 5)),
    ((2024, 4), (12, 6)),
    ((2024, 6), (12, 8)),
    ((2025, 1), (12, 9)),
    ((2025, 3), (13, 0)),
    ((2025, 6), (13, 1)),
)
"""Nsight Systems and the CUDA it came with. Source: CUDA Toolkit release notes, component versions;
the last by the release notes of Nsight Systems 2025.6."""

NVTX_ASKS: Final = (0, 2, 13)
"""From here on nvtx asks by its payload extension whether a tool listens (docs/trainer.md)."""
NSYS_MISHEARS: Final = (2024, 2)
"""Up to here Nsight Systems knows another number for that extension, and says no."""
NSYS_HEARS: Final = (2025, 3)
"""From here on any nvtx was seen to be recorded."""


def parse(text: str) -> Version | None:
    """Return the first dotted number of a text as a tuple, None if there is none.

    >>> parse("NVIDIA Nsight Systems version 2024.2.3.38-242334140272v0")
    (2024, 2, 3, 38)
    """
    found = re.search(r"\d+(?:\.\d+)+", text)
    return tuple(int(part) for part in found[0].split(".")) if found else None


def shown(version: Version) -> str:
    """Return a version as text."""
    return ".".join(map(str, version))


def newest_cuda(nsys: Version) -> Version | None:
    """Return the newest CUDA that this Nsight Systems came with; None for older than 2022.4."""
    return max((cuda for since, cuda in SHIPPED_WITH if nsys[:2] >= since), default=None)


def nvtx_with_nsys(nvtx: Version, nsys: Version) -> Probe:
    """Say whether this Nsight Systems records the ranges of this nvtx."""
    found = f"nvtx {shown(nvtx)} with Nsight Systems {shown(nsys[:3])}"
    if nvtx < NVTX_ASKS or nsys[:2] >= NSYS_HEARS:
        return Probe("good", found)
    advice = "run: pip install 'nvtx==0.2.11', or install Nsight Systems 2025.3 or later"
    if nsys[:2] <= NSYS_MISHEARS:
        return Probe("broken", f"{found}: no range is recorded, without a word", advice)
    return Probe("doubtful", f"{found}: not tried together, may record no range", advice)


def driver_with_nsys(cuda: Version, nsys: Version) -> Probe:
    """Say whether the driver is newer than what this Nsight Systems knows."""
    knows = newest_cuda(nsys)
    found = f"driver for CUDA {shown(cuda[:2])}, Nsight Systems {shown(nsys[:3])}"
    if knows is None or cuda[:2] > knows:
        since = next((s for s, with_cuda in SHIPPED_WITH if with_cuda >= cuda[:2]), None)
        wanted = f"{shown(since)} or later" if since else "one as new as the driver"
        made = f"for CUDA {shown(knows)}" if knows else "before CUDA 12"
        return Probe(
            "doubtful", f"{found}, which was made {made}: reports may hold no CUDA events",
            f"install Nsight Systems {wanted}",
        )  # fmt: skip
    return Probe("good", found)
