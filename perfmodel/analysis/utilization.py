"""How well GPUs are used: NVML's samples, busy time by a report, idle time by phase, advice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from perfmodel.analysis.analyze import analyze
from perfmodel.machines.gpu_samples import Series
from perfmodel.programs.findings import idle_advice
from perfmodel.programs.program import Options
from perfmodel.readers import read
from perfmodel.readers.gpu import GpuMetric, read_metrics
from perfmodel.timing.idle import Idle, idle_of

LOW: Final = 0.9
"""Below this share a GPU is not well used, and what it idles in is worth a look."""


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
    warnings = [] if cut is None else [*_gaps(cut), *_silent(cut)]
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
        steps = idle_advice(idle, actions, synchronizes=run.identity.synchronizes)
    return Answer(cut, window_s, idle, metrics, steps, tuple(warnings))


def _gaps(series: Series) -> Iterator[str]:
    """Say when a GPU was not sampled."""
    for gpu in series.gpus:
        for start, end in series.gaps(gpu):
            yield (
                f"GPU {gpu}: no samples from {start:.1f} s to {end:.1f} s: means take those around "
                f"for it; give a --window without it, or sample again"
            )


def _silent(series: Series) -> Iterator[str]:
    """Say which GPUs reported no utilization: it is missing, not 0."""
    silent = [gpu for gpu in series.gpus if series.of(gpu).mean("gpu_percent") is None]
    if silent:
        yield (
            f"no utilization of GPU {', '.join(map(str, silent))}: NVML does not report it there "
            f"(of MIG parts, or on old drivers); give --report REPORT, which has busy time"
        )
