"""Amdahl's bounds: the batch if one link or unit took no time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from perfmodel.analysis.evidence import GRAPH, WAITS, Evidence, structure
from perfmodel.models.part import route

_LAUNCHES: Final = ("launch forward", "launch backward")
GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "copy of images (PCIe)": ("copy images", "queue images"),
    "copies of gradients (PCIe)": ("copy out", "copy back"),
    "all-reduce": ("all-reduce", "sum alone", "pipeline", "peer all-reduce and step"),
    "launches on the host": (*_LAUNCHES, "launch step", "between", "replay"),
    "products": ("wide products", "thin products", "element-wise", "fused steps", GRAPH, WAITS),
    "step on the GPU": ("step kernels",),
    "gaps between kernels": ("gaps",),
}
"""Parts by link or unit."""


@dataclass(frozen=True, slots=True)
class Free:
    """Amdahl's bound: the batch if one link or unit took no time.

    `seconds` is what it takes now, hidden or not.
    """

    name: str
    seconds: float
    batch_s: float
    speedup: float
    flops_per_s: float | None


def if_free(found: Evidence, flops: float) -> Iterator[Free]:
    """Yield the bound of every link or unit that takes time; `flops` are those of a batch."""
    for name, parts in GROUPS.items():
        seconds = sum(found.seconds.get(part, 0.0) for part in parts if part != WAITS)
        if seconds <= 0:
            continue
        batch = max(without(found, parts), 0.0)
        speedup = found.batch_s / batch if batch > 0 else float("inf")
        yield Free(name, seconds, batch, speedup, flops / batch if flops and batch > 0 else None)


def without(found: Evidence, names: tuple[str, ...]) -> float:
    """Return the batch if some parts took no time: what runs beside them may then show.

    A host that waits for the GPU is done with a batch when both its launches and the products are;
    where it only queues, the slower side is the batch.
    """
    s, how, parts = found.seconds, route(found.case), structure(found.case)
    if how == "replayed":
        return found.batch_s - sum(s.get(name, 0.0) for name in names if name != "replay")
    host = {n: v for n, v in s.items() if n in parts and parts[n].clock == "host"}
    gpu = {n: v for n, v in s.items() if n == "gaps" or (n in parts and parts[n].clock == "gpu")}
    if how == "queued":
        sides = [sum(v for n, v in side.items() if n not in names) for side in (host, gpu)]
        now = max(sum(host.values()), sum(gpu.values()))
        return found.batch_s - now + max(sides)
    kept = sum(v for n, v in host.items() if n not in names)
    launched = sum(s.get(n, 0.0) for n in _LAUNCHES)
    computed = sum(v for n, v in gpu.items() if parts[n].phase == "products")
    waits = s.get(WAITS, 0.0)
    done = launched + waits if waits > 0 else min(computed, launched)
    if set(_LAUNCHES) & set(names):
        launched = sum(s.get(n, 0.0) for n in _LAUNCHES if n not in names)
    if "wide products" in names:
        done = 0.0
    return kept + max(done - launched, 0.0)
