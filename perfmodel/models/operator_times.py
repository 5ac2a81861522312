"""GPU time of operators: measured grids of GEMMs and attention, bytes of all else, and residuals.

Every time is a machine's baseline times a factor that reports say. The baseline of a GEMM or of
attention is interpolated in the grid that `perfmodel machine measure --gemm-grid` timed, or a
fixed share of the peak without one; of all else it is its bytes over the memory's bandwidth and a
launch. The factors are interpolated between the sizes of the reports: they say what a program's
caches, strides and clocks add. Another machine has another baseline and the same factors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from perfmodel.base.arrays import Floats
from perfmodel.base.errors import ModelError
from perfmodel.machines.machine import Machine
from perfmodel.machines.measure.measurement import MachineMeasurement
from perfmodel.models.recorded import RecordedCall

_KERNEL_S: Final = 1.2e-6
"""Shortest kernel that does something."""
_SHARE: Final = 0.7
"""Of the peak that GEMMs reach where no grid was measured; reports correct it."""
_SHARE_MEASURED: Final = 0.9
"""The same of a peak that was measured by a GEMM of 8192: large GEMMs and convolutions of
`gpt_both` and `resnet34_both` reach 0.88 to 0.93 of it."""
_HALF_AT_FLOPS: Final = 2e9
"""FLOPs of a GEMM at which a GPU is half as fast as at large ones, where no grid was measured."""
_ATTENTION_SHARE: Final = 0.45
_ATTENTION_POWERS: Final = (1.0, 2.0, 1.0)
_NEAREST: Final = 12
_RIDGE: Final = 0.1
_REACH: Final = 0.35
"""Factor in a size (as a logarithm) over which a residual counts."""
_FORGOTTEN: Final = 2.0
"""Distance in sizes (as a logarithm) at which half of a factor counts: what small GEMMs add to the
grid's time large ones do not."""
_UNITS: Final = {
    "float8": "float8_tensor", "bfloat16": "bfloat16_tensor", "float16": "float16_tensor",
    "tf32": "tf32_tensor", "float32": "float32", "float64": "float64",
}  # fmt: skip


@dataclass(frozen=True)
class Grid:
    """Seconds over shapes of three sizes, interpolated between logarithms.

    Attributes
    ----------
    sizes : floats, shape (n, 3)
        Logarithms.
    seconds : floats, shape (n,)
        Logarithms.
    powers : tuple of float
        Of each size in the work: (1, 1, 1) of a GEMM, (1, 2, 1) of attention, whose scores grow
        with the square of the sequence.
    """

    sizes: Floats
    seconds: Floats
    powers: tuple[float, float, float] = (1.0, 1.0, 1.0)

    @classmethod
    def of(
        cls,
        shapes: Sequence[tuple[int, int, int]],
        seconds: Sequence[float],
        powers: tuple[float, float, float] = (1.0, 1.0, 1.0),
    ) -> Grid:
        """Return a grid of shapes and seconds."""
        return cls(np.log(np.array(shapes, float)), np.log(np.array(seconds)), powers)

    def at(self, shape: tuple[int, int, int]) -> float:
        """Seconds of a shape.

        The logarithm of the rate (work over seconds) is interpolated in a local plane through the
        nearest points: within 4 to 5 % of GEMMs whose rows or widths were left out of a grid. Below
        the grid the time stays, above it the rate does.
        """
        x = np.log(np.array(shape, float))
        distance = np.sqrt(((self.sizes - x) ** 2).sum(axis=1))
        if distance.min() < 1e-9:
            return float(np.exp(self.seconds[distance.argmin()]))
        inside = np.clip(x, self.sizes.min(axis=0), self.sizes.max(axis=0))
        distance = np.sqrt(((self.sizes - inside) ** 2).sum(axis=1))
        near = np.argsort(distance)[:_NEAREST]
        powers = np.array(self.powers)
        work = self.sizes[near] @ powers
        weight = 1 / (distance[near] ** 2 + 0.02)
        slow = self.seconds[near] - work
        rows = np.column_stack([np.ones(len(near)), self.sizes[near] - inside])
        ridge = np.diag([0.0, _RIDGE, _RIDGE, _RIDGE])
        normal = (rows * weight[:, None]).T @ rows + ridge * weight.mean()
        found = np.linalg.solve(normal, (rows * weight[:, None]).T @ slow)
        more = (inside + np.maximum(x - inside, 0.0)) @ powers
        return float(np.exp(found[0] + more))


@dataclass(frozen=True)
class Baseline:
    """Times of a machine's calls before reports correct them.

    Attributes
    ----------
    machine : Machine
    gemms : mapping
        Grids by data type and layout.
    attention : mapping
        Grids by data type and phase.
    """

    machine: Machine
    gemms: Mapping[tuple[str, str], Grid]
    attention: Mapping[tuple[str, str], Grid]

    @classmethod
    def of(cls, machine: Machine, measured: MachineMeasurement | None) -> Baseline:
        """Take the grids of a machine's file, if it has any."""
        gemms: dict[tuple[str, str], Grid] = {}
        attention: dict[tuple[str, str], Grid] = {}
        for p in measured.products if measured else ():
            if p.name == "linear":
                shapes = list(zip(p.m, p.n, p.k, strict=True))
                gemms[p.dtype, p.layout] = Grid.of(shapes, p.median_s)
        for a in measured.attention if measured else ():
            shapes = list(zip(a.heads, a.length, a.size, strict=True))
            attention[a.dtype, a.phase] = Grid.of(shapes, a.median_s, _ATTENTION_POWERS)
        return cls(machine, gemms, attention)

    @classmethod
    def like(cls, machine: Machine, measured: MachineMeasurement) -> Baseline:
        """Scale another GPU's grids by the peaks of both machines, for a GPU without a grid.

        What a shape's share of the peak is carries over between GPUs of one kind (S. Lee et al.,
        NeuSight, ASPLOS 2025, section 4).
        """
        other = cls.of(measured.machine, measured)
        sheet = measured.machine.sheet if machine.basis == "data sheet" else measured.machine
        there = cls(sheet or measured.machine, {}, {})
        here = cls(machine, {}, {})
        gemms, attention = (
            {
                key: replace(grid, seconds=grid.seconds + math.log(there._peak(key[0])
                                                                   / here._peak(key[0])))
                for key, grid in grids.items()
                if here.multiplies(key[0])
            }
            for grids in (other.gemms, other.attention)
        )  # fmt: skip
        return cls(machine, gemms, attention)

    def seconds(self, call: RecordedCall) -> float:
        """Seconds of a call."""
        if call.kind == "gemm" and call.shape:
            return self._gemm(call)
        if call.kind == "attention" and call.shape:
            grid = self.attention.get((call.dtype, call.phase))
            if grid:
                return grid.at(call.shape)
            peak = self._peak(call.dtype)
            return call.flops / (_ATTENTION_SHARE * peak) + 4e-6
        if call.flops and call.dtype:  # a convolution
            return max(self.memory_s(call.bytes), self._rate_s(call))
        return self.memory_s(call.bytes)

    def _rate_s(self, call: RecordedCall) -> float:
        """Seconds at the share of the peak that GEMMs reach."""
        share = _SHARE_MEASURED if self.machine.basis == "measured" else _SHARE
        return (call.flops + _HALF_AT_FLOPS) / (share * self._peak(call.dtype)) + _KERNEL_S

    def _gemm(self, call: RecordedCall) -> float:
        assert call.shape is not None
        layout = call.layout or ("nt" if call.phase == "forward" else "nn")
        grid = self.gemms.get((call.dtype, layout))
        if grid:
            return grid.at(call.shape)
        return self._rate_s(call)

    def _peak(self, dtype: str) -> float:
        """Return the peak in a data type.

        Where it was not measured, it is the share of the data sheet's that others reach.

        Raises
        ------
        ModelError
            If the machine has none.
        """
        unit, peaks = _UNITS.get(dtype, ""), self.machine.peak_flops_per_s
        if unit in peaks:
            return peaks[unit]
        sheet = {} if self.machine.sheet is None else self.machine.sheet.peak_flops_per_s
        reached = [peaks[name] / sheet[name] for name in peaks if name in sheet]
        if unit in sheet and reached:
            return sheet[unit] * sum(reached) / len(reached)
        if dtype:
            raise ModelError(
                f"expected a data type that {self.machine.name} has a peak for; got {dtype}; give "
                f"another one by --dtype, such as {' or '.join(self._types()[:2])}"
            )
        return peaks.get("float32", 1e13)

    def _types(self) -> list[str]:
        """Data types that the machine has a peak for."""
        sheet = self.machine.sheet.peak_flops_per_s if self.machine.sheet else {}
        peaks = self.machine.peak_flops_per_s.keys() | sheet.keys()
        return [dtype for dtype, unit in _UNITS.items() if unit in peaks]

    def multiplies(self, dtype: str) -> bool:
        """Whether the machine has a peak for a data type."""
        return dtype in self._types()

    def moving_s(self, moved: float) -> float:
        """Bytes over the bandwidth of memory."""
        return moved / self.machine.bandwidth_bytes_per_s.get("hbm", 1e12)

    def memory_s(self, moved: float) -> float:
        """Bytes over the bandwidth, and a launch."""
        return _KERNEL_S + self.moving_s(moved)


@dataclass(frozen=True)
class Factors:
    """Measured over baseline seconds of calls of one kind, by their sizes.

    Attributes
    ----------
    sizes : floats, shape (n, k)
        Logarithms: of a GEMM or attention the shape, of others the bytes.
    factor : floats, shape (n,)
        Logarithms.
    """

    sizes: Floats
    factor: Floats

    def at(self, sizes: Floats) -> float:
        """Factor at some sizes."""
        distance = np.sqrt(((self.sizes - sizes) ** 2).sum(axis=1))
        weight = 1 / (distance**2 + _REACH**2 * 0.04)
        factor = float((weight * self.factor).sum() / weight.sum()) * _kept(float(distance.min()))
        return math.exp(factor)

    def along(self, size: float) -> float:
        """Factor at a number of bytes, between the neighbours."""
        order = np.argsort(self.sizes[:, 0])
        x, y = self.sizes[order, 0], self.factor[order]
        return float(np.exp(np.interp(size, x, y)))


def _kept(distance: float) -> float:
    """Share of a factor's logarithm that counts so far from the sizes that it was recorded at."""
    return 1.0 / (1.0 + (distance / _FORGOTTEN) ** 2)


def _place(call: RecordedCall) -> Floats:
    if call.kind in ("gemm", "attention") and call.shape:
        return np.array([math.log(n) for n in call.shape])
    return np.array([math.log(max(call.bytes, 1.0))])


def _group(call: RecordedCall) -> tuple[str, ...]:
    if call.kind == "gemm":
        return call.name, call.dtype, call.layout or call.phase
    return call.name, call.phase, call.dtype


@dataclass(frozen=True)
class Timer:
    """GPU seconds of calls: a baseline and the factors of reports.

    Attributes
    ----------
    baseline : Baseline
        Of the machine that is predicted.
    factors : mapping
        By group of calls.
    recorded : Baseline, optional
        Of the machine that ran the reports, where another one is predicted.
    """

    baseline: Baseline
    factors: Mapping[tuple[str, ...], Factors]
    recorded: Baseline | None = None

    def seconds(self, call: RecordedCall, recorded: RecordedCall | None = None) -> float:
        """Seconds of one call.

        A convolution has more sizes than any factor is interpolated over: its factor is that of the
        `recorded` call which it is made of.
        """
        base = self.baseline.seconds(call)
        if call.flops and call.shape is None and recorded is not None and recorded.gpu_s > 0:
            there = (self.recorded or self.baseline).seconds(recorded)
            far = abs(math.log(call.flops / recorded.flops)) if recorded.flops else 0.0
            return float(base * (recorded.gpu_s / there) ** _kept(far))
        found = self.factors.get(_group(call))
        if found is None:
            return base
        place = _place(call)
        factor = found.along(float(place[0])) if len(place) == 1 else found.at(place)
        if self.recorded is not None and len(place) == 1:
            there = self.recorded.memory_s(call.bytes) * factor
            moving = min(self.recorded.moving_s(call.bytes), there)
            longer = self.baseline.moving_s(call.bytes) / self.recorded.moving_s(call.bytes or 1.0)
            return there - moving + moving * longer
        return base * factor


def factors_of(calls: Sequence[RecordedCall], baseline: Baseline) -> dict[tuple[str, ...], Factors]:
    """Compare the calls of reports with the baseline of the machine that ran them."""
    rows: dict[tuple[str, ...], list[tuple[Floats, float]]] = {}
    for call in calls:
        base = baseline.seconds(call)
        if call.gpu_s > 0:
            one = (_place(call), math.log(call.gpu_s / base))
            rows.setdefault(_group(call), []).append(one)
    found = {}
    for group, pairs in rows.items():
        merged: dict[tuple[float, ...], list[float]] = {}
        for place, factor in pairs:
            merged.setdefault(tuple(np.round(place, 2)), []).append(factor)
        places = np.array([*merged])
        found[group] = Factors(places, np.array([float(np.mean(f)) for f in merged.values()]))
    return found
