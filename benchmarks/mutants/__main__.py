"""How many small faults in perfmodel do the quick tests notice?

    python -m benchmarks.mutants --out FOLDER [--before FOLDER] [--seed 50] [--each 32]

Draws 32 faults in a module of each of ten rooms, notes which functions each test calls, and runs
tests that call a faulty function until one fails. FOLDER keeps what is known, so
that an interrupted run goes on. `--before` names the folder of an earlier run with the same
faults: the test that noticed a fault there is asked first. Needs Python 3.12 (`sys.monitoring`).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

from benchmarks.common import results
from benchmarks.common.folders import RESULTS, ROOT
from benchmarks.mutants.draw import Mutant, draw

HOOK: Final = Path(__file__).parent / "hook"
QUICK: Final = ("-q", "-n0", "-p", "no:cacheprovider", "-m", "not (slow or nsys)",
                "--hypothesis-profile", "quick")  # fmt: skip
"""What `make test` runs, in one process."""
PIECE: Final = 60
"""Tests that are asked first: most faults are noticed by one of them."""
LIMIT_S: Final = 420
"""Seconds after which tests that hang on a fault have noticed it."""

Calls = dict[str, tuple[float, set[str]]]
"""Tests that pass: their seconds, and the functions (module:name) that they call."""


def drawn(out: Path, seed: int, each: int) -> list[Mutant]:
    """Draw the mutants, or take those of an earlier run; their texts lie in `out`."""
    kept = out / "mutants.json"
    if not kept.exists():
        pairs = draw(ROOT, seed, each)
        for number, (_, text) in enumerate(pairs):
            _text(out, number).write_text(text, encoding="utf-8")
        kept.write_text(json.dumps([mutant.document() for mutant, _ in pairs], indent=1))
    return [Mutant(**row) for row in json.loads(kept.read_text(encoding="utf-8"))]


def _text(out: Path, number: int) -> Path:
    return out / f"{number:03d}.py"


def _pytest(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(HOOK), "OMP_NUM_THREADS": "1", **variables}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    return subprocess.run(
        [sys.executable, "-m", "pytest", *QUICK, *arguments],
        cwd=ROOT, env=environment, capture_output=True, text=True,
        timeout=LIMIT_S if "MUTANT" in variables else None,
    )  # fmt: skip


def _failed(printed: str) -> list[str]:
    return [
        line.split(" ", 1)[1].split(" - ")[0]
        for line in printed.splitlines()
        if line.startswith(("FAILED ", "ERROR "))
    ]


def called(out: Path, modules: Sequence[str]) -> Calls:
    """Run all quick tests once and note which functions of the modules each of them calls."""
    kept = out / "calls.json"
    if not kept.exists():
        folder = out / "hits"
        folder.mkdir(exist_ok=True)
        done = _pytest(
            "-p", "mutant_hits", MUTANT_HITS=str(folder), MUTANT_MODULES=",".join(modules)
        )
        found = json.loads((folder / "main.json").read_text(encoding="utf-8"))
        children = folder / "children.tsv"
        for line in children.read_text().splitlines() if children.exists() else ():
            test, function = line.split("\t")
            if test in found:
                found[test][1].append(function)
        for test in _failed(done.stdout):  # without a fault
            found.pop(test, None)
        kept.write_text(json.dumps(found))
    calls = json.loads(kept.read_text(encoding="utf-8"))
    return {test: (seconds, set(functions)) for test, (seconds, functions) in calls.items()}


def asked(
    mutant: Mutant, by_function: Mapping[str, list[str]], calls: Calls, most_s: float
) -> list[str]:
    """Return tests that call a mutant's function, as many as take `most_s`.

    Those of files that are named as the module come first, then the cheapest of every file, the
    second cheapest of every file, and so on.
    """
    module = Path(mutant.module)
    name = (module.parent if module.stem == "__init__" else module).stem.strip("_")
    of_file: Counter[str] = Counter()
    order = []
    tests = by_function.get(f"{mutant.module}:{mutant.function}", [])
    for test in sorted(tests, key=lambda test: calls[test][0]):
        file = test.split("::")[0]
        order.append((name not in file, of_file[file] if name not in file else 0, test))
        of_file[file] += 1
    order.sort(key=lambda row: (*row[:2], calls[row[2]][0]))
    taken = accumulate(calls[test][0] for *_, test in order)
    few = [test for (*_, test), s in zip(order, taken, strict=True) if s <= most_s]
    return few or [test for *_, test in order[:1]]


def _noticed(text: Path, mutant: Mutant, pieces: Iterator[list[str]]) -> str | None:
    """Return the test that fails with the mutant; None if there is none."""
    module = mutant.module.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
    arguments = text.with_suffix(".tests")
    for tests in pieces:
        arguments.write_text("\n".join(tests), encoding="utf-8")
        try:
            done = _pytest("-x", "--tb=no", f"@{arguments}", MUTANT=f"{module}:{text}")
        except subprocess.TimeoutExpired:
            return "none ends"
        if failed := _failed(done.stdout):
            return failed[0]
        if "not found: " in done.stdout + done.stderr:
            raise SystemExit(f"{arguments}: expected tests that there are; delete calls.json")
        if done.returncode not in (0, 5):
            return "none can be imported"
    return None


def _pieces(tests: list[str], first: str | None) -> Iterator[list[str]]:
    if first in tests:
        yield [first]
    yield from (piece for piece in (tests[:PIECE], tests[PIECE:]) if piece)


def run(
    out: Path, mutants: Sequence[Mutant], calls: Calls, before: Path | None, most_s: float
) -> dict[str, Any]:
    """Return for each mutant the test that notices it."""
    kept = out / "noticed.json"
    earlier = results.read(before / "noticed.json") if before else {}
    found: dict[str, str | None] = json.loads(kept.read_text()) if kept.exists() else {}
    by_function: dict[str, list[str]] = defaultdict(list)
    for test, (_, functions) in calls.items():
        for function in functions:
            by_function[function].append(test)
    for number, mutant in enumerate(mutants):
        if str(number) not in found:
            tests = asked(mutant, by_function, calls, most_s)
            first = earlier.get(str(number))
            found[str(number)] = _noticed(_text(out, number), mutant, _pieces(tests, first))
            kept.write_text(json.dumps(found, indent=0))
    return found


def summary(mutants: Sequence[Mutant], noticed: Mapping[str, str | None]) -> dict[str, Any]:
    """Return the mutants of each module, and how many a test notices."""
    rows: dict[str, Counter[str]] = defaultdict(Counter)
    for number, mutant in enumerate(mutants):
        rows[mutant.module]["mutants"] += 1
        rows[mutant.module]["noticed"] += noticed[str(number)] is not None
    return {module: dict(counts) for module, counts in rows.items()}


def main() -> None:
    """Print how many mutants of each module are noticed, and keep it under a name."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of what is known")
    parser.add_argument("--before", type=Path, help="folder of an earlier run")
    parser.add_argument("--seed", type=int, default=50)
    parser.add_argument("--each", type=int, default=32, help="mutants of a module")
    parser.add_argument("--keep", metavar="NAME", help="name in benchmarks/results/mutants.json")
    parser.add_argument(
        "--most", type=float, default=10, help="seconds of tests that are asked of a mutant"
    )
    asked_for = parser.parse_args()
    out = asked_for.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    mutants = drawn(out, asked_for.seed, asked_for.each)
    calls = called(out, [*dict.fromkeys(mutant.module for mutant in mutants)])
    found = summary(mutants, run(out, mutants, calls, asked_for.before, asked_for.most))
    for module, counts in found.items():
        print(f"{counts['noticed']:4d} of {counts['mutants']:4d}  {module}")
    total = [sum(counts[key] for counts in found.values()) for key in ("noticed", "mutants")]
    print(f"{total[0]:4d} of {total[1]:4d}  in all, by {len(calls)} tests")
    if asked_for.keep:
        path = RESULTS / "mutants.json"
        results.write(path, {**results.read(path), asked_for.keep: found})


if __name__ == "__main__":
    main()
