"""Operators of a median step: FLOPs, bytes, time, achieved rate, and what bounds them; MFU."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from perfmodel.analysis.modules import ModulePart, ModuleRow, layers_together, module_rows
from perfmodel.analysis.steps import StepBreakdown
from perfmodel.base.arrays import Floats
from perfmodel.base.units import percent
from perfmodel.machines.machine import TENSOR_UNITS, Machine
from perfmodel.programs.facts import OperatorRow
from perfmodel.timing.operator_times import PHASES, OperatorKey, OperatorTimes

_COVERED: Final = 0.9
"""Counters of less of the time than this are of another program."""

_COVERED_BY_FORMULAS: Final = 0.95
"""Of the computing time: where formulas cover less, the sums of a step are too low."""

_ABOVE_CEILING: Final = 1.05
"""Share of a ceiling that no kernel exceeds: medians of recorded times and clocks of GPUs vary by a
few percent (none of the recordings in `profiles/programs` is above 1)."""
_SHORTEST_S: Final = 1.5e-6
"""Least time of a kernel on the GPU: the shortest of reports of H200s take 0.7 to 1.5 µs."""


@dataclass(frozen=True, slots=True)
class PhaseRow:
    """Operators of one phase of a median step that do not communicate, the mean over ranks.

    Attributes
    ----------
    phase : str
        'forward', 'backward', 'optimizer', or 'step' for all.
    gpu_s, share, flops, bytes, intensity, flops_per_s, bytes_per_s, of_ceiling
        As of `OperatorRow`; `of_ceiling` is of operators whose least time is known.
    """

    phase: str
    gpu_s: float
    share: float
    flops: float
    bytes: float
    intensity: float | None
    flops_per_s: float | None
    bytes_per_s: float | None
    of_ceiling: float | None


@dataclass(frozen=True, slots=True)
class Utilization:
    """Model FLOPs utilization: FLOPs of a step over what the GPU's dense peak allows in its time.

    Attributes
    ----------
    of_step : float
        Over the whole step, without the profiler where it makes steps longer.
    without_exposed_communication : float
        Over the step of the rank that is longest without the communication that nothing hides: what
        ranks wait for inside of it is another rank's time, not communication.
    of_busy : float
        Over the time in which the GPU computes: what remains if recording slows the host.
    unit : str
        Whose peak: of the type of most FLOPs the fastest unit that the GPU has for it, which the
        program could use.
    peak_flops_per_s : float
        Dense, never a measured rate.
    basis : {'data sheet', 'estimate'}
        Source of the peak.
    ran_unit : str
        The unit that did most FLOPs.
    ran_peak_flops_per_s : float or None
    """

    of_step: float
    without_exposed_communication: float
    of_busy: float
    unit: str
    peak_flops_per_s: float
    basis: str
    ran_unit: str
    ran_peak_flops_per_s: float | None

    @property
    def ran_of_busy(self) -> float:
        """Share of the peak of the unit that ran, in the time in which the GPU computes."""
        return self.of_busy * self.peak_flops_per_s / (
            self.ran_peak_flops_per_s or self.peak_flops_per_s
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class StepWork:
    """Work of a rank's median step by operator; the mean over ranks.

    Attributes
    ----------
    flops : float
        FLOPs of GEMMs, convolutions and attention.
    bytes : float
        Compulsory bytes of all operators that do not communicate.
    source : str
        What counted it: the operators' 'shapes', the 'layers' of a network, or 'none'.
    attention : str
        How attention is counted: 'full', or 'causal' without what a causal mask hides.
    modelled : float
        Share of the time of operations that do not communicate that has a formula.
    operators : tuple of OperatorRow
        By name, phase, type and unit, most time first.
    by_sizes : tuple of OperatorRow
        By sizes, too.
    phases : tuple of PhaseRow
        Forward, backward, optimizer, as far as there are any, and the step.
    modules, module_groups : tuple of ModuleRow
        A module before those in it, in the order of their first call; none without their ranges.
    mfu : Utilization or None
        None without the machine's peak, or FLOPs.
    warnings : tuple of str
    """

    flops: float
    bytes: float
    source: str
    attention: str
    modelled: float
    operators: tuple[OperatorRow, ...]
    by_sizes: tuple[OperatorRow, ...]
    phases: tuple[PhaseRow, ...]
    modules: tuple[ModuleRow, ...]
    module_groups: tuple[ModuleRow, ...]
    mfu: Utilization | None
    warnings: tuple[str, ...]


def step_work(
    found: Sequence[OperatorTimes], steps: StepBreakdown, machine: Machine | None
) -> StepWork:
    """Sum the operators of a run up.

    Parameters
    ----------
    found : sequence of OperatorTimes
        One per report of the run that has any.
    steps : StepBreakdown
        Which steps count.
    machine : Machine or None
        Its ceilings.
    """
    window = range(steps.window.start, steps.window.stop)
    fine = _rows(found, window, machine, _without_module)
    coarse = _rows(found, window, machine, _without_sizes)
    source = found[0].source
    if source == "layers":
        fine, coarse = _sums_alone(fine), _sums_alone(coarse)
    parts = _parts(found, window, machine)
    left_out = _of_changing_sizes(fine, coarse)
    whole = coarse if left_out else fine  # every step by its own sizes, or sizes of most steps
    flops = float(sum(row.flops or 0 for row in whole))
    computing = [row for row in whole if not row.communicates]
    total = sum(row.gpu_s for row in computing) or 1.0
    mfu = _utilization(whole, flops, steps, machine)
    said = [*dict.fromkeys(w for one in found for w in one.warnings), *_uncounted(found, fine)]
    if source == "shapes":
        if not any(one.hidden for one in found):  # a warning says what these lack
            said += _without_formula(computing)
        said += _without_type(computing)
        if left_out:
            said.append(
                f"{percent(left_out)} of the computing time is of sizes that fewer than half of "
                f"the steps have: operators by size leave these out, and FLOPs, bytes and MFU are "
                f"those of a median step by its own sizes; for each size, profile steps of equal "
                f"ones, padded or of one length"
            )
    said += _above_ceiling([*coarse, *fine])
    if mfu is None and flops:
        said.append(_without_peak(whole, machine))
    if mfu is not None and mfu.ran_of_busy > 1:
        said.append(
            f"a step has {mfu.ran_of_busy:.3g} times the FLOPs that the GPU can do in the time in "
            f"which it computes: the sizes or the machine's peak are wrong"
        )
    return StepWork(
        flops=flops,
        bytes=float(sum(row.bytes or 0 for row in computing)),
        source=source,
        attention="causal" if any(one.causal for one in found) else "full",
        modelled=sum(row.gpu_s for row in computing if row.flops is not None) / total,
        operators=coarse,
        by_sizes=fine,
        phases=_phases(whole, _phase_seconds(found, window)),
        modules=module_rows(parts, lambda name: name),
        module_groups=module_rows(parts, layers_together),
        mfu=mfu,
        warnings=tuple(said),
    )


def _phase_seconds(found: Sequence[OperatorTimes], window: range) -> dict[str, float]:
    """GPU time of computing by phase: medians over the steps, means over lanes.

    A sum of the operators' own medians would depend on how many kinds of operators are told
    apart, and so on what a format records of them.
    """
    lanes = sum(one.lanes for one in found) or 1
    spent: dict[str, float] = {}
    for one in found:
        for key, values in _medians(one, window, _phase_alone).items():
            if not key.communicates:
                spent[key.phase] = spent.get(key.phase, 0.0) + float(values[-1]) * 1e-9 / lanes
    return spent


def _phase_alone(key: OperatorKey) -> OperatorKey:
    return OperatorKey("", key.phase, "", "", "", "", modelled=True, communicates=key.communicates)


def _phases(rows: Sequence[OperatorRow], spent: Mapping[str, float]) -> tuple[PhaseRow, ...]:
    """Sum operators up by phase, each of which takes the seconds `spent`, and over the step."""
    computing = [row for row in rows if not row.communicates]
    whole_s = sum(spent.values())
    found = [
        _phase(name, [r for r in computing if r.phase == name], spent[name], whole_s)
        for name in PHASES
        if spent.get(name)
    ]
    return (*found, _phase("step", computing, whole_s, whole_s)) if whole_s else ()


def _phase(name: str, rows: Sequence[OperatorRow], gpu_s: float, whole_s: float) -> PhaseRow:
    flops, moved = sum(r.flops or 0.0 for r in rows), sum(r.bytes or 0.0 for r in rows)
    limited = [
        (row.of_ceiling * row.gpu_s, row.gpu_s) for row in rows if row.of_ceiling is not None
    ]
    limited_s = sum(s for _, s in limited)
    return PhaseRow(
        phase=name,
        gpu_s=gpu_s,
        share=gpu_s / whole_s,
        flops=flops,
        bytes=moved,
        intensity=flops / moved if flops and moved else None,
        flops_per_s=flops / gpu_s if flops and gpu_s else None,
        bytes_per_s=moved / gpu_s if moved and gpu_s else None,
        of_ceiling=sum(least for least, _ in limited) / limited_s if limited_s else None,
    )


def _uncounted(found: Sequence[OperatorTimes], fine: Sequence[OperatorRow]) -> Iterator[str]:
    """Say how much of the time the table of Nsight Compute does not cover."""
    if not any(one.counted for one in found):
        return
    modelled = [r for r in fine if r.flops is not None and not r.communicates]
    seconds = sum(r.gpu_s for r in modelled)
    known = sum(r.gpu_s for r in modelled if r.dram_bytes is not None)
    if known < _COVERED * seconds:
        yield (
            f"the counters hold operators of {percent(known / seconds)} of the time: of another "
            f"program, or of other sizes; count one step of this one with ncu --nvtx"
        )


def _without_formula(computing: Sequence[OperatorRow]) -> Iterator[str]:
    """Say which operators have most of the time that no formula covers, where that is much."""
    spent: dict[str, float] = {}
    for row in computing:
        if row.flops is None:
            spent[row.name] = spent.get(row.name, 0.0) + row.share
    if sum(spent.values()) <= 1 - _COVERED_BY_FORMULAS or not any(r.dtype for r in computing):
        return  # of operations that have no types, as XLA's, there are no formulas at all
    most = sorted(spent, key=lambda name: -spent[name])[:3]
    named = ", ".join(f"{name} ({percent(spent[name])})" for name in most)
    if any(name.startswith("CompiledFunction") for name in most):
        yield (
            "CUDA graphs launch all that torch.compile(mode='reduce-overhead') made of a model at "
            "once (CompiledFunction), so that no operator names the sizes of these kernels; "
            "record with mode='default' to count them"
        )
    yield (
        f"operators without a formula, or without recorded sizes, take "
        f"{percent(sum(spent.values()))} of the computing time, most {named}: FLOPs, bytes and MFU "
        f"are too low; record every operator's sizes (record_shapes=True of torch.profiler, "
        f"--pytorch=autograd-shapes-nvtx of nsys), "
        f"or add a formula (docs/pytorch.md)"
    )


def _without_type(computing: Sequence[OperatorRow]) -> Iterator[str]:
    """Say that nothing names the type of GEMMs, and so their ceiling, where they take much time."""
    silent = [r for r in computing if r.flops and r.dtype_from == "default"]
    silent = [r for r in silent if r.dtype == "float32"]
    share = sum(row.share for row in silent)
    if share > 1 - _COVERED_BY_FORMULAS:
        name = max(silent, key=lambda row: row.share).name
        yield (
            f"no kernel and no cast says the data type of GEMMs that take {percent(share)} of the "
            f"computing time (most {name}): they are taken for float32 without tensor cores; give "
            f"it by --dtype"
        )


def _above_ceiling(rows: Iterable[OperatorRow]) -> Iterator[str]:
    """Say which operators multiply faster than the machine can."""
    fastest: dict[tuple[str, str], OperatorRow] = {}
    for row in rows:
        key = row.name, row.phase
        if row.bound == "compute" and (row.of_ceiling or 0.0) > _ABOVE_CEILING:
            before = fastest.setdefault(key, row)
            fastest[key] = max(before, row, key=lambda one: one.of_ceiling or 0.0)
    for row in fastest.values():
        yield (
            f"{row.name} ({row.phase}) runs at {percent(row.of_ceiling or 0.0)} of its ceiling as "
            f"{row.dtype}: its data type (known from: {row.dtype_from}) or the machine's peak is "
            f"wrong; give the type by --dtype, or the machine by --machine"
        )


def _of_changing_sizes(fine: Sequence[OperatorRow], coarse: Sequence[OperatorRow]) -> float:
    """Share of the time of sizes that few steps have, which have no median; 0 if it is small."""
    by_size, whole = (
        sum(row.gpu_s for row in rows if not row.communicates) for rows in (fine, coarse)
    )
    left_out = 1 - by_size / whole if whole else 0.0
    return left_out if left_out > 1 - _COVERED_BY_FORMULAS else 0.0


def operator_facts(work: StepWork) -> tuple[OperatorRow, ...]:
    """The operators whose least time is known, as findings need them; phases are none."""
    if work.source == "layers":
        return ()
    return tuple(row for row in work.operators if row.bound and row.of_ceiling is not None)


def _sums_alone(rows: Sequence[OperatorRow]) -> tuple[OperatorRow, ...]:
    """Leave out what layers do not say: which bytes are read, and which may be in the cache."""
    return tuple(
        replace(row, read_bytes=None, write_bytes=None, cached_bytes=None, inputs_from=None)
        for row in rows
    )


def _without_module(key: OperatorKey) -> OperatorKey:
    return replace(key, module="")


def _without_sizes(key: OperatorKey) -> OperatorKey:
    return replace(key, module="", sizes="")


def _rows(
    found: Sequence[OperatorTimes],
    window: range,
    machine: Machine | None,
    group: Callable[[OperatorKey], OperatorKey],
) -> tuple[OperatorRow, ...]:
    """Medians over the steps of every lane, and their mean over lanes."""
    sums: dict[OperatorKey, Floats] = {}
    limits: dict[OperatorKey, _Limit] = {}
    lanes = sum(one.lanes for one in found) or 1
    for one in found:
        for key, values in _medians(one, window, group).items():
            sums[key] = sums.get(key, np.zeros(len(_COLUMNS))) + values / lanes
        for key, values in _medians(one, window, _without_module).items():
            limits.setdefault(group(key), _Limit()).add(key, values / lanes, machine)
    computing = sum(v[-1] for k, v in sums.items() if not k.communicates) or 1.0
    counted = _counted(found, window, group)
    rows = [  # where no size comes in most of the steps, only their sum has a median
        _row(key, values, limits.get(key) or _Limit(known=False), computing, machine,
             counted.get(key))
        for key, values in sums.items()
    ]  # fmt: skip
    return tuple(sorted(rows, key=lambda r: -r.gpu_s))


@dataclass(slots=True)
class _Counted:
    """Bytes that Nsight Compute counted of the calls of one key; None where one was not."""

    dram: float | None = 0.0
    l2: float | None = 0.0

    def add(self, calls: float, dram: float | None, l2: float | None) -> None:
        """Add calls."""
        self.dram = None if self.dram is None or dram is None else self.dram + calls * dram
        self.l2 = None if self.l2 is None or l2 is None else self.l2 + calls * l2


def _counted(
    found: Sequence[OperatorTimes], window: range, group: Callable[[OperatorKey], OperatorKey]
) -> dict[OperatorKey, _Counted]:
    """Counted bytes of a median step, where a table was given."""
    sums: dict[OperatorKey, _Counted] = {}
    lanes = sum(one.lanes for one in found) or 1
    for one in found:
        keys = _medians(one, window, _without_module) if one.counted else {}
        for key, values in keys.items():
            each = one.counted.get((key.name, key.phase, key.sizes), (None, None))
            sums.setdefault(group(key), _Counted()).add(float(values[0]) / lanes, *each)
    return sums


def _parts(
    found: Sequence[OperatorTimes], window: range, machine: Machine | None
) -> tuple[ModulePart, ...]:
    """Return modules' calls in a median step, in the order of their first; none without names."""
    if not any(key.module for one in found for key in one.keys):
        return ()
    parts = []
    lanes = sum(one.lanes for one in found) or 1
    for one in found:
        for key, values in _medians(one, window, lambda key: key).items():
            if key.communicates:
                continue
            limit = _Limit()
            limit.add(key, values / lanes, machine)
            _, _, flops, read, written, _, ns = (float(v) / lanes for v in values)
            gpu_s = ns * 1e-9
            known = gpu_s if limit.known else 0.0
            parts.append(
                ModulePart(
                    key.module, key.phase, flops, read + written, gpu_s, known, limit.least_s
                )
            )
    return tuple(parts)


_COLUMNS: Final = (
    "count", "kernels", "flops", "read_bytes", "write_bytes", "fusible_bytes", "gpu_ns",
)  # fmt: skip


def _medians(
    one: OperatorTimes, window: range, group: Callable[[OperatorKey], OperatorKey]
) -> dict[OperatorKey, Floats]:
    """Of every key the medians over the steps of each lane, summed over lanes."""
    codes: dict[OperatorKey, int] = {}
    code = np.array([codes.setdefault(group(k), len(codes)) for k in one.keys], np.int64)
    inside = np.flatnonzero((one.step >= window.start) & (one.step < window.stop))
    if len(inside) == 0:
        return {}
    steps = len(window)
    pair = code[one.key[inside]] * one.lanes + one.lane[inside]
    cell = pair * steps + one.step[inside] - window.start
    order = np.argsort(cell, kind="stable")
    first = np.flatnonzero(np.diff(cell[order], prepend=-1))
    pair = cell[order][first] // steps
    begin = np.flatnonzero(np.diff(pair, prepend=-1))
    absent = steps - np.diff(np.append(begin, len(pair)))  # steps without any: they count as 0
    found = np.zeros((len(codes), len(_COLUMNS)))
    for i, name in enumerate(_COLUMNS):
        total = np.add.reduceat(getattr(one, name)[inside][order], first)
        ranked = total[np.lexsort((total, pair))]
        middle = [
            np.where(at < absent, 0, ranked[begin + np.maximum(at - absent, 0)])
            for at in ((steps - 1) // 2, steps // 2)
        ]
        np.add.at(found[:, i], pair[begin] // one.lanes, (middle[0] + middle[1]) / 2)
    return {key: found[at] for key, at in codes.items() if found[at].any()}


def _tensor_unit(key: OperatorKey) -> str:
    """Tensor cores for the type of what ran without them; '' where there are none, or it did not.

    Where nothing says the type, nothing says the unit.
    """
    if key.unit not in TENSOR_UNITS or key.origin == "default":
        return ""
    return TENSOR_UNITS.get(key.dtype, f"{key.dtype}_tensor")


def _unit(unit: str, machine: Machine | None) -> str:
    """The unit that multiplies: AMD's libraries multiply float32 and float64 on matrix cores."""
    chip = machine.chip if machine else None
    matrix = f"{unit}_tensor"
    if machine and chip and chip.target.startswith("gfx") and matrix in machine.peak_flops_per_s:
        return matrix
    return unit


class _Limit:
    """The bound of calls of several sizes: their least time, and its main limit."""

    def __init__(self, *, known: bool = True) -> None:
        self.least_s = 0.0
        self.tensor_s = 0.0
        self.cached_bytes: float | None = 0.0 if known else None
        self.by_bound: dict[str, float] = {}
        self.known = known

    def add(self, key: OperatorKey, values: Floats, machine: Machine | None) -> None:
        """Add calls of one size: time at the unit's peak, at the memory's bandwidth, of kernels."""
        bandwidth = machine.bandwidth_bytes_per_s.get("hbm") if machine else None
        peaks = machine.peak_flops_per_s if machine else {}
        peak, tensor = peaks.get(_unit(key.unit, machine)), peaks.get(_tensor_unit(key))
        count, kernels, flops, read, written, _, ns = (float(v) for v in values)
        self._cache(machine, count, read, written)
        if key.unit == "pcie":  # one side of the copy is the host's memory
            link = machine.bandwidth_bytes_per_s.get("pcie") if machine else None
            self.known = self.known and key.modelled and link is not None
            self.least_s += max(read, written) / link if link else 0.0
            self.by_bound["link"] = self.by_bound.get("link", 0.0) + ns
            return
        if not (key.modelled and bandwidth and (peak or not flops)) or key.communicates:
            self.known = False
            return
        limits = {
            "compute": flops / peak if peak else 0.0,
            "memory": (read + written) / bandwidth,
            "latency": kernels * _SHORTEST_S,
        }
        self.least_s += max(limits["compute"], limits["memory"])
        if flops and tensor:
            self.tensor_s += max(flops / tensor, limits["memory"])
        bound = max(limits, key=lambda name: limits[name])
        self.by_bound[bound] = self.by_bound.get(bound, 0.0) + ns

    def _cache(self, machine: Machine | None, count: float, read: float, written: float) -> None:
        capacity = machine.capacity_bytes.get("l2") if machine else None
        if capacity is None or self.cached_bytes is None:
            self.cached_bytes = None
        else:
            self.cached_bytes += max(read - count * capacity, 0.0) + written

    @property
    def bound(self) -> str | None:
        """Return the limit of most of the time; None without the machine's limits or the work."""
        if not (self.known and self.by_bound):
            return None
        return max(self.by_bound, key=lambda name: self.by_bound[name])


def _row(
    key: OperatorKey,
    values: Floats,
    limit: _Limit,
    computing_ns: float,
    machine: Machine | None,
    counted: _Counted | None,
) -> OperatorRow:
    links = machine.bandwidth_bytes_per_s if machine else {}
    l2_bytes = counted.l2 if counted else None
    l2_rate = max((links[k] for k in ("l2", "l2_read") if k in links), default=None)
    count, kernels, flops, read, written, fusible, ns = (float(v) for v in values)
    gpu_s = ns * 1e-9
    moved = read + written
    known = key.modelled
    return OperatorRow(
        name=key.name,
        phase=key.phase,
        dtype=key.dtype,
        dtype_from=key.origin,
        unit=key.unit,
        sizes=key.sizes,
        count=count,
        kernels=kernels,
        flops=flops if known else None,
        read_bytes=read if known else None,
        write_bytes=written if known else None,
        bytes=moved if known else None,
        gpu_s=gpu_s,
        share=0.0 if key.communicates else ns / computing_ns,
        intensity=flops / moved if known and moved else None,
        flops_per_s=flops / gpu_s if known and flops and gpu_s else None,
        bytes_per_s=moved / gpu_s if known and gpu_s else None,
        bound=limit.bound,
        of_ceiling=limit.least_s / gpu_s if limit.bound and gpu_s else None,
        of_tensor_ceiling=limit.tensor_s / gpu_s if limit.tensor_s and gpu_s else None,
        cached_bytes=limit.cached_bytes if known else None,
        fusible_bytes=fusible if known else None,
        inputs_from=_inputs_from(limit, moved, gpu_s, links.get("hbm")) if read else None,
        dram_bytes=counted.dram if counted else None,
        l2_bytes=l2_bytes,
        l2_intensity=flops / l2_bytes if l2_bytes and flops else None,
        of_l2=l2_bytes / l2_rate / gpu_s if l2_bytes and l2_rate and gpu_s else None,
        communicates=key.communicates,
    )


def _inputs_from(limit: _Limit, moved: float, gpu_s: float, bandwidth: float | None) -> str | None:
    """Return the place of inputs, as far as the time says."""
    if not bandwidth or not limit.bound:
        return None
    if gpu_s < moved / bandwidth:
        return "l2"
    return "memory" if limit.bound == "memory" else None


def _main_unit(rows: Iterable[OperatorRow]) -> tuple[str, str]:
    """The unit with most FLOPs, and the type of its operands."""
    found: dict[tuple[str, str], float] = {}
    for row in rows:
        dtype = row.unit.removesuffix("_tensor") if row.unit.endswith("_tensor") else row.dtype
        key = (row.unit, "float32" if dtype.startswith("tf32") else dtype)
        found[key] = found.get(key, 0.0) + (row.flops or 0.0)
    return max(found, key=lambda key: found[key], default=("", ""))


def _without_peak(rows: Iterable[OperatorRow], machine: Machine | None) -> str:
    """Say why there is no utilization of a step that has FLOPs."""
    return (
        f"no peak of {_main_unit(rows)[0]} is known of {machine.name if machine else 'this GPU'}: "
        f"MFU, ceilings and what bounds an operator are left out; give --machine FILE.toml, which "
        f"perfmodel machine measure writes"
    )


def _utilization(
    rows: Iterable[OperatorRow], flops: float, steps: StepBreakdown, machine: Machine | None
) -> Utilization | None:
    published = machine.published if machine else None
    peaks = published.peak_flops_per_s if published else {}
    ran, dtype = _main_unit(rows)
    unit = machine.usable_unit(dtype) if machine else None
    if published is None or unit is None or not flops:
        return None
    ran, peak = _unit(ran, published), peaks[unit]
    ledger = steps.facts.ledger
    step, added_s = ledger.step_s, ledger.recorded_s - ledger.step_s
    busy = max(r.part_s("compute") for r in steps.ranks)
    alone = max(
        (r.step_s or 0.0) - r.part_s("communication") - r.part_s("waiting") for r in steps.ranks
    )
    alone -= added_s
    return Utilization(
        of_step=flops / step / peak if step else 0.0,
        without_exposed_communication=flops / alone / peak if alone > 0 else 0.0,
        of_busy=flops / busy / peak if busy else 0.0,
        unit=unit,
        peak_flops_per_s=peak,
        basis=published.basis,
        ran_unit=ran,
        ran_peak_flops_per_s=peaks.get(ran),
    )
