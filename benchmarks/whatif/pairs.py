"""The pairs that savings are judged by: profiled launches before and after one change."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from benchmarks.common import folders
from perfmodel.analysis.analyze import analyze
from perfmodel.analysis.whatif import evidence
from perfmodel.models.part import Observation
from perfmodel.programs.mlp.bounds import Evidence
from perfmodel.programs.mlp.case import Case
from perfmodel.programs.mlp.observe import observe
from perfmodel.programs.program import Options
from perfmodel.readers import read
from perfmodel.timing.run import Run, time_run

LADDER: Final = folders.PROFILES / "ladder"
CAMPAIGN: Final = folders.PROFILES / "campaign"
PAIRS: Final = (
    ("document", "pinned"), ("pinned", "host-flat"), ("host-flat", "prefetch"),
    ("host-flat", "resident"), ("prefetch", "resident"), ("resident", "chunked"),
    ("resident", "nccl"), ("nccl", "graph"), ("graph", "thin"), ("thin", "fused x3"),
    ("fused x3", "peer x3"), ("nccl", "model nccl"), ("resident", "model nccl"),
    ("document", "resident"), ("document", "nccl"), ("nccl", "fused x3"),
)  # fmt: skip
"""Rungs of profiles/ladder: single steps, and a few of several at once."""


@dataclass(frozen=True)
class Launch:
    """One profiled launch."""

    source: str
    rung: str
    number: int
    folder: str
    run: Run
    observation: Observation
    evidence: Evidence

    @property
    def case(self) -> Case:
        """What it ran."""
        return self.observation.case


@dataclass(frozen=True)
class Pair:
    """Launches before and after one change."""

    name: str
    before: Sequence[Launch]
    after: Sequence[Launch]


def launch(path: Path, rung: str, number: int) -> Launch:
    """Measure one report."""
    trace = read(path)
    run = time_run([trace], "batch iteration", label=path.name)
    analysis = analyze([trace], Options({})).runs[0]
    seen = observe(run)
    return Launch(path.name, rung, number, path.parent.name, run, seen, evidence(seen, analysis))


def ladder() -> list[Launch]:
    """All launches of profiles/ladder."""
    rows = json.loads((LADDER / "index.json").read_text(encoding="utf-8"))
    return [launch(LADDER / r["file"], r["rung"], r["launch"]) for r in rows]


def ladder_pairs(launches: Sequence[Launch]) -> Iterator[Pair]:
    """Yield the pairs of rungs."""
    for before, after in PAIRS:
        sides = [[x for x in launches if x.rung == rung] for rung in (before, after)]
        yield Pair(f"{before} to {after}", *sides)


def campaign() -> list[Launch]:
    """The campaign's float32 launches, each configuration on the machine of its ranks."""
    rows = json.loads((CAMPAIGN / "index.json").read_text(encoding="utf-8"))
    kept = []
    for row in rows:
        found = launch(CAMPAIGN / row["file"], "", len(kept))
        if found.case.sizes["b"] == 4 and found.case.settings["sync"] == "no":
            kept.append(found)
    return kept


def campaign_pairs(launches: Sequence[Launch]) -> Iterator[Pair]:
    """Yield pairs of the campaign: pinned memory, twice the batch, twice the ranks, by machine."""
    for steps in ({"transport": "pinned", "data_on": "pinned"}, {"B": 2}, {"p": 2}):
        groups: dict[tuple[object, ...], list[Launch]] = {}
        for x in launches:
            groups.setdefault((machine(x), x.case.key), []).append(x)
        for (where, _), before in groups.items():
            case = before[0].case
            changed = _changed(case, steps)
            after = groups.get((where, changed.key))
            if after and changed.key != case.key:
                said = ", ".join(f"{k} x {v}" if k in "Bp" else f"{v}" for k, v in steps.items())
                name = f"{case.label} to {said.split(', ')[0]} ({where})"
                yield Pair(name, before, after)


def machine(x: Launch) -> str:
    """Name the machine of a launch."""
    return x.source.split("_")[0]


def _changed(case: Case, steps: dict[str, object]) -> Case:
    sizes = {k: v * 2 if k in steps else v for k, v in case.sizes.items()}
    settings = {**case.settings, **{k: str(v) for k, v in steps.items() if k in case.settings}}
    return replace(case, sizes=sizes, settings=settings)
