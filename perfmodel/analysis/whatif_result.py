"""What `perfmodel whatif` says, as frozen rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from perfmodel.programs.mlp.case import Case
from perfmodel.programs.mlp.paper import OnPaper
from perfmodel.programs.mlp.question import Answer, Source


@dataclass(frozen=True, slots=True)
class Saving:
    """One change and what it would save of this report's batch.

    Attributes
    ----------
    name, change, removes : str
        As of `perfmodel.programs.mlp.changes.Change`.
    case : Case
        The changed run.
    source : {'model', 'bound'}
        'model': the calibrated model's relative change of the report's own batch. 'bound': at most
        this, by the report alone.
    saving_s, low_s, high_s : float
        Per batch, of a doubled batch per as many images; 90 %. Of a prediction what the
        coefficients leave, of a bound what the report's batches leave.
    next_low_s, next_high_s : float or None
        Of a prediction: 90 % of what another launch would show, as launches differ.
    batch_s : float
        The batch after the change (of a bound: at least), per as many images as before.
    alone_s : float or None
        Of a prediction: the batch by the model alone, whatever this report took.
    phases : mapping of str to (float or None, float or None)
        Phases that change, in seconds: as they are, and then (predicted, or at least).
    exact : bool
        Whether results keep their accuracy.
    notes : tuple of str
        Why the model does not tell it; what is extrapolated.
    """

    name: str
    change: str
    removes: str
    case: Case
    source: Source
    saving_s: float
    low_s: float
    high_s: float
    next_low_s: float | None
    next_high_s: float | None
    batch_s: float
    alone_s: float | None
    phases: Mapping[str, tuple[float | None, float | None]]
    exact: bool
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the greedy sequence.

    `saving_s` is against the step before; `batch_s` is what is left after all steps up to this
    one (of bounds: at least), with its 90 %.
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
class Later:
    """A change that others must come before, or that cannot be told, and why."""

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
    parallel : OnPaper or None
        Model parallelism on paper; None with one rank, or where the report has no rates.
    answer : Answer
        To the document's Question 2.6.
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
    parallel: OnPaper | None
    answer: Answer
    warnings: tuple[str, ...]
