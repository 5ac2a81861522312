"""Scores the frozen model on configurations that were collected after it: fresh_campaign.md.

    python benchmarks/predict_fresh.py        # writes benchmarks/results/predict_fresh.json

What was visited before is not scored: it tells how much faster or slower these hosts are.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
from predict_launches import MACHINE, ROOT, Launches, grouped
from predict_score import noise_floor, predict_rows, quiet, ranking, summary

from perfmodel.predict import Observation, load

FRESH = ROOT / "profiles" / "fresh" / "launches.json"
RESULTS = ROOT / "benchmarks" / "results"
FROZEN = RESULTS / "predict_model.json"


def known_before(
    fresh: list[Observation], before: list[Observation], bare: tuple[dict[Any, Any], dict[Any, Any]]
) -> list[dict[str, Any]]:
    """Compare the configurations that both collections have, recorded and bare."""
    old = {group[0].case.key: group for group in grouped(before)}
    found = []
    for group in grouped(fresh):
        key, case = group[0].case.key, group[0].case
        if key not in old:
            continue
        now, then = (float(np.median([o.batch_s for o in g])) for g in (group, old[key]))
        row = {"case": case.label, "measured_s": now, "before_s": then, "ratio": now / then}
        if key in bare[0] and key in bare[1]:
            now, then = (float(np.median(times[key])) for times in bare)
            row |= {"bare_s": now, "bare_before_s": then}
        found.append(row)
    return found


def score() -> dict[str, Any]:
    """Predict every fresh configuration with the frozen model."""
    model = load(FROZEN)
    before, fresh = Launches(machine=MACHINE), Launches(FRESH, None)
    used = {str(run["source"]) for run in model.runs}
    training = [o for o in before.observations if o.source in used]
    visited = {o.case.key for o in before.observations}
    rows = predict_rows(
        model, training, [o for o in fresh.observations if o.case.key not in visited]
    )
    sd = noise_floor(fresh.observations)["launch_sd"]
    routes = {}
    for route in sd:
        routes[route] = summary([row for row in rows if row["route"] == route], sd)
    beyond = [row for row in rows if row.get("extrapolated")]
    collected = json.loads(FRESH.read_text(encoding="utf-8"))
    return {
        "collected": collected["collected"], "versions": collected["versions"],
        "noise_floor": noise_floor(fresh.observations), "summary": summary(rows, sd),
        "quiet": summary(quiet(rows), sd), "routes": routes, "beyond": summary(beyond, sd),
        "ranking": ranking(rows),
        "known_before": known_before(
            fresh.observations, before.observations, (fresh.bare, before.bare)
        ),
        "rows": rows,
    }  # fmt: skip


def main() -> None:
    """Score, write, and print the summaries."""
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    from predict import commit_of

    result = {"frozen": {"model": FROZEN.name, "commit": commit_of(FROZEN)}, **score()}
    text = json.dumps(result, indent=1, allow_nan=False)
    (RESULTS / "predict_fresh.json").write_text(text + "\n", encoding="utf-8")
    for row in result["rows"]:
        said = row.get("error")
        shown = "refused" if said is None else f"{100 * said:+6.1f} %"
        spread = row["launch_sd"] if row["launch_sd"] is not None else math.nan
        print(f"{shown:>9}  launches differ by {100 * spread:5.1f} %  {row['case']}")
    for row in result["known_before"]:
        print(f"{100 * (row['ratio'] - 1):+6.1f} % against the calibration's host: {row['case']}")


if __name__ == "__main__":
    main()
