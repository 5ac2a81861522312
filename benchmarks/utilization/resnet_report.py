"""Writes what docs/utilization.md shows of the ResNet-50, from utilization_resnet.json.

python -m benchmarks.utilization.resnet_report

Beside NVML's means: reports of the same steps (profiles/utilization/resnet_STEP.sqlite.xz: the last
22 of 60 batches under Nsight Systems), which say how long the GPU is busy and what it idles in.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any, Final

from benchmarks.common import digits, folders
from benchmarks.common.arguments import report
from benchmarks.common.pages import markdown, percent, put, written_in
from benchmarks.common.results import read as read_json
from benchmarks.utilization.report import read_idle
from perfmodel.analysis.analyze import analyze
from perfmodel.analysis.utilization import Idle
from perfmodel.base.units import si
from perfmodel.machines.devices import datasheet
from perfmodel.machines.gpu_samples import read_series
from perfmodel.programs.program import Options
from perfmodel.readers import read
from perfmodel.render.plot import panels, save
from perfmodel.render.plot.lines import Percentages, utilization
from perfmodel.workloads.cnns import resnet
from perfmodel.workloads.layers import total

RESULTS: Final = folders.RESULTS / "utilization_resnet.json"
SERIES: Final = folders.RESULTS / "utilization"
REPORTS: Final = folders.PROFILES / "utilization"
PAGE: Final = folders.DOCS / "utilization.md"
SCRIPT: Final = "benchmarks.utilization.resnet_report"
BATCH: Final = 128
LONG_S: Final = 150.0
"""Steps that were sampled for as long as this, nearly the lab's three minutes, are drawn."""
CLOSE: Final = 95.0
"""Per cent of NVML's utilization that are called close to 100."""
written = written_in(Path(__file__).with_name("text.md"))


def measured() -> list[dict[str, Any]]:
    """Return the rows of the steps that were measured."""
    return list(read_json(RESULTS)["rows"])


def page(rows: list[dict[str, Any]]) -> str:
    """Return what stands between the marks."""
    idle = {row["name"]: read_idle(REPORTS / f"resnet_{row['name']}.sqlite.xz")[0] for row in rows}
    first = rows[0]
    commands = dict.fromkeys(f"`{row['command']}`" for row in rows)
    return "\n\n".join([
        f"{first['device']}, torch {first['torch']}, {first['date']}: {', '.join(commands)}.",
        steps(rows, idle), answers(rows, idle),
        f"![GPU and memory utilization over {sampled_s(first)}, before and after]"
        "(images/utilization_resnet.png)",
        written("resnet idle"), causes(idle),
    ])  # fmt: skip


def sampled_s(row: dict[str, Any]) -> str:
    """Return for how long a step was sampled, in whole seconds with the unit."""
    start, end = row["window_s"]
    return f"{end - start:.0f} s"


def steps(rows: list[dict[str, Any]], idle: dict[str, Idle]) -> str:
    """Return a row a step: NVML's means, what the report says, and the share of the peak."""
    columns = (
        "step; sampled for=s; batch=s; images/s=int; GPU utilization, NVML=percent.1; "
        "memory utilization, NVML=percent.1; GPU busy a batch, by nsys=s; of the batch=percent.1; "
        "of the bf16 peak=percent.1; memory used=B; power=W; PCIe in=B/s"
    )
    table = []
    for row in rows:
        means, window = row["means"], row["window_s"]
        busy = busy_s(row, idle)
        table.append(
            (row["name"], window[1] - window[0], row["batch_s"],
             round(BATCH / row["batch_s"]), _share(means["gpu_percent"]),
             _share(means["memory_percent"]), busy, busy / row["batch_s"],
             of_the_peak(row), means["memory_used_bytes"], means["power_w"],
             means["pcie_rx_bytes_per_s"])
        )  # fmt: skip
    return markdown(columns, table)


def busy_s(row: dict[str, Any], idle: dict[str, Idle]) -> float:
    """Return how long the GPU is busy in a median batch of the step's report."""
    return idle[row["name"]].ranks[0].gpu_busy_s or 0.0


def of_the_peak(row: dict[str, Any]) -> float:
    """Return the FLOPs of a batch over its time, as a share of the tensor cores' peak."""
    machine = datasheet([row["device"]])
    assert machine is not None
    net = resnet("resnet50", digits.SIDE, digits.CLASSES, small=True)
    return total(net, BATCH).flops / row["batch_s"] / machine.peak_flops_per_s["float16_tensor"]


def answers(rows: list[dict[str, Any]], idle: dict[str, Idle]) -> str:
    """Answer the lab's questions 3 and 4 from the first step and the last."""
    first, last = rows[0], rows[-1]
    said = {}
    for key, row in (("before", first), ("after", last)):
        gpu, window = row["means"]["gpu_percent"], row["window_s"]
        said |= {
            key: f"{gpu:.1f} %", f"{key}_memory": f"{row['means']['memory_percent']:.1f} %",
            f"{key}_seconds": f"{window[1] - window[0]:.0f}",
            f"{key}_batch": si(row["batch_s"], "s"),
            f"is_{key}": "is close to" if gpu >= CLOSE else "is not close to",
            f"{key}_peak": percent(of_the_peak(row)),
        }  # fmt: skip
    gains = ", ".join(
        f"`{row['name']}` {row['means']['gpu_percent'] - before['means']['gpu_percent']:+.0f}"
        for before, row in itertools.pairwise(rows)
    )
    text = written("resnet questions", faster=f"{first['batch_s'] / last['batch_s']:.1f}",
                   gains=gains, **said)  # fmt: skip
    return text + busy_text(rows, idle)


def busy_text(rows: list[dict[str, Any]], idle: dict[str, Idle]) -> str:
    """Say how long the GPU is busy by the reports of all steps, and with what in the last."""
    busy = [busy_s(row, idle) for row in rows]
    shares = [s / row["batch_s"] for s, row in zip(busy, rows, strict=True)]
    above = [
        row["means"]["gpu_percent"] - 100 * share for row, share in zip(rows, shares, strict=True)
    ]
    kinds = categories(rows[-1])
    return written(
        "resnet busy", least=si(min(busy), "s"), most=si(max(busy), "s"),
        first=percent(shares[0]), last=percent(shares[-1]), low=f"{min(above):.0f}",
        high=f"{max(above):.0f}", products=percent(kinds["convolution"] + kinds["GEMM"], 0),
        norms=percent(kinds["normalization"], 0), elements=percent(kinds["element-wise"], 0),
    )  # fmt: skip


def categories(row: dict[str, Any]) -> dict[str, float]:
    """Return the share of the GPU's busy time by category of kernels, of the step's report."""
    trace = read(REPORTS / f"resnet_{row['name']}.sqlite.xz")
    steps = analyze([trace], Options()).fitted.steps
    return {one.category: one.share for one in steps.categories} if steps else {}


def causes(idle: dict[str, Idle]) -> str:
    """Return what the GPU idles in, share of the median step, by step."""
    names = list(dict.fromkeys(cause for one in idle.values() for cause in one.shares))
    columns = ("step", "batch under nsys=s", *(f"idle: {name}=percent.1" for name in names))
    rows = [
        (name, one.ranks[0].recorded_step_s, *(one.shares.get(cause, 0.0) for cause in names))
        for name, one in idle.items()
    ]
    return markdown(columns, rows)


def _share(percentage: float | None) -> float | None:
    """Return per cent as a fraction."""
    return None if percentage is None else percentage / 100


def draw(rows: list[dict[str, Any]]) -> Any:
    """Draw the series of the steps that were sampled for minutes, core and memory."""
    chosen = [row for row in rows if row["window_s"][1] - row["window_s"][0] >= LONG_S]
    axes = panels("double", 1.8 * len(chosen), rows=len(chosen), letters=False)
    for row, ax in zip(chosen, axes, strict=True):
        series = read_series(SERIES / f"resnet_{row['name']}.csv")
        mine = series.of(series.gpus[0])
        curves = [
            Percentages(0, "GPU, NVML", mine.time_s, mine.values["gpu_percent"]),
            Percentages(1, "memory, NVML", mine.time_s, mine.values["memory_percent"]),
        ]
        utilization(curves, window_s=tuple(row["window_s"]), ax=ax, title=row["name"],
                    legend="" if ax is axes[0] else None)  # fmt: skip
        ax.set_xlabel("Time since the start (s); grey: the window" if ax is axes[-1] else "")
    return axes[0]


def main() -> None:
    report(__doc__)
    rows = measured()
    put(PAGE, SCRIPT, page(rows))
    save(draw(rows), folders.IMAGES, "utilization_resnet", ("png",))


if __name__ == "__main__":
    main()
