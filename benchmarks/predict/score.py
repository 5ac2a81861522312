"""How far predictions miss: rows per configuration, the noise below them, and their summary."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from benchmarks.common.pages import percent
from benchmarks.predict.launches import Launches
from benchmarks.predict.rivals import rivals
from perfmodel.base.errors import ModelError
from perfmodel.studies.models.calibrate import grouped, medians
from perfmodel.studies.models.hosts import SAME, Host
from perfmodel.studies.models.model import Model
from perfmodel.studies.models.predict import predict
from perfmodel.studies.models.terms import BETWEEN, Observation

QUIET = 0.03
"""Launches that differ by less (one standard deviation): the GPU limits the batch, not the host."""


LAUNCH_SPREAD = {"replayed": 0.007, "blocking": 0.13, "queued": 0.17}
"""Standard deviations of launches in profiles/launches, by how a batch runs."""


def median_error(count: int) -> float:
    """How far the median of so many launches is off on average, in standard deviations.

    Of a normal distribution, by simulation (0.2 %): 0.80, 0.56, 0.53, 0.44, 0.43 of one to five.
    The mean would be nearer: 0.80, 0.56, 0.46, 0.40, 0.36.
    """
    return float(np.mean(np.abs(medians(count))))


def predict_rows(
    model: Model, training: Sequence[Observation], unseen: Sequence[Observation],
    host: Host = SAME, bare: Mapping[object, Sequence[float]] | None = None,
) -> list[dict[str, Any]]:  # fmt: skip
    """One row per unseen configuration: predicted, measured, every rival that training fits.

    Both without Nsight Systems, too, where `bare` has times by case.
    """
    others = rivals(training) if training else {}
    rows = []
    for group in grouped(unseen):
        case = group[0].case
        launches = [{"report": o.source, "batch_s": o.batch_s} for o in group]
        median = float(np.median([m["batch_s"] for m in launches]))
        row: dict[str, Any] = {
            "case": case.label, "sizes": dict(case.sizes), "settings": dict(case.settings),
            "route": case.route, "measured": launches, "measured_s": median,
            "launch_sd": spread_of(group),
            "rivals_s": {name: rival(case) for name, rival in others.items()},
        }  # fmt: skip
        if bare is not None and case.key in bare:
            row["bare_s"] = float(np.median(bare[case.key]))
        try:
            said = predict(model, case, host)
        except ModelError as error:
            rows.append(row | {"predicted_s": None, "refused": str(error)})
            continue
        phases = {}
        for phase in said.phases:
            times = [o.phases[phase.name] for o in group if o.phases.get(phase.name)]
            if times and phase.name != BETWEEN:
                phases[phase.name] = {
                    "predicted_s": phase.seconds, "measured_s": float(np.median(times)),
                    "low_s": phase.low_s, "high_s": phase.high_s,
                }  # fmt: skip
        rows.append(
            row | {
                "predicted_s": said.batch_s, "low_s": said.low_s, "high_s": said.high_s,
                "error": said.batch_s / median - 1, "phases": phases,
                "extrapolated": list(said.extrapolated), "untraced_s": said.untraced_s,
            }
        )  # fmt: skip
    return rows


def spread_of(group: Sequence[Observation]) -> float | None:
    """Standard deviation of log times between launches of one configuration; None for one."""
    logs = np.log([o.batch_s for o in group])
    return float(logs.std(ddof=1)) if len(logs) > 1 else None


def noise_floor(observations: Sequence[Observation]) -> dict[str, Any]:
    """Standard deviation between launches of one configuration, pooled by how a batch runs."""
    groups = grouped(observations)
    return {
        "meaning": "relative standard deviation of a batch's median between launches, by route",
        "launch_sd": pooled(groups),
        "configurations": dict(Counter(g[0].case.route for g in groups if len(g) > 1)),
        "launches": len(observations),
    }


def pooled(groups: Sequence[Sequence[Observation]]) -> dict[str, float]:
    """Return the standard deviation of log times within groups, pooled by how a batch runs."""
    found: dict[str, list[tuple[float, int]]] = {}
    for group in groups:
        if (sd := spread_of(group)) is not None:
            found.setdefault(group[0].case.route, []).append((sd, len(group) - 1))
    return {
        name: math.sqrt(sum(n * sd**2 for sd, n in each) / sum(n for _, n in each))
        for name, each in found.items()
    }


def summary(rows: Sequence[dict[str, Any]], floor_sd: dict[str, float]) -> dict[str, Any]:
    """Errors over rows that were predicted, with what noise alone would leave."""
    known = [r for r in rows if r["predicted_s"] is not None]
    out: dict[str, Any] = {"configurations": len(rows), "refused": len(rows) - len(known)}
    if not known:
        return out
    errors = np.abs([r["error"] for r in known])
    generator = np.random.default_rng(213)
    means = errors[generator.integers(0, len(errors), (2000, len(errors)))].mean(axis=1)
    # a model that knew every true median would still miss the median of k launches
    floor = [floor_sd[r["route"]] * median_error(len(r["measured"])) for r in known]
    inside = [r["low_s"] <= m["batch_s"] <= r["high_s"] for r in known for m in r["measured"]]
    phases: dict[str, list[float]] = {}
    for r in known:
        for name, p in r["phases"].items():
            phases.setdefault(name, []).append(abs(p["predicted_s"] / p["measured_s"] - 1))
    return out | {
        "mean": float(errors.mean()), "mean_low": float(np.quantile(means, 0.025)),
        "mean_high": float(np.quantile(means, 0.975)), "median": float(np.median(errors)),
        "p90": float(np.quantile(errors, 0.9)), "max": float(errors.max()),
        "bias": float(np.mean([r["error"] for r in known])), "coverage": float(np.mean(inside)),
        "floor_mean": float(np.mean(floor)), "times_floor": float(errors.mean() / np.mean(floor)),
        "phases": {name: float(np.mean(found)) for name, found in phases.items()},
        "rivals": {name: _rival(known, name) for name in known[0]["rivals_s"]},
    }  # fmt: skip


def best_rival(found: dict[str, Any]) -> str:
    """Return the rival of a summary with the least mean error, and that."""
    rivals = found["rivals"]
    best = min(rivals, key=lambda name: rivals[name]["mean"])
    return f"{best} {percent(rivals[best]['mean'])}"


def quiet(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows whose launches agree: noise hides little of the model's own error there."""
    return [r for r in rows if r["launch_sd"] is not None and r["launch_sd"] < QUIET]


def _rival(rows: Sequence[dict[str, Any]], name: str) -> dict[str, float]:
    errors = [abs(r["rivals_s"][name] / r["measured_s"] - 1) for r in rows]
    return {"mean": float(np.mean(errors)), "max": float(max(errors))}


def ranking(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Pairs of settings at one size, both unseen: is the faster one predicted to be faster?

    `clear` counts the pairs whose medians differ by more than two standard deviations of launches.
    """
    found = []
    for a, b in settings_at_one_size(rows):
        right = (a["predicted_s"] < b["predicted_s"]) == (a["measured_s"] < b["measured_s"])
        noise = math.hypot(a["launch_sd"] or 0.0, b["launch_sd"] or 0.0)
        apart = abs(math.log(a["measured_s"] / b["measured_s"])) > 2 * noise
        found.append((right, apart))
    right, clear = sum(r for r, _ in found), [r for r, apart in found if apart]
    return {
        "pairs": len(found), "right": right, "share": right / len(found) if found else None,
        "clear_pairs": len(clear), "clear_right": sum(clear),
        "clear_share": sum(clear) / len(clear) if clear else None,
    }  # fmt: skip


def settings_at_one_size(rows: Sequence[dict[str, Any]]) -> list[tuple[Any, Any]]:
    """Return the pairs of predicted rows that differ in settings, not in sizes."""
    pairs = combinations([r for r in rows if r["predicted_s"] is not None], 2)
    return [(a, b) for a, b in pairs if a["sizes"] == b["sizes"] and a["settings"] != b["settings"]]


def without_recording(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Errors against batches without Nsight Systems, by how a batch runs.

    Of the prediction with what recording adds, and of the one without.
    """
    known = [r for r in rows if r["predicted_s"] is not None and "bare_s" in r]
    found = {}
    for route in dict.fromkeys(r["route"] for r in known):
        mine = [r for r in known if r["route"] == route]
        found[route] = {"configurations": len(mine)}
        for name, key in (("with", "predicted_s"), ("without", "untraced_s")):
            errors = np.array([r[key] / r["bare_s"] - 1 for r in mine])
            found[route][name] = {
                "mean": float(np.abs(errors).mean()), "bias": float(errors.mean()),
                "max": float(np.abs(errors).max()),
            }  # fmt: skip
    return found


def overhead(launches: Launches) -> dict[str, Any]:
    """What recording by Nsight Systems adds to a batch, by how a batch runs."""
    found: dict[str, list[tuple[float, float]]] = {}
    for group in grouped(launches.observations):
        bare = launches.bare.get(group[0].case.key)
        if bare:
            pair = float(np.median([o.batch_s for o in group])), float(np.median(bare))
            found.setdefault(group[0].case.route, []).append(pair)
    return {
        name: {
            "configurations": len(pairs),
            "added_s": float(np.median([traced - bare for traced, bare in pairs])),
            "share": float(np.median([traced / bare - 1 for traced, bare in pairs])),
            "share_q1_q3": [
                float(np.quantile([t / b - 1 for t, b in pairs], q)) for q in (0.25, 0.75)
            ],
        }
        for name, pairs in found.items()
    }
