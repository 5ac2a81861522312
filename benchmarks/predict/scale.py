"""Predicts batches on 4 and 8 GPUs from launches on one and two, and scores what was said.

    python -m benchmarks.predict.scale --freeze     # before: results/predict_scale_model.json, .json
    python -m profiles.collect_launches profiles/scale --plan scale --ranks 8 --machine h200x8
    python -m benchmarks.predict.scale              # after: scores results/predict_scale.json

The predictions are frozen by a commit before anything is measured on more than two GPUs.
"""

from __future__ import annotations

import json
from typing import Any

from benchmarks.common import folders, results
from benchmarks.predict.launches import Launches, commit_of
from benchmarks.predict.score import predict_rows, ranking, summary
from perfmodel.base.errors import ModelError
from perfmodel.models.model import load, save
from perfmodel.models.predict import predict
from perfmodel.programs.mlp.case import mlp_case
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
    save(model, MODEL)
    rows = []
    for ranks in sorted(set(SCALE) - {MOST_RANKS}):
        for each in configurations(ranks, SCALE):
            sizes = {"D": 784, "H": each["hidden_size"], "C": 10, "B": each["batch_size"],
                     "p": ranks, "b": 4}  # fmt: skip
            case = mlp_case(sizes, {
                k: "yes" if v is True else v for k, v in each.items()
                if k not in ("name", "hidden_size", "batch_size")
            })  # fmt: skip
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
    rows = predict_rows(load(MODEL), training, more)
    said = {p["case"]: p["predicted_s"] for p in found["predictions"]}
    for row in rows:
        assert row["predicted_s"] == said[row["case"]], row["case"]  # nothing was fitted again
    sd = {"replayed": 0.007, "blocking": 0.13, "queued": 0.17}
    shares = {
        f"p={p}": summary([r for r in rows if r["sizes"]["p"] == p], sd)
        for p in sorted({r["sizes"]["p"] for r in rows})
    }
    routes = {
        route: summary([r for r in rows if r["route"] == route], sd)
        for route in sorted({r["route"] for r in rows})
    }
    results.write(OUT, found | {
        "commit": commit_of(OUT), "summary": summary(rows, sd), "by_ranks": shares,
        "by_route": routes, "ranking": ranking(rows), "rows": rows,
    })  # fmt: skip
    print(json.dumps({"by_ranks": shares, "by_route": routes}, indent=1))


def main() -> None:
    parser = results.parser(__doc__, "docs/predict.md", OUT)
    parser.add_argument("--freeze", action="store_true")
    if parser.parse_args().freeze:
        freeze()
    else:
        score()


if __name__ == "__main__":
    main()
