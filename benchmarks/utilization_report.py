"""Writes the tables and the picture of docs/utilization.md from benchmarks/results/utilization*.

python benchmarks/utilization_report.py
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from ladder_format import table  # noqa: E402
from made import put  # noqa: E402

from perfmodel.plot.output import save  # noqa: E402
from perfmodel.plot.style import (  # noqa: E402
    GRID,
    INK,
    PALETTE,
    TEXT_PT,
    TITLE_PT,
    finish,
)
from perfmodel.units import si  # noqa: E402
from perfmodel.utilization.series import read_series  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results" / "utilization.json"
SERIES = ROOT / "benchmarks" / "results" / "utilization"
PAGE = ROOT / "docs" / "utilization.md"
SCRIPT = "benchmarks/utilization_report.py"


def mean(row: dict[str, Any], counter: str) -> float | None:
    """Mean of a counter over the GPUs."""
    told = [g[counter] for g in row.get("gpus", []) if g[counter] is not None]
    return sum(told) / len(told) if told else None


def number(value: float | None, unit: str) -> str:
    """Write a number with its unit."""
    return si(value, unit)


def percent(value: float | None) -> str:
    """Write a percentage."""
    return "–" if value is None else f"{value:.0f} %"


def rows(results: dict[str, Any]) -> str:
    """Write the before and after."""
    good = [r for r in results["rows"] if "gpus" in r]
    lines = []
    for row in good:
        share = row.get("busy_share")
        lines.append(
            [row["name"], f"`{' '.join(row['flags'])}`", number(row["batch_s"], "s"),
             percent(mean(row, "gpu_percent")), percent(None if share is None else 100 * share),
             percent(mean(row, "memory_percent")), number(mean(row, "memory_used_bytes"), "B"),
             number(mean(row, "power_w"), "W"), number(mean(row, "pcie_rx_bytes_per_s"), "B/s")]
        )  # fmt: skip
    head = ["setting", "flags", "batch", "NVML utilization", "GPU busy by nsys", "memory busy",
            "memory used", "power", "PCIe in"]  # fmt: skip
    return table(head, lines)


def causes(results: dict[str, Any]) -> str:
    """Write what the GPU idles in, setting by setting."""
    good = [r for r in results["rows"] if r.get("causes")]
    names = list(dict.fromkeys(cause for r in good for cause in r["causes"]))
    lines = [[r["name"], *(percent(100 * r["causes"].get(n, 0.0)) for n in names)] for r in good]
    text = table(["setting", *(f"idle: {n}" for n in names)], lines)
    said = [f"- {r['name']}: {step}" for r in good for step in r["advice"]]
    return text + ("\n" + "\n".join(said) + "\n" if said else "")


def draw(results: dict[str, Any], folder: Path) -> bool:
    """Draw the series of all settings, one above the other; say if there are any."""
    good = [r for r in results["rows"] if "gpus" in r and (SERIES / f"{r['name']}.csv").exists()]
    if not good:
        return False
    figure = Figure(figsize=(7.0, 1.9 * len(good)), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    for i, row in enumerate(good):
        ax = figure.add_subplot(len(good), 1, i + 1)
        series = read_series(SERIES / f"{row['name']}.csv")
        ax.axvspan(*row["window_s"], color=GRID, alpha=0.7, lw=0)
        for gpu in series.gpus:
            mine = series.of(gpu)
            ax.plot(mine.time_s, mine.values["gpu_percent"], color=PALETTE[gpu % len(PALETTE)],
                    lw=1.3, label=f"GPU {gpu}, NVML")  # fmt: skip
        if row.get("busy_share") is not None:
            ax.axhline(100 * row["busy_share"], color=INK, lw=0.9, ls=(0, (4, 2)),
                       label="GPU busy by nsys")  # fmt: skip
        last = i == len(good) - 1
        finish(ax, "Time since the start (s); shaded: the window" if last else "", "Share (%)")
        ax.set_ylim(-3, 105)
        ax.set_title(row["name"], fontsize=TITLE_PT, loc="left")
        if i == 0:
            ax.legend(frameon=False, fontsize=TEXT_PT, loc="upper left")
    save(figure, folder, "utilization", ("png",))
    return True


def main() -> None:
    """Write the page's tables and its picture."""
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    text = f"{results['gpu']}, {results['date']}: `{results['command']}`.\n\n" + rows(results)
    if draw(results, ROOT / "docs" / "images"):
        text += "\n![NVML utilization over time, setting by setting](images/utilization.png)\n"
    found = causes(results)
    if found:
        text += "\nWhat the GPU idles in, share of the time by the profiles:\n\n" + found
    put(PAGE, SCRIPT, text)


if __name__ == "__main__":
    main()
