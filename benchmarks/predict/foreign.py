"""A foreign workload: a PyTorch DDP program, calibrated on half of its sizes, predicts the rest."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from benchmarks.common import folders
from perfmodel.base.errors import ModelError
from perfmodel.models.calibrate import calibrate
from perfmodel.models.part import Observation
from perfmodel.models.predict import predict
from perfmodel.programs.own import observe_own
from perfmodel.readers import read
from perfmodel.timing.run import time_run
from perfmodel.workloads import load

REPORTS = folders.PROFILES / "ddp"
WORKLOAD = folders.ROOT / "perfmodel" / "workloads" / "examples" / "pytorch_mlp.toml"
USED = ((256, 3000), (512, 12000), (1024, 24000), (4096, 6000), (4096, 24000))
"""H and B of the calibration's reports; the other five are predicted."""


def observations() -> list[Observation]:
    """One observation per report; kernels belong to the range that runs when they are launched."""
    workload = load(WORKLOAD)
    found = []
    for row in json.loads((REPORTS / "index.json").read_text(encoding="utf-8")):
        trace = read(REPORTS / row["file"])
        run = time_run([trace], workload.batch_range, label=row["file"], by_time=True)
        found.append(observe_own(run, workload, {}))
    return found


def foreign() -> dict[str, Any]:
    """Calibrate on `USED`, predict the rest; and once more with each size left out."""
    pool = observations()
    training = [o for o in pool if _size(o) in USED]
    unseen = [o for o in pool if _size(o) not in USED]
    rows = _rows(training, unseen)
    left_out = [row for o in pool for row in _rows([x for x in pool if x is not o], [o])]
    return {
        "workload": str(WORKLOAD.relative_to(folders.ROOT)), "used": [list(size) for size in USED],
        "rows": rows, "mean": _mean(rows), "leave_one_out": left_out,
        "leave_one_out_mean": _mean(left_out),
    }  # fmt: skip


def _size(o: Observation) -> tuple[int, int]:
    return o.case.sizes["H"], o.case.sizes["B"]


def _mean(rows: list[dict[str, Any]]) -> float | None:
    errors = [abs(r["error"]) for r in rows if r["error"] is not None]
    return float(np.mean(errors)) if errors else None


def _rows(training: list[Observation], unseen: list[Observation]) -> list[dict[str, Any]]:
    model = calibrate(training)
    rows = []
    for o in unseen:
        h, b = _size(o)
        row: dict[str, Any] = {"H": h, "B": b, "measured_s": o.batch_s}
        try:
            said = predict(model, o.case)
        except ModelError as error:
            rows.append(row | {"predicted_s": None, "error": None, "refused": str(error)})
            continue
        rows.append(
            row | {"predicted_s": said.batch_s, "low_s": said.low_s, "high_s": said.high_s,
                   "error": said.batch_s / o.batch_s - 1}
        )  # fmt: skip
    return rows
