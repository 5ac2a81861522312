"""The rule of README.md: what is asked of a diagnosis, and which answer is right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

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
    claimed = right["saving_s"] if right is not None else None
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


def totals(found: Sequence[Score]) -> dict[str, str]:
    """Right answers of those that were asked, by question."""
    said = {}
    for question in QUESTIONS:
        answers = [value for one in found if (value := getattr(one, question)) is not None]
        said[question] = f"{sum(answers)} of {len(answers)}"
    return said
