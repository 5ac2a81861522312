"""How far predictions miss: rows per configuration, the noise below them, and their summary."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from predict_launches import Launches, grouped
from predict_rivals import rivals

from perfmodel.errors import ModelError
from perfmodel.predict import Model, Observation, predict
from perfmodel.predict.parts import BETWEEN, route


def predict_rows(
    model: Model, training: Sequence[Observation], unseen: Sequence[Observation], launches: Launches
) -> list[dict[str, Any]]:
    """One row per unseen configuration: predicted, measured, every rival."""
    others = rivals(training)
    rows = []
    for group in grouped(unseen):
        case = group[0].case
        measured = launches.measured(group, model)
        median = float(np.median([m["batch_s"] for m in measured]))
        row: dict[str, Any] = {
            "case": case.label, "sizes": dict(case.sizes), "settings": dict(case.settings),
            "measured": measured, "measured_s": median,
            "rivals_s": {name: rival(case) for name, rival in others.items()},
        }  # fmt: skip
        try:
            said = predict(model, case)
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
                "extrapolated": list(said.extrapolated),
            }
        )  # fmt: skip
    return rows


def noise_floor(launches: Launches, model: Model) -> dict[str, Any]:
    """Standard deviation of log times between launches of one configuration, pooled."""
    squares, degrees, pairs = 0.0, 0, 0
    for group in grouped([o for o in launches.observations if route(o.case) == "blocking"]):
        logs = np.log([m["batch_s"] for m in launches.measured(group, model)])
        if len(logs) > 1:
            squares += float(((logs - logs.mean()) ** 2).sum())
            degrees, pairs = degrees + len(logs) - 1, pairs + 1
    return {
        "launch_sd": math.sqrt(squares / degrees), "configurations": pairs, "degrees": degrees,
        "meaning": "relative standard deviation of a batch's median between launches",
    }  # fmt: skip


def summary(rows: Sequence[dict[str, Any]], floor_sd: float) -> dict[str, Any]:
    """Errors over rows that were predicted, with what noise alone would leave."""
    told = [r for r in rows if r["predicted_s"] is not None]
    out: dict[str, Any] = {"configurations": len(rows), "refused": len(rows) - len(told)}
    if not told:
        return out
    errors = np.abs([r["error"] for r in told])
    generator = np.random.default_rng(213)
    means = errors[generator.integers(0, len(errors), (2000, len(errors)))].mean(axis=1)
    # a perfect model still misses the median of k launches by sd sqrt(2/pi) / sqrt(k)
    floor = [floor_sd * math.sqrt(2 / math.pi / len(r["measured"])) for r in told]
    inside = [r["low_s"] <= m["batch_s"] <= r["high_s"] for r in told for m in r["measured"]]
    phases: dict[str, list[float]] = {}
    for r in told:
        for name, p in r["phases"].items():
            phases.setdefault(name, []).append(abs(p["predicted_s"] / p["measured_s"] - 1))
    return out | {
        "mean": float(errors.mean()), "mean_low": float(np.quantile(means, 0.025)),
        "mean_high": float(np.quantile(means, 0.975)), "median": float(np.median(errors)),
        "p90": float(np.quantile(errors, 0.9)), "max": float(errors.max()),
        "bias": float(np.mean([r["error"] for r in told])), "coverage": float(np.mean(inside)),
        "floor_mean": float(np.mean(floor)), "times_floor": float(errors.mean() / np.mean(floor)),
        "phases": {name: float(np.mean(found)) for name, found in phases.items()},
        "rivals": {name: _rival(told, name) for name in told[0]["rivals_s"]},
    }  # fmt: skip


def _rival(rows: Sequence[dict[str, Any]], name: str) -> dict[str, float]:
    errors = [abs(r["rivals_s"][name] / r["measured_s"] - 1) for r in rows]
    return {"mean": float(np.mean(errors)), "max": float(max(errors))}


def ranking(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Pairs of settings at one size: is the faster one predicted to be faster?"""
    told = [r for r in rows if r["predicted_s"] is not None]
    right = pairs = 0
    for i, a in enumerate(told):
        for b in told[i + 1 :]:
            if a["sizes"] == b["sizes"] and a["settings"] != b["settings"]:
                pairs += 1
                right += (a["predicted_s"] < b["predicted_s"]) == (
                    a["measured_s"] < b["measured_s"]
                )
    return {"pairs": pairs, "right": right, "share": right / pairs if pairs else None}
