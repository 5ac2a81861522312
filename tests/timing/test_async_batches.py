"""How long batches take by the host's time: the numbers that are quoted, from profiles/ladder."""

from __future__ import annotations

import pytest

from benchmarks.common.folders import PROFILES
from perfmodel.readers import read
from perfmodel.timing.async_batches import time_async
from perfmodel.timing.run import time_run

LADDER = PROFILES / "ladder"
WAITING = ("document", "resident", "pinned", "prefetch", "host-flat", "chunked", "model-host")
REPLAYED = ("graph", "thin", "fused-x3", "peer-x3")
LAUNCHED = ("nccl", "model-nccl")


def ratio(name: str, launch: int) -> float:
    run = time_run([read(LADDER / f"{name}_{launch}.sqlite.xz")], "batch iteration", label=name)
    return time_async(run).ratio


@pytest.mark.parametrize(
    ("names", "launches", "least", "most"),
    [
        (WAITING, (1,), "1.000", "1.001"),
        (REPLAYED, (1, 2, 3), "4", "8"),
        (LAUNCHED, (1,), "1.0", "1.3"),
    ],
    ids=["the host waits", "CUDA graphs", "single launches"],
)
def test_quoted_ratios_are_those_of_the_reports(
    names: tuple[str, ...], launches: tuple[int, ...], least: str, most: str
) -> None:
    found = [ratio(name, launch) for name in names for launch in launches]
    digits = len(least.partition(".")[2])
    assert (f"{min(found):.{digits}f}", f"{max(found):.{digits}f}") == (least, most)
