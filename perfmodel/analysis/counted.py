"""Counters summed over launches: operations by unit, bytes by level, time, of kernels or ranges."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from perfmodel.analysis.metrics import LEVELS, METRICS, SECTORS, TIME, UNITS
from perfmodel.base.errors import SchemaError
from perfmodel.readers.ncu import Launch

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
    """What was counted of some launches together; None was not counted of all of them.

    Attributes
    ----------
    name : str
        Of the kernel or range.
    kind : {'kernel', 'range'}
    launches : int
    kernels : tuple of str
        Names of the kernels, each once.
    counts : mapping of str to float or None
        By metric of `perfmodel.analysis.metrics`, in bytes, seconds and instructions.
    source : str
        The file, where several are told apart.
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
        """The name, behind the file where several are told apart."""
        file = self.source.removesuffix(".csv").removesuffix(".ncu-rep")
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
        """All operations that were counted; at least so many if some were not (`uncounted`)."""
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
    launches, wanted = tuple(launches), set(names)
    found = tuple(one for one in launches if not wanted or wanted & set(one.ranges))
    if not found:
        known = dict.fromkeys(name for one in launches for name in one.ranges)
        raise SchemaError(
            f"wanted launches inside {', '.join(sorted(wanted))}; found ranges "
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
    values = [_count(one, metric) for one in launches]
    known = [v for v in values if v is not None]
    return sum(known) if values and len(known) == len(values) else None


def _count(launch: Launch, metric: str) -> float | None:
    return 0.0 if metric in _HALF and _constants_only(launch) else _found(launch, metric)


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
