"""Scores predictions from one report against steps that were timed without a profiler.

    python -m benchmarks.predict.one --predict benchmarks/results/one/predictions.json
    python -m benchmarks.predict.one

The first writes what every report predicts of `one_runs.CASES` (frozen by a commit before these
were timed), the second scores it, and predicts the GPTs of `gpt_sizes` and the programs of
profiles/programs anew. `tuned` was looked at while the first model was made, and all groups since:
when the optimizer's host time was made to grow with its tensors, when `timed` of usual.toml was
chosen, and when it was chosen what torch.compile leaves apart. Nothing else was fitted to them.

Nearly all were timed on other hosts than the reports'. So every step is predicted once more with
one anchor: the time of another step of the program on that host, the next one that informs (`one
timed step`; `without` is the mean error of the same steps without it). A report's own step is
predicted from others with a report of another program of its host (`one report`). The step that is
predicted is never its own anchor.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.predict.one_runs import CASES
from perfmodel.base.errors import ModelError
from perfmodel.machines.grids import grid_of
from perfmodel.models.one_report import Changes, TimedStep, predict_report
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
VISIT = ("gpt_shapes", "llama_shapes", "llama_heads_shapes", "bert_shapes")
"""Reports of one host, within nine minutes; the first is predicted by the others."""


@dataclass(frozen=True)
class Case:
    """A step that is predicted from a report, and its time where it is known."""

    group: str
    report: str
    changed: Mapping[str, int]
    step_s: float | None
    gpu: str = "NVIDIA H200"
    peak_bytes: int | None = None
    anchors: tuple[str | TimedStep, ...] = ()
    compiled: bool = False


@cache
def recorded(report: str) -> tuple[RecordedStep, Roles]:
    """The step of a report, and the roles of its sizes."""
    operators = PyTorchOperators()
    step = operators.recorded_step(read(PROGRAMS / f"{report}.sqlite.xz"), Options(), {})
    return step, operators.roles(step, {})


@cache
def baseline(gpu: str) -> Baseline:
    """The shipped grid of a GPU."""
    measured = grid_of(gpu)
    assert measured is not None
    return Baseline.of(measured.machine, measured)


def predicted(case: Case) -> dict[str, Any]:
    """Predict a case."""
    step, roles = recorded(case.report)
    other = baseline(case.gpu) if case.gpu != step.gpu else None
    anchors = [recorded(a)[0] if isinstance(a, str) else a for a in case.anchors]
    whole = predict_report(
        step,
        roles,
        case.changed,
        baseline(step.gpu),
        PyTorchOperators().call_at,
        Changes(other, compiled=case.compiled),
        anchors,
    )
    peak, found = whole.peak, whole.step
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


def visits() -> Iterator[Case]:
    """A GPT on another host than the report's, known by a report of another program there."""
    first, *others = VISIT
    truth = json.loads((PROGRAMS / f"{first}.truth.json").read_text(encoding="utf-8"))
    sizes = recorded(first)[1].values
    for report in ("gpt_modules", "gpt_both"):
        plain = Case("a report's host", report, sizes, truth["step_s_bare"])
        yield plain
        for anchor in others:
            yield replace(plain, group="a report's host, one report", anchors=(anchor,))


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


def text(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Lines of a table: errors by group and by what sets the step."""
    yield "group | set by | steps | mean error | without | most | bias | inside 90 % | half-width"
    keys = sorted({(r["group"], bound) for r in rows for bound in ("all", r["bound"])})
    for group, bound in keys:
        mine = [r for r in rows if r["group"] == group and bound in ("all", r["bound"])]
        errors = [r["step_s"] / r["measured_s"] - 1 for r in mine]
        inside = sum(r["low_s"] <= r["measured_s"] <= r["high_s"] for r in mine) / len(mine)
        wide = sum(math.sqrt(r["high_s"] / r["low_s"]) - 1 for r in mine) / len(mine)
        sizes = [abs(e) for e in errors]
        plain = [abs(r["without_s"] / r["measured_s"] - 1) for r in mine if "without_s" in r]
        without = f"{sum(plain) / len(plain):.1%}" if plain else ""
        yield (
            f"{group} | {bound} | {len(mine)} | {sum(sizes) / len(mine):.1%} | {without} | "
            f"{max(sizes):.1%} | "
            f"{sum(errors) / len(mine):+.1%} | {inside:.0%} | {wide:.0%}"
        )


def memory(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Lines of a table: errors of the peak of memory by report, on one GPU of each kind."""
    yield "peak memory | steps | mean error | most | bias"
    mine = [r for r in rows if r["measured_bytes"] and not r["group"].endswith("timed step")]
    for report in (*sorted({r["report"] for r in mine}), ""):
        errors = [r["peak_bytes"] / r["measured_bytes"] - 1 for r in mine
                  if report in ("", r["report"])]  # fmt: skip
        sizes = [abs(e) for e in errors]
        if sizes:
            yield (
                f"{report or 'all'} | {len(sizes)} | {sum(sizes) / len(sizes):.1%} | "
                f"{max(sizes):.1%} | {sum(errors) / len(errors):+.1%}"
            )


def main() -> None:
    """Predict or score."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--predict", type=Path, help="write predictions of what was not timed")
    parser.add_argument("--groups", nargs="*", help="of known steps; all by default")
    parser.add_argument("--all", action="store_true", help="print every step")
    given = parser.parse_args()
    if given.predict:
        rows = [predicted(Case("new", report, changed, None)) for report, changed in CASES]
        given.predict.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
        return
    cases = [*known(), *compiled(), *new()]
    cases = [c for c in cases if not given.groups or c.group in given.groups]
    rows = [predicted(c) for c in (*cases, *visits())] + [*anchored(cases)]
    if given.all:
        for r in rows:
            error = r["step_s"] / r["measured_s"] - 1
            print(f"{r['group']} {r['report']} {r['changed']}: {r['measured_s'] * 1e3:.2f} ms, "
                  f"{error:+.1%}, {r['bound']}")  # fmt: skip
    print("\n".join((*text(rows), "", *memory(rows))))


if __name__ == "__main__":
    main()
