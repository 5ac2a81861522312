"""Effects: what a calibrated model says of a change, as a ratio in which shared terms cancel."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from perfmodel.analysis.predict import predict
from perfmodel.models.model import Model, Term
from perfmodel.models.regress import Floats
from perfmodel.programs.mlp.case import Case

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
    pace : str
        What sets the pace of the changed case, by which its launches differ.
    """

    ratio: float
    sd: float
    before: Mapping[str, float]
    after: Mapping[str, float]
    extrapolated: tuple[str, ...]
    pace: str


def effect(model: Model, before: Case, after: Case) -> Effect:
    """Compare two predictions of one model.

    With T = T(c) the prediction and S_k the covariance of term k's coefficients c_k, terms being
    fitted apart, to first order

        var log(T'/T) = sum over k of g_k' S_k g_k,   g_k = dT'/dc_k / T' - dT/dc_k / T.

    Raises
    ------
    ModelError
        If the model cannot tell one of the two: says which run would.
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
        pace=new.pace,
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
            moved = predict(_with(model, key, _moved(term, i, step)), case)
            slopes[i] = (moved.batch_s - batch_s) / step
        found[key] = slopes
    return found


def _moved(term: Term, i: int, step: float) -> Term:
    coefficients = term.coefficients.copy()
    coefficients[i] += step
    return replace(term, coefficients=coefficients)


def _with(model: Model, key: str, term: Term) -> Model:
    return replace(model, terms={**model.terms, key: term})
