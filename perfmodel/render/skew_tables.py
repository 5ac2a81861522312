"""Tables of skew: collectives by how far apart ranks come, ranks by what their lateness costs."""

from __future__ import annotations

from typing import Final

from perfmodel.analysis.result import RunAnalysis
from perfmodel.base.table import Column, Table
from perfmodel.base.units import si
from perfmodel.timing.stragglers import Skew

SHOWN: Final = 10
"""Ranks that the terminal lists; files and JSON have them all."""


def collective_skew(run: RunAnalysis) -> Table:
    """Collectives by name and size: from the first rank's arrival to the last one's."""
    columns = (
        Column("name", "Collective"),
        Column("bytes", "Size", "si", "B"),
        Column("count", "Count", "int"),
        Column("p50_s", "Skew p50", "si", "s"),
        Column("p95_s", "p95", "si", "s"),
        Column("max_s", "Largest", "si", "s"),
        Column("last_rank", "Mostly last", "int"),
        Column("last_share", "in", "percent", digits=0),
    )
    rows = [
        (c.name, c.bytes, c.count, c.p50_s, c.p95_s, c.max_s, c.last_rank, c.last_share)
        for c in (run.skew.collectives if run.skew else ())
    ]
    return Table("Skew of collectives (first to last rank's arrival)", columns, rows)


def stragglers(run: RunAnalysis) -> Table:
    """Ranks by what their coming last costs, with how often and how late."""
    columns = (
        Column("rank", "Rank", "int"),
        Column("last", "Last in", "int"),
        Column("last_share", "of all", "percent", digits=0),
        Column("p50_s", "Late by p50", "si", "s"),
        Column("p95_s", "p95", "si", "s"),
        Column("max_s", "Largest", "si", "s"),
        Column("per_batch_s", "Per batch", "si", "s"),
        Column("busy_s", "Batch without waiting", "si", "s"),
    )
    rows = [
        (r.rank, r.last, r.last_share, r.p50_s, r.p95_s, r.max_s, r.per_batch_s, r.busy_s)
        for r in (run.skew.ranks if run.skew else ())
    ]
    return Table("Who comes last", columns, rows)


def stragglers_text(run: RunAnalysis) -> Table:
    """The same for the terminal: those that cost most, and what to know of them all."""
    whole = stragglers(run)
    title = f"Who comes last to {run.skew.count if run.skew else 0} collectives"
    notes = list(shortened(len(whole.rows)))
    if run.skew is not None:
        notes += _notes(run.skew, len(run.traces))
    late = [row for row in whole.rows if row[1]]
    return Table(title, whole.columns, late[:SHOWN], tuple(notes))


def shortened(rows: int) -> tuple[str, ...]:
    """Say where the rows are that the terminal does not show."""
    if rows <= SHOWN:
        return ()
    return (f"{SHOWN} of {rows} ranks; all of them with --out or --json",)


def _notes(skew: Skew, reports: int) -> list[str]:
    notes = [
        "late by: after the middle rank, when it was the last; per batch: all of that together"
    ]
    if skew.imbalance is not None and skew.imbalance_s is not None:
        notes.append(
            f"imbalance: without waiting the slowest rank takes {si(skew.imbalance_s, 's')} longer "
            f"than the mean, {skew.imbalance:.1%} (0 %: equal ranks, 100 %: one does everything)"
        )
    if reports > 1 and skew.clock_bound_s > 0:
        notes.append(f"the reports' clocks are known to {si(skew.clock_bound_s, 's')} either way")
    return notes
