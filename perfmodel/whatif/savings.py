"""Savings: every change that a report offers, predicted or bounded, and the best sequence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from perfmodel.errors import ModelError
from perfmodel.predict import Case, Model, predict
from perfmodel.predict.model import Z90
from perfmodel.whatif.changes import Change, Offer, offers
from perfmodel.whatif.effect import effect
from perfmodel.whatif.evidence import Evidence, percentiles
from perfmodel.whatif.floors import least
from perfmodel.whatif.result import Later, Saving, Step

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
        Of `perfmodel.whatif.evidence.draws`.
    model : Model or None
    """

    found: Evidence
    resampled: Sequence[Evidence]
    model: Model | None = None

    def saving(self, change: Change, after: Case) -> Saving:
        """Predict a change's saving, or bound it where the model cannot tell it.

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
            If there is no model, or it cannot tell one of the two.
        """
        if self.model is None:
            raise ModelError("wanted a calibrated model; found none; give --model model.json")
        said, whole = effect(self.model, self.found.case, after), self.found.batch_s
        share = _per_image(self.found.case, after)
        ratio = said.ratio * share
        # two launches, the report's and the next one, differ in the noise of both
        launches = math.hypot(said.sd, math.sqrt(2) * self.model.batch_noise)
        low, high = (whole * (1 - ratio * math.exp(s * Z90 * said.sd)) for s in (1, -1))
        next_low, next_high = (whole * (1 - ratio * math.exp(s * Z90 * launches)) for s in (1, -1))
        scale = whole / sum(said.before.values())
        phases = {
            name: (now and now * scale, then and then * scale * share)
            for name in dict.fromkeys([*said.before, *said.after])
            if (now := said.before.get(name)) != (then := said.after.get(name))
        }
        beyond = ", ".join(said.extrapolated)
        notes = (f"extrapolated: {beyond} beyond the calibration's runs",) if beyond else ()
        return Saving(
            change.name, change.change, change.removes, after, "model", whole * (1 - ratio), low,
            high, next_low, next_high, whole * ratio, phases, change.exact, notes,
        )  # fmt: skip

    def bound(self, change: Change, after: Case) -> Saving:
        """Bound a change's saving by the report alone.

        Raises
        ------
        ModelError
            If the structure of such a run is not modelled.
        """
        share = _per_image(self.found.case, after)
        floor = least(self.found, after)
        saving = _at_most(self.found, after)
        low, high = percentiles([_at_most(drawn, after) for drawn in self.resampled] or [saving])
        phases = {
            name: (now, then if then is None else then * share)
            for name in dict.fromkeys([*self.found.seconds, *floor.parts])
            if _less(now := self.found.seconds.get(name), then := floor.parts.get(name))
        }
        return Saving(
            change.name, change.change, change.removes, after, "bound", saving, low, high, None,
            None, self.found.batch_s - saving, phases, change.exact,
        )  # fmt: skip

    def all_of(self, case: Case) -> tuple[tuple[Saving, ...], tuple[Later, ...]]:
        """Return what each change would save, ranked, and those that cannot be told yet."""
        ranked: list[Saving] = []
        later: list[Later] = []
        for offer in offers(case):
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

        Sizes stay. A model climbs by its predictions only; without one, each step is the least
        time left, and steps that lower no bound are left out.
        """
        case, spent = self.found.case, self.found.batch_s
        steps: list[Step] = []
        while len(steps) < _MOST_STEPS:
            best = min(
                (s for o in offers(case) if (s := self._step(o)) is not None),
                key=lambda s: s.batch_s,
                default=None,
            )
            if best is None or spent - best.batch_s < _WORTH * spent:
                break
            now = self.found.batch_s
            steps.append(
                Step(
                    best.name, best.removes, best.case, best.source, spent - best.batch_s,
                    best.batch_s, now - best.high_s, now - best.low_s,
                )
            )  # fmt: skip
            case, spent = best.case, best.batch_s
        return tuple(steps)

    def _step(self, offer: Offer) -> Saving | None:
        if offer.case is None or offer.change.doubles or not offer.change.exact:
            return None
        try:
            if self.model is not None and self._known:
                return self.predicted(offer.change, offer.case)
            return self.bound(offer.change, offer.case)
        except ModelError:
            return None

    @property
    def _known(self) -> bool:
        """Whether the model can tell the report's own case."""
        try:
            return self.model is not None and predict(self.model, self.found.case).batch_s > 0
        except ModelError:
            return False


def _per_image(before: Case, after: Case) -> float:
    """Images of a batch before over after: times are per as many images."""
    return before.sizes["B"] / after.sizes["B"]


def _at_most(found: Evidence, after: Case) -> float:
    """Bound the saving from below, too: a bound that allows none is 0."""
    floor = least(found, after).batch_s * _per_image(found.case, after)
    saving = found.batch_s - floor
    return saving if saving > _SAME_S else 0.0


def _less(now: float | None, then: float | None) -> bool:
    return (then or 0.0) < (now or 0.0) - _SAME_S
