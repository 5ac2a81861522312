"""Judges `perfmodel whatif`: what it says of the report before a change, against the one after.

    python -m benchmarks.whatif               # judge all pairs: benchmarks/results/whatif.json
    python -m benchmarks.whatif --document    # the tables of docs/whatif.md

Pairs: rungs of profiles/ladder (three launches each) and, of profiles/campaign, pinned memory,
twice the batch and twice the ranks. Bounds are by the report before alone. Predictions are by three
models: the one that benchmarks.predict froze; one fitted on its runs and on every rung of the
ladder but the one that is predicted; and one fitted on other launches of all rungs, the predicted
one among them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.common import folders, results
from benchmarks.predict.score import pooled
from perfmodel.analysis.analyze import analyze
from perfmodel.base.errors import ModelError
from perfmodel.programs.program import Options
from perfmodel.readers import read
from perfmodel.studies.analysis.whatif import Judge, evidence
from perfmodel.studies.mlp.bounds import Evidence
from perfmodel.studies.mlp.case import Case
from perfmodel.studies.mlp.changes import Change
from perfmodel.studies.mlp.observe import observe
from perfmodel.studies.models.calibrate import calibrate
from perfmodel.studies.models.model import Model, load
from perfmodel.studies.models.predict import predict
from perfmodel.studies.models.terms import Observation
from perfmodel.timing.run import time_run

FROZEN = folders.RESULTS / "predict_model.json"
Z95 = 1.645
EFFORT = {"resamples": 40, "left_out": 16}
"""Of a calibration, of which there are many here."""
STEP = Change("", "", "")
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


# --- the pairs


@dataclass(frozen=True)
class Launch:
    """One profiled launch."""

    source: str
    rung: str
    number: int
    folder: str
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
    return Launch(path.name, rung, number, path.parent.name, seen, evidence(seen, analysis))


def ladder() -> list[Launch]:
    """All launches of profiles/ladder."""
    rows: Any = results.read(LADDER / "index.json")
    return [launch(LADDER / r["file"], r["rung"], r["launch"]) for r in rows]


def ladder_pairs(launches: Sequence[Launch]) -> Iterator[Pair]:
    """Yield the pairs of rungs."""
    for before, after in PAIRS:
        sides = [[x for x in launches if x.rung == rung] for rung in (before, after)]
        yield Pair(f"{before} to {after}", *sides)


def campaign() -> list[Launch]:
    """The campaign's float32 launches, each configuration on the machine of its ranks."""
    index: Any = results.read(CAMPAIGN / "index.json")
    kept = []
    for row in index:
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


# --- judging


def share(pair: Pair) -> float:
    """Images of a batch before over after."""
    return pair.before[0].case.sizes["B"] / pair.after[0].case.sizes["B"]


def bound_row(pair: Pair, noise: dict[str, float]) -> dict[str, Any]:
    """Medians over launches: the measured saving, and the bound of the report before."""
    before = [x.evidence.batch_s for x in pair.before]
    after = [x.evidence.batch_s * share(pair) for x in pair.after]
    bounds = [Judge(x.evidence, ()).bound(STEP, pair.after[0].case).saving_s for x in pair.before]
    measured = float(np.median(before) - np.median(after))
    spread = Z95 * float(
        np.hypot(
            noise[pair.before[0].case.route] * np.median(before) / len(before) ** 0.5,
            noise[pair.after[0].case.route] * np.median(after) / len(after) ** 0.5,
        )
    )
    bound = float(np.median(bounds))
    return {
        "pair": pair.name, "before_s": float(np.median(before)), "after_s": float(np.median(after)),
        "measured_s": measured, "noise_s": spread, "at_most_s": bound,
        "launches": [len(before), len(after)], "holds": measured <= bound + spread,
        "exceeds_s": max(measured - bound, 0.0),
    }  # fmt: skip


def predicted(
    model: Model, before: Sequence[Launch], after: Sequence[Launch], images: float
) -> dict[str, Any]:
    """What a model says of every launch before, against every launch after."""
    rows, inside = [], []
    try:
        for x in before:
            said = Judge(x.evidence, (), model).predicted(STEP, after[0].case)
            rows.append(said)
            for y in after:
                saved = x.evidence.batch_s - y.evidence.batch_s * images
                assert said.next_low_s is not None
                assert said.next_high_s is not None
                inside.append(said.next_low_s <= saved <= said.next_high_s)
    except ModelError as error:
        return {"refused": str(error)}
    batch = float(np.median([r.batch_s for r in rows]))
    found = float(np.median([y.evidence.batch_s for y in after])) * images
    alone = predict(model, after[0].case).batch_s * images  # whatever the report before says
    return {
        "saving_s": float(np.median([r.saving_s for r in rows])),
        "low_s": float(np.median([r.low_s for r in rows])),
        "high_s": float(np.median([r.high_s for r in rows])),
        "next_low_s": float(np.median([r.next_low_s or 0.0 for r in rows])),
        "next_high_s": float(np.median([r.next_high_s or 0.0 for r in rows])),
        "after_s": batch, "error": batch / found - 1, "alone": alone / found - 1,
        "inside": [sum(inside), len(inside)],
    }  # fmt: skip


def held_out(pair: Pair, base: Sequence[Launch], rungs: Sequence[Launch]) -> dict[str, Any]:
    """Predict by a model that has not seen the configuration after."""
    key = pair.after[0].case.key
    kept = [x.observation for x in (*base, *rungs) if x.case.key != key]
    return predicted(calibrate(kept, **EFFORT), pair.before, pair.after, share(pair))


def other_launches(pair: Pair, models: dict[int, Model]) -> list[dict[str, Any]]:
    """Predict each launch by the model of the other launches."""
    found = []
    for number, model in models.items():
        before = [x for x in pair.before if x.number == number]
        after = [x for x in pair.after if x.number == number]
        found.append(predicted(model, before, after, share(pair)))
    return found


def together(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Put the launches' rows into one."""
    known = [r for r in rows if "refused" not in r]
    if not known:
        return {"refused": rows[0]["refused"]}
    keys = [key for key in known[0] if key != "inside"]
    joined: dict[str, Any] = {k: float(np.median([r[k] for r in known])) for k in keys}
    joined["inside"] = [sum(r["inside"][i] for r in known) for i in (0, 1)]
    return joined


def summary(rows: Sequence[dict[str, Any]], model: str) -> dict[str, Any]:
    """Errors over the pairs that a model tells."""
    said = [(r, r["models"].get(model, {"refused": ""})) for r in rows]
    known = [(r, m) for r, m in said if "refused" not in m]
    if not known:
        return {"pairs": len(rows), "told": 0}
    errors, alone = ([abs(m[key]) for _, m in known] for key in ("error", "alone"))
    gaps = [abs(m["saving_s"] - r["measured_s"]) / r["before_s"] for r, m in known]
    inside = [sum(m["inside"][i] for _, m in known) for i in (0, 1)]
    signs = [m["saving_s"] * r["measured_s"] > 0 for r, m in known]
    return {
        "pairs": len(rows), "told": len(known), "mean_error": float(np.mean(errors)),
        "largest_error": max(errors), "mean_alone": float(np.mean(alone)),
        "mean_gap": float(np.mean(gaps)), "largest_gap": max(gaps),
        "inside": inside[0] / inside[1], "right_sign": sum(signs),
    }  # fmt: skip


def judge() -> dict[str, Any]:
    """Judge every pair."""
    frozen = load(FROZEN)
    used = {str(run["source"]) for run in frozen.runs}
    rungs, runs = ladder(), campaign()
    base = [x for x in runs if x.source in used]
    groups: dict[object, list[Launch]] = {}
    for x in (*rungs, *runs):
        groups.setdefault((x.folder, x.case.key), []).append(x)
    noise = pooled([[x.observation for x in group] for group in groups.values()])
    models = {
        n: calibrate(
            [x.observation for x in (*base, *(r for r in rungs if r.number != n))], **EFFORT
        )
        for n in sorted({x.number for x in rungs})
    }
    steps = []
    for pair in ladder_pairs(rungs):
        steps.append(bound_row(pair, noise) | {"models": {
            "frozen": predicted(frozen, pair.before, pair.after, 1.0),
            "held out": held_out(pair, base, rungs),
            "other launches": together(other_launches(pair, models)),
        }})  # fmt: skip
    sizes = []
    for pair in campaign_pairs(runs):
        seen = [x.source in used for x in (*pair.before, *pair.after)]
        row = bound_row(pair, noise) | {"seen": any(seen)}
        row["models"] = {"frozen": predicted(frozen, pair.before, pair.after, share(pair))}
        sizes.append(row)
    unseen = [r for r in sizes if not r["seen"]]
    return {
        "frozen": FROZEN.name, "launch_noise": noise, "ladder": steps, "campaign": sizes,
        "summary": {
            "ladder": {m: summary(steps, m) for m in ("frozen", "held out", "other launches")},
            "campaign": summary(sizes, "frozen"), "campaign unseen": summary(unseen, "frozen"),
            "bounds": {
                "pairs": len(steps) + len(sizes),
                "hold": sum(r["holds"] for r in (*steps, *sizes)),
                "strictly": sum(r["exceeds_s"] == 0 for r in (*steps, *sizes)),
            },
        },
    }  # fmt: skip


def main() -> None:
    file = folders.RESULTS / "whatif.json"
    args = results.parser(__doc__, "docs/whatif.md", file).parse_args()
    if args.document:
        from benchmarks.whatif import report

        report.write(results.read(args.out))
        return
    found = judge()
    results.write(args.out, found)
    print(json.dumps(found["summary"], indent=1))


if __name__ == "__main__":
    main()
