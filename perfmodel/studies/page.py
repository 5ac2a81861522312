"""What studies say of a run on its page: predictions and changes by a calibrated model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Final

from perfmodel.analysis.result import Analysis, RunAnalysis
from perfmodel.base.errors import PerfmodelError
from perfmodel.base.units import si
from perfmodel.programs.program import Options
from perfmodel.render import html
from perfmodel.render.html.blocks import Block, Notice, Step, Study, Words, grid, percent
from perfmodel.studies.analysis.whatif import WhatIf, what_if_of, words
from perfmodel.studies.models.model import Model
from perfmodel.studies.models.predict import Prediction, predict
from perfmodel.studies.models.terms import Case
from perfmodel.studies.own import OwnCase
from perfmodel.studies.render import predict as predictions
from perfmodel.studies.render import whatif

_NO_MODEL: Final = (
    "give what perfmodel study calibrate wrote with --model; without it savings are bounds, not "
    "predictions"
)


def page(analysis: Analysis, model: Model | None = None) -> str:
    """Return the report of an analysis as one HTML text, with what studies say of its run.

    Parameters
    ----------
    analysis : Analysis
    model : Model, optional
        Calibrated; the changes of the trainer are then predicted, else bounded.
    """
    return html.page(analysis, partial(study_of, model=model))


def study_of(run: RunAnalysis, model: Model | None = None) -> Study:
    """Ask what the changes of the trainer would save of a run, and what a model predicts for it.

    Where one of them cannot be made, the page says why.
    """
    own = model if model is not None and model.workload == run.program.name else None
    what_if: WhatIf | None = None
    prediction: Prediction | str
    with suppress(PerfmodelError):  # the page shows the changes of the step's graph instead
        what_if = what_if_of(run.measured, own, Options(machine=run.machine))
    try:
        prediction = _predicted(run, what_if, model)
    except PerfmodelError as error:
        prediction = str(error)
    return Study(
        fixes=tuple(_fixes(what_if)) if what_if is not None else (),
        model=tuple(_model(run, prediction)),
        what_if=tuple(changes(what_if)) if what_if is not None else (),
    )


def _predicted(run: RunAnalysis, what_if: WhatIf | None, model: Model | None) -> Prediction | str:
    """Predict the batch of the trainer, or of the program that the model was calibrated on."""
    if model is None:
        return _NO_MODEL
    if what_if is not None and model.workload == what_if.case.workload:
        return predict(model, what_if.case)
    if model.workload != run.workload.name:
        return (
            f"the model is of the workload {model.workload!r}, and the report does not say that it "
            f"ran that"
        )
    values = {s: v for s, v in run.identity.values.items() if s in run.workload.symbols}
    return predict(model, OwnCase(run.workload.check(values), {}, run.workload))


def _fixes(what_if: WhatIf) -> Iterator[Step]:
    """What the model predicts to save most."""
    step = what_if.path[0] if what_if.path else None
    if step is None or step.source != "model":
        return
    change = next((c.change for c in what_if.changes if c.name == step.name), step.removes)
    low, high = what_if.batch_s - step.high_s, what_if.batch_s - step.low_s
    yield Step(
        change,
        f"saves {si(step.saving_s, 's')} a step ({percent(step.saving_s / what_if.batch_s)}), "
        f"90 %: {si(low, 's')} to {si(high, 's')}",
        f"predicted by the calibrated model; {step.name} removes {step.removes}",
        f"profile the trainer with {_flags(what_if, step.case)}",
    )


def _flags(what_if: WhatIf, after: Case) -> str:
    """The trainer's flags that differ between this run and the changed one."""
    found = []
    for name, value in after.settings.items():
        flag = {"sync": "--sync-ranges"}.get(name, f"--{name.replace('_', '-')}")
        if value == what_if.case.settings.get(name):
            continue
        found.append({"yes": flag, "no": f"no {flag}"}.get(value, f"{flag} {value}"))
    return " ".join(found)


def _model(run: RunAnalysis, prediction: Prediction | str) -> Iterator[Block]:
    if isinstance(prediction, str):
        yield Words("A calibrated model", (f"None predicts this step: {prediction}.",))
    else:
        yield Words("The calibrated model", (_beside(run, prediction),))
        yield grid(predictions.phases_table(prediction))


def _beside(run: RunAnalysis, prediction: Prediction) -> str:
    measured = run.batch.median.value
    inside = prediction.low_s <= measured <= prediction.high_s
    return (
        f"It predicts {si(prediction.batch_s, 's', 4)} (90 %: {si(prediction.low_s, 's')} to "
        f"{si(prediction.high_s, 's')}); measured are {si(measured, 's', 4)}, "
        f"{'inside' if inside else 'outside'} the interval, an error of "
        f"{100 * (prediction.batch_s / measured - 1):+.0f} %."
    )


def changes(what_if: WhatIf) -> Iterator[Block]:
    """Yield the changes ranked, by the model or bounded."""
    for warning in what_if.warnings:
        yield Notice("Take the predictions with care.", warning)
    yield grid(whatif.changes_table(what_if), full={"saving_s": what_if.batch_s}, plain=("share",))
    if what_if.path:
        yield grid(whatif.path_table(what_if), full={"batch_s": what_if.batch_s})
    yield grid(whatif.free_table(what_if.question), full={"batch_s": what_if.batch_s})
    if what_if.question.removed:
        yield grid(whatif.removed_table(what_if.question))
    yield Words("Ways to raise intensity and FLOP/s", tuple(words(what_if)), listed=True)
