"""Scores the frozen model on configurations that were collected after it: fresh_campaign.md.

    python -m benchmarks.predict.fresh               # writes results/predict_fresh.json
    python -m benchmarks.predict.fresh --document    # the tables of docs/predict.md

What was visited before is not scored: it tells how much faster or slower these hosts are.
"""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np

from benchmarks.common import folders, results
from benchmarks.common.pages import percent, put, table
from benchmarks.predict.launches import FROZEN, MACHINE, Launches, commit_of, grouped
from benchmarks.predict.report import PAGE, every_row
from benchmarks.predict.score import QUIET, noise_floor, predict_rows, quiet, ranking, summary
from perfmodel.models.model import load
from perfmodel.models.terms import Observation

FRESH = folders.PROFILES / "fresh" / "launches.json"
OUT = folders.RESULTS / "predict_fresh.json"
SCRIPT = "benchmarks.predict.fresh --document"


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
    for gemm in ("cublas", "fused"):
        mine = [r for r in rows if (r["route"], r["settings"]["gemm"]) == ("replayed", gemm)]
        routes[f"replayed, {gemm}"] = summary(mine, sd)
    beyond = [row for row in rows if row.get("extrapolated")]
    collected = results.read(FRESH)
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


def made(result: dict[str, Any]) -> str:
    """Return the fresh campaign's part of the page."""
    s, floor = result["summary"], result["noise_floor"]["launch_sd"]
    host = {row["case"]: row["ratio"] - 1 for row in result["known_before"]}
    known = ", ".join(f"{case} {100 * ratio:+.1f} %" for case, ratio in host.items())
    said = (
        f"Frozen by commit {result['frozen']['commit']}, {s['configurations']} configurations, "
        f"{s['refused']} refused. These hosts are not the calibration's: what both collections "
        f"have took longer by {known} (the median launch). Nothing was corrected for that."
    )
    lines = []
    for name, each in [*result["routes"].items(), ("quiet", result["quiet"]), ("all", s)]:
        best = min(each["rivals"].items(), key=lambda item: item[1]["mean"])
        shown = f"launches agree to {100 * QUIET:.0f} %" if name == "quiet" else name
        differ = floor.get(name.partition(",")[0])
        lines.append(
            [shown, str(each["configurations"]), percent(each["mean"]),
             percent(each["bias"], signed=True), percent(each["p90"]), percent(each["max"]),
             f"{each['times_floor']:.1f}", percent(each["coverage"]), percent(differ),
             f"{best[0]} {percent(best[1]['mean'])}"]
        )  # fmt: skip
    head = ["fresh, by how a batch runs", "configurations", "mean", "bias", "90th percentile",
            "max", "times the floor", "inside 90 %", "launches differ by",
            "best rival"]  # fmt: skip
    ranks = result["ranking"]
    order = (
        f"Of {ranks['pairs']} pairs of settings at one size the faster one is named in "
        f"{ranks['right']}."
    )
    every = every_row(
        result["rows"], ["error", "launches differ by", "beyond the grid in"],
        lambda row: [percent(row["error"], signed=True), percent(row["launch_sd"]),
                     ", ".join(row["extrapolated"])],
    )  # fmt: skip
    blocks = (said, table(head, lines), order, every)
    return "\n\n".join(block.strip() for block in blocks) + "\n"


def main() -> None:
    if sys.argv[1:] == ["--document"]:
        put(PAGE, SCRIPT, made(results.read(OUT)))
        return

    result = {"frozen": {"model": FROZEN.name, "commit": commit_of(FROZEN)}, **score()}
    results.write(OUT, result)
    for row in result["rows"]:
        said = row.get("error")
        shown = "refused" if said is None else f"{100 * said:+6.1f} %"
        spread = row["launch_sd"] if row["launch_sd"] is not None else math.nan
        print(f"{shown:>9}  launches differ by {100 * spread:5.1f} %  {row['case']}")
    for row in result["known_before"]:
        print(f"{100 * (row['ratio'] - 1):+6.1f} % against the calibration's host: {row['case']}")


if __name__ == "__main__":
    main()
