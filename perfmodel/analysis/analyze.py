"""Interprets one run, Trace + Workload -> RunAnalysis: the function behind `perfmodel analyze`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from perfmodel.analysis import warnings as cautions
from perfmodel.analysis.findings import DeviceReduce, Facts, GemmTime
from perfmodel.analysis.findings import find as find_losses
from perfmodel.analysis.rates import counted, fit_rates, fit_roofline, product_rates
from perfmodel.analysis.result import BatchSummary, RangeRow, RankRow, RunAnalysis
from perfmodel.analysis.rows import check_bytes, check_model, kernel_rows, points, range_rows
from perfmodel.base.errors import SchemaError
from perfmodel.machines import machine as machines
from perfmodel.machines.machine import Machine
from perfmodel.programs.identify import Identity, precision, precision_of
from perfmodel.programs.mlp.mlp import as_it_ran
from perfmodel.timing.async_batches import time_async, until_done
from perfmodel.timing.collectives import (
    NCCL,
    CollectiveGroup,
    Waiting,
    marked_by_nccl,
    match_collectives,
    mpi_collectives,
    nccl_collectives,
)
from perfmodel.timing.copies import devices, group_copies, synchronizations, tells_devices
from perfmodel.timing.cuda_graphs import first_replay
from perfmodel.timing.cuda_graphs import notes as graph_notes
from perfmodel.timing.run import Run
from perfmodel.timing.samples import PathTimes, count_warmup, estimate, median, tabulate
from perfmodel.timing.stragglers import Skew, skew_of
from perfmodel.workloads.work import Counts, Workload

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
        The MLP is taken as the run's configuration mark describes it (`mlp.as_it_ran`).
    identity : Identity
        Values of the workload's symbols.
    warmup : int, optional
        Leading batches to exclude; detected by default (`perfmodel.timing.samples.count_warmup`).
    warnings : sequence of str
        Warnings so far, kept first.

    Raises
    ------
    WorkloadError
        If the symbols' values are missing or impossible.
    SchemaError
        If no batch is left after the warm-up.
    """
    workload = as_it_ran(workload, identity.config)
    symbols = {s: v for s, v in identity.values.items() if s in workload.symbols}
    counts = workload.evaluate(symbols)
    everything = tabulate(run.range_times, run.ranks, run.batch_label)
    pace = time_async(run, everything)
    everything = until_done(run, everything, pace) if pace.queues else everything
    excluded = _excluded(run, everything, warmup, workload)
    late = (_after(m, excluded) for m in everything if not marked_by_nccl(m.path))
    measured = tuple(m for m in late if m.instances.any())
    head = next(m for m in measured if m.label == run.batch_label)
    totals = sum((counts[label] for label in counted(measured, counts)), Counts())
    collected = _collectives(run, everything, excluded, totals)
    machine, peak = _machine(run), _precision(run, identity)
    rates, by_clock = fit_rates(measured, {} if workload.replay else counts)
    found = points(run.label, measured, head, workload, totals, symbols, waits=not pace.queues)
    said = (*check_bytes(measured, counts, head), *collected.warnings)
    notes = (
        *warnings,
        *cautions.check_collection(run),
        *cautions.check_ranges(run, measured, counts, rates, totals, replay=workload.replay),
        *graph_notes(run, everything, workload),
        *([f"{run.label}: {pace.said()}"] if pace.queues else []),
        *(f"{run.label}: {w}" for w in said),
    )
    rows = range_rows(
        measured, counts, head, machine, peak,
        {label: precision_of(label, peak, identity.config) for label in counts}, workload.replay,
    )  # fmt: skip
    analysis = RunAnalysis(
        label=run.label,
        traces=run.traces,
        identity=identity,
        workload=workload,
        totals=totals,
        machine=machine,
        precision=peak,
        gpus=tuple({(g.id, g.name): g for t in run.traces for g in t.gpus}.values()),
        ranks=_rank_rows(run, head, collected.waiting or collected.gpu_waiting),
        batch=_batch_summary(
            run, everything, excluded, head, pace.queued_s if pace.queues else None
        ),
        ranges=tuple(kernel_rows(run, rows, workload, excluded)),
        rates=rates,
        rates_by_clock=by_clock,
        products=() if workload.replay else product_rates(measured, counts),
        copies=group_copies(run.parts, excluded, int(np.isfinite(head.seconds["host"]).sum())),
        collectives=collected.groups,
        unattributed=cautions.unattributed(run),
        roofline=fit_roofline(run.label, rates, totals),
        points=found,
        model=check_model(found, totals, rates),
        findings=(),
        warnings=tuple(dict.fromkeys(notes)),
        skew=collected.skew,
    )
    return replace(analysis, findings=find_losses(_facts(run, analysis, counts, collected)))


@dataclass(frozen=True, slots=True)
class _Collected:
    """Collectives of MPI and of NCCL, and what ranks spend in them, on the host and on the GPU."""

    groups: tuple[CollectiveGroup, ...]
    waiting: Waiting | None
    gpu_waiting: Waiting | None
    skew: Skew | None
    warnings: tuple[str, ...]


def _collectives(
    run: Run, everything: Sequence[PathTimes], excluded: int, totals: Counts
) -> _Collected:
    batch_s = next(m for m in everything if m.label == run.batch_label).seconds["host"]
    matched = match_collectives(run.traces, run.range_times, run.batch_label, run.ranks)
    groups, waiting = mpi_collectives(matched, batch_s.shape[1], excluded)
    on_gpu, gpu_waiting = nccl_collectives(
        run.parts, run.ranks, excluded, float(totals.peer_message_bytes)
    )
    return _Collected(
        (*groups, *on_gpu),
        waiting if groups else None,
        gpu_waiting if on_gpu else None,
        skew_of(matched, run.ranks, batch_s[:, excluded:], excluded),
        matched.warnings,
    )


def _excluded(
    run: Run, everything: Sequence[PathTimes], warmup: int | None, workload: Workload
) -> int:
    """Number of batches to exclude, refusing to exclude them all."""
    batch_s = next(m for m in everything if m.label == run.batch_label).seconds["host"]
    excluded = count_warmup(batch_s) if warmup is None else warmup
    if workload.replay and warmup is None:
        first = first_replay(everything, workload.replay, run.batch_label) or 0
        excluded = max(excluded, first)
    if np.isnan(batch_s[:, excluded:]).all():
        raise SchemaError(
            f"{run.label}: no finished batch is left: found {batch_s.shape[1]} "
            f"{run.batch_label!r} ranges, {excluded} excluded as warm-up; profile more batches or "
            f"lower --warmup"
        )
    return excluded


def _after(measured: PathTimes, excluded: int) -> PathTimes:
    """Leave out the first `excluded` batches."""
    return PathTimes(
        measured.path,
        {clock: values[:, excluded:] for clock, values in measured.seconds.items()},
        measured.instances[:, excluded:],
        measured.copy_bytes[:, excluded:],
        measured.mpi_bytes[:, excluded:],
        measured.gpu_ops[:, excluded:],
    )


def _batch_summary(
    run: Run,
    everything: Sequence[PathTimes],
    excluded: int,
    head: PathTimes,
    queued_s: float | None,
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
        queued_s=queued_s,
    )


def _machine(run: Run) -> Machine | None:
    """Ceilings of the GPU that the ranks ran on; None without a GPU."""
    for trace in run.traces:
        used = set(devices(trace).values())
        for gpu in trace.gpus:
            if gpu.id in used or (used and len(trace.gpus) == 1):
                return machines.find(gpu)
    return None


def _precision(run: Run, identity: Identity) -> str:
    """Which of the machine's peaks the products run against.

    Single precision on tensor cores (TF32) is told by the mark, and by the kernels' names: cuBLAS
    writes 'tf32' or the instruction's shape, 's1688', into them.
    """
    seen = False
    for trace, found in run.parts:
        kernels = np.unique(trace.ops.name[found.op])
        seen |= any(_TF32.search(trace.strings[k]) for k in kernels if k >= 0)
    return precision(identity.values.get("b", 4), identity.config, seen_tf32=seen)


def _rank_rows(run: Run, head: PathTimes, waiting: Waiting | None) -> tuple[RankRow, ...]:
    gpus = cautions.gpu_of_rank(run)
    rows = []
    for i, rank in enumerate(run.ranks):
        host = head.seconds["host"][i]
        rows.append(
            RankRow(
                rank=rank,
                gpu=gpus.get(rank),
                batches=int(np.isfinite(host).sum()),
                batch_s=median(host),
                gpu_busy_s=median(head.seconds["gpu_busy"][i]),
                collectives_s=waiting.seconds[i] if waiting else None,
                waiting_s=waiting.waiting_s[i] if waiting and waiting.waiting_s else None,
            )
        )
    return tuple(rows)


def _facts(
    run: Run, analysis: RunAnalysis, counts: Mapping[str, Counts], collected: _Collected
) -> Facts:
    """Gather what the findings are drawn from."""
    head = next(row for row in analysis.ranges if row.label == run.batch_label)
    calls, seconds = synchronizations(
        run.traces, run.range_times, run.batch_label, analysis.batch.warmup
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
        waiting=collected.waiting,
        gpu_waiting=collected.gpu_waiting,
        reduced=_reduced(analysis),
        gemms=tuple(_gemm_times(analysis, counts)),
        shared_gpus=cautions.same_devices(run) if tells_devices(run.traces) else {},
        machine=analysis.machine,
        ranks=len(run.ranks),
        config=analysis.identity.config,
        lacking=cautions.lacking(analysis.unattributed),
    )


def _reduced(analysis: RunAnalysis) -> DeviceReduce | None:
    """What NCCL's all-reduces take of a batch, in a CUDA graph or out of one."""
    kernels = [g for g in analysis.collectives if g.name == f"{NCCL}AllReduce"]
    if not kernels:
        return None
    seconds = sum(g.count * (g.seconds if g.transfer_s is None else g.transfer_s) for g in kernels)
    return DeviceReduce(seconds, float(analysis.totals.peer_message_bytes))


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
    bandwidth = machine.bandwidth_bytes_per_s.get("hbm") if machine else None
    for label, flops, rate in analysis.products:
        bound = None
        name = precision_of(label, analysis.precision, analysis.identity.config)
        peak = machine.peak_flops_per_s.get(name) if machine else None
        if peak and bandwidth and rate.clock != "host":
            bound = max(flops / peak, counts[label].dram_bytes / bandwidth)
        yield GemmTime(label, flops / rate.value, flops, bound)
