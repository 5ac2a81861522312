"""What the choice of runs does to predictions: leave one out, one step beyond, other designs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from predict_launches import DESIGN, Launches, grouped
from predict_score import predict_rows, summary

from perfmodel.predict import Observation, calibrate


def study(
    launches: Launches, pool: Sequence[Observation], held: Callable[[Observation], bool], sd: float
) -> dict[str, Any]:
    """Calibrate without the held-out runs, predict them."""
    training = [o for o in pool if not held(o)]
    model = calibrate(training, untraced=launches.untraced)
    rows = predict_rows(model, training, [o for o in pool if held(o)], launches)
    return {"summary": summary(rows, sd), "rows": rows}


def studies(launches: Launches, sd: float) -> dict[str, Any]:
    """Leave-one-out over H, B, p and transport, and one step beyond the grid."""
    pool = launches.of("campaign")
    found: dict[str, Any] = {}
    for symbol in ("H", "B", "p"):
        parts = {
            str(value): study(launches, pool, _of_size(symbol, value), sd)
            for value in sorted({o.case.sizes[symbol] for o in pool})
        }
        found[f"leave one {symbol} out"] = parts
    everything = launches.observations
    ways = sorted({_way(o) for o in everything})
    found["leave one transport out"] = {
        way: study(launches, everything, _of_way(way), sd) for way in ways
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
        parts["all"] = {"summary": summary(rows, sd)}
    return found


def other_designs(launches: Launches, sd: float, count: int = 40) -> dict[str, Any]:
    """Draw designs like ours at random: how much of the result is the choice of its 11 runs?

    Each has as many runs of every stratum (transport, ranks) as `DESIGN`, without float64 and
    synchronized runs, and predicts every other configuration.
    """
    wanted: dict[tuple[str, int], int] = {}
    for transport, p, _, _ in DESIGN:
        wanted[transport, p] = wanted.get((transport, p), 0) + 1
    pool: dict[tuple[str, int], list[list[Observation]]] = {key: [] for key in wanted}
    for group in grouped(launches.of("campaign")):
        case = group[0].case
        stratum = case.settings["transport"], case.sizes["p"]
        if stratum in pool and case.settings["sync"] == "no" and case.sizes["b"] == 4:
            pool[stratum].append(group)
    generator = np.random.default_rng(213)
    found = []
    for _ in range(count):
        training = [
            pool[key][i][0]
            for key, size in wanted.items()
            for i in generator.choice(len(pool[key]), size, replace=False)
        ]
        used = {o.case.key for o in training}
        model = calibrate(training, untraced=launches.untraced)
        unseen = [o for o in launches.observations if o.case.key not in used]
        s = summary(predict_rows(model, training, unseen, launches), sd)
        found.append({k: s[k] for k in ("refused", "mean", "p90", "max", "coverage", "rivals")})
    means, inside = ([f[k] for f in found] for k in ("mean", "coverage"))
    rival = min(np.mean([f["rivals"][name]["mean"] for f in found]) for name in found[0]["rivals"])
    return {
        "designs": count, "mean": float(np.mean(means)), "best_rival": float(rival),
        "quantiles": {str(q): float(np.quantile(means, q)) for q in (0.05, 0.5, 0.95)},
        "coverage": float(np.mean(inside)), "p90": float(np.mean([f["p90"] for f in found])),
        "max": float(np.mean([f["max"] for f in found])), "drawn": found,
    }  # fmt: skip


def _of_size(symbol: str, value: int) -> Callable[[Observation], bool]:
    return lambda o: o.case.sizes[symbol] == value


def _of_way(way: str) -> Callable[[Observation], bool]:
    return lambda o: _way(o) == way


def _way(o: Observation) -> str:
    s = o.case.settings
    words = [s["transport"], s["data_on"], s["gemm"], *(["graph"] if s["graph"] == "yes" else [])]
    return " ".join([*words, *(["model"] if s["parallel"] == "model" else [])])
