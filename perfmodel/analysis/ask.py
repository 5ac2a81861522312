"""Asks: the reports of one run, and perhaps a model -> everything that `whatif` says."""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.analysis.analyze import analyze_run
from perfmodel.analysis.evidence import Evidence, draws, evidence, percentiles
from perfmodel.analysis.predict import predict
from perfmodel.analysis.runs import group, time_runs
from perfmodel.analysis.savings import Judge
from perfmodel.analysis.whatif_result import WhatIf
from perfmodel.base.errors import ModelError
from perfmodel.base.units import si
from perfmodel.models.model import Model
from perfmodel.programs.mlp.observe import observe
from perfmodel.programs.mlp.paper import on_paper
from perfmodel.programs.mlp.question import answer
from perfmodel.programs.program import Options
from perfmodel.readers.trace import Trace


def ask(traces: Sequence[Trace], model: Model | None = None) -> WhatIf:
    """Say what each change of the ladder would save of one run's batch.

    Parameters
    ----------
    traces : sequence of Trace
        The reports of one run: one, or one per rank.
    model : Model, optional
        Calibrated; without one, savings are bounds by the report alone.

    Raises
    ------
    ModelError
        If the reports are of several runs, of a workload of the user's own, have no configuration
        mark, or the structure of the run is not modelled.
    """
    found = group(traces)
    if len(found) != 1:
        raise ModelError(
            f"wanted the report of one run (or those of its ranks); found {len(found)} runs: "
            f"{', '.join(label for label, _ in found)}; give one of them"
        )
    if model is not None and model.workload != "mlp":
        raise ModelError(
            f"wanted a model of the trainer's MLP, whose changes these are; found one of "
            f"{model.workload!r}; calibrate on reports of the trainer, or leave --model out"
        )
    label, members = found[0]
    (run,) = time_runs(members, Options())
    observed = observe(run)
    analysis, full = (
        analyze_run(run, Options(counting=counting)) for counting in ("document", "full")
    )
    mine = evidence(observed, analysis)
    judge = Judge(mine, draws(run, mine, observed), model)
    changes, later = judge.all_of(mine.case)
    low, high = percentiles([drawn.batch_s for drawn in judge.resampled])
    return WhatIf(
        label=label,
        case=mine.case,
        batch_s=mine.batch_s,
        low_s=low,
        high_s=high,
        changes=changes,
        later=later,
        path=judge.path(),
        parallel=on_paper(full, mine.case, model),
        answer=answer(analysis, mine, judge.batch),
        warnings=_warnings(model, mine),
    )


def _warnings(model: Model | None, found: Evidence) -> tuple[str, ...]:
    if model is None:
        return ()
    try:
        said = predict(model, found.case)
    except ModelError as error:
        return (f"the model does not tell this report's own batch, so all are bounds: {error}",)
    warnings = []
    if said.extrapolated:
        beyond = ", ".join(said.extrapolated)
        warnings.append(f"the report's own {beyond} is beyond the calibration's runs")
    if not said.low_s <= found.batch_s <= said.high_s:
        warnings.append(
            f"the model predicts {si(said.batch_s, 's')} for this report's own batch of "
            f"{si(found.batch_s, 's')}, which is outside its 90 % interval: its relative changes "
            f"may not be this machine's; calibrate on reports of it"
        )
    return tuple(warnings)
