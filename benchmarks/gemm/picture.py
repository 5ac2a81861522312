"""The roofline of the GEMM kernels, drawn from Nsight Compute's counters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from benchmarks.gemm.problems import HBM_BYTES_PER_S, PEAK_FLOPS_PER_S
from perfmodel.render.plot import panels, save
from perfmodel.render.plot.scales import apply
from perfmodel.render.plot.style import (
    GREY,
    INK,
    MARKERS,
    PALETTE,
    TEXT_PT,
    finish,
    legend_look,
    put_title,
    size_pt,
)

L1_BYTES_PER_S = 132 * 128 * 1.98e9
"""132 multiprocessors, 128 bytes a clock each (Hopper tuning guide), at the boost clock."""

LEVELS = {"dram_bytes": "full", "l2_bytes": "left", "l1_bytes": "none"}
"""How much of a marker is filled."""

NAMES = {"dram_bytes": "HBM", "l2_bytes": "L2", "l1_bytes": "L1"}
ORDER = ("naive", "tiled", "register", "hierarchical", "thin", "cublas")
PANELS = (
    ("4096³, fp32", lambda r: r["what"] == "square" and r["m"] == 4096),
    ("GEMMs of H = 512, B' = 1500, fp32", lambda r: r["H"] == 512),
)


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw FLOP/s over FLOP/byte of each memory level: a panel of squares, one of the network."""
    axes = panels("double", 3.6, columns=2, letters=False)
    for ax, (title, belongs) in zip(axes, PANELS, strict=True):
        shown = [r for r in rows if r["dtype"] == "float32" and belongs(r)]
        apply(ax, (0.1, 3e3, 5e10, 1.6e14))
        finish(ax, "Arithmetic intensity of a level (FLOP/byte)", "Performance (FLOP/s)")
        for row in shown:
            _points(ax, row)
        put_title(ax, title, size_pt(ax)[0])
    handles = _legend(rows)
    axes[0].figure.legend(handles=handles, loc="outside lower center", ncols=9,
                          **legend_look(handles=handles))  # fmt: skip
    for ax in axes:
        _roofs(ax)
    save(axes[0], path.parent, path.stem, ("png",))


def _roofs(ax: Axes) -> None:
    peak, x = PEAK_FLOPS_PER_S["float32"], np.geomspace(0.1, 3e3, 200)
    for name, bandwidth in (("HBM 4.8 TB/s", HBM_BYTES_PER_S), ("L1 33 TB/s", L1_BYTES_PER_S)):
        ax.plot(x, np.minimum(peak, bandwidth * x), color=GREY, lw=1.1)
        size_pt(ax)  # lays out: the angle of the line depends on the size of the axes
        low, high = ax.transData.transform([(1.0, bandwidth), (10.0, 10 * bandwidth)])
        angle = np.degrees(np.arctan2(*(high - low)[::-1]))
        ax.annotate(name, (0.12, 0.12 * bandwidth), (-2, 2), textcoords="offset points",
                    rotation=angle, rotation_mode="anchor", fontsize=TEXT_PT, color=INK,
                    in_layout=False)  # fmt: skip
    ax.annotate("fp32 67 TFLOP/s", (x[-1], peak), (-2, 2), textcoords="offset points", ha="right",
                fontsize=TEXT_PT, color=INK)  # fmt: skip


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
