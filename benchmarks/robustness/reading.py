"""Faults of a report that is read: each damages a copy, and says what came of the answer.

An answer is all that `perfmodel analyze` or `perfmodel stats` says of a report, in turn. It is
right if it is the intact report's, to the last digit; what else is no error of one line is wrong.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import lzma
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from perfmodel.analysis.analyze import analyze
from perfmodel.base.errors import PerfmodelError
from perfmodel.programs.program import Options
from perfmodel.readers import read
from perfmodel.readers.trace import Trace
from perfmodel.render.analysis_json import analysis_document
from perfmodel.timing.nsys_stats.collect import REPORTS, collect, compute
from perfmodel.timing.nsys_stats.tables import to_csv, to_table
from perfmodel.timing.range_times import time_ranges

PAGE: Final = 4096
Fault = Generator[Path, None, None]
"""Damages a file anew before every step, and yields what to read."""
Damage = Callable[[bytes, Path, random.Random], Fault]

Answer = tuple[str, list[str]]
"""All that is said of a report, and the warnings."""


def numbers(trace: Trace) -> list[Any]:
    """Everything that is shown of a report."""
    found: list[Any] = []
    for name in REPORTS:
        try:
            found.append(to_csv(compute(name, trace)))
        except PerfmodelError as error:
            found.append(str(error).partition(":")[2])
    times, _ = time_ranges(trace, "batch iteration", by_time=True)
    columns = [getattr(times, name) for name in ("host_ns", "busy_ns", "copy_bytes", "mpi_ns")]
    return [*found, times.paths, *(c.tolist() for c in columns), trace.ranks, trace.gpus]


def analyzed(path: Path) -> Answer:
    """Return what `perfmodel analyze` says."""
    trace = read(path)
    said = repr(numbers(trace))
    analysis = analyze([trace], Options(values={}))
    document = analysis_document(analysis)
    alerts = document.pop("warnings")
    document["reports"][0].pop("path")  # the only thing that may differ
    return said + json.dumps(document), alerts


def summarized(path: Path) -> Answer:
    """Return what `perfmodel stats` says; a summary that lacks something is a warning there."""
    found = collect(path, list(REPORTS))
    shown, lacking = "", []
    for name, counted in found.items():
        if isinstance(counted, PerfmodelError):
            lacking.append(name)
        else:
            shown += to_csv(to_table(name, counted))
    return shown, lacking


COMMANDS: Final = (analyzed, summarized)


def judge(path: Path, command: Callable[[Path], Answer], truth: Answer) -> str:
    """Read a report: 'correct', 'error' (clean), 'warned', 'wrong' or 'broken' (any other end)."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        try:
            said, alerts = command(path)
        except PerfmodelError as error:
            return "error" if "\n" not in str(error) else "broken"
        except Exception as problem:
            print(f"{path}: {problem!r}", flush=True)
            return "broken"
    if said == truth[0]:
        return "correct"
    return "warned" if set(alerts) - set(truth[1]) else "wrong"


def cut(data: bytes, path: Path, draw: random.Random) -> Fault:
    """Cut anywhere, half of the time at the edge of a page."""
    while True:
        length = draw.randrange(len(data))
        path.write_bytes(data[: length // PAGE * PAGE if draw.random() < 0.5 else length])
        yield path


def _zeroed(size: int) -> Damage:
    def zeroed(data: bytes, path: Path, draw: random.Random) -> Fault:
        while True:
            at = draw.randrange(len(data) // size) * size
            path.write_bytes(data[:at] + bytes(size) + data[at + size :])
            yield path

    return zeroed


def moved(data: bytes, path: Path, draw: random.Random) -> Fault:
    """Put a page in the place of another, or two in each other's."""
    while True:
        one, other = (at * PAGE for at in draw.sample(range(len(data) // PAGE), 2))
        new = bytearray(data)
        new[one : one + PAGE] = data[other : other + PAGE]
        if draw.random() < 0.5:
            new[other : other + PAGE] = data[one : one + PAGE]
        path.write_bytes(new)
        yield path


def _flipped(data: bytes, draw: random.Random) -> bytes:
    new = bytearray(data)
    new[draw.randrange(len(new))] ^= 1 << draw.randrange(8)
    return bytes(new)


def _cut(data: bytes, draw: random.Random) -> bytes:
    return data[: draw.randrange(len(data))]


def flipped(data: bytes, path: Path, draw: random.Random) -> Fault:
    """Flip one bit of a plain report; inside a number, nobody can tell."""
    while True:
        path.write_bytes(_flipped(data, draw))
        yield path


def flipped_beside_sum(data: bytes, path: Path, draw: random.Random) -> Fault:
    """Flip one bit of a report with its SHA-256 beside it."""
    Path(f"{path}.sha256").write_text(f"{hashlib.sha256(data).hexdigest()}  {path.name}\n")
    yield from flipped(data, path, draw)


def _compressed(damage: Callable[[bytes, random.Random], bytes]) -> Damage:
    """Damage an .xz or .gz."""

    def damaged(data: bytes, path: Path, draw: random.Random) -> Fault:
        packed = {".xz": lzma.compress(data, preset=0), ".gz": gzip.compress(data, 1)}
        while True:
            suffix = draw.choice(list(packed))
            target = Path(f"{path}{suffix}")
            target.write_bytes(damage(packed[suffix], draw))
            yield target

    return damaged


_WRITER: Final = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute(f"PRAGMA journal_mode = {sys.argv[2]}")
db.execute("PRAGMA cache_size = 5"); db.execute("PRAGMA wal_autocheckpoint = 0")
db.execute("BEGIN")
db.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = start - 1000")
db.execute("DELETE FROM NVTX_EVENTS WHERE rowid % 3 = 1")
if sys.argv[3] == "commit": db.execute("COMMIT")
print("ready", flush=True); sys.stdin.read()
"""


def left_beside(data: bytes, path: Path, draw: random.Random) -> Fault:
    """Kill a writer amid a transaction, or behind a commit that only the -wal holds."""
    while True:
        for beside in path.parent.glob(f"{path.name}-*"):
            beside.unlink()
        path.write_bytes(data)
        ways = [("delete", "open"), ("persist", "open"), ("wal", "commit"), ("wal", "open")]
        way = draw.choice(ways)
        writer = subprocess.Popen(
            [sys.executable, "-c", _WRITER, str(path), *way],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        with writer:
            assert writer.stdout is not None
            writer.stdout.readline()
            writer.send_signal(signal.SIGKILL)
        yield path


def changed(data: bytes, path: Path, draw: random.Random) -> Fault:
    """Cut, append to, rewrite or replace the report at a random moment of the reading."""

    def cut_now() -> None:
        os.truncate(path, draw.randrange(len(data)))

    def append() -> None:
        with path.open("ab") as file:
            file.write(bytes(PAGE))

    def rewrite() -> None:
        with closing(sqlite3.connect(path)) as db:
            db.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = start - 1000")
            db.commit()

    def replace() -> None:
        other = path.with_name("other")
        other.write_bytes(_flipped(data, draw))
        other.replace(path)

    while True:
        path.write_bytes(data)
        timer = threading.Timer(
            0.06 * draw.random(), draw.choice([cut_now, append, rewrite, replace])
        )
        timer.start()
        try:
            yield path
        finally:
            timer.join()


READING: Final[dict[str, tuple[str, Damage]]] = {
    "cut": ("cut at any byte", cut),
    "pages": ("a page of 4096 bytes zeroed", _zeroed(PAGE)),
    "sectors": ("a sector of 512 bytes zeroed", _zeroed(512)),
    "moved": ("a page in another's place", moved),
    "xz": ("a bit flipped in an .xz or .gz", _compressed(_flipped)),
    "xz_cut": ("an .xz or .gz cut at any byte", _compressed(_cut)),
    "summed": ("a bit flipped, .sha256 beside it", flipped_beside_sum),
    "plain": ("a bit flipped in a plain report", flipped),
    "beside": ("its writer killed, journal or -wal beside it", left_beside),
    "changed": ("cut, rewritten or replaced while it is read", changed),
}
"""By name: what it is, and what does it."""


def read_faults(name: str, count: int, report: Path, folder: Path, seed: int) -> dict[str, int]:
    """Try one fault `count` times; return how often each verdict came out."""
    data = report.read_bytes()
    path = folder / "report.sqlite"
    path.write_bytes(data)
    truth = [command(path) for command in COMMANDS]
    damage = READING[name][1](data, path, random.Random(f"{name} {seed}"))
    found = Counter(
        judge(target, COMMANDS[nth % 2], truth[nth % 2])
        for target, nth in zip(damage, range(count), strict=False)
    )
    damage.close()
    for leftover in folder.glob("report.sqlite?*"):
        leftover.unlink()
    return found
