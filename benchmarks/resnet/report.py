"""Writes the published study and the results of benchmarks.resnet into docs/resnet.md."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from studies.resnet import Trial, machine_of, point, roof, roof_share, study
from studies.resnet_errata import errata

from benchmarks.common import folders
from benchmarks.common.pages import markdown, put_parts
from benchmarks.resnet.counts import counted
from benchmarks.resnet.measured import measured, with_times
from perfmodel.machines.machine import Machine, known
from perfmodel.models.roofline import Point
from perfmodel.render.plot import panels, roofline, save
from perfmodel.workloads.layers import Cost, costs, total, training_bytes
from perfmodel.workloads.networks import resnet

PAGE: Final = folders.DOCS / "resnet.md"
SCRIPT: Final = "benchmarks.resnet --document"
STUDIED: Final = ("resnet18", "resnet50")
PICTURE: Final = "![Training steps under the roofs of {}](images/resnet_measured.png)"
DRAWN: Final = {"fp32": "float32", "tf32": "tf32_tensor"}
"""The ceiling of each math that is counted and drawn."""


def write(results: Path) -> None:
    """Draw the pictures; replace what lies between the marks."""
    folder = folders.IMAGES
    draw_published(folder)
    result, counts = read(results)
    found = machine(result)
    if found:
        draw_measured(steps(result, counts), found, folder)
    put_parts(PAGE, SCRIPT, parts(results))


def parts(results: Path) -> dict[str, str]:
    """Return the generated parts of the page by name."""
    result, counts = read(results)
    found = machine(result)
    tables = measured(result, counts, found)
    if found and any(map(drawable, steps(result, counts))):
        tables = f"{PICTURE.format(found.name)}\n\n{tables}"
    return {"published": published(), "layers": layers(), "measured": tables}


def steps(result: dict[str, Any], counts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the counted training steps, all phases together, with their time."""
    return [r for r in with_times(result, counts) if r["phase"] == "all"]


def read(results: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the results and the sums of the counters; nothing where there are none."""
    result = json.loads(results.read_text(encoding="utf-8")) if results.exists() else {}
    return result, counted(result["counters"], results.parent) if "counters" in result else []


def machine(result: dict[str, Any]) -> Machine | None:
    """Return the ceilings of the GPU that the results are of; None if it has no file."""
    names = {part["about"].get("device", "") for part in result.values()}
    return next((m for m in known() if any(n and m.name.startswith(n) for n in names)), None)


def published() -> str:
    """Return the study's table, recomputed, and its errors."""
    columns = (
        "trial; time=s; DRAM bytes=B; FLOP=FLOP; FLOP/byte=float.2; GFLOP/s=float.2; "
        "ridge=float.2; time that the roof needs=percent"
    )  # fmt: skip
    rows = [_trial(t) for t in study().trials]
    wrong = [(e.claim, e.finding) for e in errata()]
    text = "the study says; its numbers say"
    tables = [markdown(columns, rows), _memory(), markdown(text, wrong)]
    return "\n\n".join(tables)


def _memory() -> str:
    columns = (
        "network; V100s=int; parameters=int; their size, MB, as printed=float.2; at 4 bytes=B.4; "
        "GPU memory, MB=int; ratio=float.1"
    )  # fmt: skip
    rows = [
        (m.net, m.gpus, m.parameters, m.parameter_megabytes, 4 * m.parameters, m.used_megabytes,
         m.used_megabytes / m.parameter_megabytes)
        for m in study().memory
    ]  # fmt: skip
    return markdown(columns, rows)


def _trial(t: Trial) -> tuple[Any, ...]:
    again = t.recomputed()
    ridge = roof(machine_of(t)).ridge_flops_per_byte
    return (
        t.label, t.time_s, t.bytes, t.flops, again["flops_per_byte"], again["gflops_per_s"], ridge,
        roof_share(t),
    )  # fmt: skip


def layers() -> str:
    """Return both networks by stage: parameters, MACs, FLOPs and bytes of one image."""
    columns = (
        "network; stage; output; parameters=int; MACs=int; forward=FLOP; backward=FLOP; moved=B; "
        "held=B"
    )  # fmt: skip
    rows: list[tuple[Any, ...]] = []
    for name in STUDIED:
        net = resnet(name)
        stages: dict[str, Cost] = {}
        shapes = {}
        for layer, cost in costs(net):
            stage = layer.name.split(".")[0]
            stage = "stem" if stage in ("conv1", "bn1", "relu", "maxpool") else stage
            stages[stage] = stages.get(stage, Cost()) + cost
            shapes[stage] = layer.shape
        for stage, c in stages.items():
            s = shapes[stage]
            shape = f"{s.channels} x {s.height} x {s.width}"
            rows.append((name, stage, shape, *_numbers(c), None))
        rows.append((name, "all", "", *_numbers(total(net)), training_bytes(net, 1)))
    return markdown(columns, rows)


def _numbers(c: Cost) -> tuple[int, ...]:
    return (c.parameters, c.macs, c.forward_flops, c.backward_flops, c.moved_bytes)


def draw_published(folder: Path) -> None:
    """Draw a panel per machine: its fp32 roof and the study's two points."""
    axes = panels("double", 3.4, columns=2, letters=False)
    for ax, first in zip(axes, study().trials[::2], strict=True):
        machine = machine_of(first)
        points = [point(t) for t in study().trials if t.machine == machine.name]
        roofline(roof(machine), points, ax=ax, title=f"{machine.name}, fp32, as published")
    save(axes[0], folder, "resnet_published", ("png",))


def draw_measured(rows: list[dict[str, Any]], machine: Machine, folder: Path) -> None:
    """Draw a panel per math: counted FLOPs over DRAM bytes and over the unprofiled step's time."""
    by_math = {m: [r for r in rows if r["math"] == m and drawable(r)] for m in DRAWN}
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
        roofline(roof(machine, DRAWN[math]), points, ax=ax, title=title)
    save(axes[0], folder, "resnet_measured", ("png",))


def drawable(row: dict[str, Any]) -> bool:
    """Whether a row has all that a point needs, and a panel to lie in."""
    return row["math"] in DRAWN and all(row.get(k) for k in ("flops", "dram_bytes", "total_s"))
