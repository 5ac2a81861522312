"""Score what `perfmodel analyze` finds in recordings of known faults, by the rule of README.md.

    python -m benchmarks.diagnosis [--unseen] [--mcp] [--cases FILE ...] [--reports FOLDER]
                                   [--out FILE]

Without --unseen, cases that are kept unseen are left out; with it, they alone are scored, and
nothing but their totals is shown. With --mcp a fixed strategy answers, which sees nothing but what
`perfmodel mcp` says. Cases of another list are scored with --cases and --reports.
"""

from __future__ import annotations

import argparse
import asyncio
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from benchmarks.common import results
from benchmarks.common.folders import PROFILES
from benchmarks.diagnosis import strategy
from benchmarks.diagnosis.edit import reports_of
from benchmarks.diagnosis.rule import QUESTIONS, Score, score, totals
from perfmodel.analysis.analyze import analyze_reports
from perfmodel.programs.program import Options
from perfmodel.render.analysis_json import analysis_document

CASES: Final = tuple(
    Path(__file__).parent / f"{name}.toml" for name in ("cases", "recorded", "edited")
)
Ask = Callable[[Sequence[Path]], Mapping[str, Any]]
"""Returns findings and late ranks of reports, as analysis.json has them."""


def analyzed(reports: Sequence[Path]) -> Mapping[str, Any]:
    """Return analysis.json of reports."""
    return analysis_document(analyze_reports(reports, Options()))


def cases_of(files: Sequence[Path], *, unseen: bool) -> list[dict[str, Any]]:
    """Read the cases that were looked at before, or those that are kept unseen."""
    read = (case for file in files for case in tomllib.loads(file.read_text())["case"])
    return [case for case in read if case["tuned"] is not unseen]


def scores(
    cases: Sequence[Mapping[str, Any]], folder: Path, ask: Ask = analyzed
) -> Iterator[Score]:
    """Ask for, and score, every case."""
    for case in cases:
        with reports_of(case, folder) as reports:
            yield score(case, ask(reports))


def _row(one: Score) -> str:
    marks = {True: "right", False: "WRONG", None: "-"}
    answers = "".join(f"{marks[getattr(one, question)]:8}" for question in QUESTIONS)
    claimed = ""
    if one.true_s is not None:
        own = "?" if one.saving_s is None else f"{one.saving_s * 1e3:.3g}"
        claimed = f"  saves {own} of {one.true_s * 1e3:.3g} ms"
    return f"{one.name:50.50} {answers}{', '.join(one.found)}{claimed}"


def main() -> None:
    """Print the table, and keep it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.diagnosis", description=__doc__)
    parser.add_argument("--cases", type=Path, nargs="+", default=CASES)
    parser.add_argument("--reports", type=Path, default=PROFILES)
    parser.add_argument("--unseen", action="store_true")
    parser.add_argument("--mcp", action="store_true")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    cases = cases_of(asked.cases, unseen=asked.unseen)
    document: dict[str, Any] = {}
    if asked.mcp:
        found, document["letters"] = asyncio.run(strategy.scores(cases, asked.reports))
        print(f"letters of an answer: {document['letters']}")
    else:
        found = [*scores(cases, asked.reports)]
    shown = [] if asked.unseen else found
    print(f"{'':50} {''.join(f'{question:8}' for question in QUESTIONS)}first findings")
    for one in shown:
        print(_row(one))
    summary = {}
    for group in (("recorded", True), ("edited", True), ("recorded", False), ("edited", False)):
        some = [one for one in found if (one.made, one.tuned) == group]
        if some:
            key = f"{group[0]}, {'looked at before' if group[1] else 'not used for tuning'}"
            summary[key] = totals(some)
            print(f"{key}: {len(some)} cases; {summary[key]}")
    if asked.out:
        document = {"totals": summary, **document, "cases": [asdict(one) for one in shown]}
        results.write(asked.out, document)


if __name__ == "__main__":
    main()
