"""What if: what every change would save of a report's batch, predicted or bounded, in order."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from perfmodel.analysis.analyze import analyze_run
from perfmodel.analysis.result import RunAnalysis
from perfmodel.analysis.runs import distinct_reports, one_run, time_one
from perfmodel.analysis.sweeps import FLAT
from perfmodel.base.arrays import Floats
from perfmodel.base.errors import ModelError
from perfmodel.base.units import si
from perfmodel.models.spread import Z90
from perfmodel.programs import program_of_run
from perfmodel.programs.program import Options
from perfmodel.readers.trace import Trace
from perfmodel.studies.analysis.question import SMOOTH, Answer, Reach, Source, answer
from perfmodel.studies.analysis.splits import Parallelisms, parallelisms
from perfmodel.studies.analysis.splits import words as words_of_splits
from perfmodel.studies.calibrated import Change
from perfmodel.studies.mlp.bounds import Evidence
from perfmodel.studies.models.model import Model
from perfmodel.studies.models.predict import predict
from perfmodel.studies.models.terms import Case, Observation
from perfmodel.studies.registry import model_of
from perfmodel.timing.run import Run, TimedReport

_USUAL: Final = Options()


@dataclass(frozen=True, slots=True)
class Step:
    """A change and what it would save of this report's batch, alone or after those before it.

    Attributes
    ----------
    name, removes : str
        As of `perfmodel.programs.program.Change`.
    case : Case
        The changed run.
    source : {'model', 'bound'}
        'model': the calibrated model's relative change of the report's own batch. 'bound': at most
        this, by the report alone.
    saving_s : float
        Per batch, of a doubled batch per as many images; of the greedy sequence against the step
        before.
    batch_s : float
        The batch after the change (of a bound: at least), per as many images as before; of the
        greedy sequence after all steps up to this one.
    low_s, high_s : float
        90 % of `saving_s`, of the greedy sequence of `batch_s`: of a prediction what the
        coefficients leave, of a bound what the report's batches leave.
    """

    name: str
    removes: str
    case: Case
    source: Source
    saving_s: float
    batch_s: float
    low_s: float
    high_s: float


@dataclass(frozen=True, slots=True)
class Saving(Step):
    """One change and what it would save alone.

    Attributes
    ----------
    change : str
        As of `perfmodel.programs.program.Change`.
    next_low_s, next_high_s : float or None
        Of a prediction: 90 % of what another launch would show, as launches differ.
    alone_s : float or None
        Of a prediction: the batch by the model alone, whatever this report took.
    phases : mapping of str to (float or None, float or None)
        Phases that change, in seconds: as they are, and then (predicted, or at least).
    exact : bool
        Whether results keep their accuracy.
    notes : tuple of str
        Why the model does not give it; what is extrapolated.
    """

    change: str
    phases: Mapping[str, tuple[float | None, float | None]]
    exact: bool
    notes: tuple[str, ...] = ()
    next_low_s: float | None = None
    next_high_s: float | None = None
    alone_s: float | None = None


@dataclass(frozen=True, slots=True)
class Later:
    """A change that others must come before, or that cannot be predicted, and why."""

    name: str
    removes: str
    why: str


@dataclass(frozen=True, slots=True)
class WhatIf:
    """Everything about one report.

    Attributes
    ----------
    label : str
    case : Case
    batch_s, low_s, high_s : float
        Median batch of the report, and 90 % by its batches.
    changes : tuple of Saving
        What the model predicts, the largest saving first, and then bounds, likewise.
    later : tuple of Later
    path : tuple of Step
        The greedy best sequence.
    model_parallel : Parallelisms or None
        Model parallelism by formula; None with one rank, or where the report has no rates.
    question : Answer
        To the assignment's Question 2.6.
    warnings : tuple of str
    """

    label: str
    case: Case
    batch_s: float
    low_s: float
    high_s: float
    changes: tuple[Saving, ...]
    later: tuple[Later, ...]
    path: tuple[Step, ...]
    model_parallel: Parallelisms | None
    question: Answer
    warnings: tuple[str, ...]


_STEP = 1e-4
"""Step of the derivative, as a share of the batch at a term's largest amount."""


@dataclass(frozen=True, slots=True)
class Effect:
    """Predicted batch of the changed case over that of the case as it is.

    Attributes
    ----------
    ratio : float
        Of the two predictions.
    sd : float
        Standard deviation of the ratio's logarithm that the coefficients leave: those that both
        predictions share move both, and count only by what they move them apart.
    before, after : mapping of str to float
        Predicted phases, in seconds.
    extrapolated : tuple of str
        Symbols of the changed case beyond the calibration's runs.
    limit : str
        What limits the batch of the changed case, by which its launches differ.
    """

    ratio: float
    sd: float
    before: Mapping[str, float]
    after: Mapping[str, float]
    extrapolated: tuple[str, ...]
    limit: str


def effect(model: Model, before: Case, after: Case) -> Effect:
    """Compare two predictions of one model.

    With T = T(c) the prediction and S_k the covariance of term k's coefficients c_k, terms being
    fitted apart, to first order

        var log(T'/T) = sum over k of g_k' S_k g_k,   g_k = dT'/dc_k / T' - dT/dc_k / T.

    Raises
    ------
    ModelError
        If the model cannot predict one of the two: says which run would.
    """
    old, new = predict(model, before), predict(model, after)
    one = gradient(model, before, old.batch_s)
    other = gradient(model, after, new.batch_s)
    variance = 0.0
    for key, term in model.terms.items():
        g = other[key] / new.batch_s - one[key] / old.batch_s
        variance += max(float(g @ term.covariance @ g), 0.0)
    return Effect(
        ratio=new.batch_s / old.batch_s,
        sd=math.sqrt(variance),
        before={p.name: p.seconds for p in old.phases},
        after={p.name: p.seconds for p in new.phases},
        extrapolated=new.extrapolated,
        limit=new.limit,
    )


def gradient(model: Model, case: Case, batch_s: float) -> dict[str, Floats]:
    """Return the derivative of the predicted batch by every coefficient, by term.

    A batch is a sum of coefficients times amounts, or the largest of several such sums: the
    difference quotient is exact but where two sums are equal.
    """
    found = {}
    for key, term in model.terms.items():
        slopes = np.zeros(len(term.amounts))
        for i, largest in enumerate(term.largest):
            step = _STEP * batch_s / max(float(largest), 1.0)
            moved = term.coefficients + step * (np.arange(len(slopes)) == i)
            terms = {**model.terms, key: replace(term, coefficients=moved)}
            slopes[i] = (predict(replace(model, terms=terms), case).batch_s - batch_s) / step
        found[key] = slopes
    return found


def percentiles(values: Sequence[float]) -> tuple[float, float]:
    """Return the middle 90 % of draws."""
    low, high = np.percentile(np.array(values), [5, 95])
    return float(low), float(high)


_WORTH: Final = 0.01
"""A step of the sequence that saves less than this share of its batch ends it."""
_SAME_S: Final = 1e-9
_MOST_STEPS: Final = 12


@dataclass(frozen=True)
class Judge:
    """A report, resampled, and perhaps a model: says what a change would save.

    Attributes
    ----------
    found : Evidence
    resampled : sequence of Evidence
        Of `Evidence.draws`.
    model : Model or None
    """

    found: Evidence
    resampled: Sequence[Evidence]
    model: Model | None = None

    def saving(self, change: Change, after: Case) -> Saving:
        """Predict a change's saving, or bound it where the model cannot predict it.

        Raises
        ------
        ModelError
            If neither can be: the structure of such a run is not modelled.
        """
        if self.model is None:
            return self.bound(change, after)
        try:
            return self.predicted(change, after)
        except ModelError as error:
            return replace(self.bound(change, after), notes=(f"no prediction: {error}",))

    def predicted(self, change: Change, after: Case) -> Saving:
        """Apply the model's relative change to the report's own batch.

        Raises
        ------
        ModelError
            If there is no model, or it cannot predict one of the two.
        """
        if self.model is None:
            raise ModelError("expected a calibrated model; got none; give --model model.json")
        said, whole = effect(self.model, self.found.case, after), self.found.batch_s
        share = _per_image(self.found.case, after)
        ratio = said.ratio * share
        # two launches, the report's and the next one, differ in the noise of both
        launches = math.hypot(said.sd, math.sqrt(2) * self.model.noise(said.limit))
        low, high = (whole * (1 - ratio * math.exp(s * Z90 * said.sd)) for s in (1, -1))
        next_low, next_high = (whole * (1 - ratio * math.exp(s * Z90 * launches)) for s in (1, -1))
        scale = whole / sum(said.before.values())
        alone = sum(said.after.values()) * share
        phases = _changed(
            {name: now * scale for name, now in said.before.items()},
            {name: then * scale * share for name, then in said.after.items()},
        )
        beyond = ", ".join(said.extrapolated)
        notes = (f"extrapolated: {beyond} beyond the calibration's runs",) if beyond else ()
        return Saving(
            change.name, change.removes, after, "model", whole * (1 - ratio), whole * ratio, low,
            high, change.change, phases, change.exact, notes, next_low, next_high, alone,
        )  # fmt: skip

    def bound(self, change: Change, after: Case) -> Saving:
        """Bound a change's saving by the report alone.

        Raises
        ------
        ModelError
            If the structure of such a run is not modelled.
        """
        share = _per_image(self.found.case, after)
        floor = self.found.least(after)
        saving = _at_most(self.found, after)
        low, high = percentiles([_at_most(drawn, after) for drawn in self.resampled] or [saving])
        parts = {name: then * share for name, then in floor.parts.items()}
        phases = _changed(self.found.seconds, parts)
        phases = {k: v for k, v in phases.items() if (v[1] or 0.0) < (v[0] or 0.0)}
        return Saving(
            change.name, change.removes, after, "bound", saving, self.found.batch_s - saving, low,
            high, change.change, phases, change.exact,
        )  # fmt: skip

    def batch(self, after: Case) -> tuple[float, Source]:
        """Return what a batch of another case takes, predicted or at least; see `saving`."""
        said = self.saving(Change(), after)
        return said.batch_s / _per_image(self.found.case, after), said.source

    def all_of(self, case: Case) -> tuple[tuple[Saving, ...], tuple[Later, ...]]:
        """Return what each change would save, ranked, and those that cannot be predicted yet."""
        ranked: list[Saving] = []
        later: list[Later] = []
        for offer in self.found.changes(case):
            try:
                if offer.case is not None:
                    ranked.append(self.saving(offer.change, offer.case))
                    continue
                why = offer.needs
            except ModelError as error:
                why = str(error)
            later.append(Later(offer.change.name, offer.change.removes, why))
        ranked.sort(key=lambda s: (s.source != "model", -s.saving_s))
        return tuple(ranked), tuple(later)

    def path(self) -> tuple[Step, ...]:
        """Climb: of the changes of program that keep accuracy, the one that saves most, repeated.

        Sizes stay. A model climbs by its predictions only; where no single one is left, two changes
        that its runs have only together are one step. Without a model each step is the least time
        left.
        """
        case: Case = self.found.case
        spent = now = self.found.batch_s
        steps: list[Step] = []
        by_model = self._known
        while len(steps) < _MOST_STEPS:
            enough = (1 - _WORTH) * spent
            best = self._best(by_model, self._exact(case), enough)
            if best is None and by_model:
                best = self._best(by_model, self._two(case), enough)
            if best is None:
                break
            change, case = best
            said = (self.predicted if by_model else self.bound)(change, case)
            steps.append(
                Step(
                    change.name, change.removes, case, said.source, spent - said.batch_s,
                    said.batch_s, max(now - said.high_s, 0.0), now - said.low_s,
                )
            )  # fmt: skip
            spent = said.batch_s
        return tuple(steps)

    def _best(
        self, by_model: bool, changes: Iterator[tuple[Change, Case]], enough: float
    ) -> tuple[Change, Case] | None:
        """Return the change after which a batch is shortest, if it takes at most `enough`."""
        found, shortest = None, enough
        for change, after in changes:
            seconds = self._quick(by_model, after)
            if seconds is not None and seconds < shortest:
                found, shortest = (change, after), seconds
        return found

    def _quick(self, by_model: bool, after: Case) -> float | None:
        """Return the batch of a changed case as `predicted` or `bound` do; None if neither does."""
        try:
            if not by_model or self.model is None:
                return self.found.batch_s - _at_most(self.found, after)
            now = predict(self.model, self.found.case).batch_s
            return self.found.batch_s * predict(self.model, after).batch_s / now
        except ModelError:
            return None

    @property
    def _known(self) -> bool:
        """Whether the model can predict the report's own case."""
        try:
            return self.model is not None and predict(self.model, self.found.case).batch_s > 0
        except ModelError:
            return False

    def _exact(self, case: Case) -> Iterator[tuple[Change, Case]]:
        """Yield the changes of program, not of size, that keep the accuracy."""
        for offer in self.found.changes(case):
            if offer.case is not None and offer.change.exact and not offer.change.doubles:
                yield offer.change, offer.case

    def _two(self, case: Case) -> Iterator[tuple[Change, Case]]:
        """Yield pairs of such changes, one after the other, as one."""
        for first, between in self._exact(case):
            for second, after in self._exact(between):
                yield Change(
                    f"{first.name} + {second.name}", f"{first.change}; {second.change}",
                    f"{first.removes}; {second.removes}",
                ), after  # fmt: skip


def _per_image(before: Case, after: Case) -> float:
    """Images of a batch before over after: times are per as many images."""
    return before.sizes["B"] / after.sizes["B"]


def _at_most(found: Evidence, after: Case) -> float:
    """Bound the saving from below, too: a bound that allows none is 0."""
    floor = found.least(after).batch_s * _per_image(found.case, after)
    saving = found.batch_s - floor
    return saving if saving > _SAME_S else 0.0


def _changed(
    before: Mapping[str, float], after: Mapping[str, float]
) -> dict[str, tuple[float | None, float | None]]:
    """Pair the phases whose time changes; None where there is no such phase."""
    pairs = {name: (before.get(name), after.get(name)) for name in {**before, **after}}
    return {n: (b, a) for n, (b, a) in pairs.items() if abs((a or 0.0) - (b or 0.0)) > _SAME_S}


def evidence(observed: Observation, analysis: RunAnalysis) -> Evidence:
    """Put together what a report gives: an observation, and the analysis of the same run."""
    busy_s = {row.label: row.gpu_busy_s or 0.0 for row in analysis.ranges}
    return model_of(analysis.program, analysis.measured).evidence(
        observed, busy_s, analysis.collectives, analysis.machine
    )


def ask(traces: Sequence[Trace], model: Model | None = None, options: Options = _USUAL) -> WhatIf:
    """Say what each change of the ladder would save of one run's batch.

    Parameters
    ----------
    traces : sequence of Trace
        The reports of one run: one, or one per rank.
    model : Model, optional
        Calibrated; without one, savings are bounds by the report alone.
    options : Options
        How the reports are measured, and whose ceilings count.

    Raises
    ------
    ModelError
        If the reports are of several runs, of a workload of the user's own, have no configuration
        mark, or the structure of the run is not modelled.
    """
    timed = [time_one(trace, options) for trace in distinct_reports(traces)]
    return ask_of_measured(timed, model, options)


def ask_of_measured(timed: Sequence[TimedReport], model: Model | None, options: Options) -> WhatIf:
    """Say what `ask` says of reports that were measured with the same options."""
    return what_if_of(one_run(timed, options), model, options)


def what_if_of(run: Run, model: Model | None = None, options: Options = _USUAL) -> WhatIf:
    """Say what each change of the ladder would save of the batch of a measured run; see `ask`."""
    observed = model_of(program_of_run(run, options), run).observe(run, options)
    if model is not None and model.workload != observed.case.workload:
        raise ModelError(
            f"expected a model of the trainer's MLP, whose changes these are; got one of "
            f"{model.workload!r}; calibrate on reports of the trainer, or leave --model out"
        )
    analysis, full = (
        analyze_run(run, replace(options, counting=counting)) for counting in ("document", "full")
    )
    mine = evidence(observed, analysis)
    judge = Judge(mine, mine.draws(run, observed), model)
    changes, later = judge.all_of(mine.case)
    low, high = percentiles([drawn.batch_s for drawn in judge.resampled])
    return WhatIf(
        label=run.label,
        case=mine.case,
        batch_s=mine.batch_s,
        low_s=low,
        high_s=high,
        changes=changes,
        later=later,
        path=judge.path(),
        model_parallel=parallelisms(full, mine.case, model),
        question=answer(analysis, mine, judge.batch),
        warnings=_warnings(model, mine),
    )


def _warnings(model: Model | None, found: Evidence) -> tuple[str, ...]:
    if model is None:
        return ()
    try:
        said = predict(model, found.case)
    except ModelError as error:
        return (f"the model does not predict this report's own batch, so all are bounds: {error}",)
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


_NEAR: Final = 1.05
"""A roof of at most this many times the measured rate needs no explanation."""


def words(said: WhatIf) -> Iterator[str]:
    """Say where the batch is on the roofline, what moves it, and what the other split would do."""
    yield from _position(said.question, said.label)
    yield from (_follows(said.question, r) for r in said.question.reach)
    if said.question.ceilings:
        far = [f"{c.name} {si(c.flops_per_s, 'FLOP/s')} ({c.factor:.3g}x)"
               for c in said.question.ceilings]  # fmt: skip
        yield f"Distance to the ceilings: {', '.join(far)}."
    if said.model_parallel is not None:
        yield from words_of_splits(said.model_parallel)


def _position(said: Answer, label: str) -> Iterator[str]:
    if said.intensity_flops_per_byte is None or said.flops_per_s is None:
        yield f"{label}: no bytes over a link or no FLOPs are known: no arithmetic intensity."
        return
    ai, ridge = said.intensity_flops_per_byte, said.ridge_flops_per_byte
    where = "the report has no rates of its own, so no ridge"
    if ridge is not None:
        side = "left of it the links bound a batch" if ai < ridge else "past it computing does"
        where = f"the ridge of its effective rates is at {ridge:,.0f}: {side}"
    yield f"Arithmetic intensity {ai:,.0f} FLOP/B at {si(said.flops_per_s, 'FLOP/s')}; {where}."
    smooth = next((c for c in said.ceilings if c.name == SMOOTH), None)
    if smooth is not None and smooth.factor > _NEAR:
        yield (
            f"That is {100 / smooth.factor:.0f} % of the smooth roof; the rest goes to what the "
            f"roof leaves out: images, launches, small kernels, waiting."
        )


def _follows(said: Answer, r: Reach) -> str:
    """Say how intensity and FLOP/s follow one symbol."""
    rise = r.flops_exponent - r.bytes_exponent
    how = "raises" if rise > FLAT else "lowers" if rise < -FLAT else "hardly changes"
    text = (
        f"{r.symbol} {how} the intensity: FLOPs go as {r.symbol}^{r.flops_exponent:.2f}, bytes as "
        f"{r.symbol}^{r.bytes_exponent:.2f}"
    )
    ai, ridge = said.intensity_flops_per_byte, said.ridge_flops_per_byte
    if r.ridge_at is not None:
        text += f"; {r.symbol} = {r.ridge_at:,} reaches the ridge"
    elif ridge is not None and ai is not None and ai < ridge and how != "hardly changes":
        text += f"; no {r.symbol} reaches the ridge"
    if r.doubled_flops_per_s is not None:
        limit = "" if r.doubled_by == "model" else "at most "
        text += f"; {r.symbol} = {2 * r.value:,}: {limit}{si(r.doubled_flops_per_s, 'FLOP/s')}"
    return f"{text}."
