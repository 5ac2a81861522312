"""Faults of outputs: `perfmodel analyze` as a process: full disks, killed, at once, forbidden.

Judged by what lies in the folder and in the results database afterwards: whole files of an intact
run or those of before, nothing between.
"""

from __future__ import annotations

import ctypes
import os
import random
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final

from benchmarks.common.processes import ENVIRONMENT

_LIBC: Final = ctypes.CDLL(None)
_ENDS: Final = {".png": b"IEND\xaeB`\x82", ".svg": b"</svg>\n", ".pdf": b"%%EOF\n"}
_ENVIRONMENT: Final = {**ENVIRONMENT, "PYTHONDONTWRITEBYTECODE": "1"}


@dataclass(frozen=True)
class Place:
    """What an intact run writes, and where the faulty ones are tried."""

    report: Path
    folder: Path
    whole: dict[str, bytes]
    rows: dict[str, int]
    seconds: float
    plots: bool

    def command(self, out: Path, db: Path | None, report: Path | None = None) -> list[str]:
        command = [sys.executable, "-m", "perfmodel", "analyze", str(report or self.report), "-q"]
        command += ["-o", str(out)] + ([] if self.plots else ["--no-plots"])
        return command + (["--db", str(db)] if db else [])


def prepare(report: Path, folder: Path, *, plots: bool) -> Place:
    """Run once without a fault."""
    place = Place(report, folder, {}, {}, 0.0, plots)
    begin = time.monotonic()
    subprocess.run(place.command(folder / "out", folder / "db"), env=_ENVIRONMENT, check=True)
    seconds = time.monotonic() - begin
    whole = {p.name: p.read_bytes() for p in (folder / "out").iterdir()}
    rows = _rows(folder / "db")
    shutil.rmtree(folder / "out")
    (folder / "db").unlink()
    return Place(report, folder, whole, rows, seconds, plots)


def _rows(db: Path) -> dict[str, int]:
    """Rows by table; the database must be whole."""
    if not db.exists():
        return {}
    with closing(sqlite3.connect(db)) as connection:  # this rolls back what a killed writer left
        if connection.execute("PRAGMA integrity_check").fetchone() != ("ok",):
            return {"damaged": 1}
        names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        return {
            name: connection.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0]
            for (name,) in names.fetchall()
        }


def half(place: Place, out: Path, db: Path | None) -> str:
    """Say what is there in part; nothing if all that is there is whole."""
    for path in out.iterdir() if out.is_dir() else ():
        if path.name.startswith(".perfmodel-"):
            continue  # what a killed run could not remove
        data = path.read_bytes()
        drawn = path.suffix in _ENDS and data.endswith(_ENDS[path.suffix])
        if not drawn and data not in (place.whole.get(path.name), b"old"):
            return f"{path.name}: {len(data)} bytes"
    rows = _rows(db) if db else {}
    return "" if rows in ({}, place.rows) else f"rows {rows}"


def judge(
    place: Place, out: Path, db: Path | None, done: tuple[int, str], *, killed: bool = False
) -> str:
    """'correct' (all is there), 'error' (one line, nothing half), 'killed', 'broken', 'wrong'."""
    code, said = done
    remains = half(place, out, db)
    if remains:
        print(f"half: {remains}; {said[-300:]}", flush=True)
        return "wrong"
    if code == -signal.SIGKILL and killed:
        return "killed"
    if code == 0:
        complete = out.is_dir() and set(place.whole) <= {p.name for p in out.iterdir()}
        return "correct" if complete and (db is None or _rows(db) == place.rows) else "wrong"
    lines = [ln for ln in said.splitlines() if not ln.startswith("perfmodel: warning")]
    if 1 <= code <= 6 and len(lines) == 1 and lines[0].startswith("perfmodel: error: "):
        rest = [p for p in (out, out.parent) if p.is_dir() for p in p.glob(".perfmodel-*")]
        return "error" if not rest else "wrong"
    print(f"rc {code}: {said[-800:]}", flush=True)
    return "broken"


def _run(command: list[str], limit: Callable[[], None] | None = None) -> tuple[int, str]:
    done = subprocess.run(
        command, env=_ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        text=True, errors="replace", preexec_fn=limit, timeout=600, check=False,
    )  # fmt: skip
    return done.returncode, done.stderr


def _fresh(place: Place, draw: random.Random) -> tuple[Path, Path]:
    """Return a folder and a database, half of the time there already, with old files."""
    out, db = place.folder / "out", place.folder / "db"
    shutil.rmtree(out, ignore_errors=True)
    for path in place.folder.glob("db*"):
        path.unlink()
    for path in place.folder.glob(".perfmodel-*"):
        shutil.rmtree(path)
    if draw.random() < 0.5:
        out.mkdir()
        for name in place.whole:
            (out / name).write_bytes(b"old")
    return out, db


def small_files(place: Place, draw: random.Random) -> Iterator[str]:
    """Limit the size of a file (RLIMIT_FSIZE)."""
    while True:
        out, db = _fresh(place, draw)
        size = int(2 ** draw.uniform(6, 18))
        limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (size, size))
        yield judge(place, out, db, _run(place.command(out, db), limit))


@contextmanager
def mounted(folder: Path, options: str) -> Iterator[Path]:
    """Mount a small file system of its own."""
    folder.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def full_disk(place: Place, draw: random.Random) -> Iterator[str]:
    """Write to a tmpfs of 8 to 400 kB."""
    while True:
        with mounted(place.folder / "disk", f"size={draw.randrange(8, 400, 4)}k") as disk:
            out, db = disk / "out", disk / "db"
            yield judge(place, out, db, _run(place.command(out, db)))


def killed(place: Place, draw: random.Random) -> Iterator[str]:
    """SIGKILL at a random moment, most of them while it writes; then run again to the end."""
    while True:
        out, db = _fresh(place, draw)
        process = subprocess.Popen(place.command(out, db), env=_ENVIRONMENT, stderr=subprocess.PIPE)
        with process:
            begin = time.monotonic()
            wait = draw.uniform(0, 1.1 * place.seconds)
            after_first_trace = draw.random() < 0.7
            pause = draw.uniform(0, 0.15)
            while process.poll() is None and time.monotonic() - begin < 10 * place.seconds:
                writing = any(place.folder.glob("**/.perfmodel-*"))
                if after_first_trace and writing:
                    time.sleep(pause)
                    break
                if not after_first_trace and time.monotonic() - begin > wait:
                    break
                time.sleep(0.0005)
            process.kill()
            said = process.stderr.read().decode() if process.stderr else ""
        first = judge(place, out, db, (process.returncode, said), killed=True)
        yield first
        if first != "wrong":
            yield judge(place, out, db, _run(place.command(out, db)))


def at_once(place: Place, draw: random.Random) -> Iterator[str]:
    """Let four analyses write one database at once; every other time one of them is killed."""
    while True:
        _, db = _fresh(place, draw)
        outs = [place.folder / f"out{i}" for i in range(4)]
        started = [
            subprocess.Popen(place.command(o, db), env=_ENVIRONMENT, stderr=subprocess.PIPE)
            for o in outs
        ]
        if draw.random() < 0.5:
            time.sleep(draw.uniform(0, 2 * place.seconds))
            started[0].kill()
        verdicts = set()
        for target, process in zip(outs, started, strict=True):
            said = process.communicate()[1].decode()
            verdicts.add(judge(place, target, db, (process.returncode, said), killed=True))
            shutil.rmtree(target, ignore_errors=True)
        yield next((v for v in ("broken", "wrong", "error") if v in verdicts), "correct")


def _as_anybody() -> None:
    """Give up root's right to write anywhere (CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH)."""
    for capability in (1, 2):
        _LIBC.prctl(24, capability)  # PR_CAPBSET_DROP


@contextmanager
def _locked(*paths: Path) -> Iterator[None]:
    for path in paths:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        yield
    finally:
        for path in paths:
            path.chmod(0o755)


def forbidden(place: Place, draw: random.Random) -> Iterator[str]:
    """Write into locked folders, over locked files, into a read-only mount, over a folder."""
    while True:
        out, db = _fresh(place, draw)
        with _locked(place.folder, *([out] if out.exists() else [])):
            yield judge(place, out, db, _run(place.command(out, db), _as_anybody))
            yield judge(place, out, None, _run(place.command(out, None), _as_anybody))
        db.write_bytes(b"")
        with _locked(db):
            yield judge(place, out, None, _run(place.command(out, db), _as_anybody))
        with mounted(place.folder / "disk", "size=4m,ro") as disk:
            out, db = disk / "o", disk / "d"
            yield judge(place, out, db, _run(place.command(out, db)))
        other = Path(tempfile.mkdtemp(dir=place.folder))
        for name in place.whole:
            (other / name).mkdir()
        for target, base in ((other, None), (place.report, None), (other / "new", other)):
            code, said = _run(place.command(target, base))
            shape = 1 <= code <= 6 and said.count("\n") == 1
            yield "error" if shape else "broken"
        shutil.rmtree(other)


_NAMES: Final = (
    "with blank", "öäü 訓練", "line\nbreak", "a?b=c&mode=rw", "h#ash", "p%20ercent%00", "-dash",
    "~", "'quote\"", "$HOME", "*", "\\back", "\x1b[2J", "file:x", ":memory:", "n" * 240, "ends.",
    "\udcff",
)  # fmt: skip


def odd_names(place: Place, draw: random.Random) -> Iterator[str]:
    """Read and write under odd names, and under paths longer than SQLite opens."""
    while True:
        for name in _NAMES:
            base = place.folder / "names"
            base.mkdir()
            report = base / f"{name}.sqlite"
            shutil.copy(place.report, report)
            out, db = base / f"{name}.out", base / f"{name}.db"
            code, said = _run(place.command(out, db, report))
            complete = out.is_dir() and set(place.whole) <= {p.name for p in out.iterdir()}
            right = code == 0 and complete and _rows(db) == place.rows and "Traceback" not in said
            if not right:
                print(f"{name!r}: rc {code} {said[-300:]}", flush=True)
            yield "correct" if right else "broken"
            shutil.rmtree(base)
        deep = place.folder.joinpath(*["d" * 200] * 3)
        deep.mkdir(parents=True)
        shutil.copy(place.report, deep / "r.sqlite")
        done = _run(place.command(deep / "o", None, deep / "r.sqlite"))
        yield judge(place, deep / "o", None, done)
        yield judge(place, deep / "o", deep / "d", _run(place.command(deep / "o", deep / "d")))
        shutil.rmtree(place.folder / ("d" * 200))


def _traced(place: Place, out: Path, inject: str) -> str:
    """Run under strace, which lets reads of the report alone fail or take long."""
    strace = ["strace", "-f", "-o", os.devnull, "-P", str(place.report), "-e", "trace=read,pread64"]
    return judge(place, out, None, _run([*strace, "-e", inject, *place.command(out, None)]))


def failing_reads(place: Place, draw: random.Random) -> Iterator[str]:
    """Let one read fail (EIO), or all from there on (ESTALE, as NFS says)."""
    while True:
        out, _ = _fresh(place, draw)
        fault = draw.choice(("EIO:when={}", "EIO:when={}+", "ESTALE:when={}+"))
        nth = draw.randrange(1, 70)
        yield _traced(place, out, f"inject=read,pread64:error={fault.format(nth)}")


def slow_reads(place: Place, draw: random.Random) -> Iterator[str]:
    """Let every read take 1 to 30 ms, as a distant server does."""
    while True:
        out, _ = _fresh(place, draw)
        microseconds = draw.randrange(1000, 30_000)
        yield _traced(place, out, f"inject=read,pread64:delay_enter={microseconds}")


WRITING: Final[dict[str, tuple[str, Callable[[Place, random.Random], Iterator[str]]]]] = {
    "small_files": ("files limited to 64 B to 256 kB (RLIMIT_FSIZE)", small_files),
    "full_disk": ("a disk of 8 to 400 kB", full_disk),
    "killed": ("killed at a random moment, and run again", killed),
    "at_once": ("four at once into one database, one killed", at_once),
    "forbidden": ("no permission, read-only disk, a folder in the way", forbidden),
    "failing_reads": ("reads of the report fail: EIO, ESTALE", failing_reads),
    "slow_reads": ("reads of the report take 1 to 30 ms each", slow_reads),
    "odd_names": ("blanks, ?, #, %, line breaks, no UTF-8, long paths", odd_names),
}  # fmt: skip
"""By name: what it is, and what does it."""


def write_faults(name: str, count: int, place: Place, seed: int) -> dict[str, int]:
    """Try one fault `count` times; return how often each verdict came out."""
    return Counter(islice(WRITING[name][1](place, random.Random(f"{name} {seed}")), count))
