"""Scores predictions from one report against steps that were timed without a profiler.

    python -m benchmarks.predict.one --predict benchmarks/results/one/predictions.json
    python -m benchmarks.predict.one

The first writes what every report predicts of `one_runs.CASES` (frozen by a commit before these
were timed), the second scores it, and predicts the GPTs of `gpt_sizes` and the programs of
profiles/programs anew. `tuned` was looked at while the first model was made, and all groups since:
when the optimizer's host time was made to grow with its tensors, when `timed` of usual.toml was
chosen, and when it was chosen what torch.compile leaves apart. Nothing else was fitted to them.

Nearly all were timed on other hosts than the reports', of which nothing is known: each is predicted
by what the *other* hosts take for an operator (`paces`, printed by --hosts). Then every step is
predicted once more with one anchor: the time of another step of the program on that host, the next
one that informs (`one timed step`; `without` is the mean error of the same steps without it). The
step that is predicted is never its own anchor.

    python -m benchmarks.predict.one --peaks --predict benchmarks/results/one/peaks_frozen.json
    python -m benchmarks.predict.one --peaks

The first of these writes the peaks of memory of `one_runs.PEAKS`, programs that are changed in
other ways than in their sizes, the second scores them by what `one_runs --peaks` measured
(benchmarks/results/one/peaks_measured*.json), as committed before and by today's code.

`the report's host` are steps that were timed within minutes of the report, on its host, of the same
sizes and others. With `its own time` the report's step without the profiler is known.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from benchmarks.common import results
from benchmarks.predict.one_runs import CASES, PEAKS
from perfmodel.base.errors import ModelError
from perfmodel.machines.grids import grid_of
from perfmodel.models.one_report import (
    Changes,
    Hosts,
    ReportPrediction,
    TimedStep,
    predict_report,
    usual_hosts,
)
from perfmodel.models.operator_times import Baseline
from perfmodel.models.recorded import RecordedStep
from perfmodel.models.roles import Roles
from perfmodel.programs.program import Options
from perfmodel.programs.pytorch.program import PyTorchOperators
from perfmodel.readers import read

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / "profiles" / "programs"
GPT = ROOT / "benchmarks" / "results" / "gpt"
ONE = ROOT / "benchmarks" / "results" / "one"
SAME_HOST = (
    ("gpt_shapes", "healthy_b32"), ("gpt_shapes", "gpt_unnamed"), ("gpt_shapes", "gpt_ddp"),
    ("gpt_shapes", "healthy_p2_b32"), ("gpt_modules", "gpt_fp32_shapes"),
    ("gpt_modules", "gpt_modules_timing"), ("gpt_both", "ddp_both"),
    ("gpt_fp32_shapes", "gpt_modules"),
)  # fmt: skip
"""Reports, and programs of profiles/programs that were timed on their host within nine minutes."""
OWN = (
    "bert_shapes", "convnext_shapes", "gpt_modules", "gpt_fp32_shapes", "gpt_shapes",
    "llama_heads_shapes", "llama_shapes", "lstm_shapes", "gan_shapes", "resnet34_shapes",
    "gpt_both", "resnet34_both", "gpt_compiled_shapes",
)  # fmt: skip
"""Reports whose own step was timed without the profiler."""
HOST_OF = {
    "tuned": "tuned", "compiled, tuned": "tuned", "unseen": "third H200",
    "unseen, 2 GPUs": "third H200",
    "compiled, NVIDIA H200": "third H200", "unseen, H100": "third H100",
    "compiled, NVIDIA H100 80GB HBM3": "third H100", "new, NVIDIA H200": "new H200",
    "new, NVIDIA H100 80GB HBM3": "new H100", "the report's host": "report's", "its own time": "",
}  # fmt: skip
"""Hosts by group."""


@dataclass(frozen=True)
class Case:
    """A step that is predicted from a report, and its time where it is known."""

    group: str
    report: str
    changed: Mapping[str, int]
    step_s: float | None
    gpu: str = "NVIDIA H200"
    peak_bytes: int | None = None
    anchors: tuple[TimedStep, ...] = ()
    compiled: bool = False
    fsdp: bool = False
    other_host: bool = False
    hosts: Hosts | None = None


@cache
def recorded(report: str) -> tuple[RecordedStep, Roles]:
    """The step of a report, and the roles of its sizes."""
    operators = PyTorchOperators()
    step = operators.recorded_step(read(PROGRAMS / f"{report}.sqlite.xz"), Options())
    return step, operators.roles(step, {})


@cache
def baseline(gpu: str) -> Baseline:
    """The shipped grid of a GPU."""
    measured = grid_of(gpu)
    assert measured is not None
    return Baseline.of(measured.machine, measured)


def whole(case: Case) -> ReportPrediction:
    """Predict a case, with all that is said of it."""
    step, roles = recorded(case.report)
    other = baseline(case.gpu) if case.gpu != step.gpu else None
    return predict_report(
        [(step, roles)],
        case.changed,
        baseline(step.gpu),
        PyTorchOperators().call_at,
        Changes(
            other,
            compiled=case.compiled,
            other_host=case.other_host,
            shards=case.fsdp,
        ),
        case.anchors,
        case.hosts,
    )


def predicted(case: Case) -> dict[str, Any]:
    """Predict a case."""
    everything = whole(case)
    peak, found = everything.peak, everything.step
    return {
        "group": case.group, "report": case.report, "changed": dict(case.changed),
        "gpu": case.gpu, "step_s": found.step_s, "low_s": found.low_s, "high_s": found.high_s,
        "bound": found.bound, "measured_s": case.step_s,
        "peak_bytes": peak and peak.bytes, "measured_bytes": case.peak_bytes,
    }  # fmt: skip


def known() -> Iterator[Case]:
    """Steps of the repository whose times are known."""
    for report in ("gpt_shapes", "gpt_modules", "gpt_both"):
        for group, name in (("tuned", "calibration_eager1"), ("unseen", "measured_h200_eager1"),
                            ("unseen, 2 GPUs", "measured_h200_ddp2"),
                            ("unseen, H100", "measured_h100_eager")):  # fmt: skip
            rows = json.loads((GPT / f"{name}.json").read_text(encoding="utf-8"))
            for row in rows:
                times = sorted(row["step_s"])
                yield Case(group, report, row["sizes"], times[len(times) // 2], row["gpu"])


def compiled() -> Iterator[Case]:
    """GPTs under torch.compile, from reports of eager ones."""
    for report in ("gpt_shapes", "gpt_modules", "gpt_both"):
        for path in sorted(GPT.glob("*_compiled*.json")):
            for row in json.loads(path.read_text(encoding="utf-8")):
                if row["sizes"].get("p", 1) > 1:  # DistributedDataParallel splits the graph
                    continue
                times = sorted(row["step_s"])
                group = f"compiled, {'tuned' if 'calibration' in path.stem else row['gpu']}"
                yield Case(group, report, row["sizes"], times[len(times) // 2], row["gpu"],
                           compiled=True)  # fmt: skip


def new() -> Iterator[Case]:
    """Steps that were timed after their predictions were committed."""
    for name in sorted(ONE.glob("measured_*.json")):
        for row in json.loads(name.read_text(encoding="utf-8")):
            yield Case(f"new, {row['gpu']}", row["report"], row["changed"], row["step_s"],
                       row["gpu"], row["peak_bytes"])  # fmt: skip


def same_host() -> Iterator[Case]:
    """Steps that were timed on the report's host, without and with its own time."""
    for report, other in (*SAME_HOST, *((each, each) for each in OWN)):
        truth = json.loads((PROGRAMS / f"{other}.truth.json").read_text(encoding="utf-8"))
        sizes: dict[str, int] = {}
        if report != other:
            words = {"batch": "batch", "seq": "length", "n_layer": "layers", "d_model": "width",
                     "heads": "heads", "vocab": "vocabulary"}  # fmt: skip
            sizes = {role: truth[word] for role, word in words.items()}
            sizes |= {"p": truth["ranks"]} if truth["ranks"] > 1 else {}
        yield Case("the report's host", report, sizes, truth["step_s_bare"], truth["gpu"])


def own_time(cases: Iterable[Case]) -> Iterator[dict[str, Any]]:
    """Predict other sizes on the report's host by the report's own time without the profiler."""
    for case in cases:
        truth = json.loads((PROGRAMS / f"{case.report}.truth.json").read_text(encoding="utf-8"))
        timed = replace(case, group="its own time", anchors=(TimedStep({}, truth["step_s_bare"]),))
        if not case.changed:
            continue
        try:
            found = predicted(timed)
        except ModelError:  # the GPU sets the report's step, which says nothing of the host
            continue
        yield found | {"without_s": predicted(case)["step_s"]}


def host_of(case: Case) -> str:
    """Name the host that a step was timed on; reports of one hour are of one."""
    host = HOST_OF[case.group]
    if host != "report's":
        return host
    said = json.loads((PROGRAMS / f"{case.report}.truth.json").read_text(encoding="utf-8"))
    return f"report's of {said['date'][:13]} h"


def paces(cases: Iterable[Case]) -> dict[str, list[float]]:
    """Seconds per operator of every host, by its steps that the host sets, on one GPU."""
    found: dict[str, list[float]] = {}
    for case in cases:
        host = host_of(case)
        if case.compiled or case.step_s is None or case.changed.get("p", 1) > 1:
            continue
        step, _ = recorded(case.report)
        unknown = replace(usual_hosts(), spread=10.0)  # what hosts take in general says nothing
        own = replace(case, anchors=(TimedStep(case.changed, case.step_s),), hosts=unknown)
        try:
            factor = whole(own).host.factor
        except ModelError:
            continue
        found.setdefault(host, []).append(factor * sum(step.host_s) / len(step.host_s))
    return found


def left_out(found: Mapping[str, Sequence[float]], host: str) -> Hosts:
    """Hosts in general, without one."""
    logs = [mean(map(math.log, each)) for name, each in found.items() if name != host]
    spread = stdev(logs) * math.sqrt(1 + 1 / len(logs))
    return replace(usual_hosts(), call_s=math.exp(mean(logs)), spread=spread)


def anchored(cases: Sequence[Case]) -> Iterator[dict[str, Any]]:
    """Predict every case by the next other one of its host and program that informs."""
    for i, case in enumerate(cases):
        for other in (*cases[i + 1 :], *cases[:i]):
            if (other.group, other.report) != (case.group, case.report) or other == case:
                continue
            assert other.step_s is not None
            timed = TimedStep(other.changed, other.step_s)
            try:
                group = f"{case.group}, one timed step"
                found = predicted(replace(case, group=group, anchors=(timed,)))
                yield found | {"without_s": predicted(case)["step_s"]}
            except ModelError:  # the GPU sets the other step
                continue
            break


HEAD = "group | set by | steps | mean error | without | most | bias | inside 90 % | half-width"


def text(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Lines of a table: errors by group and by what sets the step; first of all hosts together."""
    yield HEAD
    together = (
        ("all: nothing known of the host", lambda g: HOST_OF.get(g, "") not in ("", "report's")),
        ("all: one timed step", lambda g: g.endswith("one timed step")),
    )
    for name, chosen in together:
        mine = [r for r in rows if chosen(r["group"])]
        for bound in ("GPU", "host"):
            yield line(name, bound, [r for r in mine if r["bound"] == bound])
    for group, bound in sorted({(r["group"], r["bound"]) for r in rows}):
        mine = [r for r in rows if r["group"] == group and r["bound"] == bound]
        yield line(group, bound, mine)


def line(group: str, bound: str, mine: Sequence[Mapping[str, Any]]) -> str:
    """A line of the table."""
    errors = [r["step_s"] / r["measured_s"] - 1 for r in mine]
    inside = sum(r["low_s"] <= r["measured_s"] <= r["high_s"] for r in mine) / len(mine)
    wide = sum(math.sqrt(r["high_s"] / r["low_s"]) - 1 for r in mine) / len(mine)
    sizes = [abs(e) for e in errors]
    plain = [abs(r["without_s"] / r["measured_s"] - 1) for r in mine if "without_s" in r]
    without = f"{sum(plain) / len(plain):.1%}" if plain else ""
    return (
        f"{group} | {bound} | {len(mine)} | {sum(sizes) / len(sizes):.1%} | {without} | "
        f"{max(sizes):.1%} | {sum(errors) / len(errors):+.1%} | {inside:.0%} | {wide:.0%}"
    )


def memory(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Lines of a table: errors of the peak of memory by report, on one GPU of each kind."""
    yield "peak memory | steps | mean error | most | bias"
    mine = [
        r
        for r in rows
        if r["measured_bytes"] and r["peak_bytes"] and not r["group"].endswith("timed step")
    ]
    for report in (*sorted({r["report"] for r in mine}), ""):
        errors = [r["peak_bytes"] / r["measured_bytes"] - 1 for r in mine
                  if report in ("", r["report"])]  # fmt: skip
        sizes = [abs(e) for e in errors]
        if sizes:
            yield (
                f"{report or 'all'} | {len(sizes)} | {sum(sizes) / len(sizes):.1%} | "
                f"{max(sizes):.1%} | {sum(errors) / len(errors):+.1%}"
            )


def peaks() -> Iterator[dict[str, Any]]:
    """Predict the peaks of memory of `PEAKS`.

    The reports are of fused optimizers: what others make for a moment is AdamW's of
    torch/optim/adam.py, the square roots of a state of all parameters, or two tensors of one.
    """
    for report, changed, options in PEAKS:
        step, roles = recorded(report)
        assert step.optimizer is not None
        made = {"foreach": {"lists": 1}, "loop": {"singles": 2}}.get(
            options.get("optimizer", ""), {}
        )
        changes = Changes(
            dtype={"bf16": "bfloat16", "fp32": "float32"}.get(options.get("dtype", "")),
            compiled=options.get("compile", False),
            micro_batches=options.get("accumulate", 1), shards=options.get("fsdp", False),
            float32_shards="policy" not in options,
        )  # fmt: skip
        found = predict_report(
            [(replace(step, optimizer=replace(step.optimizer, **made)), roles)], changed,
            baseline(step.gpu), PyTorchOperators().call_at, changes,
        ).peak  # fmt: skip
        yield {
            "report": report, "changed": changed, "options": options,
            "peak_bytes": found and found.bytes, "by_kind": found and dict(found.by_kind),
        }  # fmt: skip


def scored(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Lines of a table of peaks by what was changed: committed before, and by today's code.

    What is left of the case before (`left_bytes`) is not taken off: it is of a collector that has
    not run yet, and gone when the step is measured. Without it two steps of two GPUs would have
    less memory than one of a single GPU.
    """
    frozen = json.loads((ONE / "peaks_frozen.json").read_text(encoding="utf-8"))
    key = ("report", "changed", "options")
    found: dict[str, list[tuple[float, float]]] = {}
    for path in sorted(ONE.glob("peaks_measured*.json")):
        for row in json.loads(path.read_text(encoding="utf-8")):
            measured = row["peak_bytes"]
            errors = [
                made["peak_bytes"] / measured - 1
                for each in (frozen, rows) for made in each if all(made[k] == row[k] for k in key)
            ]  # fmt: skip
            said = " ".join((row["report"], str(row["changed"]), str(row["options"])))
            yield f"{said} | {measured} | {' | '.join(f'{e:+.1%}' for e in errors)}"
            name = " ".join((*row["options"], "2 GPUs" if "p" in row["changed"] else ""))
            for group in (name.strip(), "all"):
                found.setdefault(group, []).append((errors[0], errors[1]))
    yield "changed | steps | mean error, frozen | most | mean error, today | most"
    for name, pairs in found.items():
        parts = [f"{mean(map(abs, each)):.1%} | {max(map(abs, each)):.1%}"
                 for each in zip(*pairs, strict=True)]  # fmt: skip
        yield f"{name} | {len(pairs)} | {' | '.join(parts)}"


def main() -> None:
    """Predict or score."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--predict", type=Path, help="write predictions of what was not timed")
    parser.add_argument("--groups", nargs="*", help="of known steps; all by default")
    parser.add_argument("--hosts", action="store_true", help="print what hosts take an operator")
    parser.add_argument("--all", action="store_true", help="print every step")
    parser.add_argument("--peaks", action="store_true", help="only the memory of `PEAKS`")
    given = parser.parse_args()
    if given.peaks:
        rows = [*peaks()]
        if given.predict:
            results.write(given.predict, rows)
        else:
            print("\n".join(scored(rows)))
        return
    if given.predict:
        rows = [predicted(Case("new", report, changed, None)) for report, changed in CASES]
        results.write(given.predict, rows)
        return
    same = [*same_host()]
    cases = [
        c for c in (*known(), *compiled(), *new()) if not given.groups or c.group in given.groups
    ]
    found = paces((*known(), *new(), *same))
    if given.hosts:
        for host, each in found.items():
            print(f"{host}: {math.exp(mean(map(math.log, each))) * 1e6:.1f} µs an operator, "
                  f"{len(each)} steps")  # fmt: skip
        return
    same = [replace(c, hosts=left_out(found, host_of(c))) for c in same]
    cases = [replace(c, hosts=left_out(found, host_of(c)), other_host=True) for c in cases]
    rows = [predicted(c) for c in (*cases, *same)] + [*anchored(cases), *own_time(same)]
    if given.all:
        for r in rows:
            error = r["step_s"] / r["measured_s"] - 1
            print(f"{r['group']} {r['report']} {r['changed']}: {r['measured_s'] * 1e3:.2f} ms, "
                  f"{error:+.1%}, {r['bound']}")  # fmt: skip
    print("\n".join((*text(rows), "", *memory(rows))))


if __name__ == "__main__":
    main()
