"""One GPU, as a report, a driver or a user describes it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as the report describes it; None where the report does not say."""

    id: int
    name: str
    sm_count: int | None
    clock_hz: int | None
    memory_bandwidth_bytes_per_s: int | None
    l2_bytes: int | None
    memory_bytes: int | None
    compute_capability: tuple[int, int] | None
    uuid: str | None
