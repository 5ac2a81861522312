"""Adds launches that were timed elsewhere to the ladder's results.

    python -m benchmarks.ladder.join FILE ... [--replace RUNG ...]

Each FILE was written by `python -m benchmarks.ladder --out FILE`. With --replace only the rows of
these rungs are taken, such as those whose kernel was changed, and the earlier launches of these
rows are dropped.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import folders, results
from benchmarks.ladder.rows import KEY, launches, merge


def join(record: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Return the record with the launches of another one added, run by run.

    Two that began in the same second, side by side, are told apart by a letter.
    """
    for name, run in other["runs"].items():
        known = record.get("runs", {})
        new = next(n for n in (name, *(f"{name} {c}" for c in "bcd")) if known.get(n, run) == run)
        of_run = [
            launch for row in other["rows"] for launch in launches(row) if launch["run"] == name
        ]
        record = merge(record, run, of_run, name=new)
    return record


def replaced(
    record: dict[str, Any], others: Sequence[dict[str, Any]], rungs: Sequence[str]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the record without the rungs' rows that others time, and of these only such rows."""
    kept = [{**o, "rows": [r for r in o["rows"] if r["rung"] in rungs]} for o in others]
    timed = {tuple(row[k] for k in KEY) for other in kept for row in other["rows"]}
    rows = [row for row in record["rows"] if tuple(row[k] for k in KEY) not in timed]
    return {**record, "rows": rows}, kept


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--out", type=Path, default=folders.RESULTS / "ladder.json")
    parser.add_argument("--replace", nargs="+", metavar="RUNG", help="take these rungs' rows only")
    args = parser.parse_args()
    record, others = results.read(args.out), [results.read(file) for file in args.files]
    if args.replace:
        record, others = replaced(record, others, args.replace)
    for other in others:
        record = join(record, other)
    results.write(args.out, record, digits=6)
    print(f"{args.out}: {len(record['runs'])} launches, {len(record['rows'])} rows")


if __name__ == "__main__":
    main()
