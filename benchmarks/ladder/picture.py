"""The ladder as a picture: a dot and its floor for every rung, lines for PyTorch, per size."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from benchmarks.ladder.configurations import RUNGS
from perfmodel.render.plot import save
from perfmodel.render.plot.bars import Dot, dots
from perfmodel.render.plot.scales import Measure
from perfmodel.render.plot.style import legend_over, new_figure

PEERS: Final = {
    "torch ddp_eager": "PyTorch DDP, eager",
    "torch ddp_compiled": "PyTorch DDP, compiled",
}
TIME, INVALID, BEST = "time of a batch", "invalid", "PyTorch, best whole graph"


def draw(found: dict[Any, dict[str, Any]], ranks: int, path: Path) -> None:
    """Write one panel per size and dtype for p = `ranks`, the first rung at the top."""
    keys = [key for key in found if key[0] == ranks]
    maths = sorted({key[3] for key in keys})
    sizes = list(dict.fromkeys(key[1:3] for key in keys))
    names = {
        math: [
            r.name for r in RUNGS if any(_time(found[k].get(r.name)) for k in keys if k[3] == math)
        ]
        for math in maths
    }
    heights = [0.9 + 0.2 * max(5, len(names[math])) for math in maths]
    figure = new_figure(2.2 + 2.9 * len(sizes), 0.4 + sum(heights))
    grid = figure.subplots(len(maths), len(sizes), squeeze=False, height_ratios=heights)
    for math, row in zip(maths, grid, strict=True):
        for column, (size, ax) in enumerate(zip(sizes, row, strict=True)):
            rows = found.get((ranks, *size, math))
            if rows is None:
                ax.set_axis_off()
                continue
            _panel(
                ax,
                rows,
                names[math],
                f"p = {ranks}, H = {size[0]}, B = {size[1]}, {math}",
                column == 0,
            )
    legend_over([ax for ax in grid.flat if ax.lines])
    save(figure, path.parent, path.stem, ("png",))


def _panel(ax: Any, rows: dict[str, Any], names: list[str], title: str, named: bool) -> None:
    """Draw one size."""
    timed = {n: row for n in names if (row := rows.get(n)) is not None and _time(row)}
    peers = {label: t for name, label in PEERS.items() if (t := _time(rows.get(name)))}
    best = next((r["peer_median_s"] for r in rows.values() if r["peer_median_s"]), None)
    dots(
        [Dot(n, TIME, row["median_s"], hollow=not row["valid"]) for n, row in timed.items()],
        Measure("Time of a batch", "s", "log"),
        names=names,
        limits=("the rung's floor on this machine",
                {n: row["floor_s"] for n, row in timed.items() if row["floor_s"]}),
        levels=peers | ({BEST: best} if best else {}),
        written=TIME, hollow=INVALID, named=named, legend=False, ax=ax, title=title,
    )  # fmt: skip


def _time(row: Any) -> float | None:
    return None if row is None else row["median_s"]
