"""Counts what becomes of faults: of reports that are read, and of outputs that are written.

    python -m benchmarks.robustness --reading 500 --writing 40  # some 40 minutes of one core
    python -m benchmarks.robustness --part cut --reading 100    # one fault, beside the others
    python -m benchmarks.robustness --table                     # docs/robustness.md

Needs Linux; full disks and read-only ones need root (tmpfs is mounted), failing and slow reads
strace. What a fault and a verdict are: benchmarks.robustness.reading and writing.py.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.common import folders, results
from benchmarks.common.pages import markdown, put_parts
from benchmarks.robustness import many, metamorphic
from benchmarks.robustness.reading import READING, read_faults
from benchmarks.robustness.writing import WRITING, prepare, write_faults

RESULTS = folders.RESULTS / "faults.json"
FUZZ = folders.RESULTS / "fuzz.json"
PAGE = folders.DOCS / "robustness.md"
UNKNOWABLE = ("plain", "moved")
"""Faults that no reader always sees: no number is wrong where a sum lies beside the file."""


def run_part(name: str, count: int, folder: Path, seed: int, plots: bool) -> dict[str, Any]:
    """Try one fault many times."""
    begin = time.monotonic()
    if name in READING:
        found = read_faults(name, count, folders.BASE, folder, seed)
    else:
        found = write_faults(name, count, prepare(folders.BASE, folder, plots=plots), seed)
    row = {"tried": sum(found.values()), **dict(sorted(found.items()))}
    return row | {"seed": seed, "seconds": round(time.monotonic() - begin, 1)}


def tables() -> dict[str, str]:
    """Return the page's parts: faults by kind, and what was fuzzed."""
    found, parts = results.read(RESULTS), {}
    for part, faults, head, third in (
        ("reading", READING, "Warned", "warned"),
        ("writing", WRITING, "Killed, nothing half", "killed"),
    ):
        columns = f"Fault; Tried=int; Clean error=int; Right answer=int; {head}=int; Wrong=int"
        rows = []
        for name, (title, _) in faults.items():
            if row := found.get(name):
                counts = [row.get(key, 0) for key in ("error", "correct", third, "wrong", "broken")]
                if name in UNKNOWABLE:
                    counts[3] = f"{counts[3]} ¹"
                rows.append((title, row["tried"], *counts))
        parts[part] = markdown(f"{columns}; Crash=int", rows)
    parts |= {"fuzzing": _fuzzed()} if FUZZ.exists() else {}
    parts |= {"many": _many()} if many.RESULTS.exists() else {}
    return parts | ({"equal": _equal()} if metamorphic.RESULTS.exists() else {})


def _many() -> str:
    columns = "Report; Command; CPU time=s; Peak memory=B; Ends with"
    return markdown(columns, [
        (f"{row['count']:,} {row['kind']}", row["command"], row["cpu_s"], row["peak_bytes"],
         row["error"].partition("; ")[0] or "an answer")
        for row in results.read(many.RESULTS)["rows"]
    ])  # fmt: skip


def _equal() -> str:
    columns = "Report; Cases=int; Equal=int; Wrong=int"
    return markdown(columns, [
        (name, row["equal"] + row.get("wrong", 0), row["equal"], row.get("wrong", 0))
        for name, row in results.read(metamorphic.RESULTS).items()
    ])  # fmt: skip


def _fuzzed() -> str:
    columns = (
        "Target; Engine; Hours of a process=float.2; Executions=int; Inputs kept=int; "
        "Crashes found=int"
    )
    table = markdown(columns, [
        (f"`{target}`", engine, row["seconds"] / 3600, row["executions"], row["corpus"] or None,
         row["crashes"])
        for target, engines in results.read(FUZZ).items() for engine, row in engines.items()
    ])  # fmt: skip
    return table.replace("\\`", "`")  # names are code


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", action="append", choices=[*READING, *WRITING])
    parser.add_argument("--reading", type=int, default=500, help="Faults of each kind.")
    parser.add_argument("--writing", type=int, default=40, help="Faults of each kind.")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--plots", action="store_true", help="Draw, too; slower.")
    parser.add_argument("--table", action="store_true", help="Write the page only.")
    options = parser.parse_args()
    bad = 0
    for name in [] if options.table else options.part or [*READING, *WRITING]:
        count = options.reading if name in READING else options.writing
        with tempfile.TemporaryDirectory() as folder:
            row = run_part(name, count, Path(folder), options.seed, options.plots)
        print(f"{name}: {row}", flush=True)
        results.write(RESULTS, results.read(RESULTS) | {name: row})
        bad += row.get("broken", 0) + (row.get("wrong", 0) if name not in UNKNOWABLE else 0)
    if PAGE.exists():
        put_parts(PAGE, "benchmarks.robustness", tables())
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
