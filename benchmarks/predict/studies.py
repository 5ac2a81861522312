"""What the choice of runs does to predictions: leave one out, one step beyond, other designs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.predict.launches import DESIGN, Launches, grouped
from benchmarks.predict.score import predict_rows, quiet, summary
from perfmodel.models.part import Observation

EFFORT = {"resamples": 15, "left_out": 20}
"""Of a study's calibration, of which there are many: its interval is less certain."""


def study(
    launches: Launches, pool: Sequence[Observation], held: Callable[[Observation], bool],
    sd: dict[str, float],
) -> dict[str, Any]:  # fmt: skip
    """Calibrate without the held-out runs, predict them."""
    training = [o for o in pool if not held(o)]
    model = launches.calibrated(training, **EFFORT)
    rows = predict_rows(model, training, [o for o in pool if held(o)])
    return {"summary": summary(rows, sd), "quiet": summary(quiet(rows), sd), "rows": rows}


def studies(launches: Launches, sd: dict[str, float]) -> dict[str, Any]:
    """Leave-one-out over H, B, p and transport, and one step beyond the grid."""
    pool = launches.observations
    found: dict[str, Any] = {}
    for symbol in ("H", "B", "p"):
        found[f"leave one {symbol} out"] = {
            str(value): study(launches, pool, _of_size(symbol, value), sd)
            for value in sorted({o.case.sizes[symbol] for o in pool})
        }
    ways = sorted({_way(o) for o in pool})
    found["leave one transport out"] = {
        way: study(launches, pool, _of_way(way), sd) for way in ways
    }
    found["one step beyond"] = {
        f"{s} = {last}": study(launches, pool, _of_size(s, last), sd)
        for s, last in (("H", 4096), ("B", 12000), ("p", 4))
    }
    for parts in found.values():
        rows = [row for part in parts.values() for row in part["rows"]]
        for part in parts.values():
            part["rows"] = [
                {k: r.get(k) for k in ("case", "predicted_s", "measured_s", "low_s", "high_s",
                                       "error", "refused", "rivals_s")} for r in part["rows"]
            ]  # fmt: skip
        parts["all"] = {"summary": summary(rows, sd), "quiet": summary(quiet(rows), sd)}
    return found


def other_designs(launches: Launches, sd: dict[str, float], count: int = 20) -> dict[str, Any]:
    """Draw designs like ours at random: how much of the result is the choice of its runs?

    Each has as many configurations of every stratum (settings and ranks) as `DESIGN`.
    """
    wanted: dict[str, int] = {}
    for name in DESIGN:
        stratum = _stratum(name)
        wanted[stratum] = wanted.get(stratum, 0) + 1
    pool: dict[str, list[list[Observation]]] = {}
    for group in grouped(launches.observations):
        pool.setdefault(_stratum(group[0].source.split("#")[0]), []).append(group)
    generator = np.random.default_rng(213)
    found = []
    for _ in range(count):
        training = [
            o
            for stratum, size in wanted.items()
            for i in generator.choice(len(pool[stratum]), size, replace=False)
            for o in pool[stratum][i]
        ]
        used = {o.case.key for o in training}
        model = launches.calibrated(training, **EFFORT)
        unseen = [o for o in launches.observations if o.case.key not in used]
        s = summary(predict_rows(model, training, unseen), sd)
        found.append({k: s[k] for k in ("refused", "mean", "p90", "max", "coverage", "rivals")})
    means, inside = ([f[k] for f in found] for k in ("mean", "coverage"))
    rival = min(np.mean([f["rivals"][name]["mean"] for f in found]) for name in found[0]["rivals"])
    return {
        "designs": count, "mean": float(np.mean(means)), "best_rival": float(rival),
        "quantiles": {str(q): float(np.quantile(means, q)) for q in (0.05, 0.5, 0.95)},
        "coverage": float(np.mean(inside)), "p90": float(np.mean([f["p90"] for f in found])),
        "max": float(np.mean([f["max"] for f in found])), "drawn": found,
    }  # fmt: skip


def _stratum(name: str) -> str:
    """Ranks and settings of a configuration's name: without H and B."""
    return name.rsplit("_H", 1)[0]


def _of_size(symbol: str, value: int) -> Callable[[Observation], bool]:
    return lambda o: o.case.sizes[symbol] == value


def _of_way(way: str) -> Callable[[Observation], bool]:
    return lambda o: _way(o) == way


def _way(o: Observation) -> str:
    s = o.case.settings
    words = [s["transport"], s["data_on"], s["gemm"], *(["graph"] if s["graph"] == "yes" else [])]
    return " ".join([*words, *(["model"] if s["parallel"] == "model" else [])])
