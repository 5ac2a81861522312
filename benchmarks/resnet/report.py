"""Writes the published study and the results of benchmarks.resnet into docs/resnet.md."""

from __future__ import annotations

import lzma
from pathlib import Path
from typing import Any, Final

from studies.resnet import Trial, machine_of, point, roof, roof_share, study
from studies.resnet_errata import errata
from writeup.counters import PHASES, between

from benchmarks.common import folders
from benchmarks.common.pages import markdown, put_parts, written_in
from benchmarks.common.results import called, read
from perfmodel.analysis.counters import Counted
from perfmodel.machines.devices import datasheet
from perfmodel.machines.machine import Machine
from perfmodel.models.roofline import Point
from perfmodel.readers.ncu import Launch, parse
from perfmodel.render.plot import panels, roofline, save
from perfmodel.workloads.cnns import resnet
from perfmodel.workloads.layers import Cost, costs, total, training_bytes

PAGE: Final = folders.DOCS / "resnet.md"
SCRIPT: Final = "benchmarks.resnet --document"
written: Final = written_in(Path(__file__).with_name("text.md"))
STUDIED: Final = ("resnet18", "resnet50")
PICTURE: Final = "![Training steps under the roofs of {}](images/resnet_measured.png)"
DRAWN: Final = {"fp32": "float32", "tf32": "tf32_tensor"}
"""The ceiling of each math that is counted and drawn."""
PEAKS: Final = {
    "fp32": "float32", "tf32": "tf32_tensor", "bf16": "float16_tensor", "fp16": "float16_tensor",
}  # fmt: skip
"""The ceiling of each math's products; bf16 has fp16's."""

NETWORK: Final = ("network", "images=int", "math")


def write(results: Path) -> None:
    """Draw the pictures; replace what lies between the marks."""
    folder = folders.IMAGES
    draw_published(folder)
    result, counts = read_in(results)
    found = machine(result)
    if found:
        draw_measured(steps(result, counts), found, folder)
    put_parts(PAGE, SCRIPT, parts(results))


def parts(results: Path) -> dict[str, str]:
    """Return the generated parts of the page by name."""
    result, counts = read_in(results)
    found = machine(result)
    tables = measured(result, counts, found)
    if found and any(map(drawable, steps(result, counts))):
        tables = f"{PICTURE.format(found.name)}\n\n{tables}"
    return {"published": published(), "layers": layers(), "measured": tables}


def steps(result: dict[str, Any], counts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the counted training steps, all phases together, with their time."""
    return [r for r in with_times(result, counts) if r["phase"] == "all"]


def read_in(results: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the results and the sums of the counters; nothing where there are none."""
    result = read(results)
    return result, counted(result["counters"], results.parent) if "counters" in result else []


def machine(result: dict[str, Any]) -> Machine | None:
    """Return the ceilings of the GPU that the results are of; None if it has no file."""
    return datasheet(part["about"].get("device", "") for part in result.values())


def published() -> str:
    """Return the study's table, recomputed, and its errors."""
    columns = (
        "trial; time=s; DRAM bytes=B; FLOP=FLOP; FLOP/byte=float.2; GFLOP/s=float.2; "
        "ridge=float.2; time that the roof needs=percent"
    )  # fmt: skip
    rows = [_trial(t) for t in study().trials]
    wrong = [(e.claim, e.finding) for e in errata()]
    text = "the study says; its numbers say"
    tables = [markdown(columns, rows), _published_memory(), markdown(text, wrong)]
    return "\n\n".join(tables)


def _published_memory() -> str:
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


# --- what Nsight Compute counted


def counted(part: dict[str, Any], folder: Path) -> list[dict[str, Any]]:
    """Return a row per cell and phase, and one per cell with `phase` 'all'.

    Of a step that was cut off the phases that were whole are there, and no 'all'.

    Parameters
    ----------
    part : mapping
        The part 'counters' of the results: its cells in order, its tables' names.
    folder : path
        Where the tables lie.
    """
    found = []
    for net, table in part["tables"].items():
        path = folder / table["file"]
        cells = [r for r in part["rows"] if r["net"] == net]
        if not table["kernels"] or not cells:
            continue
        launches = parse(lzma.decompress(path.read_bytes()).decode(), path.name).launches
        parts = between(launches)
        # the step that the time limit ended has no marker behind its last phase, and no time
        whole = sum(cell["profiled_step_s"] is not None for cell in cells)
        if not 4 * whole <= len(parts) <= 4 * len(cells):
            raise SystemExit(
                f"{path.name}: expected {4 * whole} markers for {whole} steps; got "
                f"{len(parts)}; run python -m benchmarks.resnet --part counters again"
            )
        for i, cell in enumerate(cells):
            mine = parts[4 * i : 4 * i + 4]
            of_cell = dict(zip(PHASES, mine[:-1], strict=False))
            if len(of_cell) == len(PHASES):
                of_cell["all"] = [launch for phase in of_cell.values() for launch in phase]
            found += [{**cell, "phase": p, **sums(kernels)} for p, kernels in of_cell.items()]
    return found


def sums(launches: list[Launch]) -> dict[str, Any]:
    """Add up a phase; what ncu did not count of every kernel is None."""
    found = Counted.of("phase", "kernel", launches)
    return {
        "kernels": found.launches, "kernel_time_s": found.time_s,
        "scalar_flops": found.flops_of("fp32"), "half_flops": found.flops_of("fp16"),
        "tensor_flops": found.flops_of("tensor tf32"),
        **{f"{level}_bytes": found.bytes_of(level) for level in ("dram", "l2", "l1")},
    }  # fmt: skip


# --- what was measured, and what the layers give


def measured(result: dict[str, Any], counts: list[dict[str, Any]], ceilings: Machine | None) -> str:
    """Return the tables of the parts that were measured."""
    blocks = [_torch(result), _times(result, "time", ceilings), _cold(result)]
    blocks += [_memory(result), _counters(result, counts), _phases(result, counts)]
    blocks += [_times(result, "tuned", ceilings), _ddp(result)]
    return "\n\n".join(block for block in blocks if block)


def step(result: dict[str, Any], part: str, row: dict[str, Any], batch: int | None = None) -> Cost:
    """Return what a row's training step costs by the layers."""
    image = result[part]["about"].get("image", 224)
    return total(resnet(row["net"], image), batch or row["batch"])


def with_times(result: dict[str, Any], counts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the counted cells with the time of the same step without a profiler, and all FLOPs."""
    times = {_key(r): r.get("total_s") for r in result.get("time", {}).get("rows", ())}
    found = []
    for row in counts:
        parts = [row[k] for k in ("scalar_flops", "half_flops", "tensor_flops")]
        known = [p for p in parts if p is not None]
        whole = sum(known) if row["scalar_flops"] is not None else None
        found.append({**row, "flops": whole, "total_s": times.get(_key(row))})
    return found


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["net"], row["batch"], row["math"]


def _heading(result: dict[str, Any], part: str, text: str) -> str:
    about = result[part]["about"]
    ends = [p.strip().splitlines()[-1] for p in result[part]["problems"]]  # before: its progress
    stopped = "".join(f" It ended early: {end}." for end in ends)
    return (
        f"{text} {about['device']}, torch {about['torch']}, cuDNN {about['cudnn']}, "
        f"{result[part]['date'][:10]}; `{called(result[part]['command'])}`.{stopped}"
    )


def _torch(result: dict[str, Any]) -> str:
    if "theory" not in result:
        return ""
    said = []
    for r in result["theory"]["rows"]:
        net = resnet(r["net"], r["image"])
        held = training_bytes(net, 1) - 12 * total(net).parameters
        ours = total(net)
        found = (r["parameters"], r["forward_flops"], r["backward_flops"])
        same = found == (ours.parameters, ours.forward_flops, ours.backward_flops)
        said.append(
            f"{r['net']} {r['parameters']:,} parameters, {r['forward_flops']:,} FLOPs forward and "
            f"{r['backward_flops']:,} backward, {'as' if same else 'not as'} the layers give; it "
            f"saves {r['saved_bytes'] / 1e6:.2f} MB for the backward pass, the layers give "
            f"{held / 1e6:.2f} MB"
        )
    return f"torch {result['theory']['about']['torch']} counts, for one image: {'; '.join(said)}."


def _times(result: dict[str, Any], part: str, ceilings: Machine | None) -> str:
    if part not in result:
        return ""
    columns = (
        *NETWORK, "step=s", "forward=s", "backward=s", "SGD=s", "images/s=float.0",
        "FLOPs of the layers per s=FLOP/s", "of the peak=percent", "host busy=percent.0",
    )  # fmt: skip
    rows: list[tuple[Any, ...]] = []
    for r in result[part]["rows"]:
        if r.get("total_s") is None:
            continue
        rate = step(result, part, r).flops / r["total_s"]
        peak = ceilings.peak_flops_per_s.get(PEAKS[r["math"]]) if ceilings else None
        rows.append(
            (*_key(r), r["total_s"], r["forward_s"], r["backward_s"], r["step_s"],
             r["batch"] / r["total_s"], rate, rate / peak if peak else None,
             r["host_s"] / r["total_s"])
        )  # fmt: skip
    return f"{_heading(result, part, written(part))}\n\n{markdown(columns, rows)}"


def _cold(result: dict[str, Any]) -> str:
    rows = [r for r in result.get("time", {}).get("rows", ()) if r.get("total_s")]
    first = {r["net"]: r for r in reversed(rows)}  # the first cell of each process
    said = [
        f"{r['net']} {1e3 * r['first_step_s']:.0f} ms, later {1e3 * r['total_s']:.1f} ms"
        for r in reversed(first.values())
    ]
    return written("cold", batch=rows[0]["batch"], said="; ".join(said)) if said else ""


def _memory(result: dict[str, Any]) -> str:
    rows = []
    for r in result.get("time", {}).get("rows", ()):
        if r["math"] != "fp32" or "allocated_bytes" not in r:
            continue
        net = resnet(r["net"], result["time"]["about"].get("image", 224))
        weights, held = 4 * total(net).parameters, training_bytes(net, r["batch"])
        rows.append(
            (r["net"], r["batch"], weights, held, r["allocated_bytes"], r["reserved_bytes"],
             r["device_bytes"], r["device_bytes"] / weights)
        )  # fmt: skip
    columns = (
        *NETWORK[:2], "weights=B", "the layers give=B", "allocated=B", "reserved=B",
        "in use on the GPU=B", "in use / weights=float.0",
    )  # fmt: skip
    text = "**Memory of an fp32 step**: weights are the study's theoretical memory."
    return f"{text}\n\n{markdown(columns, rows)}" if rows else ""


def _counters(result: dict[str, Any], counts: list[dict[str, Any]]) -> str:
    if not counts:
        return ""
    columns = (
        *NETWORK, "kernels=int", "layers: FLOPs=FLOP", "FADD FMUL FFMA=FLOP", "tensor cores=FLOP",
        "FADD FMUL FFMA / layers=percent", "counted / layers=percent", "layers: bytes=B", "DRAM=B",
        "DRAM / layers=percent", "L2=B", "L1=B", "FLOP/byte=float.1", "kernels' time=s",
        "step, no ncu=s", "step under ncu=s",
    )  # fmt: skip
    rows: list[tuple[Any, ...]] = []
    for r in with_times(result, counts):
        if r["phase"] != "all":
            continue
        model = step(result, "counters", r)
        rows.append(
            (*_key(r), r["kernels"], model.flops, r["scalar_flops"], r["tensor_flops"],
             _over(r["scalar_flops"], model.flops), _over(r["flops"], model.flops),
             model.moved_bytes, r["dram_bytes"], _over(r["dram_bytes"], model.moved_bytes),
             r["l2_bytes"], r["l1_bytes"], _over(r["flops"], r["dram_bytes"]),
             r["kernel_time_s"], r["total_s"], r["profiled_step_s"])
        )  # fmt: skip
    return f"{_heading(result, 'counters', written('counters'))}\n\n{markdown(columns, rows)}"


def _phases(result: dict[str, Any], counts: list[dict[str, Any]]) -> str:
    rows: list[tuple[Any, ...]] = []
    for r in with_times(result, counts):
        if r["phase"] == "all":
            continue
        m = step(result, "counters", r)
        flops = {"forward": m.forward_flops, "backward": m.backward_flops, "step": None}
        moved = {"forward": m.forward_bytes, "backward": m.backward_bytes, "step": m.update_bytes}
        rows.append(
            (*_key(r), r["phase"], r["kernels"], flops[r["phase"]], r["flops"], moved[r["phase"]],
             r["dram_bytes"], r["kernel_time_s"])
        )  # fmt: skip
    columns = (
        *NETWORK, "phase", "kernels=int", "layers: FLOPs=FLOP", "counted=FLOP", "layers: bytes=B",
        "DRAM=B", "kernels' time=s",
    )  # fmt: skip
    return f"The same by phase.\n\n{markdown(columns, rows)}" if rows else ""


def _over(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole


def _ddp(result: dict[str, Any]) -> str:
    blocks = [_of_gpus(result, ranks) for ranks in (2, 4) if f"ddp{ranks}" in result]
    return "\n\n".join(blocks)


def _of_gpus(result: dict[str, Any], ranks: int) -> str:
    part = f"ddp{ranks}"
    times = {(*_key(r), r["mode"]): r.get("total_s") for r in result[part]["rows"]}
    rows: list[tuple[Any, ...]] = []
    for (net, batch, math, mode), together in times.items():
        if mode != "ddp" or together is None:
            continue
        alone, whole = (times.get((net, b, math, "alone")) for b in (batch, ranks * batch))
        exposed = None if alone is None else together - alone
        rows.append(
            (net, batch, math, alone, together, exposed, _over(alone, together),
             _over(whole, together))
        )  # fmt: skip
    columns = (
        NETWORK[0], "images per GPU=int", NETWORK[2], "alone=s", f"{ranks} GPUs=s", "longer by=s",
        "efficiency, every GPU its images=percent", "speed-up, the same images=float.2",
    )  # fmt: skip
    text = written("gpus", ranks=ranks)
    return f"{_heading(result, part, text)}\n\n{markdown(columns, rows)}"
