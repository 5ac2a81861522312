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

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import folders, results
from benchmarks.whatif.pairs import Launch, Pair, campaign, campaign_pairs, ladder, ladder_pairs
from perfmodel.analysis.whatif import Judge
from perfmodel.base.errors import ModelError
from perfmodel.models.calibrate import calibrate
from perfmodel.models.model import Model, load
from perfmodel.models.predict import predict
from perfmodel.programs.mlp.changes import Change

FROZEN = folders.RESULTS / "predict_model.json"
Z95 = 1.645
EFFORT = {"resamples": 40, "left_out": 16}
"""Of a calibration, of which there are many here."""
STEP = Change("", "", "")


def launch_noise(groups: Sequence[Sequence[Launch]]) -> dict[str, float]:
    """Pooled standard deviation of log batches between launches, by route."""
    squares: dict[str, list[float]] = {}
    degrees: dict[str, int] = {}
    for group in groups:
        logs = np.log([x.evidence.batch_s for x in group])
        if len(logs) < 2:
            continue
        how = group[0].case.route
        squares.setdefault(how, []).append(float(((logs - logs.mean()) ** 2).sum()))
        degrees[how] = degrees.get(how, 0) + len(logs) - 1
    return {how: (sum(s) / degrees[how]) ** 0.5 for how, s in squares.items()}


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
    known = [r for r in rows if "refused" not in r["models"].get(model, {"refused": ""})]
    if not known:
        return {"pairs": len(rows), "told": 0}
    errors = [abs(r["models"][model]["error"]) for r in known]
    gaps = [
        abs(r["models"][model]["saving_s"] - r["measured_s"]) / r["before_s"] for r in known
    ]  # fmt: skip
    inside = [sum(r["models"][model]["inside"][i] for r in known) for i in (0, 1)]
    alone = [abs(r["models"][model]["alone"]) for r in known]
    signs = [r["models"][model]["saving_s"] * r["measured_s"] > 0 for r in known]
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
    noise = launch_noise(list(groups.values()))
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
    """Judge or document."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--document", action="store_true")
    parser.add_argument("--out", type=Path, default=folders.RESULTS / "whatif.json")
    args = parser.parse_args()
    if args.document:
        from benchmarks.whatif import report as whatif_report

        whatif_report.write(results.read(args.out))
        return
    found = judge()
    results.write(args.out, found)
    print(json.dumps(found["summary"], indent=1))


if __name__ == "__main__":
    main()
