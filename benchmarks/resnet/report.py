"""Writes the published study and the results of benchmarks.resnet into docs/resnet.md."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from studies.resnet import Trial, machine_of, roof, roof_share, study
from studies.resnet_errata import errata

from benchmarks.common import folders
from benchmarks.common.pages import put_parts
from benchmarks.resnet import picture as resnet_picture
from benchmarks.resnet.counts import counted
from benchmarks.resnet.measured import measured, with_times
from perfmodel.base.table import Column, Table, render
from perfmodel.machines.machine import Machine, known
from perfmodel.workloads.layers import Cost, costs, total, training_bytes
from perfmodel.workloads.networks import resnet

PAGE: Final = folders.DOCS / "resnet.md"
SCRIPT: Final = "benchmarks.resnet --document"
STUDIED: Final = ("resnet18", "resnet50")
PICTURE: Final = "![Training steps under the roofs of {}](images/resnet_measured.png)"


def write(results: Path) -> None:
    """Draw the pictures; replace what lies between the marks."""
    folder = folders.IMAGES
    resnet_picture.published(folder)
    result, counts = read(results)
    found = machine(result)
    if found:
        resnet_picture.measured(steps(result, counts), found, folder)
    put_parts(PAGE, SCRIPT, parts(results))


def parts(results: Path) -> dict[str, str]:
    """Return the generated parts of the page by name."""
    result, counts = read(results)
    found = machine(result)
    tables = measured(result, counts, found)
    if found and any(map(resnet_picture.drawable, steps(result, counts))):
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
    columns = [
        Column("trial", "trial"), Column("time_s", "time", "si", "s"),
        Column("bytes", "DRAM bytes", "si", "B"), Column("flops", "FLOP", "si", "FLOP"),
        Column("intensity", "FLOP/byte", "float", digits=2),
        Column("gflops", "GFLOP/s", "float", digits=2),
        Column("ridge", "ridge", "float", digits=2),
        Column("share", "time that the roof needs", "percent"),
    ]  # fmt: skip
    rows = [_trial(t) for t in study().trials]
    wrong = [(e.claim, e.finding) for e in errata()]
    text = [Column("claim", "the study says"), Column("finding", "its numbers say")]
    tables = [_markdown(columns, rows), _memory(), _markdown(text, wrong)]
    return "\n\n".join(tables)


def _memory() -> str:
    columns = [
        Column("net", "network"), Column("gpus", "V100s", "int"),
        Column("parameters", "parameters", "int"),
        Column("printed", "their size, MB, as printed", "float", digits=2),
        Column("size", "at 4 bytes", "si", "B", digits=4),
        Column("used", "GPU memory, MB", "int"), Column("ratio", "ratio", "float", digits=1),
    ]  # fmt: skip
    rows = [
        (m.net, m.gpus, m.parameters, m.parameter_megabytes, 4 * m.parameters, m.used_megabytes,
         m.used_megabytes / m.parameter_megabytes)
        for m in study().memory
    ]  # fmt: skip
    return _markdown(columns, rows)


def _markdown(columns: Sequence[Column], rows: Sequence[tuple[Any, ...]]) -> str:
    return render(Table("", tuple(columns), tuple(rows)), "markdown").strip()


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
        Column("net", "network"), Column("stage", "stage"), Column("output", "output"),
        Column("parameters", "parameters", "int"), Column("macs", "MACs", "int"),
        Column("forward", "forward", "si", "FLOP"), Column("backward", "backward", "si", "FLOP"),
        Column("moved", "moved", "si", "B"), Column("held", "held", "si", "B"),
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
    return _markdown(columns, rows)


def _numbers(c: Cost) -> tuple[int, ...]:
    return (c.parameters, c.macs, c.forward_flops, c.backward_flops, c.moved_bytes)
