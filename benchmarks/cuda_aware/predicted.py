"""What a model calibrated at other hidden sizes predicts of MPI on GPU memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from benchmarks.common import folders
from perfmodel.readers import read
from perfmodel.studies.mlp.case import mlp_case
from perfmodel.studies.mlp.observe import observe
from perfmodel.studies.models.calibrate import calibrate
from perfmodel.studies.models.model import Model
from perfmodel.studies.models.predict import Prediction, predict
from perfmodel.studies.models.terms import Observation
from perfmodel.timing.run import time_run

PROFILES: Final = folders.ROOT / "profiles" / "cuda_aware"
PROFILED: Final = {"resident": "host-flat", "cuda-aware": "cuda-aware", "ring": "ring"}
"""Name of the files, transport."""
UNSEEN: Final = 512
"""The hidden size that no report of the calibration has."""
SEEN: Final = (64, 2048)
OTHERS: Final = ("H128_B1500", "H1024_B6000", "H2048_B12000", "H4096_B3000")
"""Reports of the campaign with the transport `host`, which separate the host's terms."""


def calibration() -> list[Path]:
    """Return the reports that the model is calibrated on."""
    campaign = folders.ROOT / "profiles" / "campaign"
    return [
        *(PROFILES / f"{name}_H{h}_1.sqlite.xz" for name in PROFILED for h in SEEN),
        *(campaign / f"h200x2_p2_host_float32_{name}.sqlite.xz" for name in OTHERS),
    ]


def command() -> str:
    """Return the command that calibrates on the same reports."""
    files = [
        *(f"profiles/cuda_aware/*_H{h}_1.sqlite.xz" for h in SEEN),
        f"profiles/campaign/h200x2_p2_host_float32_{{{','.join(OTHERS)}}}.sqlite.xz",
    ]
    return f"perfmodel study calibrate {' '.join(files)} -o mpi.json"


def observed(path: Path) -> Observation:
    """Measure the parts of a report's batch."""
    return observe(time_run([read(path)], "batch iteration", label=path.name))


def model() -> Model:
    """Calibrate on `calibration`."""
    return calibrate([observed(path) for path in calibration()])


def predicted(calibrated: Model, transport: str, hidden: int = UNSEEN) -> Prediction:
    """Predict the batch of two ranks with images on the GPU."""
    sizes: dict[str, Any] = {"D": 784, "H": hidden, "C": 10, "B": 3000, "p": 2, "b": 4}
    return predict(calibrated, mlp_case(sizes, {"transport": transport, "data_on": "device"}))
