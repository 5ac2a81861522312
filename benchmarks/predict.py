"""Validates the calibrated model: freezes it on a quarter of the campaign, predicts the rest.

    python benchmarks/predict.py --freeze     # fit the design's runs, write the frozen model
    python benchmarks/predict.py              # predict every other run, leave-one-out studies
    python benchmarks/predict.py --document   # the table of docs/predict.md

Every profile of every index is used (profiles/campaign, profiles/ladder, and others named with
--index); launches of one configuration are grouped. An index may name the median batch without
Nsight Systems: that is a launch, too, after the frozen model's time of recording is added. Commit
the frozen model before collecting what it is to predict: results name its commit.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from predict_rivals import rivals

from perfmodel.errors import ModelError
from perfmodel.measure import measure
from perfmodel.predict import Model, Observation, calibrate, load, observe, predict, save
from perfmodel.predict.parts import BETWEEN, route
from perfmodel.readers import read

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
FROZEN = RESULTS / "predict_model.json"
DESIGN = (
    *(("host", 2, h, b) for h, b in ((128, 1500), (256, 12000), (512, 3000), (1024, 6000),
                                    (2048, 12000), (4096, 3000))),
    ("host", 1, 512, 12000), ("host", 1, 2048, 3000), ("host", 4, 2048, 3000),
    ("pinned", 2, 512, 3000), ("pinned", 2, 2048, 12000),
)  # fmt: skip
"""(transport, p, H, B): 11 of the campaign's 44 profiles, float32, on 2 GPUs unless p is not 2."""
TARGETS = {
    "mean": 0.025, "mean_high": 0.03, "p90": 0.05, "max": 0.08, "phase": 0.05, "beyond": 0.05,
    "ranking": 0.95, "coverage": (0.85, 0.95),
}  # fmt: skip


class Launches:
    """All launches of all indices: observations, times without Nsight Systems, and their folder."""

    def __init__(self, indices: Sequence[Path]) -> None:
        self.observations: list[Observation] = []
        self.folder: dict[str, str] = {}
        self.untraced: dict[str, float] = {}
        self.machine: dict[str, str] = {}
        for index in indices:
            for row in json.loads(index.read_text(encoding="utf-8")):
                run = measure(
                    [read(index.parent / row["file"])], "batch iteration", label=row["file"]
                )
                try:
                    self.observations.append(observe(run))
                except ModelError as error:
                    print(f"{row['file']}: left out: {error}", file=sys.stderr)
                    continue
                self.folder[row["file"]] = index.parent.name
                self.machine[row["file"]] = row["machine"]
                if row.get("batch_median_s_without_nsys"):
                    self.untraced[row["file"]] = row["batch_median_s_without_nsys"]

    def of(self, folder: str) -> list[Observation]:
        """The observations of one folder."""
        return [o for o in self.observations if self.folder[o.source] == folder]

    def designed(self) -> list[Observation]:
        """The runs that the model is frozen on: one launch of every case of the design."""
        found = []
        for transport, p, h, b in DESIGN:
            machine = "h200x2" if p == 2 else "h200x4"
            found += [
                o for o in self.of("campaign")
                if (o.case.settings["transport"], o.case.settings["sync"]) == (transport, "no")
                and (o.case.sizes["p"], o.case.sizes["H"], o.case.sizes["B"]) == (p, h, b)
                and o.case.sizes["b"] == 4 and self.machine[o.source] == machine
            ][:1]  # fmt: skip
        return found

    def measured(self, group: Sequence[Observation], model: Model) -> list[dict[str, Any]]:
        """Every launch of one configuration, in seconds as recorded."""
        rows = []
        for o in group:
            rows.append({"report": o.source, "recorded": True, "batch_s": o.batch_s})
            bare = self.untraced.get(o.source)
            if bare is not None:
                added = (model.tracing_s or 0.0) if route(o.case) == "blocking" else 0.0
                rows.append({"report": o.source, "recorded": False, "batch_s": bare + added})
        return rows


def grouped(observations: Sequence[Observation]) -> list[list[Observation]]:
    """Launches by configuration."""
    groups: dict[object, list[Observation]] = {}
    for o in observations:
        groups.setdefault(o.case.key, []).append(o)
    return list(groups.values())


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
            str(value): study(launches, pool, lambda o, v=value, s=symbol: o.case.sizes[s] == v, sd)  # type: ignore[misc]
            for value in sorted({o.case.sizes[symbol] for o in pool})
        }
        found[f"leave one {symbol} out"] = parts
    everything = launches.observations
    ways = sorted({_way(o) for o in everything})
    found["leave one transport out"] = {
        way: study(launches, everything, lambda o, w=way: _way(o) == w, sd)  # type: ignore[misc]
        for way in ways
    }
    found["one step beyond"] = {
        f"{s} = {last}": study(launches, pool, lambda o, s=s, v=last: o.case.sizes[s] == v, sd)  # type: ignore[misc]
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


def _way(o: Observation) -> str:
    s = o.case.settings
    words = [s["transport"], s["data_on"], s["gemm"], *(["graph"] if s["graph"] == "yes" else [])]
    return " ".join([*words, *(["model"] if s["parallel"] == "model" else [])])


def commit_of(path: Path) -> str | None:
    """The commit that last changed a file, None if it is not committed as it is."""
    git = ["git", "-C", str(ROOT)]
    clean = subprocess.run(
        [*git, "status", "--porcelain", "--", str(path)], capture_output=True, text=True
    )
    if clean.returncode or clean.stdout.strip():
        return None
    said = subprocess.run(
        [*git, "log", "-1", "--format=%H", "--", str(path)], capture_output=True, text=True
    )
    return said.stdout.strip() or None


def main() -> None:
    """Freeze, validate or document."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--freeze", action="store_true")
    parser.add_argument("--document", action="store_true")
    parser.add_argument("--index", action="append", type=Path, default=[])
    parser.add_argument("--out", type=Path, default=RESULTS / "predict.json")
    args = parser.parse_args()
    if args.document:
        import predict_report

        predict_report.write(json.loads(args.out.read_text(encoding="utf-8")))
        return
    usual = [ROOT / "profiles" / name / "index.json" for name in ("campaign", "ladder")]
    launches = Launches([*usual, *args.index])
    designed = launches.designed()
    if args.freeze:
        save(calibrate(designed, machine="NVIDIA H200", untraced=launches.untraced), FROZEN)
        print(f"frozen on {len(designed)} runs: {FROZEN}")
        return
    model = load(FROZEN)
    used = {str(run["source"]) for run in model.runs}
    seen = {o.case.key for o in launches.observations if o.source in used}
    unseen = [o for o in launches.observations if o.case.key not in seen]
    floor = noise_floor(launches, model)
    training = [o for o in launches.observations if o.source in used]
    rows = predict_rows(model, training, unseen, launches)
    result = {
        "frozen": {"model": FROZEN.name, "commit": commit_of(FROZEN), "runs": sorted(used)},
        "targets": TARGETS, "noise_floor": floor, "summary": summary(rows, floor["launch_sd"]),
        "ranking": ranking(rows + predict_rows(model, training, training, launches)),
        "other_designs": other_designs(launches, floor["launch_sd"]),
        "rows": rows, "studies": studies(launches, floor["launch_sd"]),
    }  # fmt: skip
    args.out.write_text(json.dumps(result, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    print(json.dumps({k: result[k] for k in ("noise_floor", "summary", "ranking")}, indent=1))


if __name__ == "__main__":
    main()
