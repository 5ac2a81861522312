"""What changes of the graph of steps would save: tables and the picture of `whatif`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from perfmodel.analysis.changes import GraphChanges
from perfmodel.base.table import Column, Table
from perfmodel.base.units import si
from perfmodel.render.result import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
        "by a replay of the recorded steps, and of findings as they say; savings overlap and do "
        "not add up: --apply A,B replays several changes at once",
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
