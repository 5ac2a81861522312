"""Nsight Compute's counters: which are collected, their sums, roofs by unit, and formulas."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from statistics import multimode
from typing import Final, Literal

from perfmodel.base.errors import SchemaError, WorkloadError
from perfmodel.base.kernels import kernel
from perfmodel.base.units import percent
from perfmodel.machines.devices import datasheet, known
from perfmodel.machines.machine import Machine
from perfmodel.programs import BATCH_RANGE, workload_of_kernels
from perfmodel.readers.ncu import TIME, Launch
from perfmodel.workloads import Workload

_LETTERS: Final = {"fp64": "d", "fp32": "f", "fp16": "h"}
SCALAR: Final = {
    unit: {
        f"smsp__sass_thread_inst_executed_op_{letter}{op}_pred_on.sum": 2 if op == "fma" else 1
        for op in ("add", "mul", "fma")
    }
    for unit, letter in _LETTERS.items()
}
"""By unit: instructions of threads that were not predicated off; a multiply-add is two
operations (Nsight Compute, Kernel Profiling Guide, roofline charts)."""

_PATH: Final = "sm__ops_path_tensor_src_"
TENSOR: Final = {
    "tensor fp64": {f"{_PATH}fp64.sum": 1},
    "tensor tf32": {f"{_PATH}tf32_dst_fp32.sum": 1},
    "tensor fp16": {f"{_PATH}fp16_dst_fp16.sum": 1, f"{_PATH}fp16_dst_fp32.sum": 1},
    "tensor bf16": {f"{_PATH}bf16_dst_fp32.sum": 1},
}
"""By type of the factors: operations already, two for a multiply-add; GPUs since Ampere."""

UNITS: Final = {**SCALAR, **TENSOR}
"""By unit, the metrics that count its operations, each with the operations of one count."""

LEVELS: Final = {
    "l1": ("l1tex__t_bytes.sum",),
    "l2": ("lts__t_bytes.sum",),
    "dram": ("dram__bytes_read.sum", "dram__bytes_write.sum"),
}
"""By level of memory, the metrics whose sum are the bytes it moves; L1's lack shared memory."""

SECTORS: Final = ("lts__t_sectors_lookup_hit.sum", "lts__t_sectors_lookup_miss.sum")
"""32-byte sectors that L2 held, and that it did not."""

METRICS: Final = (
    TIME,
    *(name for level in LEVELS.values() for name in level),
    *(name for unit in UNITS.values() for name in unit),
)
"""Collected metrics: time, bytes of every level, operations of every unit."""


def command(
    program: Sequence[str] = (), *, ranges: Iterable[str] = (), sectors: bool = False
) -> list[str]:
    """Return the words of a command that counts `program`'s kernels and writes counters.csv.

    Parameters
    ----------
    program : sequence of str
        The program and its arguments.
    ranges : iterable of str
        Count only kernels launched inside a push/pop range of one of these names.
    sectors : bool
        Count hits and misses of L2, too.

    Notes
    -----
    Clocks are left as they are (``--clock-control none``): ceilings are those of the boost clock,
    and a base clock would put all points below them by as much. Caches are emptied before every
    kernel, ncu's default, so that the bytes of DRAM do not depend on what ran before.
    """
    metrics = METRICS + (SECTORS if sectors else ())
    words = ["ncu", "--target-processes", "all", "--nvtx", "--clock-control", "none"]
    for name in ranges:
        words += ["--nvtx-include", f"{_escaped(name)}/"]
    words += ["--csv", "--page", "raw", "--print-units", "base", "--log-file", "counters.csv"]
    return [*words, "--metrics", ",".join(metrics), *program]


def _escaped(name: str) -> str:
    """A range's name as a filter of ncu, in which some letters have a meaning."""
    return "".join(f"\\{c}" if c in "\\/@[]*+," else c for c in name)


Kind = Literal["kernel", "range"]
OUTSIDE: Final = "(no range)"
_SECTOR_BYTES: Final = 32
_AMOUNTS: Final = {
    **{
        name.replace("smsp__", "sm__"): (name, 1)
        for unit in UNITS.values()
        for name in unit
        if name.startswith("smsp__")
    },
    "lts__t_sectors.sum": (LEVELS["l2"][0], _SECTOR_BYTES),
    "l1tex__t_sectors.sum": (LEVELS["l1"][0], _SECTOR_BYTES),
    "dram__sectors_read.sum": (LEVELS["dram"][0], _SECTOR_BYTES),
    "dram__sectors_write.sum": (LEVELS["dram"][1], _SECTOR_BYTES),
}  # fmt: skip
"""Other names of the same counts, and how much one of them is."""
_HALF: Final = tuple(UNITS["fp16"])
_SINGLE: Final = tuple(UNITS["fp32"])


@dataclass(frozen=True, slots=True)
class Counted:
    """Counts of some launches together; None was not counted of all of them.

    Attributes
    ----------
    name : str
        Of the kernel or range.
    kind : {'kernel', 'range'}
    launches : int
    kernels : tuple of str
        Names of the kernels, each once.
    counts : mapping of str to float or None
        By metric of `perfmodel.analysis.counters`, in bytes, seconds and instructions.
    source : str
        The file, where there are several.
    """

    name: str
    kind: Kind
    launches: int
    kernels: tuple[str, ...]
    counts: Mapping[str, float | None]
    source: str = ""

    @classmethod
    def of(cls, name: str, kind: Kind, launches: Sequence[Launch], source: str = "") -> Counted:
        """Sum the counters of launches."""
        counts = {m: _total(launches, m) for m in (*METRICS, *SECTORS)}
        kernels = tuple(dict.fromkeys(one.kernel for one in launches))
        return cls(name, kind, len(launches), kernels, counts, source)

    @property
    def label(self) -> str:
        """The name, after the file's if there are several files."""
        file = self.source.removesuffix(".xz").removesuffix(".csv").removesuffix(".ncu-rep")
        return f"{file}: {self.name}" if file else self.name

    @property
    def time_s(self) -> float | None:
        """Sum of the kernels' durations."""
        return self.counts.get(TIME)

    def flops_of(self, unit: str) -> float | None:
        """Operations of a unit: the sum of what was counted, None if nothing was."""
        found = [(self.counts.get(m), weight) for m, weight in UNITS[unit].items()]
        known = [count * weight for count, weight in found if count is not None]
        return sum(known) if known else None

    @property
    def flops_by_unit(self) -> dict[str, float | None]:
        """Operations by unit, scalar and tensor."""
        return {unit: self.flops_of(unit) for unit in UNITS}

    @property
    def flops(self) -> float | None:
        """All counted operations; a lower bound if some were not counted (`uncounted`)."""
        known = [v for v in self.flops_by_unit.values() if v is not None]
        return sum(known) if known else None

    @property
    def uncounted(self) -> tuple[str, ...]:
        """Metrics of operations, bytes and time that were not counted of every launch."""
        return tuple(m for m in METRICS if self.counts.get(m) is None)

    def bytes_of(self, level: str) -> float | None:
        """Bytes that a level of memory moved: 'l1', 'l2' or 'dram' (read and written)."""
        found = [self.counts.get(m) for m in LEVELS[level]]
        known = [v for v in found if v is not None]
        return sum(known) if len(known) == len(found) else None

    def intensity(self, level: str) -> float | None:
        """Operations per byte of a level (S. Williams et al., CACM 52(4), 65-76, 2009)."""
        moved, flops = self.bytes_of(level), self.flops
        return flops / moved if flops is not None and moved else None

    @property
    def flops_per_s(self) -> float | None:
        """Operations over the kernels' time."""
        return self.flops / self.time_s if self.flops is not None and self.time_s else None

    def bytes_per_s(self, level: str) -> float | None:
        """Bytes of a level over the kernels' time."""
        moved = self.bytes_of(level)
        return moved / self.time_s if moved is not None and self.time_s else None

    @property
    def past_l1(self) -> bool:
        """Whether L1's counter saw less than DRAM moved.

        Copies of the tensor memory accelerator (compute capability 9) fill shared memory past it.
        """
        l1, dram = self.bytes_of("l1"), self.bytes_of("dram")
        return l1 is not None and dram is not None and l1 < dram

    @property
    def l2_hit_share(self) -> float | None:
        """Share of L2's lookups that it held, of 0 to 1."""
        hit, miss = (self.counts.get(m) for m in SECTORS)
        return hit / (hit + miss) if hit is not None and miss is not None and hit + miss else None


def by_kernel(launches: Iterable[Launch]) -> tuple[Counted, ...]:
    """Sum launches by the kernel's name (and file, where there are several), the longest first."""
    return _grouped(launches, "kernel", lambda one: one.kernel)


def by_range(launches: Iterable[Launch]) -> tuple[Counted, ...]:
    """Sum launches by the innermost NVTX range, so that a range has its own work only."""
    return _grouped(launches, "range", lambda one: one.ranges[-1] if one.ranges else OUTSIDE)


def inside(launches: Iterable[Launch], names: Iterable[str]) -> tuple[Launch, ...]:
    """Keep the launches inside a range of one of these names, however deep; all without names.

    Raises
    ------
    SchemaError
        If there is none.
    """
    launches, names = tuple(launches), set(names)
    found = tuple(one for one in launches if not names or names & set(one.ranges))
    if not found:
        known = dict.fromkeys(name for one in launches for name in one.ranges)
        raise SchemaError(
            f"expected launches inside {', '.join(sorted(names))}; got ranges "
            f"{', '.join(known) or 'none'}; take one of these, or collect with ncu --nvtx"
        )
    return found


def _grouped(
    launches: Iterable[Launch], kind: Kind, key: Callable[[Launch], str]
) -> tuple[Counted, ...]:
    launches = tuple(launches)
    several = len({one.source for one in launches}) > 1
    groups: dict[tuple[str, str], list[Launch]] = {}
    for one in launches:
        groups.setdefault((one.source if several else "", key(one)), []).append(one)
    counted = [Counted.of(name, kind, group, file) for (file, name), group in groups.items()]
    return tuple(sorted(counted, key=lambda one: -(one.time_s or 0.0)))


def _total(launches: Sequence[Launch], metric: str) -> float | None:
    """Sum of a metric; None if one launch lacks it, for a part of a sum is no sum."""
    values = [
        0.0 if metric in _HALF and _constants_only(one) else _found(one, metric) for one in launches
    ]
    known = [v for v in values if v is not None]
    return sum(known) if values and len(known) == len(values) else None


def _constants_only(launch: Launch) -> bool:
    """Whether all half instructions of a kernel of fp32 are HFMA2: so compilers load constants.

    On an H200 `trainer_descend` has one such instruction per thread, and no half number. Constants
    are used: a kernel with more HFMA2 than instructions of fp32 multiplies half numbers.
    """
    half = {metric: _found(launch, metric) for metric in _HALF}
    single = sum(_found(launch, metric) or 0.0 for metric in _SINGLE)
    others = [n for metric, n in half.items() if "hfma" not in metric]
    return all(n == 0 for n in others) and 0 < single >= sum(n or 0.0 for n in half.values())


def _found(launch: Launch, metric: str) -> float | None:
    found = launch.metrics.get(metric)
    if found is not None:
        return found if found >= 0 else None  # no count of anything
    for other, (name, amount) in _AMOUNTS.items():
        alias = launch.metrics.get(other)
        if name == metric and alias is not None and alias >= 0:
            return alias * amount
    return None


_CLOSE: Final = 0.03
"""Counts that differ by less are called equal."""

_PADDING: Final = 0.25
"""Tiles of 128 by 128 stick out of a GEMM of the trainer by less than this."""

_SMALL: Final = 0.05
_FAR: Final = 1.75
"""The largest GEMM of other sizes than were given: tiles add less, but to narrow matrices."""
_CHECK: Final = (
    "formulas and counters of the largest GEMM are far apart: check that the sizes, --ranks, "
    "--dtype and --batches are those of the run that was counted"
)
_COLLECT: Final = "collect sm__ops_path_tensor_src_*"
_SPLITS: Final = (3, 2)
"""GEMMs of TF32 for one of float32; two where one factor is TF32 already."""


@dataclass(frozen=True, slots=True)
class Compared:
    """One range and batch: formulas and counters; None was not counted.

    Attributes
    ----------
    counted : Counted
        Of all `batches` together.
    batches : int
    model_flops, model_dram_bytes : float
        What the formulas say of one batch: every operand read once, every result written once.
    split : bool
        Whether the run multiplies float32 as GEMMs of TF32 numbers (tf32x3).
    """

    counted: Counted
    batches: int
    model_flops: float
    model_dram_bytes: float
    split: bool = False

    @property
    def flops(self) -> float | None:
        """Operations per batch that were counted."""
        return self._per_batch(self.counted.flops)

    def bytes_of(self, level: str) -> float | None:
        """Bytes of a level per batch that were counted."""
        return self._per_batch(self.counted.bytes_of(level))

    @property
    def flops_ratio(self) -> float | None:
        """Counted operations over the formulas'."""
        return _over(self.flops, self.model_flops)

    @property
    def dram_ratio(self) -> float | None:
        """Counted bytes of DRAM over the formulas'."""
        return _over(self.bytes_of("dram"), self.model_dram_bytes)

    def _per_batch(self, value: float | None) -> float | None:
        return None if value is None else value / self.batches


def batches_of(launches: Sequence[Launch], batch_range: str) -> int:
    """Infer how many batches were counted.

    Where a batch has several phases (the ranges right inside it), it is how often most of them
    began anew. Else it is the greatest common divisor of how often every kernel ran in every range,
    which is too large if no kernel runs once per batch.
    """
    batch_range = batch_range or BATCH_RANGE
    inside = [one for one in launches if batch_range in one.ranges]
    phases = [one.ranges[one.ranges.index(batch_range) + 1 :][:1] for one in inside]
    begun = Counter(phase for phase, _ in groupby(phases) if phase)
    if len(begun) > 1:
        return min(multimode(begun.values()))
    counted = inside or list(launches)
    return math.gcd(*Counter((one.ranges, one.kernel) for one in counted).values())


def as_counted(workload: Workload | None, ranges: Sequence[Counted]) -> Workload:
    """Return the workload, by default the MLP with the ranges that were counted."""
    kernels = {one.name: one.kernels for one in ranges}
    return workload or workload_of_kernels(kernels)


def compare(
    ranges: Sequence[Counted], workload: Workload, values: Mapping[str, int], batches: int
) -> tuple[Compared, ...]:
    """Compare the ranges that have formulas with these.

    Parameters
    ----------
    ranges : sequence of Counted
        Of one run, by innermost range, in every one its own kernels only.
    values : mapping of str to int
        The workload's symbols; the counters are of one rank.

    Raises
    ------
    WorkloadError
        If a value is missing or wrong, or no range has a formula.
    """
    counts = workload.evaluate(values)
    found = tuple(
        Compared(one, batches, float(counts[one.name].flops), float(counts[one.name].dram_bytes))
        for one in ranges
        if one.name in counts
    )
    if not found:
        raise WorkloadError(
            f"expected ranges of workload '{workload.name}' ({', '.join(counts)}); got "
            f"{', '.join(one.name for one in ranges)}; collect with ncu --nvtx, or give --workload"
        )
    # the largest GEMM has tiles to spare: what is twice or three times its work is split TF32
    largest = max(found, key=lambda one: one.model_flops)
    split = bool(_tensor(largest)) and (largest.flops_ratio or 0.0) > _SPLITS[-1] - _SMALL
    return tuple(replace(one, split=split) for one in found)


def explain(one: Compared) -> tuple[str, ...]:
    """Say in words why counters and formulas differ."""
    return tuple(filter(None, (*_of_flops(one), *_of_bytes(one))))


def warnings(compared: Sequence[Compared]) -> tuple[str, ...]:
    """Say where tensor cores were not counted, and which files were given sizes that do not fit."""
    blind = [
        f"{one.counted.label}: {said}"
        for one in compared
        for said in explain(one)
        if said.endswith(_COLLECT)
    ]
    return (*blind, *(f"{one.counted.label}: {_CHECK}" for one in _unlike(compared)))


def _unlike(compared: Sequence[Compared]) -> Iterator[Compared]:
    """The largest GEMM of every file whose operations are not those of the sizes given."""
    files: dict[str, list[Compared]] = {}
    for one in compared:
        files.setdefault(one.counted.source, []).append(one)
    for ranges in files.values():
        one = max(ranges, key=lambda each: each.model_flops)
        ratio = one.flops_ratio
        blind = _tensor(one) is None or one.split
        if ratio and not blind and not 1 - _CLOSE <= ratio <= _FAR:
            yield one


def _of_flops(one: Compared) -> tuple[str, ...]:
    ratio, units = one.flops_ratio, one.counted.flops_by_unit
    tensor, scalar = _tensor(one), _sum(units[unit] for unit in SCALAR)
    if ratio is None:
        return ("",)
    if tensor is None and ratio < 1 - _CLOSE:
        return (
            f"scalar units did {percent(ratio, 1)} of the operations, and those of tensor cores "
            f"were not counted: {_COLLECT}",
        )
    said = []
    if tensor and scalar is not None and scalar < _SMALL * tensor:
        alone = scalar / one.batches / one.model_flops
        said.append(
            f"tensor cores did {percent(tensor / (tensor + scalar), 1)} of the operations; "
            f"instructions of scalar units alone would say {percent(alone, 1)} of the formulas'"
        )
    products = next((n for n in _SPLITS if ratio >= n), 1) if tensor and one.split else 1
    if products > 1:
        said.append(
            f"{products} GEMMs of TF32 numbers stand for one of float32 (tf32x3); of a run "
            f"without tf32x3 the sizes given are too small"
        )
    extra = ratio / products - 1
    operations = {kernel(name).operation for name in one.counted.kernels}
    if abs(extra) < 1e-6:
        said.append("as many operations as the formulas count")
    elif 0 < extra <= _PADDING:
        said.append(
            f"{percent(extra, 2)} more operations than needed: tiles that extend beyond the "
            f"matrices are computed whole"
        )
    elif extra > _PADDING and (tensor or "GEMM" in operations):
        said.append(
            f"{ratio / products:.2f} times the operations needed: a matrix is narrower than the "
            f"tiles, or than a cluster of them, and these are computed whole"
        )
    elif extra > _PADDING:
        said.append(
            f"{ratio:.2f} times the formulas' operations: exp and division are several "
            f"instructions each, which the formulas count as one operation"
        )
    elif extra < -_CLOSE:
        said.append(
            f"{percent(-extra, 1)} fewer operations than the formulas count: other sizes, or "
            f"kernels outside this range"
        )
    return tuple(said)


def _of_bytes(one: Compared) -> tuple[str, ...]:
    said = []
    ratio, dram, l2 = one.dram_ratio, one.bytes_of("dram"), one.bytes_of("l2")
    if ratio is not None and ratio < 1 - _SMALL:
        said.append(
            f"DRAM moved {percent(1 - ratio)} less than operands and results are: results stay in "
            f"L2 until they are evicted"
        )
    if ratio is not None and ratio > 1 + _SMALL:
        said.append(
            f"DRAM moved {ratio:.2f} times the bytes of operands and results: some are read again"
        )
    if dram and l2 and l2 > (1 + _PADDING) * dram:
        said.append(f"L2 moved {l2 / dram:.1f} times DRAM's bytes: blocks read operands again")
    return tuple(said)


def _tensor(one: Compared) -> float | None:
    return _sum(one.counted.flops_of(unit) for unit in TENSOR)


def _sum(values: Iterable[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) if known else None


def _over(counted: float | None, model: float) -> float | None:
    return counted / model if counted is not None and model else None


PEAKS: Final = {
    "fp64": ("float64",),
    "fp32": ("float32",),
    "fp16": ("float16",),
    "tensor fp64": ("float64_tensor",),
    "tensor tf32": ("tf32_tensor",),
    "tensor fp16": ("float16_tensor",),
    "tensor bf16": ("bfloat16_tensor", "float16_tensor"),
}
"""By unit, the machine's peaks that it is compared with, the first that is known: never another's.
bfloat16 is multiplied as fast as float16 (NVIDIA's datasheets of A100 to H200)."""

LINKS: Final = {"l1": ("l1", "l1_read"), "l2": ("l2", "l2_read"), "dram": ("hbm",)}
"""By level, the machine's bandwidths, of which the highest is the ceiling (docs/machines.md)."""

MIXED: Final = 0.9
"""A kernel whose unit does less than this share of its operations is called mixed."""

CAUSES: Final = (
    "a clock above the boost clock of the datasheet, another machine than --machine says, counters "
    "and time of different passes, or, at L2, bytes that cross between its halves"
)


@dataclass(frozen=True, slots=True)
class Placed:
    """One kernel or range against its own roof.

    Attributes
    ----------
    counted : Counted
    unit : str or None
        The unit that does most of the operations; None if there are none.
    unit_share : float or None
        Its share of them.
    peak_flops_per_s : float or None
        That unit's peak; None if the machine does not say.
    bandwidths_bytes_per_s : mapping
        By level, of those that the machine says.
    above : tuple of str
        Ceilings that it is above of, in words: a measurement that cannot be.
    """

    counted: Counted
    unit: str | None
    unit_share: float | None
    peak_flops_per_s: float | None
    bandwidths_bytes_per_s: Mapping[str, float]
    above: tuple[str, ...]

    @property
    def mixed(self) -> bool:
        """Whether other units do a tenth of the operations, or more."""
        return self.unit_share is not None and self.unit_share < MIXED

    @property
    def ceilings_flops_per_s(self) -> dict[str, float]:
        """By 'compute' and level, FLOP/s that this ceiling allows: the peak, or AI * bandwidth."""
        found = {"compute": self.peak_flops_per_s} if self.peak_flops_per_s else {}
        for level, bandwidth in self.bandwidths_bytes_per_s.items():
            intensity = self.counted.intensity(level)
            if intensity:
                found[level] = intensity * bandwidth
        return found

    @property
    def bound(self) -> str | None:
        """The lowest ceiling: 'compute', 'l1', 'l2' or 'dram'; None without any."""
        found = self.ceilings_flops_per_s
        return min(found, key=lambda name: found[name]) if found else None

    @property
    def roof_flops_per_s(self) -> float | None:
        """The lowest ceiling's FLOP/s (hierarchical roofline: C. Yang et al., CCPE 32, 2020)."""
        return self.ceilings_flops_per_s[self.bound] if self.bound else None

    @property
    def share_of_roof(self) -> float | None:
        """FLOP/s over the roof's."""
        rate, roof = self.counted.flops_per_s, self.roof_flops_per_s
        return rate / roof if rate is not None and roof else None


def place(counted: Counted, machine: Machine | None) -> Placed:
    """Set a kernel or range against the roofs of its own unit and of every level of memory."""
    flops = {unit: n for unit, n in counted.flops_by_unit.items() if n}
    unit = max(flops, key=lambda name: flops[name]) if flops else None
    share = flops[unit] / sum(flops.values()) if unit else None
    if machine is None:
        return Placed(counted, unit, share, None, {}, ())
    links = {level: rate for level in LINKS if (rate := _bandwidth(level, machine))}
    peak = _peak(unit, machine)
    above = []
    for other, operations in flops.items():
        ceiling = _peak(other, machine)
        if ceiling and counted.time_s and operations / counted.time_s > ceiling:
            above.append(f"{percent(operations / counted.time_s / ceiling)} of the peak of {other}")
    for level, bandwidth in links.items():
        rate = counted.bytes_per_s(level)
        if rate and rate > bandwidth:
            above.append(f"{percent(rate / bandwidth)} of the bandwidth of {level.upper()}")
    return Placed(counted, unit, share, peak, links, tuple(above))


def unknown(placed: Sequence[Placed], machine: Machine) -> tuple[str, ...]:
    """Say which ceilings of these points the machine lacks, and what to do."""
    said = []
    if not _bandwidth("l2", machine):
        said.append(
            f"{machine.name}: no bandwidth of L2: no line for it; run perfmodel machine measure on "
            f"the GPU and give its file to --machine"
        )
    if not _bandwidth("l1", machine):
        said.append(
            f"{machine.name}: no bandwidth of L1: no line for it; perfmodel machine measure gives "
            f"none either: write l1 into [bandwidth_bytes_per_s] of its file (multiprocessors x "
            f"bytes per clock x clock) and give that to --machine"
        )
    units = dict.fromkeys(p.unit for p in placed if p.unit and not _peak(p.unit, machine))
    said += [
        f"{machine.name}: no peak of {unit} ({PEAKS[unit][0]}): its points have no roof of their "
        f"own; give a machine's TOML file that has one to --machine"
        for unit in units
        if unit
    ]
    return tuple(said)


def device_of(launches: Sequence[Launch]) -> Machine | None:
    """Return the known machine that all launches ran on, where the table names it."""
    devices = {one.device for one in launches}
    return datasheet(devices) if len(devices) == 1 else None


def elsewhere(
    launches: Sequence[Launch], machine: Machine, gpus: Sequence[str] | None
) -> tuple[str, ...]:
    """Say which GPUs the table names that are not the machine's.

    `gpus` are those that a measured machine was measured on; of one's own file nothing is said.
    """
    counted = sorted({one.device for one in launches if one.device})
    if gpus is None:
        other = [name for name in counted if datasheet((name,)) != machine]
        other = other if machine in known() else []
    else:
        other = [name for name in counted if name not in gpus]
    if not other:
        return ()
    return (
        f"counted on {', '.join(other)}, but the ceilings are those of {machine.name}: shares of "
        f"roofs mean little; leave --machine out, or name the GPU that was counted",
    )


def _peak(unit: str | None, machine: Machine) -> float | None:
    found = [machine.peak_flops_per_s.get(key) for key in PEAKS.get(unit or "", ())]
    return next((peak for peak in found if peak), None)


def _bandwidth(level: str, machine: Machine) -> float | None:
    found = [machine.bandwidth_bytes_per_s.get(key) for key in LINKS[level]]
    return max((rate for rate in found if rate), default=None)
