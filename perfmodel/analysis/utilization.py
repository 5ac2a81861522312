"""Utilization of GPUs: NVML's samples, busy time by a report, idle time by phase, advice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from perfmodel.analysis.analyze import analyze
from perfmodel.analysis.result import RankRow, RunAnalysis
from perfmodel.analysis.steps import idle_ranges
from perfmodel.base.errors import SchemaError
from perfmodel.base.units import si
from perfmodel.machines.gpu_samples import Series
from perfmodel.programs.program import Options
from perfmodel.readers import read
from perfmodel.readers.gpu import GpuMetric, read_metrics
from perfmodel.timing.step_facts import IdleCause, IdleRange

LOW: Final = 0.9
"""Below this share a GPU is not well used, and what it idles in is worth a look."""

_MOST_ADVICE: Final = 4


@dataclass(frozen=True, slots=True)
class Idle:
    """Idle times of GPUs in the steps of a report.

    Attributes
    ----------
    ranks : tuple of RankRow
        Those with a GPU.
    causes : tuple of IdleCause
        By rank and cause.
    ranges : tuple of IdleRange
        By range and cause, as recorded.
    """

    ranks: tuple[RankRow, ...]
    causes: tuple[IdleCause, ...]
    ranges: tuple[IdleRange, ...]

    @property
    def busy_share(self) -> float:
        """GPU busy / recorded step, medians, over all ranks."""
        busy_s = sum(r.gpu_busy_s or 0.0 for r in self.ranks)
        return busy_s / sum(r.recorded_step_s or 0.0 for r in self.ranks)

    @property
    def shares(self) -> dict[str, float]:
        """Share of the steps by cause, largest first."""
        found: dict[str, float] = {}
        for row in self.ranges:
            found[row.cause] = found.get(row.cause, 0.0) + row.share
        return dict(sorted(found.items(), key=lambda item: -item[1]))


def idle_of(run: RunAnalysis) -> Idle:
    """Take what an analysis says of idle GPUs.

    Raises
    ------
    SchemaError
        If the report holds no GPU work in steps.
    """
    ranks = tuple(r for r in run.ranks if r.gpu_busy_s is not None and r.recorded_step_s)
    if run.steps is None or not ranks:
        raise SchemaError(
            f"{run.label}: expected GPU work of steps after the warm-up; got none; for "
            f"the GPU's work in more steps, {run.traces[0].how_to_record}"
        )
    return Idle(ranks, run.steps.facts.idle, idle_ranges(run.measured.steps, run.run_steps))


@dataclass(frozen=True, slots=True)
class Answer:
    """Samples of a window and the results of a report; None where one is missing.

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
    idle = idle_of(run)
    metrics = tuple(metric for path in reports for metric in read_metrics(path))
    steps: tuple[str, ...] = ()
    if idle.busy_share < LOW:
        worth = [f for f in run.findings if f.saving_s]
        steps = tuple(
            f"{f.title}, up to {si(f.saving_s, 's')} a step: {f.action}"
            for f in worth[:_MOST_ADVICE]
        )
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
