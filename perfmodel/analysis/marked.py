"""Launches parted at a marker kernel: phases of a program that runs it between them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from perfmodel.readers.ncu import Launch

MARKER: Final = "spin_kernel"
"""`torch.cuda._sleep`: benchmarks.resnet launches it before every phase, and behind the last."""
PHASES: Final = ("forward", "backward", "step")


def between(launches: Iterable[Launch]) -> list[list[Launch]]:
    """Part the launches at the markers; each marker begins one part, what is before them is none.

    Examples
    --------
    >>> between([])
    []
    """
    parts: list[list[Launch]] = []
    for launch in launches:
        if MARKER in launch.kernel:
            parts.append([])
        elif parts:
            parts[-1].append(launch)
    return parts
