"""Predicts GPTs of unseen sizes by models of operators, and scores the predictions.

    python -m benchmarks.predict.gpt calibrate MACHINE.toml
    python -m benchmarks.predict.gpt freeze
    python -m benchmarks.predict.gpt recalibrate RECORDINGS MACHINE.toml
    python -m benchmarks.predict.gpt host MACHINE.toml
    python -m benchmarks.predict.gpt other MACHINE.toml
    python -m benchmarks.predict.gpt eight RECORDINGS MACHINE.toml
    python -m benchmarks.predict.gpt score NAME MEASURED.json ...
    python -m benchmarks.predict.gpt document

`calibrate` makes the models of benchmarks/results/gpt from recordings of profiles/programs and
times of `gpt_runs` on one and two GPUs; `freeze` predicts every size that is scored later. `host`
predicts the same on a host whose calls a machine file times, `other` on another GPU by its machine
file. `recalibrate` makes models from recordings of `gpt_runs`, and predicts by them (`recorded`).
`eight` predicts the shipped recordings of eight GPUs, FSDP by recordings of two (`fsdp2`).
`score` compares predictions (NAME is `same`, `recorded`, `host` or `other`) with measurements.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import folders, pages, results
from benchmarks.predict.gpt_sizes import BLIND, SETS, SYMBOLS, WORDS
from benchmarks.predict.rivals import boosted
from perfmodel.machines.machine import Machine
from perfmodel.machines.measure.measurement import choose
from perfmodel.models.operator_times import Baseline
from perfmodel.models.operators import (
    OperatorModel,
    OperatorPrediction,
    host_ratio,
    predict_operators,
)
from perfmodel.models.operators_calibrate import calibrate_operators
from perfmodel.models.operators_file import as_text, load
from perfmodel.models.recorded import RecordedStep
from perfmodel.programs import program_named
from perfmodel.programs.program import Options
from perfmodel.readers import read

RESULTS = folders.RESULTS / "gpt"
REPORTS = folders.PROGRAMS
EAGER = ("gpt_shapes", "gpt_modules", "gpt_both")
"""Recordings with sizes on one GPU."""
RANKED = ("gpt_ddp", "ddp_both")
"""Recordings of two GPUs, whose collectives are timed."""
MODELS = {
    "eager": (EAGER, (), ("eager1", "two2")),
    "compiled": (("gpt_compiled_shapes",), EAGER, ("compiled1", "compiled2")),
}
"""Of every model the recordings, those of related programs, and files of times of steps."""
TAKE = ("d_model / heads", "d_model", "seq", "batch")
"""What dimensions are where the recordings, whose heads have 64 numbers all, allow more."""
PROGRAM = program_named("pytorch").recorded_operators
assert PROGRAM is not None  # reports of PyTorch name the sizes of operators


def recorded(name: str) -> RecordedStep:
    """The step of a recording of profiles/programs."""
    said = json.loads((REPORTS / f"{name}.truth.json").read_text())
    sizes = {symbol: said[word] for symbol, word in WORDS.items()}
    return PROGRAM.recorded_step(read(REPORTS / f"{name}.sqlite.xz"), Options(), sizes)


def timed(name: str, way: str) -> list[RecordedStep]:
    """Steps of one parallel way that were timed, and not recorded."""
    rows = json.loads((RESULTS / f"calibration_{name}.json").read_text())
    return [
        RecordedStep(
            source=f"calibration_{name}.json", symbols=row["sizes"], gpu=row["gpu"], calls=(),
            order=(), step_s=0.0, busy_s=0.0, launches=0, gap_s=0.0,
            bare_s=float(np.median(row["step_s"])),
        )
        for row in rows
        if row["parallel"] in (way, "none")
    ]  # fmt: skip


def calibrate(machine: str) -> None:
    """Calibrate and keep the models."""
    baseline = Baseline.of(*choose(machine))
    for name, (own, related, times) in MODELS.items():
        steps = [recorded(n) for n in (*own, *RANKED)]
        steps += [replace(recorded(n), reference=True) for n in related]
        steps += [step for n in times for step in timed(n, "ddp")]
        keep_model(name, calibrate_operators("pytorch", steps, baseline, PROGRAM.call_at, TAKE))


RECORDED = {
    "eager": ((("eager1", "none"), ("two2", "ddp")), (), ()),
    "compiled": ((("compiled1", "none"),), (("eager1", "none"),), ("compiled2",)),
    "fsdp": ((("two2", "fsdp"),), (("eager1", "none"),), ()),
}
"""Of every model the recordings of `gpt_runs`, those of related programs, and times of steps."""


def recordings(folder: Path, tag: str, way: str) -> list[RecordedStep]:
    """Steps of every size of a tag, recorded with sizes, and their time without a profiler."""
    (times,) = folder.rglob(f"{tag}.json")
    rows = {row["k"]: row for row in json.loads(times.read_text()) if row["parallel"] == way}
    found = []
    for path in sorted(times.parent.glob(f"{tag}_*_shapes.sqlite.xz")):
        row = rows.get(int(path.name.removeprefix(f"{tag}_").split("_")[0]))
        if row is not None:
            sizes = {name: n for name, n in row["sizes"].items() if name != "p"}
            step = PROGRAM.recorded_step(read(path), Options(), sizes)
            found.append(replace(step, bare_s=float(np.median(row["step_s"]))))
    return found


def recalibrate(folder: Path, machine: str) -> None:
    """Calibrate on recordings of every size, and predict."""
    baseline = Baseline.of(*choose(machine))
    models = {}
    for name, (own, related, times) in RECORDED.items():
        steps = [step for tag, way in own for step in recordings(folder, tag, way)]
        steps += [replace(s, reference=True) for tag, w in related
                  for s in recordings(folder, tag, w)]  # fmt: skip
        if times:
            steps += [recorded(n) for n in RANKED]
        steps += [step for n in times for step in timed(n, "ddp")]
        models[name] = calibrate_operators("pytorch", steps, baseline, PROGRAM.call_at, TAKE)
        keep_model(f"{name}_recorded", models[name])
    keep("recorded", "as calibrated", predictions(models))


def eight(folder: Path, machine: str) -> None:
    """Predict the shipped recordings of eight GPUs, which no model used."""
    related = [replace(recorded(name), reference=True) for name in EAGER]
    steps = [*recordings(folder, "fsdp2", "fsdp"), *related]
    baseline = Baseline.of(*choose(machine))
    fsdp = calibrate_operators("pytorch", steps, baseline, PROGRAM.call_at, TAKE)
    keep_model("fsdp", fsdp)
    rows = []
    for name, way, model in (
        ("gpt_ddp8", "ddp", frozen()["eager"]), ("gpt_fsdp8", "fsdp", fsdp),
    ):  # fmt: skip
        said = json.loads((REPORTS / f"{name}.truth.json").read_text())
        sizes = {symbol: said[word] for symbol, word in WORDS.items()} | {"p": said["world"]}
        row = row_of("eager", way, predict_operators(model, sizes, PROGRAM.call_at))
        rows.append({**row, "report": name, "measured_s": said["step_s_bare"]})
        print(name, row["low_s"], row["step_s"], row["high_s"], said["step_s_bare"])
    results.write(RESULTS / "eight.json", rows)


def keep_model(name: str, model: OperatorModel) -> None:
    """Write a model, and print how it meets its own steps."""
    text = as_text(model)
    folders.put(results.place(RESULTS / f"model_{name}.json", json.loads(text)), text)
    print(name, model.host, model.wires, model.contention, model.gap_s, model.scale,
          model.gpu_noise, model.host_noise)  # fmt: skip
    for step in model.steps:
        if step.bare_s and not step.reference:
            p = predict_operators(model, step.symbols, PROGRAM.call_at)
            shown = " ".join(f"{1e3 * t:.2f}" for t in (step.bare_s, p.step_s, p.lanes.host_s))
            print(dict(step.symbols), f"measured, predicted, host in ms: {shown}", p.bound)


def cases() -> list[tuple[str, str, dict[str, int]]]:
    """Model, parallel way and sizes of every configuration that is scored."""
    found = []
    for values in BLIND:
        sizes = dict(zip(SYMBOLS, values, strict=True))
        for ranks in (1, 2):
            way = "none" if ranks == 1 else "ddp"
            found += [(name, way, sizes | {"p": ranks}) for name in ("eager", "compiled")]
    for values in SETS["ranks"]:
        sizes = dict(zip(SYMBOLS, values, strict=True))
        for ranks in (4, 8):
            found.append(("eager", "ddp", sizes | {"p": ranks}))
            found.append(("fsdp", "fsdp", sizes | {"p": ranks}))
    return found


def row_of(name: str, way: str, p: OperatorPrediction) -> dict[str, Any]:
    """One prediction as it is kept."""
    return {
        "model": name, "parallel": way, "sizes": dict(p.sizes), "step_s": p.step_s,
        "low_s": p.low_s, "high_s": p.high_s, "bound": p.bound, "gpu_s": p.lanes.gpu_s,
        "host_s": p.lanes.host_s, "communication_s": p.lanes.communication_s,
        "exposed_communication_s": p.lanes.exposed_s, "warnings": list(p.warnings),
    }  # fmt: skip


def predictions(
    models: Mapping[str, OperatorModel],
    machine: Baseline | None = None,
    host: Machine | None = None,
    ranks: int = 8,
) -> list[dict[str, Any]]:
    """Predict every case that there is a model of, here or on another GPU or host."""
    rivals = {name: rivals_of(model, machine) for name, model in models.items()}
    found = []
    for name, way, sizes in cases():
        if sizes["p"] > ranks or name not in models:
            continue
        model = models[name]
        scale = host_ratio(model.baseline.machine, host) if host else None
        row = row_of(name, way, predict_operators(model, sizes, PROGRAM.call_at, machine, scale))
        row["rivals"] = {rival: predict(sizes, row) for rival, predict in rivals[name].items()}
        found.append(row)
    return found


def frozen() -> dict[str, OperatorModel]:
    """The models that were kept."""
    return {name: load(folders.plain(RESULTS / f"model_{name}.json")) for name in MODELS}


# --- rivals

Rival = Callable[[Mapping[str, int], Mapping[str, Any]], float]


def flops_of(z: Mapping[str, int]) -> float:
    """FLOPs of a training step of one rank: 6 a parameter of a product and token, and attention."""
    tokens = z["batch"] * z["seq"]
    parameters = 12 * z["n_layer"] * z["d_model"] ** 2 + z["vocab"] * z["d_model"]
    return 6.0 * parameters * tokens + 14.0 * z["n_layer"] * tokens * z["seq"] * z["d_model"]


def bytes_of(z: Mapping[str, int]) -> float:
    """Bytes of a training step: 28 of the optimizer a parameter, activations, logits."""
    tokens = z["batch"] * z["seq"]
    parameters = 12 * z["n_layer"] * z["d_model"] ** 2 + 2 * z["vocab"] * z["d_model"]
    activations = tokens * (180.0 * z["n_layer"] * z["d_model"] + 30.0 * z["vocab"])
    return 44.0 * parameters + activations


def rivals_of(model: OperatorModel, machine: Baseline | None) -> dict[str, Rival]:
    """FLOPs over peak, a hard roofline and boosted trees, calibrated on the same runs."""
    runs = {tuple(s.symbols.items()): s for s in model.steps if s.bare_s}
    seen = [(dict(s.symbols), float(s.bare_s or 0.0)) for s in runs.values()]
    own = model.baseline.machine
    there = machine.machine if machine else own
    peak = there.peak_flops_per_s["bfloat16_tensor"] / own.peak_flops_per_s["bfloat16_tensor"]
    wide = there.bandwidth_bytes_per_s["hbm"] / own.bandwidth_bytes_per_s["hbm"]
    used = float(np.median([flops_of(z) / t for z, t in seen]))
    best = max(flops_of(z) / t for z, t in seen)
    moved = max(bytes_of(z) / t for z, t in seen)
    trees = boosted([features(z) for z, _ in seen], [t for _, t in seen])
    return {
        "flops over peak": lambda z, _: flops_of(z) / used / peak,
        "roofline": lambda z, _: max(flops_of(z) / best / peak, bytes_of(z) / moved / wide),
        "boosted trees": lambda z, _: trees(features(z)),
    }


def features(z: Mapping[str, int]) -> list[float]:
    """What the trees see."""
    names = (*SYMBOLS, "p")
    return [*(math.log(z[n]) for n in names), math.log(flops_of(z)), math.log(bytes_of(z))]


# --- scores


def key(model: str, way: str, sizes: Mapping[str, int]) -> tuple[Any, ...]:
    """What a prediction and a measurement have in common."""
    return (model == "compiled", way, *(sizes[n] for n in (*SYMBOLS, "p")))


def scored(
    predicted: Iterable[Mapping[str, Any]], measured: Iterable[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return the predictions that were measured, with every launch's median step.

    Parameters
    ----------
    predicted : iterable of dict
        As `row_of` makes them.
    measured : iterable of dict
        Rows of `gpt_runs`, of several launches: `compiled`, `parallel`, `sizes`, and `step_s` of
        its rounds.
    """
    times: dict[tuple[Any, ...], list[float]] = {}
    for row in measured:
        k = key("compiled" if row["compiled"] else "eager", row["parallel"], row["sizes"])
        times.setdefault(k, []).append(float(np.median(row["step_s"])))
    rows = []
    for p in predicted:
        launches = times.get(key(p["model"], p["parallel"], p["sizes"]))
        if launches:
            found = float(np.median(launches))
            rows.append({
                **p, "measured_s": found, "launches_s": launches, "error": p["step_s"] / found - 1,
                "inside": p["low_s"] <= found <= p["high_s"],
            })  # fmt: skip
    return rows


def score(predicted: Path, files: Sequence[Path], out: Path) -> None:
    """Compare predictions with measurements; write rows and print a summary."""
    measured = (row for path in files for row in json.loads(path.read_text()))
    rows = scored(json.loads(folders.content(predicted))["predictions"], measured)
    for row in rows:
        row["rival_errors"] = {r: t / row["measured_s"] - 1 for r, t in row["rivals"].items()}
    results.write(out, rows)
    for title, chosen in groups(rows).items():
        print(summary(title, chosen))


def groups(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Rows by what sets the step, and by program."""
    found: dict[str, list[Mapping[str, Any]]] = {"all": list(rows)}
    for row in rows:
        found.setdefault(f"set by the {row['bound']}", []).append(row)
        title = f"{row['model']} p={row['sizes']['p']} {row['parallel']}"
        found.setdefault(title, []).append(row)
    return found


def summary(title: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Mean and largest error, bias, intervals, and the rivals' mean errors."""
    errors = np.array([r["error"] for r in rows])
    inside = np.mean([r["inside"] for r in rows])
    others = {
        name: float(np.mean([abs(r["rival_errors"][name]) for r in rows]))
        for name in rows[0]["rival_errors"]
    }
    shown = ", ".join(f"{name} {value:.1%}" for name, value in others.items())
    return (
        f"{title}: {len(rows)} configurations, mean {np.abs(errors).mean():.1%}, most "
        f"{np.abs(errors).max():.1%}, bias {errors.mean():+.1%}, inside {inside:.0%}; {shown}"
    )


# --- the page

PAGE = folders.DOCS / "pytorch_predict.md"
SCRIPT = "benchmarks.predict.gpt"
STUDIES = {
    "same": "another host, of which nothing is known",
    "host": "that host, by what its calls take",
    "other": "an H100, its memory by the bandwidths",
    "other_share": "an H100, by the share of the bandwidths (after the line above)",
}


def page() -> str:
    """The table of the scores, by what sets the step as predicted, and by program."""
    lines = []
    for name, title in STUDIES.items():
        rows = json.loads(folders.content(RESULTS / f"score_{name}.json"))
        for group, chosen in groups(rows).items():
            errors = np.array([r["error"] for r in chosen])
            rivals = [
                f"{np.mean([abs(r['rival_errors'][n]) for r in chosen]):.0%}".replace("%", " %")
                for n in ("flops over peak", "roofline", "boosted trees")
            ]
            shown = (np.abs(errors).mean(), np.abs(errors).max(), errors.mean())
            inside = np.mean([r["inside"] for r in chosen])
            numbers = [f"{100 * v:.1f} %" for v in shown[:2]] + [f"{100 * shown[2]:+.1f} %"]
            lines.append([
                title, group, str(len(chosen)), *numbers, f"{100 * inside:.0f} %", *rivals,
            ])  # fmt: skip
    head = ["predicted for", "steps", "n", "mean error", "most", "bias", "inside 90 %",
            "FLOPs / peak", "roofline", "trees"]  # fmt: skip
    return pages.table(head, lines)


def main() -> None:
    word, *rest = sys.argv[1:]
    if word == "calibrate":
        calibrate(rest[0])
    elif word == "freeze":
        keep("same", "as calibrated", predictions(frozen()))
    elif word == "recalibrate":
        recalibrate(Path(rest[0]), rest[1])
    elif word == "eight":
        eight(Path(rest[0]), rest[1])
    elif word == "document":
        pages.put(PAGE, SCRIPT, page())
    elif word == "host":
        machine, _ = choose(rest[0])
        keep("host", f"calls of {rest[0]}", predictions(frozen(), host=machine))
    elif word == "other":
        baseline = Baseline.of(*choose(rest[0]))
        keep("other", baseline.machine.name, predictions(frozen(), baseline, baseline.machine, 1))
    else:
        predicted = RESULTS / f"predictions_{rest[0]}.json"
        score(predicted, [*map(Path, rest[1:])], RESULTS / f"score_{rest[0]}.json")


def keep(name: str, machine: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write predictions."""
    lines = ",\n".join(json.dumps(row) for row in rows)
    text = f'{{"machine": {json.dumps(machine)}, "predictions": [\n{lines}\n]}}\n'
    path = RESULTS / f"predictions_{name}.json"
    results.place(path, {"predictions": rows}).write_text(text)


if __name__ == "__main__":
    main()
