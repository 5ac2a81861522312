"""Times batches before a profiler records them, and lets the recording begin."""

from __future__ import annotations

import statistics
import time
from typing import Any, Final

from trainer.backends.base import Backend
from trainer.config import Config
from trainer.data import Dataset
from trainer.mpi import Communicator
from trainer.train import Session

CAPTURE: Final = "capture"
"""Range of the domain perfmodel at which ``nsys profile --capture-range=nvtx`` begins to record."""
MARK_KEY: Final = "perfmodel_recorder"
_DOMAIN: Final = "perfmodel"
_WARMUP: Final = 5
_ROUND: Final = 5
_PROBES: Final = 100
_STARTS_S: Final = 0.5
"""Time that nsys is given to begin: 0.2 s were enough on a busy host of two cores."""


def time_first(
    config: Config, comm: Communicator, dataset: Dataset | None, backend: Backend, batches: int
) -> dict[str, Any]:
    """Time batches of a run of its own, on all ranks (collective).

    Returns
    -------
    dict
        `step_s`, `low_s`, `high_s`: median, least and most seconds of a batch, of rounds of five
        between which the host waits for the device; `steps`.
    """
    session = Session(config, comm, dataset, backend)
    session.prepare()
    session.run_batches(_WARMUP)
    rounds = []
    for _ in range(-(-batches // _ROUND)):
        session.synchronize()
        comm.barrier()
        start = time.perf_counter()
        session.run_batches(_ROUND)
        session.synchronize()
        rounds.append((time.perf_counter() - start) / _ROUND)
    return {"step_s": statistics.median(rounds), "low_s": min(rounds), "high_s": max(rounds),
            "steps": len(rounds) * _ROUND}  # fmt: skip


def begin_recording(comm: Communicator, timed: dict[str, Any]) -> dict[str, Any]:
    """Begin to record on all ranks, and return what the mark says (collective)."""
    before = _range_seconds()
    comm.barrier()
    _range_seconds(1, CAPTURE)
    time.sleep(_STARTS_S)
    comm.barrier()
    return {MARK_KEY: 1, **timed, "probe": {"range": [before, _range_seconds()]}}


def _range_seconds(count: int = _PROBES, text: str = "probe") -> float:
    """Seconds of an empty range, the mean of some; 0 without nvtx."""
    try:
        import nvtx
    except ImportError:
        return 0.0
    start = 0.0
    for i in range(-1, count):  # the first event of a process takes longer
        start = start if i else time.perf_counter()
        nvtx.push_range(text, domain=_DOMAIN)
        nvtx.pop_range(domain=_DOMAIN)
    return (time.perf_counter() - start) / count
