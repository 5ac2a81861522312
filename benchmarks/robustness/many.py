"""Reports of very many threads, streams or processes: what a command on them takes.

    python -m benchmarks.robustness.many                       # all, some minutes of one core
    python -m benchmarks.robustness.many --kind streams --count 3000 --command analyze

Every report has three steps; in each of them every thread, stream or process launches one kernel.
"""

from __future__ import annotations

import argparse
import os
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from benchmarks.common import folders, results

RESULTS = folders.RESULTS / "many.json"
COUNTS: Final = {"threads": 200_000, "streams": 300_000, "processes": 20_000}
"""How many of each a report may hold."""
COMMANDS: Final = ("analyze", "stats", "timeline", "whatif", "share")
STEPS: Final = 3
_STEP_NS: Final = 10**9
_LIMIT_S: Final = 600
_VM: Final = 1 << 48
_PID: Final = 100
_NAMES: Final = {0: "step", 1: "cudaLaunchKernel_v7000", 2: "add"}
_SCHEMA: Final = """
CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);
CREATE TABLE META_DATA_EXPORT (name TEXT, value TEXT);
INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_PRODUCT_VERSION', '2025.3.2.0');
CREATE TABLE NVTX_EVENTS (
    start INTEGER, end INTEGER, eventType INTEGER, rangeId INTEGER, category INTEGER,
    color INTEGER, text TEXT, globalTid INTEGER, endGlobalTid INTEGER, textId INTEGER,
    domainId INTEGER, jsonTextId INTEGER, jsonText TEXT);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (
    start INTEGER, end INTEGER, eventClass INTEGER, globalTid INTEGER, correlationId INTEGER,
    nameId INTEGER, returnValue INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (
    start INTEGER, end INTEGER, deviceId INTEGER, contextId INTEGER, streamId INTEGER,
    correlationId INTEGER, globalPid INTEGER, demangledName INTEGER, shortName INTEGER);
"""


def write(kind: str, count: int, path: Path) -> Path:
    """Write a report of `count` threads, streams or processes."""
    with closing(sqlite3.connect(path)) as db, db:
        db.executescript(_SCHEMA)
        db.executemany("INSERT INTO StringIds VALUES (?, ?)", _NAMES.items())
        for table, columns, rows in (
            ("NVTX_EVENTS (start, end, eventType, globalTid, textId, domainId)", 6, _ranges),
            ("CUPTI_ACTIVITY_KIND_RUNTIME", 7, _calls),
            ("CUPTI_ACTIVITY_KIND_KERNEL", 9, _kernels),
        ):
            values = ", ".join("?" * columns)
            db.executemany(f"INSERT INTO {table} VALUES ({values})", rows(kind, count))
    return path


Row = tuple[int, ...]


def _process(kind: str, i: int) -> int:
    return _VM | (_PID + (i if kind == "processes" else 0)) << 24


def _call(i: int, step: int, count: int) -> tuple[int, int]:
    """Begin and end of the i-th call of a step; the calls of a step follow each other."""
    apart = max(1, _STEP_NS // 2 // count)
    begin = step * _STEP_NS + 10 + count + i * apart
    return begin, begin + apart


def _ranges(kind: str, count: int) -> Iterator[Row]:
    for step in range(STEPS):
        for i in range(count if kind == "processes" else 1):
            begin = step * _STEP_NS + i
            yield begin, begin + _STEP_NS - 1000, 59, _process(kind, i) | _PID, 0, 0


def _calls(kind: str, count: int) -> Iterator[Row]:
    for step in range(STEPS):
        for i in range(count):
            thread = _process(kind, i) | (_PID + (i if kind == "threads" else 0))
            yield *_call(i, step, count), 0, thread, step * count + i + 1, 1, 0


def _kernels(kind: str, count: int) -> Iterator[Row]:
    for step in range(STEPS):
        for i in range(count):
            begin, end = _call(i, step, count)
            stream, correlation = i + 1 if kind == "streams" else 7, step * count + i + 1
            times = begin + (end - begin), end + (end - begin)
            yield *times, 0, 1, stream, correlation, _process(kind, i), 2, 2


def measured(command: str, report: Path) -> dict[str, Any]:
    """Run a command; return its exit status, its CPU seconds and its peak memory."""
    out = report.with_name(f"{command}.{'sqlite' if command == 'share' else 'txt'}")
    out.unlink(missing_ok=True)
    words = [sys.executable, "-m", "perfmodel", command, str(report)]
    if command == "share":
        words += ["-o", str(out)]
    elif command == "timeline":
        words += ["-o", str(out.with_suffix(".png"))]
    said = report.with_name("said")
    limits = ["prlimit", f"--cpu={_LIMIT_S}"]
    with said.open("w") as file:
        process = subprocess.Popen([*limits, *words], stdout=file, stderr=file)
        _, status, used = os.wait4(process.pid, 0)
    text = said.read_text(errors="replace")
    return {
        "status": os.waitstatus_to_exitcode(status),
        "cpu_s": round(used.ru_utime + used.ru_stime, 2),
        "peak_bytes": used.ru_maxrss * 1024,
        "printed_bytes": len(text),
        "error": next((line for line in text.splitlines() if "error:" in line), ""),
        "traceback": "Traceback" in text,
    }


def cases(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield one row for every kind and command."""
    for kind in options.kind or COUNTS:
        count = options.count or COUNTS[kind]
        with tempfile.TemporaryDirectory() as folder:
            report = write(kind, count, Path(folder) / "report.sqlite")
            for command in options.command or COMMANDS:
                yield {
                    "kind": kind,
                    "count": count,
                    "command": command,
                    **measured(command, report),
                }


def _recorded() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = results.read(RESULTS).get("rows", [])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kind", action="append", choices=COUNTS)
    parser.add_argument("--count", type=int)
    parser.add_argument("--command", action="append", choices=COMMANDS)
    parser.add_argument("--record", action="store_true", help=f"Into {RESULTS.name}.")
    options = parser.parse_args()
    found = []
    for row in cases(options):
        print(row, flush=True)
        found.append(row)
    if options.record:
        known = {(r["kind"], r["command"]): r for r in [*_recorded(), *found]}
        results.write(RESULTS, {"rows": [*known.values()]})
    sys.exit(any(row["traceback"] or row["status"] < 0 for row in found))


if __name__ == "__main__":
    main()
