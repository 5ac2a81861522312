"""What perfmodel utilization says: NVML's means, GPU busy by a report, idle by phase, advice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from perfmodel.analysis.analyze import analyze
from perfmodel.base.table import Column, Table
from perfmodel.machines.gpu_samples import COUNTERS, Series
from perfmodel.programs.findings import idle_advice
from perfmodel.programs.program import Options
from perfmodel.readers import read
from perfmodel.readers.metrics import GpuMetric, read_metrics
from perfmodel.timing.idle import Idle, idle_of

LOW: Final = 0.9
"""Below this share a GPU is not well used, and what it idles in is worth a look."""

_SHOWN_METRICS: Final = ("GR Active", "SM", "Tensor Active", "DRAM")
_MOST_PHASES: Final = 8


@dataclass(frozen=True, slots=True)
class Answer:
    """Samples of a window, and what a report says beside them; None where one is missing.

    Attributes
    ----------
    series : Series or None
        Cut to the window.
    window_s : (float, float) or None
        As given.
    idle : Idle or None
    metrics : tuple of GpuMetric
        Of the report; empty where none were sampled.
    advice, warnings : tuple of str
    """

    series: Series | None
    window_s: tuple[float, float] | None
    idle: Idle | None
    metrics: tuple[GpuMetric, ...]
    advice: tuple[str, ...]
    warnings: tuple[str, ...]


def answer(
    series: Series | None,
    reports: Sequence[Path],
    *,
    window_s: tuple[float, float] | None = None,
    batch_label: str | None = None,
    warmup: int | None = None,
) -> Answer:
    """Cut the series and measure the reports of one run.

    Raises
    ------
    SchemaError
        If the window or the report holds nothing.
    ReportError
        If a report cannot be read.
    """
    cut = series.window(*window_s) if series is not None and window_s else series
    warnings = [] if cut is None else [*_gaps(cut), *_untold(cut)]
    if not reports:
        percent = None if cut is None else cut.mean("gpu_percent")
        low = percent is not None and percent < 100 * LOW
        said = ("the GPU idles; give --report REPORT of the same program to see in which phase",)
        return Answer(cut, window_s, None, (), said if low else (), tuple(warnings))
    options = Options(values={}, batch_label=batch_label, warmup=warmup)
    analysis = analyze([read(path) for path in reports], options)
    run = analysis.fitted
    if len(analysis.runs) > 1:
        warnings.append(f"the reports are of {len(analysis.runs)} runs: only {run.label} is shown")
    idle = idle_of(run.measured, run.batch.warmup, run.program.idle_causes)
    metrics = tuple(metric for path in reports for metric in read_metrics(path))
    steps: tuple[str, ...] = ()
    if idle.busy_share < LOW:
        actions = run.program.actions(run.identity)
        synchronizes = run.identity.settings.get("sync_ranges") == "True"
        steps = idle_advice(idle, actions, synchronizes=synchronizes)
    return Answer(cut, window_s, idle, metrics, steps, tuple(warnings))


def _gaps(series: Series) -> Iterator[str]:
    """Say when a GPU was not sampled."""
    for gpu in series.gpus:
        for start, end in series.gaps(gpu):
            yield (
                f"GPU {gpu}: no samples from {start:.1f} s to {end:.1f} s: means take those around "
                f"for it; give a --window without it, or sample again"
            )


def _untold(series: Series) -> Iterator[str]:
    """Say which GPUs told no utilization: it is missing, not 0."""
    silent = [gpu for gpu in series.gpus if series.of(gpu).mean("gpu_percent") is None]
    if silent:
        yield (
            f"no utilization of GPU {', '.join(map(str, silent))}: NVML does not tell it there (of "
            f"MIG parts, or on old drivers); give --report REPORT, which tells busy time"
        )


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


def busy_table(idle: Idle) -> Table:
    """Return how busy the GPU of every rank was, by the report."""
    columns = (
        Column("rank", "Rank", "int"),
        Column("batches", "Batches", "int"),
        Column("window_s", "Window", "si", "s"),
        Column("busy_s", "GPU busy", "si", "s"),
        Column("busy_share", "Share", "percent"),
        Column("paused_s", "Left out (pauses)", "si", "s"),
    )
    rows = [
        (r.rank, r.batches, r.window_s, r.busy_s, r.busy_share, sum(r.pauses_s) or None)
        for r in sorted(idle.ranks, key=lambda r: r.rank)
    ]
    return Table("GPU busy by the report: union of all GPU operations", columns, rows)


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


def metrics_table(metrics: Sequence[GpuMetric]) -> Table:
    """Return the means of Nsight Systems' sampled counters."""
    columns = (
        Column("gpu", "GPU", "int"),
        Column("metric", "Nsight Systems' counter", wrap=False),
        Column("mean", "Mean", "float", digits=1),
    )
    rows = [(m.gpu, m.name, m.mean) for m in metrics if m.name.startswith(_SHOWN_METRICS)]
    return Table("GPU metrics of the report, over all of it", columns, rows)


def tables(found: Answer) -> Sequence[Table]:
    """Return all tables that there is something for."""
    made = []
    if found.series is not None:
        made.append(series_table(found.series))
    if found.idle is not None:
        made += [busy_table(found.idle), phases_table(found.idle)]
    if found.metrics:
        made.append(metrics_table(found.metrics))
    return made


def sentences(found: Answer) -> Sequence[str]:
    """Set NVML's number beside the report's, and say what to do."""
    said = []
    percent = None if found.series is None else found.series.mean("gpu_percent")
    if percent is not None and found.idle is not None:
        said.append(
            f"NVML says {percent:.0f} %, the report {found.idle.busy_share:.0%}: NVML counts the "
            f"time in which anything ran, the report what ran; profiled runs are a little slower"
        )
    return [*said, *(f"-> {step}" for step in found.advice)]


def document(found: Answer) -> dict[str, Any]:
    """Return the answer as JSON types."""
    series = found.series
    return {
        "window_s": None if series is None else [float(series.time_s[0]), float(series.time_s[-1])],
        "gpus": []
        if series is None
        else [
            {
                "gpu": gpu,
                "samples": len(series.of(gpu)),
                "means": {name: series.of(gpu).mean(name) for name in COUNTERS},
            }
            for gpu in series.gpus
        ],
        "report": None
        if found.idle is None
        else {
            "busy_share": found.idle.busy_share,
            "ranks": [{**asdict(r), "busy_share": r.busy_share} for r in found.idle.ranks],
            "phases": [asdict(p) for p in found.idle.phases],
            "causes": dict(found.idle.causes),
        },
        "gpu_metrics": [{"gpu": m.gpu, "name": m.name, "mean": m.mean} for m in found.metrics],
        "advice": list(found.advice),
        "warnings": list(found.warnings),
    }
