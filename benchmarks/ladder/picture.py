"""The ladder as a picture: a bar and its floor for every rung, lines for PyTorch, per size."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib import ticker

from benchmarks.ladder.configurations import RUNGS

LINES: Final = (
    ("torch ddp_eager", "PyTorch DDP, eager", "#b07aa1", "--"),
    ("torch ddp_compiled", "PyTorch DDP, compiled", "#e15759", "--"),
)
OURS, INVALID, BEST, FLOOR = "#4e79a7", "#d0d0d0", "#f28e2b", "#222222"


def draw(found: dict[Any, dict[str, Any]], ranks: int, path: Path) -> None:
    """Write one panel per size and dtype for p = `ranks`; bars from the first rung down."""
    keys = [key for key in found if key[0] == ranks]
    maths = sorted({key[3] for key in keys})
    sizes = list(dict.fromkeys(key[1:3] for key in keys))
    names = {
        math: [
            r.name for r in RUNGS if any(_time(found[k].get(r.name)) for k in keys if k[3] == math)
        ]
        for math in maths
    }
    bars = [max(6, len(names[math])) for math in maths]
    figure, axes = plt.subplots(
        len(maths), len(sizes), squeeze=False, sharey="row",
        figsize=(2.5 + 3.8 * len(sizes), 1.8 + 0.25 * sum(bars)),
        layout="constrained", height_ratios=bars,
    )  # fmt: skip
    legend: dict[str, Any] = {}
    for row, math in enumerate(maths):
        for column, size in enumerate(sizes):
            axis = axes[row][column]
            rows = found.get((ranks, *size, math))
            if rows is None:
                axis.set_axis_off()
                continue
            legend |= _panel(axis, rows, names[math])
            axis.set_title(f"H = {size[0]}, B = {size[1]}, {math}", fontsize=10)
            axis.set_xlabel("µs per batch" if row == len(maths) - 1 else "")
    figure.suptitle(f"Time of one batch, p = {ranks} (logarithmic; number: µs)", fontsize=11)
    figure.legend(
        legend.values(), legend.keys(), loc="outside lower center", ncols=4, frameon=False,
        fontsize=9,
    )  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(figure)


def _panel(axis: Any, rows: dict[str, Any], names: list[str]) -> dict[str, Any]:
    """Draw one size; return the legend's entries."""
    legend: dict[str, Any] = {}
    seconds = [_time(rows.get(name)) for name in names]
    for place, (name, value) in enumerate(zip(names, seconds, strict=True)):
        row = rows.get(name)
        if value is None or row is None:
            continue
        if row["floor_s"]:
            legend["the rung's floor on this machine"] = axis.vlines(
                1e6 * row["floor_s"], place - 0.45, place + 0.45, color=FLOOR, lw=2
            )
        label, color = ("ours", OURS) if row["valid"] else ("invalid", INVALID)
        legend[label] = axis.barh(place, 1e6 * value, color=color, height=0.72)
        digits = 0 if value >= 1e-4 else 1
        axis.text(
            1e6 * value * 1.06, place, f"{1e6 * value:.{digits}f}", va="center", fontsize=7,
            bbox={"facecolor": "white", "alpha": 0.75, "edgecolor": "none", "pad": 0.6}, zorder=5,
        )  # fmt: skip
    peers = [(_time(rows.get(n)), label, c, s) for n, label, c, s in LINES]
    best = next((r["peer_median_s"] for r in rows.values() if r["peer_median_s"]), None)
    peers.append((best, "PyTorch, best whole graph", BEST, "-"))
    for value, label, color, style in peers:
        if value:
            legend[label] = axis.axvline(1e6 * value, color=color, linestyle=style, lw=1.5)
    axis.set_xscale("log")
    axis.xaxis.set_major_formatter(ticker.FormatStrFormatter("%g"))
    floors = [rows[name]["floor_s"] for name in names if _time(rows.get(name))]
    shown = [1e6 * v for v in (*seconds, *floors, *(p[0] for p in peers)) if v]
    if shown:
        axis.set_xlim(min(shown) / 1.6, max(shown) * 2.2)
    axis.set_yticks(range(len(names)), names, fontsize=8)
    axis.set_ylim(len(names) - 0.4, -0.6)
    axis.grid(axis="x", which="major", alpha=0.3)
    axis.set_axisbelow(True)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    return legend


def _time(row: Any) -> float | None:
    return None if row is None else row["median_s"]
