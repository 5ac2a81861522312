"""Results of a benchmark as JSON: read, put beside others, written; when, where and how made."""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import re
import shlex
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any, Final

import numpy

import perfmodel
from benchmarks.common import folders
from perfmodel.base.table import Table

Keep = Callable[[dict[str, Any]], None]


def parser(doc: str | None, page: str, out: Path | None) -> argparse.ArgumentParser:
    """Return a command line with ``--document`` and ``--out``; `doc` is shown as it is."""
    found = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawTextHelpFormatter)
    found.add_argument("--document", action="store_true", help=f"write the made parts of {page}")
    found.add_argument("--out", type=Path, default=out, help="results")
    return found


def read(path: Path) -> dict[str, Any]:
    """Return what a file holds; nothing where there is no file.

    Where this process has put results of that file aside, it returns those.
    """
    path = _ASIDE.get(path, path)
    found: dict[str, Any] = json.loads(folders.content(path)) if folders.there(path) else {}
    return found


def write(path: Path, result: Any, digits: int | None = None) -> Path:
    """Write a file, whole or not at all; floats with `digits` significant ones, all by default.

    A list of numbers stands on one line. Return where it was written: see `place`.
    """
    path = place(path, result)
    text = json.dumps(rounded(result, digits), indent=1, allow_nan=False)
    text = re.sub(r"\[\s+([-+.e\d,\s]+?)\s+\]", lambda m: f"[{' '.join(m[1].split())}]", text)
    folders.put(path, text + "\n")
    return path


def write_tables(path: Path, tables: Sequence[Table], **facts: Any) -> Path:
    """Write tables with their titles, and other facts beside them."""
    return write(path, {**facts, "tables": [table.document() for table in tables]}, 4)


_ASIDE: Final[dict[Path, Path]] = {}
"""Where this process has put results that must not replace recorded ones."""


def place(path: Path, result: Any) -> Path:
    """Return where results are written: at `path`, unless recorded results would be lost.

    A file of benchmarks/results is not replaced by one with fewer entries or samples, or with
    fewer entries of a GPU: those go to the same place below build/, to a file of this process, and
    a line on the standard error output says so, once. Results that grow as they are measured
    replace the file when they are as many as the recorded ones.
    """
    if not path.resolve().is_relative_to(folders.RESULTS.resolve()) or not folders.there(path):
        return path
    why = lost(json.loads(folders.content(path)), result)
    if not why:
        if path in _ASIDE:
            _ASIDE.pop(path).unlink(missing_ok=True)
        return path
    if path not in _ASIDE:
        aside = _claimed(folders.BUILD / path.resolve().relative_to(folders.RESULTS.resolve()))
        print(f"{path} stays as it is: it has {why}. These results go to {aside} until they have "
              f"as many; to replace the recorded ones all the same: mv {aside} {path}",
              file=sys.stderr, flush=True)  # fmt: skip
        _ASIDE[path] = aside
    return _ASIDE[path]


def _claimed(path: Path) -> Path:
    """Make an empty file of a name that no other process has taken: NAME, NAME-2, NAME-3, ..."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for number in count(1):
        free = path if number == 1 else path.with_stem(f"{path.stem}-{number}")
        with suppress(FileExistsError):
            free.touch(exist_ok=False)
            return free
    raise AssertionError("numbers do not end")


def lost(recorded: Any, result: Any) -> str:
    """Return what recorded results have more of than others: nothing is an empty text."""
    fewer = contents(recorded) - contents(result)
    return ", ".join(f"{number} more {name}" for name, number in sorted(fewer.items()))


def contents(result: Any) -> Counter[str]:
    """Count a result's entries of lists, its samples, and the names of GPUs in it."""
    found: Counter[str] = Counter()
    if isinstance(result, Mapping):
        for key, value in result.items():
            if key == "samples" and isinstance(value, int):
                found["samples"] += value
            found += contents(value)
    elif isinstance(result, list | tuple):
        for value in result:
            found["entries"] += isinstance(value, Mapping)
            found += contents(value)
    elif isinstance(result, str) and (gpu := GPU.match(result)):
        found[f"results of {gpu[0]}"] += 1
    return found


GPU: Final = re.compile(r"(?:NVIDIA|Tesla) \w+")


def rounded(value: Any, digits: int | None = 6) -> Any:
    """Return JSON types, floats with so many significant digits; what is not finite is None."""
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        return value if digits is None else float(f"{value:.{digits}g}")
    if isinstance(value, Mapping):
        return {key: rounded(inner, digits) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(inner, digits) for inner in value]
    return value


def run_parts(parts: Sequence[str], out: Path, run: Callable[[str], dict[str, Any]]) -> None:
    """Run parts by name into a file of results; one that fails is named, and the next begins.

    Parameters
    ----------
    run : callable
        Returns a part's result: `rows`, `seconds` and `problems` at least.
    """
    for part in parts:
        try:
            done = run(part)
        except Exception as problem:  # the next part may still work
            print(f"{part} failed: {problem!r}", flush=True)
            continue
        store(out, part, done)
        print(f"{part}: {len(done['rows'])} rows in {done['seconds']} s -> {out}", flush=True)
        for problem in done["problems"]:
            print(f"  {problem}", flush=True)


def measure_part(
    benchmark: str, part: str, names: Sequence[str], run: Callable[[Keep, dict[str, Any]], None],
    out: Path | None = None, **first: Any,
) -> dict[str, Any]:  # fmt: skip
    """Run a part that keeps rows as they come; return its result, also where it fails amid.

    Parameters
    ----------
    names : sequence of str
        Keys of a row that name it.
    run : callable
        Gets a function that keeps a row, and what is told of the machine. A row with `problem` or
        `skipped` is named among the problems.
    out : Path, optional
        Where the result is stored after every row: a run that is cut off leaves what it had.
    """
    began = time.monotonic()
    done: dict[str, Any] = {
        "date": now(), "command": command(benchmark, ["--part", part]), **first,
        "seconds": 0.0, "problems": [], "about": {}, "rows": [],
    }  # fmt: skip

    def keep(row: dict[str, Any]) -> None:
        said = " ".join(str(row[name]) for name in names if name in row)
        why = row.get("problem") or row.get("skipped")
        if why:
            done["problems"].append(f"{said}: {why}")
        else:
            done["rows"].append(row)
        total = row.get("seconds", row).get("total_s")
        right = "" if row.get("correct", True) else ", WRONG"
        state = why or (f"{1e3 * total:.3f} ms{right}" if total else "done")
        done["seconds"] = round(time.monotonic() - began, 1)
        print(f"{done['seconds']:6.1f} s  {said}: {state}", flush=True)
        if out is not None:
            store(out, part, done)

    try:
        run(keep, done["about"])
    except Exception as problem:  # what was measured until then is kept
        done["problems"].append(f"ended by {problem!r}"[:300])
    done["seconds"] = round(time.monotonic() - began, 1)
    return done


def store(out: Path, part: str, done: dict[str, Any]) -> None:
    """Write a part beside the others; one without rows does not replace what was measured."""
    result = read(out)
    if done["rows"] or part not in result:
        result[part] = done
    write(out, result)


def now() -> str:
    """Return date and time, UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def today() -> str:
    """Return the date, UTC."""
    return datetime.now(UTC).date().isoformat()


def command(module: str, words: Sequence[str] = ()) -> str:
    """Return how to do this again: the command line, without where results go."""
    kept = list(words)
    if "--out" in kept:
        at = kept.index("--out")
        del kept[at : at + 2]
    return f"python -m benchmarks.{module} {shlex.join(kept)}".strip()


def called(recorded: str) -> str:
    """Return a recorded command as it is called today: scripts have become modules."""
    return re.sub(r"\bbenchmarks/(\w+)\.py", r"-m benchmarks.\1", recorded)


def about(**versions: str) -> dict[str, Any]:
    """Return when, where and with which versions a benchmark ran."""
    return {
        "date": today(),
        "machine": {"processor": processor(), "cores": os.cpu_count()},
        "versions": {
            "perfmodel": perfmodel.__version__, "python": platform.python_version(),
            "numpy": numpy.__version__, **versions,
        },
    }  # fmt: skip


def processor() -> str:
    """Return the name of the processor, where the system tells it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
