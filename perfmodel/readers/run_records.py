"""Run records: the JSON files of `python -m trainer --record` as launches to scale."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from perfmodel.analysis.measure import Launch, settings_of
from perfmodel.base.arrays import Floats
from perfmodel.base.errors import ReportError
from perfmodel.base.escape import printable
from perfmodel.base.units import DTYPE_BYTES
from perfmodel.programs.mlp.identify import MARK_SYMBOLS

_QUEUE: Final = ("nccl", "peer", "none")
"""Transports whose batches a host on a GPU only queues: their host times tell nothing."""

_MOST_SECONDS: Final = 1e12

_MOST_BYTES: Final = 100_000_000


def launch_of_record(path: Path) -> Launch:
    """Read a run record.

    A batch is the record's median where the host waits for each, else the mean of every epoch but
    the first, which ends when the GPU is done.

    Raises
    ------
    ReportError
        If the file cannot be read, is no record, or times no batch behind the first.
    """
    where = printable(path.name)
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise ValueError(f"more than {_MOST_BYTES} bytes")
        read = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ReportError(
            f"{where}: wanted a record of python -m trainer --record FILE; found none that can be "
            f"read ({printable(str(error))[:100]}); run it again"
        ) from None
    config = _part(read, "config", where)
    timings = _part(read, "timings", where)
    sizes = {
        symbol: _whole(config.get(name), name, where)
        for symbol, name in MARK_SYMBOLS.items()
        if symbol != "p"
    }
    sizes["b"] = DTYPE_BYTES.get(str(config.get("dtype")), 4)
    return Launch(
        label=path.stem,
        source="record",
        ranks=_whole(read.get("ranks"), "ranks", where),
        sizes=sizes,
        settings=settings_of(config),
        seconds=_seconds(read, config, timings, where),
    )


def _seconds(
    read: Mapping[str, Any], config: Mapping[str, Any], timings: Mapping[str, Any], where: str
) -> Floats:
    """Median batch, or the mean batch of every epoch behind the first, shape (1, n)."""
    queues = config.get("transport") in _QUEUE and config.get("backend") != "numpy"
    if not queues:
        found = [timings.get("batch_median")]
    else:
        epochs = [e for e in read.get("epochs") or [] if isinstance(e, dict)]
        batches = _whole(timings.get("batches"), "batches", where) / max(len(epochs), 1)
        spent = [e.get("seconds") for e in epochs[1:]]
        found = [s / batches for s in spent if isinstance(s, (int, float)) and s <= _MOST_SECONDS]
    known = [s for s in found if isinstance(s, (int, float)) and 0 < s <= sys.float_info.max]
    if not known:
        wanted = "two epochs or more" if queues else "batches behind the first"
        raise ReportError(f"{where}: wanted times of {wanted}; found none; train for more epochs")
    return np.array([known])


def _part(read: Any, name: str, where: str) -> Mapping[str, Any]:
    found = read.get(name) if isinstance(read, dict) else None
    if not isinstance(found, dict):
        raise ReportError(
            f"{where}: wanted a record of python -m trainer --record FILE; found no {name!r} in "
            "it; give a record or an Nsight Systems report"
        )
    return found


def _whole(value: Any, name: str, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 2**63:
        raise ReportError(
            f"{where}: wanted a positive whole number as {name!r}; found "
            f"{printable(repr(value)[:60])}; run the trainer again"
        )
    return value
