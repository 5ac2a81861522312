"""The roofline of the GEMM kernels, drawn from Nsight Compute's counters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from benchmarks.gemm.problems import HBM_BYTES_PER_S, PEAK_FLOPS_PER_S
from perfmodel.render.plot.style import GREY, GRID, INK, MARKERS, PALETTE, TEXT_PT, TITLE_PT

L1_BYTES_PER_S = 132 * 128 * 1.98e9
"""132 multiprocessors, 128 bytes a clock each (Hopper tuning guide), at the boost clock."""

LEVELS = {"dram_bytes": "full", "l2_bytes": "left", "l1_bytes": "none"}
"""How much of a marker is filled."""

NAMES = {"dram_bytes": "HBM", "l2_bytes": "L2", "l1_bytes": "L1"}
ORDER = ("naive", "tiled", "register", "hierarchical", "thin", "cublas")
PANELS = (
    ("4096 x 4096 x 4096, fp32", lambda r: r["what"] == "square" and r["m"] == 4096),
    ("The network's products, H = 512, B' = 1500, fp32", lambda r: r["H"] == 512),
)


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw FLOP/s over FLOP/byte of each memory level: a panel of squares, one of the network."""
    figure = Figure(figsize=(9.6, 4.2), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    for i, (title, belongs) in enumerate(PANELS):
        ax = figure.add_subplot(1, 2, i + 1)
        shown = [r for r in rows if r["dtype"] == "float32" and belongs(r)]
        _roofs(ax)
        for row in shown:
            _points(ax, row)
        ax.set_title(title, fontsize=TITLE_PT)
        ax.set_xlabel("FLOP per byte of this memory level", fontsize=TEXT_PT)
        ax.set_ylabel("FLOP/s", fontsize=TEXT_PT)
    figure.legend(handles=_legend(rows), loc="outside lower center", ncols=9, fontsize=TEXT_PT,
                  frameon=False)  # fmt: skip
    figure.savefig(path, dpi=160, metadata={"Software": None})


def _roofs(ax: Axes) -> None:
    peak = PEAK_FLOPS_PER_S["float32"]
    x = np.geomspace(0.03, 3e3, 200)
    for name, bandwidth in (("HBM 4.8 TB/s", HBM_BYTES_PER_S), ("L1 33 TB/s", L1_BYTES_PER_S)):
        ax.plot(x, np.minimum(peak, bandwidth * x), color=GREY, linewidth=1)
        ax.text(0.05, 0.055 * bandwidth, name, rotation=50, rotation_mode="anchor",
                fontsize=TEXT_PT, color=GREY)  # fmt: skip
    ax.annotate("fp32 67 TFLOP/s", (x[-1], peak), ha="right", fontsize=TEXT_PT, color=GREY,
                xytext=(0, 3), textcoords="offset points")  # fmt: skip
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_ylim(5e10, 1.6e14)
    ax.grid(color=GRID, linewidth=0.6)
    ax.set_axisbelow(True)
    ax.tick_params(labelsize=TEXT_PT)


def _points(ax: Axes, row: dict[str, Any]) -> None:
    """Three points at one height, joined: the kernel's intensity at each level."""
    if not row["time_s"] or not row["flops"]:
        return
    place = ORDER.index(row["kernel"])
    style = {"color": PALETTE[place], "marker": MARKERS[place], "markersize": 6}
    rate = row["flops"] / row["time_s"]
    found = [(level, row["flops"] / row[level]) for level in LEVELS if row[level]]
    ax.plot([x for _, x in found], [rate] * len(found), color=style["color"], linewidth=0.8)
    for level, x in found:
        ax.plot([x], [rate], linestyle="", fillstyle=LEVELS[level], **style)


def _legend(rows: list[dict[str, Any]]) -> list[Line2D]:
    there = {r["kernel"] for r in rows if r["dtype"] == "float32"}
    kernels = [
        Line2D([], [], linestyle="", marker=MARKERS[i], color=PALETTE[i], label=name)
        for i, name in enumerate(ORDER) if name in there
    ]  # fmt: skip
    levels = [
        Line2D([], [], linestyle="", marker="o", color=INK, fillstyle=fill, label=NAMES[level])
        for level, fill in LEVELS.items()
    ]
    return kernels + levels
