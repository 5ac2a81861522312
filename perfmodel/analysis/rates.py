"""Effective throughputs: P_flops, P_pci, P_mpi and P_peer, fitted with their intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.models.launches import spreads, sum_of_medians
from perfmodel.models.roofline import Roofline
from perfmodel.timing.samples import CLOCKS, Clock, PathTimes
from perfmodel.workloads.work import Counts

LINKS: Final = ("pci", "mpi", "peer")
"""PCIe, MPI, and from GPU to GPU: by NCCL or a kernel of the program, over NVLink where it is."""


_ON_GPU: Final = {"flops": "GEMMs", "peer_bytes": "NCCL"}


@dataclass(frozen=True, slots=True)
class Rate:
    """An effective throughput: work over the sum of its ranges' median times.

    Attributes
    ----------
    low, high : float
        95 % interval in this run.
    instances : int
        Measurements of the ranges behind the medians.
    launch_low, launch_high : float or None
        95 % interval of a rerun (docs/statistics.md).
    launches : int
        Runs behind the interval of a rerun.
    """

    value: float
    low: float
    high: float
    unit: str
    instances: int
    clock: Clock
    ranges: tuple[str, ...]
    limited_by: str
    launch_low: float | None
    launch_high: float | None
    launches: int = 1


def counted(measured: Sequence[PathTimes], counts: Mapping[str, Counts]) -> dict[str, PathTimes]:
    """The workload's ranges as they were measured; of a label at several paths, the longest."""
    found: dict[str, PathTimes] = {}
    for m in measured if counts else ():
        if m.label in counts:
            best = found.get(m.label)
            if best is None or np.nansum(m.seconds["host"]) > np.nansum(best.seconds["host"]):
                found[m.label] = m
    return found


def leaves(
    measured: Sequence[PathTimes], counts: Mapping[str, Counts], field: str
) -> dict[str, PathTimes]:
    """Ranges with work of their own in `field` and no range inside them with such work."""
    with_work = {
        label: m
        for label, m in counted(measured, counts).items()
        if getattr(counts[label], field) > 0
    }
    paths = [m.path for m in with_work.values()]
    return {
        label: m
        for label, m in with_work.items()
        if not any(p != m.path and p[: len(m.path)] == m.path for p in paths)
    }


def is_product(count: Counts) -> bool:
    """Whether a range's work is a GEMM: at least one FLOP per byte, none of it over a link.

    P_flops is the throughput of GEMMs; elementwise work is bound by memory.
    """
    linked = count.mpi_bytes or count.peer_bytes
    return count.flops >= count.dram_bytes and not linked


def fit_rates(
    measured: Sequence[PathTimes], counts: Mapping[str, Counts]
) -> tuple[dict[str, Rate | None], dict[str, dict[str, Rate | None]]]:
    """Fit P_flops, P_pci and P_mpi, on the clock the assignment means and on all three.

    Source: CME 213 assignment, Question 2.4: GEMMs and copies by their GPU projection, MPI by host
    time. Without GPU operations, GEMMs are timed on the host. Where GPUs reduce among
    themselves also P_peer, by GPU projection: the host only queues it.
    """
    batch = measured[0].seconds["gpu_projection"]  # which has what the ranges inside it launch
    has_gpu = bool(np.isfinite(batch).any())
    gpu: Clock = "gpu_projection" if has_gpu else "host"
    meant: dict[str, tuple[str, str, Clock]] = {
        "P_flops": ("flops", "FLOP/s", gpu),
        "P_pci": ("pci_bytes", "B/s", gpu),
        "P_mpi": ("mpi_bytes", "B/s", "host"),
    }
    if any(c.peer_bytes for c in counts.values()):
        meant["P_peer"] = ("peer_bytes", "B/s", gpu)
    rates: dict[str, Rate | None] = {}
    by_clock: dict[str, dict[str, Rate | None]] = {}
    for name, (field, unit, clock) in meant.items():
        ranges = leaves(measured, counts, field)
        if field == "flops":
            ranges = {n: m for n, m in ranges.items() if is_product(counts[n])}
        work = sum(getattr(counts[label], field) for label in ranges)
        by_clock[name] = {
            c: fit_rate(work, {label: m.seconds[c] for label, m in ranges.items()}, unit, c,
                        _limit(field, c))
            for c in CLOCKS
        }  # fmt: skip
        rates[name] = by_clock[name][clock]
    return rates, by_clock


def product_rates(
    measured: Sequence[PathTimes], counts: Mapping[str, Counts]
) -> tuple[tuple[str, float, Rate], ...]:
    """Effective throughput of every GEMM: label, FLOPs, rate; on the GPU where there is one."""
    found = []
    for label, m in leaves(measured, counts, "flops").items():
        if not is_product(counts[label]):
            continue
        clock: Clock = "gpu_projection"
        if np.isnan(m.seconds[clock]).all():
            clock = "host"
        limit = _limit("flops", clock)
        rate = fit_rate(counts[label].flops, {label: m.seconds[clock]}, "FLOP/s", clock, limit)
        if rate is not None:
            found.append((label, float(counts[label].flops), rate))
    return tuple(found)


def _limit(field: str, clock: Clock) -> str:
    """Return the source of differences between runs in the times of a rate."""
    return "host" if clock == "host" else _ON_GPU.get(field, "copies")


def fit_roofline(label: str, rates: Mapping[str, Rate | None], totals: Counts) -> Roofline | None:
    """Make the roof of the fitted rates; None if P_flops or every link is missing."""
    compute = rates["P_flops"]
    links = {k: rates.get(f"P_{k}") for k in LINKS}
    known = {k: r.value for k, r in links.items() if r is not None}
    size = {k: getattr(totals, f"{k}_bytes") for k in known}
    if compute is None or not known or sum(size.values()) <= 0:
        return None
    shares = {k: n / sum(size.values()) for k, n in size.items()}
    return Roofline(label, compute.value, known, shares)


def amounts(totals: Counts) -> dict[str, float]:
    """Return the work of every rate, by the rate's name."""
    moved = {f"P_{link}": float(getattr(totals, f"{link}_bytes")) for link in LINKS}
    return {"P_flops": float(totals.flops), **moved}


def fit_rate(
    work: float, tables: Mapping[str, Floats], unit: str, clock: Clock, limited_by: str
) -> Rate | None:
    """Fit an effective throughput: `work` over the sum of the ranges' median times.

    Source: CME 213 assignment, Question 2.4, P = work / sum of median times, here with the 95 %
    intervals of `perfmodel.models.launches.sum_of_medians`.

    Parameters
    ----------
    work : float
        FLOPs or bytes of all the ranges together, per rank and batch.
    tables : mapping of label to array, shape (ranks, batches)
        Seconds on `clock`.
    limited_by : str
        What decides how much runs differ: a name of `perfmodel.models.launches.spreads`.

    Returns
    -------
    Rate or None
        None if there is no work, or a range has no time on this clock.
    """
    arrays = list(tables.values())
    if work <= 0 or not arrays or any(np.isnan(a).all() for a in arrays):
        return None
    found = sum_of_medians(arrays)
    if found.seconds <= 0:
        return None
    value = work / found.seconds
    low, high = (work / s if s > 0 else math.inf for s in (found.high, found.low))
    another = spreads()[limited_by].another([found])
    other = (work / another[1], work / another[0]) if another else (None, None)
    instances = min(int(np.count_nonzero(~np.isnan(a))) for a in arrays)
    return Rate(value, low, high, unit, instances, clock, tuple(tables), limited_by, *other)
