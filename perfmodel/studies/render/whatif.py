"""What changes of a run of the trainer would save: tables, text and JSON of `whatif`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

from perfmodel.base.document import Head, plain_view
from perfmodel.base.table import Column, Table
from perfmodel.base.units import si
from perfmodel.render.result import Block, Result
from perfmodel.studies.analysis.question import Answer
from perfmodel.studies.analysis.whatif import WhatIf, words

if TYPE_CHECKING:
    from matplotlib.axes import Axes

VERSION: Final = 2
"""Version of the JSON document."""

_NAME: Final = Column("change", "Change", wrap=False, of="name")
_AT_MOST: Final = Column("at_most", "", of=lambda c: "≤" if c.source == "bound" else "")
_SAVING: Final = Column("saving_s", "Saves", "si", "s")
_LOW: Final = Column("low_s", "90 % from", "si", "s")
_HIGH: Final = Column("high_s", "to", "si", "s")
_REMOVES: Final = Column("removes", "Removes")
_NEXT: Final = (
    Column("next_low_s", "Next launch", "si", "s"),
    Column("next_high_s", "to", "si", "s"),
)


def result(what_if: WhatIf) -> Result:
    """Return the changes of one run in every format."""
    return Result(_blocks(what_if), lambda: what_if_document(what_if), warnings=what_if.warnings)


def _blocks(what_if: WhatIf) -> Iterator[Block]:
    yield f"{what_if.label}: {what_if.case.label}"
    yield changes_table(what_if)
    if what_if.path:
        yield path_table(what_if)
    yield free_table(what_if.question)
    if what_if.question.removed:
        yield removed_table(what_if.question)
    yield list(words(what_if))


def picture(what_if: WhatIf, ax: Axes | None = None) -> Axes:
    """Draw what every change would save, most first; without a title in axes of a caller."""
    from perfmodel.render.plot.bars import SavingBar, savings

    bars = []
    for c in sorted(what_if.changes, key=lambda c: -c.saving_s):
        low = c.low_s if c.next_low_s is None else c.next_low_s
        high = c.high_s if c.next_high_s is None else c.next_high_s
        bars.append(SavingBar(c.name, c.saving_s, low, high, c.source))
    title = None if ax else f"{what_if.label}: {what_if.case.label}"
    return savings(bars, what_if.batch_s, ax=ax, title=title)


def changes_table(what_if: WhatIf) -> Table:
    """One row per change that this run can make now, ranked."""
    notes = [
        "per batch (of a doubled one: per as many images); ≤: at most, by this report alone, else "
        "predicted; 90 %: what the model's coefficients, or this report's batches, leave open",
        *(f"{c.name}: less exact than the data type" for c in what_if.changes if not c.exact),
        *(f"{later.name}: {later.why}" for later in what_if.later),
    ]
    share = Column("share", "Share", "percent", digits=0, of=lambda c: c.saving_s / what_if.batch_s)
    launches = any(c.next_low_s is not None for c in what_if.changes)
    if launches:
        notes.append("next launch: 90 % of what it would show, as launches differ")
    columns = (_NAME, _AT_MOST, _SAVING, share, _LOW, _HIGH, *(_NEXT if launches else ()), _REMOVES)
    title = f"Savings of changes, of a step of {si(what_if.batch_s, 's', 4)}"
    return Table.of(title, what_if.changes, columns, notes)


def path_table(what_if: WhatIf) -> Table:
    """The greedy best sequence."""
    step = Column("step", "Step", wrap=False, of="name")
    if any(s.source == "model" for s in what_if.path):
        title, batch = "The best sequence", "Batch then"
        note = (
            "at every step the change of program that the model predicts to save most; what it "
            "cannot predict is left out"
        )
    else:
        title, batch = "The lowest bounds in sequence", "Batch then at least"
        note = "times are the least that this report allows, not predictions"
    columns = (step, _SAVING, Column("batch_s", batch, "si", "s"), _LOW, _HIGH, _REMOVES)
    return Table.of(title, what_if.path, columns, [note])


FREE: Final = (
    Column("name", "Free"),
    Column("seconds", "Takes", "si", "s"),
    Column("batch_s", "Batch at least", "si", "s"),
    Column("speedup", "Speed-up", "float", digits=2,
           of=lambda f: f.speedup if math.isfinite(f.speedup) else None),
    Column("flops_per_s", "FLOP/s at most", "si", "FLOP/s"),
)  # fmt: skip


def free_table(answer: Answer) -> Table:
    """Amdahl's bound by link and unit."""
    note = "what ran at the same time remains: hidden time saves nothing"
    return Table.of("If one link or unit took no time (Amdahl)", answer.free, FREE, [note])


REMOVED: Final = (
    Column("name", "Source"),
    Column("bytes", "Bytes", "si", "B"),
    Column("seconds", "Takes", "si", "s"),
    Column("intensity_flops_per_byte", "Intensity then", "si", "FLOP/B"),
    Column("flops_per_s", "FLOP/s at most", "si", "FLOP/s"),
)


def removed_table(answer: Answer) -> Table:
    """What removing each source of bytes does."""
    note = "bytes by the assignment's counting; no intensity: no other bytes are left"
    return Table.of("Without one source of bytes", answer.removed, REMOVED, [note])


def what_if_document(
    what_if: WhatIf,
) -> Annotated[dict[str, Any], Head, WhatIf, {"answer": Sequence[str]}]:
    """What `perfmodel whatif --json` prints of the trainer's reports.

    Keys
    ----
    answer
        `question` in sentences.
    """
    return plain_view(Head(VERSION), what_if, answer=words(what_if))
