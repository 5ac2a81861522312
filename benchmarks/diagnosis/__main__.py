"""Score what `perfmodel analyze` finds in recordings of known faults, by the rule of README.md.

    python -m benchmarks.diagnosis [--cases FILE] [--reports FOLDER] [--out FILE]

Cases of another list, such as one that is kept unseen, are scored with --cases and --reports.
"""

from __future__ import annotations

import argparse
import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.common.folders import PROFILES
from perfmodel.analysis.analyze import analyze_reports
from perfmodel.programs.program import Options
from perfmodel.render.analysis_json import analysis_document

CASES: Final = Path(__file__).parent / "cases.toml"
FAULTS: Final = frozenset({
    "straggler", "waiting_mpi", "blocking_sync", "allocation", "pageable_copy", "host_compute",
    "shared_gpu", "page_migration", "offloading", "single_block",
})  # fmt: skip
"""Kinds of findings that no program has by design."""
ALARM: Final = 0.1
"""Share of a step from which such a finding is a false alarm in a healthy recording."""
WITHIN: Final = 0.25
"""How far a saving may be from the measured one."""
QUESTIONS: Final = ("first", "rank", "range", "saving", "quiet")


@dataclass(frozen=True, slots=True)
class Score:
    """Answers of one case: right, wrong, or None where it is not asked.

    `quiet` is whether a healthy case has no false alarm. `found` are the first findings, and
    `saving_s` the claimed one beside the measured `true_s`.
    """

    name: str
    tuned: bool
    made: str
    first: bool | None
    rank: bool | None
    range: bool | None
    saving: bool | None
    quiet: bool | None
    found: tuple[str, ...]
    saving_s: float | None
    true_s: float | None


def score(case: Mapping[str, Any], document: Mapping[str, Any]) -> Score:
    """Score the analysis of one case, as analysis.json has it, by the rule."""
    findings: Sequence[Mapping[str, Any]] = document["findings"]
    kinds, named = case.get("kind", []), case.get("range")
    right = next((one for one in findings if one["kind"] in kinds), None)
    claimed = right and (
        right["saving_s"]
        if right["saving_without_recorder_s"] is None
        else right["saving_without_recorder_s"]
    )
    true_s = case["step_s"] - case["without_s"] if "step_s" in case else None
    late = document["stragglers"]
    alarms = [one for one in findings if one["kind"] in FAULTS and (one["share"] or 0) >= ALARM]
    texts = [right[key] or "" for key in ("title", "evidence", "range")] if right else []
    return Score(
        name=case["name"],
        tuned=case["tuned"],
        made=case.get("made", "recorded"),
        first=findings[:1] != [] and findings[0]["kind"] in kinds if kinds else None,
        rank=bool(late) and late[0]["rank"] == case["rank"] if "rank" in case else None,
        range=any(named in text for text in texts) if named else None,
        saving=None
        if true_s is None
        else claimed is not None and abs(claimed - true_s) <= WITHIN * true_s,
        quiet=None if kinds else not alarms,
        found=tuple(f"{one['kind']} {one['share'] or 0:.0%}" for one in findings[:3]),
        saving_s=claimed,
        true_s=true_s,
    )


def scores(cases: Sequence[Mapping[str, Any]], folder: Path) -> Iterator[Score]:
    """Analyze and score every case."""
    for case in cases:
        reports = [folder / name for name in case["reports"]]
        yield score(case, analysis_document(analyze_reports(reports, Options())))


def totals(found: Sequence[Score]) -> dict[str, str]:
    """Right answers of those that were asked, by question."""
    said = {}
    for question in QUESTIONS:
        answers = [value for one in found if (value := getattr(one, question)) is not None]
        said[question] = f"{sum(answers)} of {len(answers)}"
    return said


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
    parser.add_argument("--cases", type=Path, default=CASES)
    parser.add_argument("--reports", type=Path, default=PROFILES)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    found = [*scores(tomllib.loads(asked.cases.read_text())["case"], asked.reports)]
    print(f"{'':50} {''.join(f'{question:8}' for question in QUESTIONS)}first findings")
    for one in found:
        print(_row(one))
    summary = {}
    for made in sorted({(one.made, one.tuned) for one in found}):
        group = [one for one in found if (one.made, one.tuned) == made]
        key = f"{made[0]}, {'looked at before' if made[1] else 'not used for tuning'}"
        summary[key] = totals(group)
        print(f"{key}: {len(group)} cases; {summary[key]}")
    if asked.out:
        document = {"totals": summary, "cases": [asdict(one) for one in found]}
        asked.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
