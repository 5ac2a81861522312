"""The rooflines of the ResNet study: the published points, and the steps measured on an H200."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from studies.resnet import machine_of, point, roof, study

from perfmodel.machines.machine import Machine
from perfmodel.models.roofline import Point
from perfmodel.render.plot import panels, roofline, save

PEAKS: Final = {"fp32": "float32", "tf32": "tf32_tensor"}
"""The ceiling of each math that is counted."""


def published(folder: Path) -> None:
    """Draw a panel per machine: its fp32 roof and the study's two points."""
    axes = panels("double", 3.4, columns=2, letters=False)
    for ax, first in zip(axes, study().trials[::2], strict=True):
        machine = machine_of(first)
        points = [point(t) for t in study().trials if t.machine == machine.name]
        roofline(roof(machine), points, ax=ax, title=f"{machine.name}, fp32, as published")
    save(axes[0], folder, "resnet_published", ("png",))


def measured(rows: list[dict[str, Any]], machine: Machine, folder: Path) -> None:
    """Draw a panel per math: counted FLOPs over DRAM bytes and over the unprofiled step's time."""
    by_math = {m: [r for r in rows if r["math"] == m and drawable(r)] for m in PEAKS}
    by_math = {m: found for m, found in by_math.items() if found}
    if not by_math:
        return
    axes = panels("double", 4.4, columns=len(by_math), letters=False)  # with a legend below
    for ax, (math, found) in zip(axes, by_math.items(), strict=True):
        points = [
            Point(
                f"{r['net']}: {r['batch']} images", r["net"], machine.name,
                r["flops"] / r["dram_bytes"], r["flops"] / r["total_s"],
            )
            for r in found
        ]  # fmt: skip
        title = f"{machine.name}, {math}: training steps"
        roofline(roof(machine, PEAKS[math]), points, ax=ax, title=title)
    save(axes[0], folder, "resnet_measured", ("png",))


def drawable(row: dict[str, Any]) -> bool:
    """Whether a row has all that a point needs, and a panel to lie in."""
    return row["math"] in PEAKS and all(row.get(k) for k in ("flops", "dram_bytes", "total_s"))
