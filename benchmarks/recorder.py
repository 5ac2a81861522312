"""Score the step without the profiler against steps that were timed without one.

    python -m benchmarks.recorder FOLDER [FOLDER ...] [--half fitted|other] [--factors]

Every FOLDER holds reports (`NAME.sqlite.xz`, and traces of torch.profiler, `NAME_rankN.json.xz`)
beside `NAME.truth.json` with the seconds of a step without a profiler. Programs, not recordings,
are in two halves: `perfmodel/timing/recorders.toml` was fitted to the first one (`FITTED`) and not
to the other one. With `--factors` the table says by what every
cost would have to be multiplied for the time without a profiler to come out: the 5th and the 95th
percentile of the host-limited recordings of the fitted half are `low` and `high` there.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.common import results
from perfmodel.analysis.runs import time_runs
from perfmodel.analysis.steps import break_down
from perfmodel.base.table import Column, Table, render
from perfmodel.programs import steps_of_run
from perfmodel.programs.program import Options
from perfmodel.readers import read
from perfmodel.timing.recorder import Recorder, unrecorded
from perfmodel.timing.run import Run
from perfmodel.timing.run_exchanges import exchanges_of, kernels_of, lane_ranks
from perfmodel.timing.run_graph import replay_of

TRUTHS: Final = ("step_s_bare", "step_s_without_profiler")
"""Keys of truth files; `step_s_profiled` and `step_s` were timed while it was recorded."""
SAME_PROGRAM: Final = re.compile(r"(_both|_shapes|_timing|_timed|_trace|_b\d+|_p\d+)+$")
"""Ends of names that say how a program was recorded, or its batch."""
GPU_LIMITED: Final = 1.1
"""The GPU limits a step that takes less than so many times the GPU's work without a profiler."""
FITTED: Final = (
    "gpt", "empty_cache", "video", "pageable", "gpt_unnamed", "gpt2_compiled", "gan", "conv32",
    "bert", "resnet34", "straggler", "dataloader", "item", "loop_optimizer", "gpt_small", "ddp",
    "convnext", "late_allreduce",
    "gpt_deep", "gpt_deep_item", "gpt_deep_pageable", "gpt_deep_loop_optimizer",
    "gpt_deep_dataloader", "gpt_deep_empty_cache", "llama_thin", "mobilenet", "efficientnet",
    "swin", "densenet", "vit",
)  # fmt: skip
"""The first 18 of 36 programs, ordered by the SHA-256 of their names; and 12 that were recorded to
test what the first ones gave, on two other hosts, and then used to fit the exponent."""


@dataclass(frozen=True)
class Scored:
    """One recording: what is said of it, and the time without a profiler."""

    name: str
    program: str
    recorder: Recorder
    truth_s: float
    busy_s: float
    factor: float

    @property
    def half(self) -> str:
        """Whether its program was fitted."""
        return "fitted" if self.program in FITTED else "other"

    @property
    def kind(self) -> str:
        """What limits the step without a profiler, and whether sizes were recorded."""
        if self.truth_s < GPU_LIMITED * self.busy_s:
            return "GPU"
        return "host, sizes" if "sized_range" in self.recorder.by_kind else "host"

    @property
    def error(self) -> float | None:
        """Of the estimate, relative to the truth."""
        without = self.recorder.without_s
        return None if without is None else without / self.truth_s - 1.0

    @property
    def inside(self) -> bool | None:
        """Whether the truth is in the interval, to 1 %: no end is outside of what was recorded."""
        low, high = self.recorder.low_s, self.recorder.high_s
        if low is None or high is None:
            return None
        return 0.99 * low <= self.truth_s <= 1.01 * high


def recordings(folders: Sequence[Path]) -> Iterator[tuple[str, list[Path], float]]:
    """Yield names, files and times without a profiler."""
    for folder in folders:
        for path in sorted(folder.glob("*.truth.json")):
            said = json.loads(path.read_text("utf-8"))
            truth = next((said[key] for key in TRUTHS if said.get(key)), None)
            name = path.name.removesuffix(".truth.json")
            for files in (
                [*folder.glob(f"{name}.sqlite.xz")],
                sorted(folder.glob(f"{name}_rank*.json.xz")),
            ):
                if truth and files:
                    yield (
                        f"{folder.name}/{name}" + ".json" * (".json" in files[0].name),
                        files,
                        truth,
                    )


def scored(name: str, files: Sequence[Path], truth_s: float, factors: bool) -> Scored | None:
    """Analyze one recording; None where it has no steps."""
    run = time_runs([read(file) for file in files], Options())[0]
    counted = steps_of_run(run)
    steps = break_down(run.steps, exchanges_of(run), counted)
    said = steps.facts.recorder
    if said is None:
        return None
    program = SAME_PROGRAM.sub("", name.partition("/")[2].removesuffix(".json"))
    busy_s = max((r.gpu_busy_s or 0.0) - (r.waiting_s or 0.0) for r in steps.ranks)
    factor = factor_of(run, counted.step_s, truth_s) if factors else np.nan
    return Scored(name, program, said, truth_s, busy_s, factor)


def factor_of(run: Run, recorded_s: float, truth_s: float) -> float:
    """By what all costs must be multiplied for the step to take as long as it did."""
    sent, numbered = kernels_of(run.steps), lane_ranks(run.steps)
    replay = replay_of(run.steps, numbered, sent, exchanges_of(run), recorded_s)
    graphs = [graph for report in run.steps for graph in report.graphs]
    tried = np.linspace(0, 2.5, 26)
    steps = [min(replay.step_s(unrecorded(graphs, f)), recorded_s) for f in tried]
    return float(np.interp(-truth_s, -np.array(steps), tried))


_COLUMNS: Final = (
    Column("name", "recording"), Column("half", "half"), Column("kind", "limit"),
    Column("recorded_s", "recorded", "si", "s", of="recorder.step_s"),
    Column("without_s", "estimate", "si", "s", of="recorder.without_s"),
    Column("low_s", "low", "si", "s", of="recorder.low_s"),
    Column("high_s", "high", "si", "s", of="recorder.high_s"),
    Column("truth_s", "without profiler", "si", "s"),
    Column("error", "error", "percent"), Column("inside", "inside"),
    Column("factor", "factor", "float", digits=2),
)  # fmt: skip


def summary(rows: Sequence[Scored]) -> Iterator[str]:
    """Errors by what limits the step."""
    for half in ("fitted", "other"):
        for kind in ("host", "host, sizes", "GPU"):
            mine = [r for r in rows if r.half == half and r.kind == kind and r.error is not None]
            if not mine:
                continue
            errors = np.abs([r.error or 0.0 for r in mine])
            recorded = np.abs([r.recorder.step_s / r.truth_s - 1 for r in mine])
            inside = sum(r.inside is True for r in mine)
            yield (
                f"{half:6} {kind:11} {len(mine):2} recordings: median error "
                f"{np.median(errors):.1%}, nine in ten within {np.quantile(errors, 0.9):.1%} "
                f"(as recorded {np.median(recorded):.1%}, {np.quantile(recorded, 0.9):.1%}); "
                f"{inside} inside"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--half", choices=("fitted", "other"))
    parser.add_argument("--factors", action="store_true")
    parser.add_argument("--out", type=Path, help="results, as benchmarks/results/recorder.json")
    asked = parser.parse_args()
    rows = []
    for name, files, truth_s in recordings(asked.folders):
        program = SAME_PROGRAM.sub("", name.partition("/")[2].removesuffix(".json"))
        if asked.half and (program in FITTED) != (asked.half == "fitted"):
            continue
        one = scored(name, files, truth_s, asked.factors)
        if one is not None:
            rows.append(one)
    found, said = Table.of("Steps without the profiler", rows, _COLUMNS), [*summary(rows)]
    print("\n".join((render(found), *said)))
    if asked.out:
        results.write_tables(asked.out, [found], summary=said)


if __name__ == "__main__":
    main()
