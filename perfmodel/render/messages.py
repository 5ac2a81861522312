"""Tables of MPI's point-to-point messages, of who waits for whom, and of ranges by rank."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from perfmodel.analysis.result import RunAnalysis
from perfmodel.base.table import Column, Table
from perfmodel.render.tables import ALL, SHOWN

_MATRIX: Final = 16
"""Of so many ranks, at most, a matrix has room."""
_UNEQUAL: Final = 0.05
"""Ranges are listed for readers if their slowest rank takes so much more than the mean."""

PAIRS: Final = (
    Column("from", "From rank", "int", of="sender"),
    Column("to", "To rank", "int", of="receiver"),
    Column("messages", "Messages", "float", digits=1),
    Column("bytes", "Bytes", "si", "B"),
    Column("waiting_s", "Waiting", "si", "s"),
)


def pairs(run: RunAnalysis) -> Table:
    """Messages of every pair of ranks that has some, most waiting first."""
    found = run.messages.pairs if run.messages else ()
    lacking = run.messages.unmatched if run.messages else 0
    note = f"{lacking} sends and receives lack the other end, of ranks without a report"
    return Table.of("Messages between ranks, per step", found, PAIRS, [note] if lacking else [])


WAITERS: Final = (
    Column("rank", "Rank", "int"),
    Column("waiting_s", "Waits", "si", "s"),
    Column("caused_s", "Makes others wait", "si", "s"),
    Column("most_s", "one of them", "si", "s"),
)


def waiters(run: RunAnalysis) -> Table:
    """Waiting of every rank, and of all others that leads back to it."""
    found = run.messages.ranks if run.messages else ()
    return Table.of("Waiting and its cause by rank, per step", found, WAITERS)


CHAINS: Final = (
    Column("rank", "Rank", "int"),
    Column("peer", "waits for rank", "int"),
    Column("origin", "in turn waits for", "int"),
    Column("waiting_s", "Waiting", "si", "s"),
)


def chains(run: RunAnalysis) -> Table:
    """Waiting for a rank that waited itself."""
    found = run.messages.chains if run.messages else ()
    return Table.of("Waiting that is passed on, per step", found, CHAINS)


BY_RANK: Final = (
    Column("range", "Range", wrap=False),
    Column("path", "Path"),
    Column("rank", "Rank", "int"),
    Column("seconds", "Host", "si", "s"),
    Column("more_s", "More than the median rank", "si", "s"),
    Column("imbalance", "Imbalance", "percent", digits=0),
)


def by_rank(run: RunAnalysis) -> Table:
    """Every range on every rank."""
    return Table.of("Ranges by rank", run.ranges_by_rank, BY_RANK)


def blocks(run: RunAnalysis) -> Iterator[Table]:
    """Tables for readers: of many rows those that matter most."""
    if run.messages is not None:
        yield pairs(run).first(SHOWN, ALL)
        if len(run.ranks) <= _MATRIX:
            yield _matrix(run, "bytes", "Bytes", "B")
            yield _matrix(run, "waiting_s", "Waiting", "s")
        if run.messages.chains:
            yield chains(run).first(SHOWN, ALL)
    slowest = {r.path: r for r in sorted(run.ranges_by_rank, key=lambda r: r.seconds)}
    unequal = [r for r in slowest.values() if r.imbalance > _UNEQUAL]
    if run.messages is not None and unequal:
        columns = tuple(c for c in BY_RANK if c.key != "path")
        rows = sorted(unequal, key=lambda r: -r.more_s)
        yield Table.of("Ranges that are not equal: the slowest rank", rows, columns).first(
            SHOWN, ALL
        )


def _matrix(run: RunAnalysis, key: str, title: str, unit: str) -> Table:
    """One figure of every pair: a row for each sender, a column for each receiver."""
    found = run.messages.pairs if run.messages else ()
    cells = {(p.sender, p.receiver): getattr(p, key) for p in found}
    ranks = [row.rank for row in run.ranks]
    columns = (
        Column("from", "From", "int"),
        *(Column(f"to_{rank}", f"to {rank}", "si", unit) for rank in ranks),
    )
    rows = [[rank, *(cells.get((rank, other)) for other in ranks)] for rank in ranks]
    return Table(f"{title} from rank to rank, per step", columns, rows)
