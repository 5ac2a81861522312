"""Text, tables and JSON of what `whatif` says."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any, Final

from perfmodel.analysis.whatif_result import Saving, Step, WhatIf
from perfmodel.base.table import Column, Table
from perfmodel.base.units import si
from perfmodel.programs.mlp.question import Answer
from perfmodel.programs.mlp.words import words

VERSION: Final = 1
"""Version of the JSON document."""


def changes_table(said: WhatIf) -> Table:
    """One row per change that this run can make now, ranked."""
    notes = [
        "per batch (of a doubled one: per as many images); ≤: at most, by this report alone, else "
        "predicted; 90 %: what the model's coefficients, or this report's batches, leave open",
        *(f"{c.name}: less exact than the data type" for c in said.changes if not c.exact),
        *(f"{later.name}: {later.why}" for later in said.later),
    ]
    columns = [
        Column("change", "Change", wrap=False),
        Column("at_most", ""),
        Column("saving_s", "Saves", "si", "s"),
        Column("share", "Share", "percent", digits=0),
        Column("low_s", "90 % from", "si", "s"),
        Column("high_s", "to", "si", "s"),
        Column("removes", "Removes"),
    ]
    rows: list[list[object]] = [
        [c.name, "≤" if c.source == "bound" else "", c.saving_s, c.saving_s / said.batch_s,
         c.low_s, c.high_s, c.removes]
        for c in said.changes
    ]  # fmt: skip
    if any(c.next_low_s is not None for c in said.changes):
        notes.append("next launch: 90 % of what it would show, as launches differ")
        columns[6:6] = [
            Column("next_low_s", "Next launch", "si", "s"),
            Column("next_high_s", "to", "si", "s"),
        ]
        for row, c in zip(rows, said.changes, strict=True):
            row[6:6] = [c.next_low_s, c.next_high_s]
    title = f"What changes would save of {si(said.batch_s, 's', 4)} a batch"
    return Table(title, tuple(columns), rows, tuple(notes))


def path_table(said: WhatIf) -> Table:
    """The greedy best sequence."""
    by_model = any(s.source == "model" for s in said.path)
    note = (
        "the change of program that the model says saves most, again and again; what it cannot "
        "tell is not climbed"
        if by_model
        else "times are the least that this report allows, not predictions"
    )
    return Table(
        "The best sequence" if by_model else "The lowest bounds in sequence",
        (
            Column("step", "Step", wrap=False),
            Column("saving_s", "Saves", "si", "s"),
            Column("batch_s", "Batch then" if by_model else "Batch then at least", "si", "s"),
            Column("low_s", "90 % from", "si", "s"),
            Column("high_s", "to", "si", "s"),
            Column("removes", "Removes"),
        ),
        [(s.name, s.saving_s, s.batch_s, s.low_s, s.high_s, s.removes) for s in said.path],
        notes=(note,),
    )


def free_table(answer: Answer) -> Table:
    """Amdahl's bound by link and unit."""
    return Table(
        "If one link or unit took no time (Amdahl)",
        (
            Column("name", "Free"),
            Column("seconds", "Takes", "si", "s"),
            Column("batch_s", "Batch at least", "si", "s"),
            Column("speedup", "Speed-up", "float", digits=2),
            Column("flops_per_s", "FLOP/s at most", "si", "FLOP/s"),
        ),
        [
            (f.name, f.seconds, f.batch_s, f.speedup if math.isfinite(f.speedup) else None,
             f.flops_per_s)
            for f in answer.free
        ],
        notes=("what runs beside it then shows: hidden time saves nothing",),
    )  # fmt: skip


def removed_table(answer: Answer) -> Table:
    """What removing each source of bytes does."""
    return Table(
        "Without one source of bytes",
        (
            Column("name", "Source"),
            Column("bytes", "Bytes", "si", "B"),
            Column("seconds", "Takes", "si", "s"),
            Column("intensity_flops_per_byte", "Intensity then", "si", "FLOP/B"),
            Column("flops_per_s", "FLOP/s at most", "si", "FLOP/s"),
        ),
        [
            (r.name, r.bytes, r.seconds, r.intensity_flops_per_byte, r.flops_per_s)
            for r in answer.removed
        ],
        notes=("bytes by the document's counting; no intensity: no other bytes are left",),
    )


def document(said: WhatIf) -> dict[str, Any]:
    """Return what `whatif --json` prints; times in seconds, per batch."""
    parallel = None if said.parallel is None else asdict(said.parallel)
    return {
        "format": "perfmodel whatif",
        "version": VERSION,
        "report": said.label,
        "sizes": dict(said.case.sizes),
        "settings": dict(said.case.settings),
        "batch_s": said.batch_s,
        "low_s": said.low_s,
        "high_s": said.high_s,
        "interval": 0.9,
        "changes": [_change(c) for c in said.changes],
        "later": [asdict(later) for later in said.later],
        "path": [_step(s) for s in said.path],
        "model_parallel": parallel,
        "question": _answer(said.answer),
        "answer": list(words(said)),
        "warnings": list(said.warnings),
    }


def _change(c: Saving) -> dict[str, Any]:
    told = {"predicted_s": c.batch_s} if c.source == "model" else {"at_most_saving_s": c.saving_s}
    return {
        "name": c.name,
        "change": c.change,
        "removes": c.removes,
        **told,
        "saving_s": c.saving_s,
        "low_s": c.low_s,
        "high_s": c.high_s,
        "next_low_s": c.next_low_s,
        "next_high_s": c.next_high_s,
        "alone_s": c.alone_s,
        "source": c.source,
        "exact": c.exact,
        "sizes": dict(c.case.sizes),
        "settings": dict(c.case.settings),
        "phases": [
            {"name": name, "now_s": now, "then_s": then} for name, (now, then) in c.phases.items()
        ],
        "notes": list(c.notes),
    }


def _step(s: Step) -> dict[str, Any]:
    told = "predicted_s" if s.source == "model" else "at_least_s"
    return {
        "name": s.name, "removes": s.removes, told: s.batch_s, "low_s": s.low_s,
        "high_s": s.high_s, "saving_s": s.saving_s, "source": s.source,
        "settings": dict(s.case.settings),
    }  # fmt: skip


def _answer(a: Answer) -> dict[str, Any]:
    found = asdict(a)
    for row in found["free"]:
        if not math.isfinite(row["speedup"]):
            row["speedup"] = None
    return found
