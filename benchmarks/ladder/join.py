"""Adds launches that were timed elsewhere to the ladder's results.

    python -m benchmarks.ladder.join FILE ...

Each FILE was written by `python -m benchmarks.ladder --out FILE`.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from benchmarks.common import folders, results
from benchmarks.ladder.rows import launches, merge


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--out", type=Path, default=folders.RESULTS / "ladder.json")
    args = parser.parse_args()
    record = results.read(args.out)
    for file in args.files:
        record = join(record, results.read(file))
    results.write(args.out, record, digits=6)
    print(f"{args.out}: {len(record['runs'])} launches, {len(record['rows'])} rows")


if __name__ == "__main__":
    main()
