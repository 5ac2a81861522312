"""Writes what docs/memory.md shows of the ResNet study's experiment, from memory_two_gpus.json.

python -m benchmarks.memory.two_gpus_report
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from benchmarks.common import folders
from benchmarks.common.arguments import report
from benchmarks.common.pages import markdown, percent, put, written_in
from benchmarks.common.results import read as read_json
from benchmarks.memory.two_gpus import NETS, RESULTS
from perfmodel.base.units import si
from perfmodel.render.plot import save
from perfmodel.render.plot.bars import stacks
from perfmodel.workloads.cnns import resnet
from perfmodel.workloads.layers import place

PAGE: Final = folders.DOCS / "memory.md"
SCRIPT: Final = "benchmarks.memory.two_gpus_report"
PUBLISHED: Final = {
    ("resnet18", 1): (11_689_512, 12_882e6), ("resnet50", 1): (25_557_032, 28_000e6),
    ("resnet18", 2): (23_379_024, 11_688e6), ("resnet50", 2): (51_114_064, 29_108e6),
}  # fmt: skip
"""The study's parameters and bytes of GPU memory, by network and number of GPUs."""
FITS: Final = folders.RESULTS / "memory.json"
"""Lines through the memory of one GPU over the batch, by benchmarks.memory."""
USES: Final = ("parameters", "gradients", "momentum", "buffers", "images", "kept for backward")
MOST: Final = 8
"""Tensors that are listed by name."""
TWO: Final = ("DataParallel", "DistributedDataParallel")
written = written_in(Path(__file__).with_name("two_gpus.md"))
Runs = dict[tuple[str, str], list[dict[str, Any]]]
"""Rows of each rank by network and way."""


def page(read: dict[str, Any]) -> str:
    """Return what stands between the marks."""
    rows = read["rows"]
    about = next(row["about"] for row in rows if "about" in row)
    commands = ", ".join(dict.fromkeys(f"`{row['command']}` ({row['date']})" for row in rows))
    said = (
        f"{about['device']}, torch {about['torch']}: {commands}; one epoch of "
        f"{read['images']:,} images of 3 x {read['side']} x {read['side']} in ten classes, batch "
        f"{read['batch']}, fp32, cudnn.benchmark on."
    )
    return "\n\n".join([
        said, runs(rows), "By use, at the end of a forward pass, of the allocator's peak:",
        uses(rows), "The largest tensors of one GPU's step:", largest(rows),
        "The memory of two GPUs together over that of one: predicted by the lines above, fitted "
        "to one GPU (constant + per sample x batch, without cudnn.benchmark), and measured:",
        sums(rows),
        "The sum, by part:", doubled(rows),
        "![Memory of ResNets on one GPU and two, by part](images/memory_two_gpus.png)",
        answers(rows), again(read),
    ])  # fmt: skip


def runs(rows: list[dict[str, Any]]) -> str:
    """Return memory of every run, GPU by GPU and summed, beside the study's.

    The study counts the parameters of every GPU, so its ratio is over all copies of the weights.
    """
    columns = (
        "network; way; GPUs=int; epoch=s; allocated, each=text; reserved, each=text; "
        "NVML, each=text; NVML, all=B; over one copy of the weights=float.0; "
        "over all copies=float.0; the study's V100s=B; over all its copies=float.0"
    )
    table = []
    for (net, way), mine in _grouped(rows).items():
        memory = [m for row in mine for m in row["memory"]]
        nvml = sum(m["nvml_bytes"] or 0 for m in memory)
        weights = 4 * mine[0]["parameters"]
        count = len(memory)
        params, published = PUBLISHED[net, count]
        shown = way != "DistributedDataParallel"
        table.append(
            (net, way, count, max(row["epoch_s"] for row in mine), _each(memory, "allocated_bytes"),
             _each(memory, "reserved_bytes"), _each(memory, "nvml_bytes"), nvml, nvml / weights,
             nvml / (count * weights), published if shown else None,
             published / (4 * params) if shown else None)
        )  # fmt: skip
    return markdown(columns, table)


def uses(rows: list[dict[str, Any]]) -> str:
    """Return the share of each use of memory in the allocator's peak, and what is left."""
    columns = (
        "network", "way", "peak allocated=B", *(f"{use}=percent" for use in USES),
        "not counted=percent", "reserved / peak=float.2",
    )  # fmt: skip
    table = []
    for (net, way), mine in _grouped(rows).items():
        row = mine[0]
        if not row["tensors"]:
            continue
        peak = row["memory"][0]["allocated_bytes"]
        sums = [sum(t["bytes"] for t in row["tensors"] if t["use"] == use) for use in USES]
        table.append(
            (net, way, peak, *(s / peak for s in sums), 1 - sum(sums) / peak,
             row["memory"][0]["reserved_bytes"] / peak)
        )  # fmt: skip
    return markdown(columns, table)


def largest(rows: list[dict[str, Any]]) -> str:
    """Return the largest tensors of the runs on one GPU, with their share of the peak."""
    columns = "network; tensor; use; bytes=B; of the peak=percent.2; so far=percent"
    table = []
    for (net, way), mine in _grouped(rows).items():
        if way != "one":
            continue
        peak, so_far = mine[0]["memory"][0]["allocated_bytes"], 0
        ordered = sorted(mine[0]["tensors"], key=lambda t: -t["bytes"])
        for t in ordered[:MOST]:
            so_far += t["bytes"]
            table.append((net, _named(net, t["name"]), t["use"], t["bytes"], t["bytes"] / peak,
                          so_far / peak))  # fmt: skip
    return markdown(columns, table)


def sums(rows: list[dict[str, Any]]) -> str:
    """Return the memory of a batch of 256 on two GPUs over that on one, by who counts it."""
    columns = (
        "network; counted by; predicted=float.2; DataParallel=float.2; "
        "DistributedDataParallel=float.2; the study's V100s=float.2"
    )
    found, table = _grouped(rows), []
    for one in read_json(FITS)["resnet_fits"]:
        if one["autocast"]:
            continue
        net, key = one["net"], one["y"]
        whole, half = (one["constant_bytes"] + n * one["slope"] for n in (256, 128))
        study = PUBLISHED[net, 2][1] / PUBLISHED[net, 1][1] if key == "nvml_bytes" else None
        name = key.removesuffix("_bytes").replace("nvml", "NVML")
        table.append(
            (net, name, 2 * half / whole, *(_ratio(found, net, way, key) for way in TWO), study)
        )
    return markdown(columns, table)


def _ratio(found: Runs, net: str, way: str, key: str) -> float:
    """Return the bytes of a way on all GPUs over those on one GPU."""
    return _sum(found[net, way], key) / _sum(found[net, "one"], key)


def _sum(mine: list[dict[str, Any]], key: str) -> float:
    return float(sum(m[key] for row in mine for m in row["memory"]))


def shares(mine: list[dict[str, Any]]) -> dict[str, float]:
    """Return the bytes of all GPUs of a run by part; together they are NVML's."""

    def of(*uses: str) -> float:
        return float(sum(t["bytes"] for row in mine for t in row["tensors"] if t["use"] in uses))

    peak, reserved = _sum(mine, "allocated_bytes"), _sum(mine, "reserved_bytes")
    copies, split = of(*USES[:4]), of(*USES[4:])
    return {
        "weights, gradients, momenta, buffers": copies, "images, kept for backward": split,
        "the rest of the allocator's peak": peak - copies - split,
        "reserved, not handed out": reserved - peak,
        "outside the allocator": _sum(mine, "nvml_bytes") - reserved,
    }  # fmt: skip


def doubled(rows: list[dict[str, Any]]) -> str:
    """Return every part of the memory on one GPU and, as a sum, on two."""
    columns = "network; part; one GPU=B; two, DistributedDataParallel=B; sum / one=float.2; more=B"
    found, table = _grouped(rows), []
    for net in NETS:
        one, two = (shares(found[net, way]) for way in ("one", "DistributedDataParallel"))
        one["all, by NVML"], two["all, by NVML"] = sum(one.values()), sum(two.values())
        table += [(net, part, one[part], two[part], two[part] / one[part], two[part] - one[part])
                  for part in one]  # fmt: skip
    return markdown(columns, table)


def answers(rows: list[dict[str, Any]]) -> str:
    """Answer the study's questions of memory from what was measured."""
    found, said = _grouped(rows), {}
    for net in NETS:
        one, two = (shares(found[net, way]) for way in ("one", "DistributedDataParallel"))
        peak = _sum(found[net, "one"], "allocated_bytes")
        weights = 4 * found[net, "one"][0]["parameters"]
        copies, split, rest, _, outside = one
        parallel = _sum(found[net, "DataParallel"], "nvml_bytes") / weights
        params, published = PUBLISHED[net, 2]
        said |= {
            f"{net}_nvml": si(sum(one.values()), "B"),
            f"{net}_study": si(PUBLISHED[net, 1][1], "B"),
            f"{net}_weights": f"{sum(one.values()) / weights:.0f}",
            f"{net}_one_copy": f"{parallel:.0f}", f"{net}_all_copies": f"{parallel / 2:.0f}",
            f"{net}_its_copies": f"{published / (4 * params):.0f}",
            f"{net}_copies": percent(one[copies] / peak),
            f"{net}_split": percent(one[split] / peak), f"{net}_rest": percent(one[rest] / peak),
            f"{net}_sum": f"{sum(two.values()) / sum(one.values()):.2f}",
            f"{net}_kept": f"{two[split] / one[split]:.2f}",
            f"{net}_more": si(two[copies] - one[copies], "B"),
            f"{net}_workspaces": si(two[rest] - one[rest], "B"),
            f"{net}_outside": si(two[outside] - one[outside], "B"),
            f"{net}_published": f"{published / PUBLISHED[net, 1][1]:.2f}",
        }  # fmt: skip
    return written("answers", **said)


def again(read: dict[str, Any]) -> str:
    """Say how far NVML's bytes of the same runs on one other host are from these, GPU by GPU."""
    first, other = _grouped(read["rows"]), _grouped(read["again"])
    apart = [
        abs(new["nvml_bytes"] - old["nvml_bytes"])
        for key, mine in other.items()
        for old, new in zip(_memory(first[key]), _memory(mine), strict=True)
    ]
    commands = dict.fromkeys(row["command"] for row in read["again"])
    return written(
        "again", command=next(iter(commands)), runs=str(len(other)),
        equal=str(sum(d == 0 for d in apart)), count=str(len(apart)), most=si(max(apart), "B"),
    )  # fmt: skip


def _memory(mine: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [m for row in mine for m in row["memory"]]


def _grouped(rows: list[dict[str, Any]]) -> Runs:
    found: Runs = {}
    for row in rows:
        if "memory" in row:
            found.setdefault((row["net"], row["way"]), []).append(row)
    return found


def _named(net: str, name: str) -> str:
    """Return a tensor's name with the layer's instead of its number."""
    kind, _, rest = name.partition(".")
    number, _, tensor = rest.partition(".")
    return f"{place(resnet(net))[int(number)].name}.{tensor}" if kind == "layers" else name


def _each(memory: list[dict[str, Any]], key: str) -> str:
    return " + ".join("–" if m[key] is None else f"{m[key] / 1e9:.2f}" for m in memory) + " GB"


def draw(rows: list[dict[str, Any]]) -> Any:
    """Draw the memory of both networks on one GPU and two, by part, beside the study's."""
    found, bars = _grouped(rows), dict[str, dict[str, float]]()
    for net in NETS:
        name = net.replace("resnet", "ResNet-")
        for count, way in ((1, "one"), (2, "DistributedDataParallel")):
            gpus = "1 GPU" if count == 1 else "2 GPUs"
            bars[f"{name}, {gpus}"] = shares(found[net, way])
            bars[f"{name}, {gpus}, the study"] = {"not taken apart": PUBLISHED[net, count][1]}
    label = "Memory in use on all GPUs, by NVML"
    return stacks(bars, unit="B", total="B", rest="not taken apart", label=label)


def main() -> None:
    report(__doc__)
    read = read_json(RESULTS)
    put(PAGE, SCRIPT, page(read))
    save(draw(read["rows"]), folders.IMAGES, "memory_two_gpus", ("png",))


if __name__ == "__main__":
    main()
