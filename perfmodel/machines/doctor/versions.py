"""Versions: found in what programs print, compared, and which go together."""

from __future__ import annotations

import re
from typing import Final

from perfmodel.machines.doctor.check import Probe

Version = tuple[int, ...]

SHIPPED_WITH: Final[tuple[tuple[Version, Version], ...]] = (
    ((2022, 4), (12, 0)),
    ((2023, 1), (12, 1)),
    ((2023, 2), (12, 2)),
    ((2023, 3), (12, 3)),
    ((2023, 4), (12, 4)),
    ((2024, 2), (12, 5)),
    ((2024, 4), (12, 6)),
    ((2024, 6), (12, 8)),
    ((2025, 1), (12, 9)),
    ((2025, 3), (13, 0)),
    ((2025, 6), (13, 1)),
)
"""Nsight Systems and the CUDA it came with. Source: CUDA Toolkit release notes, component versions;
the last by the release notes of Nsight Systems 2025.6."""

NVTX_ASKS: Final = (0, 2, 13)
"""From here on nvtx asks by its payload extension whether a tool listens (docs/trainer.md)."""
NSYS_MISHEARS: Final = (2024, 2)
"""Up to here Nsight Systems knows another number for that extension, and says no."""
NSYS_HEARS: Final = (2025, 3)
"""From here on any nvtx was seen to be recorded."""


def parse(text: str) -> Version | None:
    """Return the first dotted number of a text as a tuple, None if there is none.

    >>> parse("NVIDIA Nsight Systems version 2024.2.3.38-242334140272v0")
    (2024, 2, 3, 38)
    """
    found = re.search(r"\d+(?:\.\d+)+", text)
    return tuple(int(part) for part in found[0].split(".")) if found else None


def shown(version: Version) -> str:
    """Return a version as text."""
    return ".".join(map(str, version))


def newest_cuda(nsys: Version) -> Version | None:
    """Return the newest CUDA that this Nsight Systems came with; None for older than 2022.4."""
    return max((cuda for since, cuda in SHIPPED_WITH if nsys[:2] >= since), default=None)


def nvtx_with_nsys(nvtx: Version, nsys: Version) -> Probe:
    """Say whether this Nsight Systems records the ranges of this nvtx."""
    found = f"nvtx {shown(nvtx)} with Nsight Systems {shown(nsys[:3])}"
    if nvtx < NVTX_ASKS or nsys[:2] >= NSYS_HEARS:
        return Probe("good", found)
    advice = "run: pip install 'nvtx==0.2.11', or install Nsight Systems 2025.3 or later"
    if nsys[:2] <= NSYS_MISHEARS:
        return Probe("broken", f"{found}: no range is recorded, without a word", advice)
    return Probe("doubtful", f"{found}: not tried together, may record no range", advice)


def driver_with_nsys(cuda: Version, nsys: Version) -> Probe:
    """Say whether the driver is newer than what this Nsight Systems knows."""
    knows = newest_cuda(nsys)
    found = f"driver for CUDA {shown(cuda[:2])}, Nsight Systems {shown(nsys[:3])}"
    if knows is None or cuda[:2] > knows:
        since = next((s for s, with_cuda in SHIPPED_WITH if with_cuda >= cuda[:2]), None)
        wanted = f"{shown(since)} or later" if since else "one as new as the driver"
        made = f"for CUDA {shown(knows)}" if knows else "before CUDA 12"
        return Probe(
            "doubtful", f"{found}, which was made {made}: reports may hold no CUDA events",
            f"install Nsight Systems {wanted}",
        )  # fmt: skip
    return Probe("good", found)
