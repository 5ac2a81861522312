"""A command with one large report: processor time and memory, against another checkout.

    python -m benchmarks.scale.large --before DIR --rows 10000000 --rounds 3
    python -m benchmarks.scale.large report --program pytorch --before DIR

Grows a real export of the trainer or of PyTorch to eight ranks (profiles.grow) and runs
`perfmodel analyze`, or the command named, of both checkouts in turns. Writes medians to
benchmarks/results/COMMAND_large.json, beside the rows of other sizes and programs that are there;
without --before, only this checkout's.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.common import folders, results
from benchmarks.common.processes import ENVIRONMENT, in_turn, medians, timed
from profiles.grow import grow

COMMANDS: Final = {
    "analyze": ("--format", "json"),
    "timeline": ("--format", "json"),
    "report": ("-o", "-"),
}
SOURCES: Final = {
    "trainer": folders.BASE,
    "pytorch": folders.PROGRAMS / "gpt_ddp8.sqlite.xz",
    "pytorch_sizes": folders.PROGRAMS / "gpt_both.sqlite.xz",
}


def measured(name: str, report: Path, sides: dict[str, Path], rounds: int) -> dict[str, Any]:
    """Return medians of every side, and whether their outputs are equal."""
    command = [sys.executable, "-P", "-m", "perfmodel", name, str(report), *COMMANDS[name]]
    runs = in_turn(
        {
            side: partial(timed, command, environment={**ENVIRONMENT, "PYTHONPATH": str(checkout)})
            for side, checkout in sides.items()
        },
        rounds,
    )
    row: dict[str, Any] = {side: medians([f for f, _ in found]) for side, found in runs.items()}
    texts = {text for found in runs.values() for _, text in found}
    return {**row, "rounds": rounds, "equal": len(texts) == 1}


def main() -> None:
    """Measure one size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", nargs="?", choices=COMMANDS, default="analyze")
    parser.add_argument("--program", choices=SOURCES, default="trainer")
    parser.add_argument("--before", type=Path, help="another checkout of perfmodel")
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="for the grown report")
    args = parser.parse_args()
    sides = {"before": args.before.resolve()} if args.before else {}
    with tempfile.TemporaryDirectory(dir=args.folder) as scratch:
        report = Path(scratch) / "grown.sqlite"
        rows = grow(SOURCES[args.program], report, args.rows, args.ranks)
        row = {"program": args.program, "size": args.rows, "event_rows": rows, "ranks": args.ranks}
        row |= measured(args.name, report, {**sides, "now": folders.ROOT}, args.rounds)
    path = folders.RESULTS / f"{args.name}_large.json"
    known = results.read(path)["rows"] if path.exists() else []
    key = args.program, args.rows, args.ranks
    kept = [one for one in known if (one["program"], one["size"], one["ranks"]) != key]
    order = [*SOURCES]
    rows_of_page = sorted([*kept, row], key=lambda one: (order.index(one["program"]), one["size"]))
    result = {
        "command": results.command(f"scale.large {args.name} --before DIR"),
        **results.about(),
    }
    results.write(path, {**result, "rows": rows_of_page})


if __name__ == "__main__":
    main()
