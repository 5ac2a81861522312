"""Scaling: a published study, versions of the trainer, DDP, and all-reduces (notebook 07)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from studies import ddp

from perfmodel.base.table import Column, Table
from perfmodel.models.scaling_laws import amdahl, fit, karp_flatt, weak_fraction
from perfmodel.studies.analysis.scaling import Bandwidth, Study
from perfmodel.studies.render.scaling import picture
from writeup.ladder import Ladder

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

RANKS: Final = (1, 2, 4)
ALONE: Final = {"peer x3": "fused x3"}
"""Versions that one GPU does not have, and the one that takes their place there."""


def published_table() -> Table:
    """Return the published DDP study: times as printed, and what they make."""
    columns = (
        Column("batch", "batch per GPU", "int"), Column("gpus", "GPUs", "int"),
        Column("time_s", "time", "float", "s", digits=2),
        Column("printed", "speed-up as printed", "float", digits=3),
        Column("speedup", "T1 / Tp", "float", digits=3),
        Column("efficiency", "efficiency", "percent"),
        Column("serial", "serial share", "float", digits=3),
    )  # fmt: skip
    rows = []
    for r in ddp.study().runs:
        s = ddp.speedup(r)
        serial = weak_fraction(s, r.gpus) if r.gpus > 1 else None
        rows.append((r.batch_per_gpu, r.gpus, r.time_s, r.speedup, s, s / r.gpus, serial))
    return Table("A published study of DistributedDataParallel, recomputed", columns, rows)


def published_speedups() -> dict[str, dict[int, float]]:
    """Return T1 / Tp of the published study by batch per GPU and number of GPUs."""
    found: dict[str, dict[int, float]] = {}
    for r in ddp.study().runs:
        found.setdefault(f"published, {r.batch_per_gpu} per GPU", {})[r.gpus] = ddp.speedup(r)
    return found


def ladder_speedups(
    found: Ladder, names: Sequence[str], hidden: int, batch: int
) -> dict[str, dict[int, float]]:
    """Return T1 / Tp of versions of the trainer at one size, of those that were timed on one GPU and on several."""
    speedups = {}
    for name in names:
        alone = ALONE.get(name, name)
        one = found.find(name, 1, hidden, batch) or found.find(alone, 1, hidden, batch)
        if one is None or not one.median_s:
            continue
        times = {p: r.median_s for p in RANKS[1:] if (r := found.find(name, p, hidden, batch))}
        several = {p: one.median_s / s for p, s in times.items() if s}
        if several:
            speedups[name] = {1: 1.0, **several}
    return speedups


def speedups_table(speedups: Mapping[str, Mapping[int, float]]) -> Table:
    """Return speed-ups, the serial fraction of each (Karp-Flatt), and Amdahl's of all."""
    columns = (
        Column("name", "program"),
        *(Column(f"s{p}", f"{p} GPUs", "float", digits=2) for p in RANKS[1:]),
        *(Column(f"e{p}", f"Karp-Flatt, {p}", "float", digits=3) for p in RANKS[1:]),
        Column("serial", "Amdahl's s", "float", digits=3),
        Column("misfit", "misses by", "percent", digits=0),
        Column("eight", "so on 8", "float", digits=2),
    )  # fmt: skip
    rows: list[tuple[object, ...]] = []
    for name, found in speedups.items():
        several = [p for p in RANKS[1:] if p in found]
        law = fit("Amdahl", several, [found[p] for p in several], None)
        fractions = [karp_flatt(found[p], p) if p in found else None for p in RANKS[1:]]
        eight = amdahl(8, law.serial) if law.misfit is not None and law.misfit < 0.1 else None
        rows.append(
            (name, *(found.get(p) for p in RANKS[1:]), *fractions, law.serial, law.misfit, eight)
        )  # fmt: skip
    return Table("Strong scaling", columns, rows)


def ddp_table(parts: Mapping[int, Sequence[Mapping[str, Any]]]) -> Table:
    """Return steps on one GPU and on several in turn: efficiency, and speed-up on as many images.

    Parameters
    ----------
    parts : mapping of int to sequence of mapping
        By number of GPUs, the rows of the parts 'ddp2', 'ddp4' of benchmarks.resnet, or none.
    """
    columns = (
        Column("gpus", "GPUs", "int"), Column("net", "network"), Column("math", "math"),
        Column("batch", "images per GPU", "int"), Column("alone_s", "one GPU", "si", "s"),
        Column("together_s", "together", "si", "s"),
        Column("efficiency", "efficiency, as many per GPU", "percent"),
        Column("speedup", "speed-up, as many in all", "float", digits=2),
    )  # fmt: skip
    found = []
    for gpus, rows in parts.items():
        times = {(r["net"], r["math"], r["batch"], r["mode"]): r.get("total_s") for r in rows}
        for (net, math, batch, mode), both in times.items():
            if mode == "ddp" and both:
                alone, whole = (times.get((net, math, n * batch, "alone")) for n in (1, gpus))
                found.append(
                    (gpus, net, math, batch, alone, both, alone and alone / both,
                     whole and whole / both)
                )  # fmt: skip
    return Table("ResNets under DistributedDataParallel", columns, found)


def draw_study(found: Study) -> Figure:
    """Draw speed-up, efficiency and what batches hold; 7.2 inches wide."""
    return picture(found, ())


def draw_speedups(
    speedups: Mapping[str, Mapping[int, float]], axes: Sequence[Axes]
) -> tuple[Axes, ...]:
    """Draw speed-ups and efficiencies over GPUs."""
    from perfmodel.render.plot.studies import Scaling, draw_scaling
    from perfmodel.render.plot.style import legend_over

    curves = [
        Scaling(name, "strong", tuple(sorted(found)), tuple(found[p] for p in sorted(found)),
                tuple(found[p] / p for p in sorted(found)))
        for name, found in speedups.items()
    ]  # fmt: skip
    draw_scaling(curves, axes, over="GPUs", speedup="Speed-up T1 / Tp")
    legend_over(axes[:1])
    return tuple(axes)


def efficiencies(steps: Table, gpus: int) -> dict[str, dict[int, float]]:
    """Return efficiencies with as many images per GPU: of the published study, and of H200s.

    Parameters
    ----------
    steps : Table
        Of `ddp_table`.
    gpus : int

    Returns
    -------
    dict
        By program, efficiency by images per GPU.
    """
    runs = [r for r in ddp.study().runs if r.gpus == gpus]
    found = {"published study": {r.batch_per_gpu: ddp.speedup(r) / gpus for r in runs}}
    for p, net, math, batch, _, _, efficiency, _ in steps.rows:
        if p == gpus and isinstance(batch, int) and isinstance(efficiency, float):
            found.setdefault(f"{net} {math}, H200", {})[batch] = efficiency
    return found


def draw_efficiencies(steps: Table, axes: Sequence[Axes]) -> tuple[Axes, ...]:
    """Draw efficiencies over images per GPU, an axes for 2 GPUs and one for 4."""
    from perfmodel.render.plot.lines import Series, lines
    from perfmodel.render.plot.style import Measure, legend_over

    for ax, gpus in zip(axes, RANKS[1:], strict=True):
        series = {
            name: Series(sorted(mine), [100 * mine[n] for n in sorted(mine)])
            for name, mine in efficiencies(steps, gpus).items()
        }
        images = Measure(f"Images per GPU, {gpus} GPUs", scale="log")
        lines(series, images, Measure("Efficiency (%)"), legend=None, ticked=True, ax=ax)
        ax.set_ylim(0, 105)
    legend_over(axes)
    return tuple(axes)


def draw_all_reduces(rows: Sequence[Bandwidth], ax: Axes) -> Axes:
    """Draw bus bandwidth over the size of the message, a line per library, ranks and source."""
    from perfmodel.render.plot.studies import Message, bandwidths

    messages = [
        Message(f"{r.through}, p={r.ranks}, {r.source}", r.bytes, r.bus_bytes_per_s) for r in rows
    ]
    return bandwidths(messages, ax)
