"""Validates the calibrated model: freezes it on a quarter of the campaign, predicts the rest.

    python -m benchmarks.predict --freeze     # fit the design's runs, write the frozen model
    python -m benchmarks.predict              # predict every other run, leave-one-out studies
    python -m benchmarks.predict --document   # the tables of docs/predict.md

The campaign is profiles/launches: 114 configurations in 3 to 5 recorded launches each, and bare
ones beside them. What the frozen model says of two older collections, made on other machines and
with ranks that moved from core to core (profiles/campaign, profiles/ladder), is reported apart.
Commit the frozen model before predicting, and name its commit (`launches.FROZEN_BY`).
"""

from __future__ import annotations

import json
from typing import Any

from benchmarks.common import folders, results
from benchmarks.predict.launches import FROZEN, FROZEN_BY, Launches, reports
from benchmarks.predict.score import (
    noise_floor,
    overhead,
    predict_rows,
    quiet,
    ranking,
    summary,
    without_recording,
)
from benchmarks.predict.studies import foreign, other_designs, studies
from perfmodel.studies.models.model import load, save

TARGETS = {
    "mean": 0.025, "mean_high": 0.03, "p90": 0.05, "max": 0.08, "phase": 0.05, "beyond": 0.05,
    "ranking": 0.95, "coverage": (0.85, 0.95),
}  # fmt: skip


def main() -> None:
    parser = results.parser(__doc__, "docs/predict.md", folders.RESULTS / "predict.json")
    parser.add_argument("--freeze", action="store_true")
    args = parser.parse_args()
    if args.document:
        from benchmarks.predict import report

        report.write(results.read(args.out))
        return
    launches = Launches()
    designed = launches.designed()
    if args.freeze:
        save(launches.calibrated(designed), FROZEN)
        print(f"frozen on {len(designed)} launches: {FROZEN}")
        return
    model = load(FROZEN)
    used = {str(run["source"]) for run in model.runs}
    training = [o for o in launches.observations if o.source in used]
    seen = {o.case.key for o in training}
    rows = predict_rows(
        model, training, [o for o in launches.observations if o.case.key not in seen],
        bare=launches.bare,
    )  # fmt: skip
    floor = noise_floor(launches.observations)
    sd = floor["launch_sd"]
    result = {
        "frozen": {
            "model": FROZEN.name, "commit": FROZEN_BY, "runs": sorted(used),
            "configurations": len(seen), "of": len({o.case.key for o in launches.observations}),
        },
        "targets": TARGETS, "noise_floor": floor, "overhead": overhead(launches),
        "recording_s": model.recording_s, "without_recording": without_recording(rows),
        "summary": summary(rows, sd), "quiet": summary(quiet(rows), sd),
        "ranking": ranking(rows), "other_designs": other_designs(launches, sd),
        "rows": rows, "older": older(model, training, sd), "foreign": foreign(),
        "studies": studies(launches, sd),
    }  # fmt: skip
    results.write(args.out, result)
    shown = ("noise_floor", "summary", "quiet", "ranking", "overhead", "without_recording")
    print(json.dumps({k: result[k] for k in shown}, indent=1))


def older(model: Any, training: list[Any], sd: dict[str, float]) -> dict[str, Any]:
    """What the frozen model says of collections of another day and other machines."""
    found = {}
    for name in ("campaign", "ladder"):
        observed = reports(folders.PROFILES / name / "index.json")
        rows = predict_rows(model, training, observed)
        found[name] = {"summary": summary(rows, sd), "rows": rows}
    return found


if __name__ == "__main__":
    main()
