"""What was counted against the machine: the unit that computes, its roof, what is above it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from perfmodel.analysis.counted import Counted
from perfmodel.machines.machine import Machine, datasheet, known
from perfmodel.readers.ncu import Launch

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
            above.append(f"{operations / counted.time_s / ceiling:.0%} of the peak of {other}")
    for level, bandwidth in links.items():
        rate = counted.bytes_per_s(level)
        if rate and rate > bandwidth:
            above.append(f"{rate / bandwidth:.0%} of the bandwidth of {level.upper()}")
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
