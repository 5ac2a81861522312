"""Writes counts of layers into docs/layers.md and measured times into docs/layers_timed.md."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any, Final

from writeup.counters import MATHS
from writeup.paleo import Measured, judge

from benchmarks.common import folders
from benchmarks.common.pages import Shown, markdown, percent, put_parts, written_in
from benchmarks.common.results import called
from benchmarks.common.results import read as read_json
from perfmodel.base.units import DTYPE_BYTES
from perfmodel.machines.devices import datasheet, named
from perfmodel.studies.models.paleo import platform, step
from perfmodel.studies.render.layers import Layers, kind, totals
from perfmodel.workloads.cnns import resnet
from perfmodel.workloads.layers import costs, place
from perfmodel.workloads.networks import CNNS, network

PAGE: Final = folders.DOCS / "layers.md"
TIMED: Final = folders.DOCS / "layers_timed.md"
RESNETS: Final = folders.RESULTS / "resnet.json"
SCRIPT: Final = "benchmarks.layers --document"
written: Final = written_in(Path(__file__).with_name("text.md"))
SHOWN: Final = {
    "counts": Shown("vgg|googlenet|resnet50",
                    "network|parameters|conv MACs|share|forward$|training|FLOP/b"),
    "k80": Shown("vgg16|googlenet|resnet50", "network|peak$|and bytes"),
    "paleo": Shown("", "network|math|PPP$|images$"),
    "gemms": Shown(r"\| (vgg16|googlenet|resnet50) \| (1|32) ",
                   "network|images|waiting for each$|together"),
    "measured": Shown(r"(vgg16|googlenet) \| (1|32) \| fp32"),
    "measured 2": Shown(),
    "measured 3": Shown(),
}  # fmt: skip
"""What the page shows of its long tables; docs/data has them whole."""
FITTED: Final = 128
"""Images of the step that fits the percent of peak."""
WAYS: Final = ("graph", "alone", "whole", "events", "synchronized")


def write(results: Path) -> None:
    """Replace what lies between the marks."""
    for page, parts in pages(results).items():
        put_parts(page, SCRIPT, parts, SHOWN)


def pages(results: Path) -> dict[Path, dict[str, str]]:
    """Return the generated parts of the two pages by name."""
    read, resnets = read_json(results), read_json(RESNETS)
    return {
        PAGE: {"counts": counts(), "paleo": paleo(resnets["time"]), "torch": torch(read)},
        TIMED: {"k80": k80(), "reasons": k80_reasons(), "gemms": gemm_times(read),
                "measured": measured(read)},
    }  # fmt: skip


def counts() -> str:
    """Return the golden table, of one image."""
    columns = (
        "network; parameters=int; conv MACs=int; FC MACs=int; conv share=percent.2; "
        "forward=FLOP; training=FLOP; activations=int; held by a step=B; "
        "FLOP/byte, forward=float.1; of 32 images=float.1"
    )  # fmt: skip
    rows = []
    for name in CNNS:
        t, many = (totals(Layers(network(name), n, "float32", 4)) for n in (1, 32))
        rows.append(
            (name, t["params"], t["conv_macs"], t["fc_macs"], t["conv_share"], t["forward_flops"],
             t["training_flops"], t["activations"], t["held_bytes"], t["forward_flops_per_byte"],
             many["forward_flops_per_byte"])
        )  # fmt: skip
    return markdown(columns, rows)


def k80() -> str:
    """Return the time of one image's forward pass on a K80, in both precisions."""
    columns = (
        "network; forward=FLOP; fp32: FLOP / peak=s; one of its GPUs=s; and bytes, one GPU=s; "
        "fp64: FLOP / peak=s; one of its GPUs=s; and bytes, one GPU=s"
    )  # fmt: skip
    machine, rows = named("k80"), []
    for name in ("alexnet", "vgg16", "vgg19", "googlenet", "resnet50"):
        net, row = network(name), []
        flops = totals(Layers(net, 1, "float32", 4))["forward_flops"]
        for dtype in ("float32", "float64"):
            board = platform(machine, dtype)
            half = platform(machine, dtype, 0.5)  # half of the board's peak and bandwidth
            paleo_s = step(net, half, 1, DTYPE_BYTES[dtype]).forward_s
            row += [board.compute_s(flops), half.compute_s(flops), paleo_s]
        rows.append((name, flops, *row))
    return markdown(columns, rows)


K80_CLOCKS: Final = 875 / 560
"""Boost over base, MHz: 4992 cores and 2 FLOP a cycle are 8.74 and 5.59 TFLOP/s."""


def k80_reasons() -> str:
    """Return a forward pass on a K80 from the naive quotient on, one reason after the other."""
    columns = (
        "network; MACs=int; precision; MACs / peak=s; x 2 FLOP a MAC=s; x 2, one of two GPUs=s; "
        "x 1.56, base clock=s; and bytes=s; in all=float.1"
    )
    nets = {name: network(name) for name in ("vgg16", "googlenet", "resnet50")}
    nets["resnet50, as in Caffe"] = resnet("resnet50", first=True)
    rows = []
    for name, net in nets.items():
        flops = totals(Layers(net, 1, "float32", 4))["forward_flops"]
        for dtype, title in (("float32", "single"), ("float64", "double")):
            board, half = (platform(named("k80"), dtype, ppp) for ppp in (1.0, 0.5))
            naive = board.compute_s(flops / 2)
            base = half.compute_s(flops) * K80_CLOCKS
            moved = sum(
                half.memory_s(c.forward_bytes) for _, c in costs(net, 1, DTYPE_BYTES[dtype])
            )
            rows.append(
                (name, flops // 2, title, naive, board.compute_s(flops), half.compute_s(flops),
                 base, base + moved, (base + moved) / naive)
            )  # fmt: skip
    return markdown(columns, rows)


def gemm_times(read: dict[str, Any]) -> str:
    """Return the GEMMs by themselves beside the forward pass."""
    rows = read["gemms"]["rows"]
    about = read["gemms"]["about"]
    columns = (
        "network; images=int; GEMMs=int; waiting for each=s; each many times=s; together=s; "
        "as a graph=s; forward, waiting for each layer=s; forward, whole=s; forward, as a graph=s; "
        "GEMMs together / forward whole=percent.0; GEMMs / forward, both as graphs=percent.0"
    )
    table = [
        (r["net"], r["batch"], r["gemms"]["count"], r["synchronized_s"], r["alone_s"],
         r["together_s"], r["graph_s"], r["forward_synchronized_s"], r["forward_whole_s"],
         r["forward_graph_s"], r["together_s"] / r["forward_whole_s"],
         r["graph_s"] / r["forward_graph_s"])
        for r in rows
    ]  # fmt: skip
    said = (f"{about['device']}, torch {about['torch']}, {read['gemms']['date'][:10]}; "
            f"`{called(read['gemms']['command'])}`; fp32.")  # fmt: skip
    return f"{said}\n\n{markdown(columns, table)}"


def paleo(result: dict[str, Any]) -> str:
    """Fit the percent of peak to one batch and say how far off the others are."""
    errors = paleo_errors(result)
    batches = sorted({e["batch"] for e in errors} - {FITTED})
    columns = (
        "network", "math", "PPP=percent", *(f"{b} images=percent.0" for b in batches),
        f"{FITTED} images, the other's PPP=percent.0",
    )  # fmt: skip
    rows = []
    for net, math in dict.fromkeys((e["net"], e["math"]) for e in errors):
        mine = {e["batch"]: e for e in errors if (e["net"], e["math"]) == (net, math)}
        rows.append(
            (net, math, mine[FITTED]["ppp"], *(mine[b]["error"] for b in batches),
             mine[FITTED]["cross"])
        )  # fmt: skip

    def median(rows: list[dict[str, Any]], *batches: int) -> float:
        return statistics.median(abs(e["error"]) for e in rows if e["batch"] in batches)

    about, large, small = result["about"], median(errors, 256), median(errors, 2, 10)
    least = median(paleo_errors(result, overlapped=True), 256)
    said = written(
        "paleo", device=about["device"], torch=about["torch"], date=result["date"][:10],
        large=percent(large), least=percent(least), small=percent(small, 0),
        floor=percent(_with_floor(errors), 0), middle=percent(median(errors, 10, 32), 0),
    )  # fmt: skip
    return f"{markdown(columns, rows)}\n\n{said}"


def paleo_errors(result: dict[str, Any], overlapped: bool = False) -> list[dict[str, Any]]:
    """Return predicted over measured less one, by network, math and batch.

    PPP is fitted to the step of `FITTED` images of each network and math; `cross` is the error at
    that batch with the other network's PPP.
    """
    maths = {dtype: math for math, dtype in MATHS.items()}
    steps = [
        Measured(r["net"], MATHS[r["math"]], r["batch"], r["total_s"])
        for r in result["rows"] if r.get("total_s")
    ]  # fmt: skip
    machine = datasheet((result["about"]["device"],)) or named("h200")
    return [
        {
            "net": j.measured.net, "math": maths[j.measured.dtype], "batch": j.measured.batch,
            "ppp": j.ppp, "measured_s": j.measured.seconds, "error": j.error,
            "cross": j.other_error,
        }
        for j in judge(steps, machine, FITTED, overlapped=overlapped)
    ]  # fmt: skip


def _with_floor(errors: list[dict[str, Any]]) -> float:
    """Return the median error at 10 and 32 images if no step is shorter than that of 2."""
    floors = {(e["net"], e["math"]): e["measured_s"] for e in errors if e["batch"] == 2}
    return statistics.median(
        abs(max((1 + e["error"]) * e["measured_s"], floors[e["net"], e["math"]]) / e["measured_s"]
            - 1)
        for e in errors if e["batch"] in (10, 32)
    )  # fmt: skip


def torch(read: dict[str, Any]) -> str:
    """Say what torch counts, and how often it says the same."""
    about, same, other = read["theory"]["about"], [], ""
    for row in read["theory"]["rows"]:
        t = totals(Layers(network(row["net"]), 1, "float32", 4))
        ours = (t["params"], t["forward_flops"], t["backward_flops"])
        if ours == (row["parameters"], row["forward_flops"], row["backward_flops"]):
            same.append(row["net"])
            continue
        forward = "the same" if row["forward_flops"] == t["forward_flops"] else "other"
        other += (
            f" Of {row['net']} it counts {forward} FLOP forward, but "
            f"{row['backward_flops']:,} backward where there are {t['backward_flops']:,}: the "
            f"weight gradients of a grouped convolution once per group."
        )
    said = f"torch {about['torch']} counts the same parameters and FLOP, forward and backward, of "
    return f"{said}{', '.join(same)}.{other}"


def measured(read: dict[str, Any]) -> str:
    """Return the times of the whole pass in every way, and the layers that take most."""
    rows = read["time"]["rows"]
    about = read["time"]["about"]
    problems = "".join(f" Not measured: {p}." for p in read["time"]["problems"])
    said = (
        f"{about['device']}, torch {about['torch']}, cuDNN {about['cudnn']}, "
        f"{read['time']['date'][:10]}; `{called(read['time']['command'])}`.{problems}"
    )
    return "\n\n".join(b for b in (said, _ways(rows), _slowest(rows), _steps(read["time"])) if b)


def _ways(rows: list[dict[str, Any]]) -> str:
    cells: dict[tuple[Any, ...], dict[str, float]] = {}
    for r in rows:
        if r["mode"] in WAYS:
            cells.setdefault((r["net"], r["batch"], r["math"]), {})[r["mode"]] = r["total_s"]
    columns = (
        "network", "images=int", "math", *(f"{way}=s" for way in WAYS),
        "synchronized / whole=float.2",
    )  # fmt: skip
    table = []
    for key, c in cells.items():
        both = "whole" in c and "synchronized" in c
        over = c["synchronized"] / c["whole"] if both else None
        table.append((*key, *(c.get(way) for way in WAYS), over))
    return markdown(columns, table) if table else ""


def _slowest(rows: list[dict[str, Any]]) -> str:
    """One row per cell: the kinds' shares of the time of layers alone, and the longest layer."""
    columns = (
        "network; images=int; math; convolutions=percent; FC=percent; the rest=percent; "
        "longest layer; of all=percent"
    )  # fmt: skip
    table = []
    for r in rows:
        if r["mode"] != "alone":
            continue
        placed, times = place(network(r["net"])), r["layers_s"]
        sums = {"conv": 0.0, "fc": 0.0, "rest": 0.0}
        for x, seconds in zip(placed, times, strict=True):
            sums[kind(x) if kind(x) in sums else "rest"] += seconds
        slowest = max(range(len(times)), key=times.__getitem__)
        total = sum(times)
        table.append(
            (r["net"], r["batch"], r["math"], *(s / total for s in sums.values()),
             placed[slowest].name, times[slowest] / total)
        )  # fmt: skip
    return f"Shares of the layers' time, each alone.\n\n{markdown(columns, table)}" if table else ""


def _steps(result: dict[str, Any]) -> str:
    rows = [r for r in result["rows"] if r["mode"] == "training"]
    if not rows:
        return ""
    columns = (
        "network", "math", "images=int", "step=s", "forward=s", "backward=s", "update=s",
        f"PPP, of {FITTED} images=percent", "predicted with it=percent.0",
    )  # fmt: skip
    errors = {(e["net"], e["math"], e["batch"]): e for e in paleo_errors({**result, "rows": rows})}
    table = []
    for r in rows:
        e = errors.get((r["net"], r["math"], r["batch"]), {})
        error = None if r["batch"] == FITTED else e.get("error")
        table.append(
            (r["net"], r["math"], r["batch"], r["total_s"], r["forward_s"], r["backward_s"],
             r["update_s"], e.get("ppp"), error)
        )  # fmt: skip
    return f"Training steps, and Paleo's error on them.\n\n{markdown(columns, table)}"
