"""A scaling study as tables, sentences, a picture and JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, Final

from perfmodel.base.document import Head, plain_view
from perfmodel.base.table import Column, Table
from perfmodel.base.units import percent, si
from perfmodel.models.scaling_laws import Fit
from perfmodel.render.result import Block, Result
from perfmodel.studies.analysis.measure import Split
from perfmodel.studies.analysis.scaling import Bandwidth, ScalingSeries, Study, links

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from perfmodel.machines.machine import Link

SCHEMA_VERSION: Final = 2
_UNFIT: Final = 0.1
"""Above this misfit a law does not describe the points."""


def result(found: Study, rows: Sequence[Bandwidth]) -> Result:
    """Return a study and its all-reduces in every format."""
    return Result(
        _blocks(found, rows), lambda: scaling_document(found, rows), warnings=found.warnings
    )


def _blocks(found: Study, rows: Sequence[Bandwidth]) -> Iterator[Block]:
    """Yield a table for every series, then communication against computing, then bandwidths."""
    yield from map(series_table, found.series)
    if any(p.split for s in found.series for p in s.points):
        yield split_table(found)
    if rows:
        yield bandwidth_table(rows)
    yield list(sentences(found))


def series_table(series: ScalingSeries) -> Table:
    """Return one series: times, speed-ups, efficiency and the serial fraction of every point."""
    columns = (
        Column("p", "Ranks", "int", of="ranks"),
        Column("B", "B", "int", of="batch"),
        Column("launches", "Runs", "int", of=lambda p: len(p.launches)),
        Column("batch_s", "Batch", "si", "s"),
        Column("low_s", "95 % from", "si", "s"),
        Column("high_s", "to", "si", "s"),
        Column("speedup", "Speed-up", "float", digits=2),
        Column("speedup_low", "95 % from", "float", digits=2),
        Column("speedup_high", "to", "float", digits=2),
        Column("efficiency", "Efficiency", "percent"),
        Column(
            "serial",
            "Karp-Flatt" if series.kind == "strong" else "Serial",
            "float",
            digits=3,
            of="serial_fraction",
        ),
    )
    title = f"{series.kind.capitalize()} scaling: {series.label}"
    return Table.of(title, series.points, columns, _fitted(series))


SPLITS: Final = (
    Column("run", "Run", wrap=False),
    Column("p", "Ranks", "int"),
    Column("batch_s", "Batch", "si", "s"),
    Column("compute_s", "Kernels", "si", "s"),
    Column("exposed_s", "Exposed comm.", "si", "s"),
    Column("overlapped_s", "Overlapped", "si", "s"),
    Column("copies_s", "Copies only", "si", "s"),
    Column("idle_s", "Neither", "si", "s"),
    Column("share", "Comm. share", "percent"),
)


def split_table(found: Study) -> Table:
    """Return what goes on in a batch, by launch."""
    by_launch: dict[int, tuple[str, int, Split]] = {}
    for s in found.series:  # strong scaling comes first: its label names the batch
        for p in s.points:
            if p.split:
                by_launch.setdefault(id(p.split), (s.label, p.ranks, p.split))
    rows = [
        (label, ranks, *(getattr(split, c.key) for c in SPLITS[2:-1]),
         split.exposed_s / split.batch_s)
        for label, ranks, split in by_launch.values()
    ]  # fmt: skip
    note = (
        "means over the middle half of the batches; a moment counts for the first of kernels, "
        "communication (MPI calls and NCCL's kernels, waiting included) and copies; overlapped "
        "communication is under kernels; the share is of exposed communication"
    )
    return Table("Computing against communication, per rank and batch", SPLITS, rows, (note,))


ALL_REDUCES: Final = (
    Column("source", "Measured in", wrap=False),
    Column("through", "Through"),
    Column("p", "Ranks", "int", of="ranks"),
    Column("bytes", "Size", "si", "B"),
    Column("seconds", "Time", "si", "s"),
    Column("sent_bytes", "Ring sends", "si", "B"),
    Column("algorithm_bytes_per_s", "Algorithm bandwidth", "si", "B/s"),
    Column("bus_bytes_per_s", "Bus bandwidth", "si", "B/s"),
)


def bandwidth_table(rows: Sequence[Bandwidth]) -> Table:
    """Return all-reduces by size: time, what a ring sends, algorithm and bus bandwidth."""
    notes = [
        "a ring sends 2 (p - 1)/p n bytes of n; algorithm bandwidth n/t, bus bandwidth 2 (p - "
        "1)/p n/t"
    ]
    for (source, through, ranks), link in links(rows).items():
        if link is not None:
            notes.append(
                f"{through} over {ranks} ranks ({source}), fitted as a ring: alpha "
                f"{si(link.alpha_s, 's')}, {si(1 / link.beta_s_per_byte, 'B/s')} sent one way"
            )
    return Table.of("All-reduce by message size", rows, ALL_REDUCES, notes)


def sentences(found: Study) -> Iterator[str]:
    """Yield what every series says."""
    for series in found.series:
        last = series.points[-1]
        first = series.points[0]
        stays = "the batch" if series.kind == "strong" else "the batch of every rank"
        yield (
            f"{series.label}: {last.ranks} ranks are {last.speedup:.2f} times as fast as "
            f"{first.ranks}, {percent(last.efficiency)} of ideal, with {stays} held"
            f"{_rises(series)}."
        )


def _fitted(series: ScalingSeries) -> Iterator[str]:
    found = series.fit
    if found is None:
        return
    interval = "" if found.low is None else f" ({found.low:.3f} to {found.high:.3f}, 95 %)"
    tested = "one speed-up, which does not test the law"
    if found.misfit is not None:
        tested = f"misses the speed-ups by up to {percent(found.misfit)}"
    yield f"{found.law}: serial fraction {found.serial:.3f}{interval}; {tested}{_judged(found)}"
    if found.low is not None and not series.by_launches:
        yield "intervals from the steps of one run: runs differ by more"


def _judged(found: Fit) -> str:
    if found.serial > 1:
        return "; above 1: more ranks are slower than one, so that no share is left to divide"
    if found.serial < 0:
        return "; below 0: faster than the ranks are many, which no law of a serial share allows"
    if found.misfit is not None and found.misfit > _UNFIT:
        return ": a serial share alone does not describe these points"
    return ""


def _rises(series: ScalingSeries) -> str:
    """Say that the serial fraction grows with the ranks, if it does from every point to the next.

    Overhead that grows with the ranks, by Karp and Flatt.
    """
    serial = [p.serial_fraction for p in series.points if p.serial_fraction is not None]
    if series.kind == "weak" or len(serial) < 2:
        return ""
    if all(b > a for a, b in pairwise(serial)):
        return (
            f"; the Karp-Flatt fraction grows from {serial[0]:.2f} to {serial[-1]:.2f}: the loss "
            "is overhead that grows with the ranks, not a serial share"
        )
    return ""


def picture(found: Study, rows: Sequence[Bandwidth]) -> Figure:
    """Draw speed-up and efficiency, what batches hold, and bus bandwidth by size.

    Bars are of strong scaling, or of weak scaling where there is nothing else, and only of series
    that show communication on more ranks than one.
    """
    from perfmodel.render.plot.studies import Message, Scaling, Stack, scaling

    curves = [
        Scaling(
            f"{s.kind}: {s.label}", s.kind, tuple(p.ranks for p in s.points),
            tuple(p.speedup for p in s.points), tuple(p.efficiency for p in s.points),
        )
        for s in found.series
    ]  # fmt: skip
    kind = found.series[0].kind
    stacks = [
        Stack(
            s.label, p.ranks,
            {
                "kernels": p.split.compute_s, "exposed communication": p.split.exposed_s,
                "copies only": p.split.copies_s, "neither: the host": p.split.idle_s,
            },
        )
        for s in found.series
        if s.kind == kind and any(p.split for p in s.points if p.ranks > 1)
        for p in s.points if p.split
    ]  # fmt: skip
    messages = [
        Message(f"{r.through}, p={r.ranks}, {r.source}", r.bytes, r.bus_bytes_per_s) for r in rows
    ]
    return scaling(curves, stacks, messages)


def scaling_document(
    found: Study, rows: Sequence[Bandwidth]
) -> Annotated[
    dict[str, Any], Head, Study, {"all_reduces": Sequence[Bandwidth], "links": Sequence[ring_link]}
]:
    """What `perfmodel study scaling --json` prints."""
    fits = [ring_link(*key, link) for key, link in links(rows).items()]
    return plain_view(Head(SCHEMA_VERSION), found, all_reduces=rows, links=fits)


def ring_link(
    source: str, through: str, ranks: int, link: Link | None
) -> Annotated[dict[str, Any], {"source": str, "through": str, "ranks": int, "link": Link | None}]:
    """The fit of a ring's times over sizes: `alpha_s` a message, `beta_s_per_byte` a byte."""
    return {"source": source, "through": through, "ranks": ranks, "link": link}
