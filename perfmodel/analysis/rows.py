"""Measured times joined with a workload's counts: rows of ranges, points and roofs, checks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from perfmodel.analysis.estimates import estimate
from perfmodel.analysis.rates import LINKS, Rate, amounts, counted
from perfmodel.analysis.result import Analysis, ModelCheck, RangeRow, RunAnalysis
from perfmodel.base.arrays import Floats
from perfmodel.base.units import si
from perfmodel.machines.machine import Machine
from perfmodel.models.roofline import Point, Roofline
from perfmodel.timing.cuda_graphs import kernel_seconds, traced_as_a_whole
from perfmodel.timing.range_times import Path
from perfmodel.timing.run import Run
from perfmodel.timing.samples import PathTable, PathTimes, median
from perfmodel.workloads.work import Counts, Workload

BYTES_TOLERANCE: Final = 0.01
"""Formula and measured bytes may differ by this share before a warning says so."""

_UNKNOWN = (
    "host_s", "gpu_projection_s", "share", "flops", "pci_bytes", "mpi_bytes", "peer_bytes",
    "measured_copy_bytes", "measured_mpi_bytes", "rate", "of_ceiling",
)  # fmt: skip


def range_rows(
    measured: PathTable,
    counts: Mapping[str, Counts],
    head: PathTimes,
    step_s: float,
    machine: Machine | None,
    precision: str,
    precisions: Mapping[str, str] | None = None,
    replay: str = "",
) -> tuple[RangeRow, ...]:
    """One row per range of a median batch, parents before children.

    `step_s` is the recorded step on the run's clock, which shares are of.
    `precisions` names the peaks of ranges that run against another one than `precision`, `replay`
    the range that holds a whole batch.
    """
    own = {m.path: counts[label] for label, m in counted(measured, counts).items()}
    within: dict[Path, list[Counts]] = {}
    for path, work in own.items():
        for depth in range(len(path)):
            within.setdefault(path[: depth + 1], []).append(work)
    names = ["host", "gpu_projection", "gpu_busy", "copy_bytes", "mpi_bytes", "gpu_ops"]
    medians = [_objects(measured.medians(name)) for name in names]
    count, batches = measured.counts()
    each = count.tolist(), batches.tolist(), _objects(measured.medians("instances"))
    of_batches = int((np.nan_to_num(head.instances) > 0).any(axis=0).sum())
    rows = []
    for path, *times, n, occurs, per_batch in zip(measured.paths, *medians, *each, strict=True):
        host, projection, busy, copied, to_mpi, ops = times
        host = step_s if path == head.path else host
        row = RangeRow(
            path=path,
            count=n,
            per_batch=per_batch,
            host_s=host,
            gpu_projection_s=projection,
            gpu_busy_s=busy,
            share=host / step_s if host is not None and step_s else None,
            flops=None,
            pci_bytes=None,
            mpi_bytes=None,
            measured_copy_bytes=copied,
            measured_mpi_bytes=to_mpi,
            gpu_ops=ops,
            rate=None,
            rate_unit="",
            of_ceiling=None,
            ceiling="",
            batches=occurs,
            of_batches=of_batches,
        )
        if path in within:
            label = (precisions or {}).get(row.label, precision)
            leaf = len(within[path]) == 1 and (path != head.path or path in own)
            work = sum(within[path], Counts())
            row = _with_work(row, work, machine, label, leaf=leaf, reduces=row.label != replay)
        rows.append(row)
    return tuple(rows)


def _objects(values: Floats) -> list[Any]:
    """Values as objects, None where nothing was measured; equal ones are one object."""
    distinct, number = np.unique(values, return_inverse=True)
    objects = distinct.astype(object)
    objects[np.isnan(distinct)] = None
    found: list[Any] = objects[number].tolist()
    return found


def _with_work(
    row: RangeRow,
    work: Counts,
    machine: Machine | None,
    precision: str,
    *,
    leaf: bool,
    reduces: bool,
) -> RangeRow:
    """Add the workload's counts, and the rate that they make."""
    rate, unit, of_ceiling, ceiling = _achieved(
        work, row.gpu_projection_s, row.host_s, machine, precision, leaf=leaf, reduces=reduces
    )
    return replace(
        row,
        flops=work.flops,
        pci_bytes=work.pci_bytes,
        mpi_bytes=work.mpi_bytes,
        peer_bytes=work.peer_bytes,
        rate=rate,
        rate_unit=unit,
        of_ceiling=of_ceiling,
        ceiling=ceiling,
    )


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


def kernel_rows(run: Run, rows: Sequence[RangeRow], replay: str, warmup: int) -> list[RangeRow]:
    """Insert the kernels of a replayed graph below its range, longest first.

    Their `gpu_busy_s` is the median over ranks and batches of the time in all kernels of a name.
    """
    above = next((r for r in rows if replay and r.label == replay), None)
    if above is None or traced_as_a_whole(run):
        return list(rows)
    found = []
    for name, (seconds, counts) in kernel_seconds(run, warmup).items():
        found.append(
            replace(
                above,
                path=(*above.path, name),
                count=int(counts.sum()),
                per_batch=float(np.median(counts)),
                gpu_ops=float(np.median(counts)),
                gpu_busy_s=median(np.where(counts > 0, seconds, np.nan)),
                **dict.fromkeys(_UNKNOWN),
                rate_unit="",
                ceiling="",
            )
        )
    found.sort(key=lambda row: (-(row.gpu_busy_s or 0.0), row.path))
    at = rows.index(above) + 1
    return [*rows[:at], *found, *rows[at:]]


def points(
    label: str,
    measured: Sequence[PathTimes],
    head: PathTimes,
    step_s: Floats,
    workload: Workload,
    totals: Counts,
    values: Mapping[str, int],
    *,
    waits: bool = True,
) -> tuple[Point, ...]:
    """Measured points: the whole batch, and the phases that the workload's formulas cover.

    Source: CME 213 assignment, Question 2.6 and Figures 13 and 14; both on the host's clock,
    because a batch includes its waiting. `step_s` are the steps of the slowest rank, shape
    (1, steps). A host that `waits` for nothing leaves the phases untimed.
    """
    moved = totals.moved_bytes
    if totals.flops <= 0 or moved <= 0:
        return ()
    timed = {head.label: step_s}
    phases = [m for m in measured if m.path[:-1] == head.path and m.label in workload.phases]
    if waits and len(phases) == len(workload.phases) > 0:
        timed[" + ".join(workload.phases)] = np.sum([m.seconds["host"] for m in phases], axis=0)
    found = []
    for kind, seconds in timed.items():
        value = estimate(seconds, "host")
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
    """The assignment's model, F/P_flops + sum n_k/P_k, against each point's measured time."""
    predicted = 0.0
    for name, amount in amounts(totals).items():
        rate = rates.get(name)
        if amount > 0 and rate is None:
            return ()
        predicted += amount / rate.value if rate is not None else 0.0
    return tuple(
        ModelCheck(point.kind, predicted, totals.flops / point.flops_per_s) for point in found
    )


def check_bytes(
    measured: Sequence[PathTimes], counts: Mapping[str, Counts], head: PathTimes | None = None
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


_PER_DIRECTION: Final = {"pci": ("pcie", "PCIe", 1), "peer": ("nvlink", "NVLink", 2)}
"""The machine's bandwidth of a link, its name, and how many directions that is the sum of."""


def own_roof(fitted: RunAnalysis, run: RunAnalysis) -> Roofline | None:
    """Return the fitted run's roof for another run's own mix of bytes.

    None where that roof is not over the run's points: if it lacks a link of the run, or if the run
    multiplies with other math. The fitted run's own points are always below its roof.
    """
    roof = fitted.roofline
    used = _shares(run)
    if roof is None or run.precision != fitted.precision or not used:
        return None
    if set(used) <= set(roof.links_bytes_per_s):
        return roof.for_shares(used)
    return roof if run is fitted else None


def comparable(analysis: Analysis) -> tuple[Point, ...]:
    """Return the measured points that the fitted run's roof is over."""
    fitted = analysis.fitted
    return tuple(p for run in analysis.runs if own_roof(fitted, run) for p in run.points)


def machine_roof(run: RunAnalysis) -> Roofline | None:
    """Return the roof of the machine's peaks for a run that replays a CUDA graph.

    Nothing inside a replay is timed, so that no roof can be fitted. None for other runs, and where
    a link has no peak, as MPI. From GPU to GPU NVLink is taken where the machine has it; its
    datasheet adds up both directions, and so does the assignment's count of bytes.
    """
    machine, used = run.machine, _shares(run)
    peak = machine.peak_flops_per_s.get(run.precision) if machine else None
    if machine is None or not run.workload.replay or not peak or not used:
        return None
    links, names = {}, []
    for link in used:
        key, name, directions = _PER_DIRECTION.get(link, ("", "", 1))
        if key not in machine.bandwidth_bytes_per_s:
            return None
        both = directions if run.workload.counting != "document" else 1
        links[link] = machine.bandwidth_bytes_per_s[key] / both
        names.append(name)
    return Roofline(f"{machine.name}: {run.precision}, {', '.join(names)}", peak, links, used)


def _shares(run: RunAnalysis) -> dict[str, float]:
    """Each link's share of the bytes that the run moves; empty if it moves none."""
    moved = {k: float(getattr(run.totals, f"{k}_bytes")) for k in LINKS}
    used = {k: n for k, n in moved.items() if n > 0}
    return {k: n / sum(used.values()) for k, n in used.items()}
