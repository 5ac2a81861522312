"""Prediction: a model calibrated on a few reports, and what other configurations would take."""

from __future__ import annotations

from perfmodel.predict import alone, micro
from perfmodel.predict.alone import Alone
from perfmodel.predict.calibrate import calibrate
from perfmodel.predict.case import Case, mlp_case, own_case
from perfmodel.predict.model import Model
from perfmodel.predict.model_file import as_text, load, save
from perfmodel.predict.observe import Observation, observe
from perfmodel.predict.observe_own import observe_own
from perfmodel.predict.predict import Phase, Prediction, predict

__all__ = [
    "Alone", "Case", "Model", "Observation", "Phase", "Prediction", "alone", "as_text", "calibrate",
    "load", "micro", "mlp_case", "observe", "observe_own", "own_case", "predict", "save",
]  # fmt: skip
