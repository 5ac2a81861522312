"""A soak: the trainer on real ranks is killed, starved and damaged, and resumes, again and again.

    python -m benchmarks.robustness.soak --seconds 600 -o benchmarks/results/soak.json

Every cycle starts mpirun, waits a random time, does something bad, and resumes from the checkpoint.
In the end the weights are compared, bit by bit, with those of a run that nobody disturbed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.common import folders, results
from trainer import checkpoint

FAULTS: Final = (
    "rank killed", "all killed", "mpirun killed", "asked to stop", "rank stopped for a while",
    "checkpoint damaged",
)  # fmt: skip
MODEL: Final = (
    "--data", "synthetic", "--input-size", "64", "--hidden-size", "48", "--num-classes", "10",
    "--batch-size", "500", "--train-size", "1000", "--test-size", "200", "--pixels", "unit",
    "--learning-rate", "0.5", "--backend", "numpy", "--evaluate-every", "0", "--threads", "1",
    "--transport", "host-flat",
)  # fmt: skip
LONGEST_END_S: Final = 30.0


@dataclass
class Soak:
    """What came of it."""

    epochs: int
    ranks: int
    seed: int
    cycles: int = 0
    faults: dict[str, int] = field(default_factory=dict)
    seconds_to_end: dict[str, float] = field(default_factory=dict)
    refused_cleanly: int = 0
    damaged_and_accepted: int = 0
    hung: int = 0
    tracebacks: int = 0
    left_behind: int = 0
    lost_epochs_at_most: int = 0
    finished: bool = False
    same_weights: bool = False
    same_losses: bool = False
    seconds: float = 0.0


def command(ranks: int, epochs: int, place: Path, *more: str) -> list[str]:
    """Return the command line of a run."""
    mpirun = shutil.which("mpirun")
    if mpirun is None:
        raise SystemExit("no mpirun on the PATH (Debian: openmpi-bin)")
    start = [mpirun, "--oversubscribe", "--bind-to", "none", "-n", str(ranks)]
    flags = ["--epochs", str(epochs), "--checkpoint", str(place), *more]
    return [*start, sys.executable, "-m", "trainer", *MODEL, *flags]


def environment() -> dict[str, str]:
    """Return the environment of a run."""
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    shared = {"OMPI_MCA_mpi_yield_when_idle": "1"}  # others may use these cores, too
    return {**os.environ, **root, **shared, "PYTHONPATH": str(folders.ROOT), "OMP_NUM_THREADS": "1"}


def offspring(pid: int) -> list[int]:
    """Return all descendants of a process."""
    found = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = [int(child) for child in path.read_text().split()]
        except OSError:
            continue
        for child in children:
            found += [child, *offspring(child)]
    return found


def alive(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def send(pid: int, number: int) -> None:
    """Send a signal to a process that may be gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


class Run:
    """One mpirun with what it started; as a context, ends all of it."""

    def __init__(self, words: list[str]) -> None:
        self._said = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        self.process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self._said,
            env=environment(), start_new_session=True,
        )  # fmt: skip
        self.started: list[int] = []

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.note()
        for pid in (self.process.pid, *self.started):
            if alive(pid):
                send(pid, signal.SIGKILL)
        self.process.wait()
        self._said.close()

    def note(self) -> list[int]:
        """Note, and return, the ranks that are there."""
        now = offspring(self.process.pid)
        self.started = list(dict.fromkeys([*self.started, *now]))
        return now

    def wait(self, seconds: float) -> bool:
        """Wait for its end; whether it came in time."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.note()
            if self.process.poll() is not None:
                return True
            time.sleep(0.02)
        return self.process.poll() is not None

    def left(self, seconds: float) -> int:
        """Return how many of its processes outlive it for so long."""
        until = time.monotonic() + seconds
        while any(alive(pid) for pid in self.started) and time.monotonic() < until:
            time.sleep(0.02)
        return sum(alive(pid) for pid in self.started)

    def errors(self) -> str:
        """Return what it wrote on standard error."""
        self._said.seek(0)
        return self._said.read()


def strike(run: Run, fault: str, chance: random.Random) -> None:
    """Do something bad to a run."""
    ranks = run.note()
    if fault == "rank killed" and ranks:
        send(chance.choice(ranks), signal.SIGKILL)
    elif fault in ("all killed", "checkpoint damaged"):
        for pid in (*ranks, run.process.pid):
            send(pid, signal.SIGKILL)
    elif fault == "mpirun killed":
        send(run.process.pid, signal.SIGKILL)
    elif fault == "asked to stop":
        send(run.process.pid, signal.SIGUSR1)
    elif fault == "rank stopped for a while" and ranks:
        slow = chance.choice(ranks)
        send(slow, signal.SIGSTOP)
        time.sleep(chance.uniform(0.2, 1.0))
        send(slow, signal.SIGCONT)


def damage(path: Path, chance: random.Random) -> None:
    """Cut a file anywhere, or flip one of its bits."""
    content = bytearray(path.read_bytes())
    at = chance.randrange(len(content))
    if chance.random() < 0.5:
        del content[at:]
    else:
        content[at] ^= 1 << chance.randrange(8)
    path.write_bytes(content)


def epoch_of(place: Path) -> int:
    """Return how many epochs the checkpoint holds; it must be whole."""
    return checkpoint.load(place).epoch if (place / checkpoint.FILE).exists() else 0


def cycle(soak: Soak, place: Path, fault: str, chance: random.Random, most_s: float) -> bool:
    """Start or resume, strike, wait for the end; whether the run reached its last epoch."""
    before = epoch_of(place)
    more = ["--resume"] if (place / checkpoint.FILE).exists() else []
    with Run(command(soak.ranks, soak.epochs, place, *more)) as run:
        ended = run.wait(chance.uniform(0.5, most_s))
        if not ended:
            soak.faults[fault] = soak.faults.get(fault, 0) + 1
            strike(run, fault, chance)
            began = time.monotonic()
            goes_on = fault == "rank stopped for a while"
            soak.hung += not (run.wait(0.5) or goes_on or run.wait(LONGEST_END_S))
            if goes_on:
                strike(run, "asked to stop", chance)
                run.wait(LONGEST_END_S)
            else:
                took = round(time.monotonic() - began, 2)
                soak.seconds_to_end[fault] = max(took, soak.seconds_to_end.get(fault, 0.0))
        soak.left_behind += run.left(10.0)
        soak.tracebacks += "Traceback" in run.errors()
        code = run.process.returncode
    after = epoch_of(place)
    soak.lost_epochs_at_most = max(soak.lost_epochs_at_most, before - after)
    if fault == "checkpoint damaged" and code != 0 and (place / checkpoint.FILE).exists():
        refuse(soak, place, chance)
    return code == 0


def refuse(soak: Soak, place: Path, chance: random.Random) -> None:
    """Damage the checkpoint: it must be refused, or read as what it was; then put it back."""
    path = place / checkpoint.FILE
    whole = path.read_bytes()
    damage(path, chance)
    words = command(1, soak.epochs, place, "--resume")
    done = subprocess.run(
        words[words.index(sys.executable) :], capture_output=True, text=True, env=environment(),
        timeout=120, check=False,
    )  # fmt: skip
    if done.returncode == 4 and "Traceback" not in done.stderr:
        soak.refused_cleanly += 1
    else:
        soak.damaged_and_accepted += 1
    path.write_bytes(whole)


def soak(
    seconds: float, place: Path, *, epochs: int, ranks: int = 2, seed: int = 1,
    most_s: float = 4.0, cycles: int | None = None,
) -> Soak:  # fmt: skip
    """Disturb a run until the time is over, let it finish, compare it with an undisturbed one.

    Parameters
    ----------
    seconds : float
        How long to disturb it.
    place : Path
        An empty folder.
    epochs : int
        Of the run; enough of them that it does not end before.
    most_s : float
        Longest time from the start of a cycle to its fault.
    cycles : int, optional
        No more than these.
    """
    began, chance = time.monotonic(), random.Random(seed)
    found = Soak(epochs, ranks, seed)
    disturbed, calm = place / "disturbed", place / "calm"
    while not found.finished and time.monotonic() - began < seconds and found.cycles != cycles:
        fault = FAULTS[found.cycles % len(FAULTS)]
        found.cycles += 1
        found.finished = cycle(found, disturbed, fault, chance, most_s)
        said = f"{found.cycles}: {fault}, {epoch_of(disturbed)} of {epochs} epochs"
        print(said, file=sys.stderr, flush=True)
    more = ["--resume"] if (disturbed / checkpoint.FILE).exists() else []
    for words in (command(ranks, epochs, disturbed, *more), command(ranks, epochs, calm)):
        subprocess.run(words, stdout=subprocess.DEVNULL, env=environment(), check=True)
    a, b = checkpoint.load(disturbed), checkpoint.load(calm)
    found.finished = a.epoch == b.epoch == epochs
    found.same_weights = bool(np.array_equal(a.parameters, b.parameters))
    found.same_losses = [e["loss"] for e in a.history] == [e["loss"] for e in b.history]
    found.seconds = round(time.monotonic() - began, 1)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--epochs", type=int, default=20_000)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("-o", "--out", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        sizes = {"epochs": asked.epochs, "ranks": asked.ranks, "seed": asked.seed}
        found = asdict(soak(asked.seconds, Path(folder), **sizes))
    print(json.dumps(found, indent=1))
    if asked.out:
        results.write(asked.out, found)


if __name__ == "__main__":
    main()
