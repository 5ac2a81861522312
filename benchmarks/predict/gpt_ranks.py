"""Predicts GPTs on four and eight GPUs from runs on one and two, and scores the predictions.

    python -m benchmarks.predict.gpt_ranks freeze
    python -m benchmarks.predict.gpt_ranks record FOLDER --ranks 8
    python -m benchmarks.predict.gpt_ranks score FOLDER ... [--host MACHINE.toml]
    python -m benchmarks.predict.gpt_ranks document

`freeze` keeps what the frozen models predict (predictions_ranks.json). A FOLDER holds what
`benchmarks.predict.gpt_runs --sizes ranks` wrote: seconds of steps, a file a launch, and reports
cut by `benchmarks.predict.gpt_split`; the steps of a launch with reports are not scored. `record`
makes such a launch, under Nsight Systems; `bash benchmarks/gpu.sh 8` makes all of them. `score`
compares both with the predictions, or with --host with those of the same models on a host whose
calls a machine file times (computed then), and `document` writes the page's part.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import perfmodel
from benchmarks.common import folders, pages, results
from benchmarks.common.launches import LAUNCH_SD
from benchmarks.common.pages import markdown
from benchmarks.predict import gpt
from benchmarks.predict.gpt_sizes import SETS, SYMBOLS
from benchmarks.predict.gpt_split import split
from perfmodel.machines.measure.measurement import choose
from perfmodel.models.launches import another, limits
from perfmodel.models.operators_file import load
from profiles.programs.record import exported, started

Row = dict[str, Any]
PREDICTED: Final = gpt.RESULTS / "predictions_ranks.json"
SCORED: Final = gpt.RESULTS / "score_ranks.json"
MODELS: Final = ("eager", "fsdp")
"""The frozen ones of DDP and of FSDP."""
RANKS: Final = (4, 8)
SHIPPED: Final = ("gpt_ddp8", "gpt_fsdp8")
"""Recordings of eight GPUs that no model used, and eight.json predicts."""
STEPS: Final = (
    "GPT; GPUs; by; predicted=s; 90 % from=s; to=s; set by; measured=s; another launch, 95 %; "
    "error=percent.0; inside"
)
EXPOSED: Final = (
    "GPT; GPUs; by; communication, predicted=s; measured=s; exposed, predicted=s; measured=s; "
    "the other ranks wait=s"
)


def predicted(machine: str | None = None) -> list[Row]:
    """Return a row for every size, way and number of GPUs; of another host by its calls."""
    host = choose(machine)[0] if machine else None
    models = {name: load(folders.plain(gpt.RESULTS / f"model_{name}.json")) for name in MODELS}
    found = [row for row in gpt.predictions(models, host=host) if row["sizes"]["p"] in RANKS]
    return sorted(found, key=lambda row: row["parallel"])


def of_case(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what a prediction and a measurement have in common."""
    return row["parallel"], *(row["sizes"][n] for n in (*SYMBOLS, "p"))


def scored(predictions: Iterable[Row], measured: Iterable[Row]) -> list[Row]:
    """Return what `gpt.scored` does, with the interval of another launch."""
    found = gpt.scored(predictions, measured)
    for row in found:
        sd = LAUNCH_SD["queued" if row["bound"] == "host" else "NCCL"]
        mean, width = another([math.log(s) for s in row["launches_s"]], sd)
        row["launch_low_s"], row["launch_high_s"] = limits(math.exp(mean), width)
    return found


def record(folder: Path, ranks: int) -> None:
    """Record a launch of every size and way, and cut its report.

    Raises
    ------
    SystemExit
        If there is no report of one of them.
    """
    tag = "recorded"
    program = [
        sys.executable, "-m", "benchmarks.predict.gpt_runs", str(folder), "--sizes", "ranks",
        "--tag", tag, "--both", "--record", "--modes", "timing",
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as scratch:
        report = exported(started(ranks, program), Path(scratch) / tag)
        folder.mkdir(parents=True, exist_ok=True)
        found = split(report, tag, folder)
    print(*(f"{path}: {path.stat().st_size / 1e3:.0f} kB" for path in found), sep="\n")
    if len(found) != (wanted := 2 * len(SETS["ranks"])):
        raise SystemExit(f"expected {wanted} reports; got {len(found)}: see what is printed above")


def exposed(prediction: Row, report: Path) -> Row:
    """Set the predicted communication of a step against a report's.

    A prediction knows no waiting: what is measured is the communication of the rank that waits
    least, which comes last to the collectives; the others' waiting stands beside it.
    """
    ranks = perfmodel.analyze(report).analysis.fitted.ranks
    last = min(ranks, key=lambda rank: rank.waiting_s)
    return {
        **{key: prediction[key] for key in ("parallel", "sizes", "communication_s")},
        "exposed_s": prediction["exposed_communication_s"], "report": report.name,
        "measured_communication_s": last.communication_s,
        "measured_exposed_s": last.exposed_communication_s,
        "waiting_s": statistics.median(r.waiting_s for r in ranks if r is not last),
        "last_rank": last.rank,
    }  # fmt: skip


def score(found: Sequence[Path], machine: str | None) -> dict[str, Any]:
    """Return what `gpt_runs` measured in some folders, beside the predictions."""
    predictions = predicted(machine) if machine else json.loads(PREDICTED.read_text())
    by_case = {of_case(row): row for row in predictions}
    measured, reports = [], []
    for path in sorted(p for folder in found for p in folder.rglob("*.json")):
        rows = json.loads(path.read_text())
        if not (isinstance(rows, list) and rows and "step_s" in rows[0]):
            continue
        of_row = [(row, path.with_name(f"{path.stem}_{row['k']}_timing.sqlite.xz")) for row in rows]
        recorded = [pair for pair in of_row if pair[1].exists() and of_case(pair[0]) in by_case]
        if not recorded and not rows[0].get("recorded"):  # Nsight Systems makes steps longer
            measured += [row | {"file": path.name} for row in rows]
        reports += [exposed(by_case[of_case(row)], report) for row, report in recorded]
    return {
        "machine": machine and Path(machine).name, "measured": measured,
        "steps": scored(predictions, measured), "exposed": reports,
    }  # fmt: skip


def of_shipped() -> list[Row]:
    """Return the communication of the shipped recordings of eight GPUs."""
    rows = {row["report"]: row for row in json.loads((gpt.RESULTS / "eight.json").read_text())}
    return [exposed(rows[name], gpt.REPORTS / f"{name}.sqlite.xz") for name in SHIPPED]


def text(found: Mapping[str, Any], shipped: Sequence[Row]) -> str:
    """Return the page's tables; of steps only where some were measured."""
    parts = []
    if steps := found.get("steps"):
        inside = sum(row["inside"] for row in steps)
        errors = [abs(row["error"]) for row in steps]
        parts.append(
            f"{inside} of {len(steps)} steps lie inside their interval; the mean error is "
            f"{100 * statistics.mean(errors):.0f} %, the largest {100 * max(errors):.0f} %.\n\n"
            + markdown(STEPS, map(_step, steps))
        )
    parts.append(markdown(EXPOSED, map(_exposed, [*shipped, *found.get("exposed", ())])))
    return "\n\n".join(parts)


def _named(row: Row) -> tuple[str, str, str]:
    z = row["sizes"]
    return f"{z['n_layer']} x {z['d_model']}, B={z['batch']}", str(z["p"]), row["parallel"].upper()


def _step(row: Row) -> tuple[object, ...]:
    interval = f"{1e3 * row['launch_low_s']:.1f} to {1e3 * row['launch_high_s']:.1f} ms"
    return (
        *_named(row), row["step_s"], row["low_s"], row["high_s"], row["bound"], row["measured_s"],
        f"{interval}, {len(row['launches_s'])} launches", row["error"],
        "yes" if row["inside"] else "no",
    )  # fmt: skip


def _exposed(row: Row) -> tuple[object, ...]:
    return (
        *_named(row), row["communication_s"], row["measured_communication_s"], row["exposed_s"],
        row["measured_exposed_s"], row["waiting_s"],
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("freeze", "record", "score", "document"))
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER")
    parser.add_argument("--ranks", type=int, choices=(2, *RANKS), help="of record")
    parser.add_argument("--host", metavar="MACHINE.toml")
    args = parser.parse_args()
    if args.what == "freeze":
        results.write(PREDICTED, predicted())
        return
    if args.what == "record":
        if len(args.folders) != 1 or not args.ranks:
            parser.error("record: expected one FOLDER, and --ranks")
        record(args.folders[0], args.ranks)
        return
    if args.what == "score":
        results.write(SCORED, score(args.folders, args.host), digits=6)
    pages.put_parts(gpt.PAGE, gpt.SCRIPT, {"ranks": text(results.read(SCORED), of_shipped())})


if __name__ == "__main__":
    main()
