"""Writes the results of benchmarks.vecadd into docs/vecadd.md, with the lab's two charts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from benchmarks.common import folders
from benchmarks.common.pages import markdown, percent, put, written_in
from benchmarks.common.results import called
from benchmarks.common.results import read as read_json
from benchmarks.vecadd.ways import SECTOR, THREADS
from perfmodel.base.units import si
from perfmodel.machines.devices import datasheet, named
from perfmodel.machines.machine import Machine
from perfmodel.machines.measure.measurement import load
from perfmodel.render.plot import save
from perfmodel.render.plot.lines import Series, lines
from perfmodel.render.plot.style import Measure

PAGE: Final = folders.DOCS / "vecadd.md"
SCRIPT: Final = "benchmarks.vecadd --document"
written: Final = written_in(Path(__file__).with_name("text.md"))
NAMES: Final = {
    "python": "loop in Python", "loop": "loop in C++", "numpy": "NumPy",
    "thread": "one thread", "block": "one block", "grid": "full grid",
}  # fmt: skip
PARTS: Final = {
    "explicit": ("allocate_s", "copy_in_s", "kernel_s", "launch_s", "copy_out_s", "free_s"),
    "unified": ("allocate_s", "first_touch_s", "kernel_s", "launch_s", "read_back_s", "free_s",
                "second_kernel_s"),
}  # fmt: skip
TITLES: Final = {"explicit": "without unified memory", "unified": "with unified memory"}
READ: Final = 8
WRITTEN: Final = 4
"""Bytes of an addition: two float32 read, one written."""

KEYS: Final = {
    "kernel": ("hbm_triad", "hbm"),
    "copy_in": ("pcie_h2d_pageable", "pcie"),
    "copy_out": ("pcie_d2h_pageable", "pcie"),
    "migration": ("pcie_h2d", "pcie"),
}
"""Bandwidths by what they bound: as measured, else the datasheet's."""

Rows = list[dict[str, Any]]


def write(results: Path) -> None:
    """Replace what lies between the marks, and draw the charts."""
    read = read_json(results)
    draw(read["time"]["rows"], folders.IMAGES)
    put(PAGE, SCRIPT, made(read))
    print(f"{PAGE.relative_to(folders.ROOT)} from {results}")


def made(read: dict[str, Any]) -> str:
    """Return the generated part of the page."""
    part = read["time"]
    rows: Rows = part["rows"]
    blocks = [
        f"{part['about']['device']}, {part['date']}: `{called(part['command'])}`, "
        f"{part['seconds']:.0f} s; medians of up to {max(row['repeats'] for row in rows)} "
        f"runs. {_verdict(rows)}",
        "### Time of the whole program\n\n" + totals(rows),
        *(f"![Time against K, {title}](images/vecadd_{memory}.png)"
          for memory, title in TITLES.items()),
        "### Parts of the time\n\n" + findings(rows),
        *(parts(rows, memory) for memory in PARTS),
        "### Predicted and measured\n\n" + against(part),
        "### The profile\n\n" + profile(read["profile"]["rows"][0]),
    ]  # fmt: skip
    if part["problems"]:
        blocks.append("Left out: " + "; ".join(part["problems"]) + ".")
    return "\n\n".join(blocks)


def totals(rows: Rows) -> str:
    """Return the time of every program by size."""
    sizes = sorted({row["millions"] for row in rows})
    columns = (
        "memory", "way", *(f"K = {k:g}=s" for k in sizes),
    )  # fmt: skip
    by = {(row["memory"], row["way"], row["millions"]): row["seconds"]["total_s"] for row in rows}
    order = [(m, w) for m in ("host", *PARTS) for w in NAMES]
    table = [
        (memory, NAMES[way], *(by.get((memory, way, k)) for k in sizes))
        for memory, way in order
        if any((memory, way, k) in by for k in sizes)
    ]
    return markdown(columns, table)


def parts(rows: Rows, memory: str) -> str:
    """Return the parts of the largest programs of a kind of memory."""
    names = PARTS[memory]
    columns = (
        f"{TITLES[memory]}", "K=float.0",
        *(f"{name.removesuffix('_s').replace('_', ' ')}=s" for name in names), "most of it",
    )  # fmt: skip
    table = []
    for way in NAMES:
        if not (ordered := _of(rows, memory, way)):
            continue
        largest = ordered[-1]
        seconds = largest["seconds"]
        most = max((n for n in names if n != "second_kernel_s"), key=lambda n: seconds[n])
        share = seconds[most] / seconds["total_s"]
        shown = f"{most.removesuffix('_s').replace('_', ' ')} {percent(share, 0)}"
        values = (seconds[name] for name in names)
        table.append((NAMES[way], largest["millions"], *values, shown))
    return markdown(columns, table)


def findings(rows: Rows) -> str:
    """Say what the full grid gains on the host's loop at the largest size, and what eats it."""
    by = {(row["memory"], row["way"], row["millions"]): row["seconds"] for row in rows}
    k = max(millions for *_, millions in by)
    grid, loop, unified = by["explicit", "grid", k], by["host", "loop", k], by["unified", "grid", k]
    rate = si(12e6 * k / grid["kernel_s"], "B/s")
    copied = (grid["copy_in_s"] + grid["copy_out_s"]) / grid["total_s"]
    kernel, whole = (loop["total_s"] / grid[name] for name in ("kernel_s", "total_s"))
    times = unified["kernel_s"] / unified["second_kernel_s"]
    return " ".join((
        written("grid", k=k, rate=rate, copied=percent(copied, 0)),
        written("loop", kernel=kernel, whole=whole),
        written("unified", times=times, whole=unified["total_s"] / grid["total_s"]),
    ))  # fmt: skip


def against(part: dict[str, Any]) -> str:
    """Return prediction and measurement of what a bandwidth or latency bounds."""
    sheet, found = ceilings(part["about"].get("device", ""))
    latency = part["about"].get("latency_s")
    columns = (
        "memory; way; K=float.0; part; by the datasheet=s; by measured ceilings=s; measured=s; "
        "measured / predicted=float.2"
    )  # fmt: skip
    table = []
    for row in ends(part["rows"]):
        n = int(1e6 * row["millions"])
        asked = (row["memory"], row["way"], n, latency)
        by_sheet = predicted(sheet, *asked)
        best = predicted(found, *asked) if found else dict.fromkeys(by_sheet)
        for name, bound in by_sheet.items():
            if name.startswith("copy") and row["way"] != "grid":
                continue  # the copies of all three are the same
            took, best_s = row["seconds"][name], best[name] or bound
            table.append(
                (row["memory"], NAMES[row["way"]], row["millions"],
                 name.removesuffix("_s").replace("_", " "), bound, best[name], took,
                 took / best_s if best_s else None)
            )  # fmt: skip
    said = written("no latency")
    if latency:
        waits = {name: si(seconds, "s") for name, seconds in latency.items()}
        said = written("latency", **waits)
    return f"{said}\n\n{markdown(columns, table)}"


def ends(rows: Rows) -> Rows:
    """Return the smallest and the largest program of every way on the GPU."""
    found = []
    for memory, way in [(memory, way) for memory in PARTS for way in NAMES]:
        mine = _of(rows, memory, way)
        found += [mine[0], mine[-1]] if len(mine) > 1 else mine
    return found


def ceilings(device: str) -> tuple[Machine, Machine | None]:
    """Return the datasheet of a GPU (an H200's if it has none here), and its measured ceilings."""
    measured = load(folders.MACHINE)
    found = measured.machine if device in measured.gpus else None
    return datasheet((device,)) or named("h200"), found


def profile(row: dict[str, Any]) -> str:
    """Return what the report says of pages."""
    columns = (
        f"full grid, K = {row['millions']:g}=text", "kernel=s", "GPU page faults inside=int",
        "migrations to the GPU=int", "bytes=B", "their time=s",
    )  # fmt: skip
    table = [
        (k["kernel"], k["seconds"], k["gpu_faults"], k["migrations"], k["bytes"], k["migration_s"])
        for k in row["kernels"]
    ]
    said = [
        f"Nsight Systems {row['nsys']}: `{called(row['command'])}`. Times under it are longer "
        "than without."
    ]
    for name in ("to_device", "to_host"):
        m = row[name]
        where = name.replace("_", " the ").replace("device", "GPU")
        said.append(
            f"{m['migrations']:,} migrations {where}: {si(m['bytes'], 'B')} in "
            f"{si(m['migration_s'], 's')}."
        )
    for name, where in (("cpu_faults", "CPU"), ("gpu_faults", "GPU")):
        if row[name] is not None:
            said.append(f"{row[name]:,} page faults of the {where}.")
    if row["causes"]:
        why = ", ".join(f"{name} {si(size, 'B')}" for name, size in row["causes"].items())
        said.append(f"Why they moved: {why}.")
    if row["absent_tables"]:
        said.append(
            f"The report has no {' and no '.join(row['absent_tables'])}: page faults were not "
            f"recorded there, or there were none."
        )
    return " ".join(said) + "\n\n" + markdown(columns, table)


def draw(rows: Rows, folder: Path) -> None:
    """Draw time against K for every way, on the host and with one kind of memory."""
    for memory, title in TITLES.items():
        series: dict[str, Series] = {}
        ways = [(memory, w) for w in ("thread", "block", "grid")]
        for where, way in ways + [("host", w) for w in ("python", "loop", "numpy")]:
            if mine := _of(rows, where, way):
                label = ("CPU: " if where == "host" else "GPU: ") + NAMES[way]
                seconds = [r["seconds"]["total_s"] for r in mine]
                series[label] = Series([r["millions"] for r in mine], seconds)
        chart(series, title, folder, f"vecadd_{memory}")


def chart(series: Mapping[str, Series], title: str, folder: Path, name: str) -> None:
    """Draw time against K for the ways to add, by their labels."""
    millions, time = Measure("K (million floats)", scale="log"), Measure("Time", "s", "log")
    ax = lines(series, millions, time, ticked=True, title=f"Vector addition {title}",
               size_in=(5.2, 3.8))  # fmt: skip
    save(ax, folder, name, ("png",))


def _verdict(rows: Rows) -> str:
    wrong = [r for r in rows if not r["correct"]]
    if not wrong:
        return "Every sum equals NumPy's to the bit."
    named_ = ", ".join(f"{r['memory']} {r['way']} K = {r['millions']:g}" for r in wrong)
    return f"**Wrong sums: {named_}.**"


def _of(rows: Rows, memory: str, way: str) -> Rows:
    mine = (r for r in rows if (r["memory"], r["way"]) == (memory, way))
    return sorted(mine, key=lambda r: float(r["millions"]))


# --- predicted from bandwidths and two latencies


def bandwidth(machine: Machine, part: str) -> float | None:
    """Return bytes per second, or None if the machine has no such link."""
    known = machine.bandwidth_bytes_per_s
    return next((known[key] for key in KEYS[part] if key in known), None)


def over(size_bytes: float, bytes_per_s: float | None) -> float | None:
    """Return the seconds of a copy, or None without a bandwidth."""
    return None if bytes_per_s is None else size_bytes / bytes_per_s


def kernel_s(
    machine: Machine, way: str, n: int, latency_s: Mapping[str, float] | None
) -> float | None:
    """Predict a kernel whose data are in the GPU's memory.

    grid    the bytes over the bandwidth of memory, and a launch where it is known
    thread  two loads together, then an addition and a store that the next loads may not pass:
            of eight floats, which are one sector of 32 bytes, one waits for memory and seven for L1
    block   8 warps that each load four new sectors a time: every round waits for memory once

    None where a bandwidth or the latencies are not known.
    """
    if way == "grid":
        moved_s = over((READ + WRITTEN) * n, bandwidth(machine, "kernel"))
        return None if moved_s is None else moved_s + machine.latency_s.get("launch", 0.0)
    if latency_s is None:
        return None
    if way == "thread":
        return n / SECTOR * (latency_s["memory_s"] + (SECTOR - 1) * latency_s["l1_s"])
    return n / THREADS * latency_s["memory_s"]


def predicted(
    machine: Machine, memory: str, way: str, n: int, latency_s: Mapping[str, float] | None
) -> dict[str, float | None]:
    """Predict the parts of a row that a bandwidth or a latency bounds, by their names there.

    A kernel that pages arrive for takes at least as long as what it reads takes over PCIe, and as
    long as it would with its data there.
    """
    kernel = kernel_s(machine, way, n, latency_s)
    if memory == "explicit":
        return {
            "copy_in_s": over(READ * n, bandwidth(machine, "copy_in")),
            "kernel_s": kernel,
            "copy_out_s": over(WRITTEN * n, bandwidth(machine, "copy_out")),
        }
    arrival = over(READ * n, bandwidth(machine, "migration"))
    first = None if kernel is None or arrival is None else max(kernel, arrival)
    return {"kernel_s": first, "second_kernel_s": kernel}
