"""Savings: every change that a report offers, predicted or bounded, and the best sequence."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from perfmodel.analysis.effect import effect
from perfmodel.analysis.evidence import Evidence, percentiles
from perfmodel.analysis.predict import predict
from perfmodel.analysis.whatif_result import Later, Saving, Step
from perfmodel.base.errors import ModelError
from perfmodel.models.model import Z90, Model
from perfmodel.programs.mlp.case import Case
from perfmodel.programs.mlp.changes import Change, offers
from perfmodel.programs.mlp.floors import least
from perfmodel.programs.mlp.question import Source

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
        Of `perfmodel.analysis.evidence.draws`.
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
        launches = math.hypot(said.sd, math.sqrt(2) * self.model.noise(said.pace))
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
            change.name, change.change, change.removes, after, "model", whole * (1 - ratio), low,
            high, next_low, next_high, whole * ratio, alone, phases, change.exact, notes,
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
        parts = {name: then * share for name, then in floor.parts.items()}
        phases = _changed(self.found.seconds, parts)
        phases = {k: v for k, v in phases.items() if (v[1] or 0.0) < (v[0] or 0.0)}
        return Saving(
            change.name, change.change, change.removes, after, "bound", saving, low, high, None,
            None, self.found.batch_s - saving, None, phases, change.exact,
        )  # fmt: skip

    def batch(self, after: Case) -> tuple[float, Source]:
        """Return what a batch of another case takes, predicted or at least; see `saving`."""
        said = self.saving(Change("", "", ""), after)
        return said.batch_s / _per_image(self.found.case, after), said.source

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

        Sizes stay. A model climbs by its predictions only; where no single one is left, two changes
        that its runs have only together are one step. Without a model each step is the least time
        left.
        """
        case, spent, now = self.found.case, self.found.batch_s, self.found.batch_s
        steps: list[Step] = []
        by_model = self._known
        while len(steps) < _MOST_STEPS:
            enough = (1 - _WORTH) * spent
            best = self._best(by_model, _exact(case), enough)
            if best is None and by_model:
                best = self._best(by_model, _two(case), enough)
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
        """Return the batch of a changed case as `predicted` or `bound` do; None if untold."""
        try:
            if not by_model or self.model is None:
                return self.found.batch_s - _at_most(self.found, after)
            now = predict(self.model, self.found.case).batch_s
            return self.found.batch_s * predict(self.model, after).batch_s / now
        except ModelError:
            return None

    @property
    def _known(self) -> bool:
        """Whether the model can tell the report's own case."""
        try:
            return self.model is not None and predict(self.model, self.found.case).batch_s > 0
        except ModelError:
            return False


def _exact(case: Case) -> Iterator[tuple[Change, Case]]:
    """Yield the changes of program, not of size, that keep the accuracy."""
    for offer in offers(case):
        if offer.case is not None and offer.change.exact and not offer.change.doubles:
            yield offer.change, offer.case


def _two(case: Case) -> Iterator[tuple[Change, Case]]:
    """Yield pairs of such changes, one after the other, as one."""
    for first, between in _exact(case):
        for second, after in _exact(between):
            yield Change(
                f"{first.name} + {second.name}", f"{first.change}; {second.change}",
                f"{first.removes}; {second.removes}",
            ), after  # fmt: skip


def _per_image(before: Case, after: Case) -> float:
    """Images of a batch before over after: times are per as many images."""
    return before.sizes["B"] / after.sizes["B"]


def _at_most(found: Evidence, after: Case) -> float:
    """Bound the saving from below, too: a bound that allows none is 0."""
    floor = least(found, after).batch_s * _per_image(found.case, after)
    saving = found.batch_s - floor
    return saving if saving > _SAME_S else 0.0


def _changed(
    before: Mapping[str, float], after: Mapping[str, float]
) -> dict[str, tuple[float | None, float | None]]:
    """Pair the phases whose time changes; None where there is no such phase."""
    pairs = {name: (before.get(name), after.get(name)) for name in {**before, **after}}
    return {n: (b, a) for n, (b, a) in pairs.items() if abs((a or 0.0) - (b or 0.0)) > _SAME_S}
