"""What the choice of runs does to predictions: leave one out, other designs; a foreign program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.common import folders
from benchmarks.common.results import read as read_json
from benchmarks.predict.launches import DESIGN, Launches
from benchmarks.predict.score import predict_rows, quiet, summary
from perfmodel.base.errors import ModelError
from perfmodel.programs.program import Options
from perfmodel.readers import read
from perfmodel.studies.models.calibrate import calibrate, grouped
from perfmodel.studies.models.predict import predict
from perfmodel.studies.models.terms import Observation
from perfmodel.studies.own import OWN_MODEL
from perfmodel.timing.run import time_run
from perfmodel.workloads import load

REPORTS = folders.PROFILES / "ddp"
WORKLOAD = folders.ROOT / "perfmodel" / "workloads" / "examples" / "pytorch_mlp.toml"
USED = ((256, 3000), (512, 12000), (1024, 24000), (4096, 6000), (4096, 24000))
"""H and B of the calibration's reports; the other five are predicted."""

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


def other_designs(launches: Launches, sd: dict[str, float]) -> dict[str, Any]:
    """Draw 20 designs like ours at random: how much of the result is the choice of its runs?

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
    for _ in range(20):
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
        "designs": len(found), "mean": float(np.mean(means)), "best_rival": float(rival),
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


# --- a foreign workload


def _of_ddp() -> list[Observation]:
    """Observe reports of a PyTorch DDP program; kernels belong to the range that launches them."""
    workload = load(WORKLOAD)
    found = []
    for row in read_json(REPORTS / "index.json"):
        trace = read(REPORTS / row["file"])
        run = time_run([trace], workload.batch_range, label=row["file"], by_time=True)
        found.append(OWN_MODEL.observe(run, Options(workload=workload)))
    return found


def foreign() -> dict[str, Any]:
    """Calibrate on `USED`, predict the rest; and once more with each size left out."""
    pool = _of_ddp()
    training = [o for o in pool if _size(o) in USED]
    unseen = [o for o in pool if _size(o) not in USED]
    rows = _rows(training, unseen)
    left_out = [row for o in pool for row in _rows([x for x in pool if x is not o], [o])]
    return {
        "workload": str(WORKLOAD.relative_to(folders.ROOT)), "used": [list(size) for size in USED],
        "rows": rows, "mean": _mean(rows), "leave_one_out": left_out,
        "leave_one_out_mean": _mean(left_out),
    }  # fmt: skip


def _size(o: Observation) -> tuple[int, int]:
    return o.case.sizes["H"], o.case.sizes["B"]


def _mean(rows: list[dict[str, Any]]) -> float | None:
    errors = [abs(r["error"]) for r in rows if r["error"] is not None]
    return float(np.mean(errors)) if errors else None


def _rows(training: list[Observation], unseen: list[Observation]) -> list[dict[str, Any]]:
    model = calibrate(training)
    rows = []
    for o in unseen:
        h, b = _size(o)
        row: dict[str, Any] = {"H": h, "B": b, "measured_s": o.batch_s}
        try:
            said = predict(model, o.case)
        except ModelError as error:
            rows.append(row | {"predicted_s": None, "error": None, "refused": str(error)})
            continue
        rows.append(
            row | {"predicted_s": said.batch_s, "low_s": said.low_s, "high_s": said.high_s,
                   "error": said.batch_s / o.batch_s - 1}
        )  # fmt: skip
    return rows
