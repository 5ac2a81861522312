"""What each group of microbenchmarks does to predictions: with it alone, and with all but it.

    python -m benchmarks.predict.ablation              # writes predict_ablation.json
    python -m benchmarks.predict.ablation --document   # the lines of docs/predict.md

Twice: calibrated on the design, predicting what it does not have; and calibrated on its runs with
one and two ranks only, predicting four.
"""

from __future__ import annotations

from copy import copy
from typing import Any

import numpy as np

from benchmarks.common import folders, results
from benchmarks.common.pages import percent, put
from benchmarks.predict.launches import Launches
from benchmarks.predict.report import PAGE
from benchmarks.predict.score import predict_rows
from perfmodel.machines.measure.measurement import load
from perfmodel.models.terms import Observation
from perfmodel.programs.mlp import parts

RESULT = folders.RESULTS / "predict_ablation.json"
SCRIPT = "benchmarks.predict.ablation --document"
PRODUCTS = "products"
GROUPS = (PRODUCTS, *parts.GROUPS)
PHASES = {
    "all-reduce": "NCCL", "MPI_Allreduce": "MPI", "cudaMemcpyDeviceToHost": "copy out",
    "cudaMemcpyHostToDevice": "copy back", "copying images host -> device": "images",
}  # fmt: skip


def variants() -> dict[str, tuple[str, ...]]:
    """Which groups are used, by name."""
    found: dict[str, tuple[str, ...]] = {"none": ()}
    found |= {group: (group,) for group in GROUPS}
    found |= {f"all but {group}": tuple(g for g in GROUPS if g != group) for group in GROUPS}
    return found | {"all": GROUPS}


def errors(
    launches: Launches, groups: tuple[str, ...], training: list[Observation],
    unseen: list[Observation],
) -> dict[str, Any]:  # fmt: skip
    """Mean absolute errors by route and of the phases that microbenchmarks speak of."""
    chosen = copy(launches)
    chosen.alone = launches.alone if PRODUCTS in groups else None
    chosen.micro = parts.microbenchmarks(load(folders.MACHINE), folders.MACHINE.name, groups)
    rows = predict_rows(chosen.calibrated(training, resamples=0, left_out=0), training, unseen)
    known = [row for row in rows if row["predicted_s"] is not None]
    routes: dict[str, list[float]] = {}
    phases: dict[str, list[float]] = {}
    for row in known:
        routes.setdefault(row["route"], []).append(abs(row["error"]))
        for name, phase in row["phases"].items():
            if name in PHASES:
                error = abs(phase["predicted_s"] / phase["measured_s"] - 1)
                phases.setdefault(PHASES[name], []).append(error)
    return {
        "told": len(known), "refused": len(rows) - len(known),
        "mean": float(np.mean([abs(row["error"]) for row in known])),
        "routes": {name: float(np.mean(found)) for name, found in routes.items()},
        "phases": {name: float(np.mean(found)) for name, found in phases.items()},
        "cases": {row["case"]: row["error"] for row in known},
    }  # fmt: skip


def common(found: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Mean errors over what every variant tells, so that they can be compared."""
    shared = set.intersection(*({*each["cases"]} for each in found.values()))
    return {
        name: float(np.mean([abs(each["cases"][case]) for case in shared]))
        for name, each in found.items()
    }


def main() -> None:
    if results.parser(__doc__, "docs/predict.md", RESULT).parse_args().document:
        put(PAGE, SCRIPT, made(results.read(RESULT)))
        return
    launches = Launches()
    designed = launches.designed()
    used = {o.case.key for o in designed}
    unseen = [o for o in launches.observations if o.case.key not in used]
    few = [o for o in designed if o.case.sizes["p"] <= 2]
    four = [o for o in launches.observations if o.case.sizes["p"] == 4]
    result: dict[str, Any] = {}
    for study, training, predicted in (
        ("unseen", designed, unseen), ("four ranks from one and two", few, four),
    ):  # fmt: skip
        found = {
            name: errors(launches, groups, training, predicted)
            for name, groups in variants().items()
        }
        for name, mean in common(found).items():
            found[name]["mean_of_common"] = mean
        result[study] = found
    results.write(RESULT, result)


def made(result: dict[str, Any]) -> str:
    """Return a line for every study: mean errors by what is used."""
    lines = []
    for study, found in result.items():
        errors = ", ".join(
            f"{name} {percent(each['mean'])}" for name, each in found.items()
            if not name.startswith("all but")
        )  # fmt: skip
        lines.append(f"Mean error by group of microbenchmarks, {study}: {errors}.")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
