"""The share of the GPU's time in kernels whose names perfmodel does not know.

    python -m benchmarks.kernels FOLDER... [--at-most PERCENT] [--names N] [--distinct N]

Every report and trace under the folders is read. A share is the time of the unknown kernels over
the time of all kernels, of the files that have any. The command ends with 1 if a file is above
PERCENT. `--distinct` also takes the CPU time for N names of which no two are equal: the rows of
tests/golden/kernels/names.tsv with numbers behind them, and random words.
"""

from __future__ import annotations

import argparse
import csv
import random
import string
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.common.folders import TESTS
from perfmodel.base.errors import PerfmodelError
from perfmodel.base.kernels import UNKNOWN, kernel
from perfmodel.readers import read
from perfmodel.readers.trace import KERNEL

FILES: Final = ("*.sqlite", "*.sqlite.xz", "*.json.gz", "*.json.xz", "*.json")
SMALLEST: Final = 1_000
"""Bytes of the smallest file of kernels; smaller ones are settings and truths."""


def reports(folders: Sequence[Path]) -> Iterator[Path]:
    """Yield the files that may be reports or traces, by path."""
    for folder in folders:
        found = {path for pattern in FILES for path in folder.rglob(pattern)}
        yield from sorted(path for path in found if path.stat().st_size > SMALLEST)


def times(path: Path) -> Counter[str]:
    """Nanoseconds of the kernels of a report by name.

    Raises
    ------
    PerfmodelError
        If the file is no report and no trace, or cannot be read.
    """
    trace = read(path)
    ops = trace.ops
    mine = np.flatnonzero((ops.kind == KERNEL) & (ops.name >= 0))
    spent = np.zeros(len(trace.strings), np.int64)
    np.add.at(spent, ops.name[mine], ops.end_ns[mine] - ops.start_ns[mine])
    total: Counter[str] = Counter()
    for code in np.flatnonzero(spent).tolist():
        total[trace.strings[code]] += int(spent[code])
    return total


def distinct(count: int) -> Iterator[tuple[str, list[str]]]:
    """Yield what kind of names, and these: no two are equal."""
    chosen = random.Random(7)
    with (TESTS / "golden" / "kernels" / "names.tsv").open(encoding="utf-8", newline="") as file:
        known = [
            row["name"] for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        ]
    yield "known", [f"{name}_{i}" for i, name in enumerate(chosen.choices(known, k=count))]
    letters = ("".join(chosen.choices(string.ascii_lowercase, k=11)) for _ in range(count))
    yield "random", [f"{text[:6]}_{text[6:]}_kernel" for text in letters]


def main() -> int:
    """Print the share of every file, the largest first, and what is unknown."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("folders", type=Path, nargs="*", metavar="FOLDER")
    parser.add_argument("--at-most", type=float, default=100.0, metavar="PERCENT")
    parser.add_argument("--names", type=int, default=20, help="unknown names to print")
    parser.add_argument("--distinct", type=int, default=0, metavar="N", help="time N names")
    given = parser.parse_args()
    rows: list[tuple[float, int, Path]] = []
    unknown: Counter[str] = Counter()
    refused: list[str] = []
    for path in reports(given.folders):
        try:
            spent = times(path)
        except PerfmodelError as error:
            refused.append(f"{path}: {error}")
            continue
        missing = Counter({n: ns for n, ns in spent.items() if kernel(n).category == UNKNOWN})
        unknown.update(missing)
        if spent.total():
            rows.append((missing.total() / spent.total(), spent.total(), path))
    rows.sort(key=lambda row: -row[0])
    for share, total, path in rows:
        print(f"{share:8.2%} of {total * 1e-6:10.3f} ms  {path}")
    for name, ns in unknown.most_common(given.names):
        print(f"unknown {ns * 1e-6:10.3f} ms  {name[:160]}")
    for line in refused:
        print(f"not read: {line.splitlines()[0][:160]}")
    for kind, listed in distinct(given.distinct) if given.distinct else ():
        begin = time.process_time()
        for name in listed:
            kernel(name)
        print(f"{len(listed)} {kind} names: {time.process_time() - begin:.1f} s of CPU")
    above = sum(share > given.at_most / 100 for share, _, _ in rows)
    print(f"{len(rows)} files, {above} above {given.at_most:g} %; {len(refused)} not read")
    return int(above > 0)


if __name__ == "__main__":
    sys.exit(main())
