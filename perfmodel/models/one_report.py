"""A step of other sizes from one report: its calls with new sizes, in its order, timed anew.

Every call keeps what the report says of it: the host's time before it without the profiler, whether
the host waits for the GPU there, and how much longer its kernels take than the GPU's grid of GEMMs
and attention, or its bytes, say. The host's times are of this host, and per call, so that no cost
of a launch has to be told apart from a cost of a step. What one report cannot say has a usual value
with its spread, in `usual.toml`.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any, Final

from perfmodel.base.errors import ModelError
from perfmodel.models.hosts import BETWEEN_HOSTS
from perfmodel.models.operator_times import Baseline, Timer, factors_of
from perfmodel.models.operators import (
    CallAt,
    OperatorModel,
    OperatorPrediction,
    PredictedStep,
    Wire,
    computes,
)
from perfmodel.models.recorded import RecordedStep
from perfmodel.models.roles import Role, Roles
from perfmodel.models.structure import Structure

_DTYPES: Final = ("gemm", "attention")
"""Kinds of calls whose time another data type changes."""


@dataclass(frozen=True, slots=True)
class Changes:
    """Changes besides the sizes.

    Attributes
    ----------
    machine : Baseline or None
        Another GPU.
    dtype : str or None
        Data type of GEMMs and attention.
    graphs : bool
        Whether the step is replayed as a CUDA graph: the host launches once.
    """

    machine: Baseline | None = None
    dtype: str | None = None
    graphs: bool = False


@dataclass(frozen=True, slots=True)
class ReportPrediction:
    """A step of other sizes, by one report.

    Attributes
    ----------
    step : OperatorPrediction
    recorded : OperatorPrediction
        The same for the sizes as recorded.
    roles : tuple of Role
    sizes : mapping
        Of the predicted step, by role.
    """

    step: OperatorPrediction
    recorded: OperatorPrediction
    roles: tuple[Role, ...]
    sizes: Mapping[str, int]


@cache
def usual() -> Mapping[str, Any]:
    """Return what one report cannot say, with its spread; sources are in the file."""
    text = files("perfmodel.models").joinpath("usual.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def predict_report(
    step: RecordedStep,
    roles: Roles,
    given: Mapping[str, int],
    baseline: Baseline,
    call_at: CallAt,
    changes: Changes,
) -> ReportPrediction:
    """Predict a step of a report's program with other sizes, ranks, GPU or data type.

    Parameters
    ----------
    step : RecordedStep
        With sizes.
    roles : Roles
        Of the step.
    given : mapping
        Sizes to change by role; 'p', the ranks, stays without.
    baseline : Baseline
        Of the GPU that ran the report.
    call_at : callable
    changes : Changes

    Raises
    ------
    ModelError
        If the sizes fit no program of this kind, or the host's times are not known.
    """
    if not step.host_s:
        raise ModelError(
            f"{step.source}: expected a report with calls to CUDA, which say what the host takes; "
            f"got none; record with nsys profile -t cuda,nvtx"
        )
    sizes, notes = roles.sizes_at(given)
    ranks = given.get("p", step.ranks)
    depth = "n_layer" if "n_layer" in sizes else ""
    old = replace(step, symbols={**roles.values, "p": step.ranks})
    structure = Structure(old, depth, roles.terms)
    model = _model(old, baseline, call_at)
    recorded = _predicted(model, structure, old.symbols, call_at, Changes(), ())
    found = _predicted(model, structure, {**sizes, "p": ranks}, call_at, changes, notes)
    return ReportPrediction(found, recorded, roles.found, {**sizes, "p": ranks})


def _model(step: RecordedStep, baseline: Baseline, call_at: CallAt) -> OperatorModel:
    said = usual()
    calls = [call_at(c, c.sizes) for c in step.calls if computes(c)]
    wires = {
        name: Wire(w["alpha_s"], w["beta_s_per_byte"]) for name, w in said["collectives"].items()
    }
    return OperatorModel(
        program="",
        gpu=step.gpu,
        steps=(step,),
        baseline=baseline,
        factors=factors_of(calls, baseline),
        host={},
        wires=wires,
        contention=said["ranks"]["contention"],
        gap_s=step.gap_s or said["gpu"]["gap_s"],
        gpu_noise=said["gpu"]["noise"],
        host_noise=said["host"]["noise"],
    )


def _predicted(
    model: OperatorModel,
    structure: Structure,
    values: Mapping[str, int],
    call_at: CallAt,
    changes: Changes,
    notes: tuple[str, ...],
) -> OperatorPrediction:
    said, step = usual(), structure.step
    if changes.dtype is not None:
        calls = tuple(
            replace(c, dtype=changes.dtype) if c.kind in _DTYPES else c for c in step.calls
        )
        structure = replace(structure, step=replace(step, calls=calls))
    more_ranks = values["p"] > 1 and step.ranks == 1
    scale = said["ranks"]["host"] if more_ranks else 1.0
    noise = said["ranks"]["noise"] * abs(math.log2(values["p"] / step.ranks))
    if changes.graphs:
        launches = sum(structure.step.calls[i].launches for i in step.order)
        scale = said["graphs"]["launch_s"] / max(sum(step.host_s), 1e-9)
        notes += (f"a CUDA graph launches the step's {launches} operations at once",)
    timer = Timer(changes.machine or model.baseline, model.factors, _recorded(model, changes))
    made = PredictedStep(model, structure, values, timer, call_at, scale)
    other = changes.machine is not None
    made.host_error = math.hypot(BETWEEN_HOSTS[0] if other else 0.0, noise)
    made.gpu_error = math.hypot(said["gpu"]["other"] if other else 0.0, noise)
    found = made.predicted((step,))
    return replace(found, warnings=(*notes, *found.warnings))


def _recorded(model: OperatorModel, changes: Changes) -> Baseline | None:
    return model.baseline if changes.machine is not None else None
