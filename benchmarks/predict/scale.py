"""Predicts batches on 4 and 8 GPUs from launches on one and two, and scores what was said.

    python -m benchmarks.predict.scale --freeze     # before: results/predict_scale*.json
    python -m profiles.collect_launches profiles/scale --plan scale --ranks 8 --machine h200x8
    python -m benchmarks.predict.scale              # after: scores results/predict_scale.json
    python -m benchmarks.predict.scale --document   # the tables of docs/predict.md

The predictions are frozen by a commit before anything is measured on more than two GPUs.
"""

from __future__ import annotations

import json
import math
from typing import Any

from benchmarks.common import folders, results
from benchmarks.common.pages import percent, put, table
from benchmarks.predict.launches import Launches, case_of, commit_of
from benchmarks.predict.report import PAGE
from benchmarks.predict.score import LAUNCH_SPREAD, predict_rows, ranking, summary
from perfmodel.base.errors import ModelError
from perfmodel.studies.models.model import as_text, load
from perfmodel.studies.models.predict import predict
from profiles.plans import SCALE, configurations

MODEL = folders.RESULTS / "predict_scale_model.json"
OUT = folders.RESULTS / "predict_scale.json"
MEASURED = folders.PROFILES / "scale" / "launches.json"
MOST_RANKS = 2
"""Of the launches that the model is fitted to."""


def freeze() -> None:
    """Fit the model to launches on one and two GPUs, and write what it says of 4 and 8."""
    launches = Launches()
    training = [o for o in launches.observations if o.case.sizes["p"] <= MOST_RANKS]
    model = launches.calibrated(training)
    folders.put(MODEL, as_text(model))
    rows = []
    for ranks in sorted(set(SCALE) - {MOST_RANKS}):
        for each in configurations(ranks, SCALE):
            case = case_of(each, ranks)
            row: dict[str, Any] = {"name": each["name"], "case": case.label}
            try:
                said = predict(model, case)
            except ModelError as error:
                rows.append(row | {"predicted_s": None, "refused": str(error)})
                continue
            rows.append(row | {
                "predicted_s": said.batch_s, "low_s": said.low_s, "high_s": said.high_s,
                "phases": {p.name: p.seconds for p in said.phases},
            })  # fmt: skip
    results.write(OUT, {"trained_on": len(training), "predictions": rows})


def score() -> None:
    """Hold the frozen predictions against what was measured; the model is read as committed."""
    launches, measured = Launches(), Launches(MEASURED, None)
    training = [o for o in launches.observations if o.case.sizes["p"] <= MOST_RANKS]
    found = results.read(OUT)
    more = [o for o in measured.observations if o.case.sizes["p"] > MOST_RANKS]
    rows = predict_rows(load(folders.plain(MODEL)), training, more)
    said = {p["case"]: p["predicted_s"] for p in found["predictions"]}
    for row in rows:
        assert math.isclose(row["predicted_s"], said[row["case"]], rel_tol=1e-9), row["case"]
    shares = {
        f"p={p}": summary([r for r in rows if r["sizes"]["p"] == p], LAUNCH_SPREAD)
        for p in sorted({r["sizes"]["p"] for r in rows})
    }
    routes = {
        route: summary([r for r in rows if r["route"] == route], LAUNCH_SPREAD)
        for route in sorted({r["route"] for r in rows})
    }
    results.write(OUT, found | {
        "commit": commit_of(OUT), "summary": summary(rows, LAUNCH_SPREAD), "by_ranks": shares,
        "by_route": routes, "ranking": ranking(rows), "rows": rows,
    })  # fmt: skip
    print(json.dumps({"by_ranks": shares, "by_route": routes}, indent=1))


def made(result: dict[str, Any]) -> str:
    """Return the page's part on 4 and 8 GPUs."""
    rows = result["rows"]
    said = (
        f"Fitted to {result['trained_on']} launches on one and two H200s, predictions frozen by "
        f"commit {result['commit']}, then three launches of each on 8 H200s of another host. The "
        f"microbenchmarks of the model were taken on 4 H200s. Of {result['ranking']['pairs']} "
        f"pairs of settings at one size the faster one is named in {result['ranking']['right']}."
    )
    lines = []
    for route in result["by_route"]:
        for ranks in sorted({r["sizes"]["p"] for r in rows}):
            mine = [r for r in rows if r["route"] == route and r["sizes"]["p"] == ranks]
            s = summary(mine, LAUNCH_SPREAD)
            lines.append(
                [route, str(ranks), str(len(mine)), percent(s["mean"]),
                 percent(s["bias"], signed=True), percent(s["max"]), percent(s["coverage"])]
            )  # fmt: skip
    head = ["how a batch runs", "GPUs", "configurations", "mean error", "bias", "max",
            "launches inside 90 %"]  # fmt: skip
    return "\n\n".join(block.strip() for block in (said, table(head, lines))) + "\n"


def main() -> None:
    parser = results.parser(__doc__, "docs/predict.md", OUT)
    parser.add_argument("--freeze", action="store_true")
    args = parser.parse_args()
    if args.document:
        put(PAGE, "benchmarks.predict.scale --document", made(results.read(OUT)))
    elif args.freeze:
        freeze()
    else:
        score()


if __name__ == "__main__":
    main()
