"""Utilization as tables, sentences, a picture and JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from perfmodel.analysis.utilization import Answer, Idle
from perfmodel.base.document import pick
from perfmodel.base.errors import ModelError
from perfmodel.base.table import Column, Table
from perfmodel.base.units import percent
from perfmodel.machines.gpu_samples import COUNTERS, Series
from perfmodel.readers.gpu import GpuMetric
from perfmodel.render import tables
from perfmodel.render.result import Result
from perfmodel.timing.host_timeline import CAUSE_NAMES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SHOWN_METRICS: Final = ("GR Active", "SM", "Tensor Active", "DRAM")
_MOST_PHASES: Final = 8


def result(found: Answer) -> Result:
    """Return samples and the results of a report in every format."""
    made = []
    if found.series is not None:
        made.append(series_table(found.series))
    if found.idle is not None:
        made += [busy_table(found.idle), phases_table(found.idle)]
        made.append(tables.gaps_text(found.idle.ranks, found.idle.causes))
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
    Column("gpu", "GPU", "int"),
    Column("steps", "Steps", "int", of="batches"),
    Column("step_s", "Step", "si", "s", of="recorded_step_s"),
    Column("busy_s", "GPU busy", "si", "s", of="gpu_busy_s"),
    Column("busy_share", "Share", "percent", of=lambda r: r.gpu_busy_s / r.recorded_step_s),
)
PHASES: Final = (
    Column("range", "Range (innermost)", wrap=False, of=lambda r: r.range or None),
    Column("cause", "Cause of idle time", wrap=False, names=CAUSE_NAMES),
    Column("idle_s", "Per step", "si", "s", of="seconds"),
    Column("share", "Of the step", "percent"),
)


def busy_table(idle: Idle) -> Table:
    """Return how busy the GPU of every rank was, by the report."""
    title = "GPU busy by the report: union of all GPU operations, medians over steps"
    return Table.of(title, idle.ranks, RANKS)


def phases_table(idle: Idle) -> Table:
    """Return what the host was in while the GPU idled, and why it did."""
    left = len(idle.ranges) - _MOST_PHASES
    notes = [f"{left} more, which take less, are in the JSON"] if left > 0 else []
    title = "GPU idle time by phase and cause (medians over steps, means over ranks)"
    return Table.of(title, idle.ranges[:_MOST_PHASES], PHASES, notes)


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
    """Compare NVML's number with the report's, and say what to do."""
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
    """Draw NVML's percentages over time beside the share that the report says.

    Raises
    ------
    ModelError
        If nothing was sampled.
    """
    from perfmodel.render.plot.lines import Percentages, broken, utilization

    if series is None:
        raise ModelError(
            "expected samples to draw; got a report alone, which has none; record some with "
            "perfmodel utilization -o FOLDER -- COMMAND..., then draw FOLDER/samples.csv with "
            "--report"
        )
    curves = []
    for gpu, mine in [(g, series.of(g)) for g in series.gpus]:
        for counter, word in (("gpu_percent", "utilization"), ("memory_percent", "memory busy")):
            time_s, values = broken(mine.time_s, mine.values[counter], mine.gaps(gpu))
            minor = counter == "memory_percent"
            curves.append(Percentages(gpu, f"GPU {gpu}, NVML {word}", time_s, values, minor=minor))
    window = found.window_s
    if window is not None:
        window = (window[0], min(window[1], float(series.time_s[-1])))
    busy = {} if found.idle is None else {"GPU busy by the report": found.idle.busy_share}
    return utilization(curves, window_s=window, busy=busy)


def document(found: Answer) -> dict[str, Any]:
    """Return the answer as JSON types."""
    return {
        "window_s": None if found.series is None else found.series.time_s[[0, -1]],
        "gpus": [] if found.series is None else list(_means(found.series)),
        "report": None if found.idle is None else {
            **pick(found.idle, "busy_share causes ranges shares"),
            "ranks": [*busy_table(found.idle).objects()],
        },
        "gpu_metrics": [pick(m, "gpu name mean") for m in found.metrics],
        **pick(found, "advice warnings"),
    }  # fmt: skip


def _means(series: Series) -> Iterator[dict[str, Any]]:
    for gpu in series.gpus:
        mine = series.of(gpu)
        means = {name: mine.mean(name) for name in COUNTERS}
        yield {"gpu": gpu, "samples": len(mine), "means": means}
