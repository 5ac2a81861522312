"""Accounting: measured times joined with the workload's counts: rows, rates, points, checks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np

from perfmodel.analysis.fit import CLOCKS, Clock, Floats, Measured, Rate, estimate, fit_rate
from perfmodel.analysis.result import ModelCheck, RangeRow
from perfmodel.base.units import si
from perfmodel.machines.machine import Machine
from perfmodel.models.roofline import Point, Roofline
from perfmodel.workloads.work import Counts, Workload

BYTES_TOLERANCE: Final = 0.01
"""Formula and measured bytes may differ by this share before a warning says so."""

LINKS: Final = ("pci", "mpi", "peer")
"""PCIe, MPI, and from GPU to GPU: by NCCL or a kernel of the program, over NVLink where it is."""


def counted(measured: Sequence[Measured], counts: Mapping[str, Counts]) -> dict[str, Measured]:
    """The workload's ranges as they were measured; of a label at several paths, the longest."""
    found: dict[str, Measured] = {}
    for m in measured:
        if m.label in counts:
            best = found.get(m.label)
            if best is None or np.nansum(m.seconds["host"]) > np.nansum(best.seconds["host"]):
                found[m.label] = m
    return found


def range_rows(
    measured: Sequence[Measured],
    counts: Mapping[str, Counts],
    head: Measured,
    machine: Machine | None,
    precision: str,
    precisions: Mapping[str, str] | None = None,
    replay: str = "",
) -> tuple[RangeRow, ...]:
    """One row per range of a median batch, parents before children.

    `precisions` names the peaks of ranges that run against another one than `precision`, `replay`
    the range that holds a whole batch.
    """
    own = {m.path: counts[label] for label, m in counted(measured, counts).items()}
    batch_s = median(head.seconds["host"])
    rows = []
    for m in measured:
        inside = [c for path, c in own.items() if path[: len(m.path)] == m.path]
        work = sum(inside, Counts()) if inside else None
        host, projection = median(m.seconds["host"]), median(m.seconds["gpu_projection"])
        rate, unit, of_ceiling, ceiling = _achieved(
            work or Counts(),
            projection,
            host,
            machine,
            (precisions or {}).get(m.label, precision),
            leaf=len(inside) == 1 and (m is not head or m.path in own),
            reduces=m.label != replay,
        )
        rows.append(
            RangeRow(
                path=m.path,
                count=int(np.nansum(m.instances[np.isfinite(m.seconds["host"])])),
                per_batch=float(np.nanmedian(m.instances)),
                host_s=host,
                gpu_projection_s=projection,
                gpu_busy_s=median(m.seconds["gpu_busy"]),
                share=host / batch_s if host is not None and batch_s else None,
                flops=work.flops if work else None,
                pci_bytes=work.pci_bytes if work else None,
                mpi_bytes=work.mpi_bytes if work else None,
                measured_copy_bytes=median(m.copy_bytes),
                measured_mpi_bytes=median(m.mpi_bytes),
                gpu_ops=median(m.gpu_ops),
                rate=rate,
                rate_unit=unit,
                of_ceiling=of_ceiling,
                ceiling=ceiling,
                peer_bytes=work.peer_bytes if work else None,
            )
        )
    return tuple(rows)


def _achieved(
    work: Counts,
    projection: float | None,
    host: float | None,
    machine: Machine | None,
    precision: str,
    *,
    leaf: bool,
    reduces: bool,
) -> tuple[float | None, str, float | None, str]:
    """Achieved rate of a range, its unit, its share of the machine's ceiling and which that is.

    What the host only queues takes as long as the GPU does.
    """
    seconds = projection if leaf and projection is not None else host
    if not leaf and host is not None:
        seconds = max(host, projection or 0.0)
    reduced = reduces and (work.mpi_bytes or work.peer_bytes)
    if reduced and leaf:  # the adding inside a collective is no measure of it
        seconds = host if work.mpi_bytes else seconds
        return (reduced / seconds if seconds else None), "B/s", None, ""
    if work.flops:
        name, peak = precision, machine.peak_flops_per_s.get(precision) if machine else None
        rate = work.flops / seconds if seconds else None
        unit = "FLOP/s"
    elif work.pci_bytes and leaf:
        name, peak = "pcie", machine.bandwidth_bytes_per_s.get("pcie") if machine else None
        rate = work.pci_bytes / seconds if seconds else None
        unit = "B/s"
    else:
        return None, "", None, ""
    if rate is None or not peak:
        return rate, unit, None, ""
    return rate, unit, rate / peak, name


def leaves(
    measured: Sequence[Measured], counts: Mapping[str, Counts], field: str
) -> dict[str, Measured]:
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
    """Whether a range's work is a product: at least one FLOP per byte, none of it over a link.

    P_flops is the throughput of products; elementwise work is bound by memory.
    """
    linked = count.mpi_bytes or count.peer_bytes
    return count.flops >= count.dram_bytes and not linked


def fit_rates(
    measured: Sequence[Measured], counts: Mapping[str, Counts]
) -> tuple[dict[str, Rate | None], dict[str, dict[str, Rate | None]]]:
    """Fit P_flops, P_pci and P_mpi, on the clock the document means and on all three.

    Source: the document's Question 2.4: products and copies by their GPU projection, MPI by host
    time. Without GPU operations, products are timed on the host. Where GPUs reduce among
    themselves also P_peer, by GPU projection: the host only queues it.
    """
    has_gpu = any(np.isfinite(m.seconds["gpu_projection"]).any() for m in measured)
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
            c: fit_rate(work, {label: m.seconds[c] for label, m in ranges.items()}, unit, c)
            for c in CLOCKS
        }
        rates[name] = by_clock[name][clock]
    return rates, by_clock


def product_rates(
    measured: Sequence[Measured], counts: Mapping[str, Counts]
) -> tuple[tuple[str, float, Rate], ...]:
    """Effective throughput of every product: label, FLOPs, rate; on the GPU where there is one."""
    found = []
    for label, m in leaves(measured, counts, "flops").items():
        if not is_product(counts[label]):
            continue
        clock: Clock = "gpu_projection"
        if np.isnan(m.seconds[clock]).all():
            clock = "host"
        rate = fit_rate(counts[label].flops, {label: m.seconds[clock]}, "FLOP/s", clock)
        if rate is not None:
            found.append((label, float(counts[label].flops), rate))
    return tuple(found)


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


def points(
    label: str,
    measured: Sequence[Measured],
    head: Measured,
    workload: Workload,
    totals: Counts,
    values: Mapping[str, int],
    *,
    waits: bool = True,
) -> tuple[Point, ...]:
    """Measured points: the whole batch, and the phases that the workload's formulas cover.

    Source: the document's Question 2.6 and Figures 13 and 14; both on the host's clock, because
    a batch includes its waiting. A host that `waits` for nothing leaves the phases untimed.
    """
    moved = totals.moved_bytes
    if totals.flops <= 0 or moved <= 0:
        return ()
    timed = {head.label: head.seconds["host"]}
    phases = [m for m in measured if m.path[:-1] == head.path and m.label in workload.phases]
    if waits and len(phases) == len(workload.phases) > 0:
        timed[" + ".join(workload.phases)] = np.sum([m.seconds["host"] for m in phases], axis=0)
    found = []
    for kind, seconds in timed.items():
        value = estimate(seconds)
        if value is not None and value.value > 0:
            found.append(
                Point(
                    label=f"{label}: {kind}",
                    kind=kind,
                    group=label,
                    intensity_flops_per_byte=totals.flops / moved,
                    flops_per_s=totals.flops / value.value,
                    low_flops_per_s=totals.flops / value.high,
                    high_flops_per_s=totals.flops / value.low if value.low > 0 else None,
                    symbols=dict(values),
                )
            )
    return tuple(found)


def check_model(
    found: Sequence[Point], totals: Counts, rates: Mapping[str, Rate | None]
) -> tuple[ModelCheck, ...]:
    """The document's model, F/P_flops + sum n_k/P_k, against each point's measured time."""
    predicted = 0.0
    for name, amount in amounts(totals).items():
        rate = rates.get(name)
        if amount > 0 and rate is None:
            return ()
        predicted += amount / rate.value if rate is not None else 0.0
    return tuple(
        ModelCheck(point.kind, predicted, totals.flops / point.flops_per_s) for point in found
    )


def amounts(totals: Counts) -> dict[str, float]:
    """Return the work behind every rate, by the rate's name."""
    moved = {f"P_{link}": float(getattr(totals, f"{link}_bytes")) for link in LINKS}
    return {"P_flops": float(totals.flops), **moved}


def check_bytes(
    measured: Sequence[Measured], counts: Mapping[str, Counts], head: Measured | None = None
) -> Iterator[str]:
    """Warn where the formula's bytes and the measured ones differ by more than one percent.

    MPI's bytes may be in their range or anywhere in the batch (`head`): MPI_Iallreduce begins
    where the host gets to.
    """
    found = counted(measured, counts)
    handed = sum(counts[label].mpi_message_bytes for label in found)
    everywhere = head is not None and _agree(median(head.mpi_bytes), handed)
    for label, m in found.items():
        for what, formula, table in (
            ("host-device copies", counts[label].pci_message_bytes, m.copy_bytes),
            ("MPI", 0 if everywhere else counts[label].mpi_message_bytes, m.mpi_bytes),
        ):
            bytes_found = median(table)
            if bytes_found is None or not formula:
                continue  # the workload says nothing of this range's bytes
            if not _agree(bytes_found, formula):
                yield (
                    f"{label}: the formula gives {si(formula, 'B', 4)} of {what} per rank and "
                    f"batch, the report measured {si(bytes_found, 'B', 4)}: check D, H, C, B, the "
                    f"number of ranks and the data type"
                )


def _agree(found: float | None, formula: float) -> bool:
    return found is not None and abs(found - formula) <= BYTES_TOLERANCE * formula


def median(values: Floats) -> float | None:
    """Median over ranks and batches; None (missing) where nothing was measured."""
    return None if np.isnan(values).all() else float(np.nanmedian(values))
