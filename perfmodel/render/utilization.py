"""Utilization as tables, sentences, a picture and JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from perfmodel.analysis.utilization import Answer
from perfmodel.base.document import pick
from perfmodel.base.table import Column, Table
from perfmodel.base.units import percent
from perfmodel.machines.gpu_samples import COUNTERS, Series
from perfmodel.readers.gpu import GpuMetric
from perfmodel.render.result import Result
from perfmodel.timing.idle import Idle

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SHOWN_METRICS: Final = ("GR Active", "SM", "Tensor Active", "DRAM")
_MOST_PHASES: Final = 8


def result(found: Answer) -> Result:
    """Return samples and what a report says beside them in every format."""
    made = []
    if found.series is not None:
        made.append(series_table(found.series))
    if found.idle is not None:
        made += [busy_table(found.idle), phases_table(found.idle)]
    if found.metrics:
        made.append(metrics_table(found.metrics))
    return Result([*made, sentences(found)], lambda: document(found), warnings=found.warnings)


def series_table(series: Series) -> Table:
    """Return the means of all counters, a row per GPU."""
    columns = (
        Column("gpu", "GPU", "int"),
        Column("seconds_s", "Window", "si", "s"),
        Column("samples", "Samples", "int"),
        Column("gpu_percent", "Utilization", "percent", "%"),
        Column("memory_percent", "Memory busy", "percent", "%"),
        Column("memory_used_bytes", "Memory used, most", "si", "B", digits=4),
        Column("sm_clock_hz", "SM clock", "si", "Hz"),
        Column("power_w", "Power", "si", "W"),
        Column("pcie_tx_bytes_per_s", "PCIe out", "si", "B/s"),
        Column("pcie_rx_bytes_per_s", "PCIe in", "si", "B/s"),
    )
    rows = []
    for gpu in series.gpus:
        mine = series.of(gpu)
        counters = [
            mine.largest(c.key) if c.key == "memory_used_bytes" else mine.mean(c.key)
            for c in columns[3:]
        ]
        rows.append((gpu, float(mine.time_s[-1] - mine.time_s[0]), len(mine), *counters))
    notes = (
        "utilization: share of NVML's last sampling period (1/6 s to 1 s) in which any kernel ran, "
        "however little of the GPU it used; means over time",
    )
    return Table("NVML, means over the window", columns, rows, notes)


RANKS: Final = (
    Column("rank", "Rank", "int"),
    Column("batches", "Batches", "int"),
    Column("window_s", "Window", "si", "s"),
    Column("busy_s", "GPU busy", "si", "s"),
    Column("busy_share", "Share", "percent"),
    Column("paused_s", "Left out (pauses)", "si", "s", of=lambda r: sum(r.pauses_s) or None),
)


def busy_table(idle: Idle) -> Table:
    """Return how busy the GPU of every rank was, by the report."""
    ranks = sorted(idle.ranks, key=lambda r: r.rank)
    return Table.of("GPU busy by the report: union of all GPU operations", ranks, RANKS)


def phases_table(idle: Idle) -> Table:
    """Return what the host was in while the GPU idled."""
    columns = (
        Column("range", "Range (without those inside it)", wrap=False),
        Column("cause", "Cause", wrap=False),
        Column("idle_s", "GPU idle per batch", "si", "s"),
        Column("share", "Of the time", "percent"),
    )
    rows = [(p.path[-1], p.cause, p.idle_s, p.share) for p in idle.phases[:_MOST_PHASES]]
    rest = idle.phases[_MOST_PHASES:]
    if rest:
        rows.append(
            (f"{len(rest)} others", "", sum(p.idle_s for p in rest), sum(p.share for p in rest))
        )
    return Table("Where the GPU idles, means over ranks and batches", columns, rows)


METRICS: Final = (
    Column("gpu", "GPU", "int"),
    Column("metric", "Nsight Systems' counter", wrap=False, of="name"),
    Column("mean", "Mean", "float", digits=1),
)


def metrics_table(metrics: Sequence[GpuMetric]) -> Table:
    """Return the means of Nsight Systems' sampled counters."""
    shown = [m for m in metrics if m.name.startswith(_SHOWN_METRICS)]
    return Table.of("GPU metrics of the report, over all of it", shown, METRICS)


def sentences(found: Answer) -> Sequence[str]:
    """Set NVML's number beside the report's, and say what to do."""
    said = []
    nvml = None if found.series is None else found.series.mean("gpu_percent")
    if nvml is not None and found.idle is not None:
        said.append(
            f"NVML says {nvml:.0f} %, the report {percent(found.idle.busy_share)}: NVML "
            f"counts the time in which anything ran, the report what ran; profiled runs are a "
            f"little slower"
        )
    return [*said, *(f"-> {step}" for step in found.advice)]


def picture(series: Series | None, found: Answer) -> Axes:
    """Draw NVML's percentages over time beside the share that the report says."""
    from perfmodel.render.plot.lines import Percentages, broken, utilization

    curves = []
    for gpu, mine in [(g, series.of(g)) for g in series.gpus] if series is not None else []:
        for counter, word in (("gpu_percent", "utilization"), ("memory_percent", "memory busy")):
            time_s, values = broken(mine.time_s, mine.values[counter], mine.gaps(gpu))
            minor = counter == "memory_percent"
            curves.append(Percentages(gpu, f"GPU {gpu}, NVML {word}", time_s, values, minor=minor))
    window = found.window_s
    if window is not None and series is not None:
        window = (window[0], min(window[1], float(series.time_s[-1])))
    busy = {} if found.idle is None else {"GPU busy by the report": found.idle.busy_share}
    return utilization(curves, window_s=window, busy=busy)


def document(found: Answer) -> dict[str, Any]:
    """Return the answer as JSON types."""
    return {
        "window_s": None if found.series is None else found.series.time_s[[0, -1]],
        "gpus": [] if found.series is None else list(_means(found.series)),
        "report": None if found.idle is None else {
            **pick(found.idle, "busy_share phases causes"),
            "ranks": [{**asdict(r), "busy_share": r.busy_share} for r in found.idle.ranks],
        },
        "gpu_metrics": [pick(m, "gpu name mean") for m in found.metrics],
        **pick(found, "advice warnings"),
    }  # fmt: skip


def _means(series: Series) -> Iterator[dict[str, Any]]:
    for gpu in series.gpus:
        mine = series.of(gpu)
        means = {name: mine.mean(name) for name in COUNTERS}
        yield {"gpu": gpu, "samples": len(mine), "means": means}
