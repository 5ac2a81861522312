"""Tables, sentences and JSON of a scaling study."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import Any, Final

import perfmodel
from perfmodel.analysis.bandwidth import Bandwidth, links
from perfmodel.analysis.measure import Split
from perfmodel.analysis.study import Series, Study
from perfmodel.base.table import Column, Table
from perfmodel.base.units import si
from perfmodel.models.scaling_laws import Fit

SCHEMA_VERSION: Final = 1
_UNFIT: Final = 0.1
"""Above this misfit a law does not describe the points."""


def tables(found: Study, rows: Sequence[Bandwidth]) -> Iterator[Table]:
    """Yield a table for every series, then communication against computing, then bandwidths."""
    for series in found.series:
        yield series_table(series)
    if any(p.split for s in found.series for p in s.points):
        yield split_table(found)
    if rows:
        yield bandwidth_table(rows)


def series_table(series: Series) -> Table:
    """Return one series: times, speed-ups, efficiency and what every point tells of the law."""
    strong = series.kind == "strong"
    return Table(
        f"{series.kind.capitalize()} scaling: {series.label}",
        (
            Column("p", "Ranks", "int"),
            Column("B", "B", "int"),
            Column("launches", "Launches", "int"),
            Column("batch_s", "Batch", "si", "s"),
            Column("low_s", "95 % from", "si", "s"),
            Column("high_s", "to", "si", "s"),
            Column("speedup", "Speed-up", "float", digits=2),
            Column("speedup_low", "95 % from", "float", digits=2),
            Column("speedup_high", "to", "float", digits=2),
            Column("efficiency", "Efficiency", "percent"),
            Column("serial", "Karp-Flatt" if strong else "Serial", "float", digits=3),
        ),
        [
            (p.ranks, p.batch, len(p.launches), p.batch_s, p.low_s, p.high_s, p.speedup,
             p.speedup_low, p.speedup_high, p.efficiency, p.serial)
            for p in series.points
        ],
        notes=tuple(_fitted(series)),
    )  # fmt: skip


def split_table(found: Study) -> Table:
    """Return what goes on in a batch, by launch."""
    told: dict[int, tuple[str, int, Split]] = {}
    for s in found.series:  # strong scaling comes first: its label names the batch
        for p in s.points:
            if p.split:
                told.setdefault(id(p.split), (s.label, p.ranks, p.split))
    return Table(
        "Computing against communication, per rank and batch",
        (
            Column("run", "Run", wrap=False),
            Column("p", "Ranks", "int"),
            Column("batch_s", "Batch", "si", "s"),
            Column("compute_s", "Kernels", "si", "s"),
            Column("exposed_s", "Exposed comm.", "si", "s"),
            Column("overlapped_s", "Overlapped", "si", "s"),
            Column("copies_s", "Copies only", "si", "s"),
            Column("idle_s", "Neither", "si", "s"),
            Column("share", "Comm. share", "percent"),
        ),
        [
            (label, ranks, split.batch_s, split.compute_s, split.exposed_s, split.overlapped_s,
             split.copies_s, split.idle_s, split.exposed_s / split.batch_s)
            for label, ranks, split in told.values()
        ],
        notes=(
            "means over the middle half of the batches; a moment counts for the first of kernels, "
            "communication (MPI calls and NCCL's kernels, waiting included) and copies; overlapped "
            "communication is under kernels; the share is of exposed communication",
        ),
    )  # fmt: skip


def bandwidth_table(rows: Sequence[Bandwidth]) -> Table:
    """Return all-reduces by size: time, what a ring sends, algorithm and bus bandwidth."""
    return Table(
        "All-reduce by message size",
        (
            Column("source", "Measured in", wrap=False),
            Column("through", "Through"),
            Column("p", "Ranks", "int"),
            Column("bytes", "Size", "si", "B"),
            Column("seconds", "Time", "si", "s"),
            Column("sent_bytes", "Ring sends", "si", "B"),
            Column("algorithm_bytes_per_s", "Algorithm bandwidth", "si", "B/s"),
            Column("bus_bytes_per_s", "Bus bandwidth", "si", "B/s"),
        ),
        [tuple(asdict(row).values()) for row in rows],
        notes=(
            "a ring sends 2 (p - 1)/p n bytes of n; algorithm bandwidth n/t, bus bandwidth 2 (p - "
            "1)/p n/t",
            *(
                f"{through} over {ranks} ranks ({source}), fitted as a ring: alpha "
                f"{si(link.alpha_s, 's')}, "
                f"{si(1 / link.beta_s_per_byte, 'B/s')} sent one way"
                for (source, through, ranks), link in links(rows).items()
                if link is not None
            ),
        ),
    )


def sentences(found: Study) -> Iterator[str]:
    """Yield what every series says."""
    for series in found.series:
        last = series.points[-1]
        first = series.points[0]
        stays = "the batch" if series.kind == "strong" else "the batch of every rank"
        yield (
            f"{series.label}: {last.ranks} ranks are {last.speedup:.2f} times as fast as "
            f"{first.ranks}, {100 * last.efficiency:.0f} % of ideal, with {stays} held"
            f"{_rises(series)}."
        )


def _fitted(series: Series) -> Iterator[str]:
    found = series.fit
    if found is None:
        return
    interval = "" if found.low is None else f" ({found.low:.3f} to {found.high:.3f}, 95 %)"
    tested = "one speed-up, which does not test the law"
    if found.misfit is not None:
        tested = f"misses the speed-ups by up to {100 * found.misfit:.0f} %"
    yield f"{found.law}: serial fraction {found.serial:.3f}{interval}; {tested}{_judged(found)}"
    if found.low is not None and not series.by_launches:
        yield "intervals from the batches of one launch: launches differ by more"


def _judged(found: Fit) -> str:
    if found.serial > 1:
        return "; above 1: more ranks are slower than one, so that no share is left to divide"
    if found.serial < 0:
        return "; below 0: faster than the ranks are many, which no law of a serial share allows"
    if found.misfit is not None and found.misfit > _UNFIT:
        return ": a serial share alone does not describe these points"
    return ""


def _rises(series: Series) -> str:
    """Say that the serial fraction grows with the ranks, if it does from every point to the next.

    Overhead that grows with the ranks, by Karp and Flatt.
    """
    told = [p.serial for p in series.points if p.serial is not None]
    if series.kind == "weak" or len(told) < 2:
        return ""
    if all(b > a for a, b in pairwise(told)):
        return (
            f"; the Karp-Flatt fraction grows from {told[0]:.2f} to {told[-1]:.2f}: the loss is "
            "overhead that grows with the ranks, not a serial share"
        )
    return ""


def document(found: Study, rows: Sequence[Bandwidth]) -> dict[str, Any]:
    """Return the whole study as plain Python data in base units; what is missing is None."""
    return {
        "schema_version": SCHEMA_VERSION,
        "perfmodel_version": perfmodel.__version__,
        "series": [_series(s) for s in found.series],
        "all_reduces": [asdict(row) for row in rows],
        "links": [
            {
                "source": source,
                "through": through,
                "ranks": ranks,
                "algorithm": "ring",
                "alpha_s": link.alpha_s if link else None,
                "beta_s_per_byte": link.beta_s_per_byte if link else None,
            }
            for (source, through, ranks), link in links(rows).items()
        ],
        "warnings": list(found.warnings),
    }


def _series(series: Series) -> dict[str, Any]:
    law = asdict(series.fit) if series.fit else None
    if law is not None and law["misfit"] is not None and not math.isfinite(law["misfit"]):
        law["misfit"] = None
    return {
        "kind": series.kind,
        "sizes": dict(series.sizes),
        "settings": dict(series.settings),
        "batch_per_rank": series.per_rank,
        "interval": 0.95,
        "resampled": "launches" if series.by_launches else "batches",
        "fit": law,
        "points": [
            {
                "ranks": p.ranks,
                "batch": p.batch,
                "launches": [x.label for x in p.launches],
                "batch_s": p.batch_s,
                "low_s": p.low_s,
                "high_s": p.high_s,
                "speedup": p.speedup,
                "speedup_low": p.speedup_low,
                "speedup_high": p.speedup_high,
                "efficiency": p.efficiency,
                "serial_fraction": p.serial,
                "split": asdict(p.split) if p.split else None,
            }
            for p in series.points
        ],
    }
