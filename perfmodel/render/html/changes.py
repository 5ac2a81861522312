"""What to change: the ranked changes of `perfmodel whatif`, findings, cautions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from perfmodel.analysis.result import RunAnalysis
from perfmodel.analysis.whatif import WhatIf, words
from perfmodel.base.units import si
from perfmodel.render import summary
from perfmodel.render import whatif as whatif_report
from perfmodel.render.html.blocks import Advice, Block, Notice, Words, grid
from perfmodel.render.html.lead import percent

_INSTEAD: Final = (
    "the changes are those of perfmodel's own trainer, which says in its report how it ran; for "
    "another program the findings below say what to change and what that saves at most"
)


def what_if(said: WhatIf | str) -> Iterator[Block]:
    """Yield the changes ranked, or why there are none."""
    if isinstance(said, str):
        yield Notice("The changes of the ladder cannot be ranked.", f"{said}; {_INSTEAD}")
        return
    for warning in said.warnings:
        yield Notice("Take the predictions with care.", warning)
    batch = {"saving_s": said.batch_s}
    yield grid(whatif_report.changes_table(said), full=batch, plain=("share",))
    if said.path:
        yield grid(whatif_report.path_table(said), full={"batch_s": said.batch_s})
    yield grid(whatif_report.free_table(said.answer), full={"batch_s": said.batch_s})
    if said.answer.removed:
        yield grid(whatif_report.removed_table(said.answer))
    yield Words("What raises intensity and FLOP/s", tuple(words(said)), listed=True)


def findings(run: RunAnalysis) -> Iterator[Block]:
    """Yield findings, largest saving first, and cautions."""
    batch = run.batch.median.value
    for f in run.findings:
        share = None if f.saving_s is None else f.saving_s / batch
        saving = "" if share is None else f"up to {si(f.saving_s, 's')} ({percent(share)})"
        yield Advice(f.title, saving, share, f.evidence, f.action)
    if not run.findings:
        yield Words("", ("Nothing was found that is worth one percent of a batch.",))
    said = cautions(run)
    if said:
        yield Words("Cautions", said, listed=True)


def cautions(run: RunAnalysis) -> tuple[str, ...]:
    """What was not collected or does not fit, and what Nsight Systems says of its collection."""
    nsys = dict.fromkeys(d for t in run.traces for d in summary.complaints(t))
    return (*run.warnings, *(f"Nsight Systems says: {text}" for text in nsys))
