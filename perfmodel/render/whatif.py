"""What changes would save: tables, text and JSON of `whatif`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from perfmodel.analysis.changes import GraphChanges
from perfmodel.analysis.question import Answer, Source
from perfmodel.analysis.splits import Parallelisms
from perfmodel.analysis.whatif import Later, Saving, Step, WhatIf, words
from perfmodel.base.document import LEFT_OUT, pick, plain
from perfmodel.base.table import Column, Table
from perfmodel.base.units import si
from perfmodel.render.result import Block, Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes

VERSION: Final = 1
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


def result(said: WhatIf) -> Result:
    """Return the changes of one run in every format."""
    return Result(_blocks(said), lambda: document(said), warnings=said.warnings)


GRAPH: Final = (
    Column("name", "Change", wrap=False),
    Column("change", "In the replay"),
    Column("saving_s", "Saves", "si", "s"),
    Column("share", "Share", "percent", digits=0),
    Column("step_s", "Step then", "si", "s", digits=4),
)


_HIDDEN: Final = 0.01
"""Changes that save a smaller share are listed for what they save after others."""


def graph_result(said: GraphChanges) -> Result:
    """Return what changes of the graph of any program's steps would save, in every format."""
    return Result(graph_tables(said), lambda: said, warnings=said.warnings)


def graph_tables(said: GraphChanges) -> list[Table]:
    """What each change would save, and all that are applied together."""
    notes = [
        "by a replay of the recorded steps; savings overlap and do not add up: --apply A,B replays "
        "several changes at once",
        "what to change, and the evidence: perfmodel analyze",
    ]
    hidden = [one.name for one in said.changes if one.share < _HIDDEN]
    if hidden:
        notes.insert(
            1, f"the host hides what saves nothing: --apply {said.changes[0].name},{hidden[0]}"
        )
    step = f"{si(said.step_s, 's', 4)}{said.without and f' without {said.without}'}"
    title = f"Savings of changes, of a step of {step} ({said.label})"
    tables = [Table.of(title, said.changes, GRAPH, notes)]
    if said.together is not None:
        tables.append(Table.of("Together", [said.together], GRAPH))
    return tables


def _blocks(said: WhatIf) -> Iterator[Block]:
    yield f"{said.label}: {said.case.label}"
    yield changes_table(said)
    if said.path:
        yield path_table(said)
    yield free_table(said.answer)
    if said.answer.removed:
        yield removed_table(said.answer)
    yield list(words(said))


def picture(said: WhatIf, ax: Axes | None = None) -> Axes:
    """Draw what every change would save, most first; without a title in axes of a caller."""
    from perfmodel.render.plot.bars import SavingBar, savings

    bars = []
    for c in sorted(said.changes, key=lambda c: -c.saving_s):
        low = c.low_s if c.next_low_s is None else c.next_low_s
        high = c.high_s if c.next_high_s is None else c.next_high_s
        bars.append(SavingBar(c.name, c.saving_s, low, high, c.source))
    title = None if ax else f"{said.label}: {said.case.label}"
    return savings(bars, said.batch_s, ax=ax, title=title)


def graph_picture(said: GraphChanges) -> Axes:
    """Draw what each change of the graph would save, most first, and all that are applied."""
    from perfmodel.render.plot.bars import SavingBar, savings

    together = () if said.together is None else (said.together,)
    order = sorted(said.changes, key=lambda c: -(c.saving_s or 0.0))
    bars = [
        SavingBar(c.name, c.saving_s, None, None, "replay")
        for c in (*together, *order)
        if c.saving_s is not None
    ]
    return savings(bars, said.step_s, title=f"{said.label}: step without one loss")


def changes_table(said: WhatIf) -> Table:
    """One row per change that this run can make now, ranked."""
    notes = [
        "per batch (of a doubled one: per as many images); ≤: at most, by this report alone, else "
        "predicted; 90 %: what the model's coefficients, or this report's batches, leave open",
        *(f"{c.name}: less exact than the data type" for c in said.changes if not c.exact),
        *(f"{later.name}: {later.why}" for later in said.later),
    ]
    share = Column("share", "Share", "percent", digits=0, of=lambda c: c.saving_s / said.batch_s)
    launches = any(c.next_low_s is not None for c in said.changes)
    if launches:
        notes.append("next launch: 90 % of what it would show, as launches differ")
    columns = (_NAME, _AT_MOST, _SAVING, share, _LOW, _HIGH, *(_NEXT if launches else ()), _REMOVES)
    title = f"Savings of changes, of a step of {si(said.batch_s, 's', 4)}"
    return Table.of(title, said.changes, columns, notes)


def path_table(said: WhatIf) -> Table:
    """The greedy best sequence."""
    step = Column("step", "Step", wrap=False, of="name")
    if any(s.source == "model" for s in said.path):
        title, batch = "The best sequence", "Batch then"
        note = (
            "at every step the change of program that the model predicts to save most; what it "
            "cannot predict is left out"
        )
    else:
        title, batch = "The lowest bounds in sequence", "Batch then at least"
        note = "times are the least that this report allows, not predictions"
    columns = (step, _SAVING, Column("batch_s", batch, "si", "s"), _LOW, _HIGH, _REMOVES)
    return Table.of(title, said.path, columns, [note])


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


@dataclass(frozen=True)
class ChangedPhase:
    """A phase that a change makes shorter: as it is, and then."""

    name: str
    now_s: float | None
    then_s: float | None


@dataclass(frozen=True)
class ChangeDocument:
    """A change and what it would save of a batch.

    Attributes
    ----------
    predicted_s : float or None
        The batch then, by the model; with a bound `at_most_saving_s` stands in its place.
    saving_s, low_s, high_s : float
        With 90 %.
    next_low_s, next_high_s : float or None
        What another run would show.
    alone_s : float or None
        The batch by the model alone.
    source : str
        model or bound.
    exact : bool
        Whether results keep their accuracy.
    """

    name: str
    change: str
    removes: str
    saving_s: float
    low_s: float
    high_s: float
    next_low_s: float | None
    next_high_s: float | None
    alone_s: float | None
    source: Source
    exact: bool
    sizes: Mapping[str, int]
    settings: Mapping[str, str]
    phases: tuple[ChangedPhase, ...]
    notes: tuple[str, ...]
    predicted_s: float | None = field(default=None, metadata=LEFT_OUT)
    at_most_saving_s: float | None = field(default=None, metadata=LEFT_OUT)


@dataclass(frozen=True)
class PathStep:
    """A step of the best sequence of changes; `at_least_s` stands for `predicted_s` of a bound."""

    name: str
    removes: str
    low_s: float
    high_s: float
    saving_s: float
    source: Source
    settings: Mapping[str, str]
    predicted_s: float | None = field(default=None, metadata=LEFT_OUT)
    at_least_s: float | None = field(default=None, metadata=LEFT_OUT)


@dataclass(frozen=True)
class WhatIfDocument:
    """What `perfmodel whatif --json` prints of the trainer's reports.

    Attributes
    ----------
    batch_s, low_s, high_s : float
        The median batch of the report, and 90 % by its batches.
    interval : float
        Probability of all intervals.
    later : tuple of Later
        Changes that others must come before, or that cannot be predicted.
    path : tuple of PathStep
        The greedy best sequence.
    model_parallel : Parallelisms or None
    question : Answer
        To the assignment's Question 2.6.
    answer : tuple of str
        The same in sentences.
    """

    format: str
    version: int
    report: str
    sizes: Mapping[str, int]
    settings: Mapping[str, str]
    batch_s: float
    low_s: float
    high_s: float
    interval: float
    changes: tuple[ChangeDocument, ...]
    later: tuple[Later, ...]
    path: tuple[PathStep, ...]
    model_parallel: Parallelisms | None
    question: Answer
    answer: tuple[str, ...]
    warnings: tuple[str, ...]


def document(said: WhatIf) -> dict[str, Any]:
    """Return what `whatif --json` prints; times in seconds, per batch."""
    made: dict[str, Any] = plain(
        WhatIfDocument(
            format="perfmodel whatif",
            version=VERSION,
            report=said.label,
            **pick(said.case, "sizes settings"),
            **pick(said, "batch_s low_s high_s later warnings"),
            interval=0.9,
            changes=tuple(_change(c) for c in said.changes),
            path=tuple(_step(s) for s in said.path),
            model_parallel=said.parallel,
            question=said.answer,
            answer=tuple(words(said)),
        )
    )
    return made


def _change(c: Saving) -> ChangeDocument:
    by_model = c.source == "model"
    return ChangeDocument(
        **pick(c, "name change removes saving_s low_s high_s next_low_s next_high_s alone_s"),
        **pick(c, "source exact notes"),
        **pick(c.case, "sizes settings"),
        phases=tuple(ChangedPhase(name, *times) for name, times in c.phases.items()),
        predicted_s=c.batch_s if by_model else None,
        at_most_saving_s=None if by_model else c.saving_s,
    )


def _step(s: Step) -> PathStep:
    by_model = s.source == "model"
    return PathStep(
        **pick(s, "name removes low_s high_s saving_s source"),
        settings=s.case.settings,
        predicted_s=s.batch_s if by_model else None,
        at_least_s=None if by_model else s.batch_s,
    )
