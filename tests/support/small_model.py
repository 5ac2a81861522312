"""Makes questions of changes cheap: a small model, and few draws for the bounds.

The model is the calibrated one of two H200 with the terms of plain runs and of NCCL alone. A
change's interval takes one prediction for every coefficient: with half of the terms a question
takes half as long, and what is left out shows what a page says where the model cannot predict.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from unittest import mock

from benchmarks.common.folders import ROOT
from perfmodel.studies.mlp import bounds

MODEL: Final = ROOT / "benchmarks" / "results" / "predict_model.json"
_LEFT_OUT: Final = ("fused", "peer", "chunked", "pinned", "prefetch", "one rank", "one kernel",
                    "replay")  # fmt: skip


def small_model(folder: Path) -> Path:
    """Write the model into a folder, and return its file."""
    model = json.loads(MODEL.read_text(encoding="utf-8"))
    model["terms"] = {
        name: term
        for name, term in model["terms"].items()
        if not any(word in name for word in _LEFT_OUT)
    }
    path = folder / "model.json"
    path.write_text(json.dumps(model), encoding="utf-8")
    return path


@contextmanager
def few_draws() -> Iterator[None]:
    """Bound each change 20 times for its interval, a tenth as often."""
    with mock.patch.object(bounds, "_DRAWS", 20):
        yield
