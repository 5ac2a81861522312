"""Floors: what a changed batch takes at least, by one report, the structure and the ceilings.

A part's time is a sum of non-negative rates times amounts (`perfmodel.programs.mlp.parts`). Where a
change leaves the rates as they are, the part takes at least the smallest ratio of its amounts, at
most all of its time; where it does not (other kernels, memory of another kind, another library),
the report tells nothing, and only the machine's ceilings are left.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from perfmodel.analysis.evidence import GRAPH, WAITS, Evidence, structure
from perfmodel.machines.machine import Machine
from perfmodel.models.part import Part, route
from perfmodel.programs.mlp.case import Case

_PEAKS: Final = {"ieee": "float32", "tf32": "tf32_tensor", "tf32x3": "tf32x2_tensor"}
"""Of float32; two TF32 products do where one factor is exact. Double precision has none here:
cuBLAS may multiply it on tensor cores, whose rate is not the datasheet's ordinary one."""
_COPIES: Final = ("copy images", "copy out", "copy back")
_PRODUCTS: Final = ("wide products", "thin products", "element-wise", "fused steps")
_LAUNCHES: Final = ("launch forward", "launch backward", "launch step", "between")
_CUBLAS_WIDE: Final = ("cublas", "thin")
"""Kernels whose wide products are cuBLAS's."""


@dataclass(frozen=True, slots=True)
class Floor:
    """The least that a changed batch takes, in seconds, and its parts; per batch of the change."""

    batch_s: float
    parts: Mapping[str, float]


def least(found: Evidence, after: Case) -> Floor:
    """Return the least time of a batch of the changed case.

    Raises
    ------
    ModelError
        If the structure of such a run is not modelled.
    """
    floors = _Floors(found, after, structure(found.case), structure(after))
    if route(after) == "blocking":
        return floors.blocking()
    return floors.queued()


@dataclass(frozen=True)
class _Floors:
    """The parts before and after, and what is known of the former."""

    found: Evidence
    after: Case
    old: Mapping[str, Part]
    new: Mapping[str, Part]

    def blocking(self) -> Floor:
        """Add up the host's chain; the GPU's products are beside the launches."""
        parts = {p.name: self.part(p) for p in self.new.values()}
        if "pipeline" in self.new and "pipeline" not in self.old:
            parts["pipeline"] = self._pipeline()
        parts[WAITS] = self._waits(parts)
        gpu = [p.name for p in self.new.values() if p.clock == "gpu"]
        return Floor(sum(parts.values()) - sum(parts[name] for name in gpu), parts)

    def queued(self) -> Floor:
        """Take the slower of host and GPU, as both work side by side."""
        host = {p.name: self.part(p) for p in self.new.values() if p.clock == "host"}
        if route(self.after) == "replayed":  # one launch instead of all
            host = {}
        gpu = {p.name: self.part(p) for p in self.new.values() if p.clock == "gpu"}
        if self.after.settings["overlap"] == "yes" and "all-reduce" in gpu:
            gpu["all-reduce"] *= _of_the_first_layer(self.after)
        gpu["gaps"] = self._gaps()
        if GRAPH in self.found.seconds:  # what no name tells is in the rest
            unnamed = [n for n in gpu if n in _PRODUCTS and n not in self.found.seconds]
            gpu[GRAPH] = max(self._rest(), sum(gpu.pop(name) for name in unnamed))
        return Floor(max(sum(host.values()), sum(gpu.values())), {**host, **gpu})

    def part(self, new: Part) -> float:
        """Return the least of one part."""
        old = self.old.get(new.name)
        seconds = self.found.seconds.get(new.name)
        limit = self._limit(new)
        if old is None or seconds is None or not self._same_rates(old, new):
            return limit
        shared = [new.amounts[k] / v for k, v in old.amounts.items() if v > 0 and k in new.amounts]
        ratio = min([*shared, 1.0]) if shared else 0.0  # more work takes no less time
        if new.name == "all-reduce" and old.group.startswith("MPI") and ratio < 1:
            fewer = new.amounts["messages"] < old.amounts["messages"]
            kept = self.found.largest if fewer else 0.0
            grown = min(new.amounts["bytes"] / old.amounts["bytes"], 1.0)
            return seconds * max(ratio, kept * grown)
        floor = ratio * seconds
        if new.name in _COPIES:  # what is not latency takes its bytes over the link
            left = new.amounts["bytes"] - ratio * old.amounts["bytes"]
            floor += max(left, 0.0) * self._per_byte("pcie")
        if new.name == "pipeline" and self.after.settings["overlap"] == "yes":
            floor *= _of_the_first_layer(self.after)
        return max(floor, limit)

    def _same_rates(self, old: Part, new: Part) -> bool:
        before, after = self.found.case.settings, self.after.settings
        if old.key == new.key:
            return True
        if new.name == "wide products":
            alike = {before["gemm"], after["gemm"]} <= set(_CUBLAS_WIDE)
            return alike and before["math"] == after["math"]
        # the same kernels, launched on the same route
        same = all(before[name] == after[name] for name in ("gemm", "sync"))
        return new.name in _LAUNCHES and same and route(self.found.case) == route(self.after)

    def _limit(self, new: Part) -> float:
        """Return what the machine's ceilings allow; 0 where none is known."""
        if new.name == "wide products":
            machine, math = self.found.machine, self.after.settings["math"]
            known = machine.peak_flops_per_s if machine else {}
            peak = known.get(_PEAKS[math]) if self.after.sizes["b"] == 4 else None
            return new.amounts["flops"] / peak if peak else 0.0
        if new.name in _COPIES:
            return new.amounts["bytes"] * self._per_byte("pcie")
        if new.clock == "gpu" and "bytes" in new.amounts:  # the data sheet counts both directions
            return new.amounts["bytes"] * 2 * self._per_byte("nvlink")
        return 0.0

    def _per_byte(self, link: str) -> float:
        machine: Machine | None = self.found.machine
        rate = machine.bandwidth_bytes_per_s.get(link) if machine else None
        return 1 / rate if rate else 0.0

    def _pipeline(self) -> float:
        """Return the largest of the three stages: they run side by side."""
        flat = {**self.after.settings, "transport": "host-flat", "overlap": "no"}
        stages = structure(Case(self.after.sizes, flat))
        names = ("copy out", "all-reduce", "copy back")
        return max(self.part(stages[name]) for name in names if name in stages)

    def _products(self, parts: Mapping[str, Part]) -> float:
        """Return the products' time on the GPU: measured for the old parts, least for the new."""
        if parts is self.old:
            return sum(self.found.seconds.get(name, 0.0) for name in _PRODUCTS if name in parts)
        return sum(self.part(parts[name]) for name in _PRODUCTS if name in parts)

    def _waits(self, host: Mapping[str, float]) -> float:
        """Return what the host still waits for the GPU's products after launching them."""
        waited = self.found.seconds.get(WAITS, 0.0)
        launched = sum(host.get(name, 0.0) for name in ("launch forward", "launch backward"))
        computed = self._products(self.new)
        before = sum(
            self.found.seconds.get(name, 0.0) for name in ("launch forward", "launch backward")
        )
        if waited > 0 and self.found.case.settings["gemm"] == self.after.settings["gemm"]:
            done = before + waited + computed - self._products(self.old)
        else:
            done = computed
        return max(done - launched, 0.0)

    def _gaps(self) -> float:
        """Return the time between kernels where neither they nor their launches change."""
        old, new = self.found.case.settings, self.after.settings
        same = all(old[k] == new[k] for k in ("gemm", "transport", "graph", "parallel"))
        return self.found.seconds.get("gaps", 0.0) if same else 0.0

    def _rest(self) -> float:
        """Return the graph's kernels that no name tells, where they stay the same ones."""
        known, old, new = self.found.seconds, self.found.case.settings, self.after.settings
        changed = {name for name in old if old[name] != new[name]}
        if "gemm" in changed or ("math" in changed and "wide products" not in known):
            return 0.0
        if "transport" in changed and "step kernels" not in known:
            return 0.0
        shares = [
            self.new[name].amounts[k] / v for name in _PRODUCTS if name in self.old
            for k, v in self.old[name].amounts.items()
        ]  # fmt: skip
        return known[GRAPH] * min([*shares, 1.0])


def _of_the_first_layer(case: Case) -> float:
    """Share of the gradients that are W1's and b1's: they are summed last."""
    z = case.sizes
    first = z["H"] * z["D"] + z["H"]
    return first / (first + z["C"] * z["H"] + z["C"])
