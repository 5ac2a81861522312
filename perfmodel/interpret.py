"""Interprets one run, Trace + Workload -> RunAnalysis: the function behind `perfmodel analyze`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from perfmodel import accounting, cautions, traffic
from perfmodel import machine as machines
from perfmodel.analysis import BatchSummary, RangeRow, RankRow, RunAnalysis
from perfmodel.errors import SchemaError
from perfmodel.findings import Facts, GemmTime
from perfmodel.findings import find as find_losses
from perfmodel.fit import Measured, count_warmup, estimate, tabulate
from perfmodel.identify import Identity
from perfmodel.machine import Machine
from perfmodel.measure import Run
from perfmodel.traffic import Waiting
from perfmodel.workloads.work import Counts, Workload

_PEAKS: Final = {2: "float16_tensor", 4: "float32", 8: "float64"}
_TF32: Final = re.compile(r"tf32|s1688", re.IGNORECASE)


def analyze_run(
    run: Run,
    workload: Workload,
    identity: Identity,
    *,
    warmup: int | None = None,
    warnings: Sequence[str] = (),
) -> RunAnalysis:
    """Interpret one run with a workload model.

    Parameters
    ----------
    run : Run
    workload : Workload
    identity : Identity
        Values of the workload's symbols.
    warmup : int, optional
        Leading batches to exclude; detected by default (`perfmodel.fit.count_warmup`).
    warnings : sequence of str
        Warnings so far, kept first.

    Raises
    ------
    WorkloadError
        If the symbols' values are missing or impossible.
    SchemaError
        If no batch is left after the warm-up.
    """
    symbols = {s: v for s, v in identity.values.items() if s in workload.symbols}
    counts = workload.evaluate(symbols)
    everything = tabulate(run.spans, run.ranks, run.batch_label)
    excluded = _excluded(run, everything, warmup)
    measured = tuple(_after(m, excluded) for m in everything)
    head = next(m for m in measured if m.label == run.batch_label)
    present = accounting.counted(measured, counts)
    totals = sum((counts[label] for label in present), Counts())
    groups, waiting, said = traffic.collectives(
        run.traces, run.spans, run.batch_label, run.ranks, excluded
    )
    machine, precision = _machine(run), _precision(run, identity)
    rates, by_clock = accounting.fit_rates(measured, counts)
    points = accounting.points(run.label, measured, head, workload, totals, symbols)
    notes = (
        *warnings,
        *cautions.check_collection(run),
        *cautions.check_ranges(run, measured, counts, rates, totals),
        *(f"{run.label}: {w}" for w in (*accounting.check_bytes(measured, counts), *said)),
    )
    analysis = RunAnalysis(
        label=run.label,
        traces=run.traces,
        identity=identity,
        workload=workload,
        totals=totals,
        machine=machine,
        precision=precision,
        gpus=tuple({(g.id, g.name): g for t in run.traces for g in t.gpus}.values()),
        ranks=_rank_rows(run, head, waiting),
        batch=_batch_summary(run, everything, excluded, head),
        ranges=accounting.range_rows(measured, counts, head, machine, precision),
        rates=rates,
        rates_by_clock=by_clock,
        products=accounting.product_rates(measured, counts),
        copies=traffic.copies(run.parts, excluded, int(np.isfinite(head.seconds["host"]).sum())),
        collectives=groups,
        unattributed=cautions.unattributed(run),
        roofline=accounting.fit_roofline(run.label, rates, totals),
        points=points,
        model=accounting.check_model(points, totals, rates),
        findings=(),
        warnings=tuple(dict.fromkeys(notes)),
    )
    facts = _facts(run, analysis, counts, waiting)
    return replace(analysis, findings=find_losses(facts))


def _excluded(run: Run, everything: Sequence[Measured], warmup: int | None) -> int:
    """Number of batches to exclude, refusing to exclude them all."""
    batch_s = next(m for m in everything if m.label == run.batch_label).seconds["host"]
    excluded = count_warmup(batch_s) if warmup is None else warmup
    if np.isnan(batch_s[:, excluded:]).all():
        raise SchemaError(
            f"{run.label}: no finished batch is left: found {batch_s.shape[1]} "
            f"{run.batch_label!r} ranges, {excluded} excluded as warm-up; profile more batches or "
            f"lower --warmup"
        )
    return excluded


def _after(measured: Measured, excluded: int) -> Measured:
    """Leave out the first `excluded` batches."""
    return Measured(
        measured.path,
        {clock: values[:, excluded:] for clock, values in measured.seconds.items()},
        measured.instances[:, excluded:],
        measured.copy_bytes[:, excluded:],
        measured.mpi_bytes[:, excluded:],
        measured.gpu_ops[:, excluded:],
    )


def _batch_summary(
    run: Run, everything: Sequence[Measured], excluded: int, head: Measured
) -> BatchSummary:
    whole = next(m for m in everything if m.label == run.batch_label).seconds["host"]
    median = estimate(head.seconds["host"])
    assert median is not None  # `_excluded` refuses a run without a finished batch
    warm = whole[:, :excluded]
    return BatchSummary(
        label=run.batch_label,
        count=int(np.isfinite(whole[:, excluded:]).any(axis=0).sum()),
        warmup=excluded,
        warmup_s=float(np.nansum(warm) / len(run.ranks)),
        median=median,
        mean_s=float(np.nanmean(head.seconds["host"])),
    )


def _machine(run: Run) -> Machine | None:
    """Ceilings of the GPU that the ranks ran on; None without a GPU."""
    for trace in run.traces:
        used = set(traffic.devices(trace).values())
        for gpu in trace.gpus:
            if gpu.id in used or (used and len(trace.gpus) == 1):
                return machines.find(gpu)
    return None


def _precision(run: Run, identity: Identity) -> str:
    """Which of the machine's peaks the products run against.

    Single precision on tensor cores (TF32) is told by the kernels' names: cuBLAS writes 'tf32' or
    the instruction's shape, 's1688', into them.
    """
    name = _PEAKS.get(identity.values.get("b", 4), "float32")
    if name == "float32":
        for trace, found in run.parts:
            kernels = np.unique(trace.ops.name[found.op])
            if any(_TF32.search(trace.strings[k]) for k in kernels if k >= 0):
                return "tf32_tensor"
    return name


def _rank_rows(run: Run, head: Measured, waiting: Waiting | None) -> tuple[RankRow, ...]:
    gpus = cautions.gpu_of_rank(run)
    rows = []
    for i, rank in enumerate(run.ranks):
        host = head.seconds["host"][i]
        rows.append(
            RankRow(
                rank=rank,
                gpu=gpus.get(rank),
                batches=int(np.isfinite(host).sum()),
                batch_s=accounting.median(host),
                gpu_busy_s=accounting.median(head.seconds["gpu_busy"][i]),
                collectives_s=waiting.seconds[i] if waiting else None,
                waiting_s=waiting.waiting_s[i] if waiting and waiting.waiting_s else None,
            )
        )
    return tuple(rows)


def _facts(
    run: Run, analysis: RunAnalysis, counts: Mapping[str, Counts], waiting: Waiting | None
) -> Facts:
    """Gather what the findings are drawn from."""
    head = next(row for row in analysis.ranges if row.label == run.batch_label)
    calls, seconds = traffic.synchronizations(
        run.traces, run.spans, run.batch_label, analysis.batch.warmup
    )
    return Facts(
        batch=analysis.batch.median,
        busy_s=head.gpu_busy_s,
        gpu_ops=head.gpu_ops or 0.0,
        synchronizations=calls,
        synchronize_s=seconds,
        host_s=_host_seconds(analysis.ranges),
        copies=analysis.copies,
        collectives=analysis.collectives,
        waiting=waiting,
        gemms=tuple(_gemm_times(analysis, counts)),
        shared_gpus=cautions.same_devices(run) if traffic.tells_devices(run.traces) else {},
        machine=analysis.machine,
        ranks=len(run.ranks),
    )


def _host_seconds(rows: Sequence[RangeRow]) -> dict[str, float]:
    """Host time by label: ranges at several places add up, but not one inside its like."""
    spent: dict[str, float] = {}
    for row in rows:
        if row.host_s is not None and row.label not in row.path[:-1]:
            spent[row.label] = spent.get(row.label, 0.0) + row.host_s
    return spent


def _gemm_times(analysis: RunAnalysis, counts: Mapping[str, Counts]) -> Iterator[GemmTime]:
    """Products with the time that peak FLOP/s and memory bandwidth allow."""
    machine = analysis.machine
    peak = machine.peak_flops_per_s.get(analysis.precision) if machine else None
    bandwidth = machine.bandwidth_bytes_per_s.get("hbm") if machine else None
    for label, flops, rate in analysis.products:
        bound = None
        if peak and bandwidth and rate.clock != "host":
            bound = max(flops / peak, counts[label].dram_bytes / bandwidth)
        yield GemmTime(label, flops / rate.value, flops, bound)
