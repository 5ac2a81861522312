"""Adds launches that were timed elsewhere to the ladder's results.

    python -m benchmarks.ladder.join FILE ...

Each FILE was written by `python -m benchmarks.ladder --out FILE`. With --replace earlier launches
without the times of their rounds leave where the files have launches of as many ranks.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.common import folders, results
from benchmarks.ladder.rows import joined, launches, merge


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


def without_old(record: dict[str, Any], others: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Drop launches that kept no rounds, where `others` have launches of as many ranks."""
    ranks = {run["ranks"] for other in others for run in other["runs"].values()}
    rows = [
        joined(kept)
        for row in record["rows"]
        if (kept := [r for r in launches(row) if r["p"] not in ranks or r.get("round_s")])
    ]
    used = {launch["run"] for row in rows for launch in launches(row)}
    return {**record, "rows": rows, "runs": {n: r for n, r in record["runs"].items() if n in used}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--out", type=Path, default=folders.RESULTS / "ladder.json")
    parser.add_argument("--replace", action="store_true", help="drop launches without rounds")
    args = parser.parse_args()
    record, others = results.read(args.out), [results.read(file) for file in args.files]
    if args.replace:
        record = without_old(record, others)
    for other in others:
        record = join(record, other)
    results.write(args.out, record, digits=6)
    print(f"{args.out}: {len(record['runs'])} launches, {len(record['rows'])} rows")


if __name__ == "__main__":
    main()
