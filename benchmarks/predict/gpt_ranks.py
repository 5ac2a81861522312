"""Predicts GPTs on four and eight GPUs from a report of one GPU, and scores the predictions.

    python -m benchmarks.predict.gpt_ranks freeze
    python -m benchmarks.predict.gpt_ranks record FOLDER --ranks 8
    python -m benchmarks.predict.gpt_ranks score FOLDER ...
    python -m benchmarks.predict.gpt_ranks document

`freeze` keeps what gpt_shapes predicts of any host (predictions_ranks.json), of the sizes that
`gpu.sh` times and of the recordings of eight GPUs that are shipped. A FOLDER holds what
`benchmarks.predict.gpt_runs --sizes ranks` wrote: seconds of steps, a file a launch, and reports
cut by `benchmarks.predict.gpt_split`; the steps of a launch with reports are not scored. `record`
makes such a launch, under Nsight Systems; `bash benchmarks/gpu.sh 8` makes all of them. `score`
compares both with the predictions, and `document` writes the page's part.
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
from benchmarks.predict import one
from benchmarks.predict.gpt_sizes import SETS, SYMBOLS, WORDS
from benchmarks.predict.gpt_split import split
from perfmodel.models.launches import another, limits
from profiles.programs.record import exported, started

Row = dict[str, Any]
PAGE: Final = folders.DOCS / "pytorch_predict.md"
SCRIPT: Final = "benchmarks.predict.gpt_ranks"
PREDICTED: Final = one.GPT / "predictions_ranks.json"
SCORED: Final = one.GPT / "score_ranks.json"
REPORT: Final = "gpt_shapes"
WAYS: Final = {"ddp": False, "fsdp": True}
RANKS: Final = (4, 8)
GPUS: Final = ("NVIDIA H200", "NVIDIA H100 80GB HBM3")
SHIPPED: Final = {"ddp": "gpt_ddp8", "fsdp": "gpt_fsdp8"}
"""Recordings of eight GPUs."""
STEPS: Final = (
    "GPT; GPUs; by; predicted=s; 90 % from=s; to=s; set by; measured=s; another launch, 95 %; "
    "error=percent.0; inside"
)
EXPOSED: Final = (
    "GPT; GPUs; by; communication, predicted=s; measured=s; exposed, predicted=s; measured=s; "
    "the other ranks wait=s"
)


def predicted() -> list[Row]:
    """Return a row for every size, way and number of GPUs, of a host of which nothing is known."""
    found = []
    for way in WAYS:
        for sizes in (dict(zip(SYMBOLS, size, strict=True)) for size in SETS["ranks"]):
            found += [row_of(way, sizes | {"p": n}, gpu) for n in RANKS for gpu in GPUS]
        found.append(row_of(way, shipped(way), GPUS[0]) | {"report": SHIPPED[way]})
    return found


def shipped(way: str) -> dict[str, int]:
    """Sizes of the shipped recording of a way."""
    truth = json.loads((one.PROGRAMS / f"{SHIPPED[way]}.truth.json").read_text(encoding="utf-8"))
    return {symbol: truth[word] for symbol, word in WORDS.items()} | {"p": truth["world"]}


def row_of(way: str, sizes: Mapping[str, int], gpu: str) -> Row:
    """Predict a step."""
    case = one.Case("ranks", REPORT, sizes, None, gpu, fsdp=WAYS[way], other_host=True)
    step = one.whole(case).step
    return {
        "parallel": way, "gpu": gpu, "sizes": dict(step.sizes), "step_s": step.step_s,
        "low_s": step.low_s, "high_s": step.high_s, "bound": step.bound, "gpu_s": step.lanes.gpu_s,
        "host_s": step.lanes.host_s, "communication_s": step.lanes.communication_s,
        "exposed_communication_s": step.lanes.exposed_s,
    }  # fmt: skip


def of_case(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what a prediction and a measurement have in common."""
    return row["parallel"], row["gpu"], *(row["sizes"][n] for n in (*SYMBOLS, "p"))


def scored(predictions: Iterable[Row], measured: Iterable[Row]) -> list[Row]:
    """Return the predictions that were measured, with the interval of another launch.

    Parameters
    ----------
    predictions : iterable of dict
        As `row_of` makes them.
    measured : iterable of dict
        Rows of `gpt_runs`, of several launches: `parallel`, `sizes`, and `step_s` of its rounds.
    """
    times: dict[tuple[Any, ...], list[float]] = {}
    for row in measured:
        times.setdefault(of_case(row), []).append(statistics.median(row["step_s"]))
    rows = []
    for row in predictions:
        launches = times.get(of_case(row))
        if not launches:
            continue
        found = statistics.median(launches)
        sd = LAUNCH_SD["queued" if row["bound"] == "host" else "NCCL"]
        mean, width = another([math.log(s) for s in launches], sd)
        low, high = limits(math.exp(mean), width)
        rows.append({
            **row, "measured_s": found, "launches_s": launches,
            "error": row["step_s"] / found - 1, "inside": row["low_s"] <= found <= row["high_s"],
            "launch_low_s": low, "launch_high_s": high,
        })  # fmt: skip
    return rows


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
    steps = perfmodel.analyze(report).analysis.fitted.steps
    waiting = dict(zip(steps.ranks, steps.waiting_s, strict=True)) if steps else {}
    last = min(waiting, key=waiting.__getitem__)
    return {
        **{key: prediction[key] for key in ("parallel", "sizes", "communication_s")},
        "exposed_s": prediction["exposed_communication_s"], "report": report.name,
        "measured_communication_s": last.collectives_s,
        "measured_exposed_s": last.part_s("communication") + last.part_s("waiting"),
        "waiting_s": statistics.median(w for r, w in waiting.items() if r is not last),
        "last_rank": last.rank,
    }  # fmt: skip


def score(found: Sequence[Path]) -> dict[str, Any]:
    """Return what `gpt_runs` measured in some folders, beside the predictions."""
    predictions = json.loads(PREDICTED.read_text())
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
    steps = scored(predictions, measured)
    return {"measured": measured, "steps": steps, "exposed": reports}


def of_shipped() -> list[Row]:
    """Return the communication of the shipped recordings of eight GPUs."""
    rows = [row for row in json.loads(PREDICTED.read_text()) if "report" in row]
    return [exposed(row, one.PROGRAMS / f"{row['report']}.sqlite.xz") for row in rows]


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
        results.write(SCORED, score(args.folders), digits=6)
    pages.put_parts(PAGE, SCRIPT, {"ranks": text(results.read(SCORED), of_shipped())})


if __name__ == "__main__":
    main()
