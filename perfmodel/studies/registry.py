"""The programs whose steps have a calibrated model, each with its model.

General code does not know which these are, nor that there are such models: what needs one asks
here. A model of another kind of program is a line of `MODELS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from perfmodel.programs.program import Options, Program
from perfmodel.studies.calibrated import Calibrated, not_modelled
from perfmodel.studies.mlp.model import MLP_MODEL
from perfmodel.studies.own import OWN_MODEL
from perfmodel.timing.run import Run

MODELS: Final[Mapping[str, Calibrated]] = {"mlp": MLP_MODEL, "own": OWN_MODEL}
"""Models by `Program.name`."""


def calibrated_of(program: Program) -> Calibrated | None:
    """Return the model of a program's steps, part by part; None where nothing is known of these."""
    return MODELS.get(program.name)


def model_of_sizes(options: Options | None = None) -> Calibrated:
    """Return the model of the steps of `perfmodel.programs.program_of_sizes`."""
    return MLP_MODEL if options is None or options.workload is None else OWN_MODEL


def model_of(program: Program, run: Run) -> Calibrated:
    """Return the model of a run's steps.

    Raises
    ------
    UnknownPartsError
        If its program has none.
    """
    model = calibrated_of(program)
    if model is None:
        raise not_modelled(run)
    return model
