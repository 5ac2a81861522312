"""A GPT on eight GPUs by DDP and FSDP: what perfmodel says of the reports."""

from __future__ import annotations

import json
import statistics
from typing import Any, Final

import perfmodel
from benchmarks.common import folders
from benchmarks.common.pages import markdown

REPORTS: Final = {
    "gpt_ddp8": "DDP", "gpt_straggler8": "DDP, rank 1 late", "gpt_fsdp8": "FSDP",
}  # fmt: skip
FOLDER: Final = folders.PROGRAMS
SPLIT: Final = (
    "report; step=s; without profiler=s; computing=s; communication=s; exposed=s; waiting=s; "
    "GPU idle=s; last rank"
)
SUMS: Final = (
    "report; collective; size=B; per step=float.1; transfer=s; waiting=s; exposed=s; bus=B/s"
)


def text() -> str:
    """Return the parts of a step, and its collectives."""
    split, sums = [], []
    for name, words in REPORTS.items():
        run = perfmodel.analyze(FOLDER / f"{name}.sqlite.xz").analysis.fitted
        truth = json.loads((FOLDER / f"{name}.truth.json").read_text(encoding="utf-8"))
        split.append(_split(words, run.steps, truth["step_s_bare"]))
        sums += [
            (words, c.name.removeprefix("NCCL "), c.bytes, c.count, c.transfer_s, c.waiting_s,
             c.exposed_s, c.bus_bytes_per_s)
            for c in run.collectives
        ]  # fmt: skip
    return f"{markdown(SPLIT, split)}\n\n{markdown(SUMS, sums)}"


def _split(words: str, steps: Any, bare_s: float) -> tuple[object, ...]:
    """Return medians over ranks, as recorded; the last rank is the one that waits least."""
    parts = [
        (r.step_s, r.compute_s, r.collectives_s, r.part_s("communication") + r.part_s("waiting"),
         waiting_s, r.idle_s)
        for r, waiting_s in zip(steps.ranks, steps.waiting_s, strict=True)
    ]  # fmt: skip
    step, *rest = (statistics.median(column) for column in zip(*parts, strict=True))
    least_s, last = min(zip(steps.waiting_s, (r.rank for r in steps.ranks), strict=True))
    return words, step, bare_s, *rest, f"{last}, waits {1e3 * least_s:.2g} ms"
