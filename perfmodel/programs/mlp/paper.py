"""Model parallelism: its batch on paper, the calibrated model's word on it, and the crossings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from perfmodel.analysis.predict import predict
from perfmodel.analysis.result import RunAnalysis
from perfmodel.base.errors import ModelError, WorkloadError
from perfmodel.models.model import Model
from perfmodel.programs.mlp.case import Case, mlp_case
from perfmodel.programs.mlp.grids import Grid, split
from perfmodel.programs.mlp.measured import rates_of, sizes_of
from perfmodel.programs.mlp.model import (
    Crossing,
    Crossings,
    crossings_of_bytes,
    crossings_of_time,
    of_kind,
    rank_grids,
)

_ENDS: Final = {"H": (1, 1 << 17), "B": (1, 1 << 20), "p": (2, 1 << 10)}
"""Where crossings are looked for."""


@dataclass(frozen=True, slots=True)
class OnPaper:
    """Data against model parallelism for one report's sizes and ranks.

    Attributes
    ----------
    data_s, model_s : float or None
        Seconds of a batch on paper (`perfmodel.splits`): bytes and FLOPs over the report's rates,
        without launches. None where the report has no rates.
    data_bytes, model_bytes : float
        Handed to the all-reduce.
    rates : str
        Where the rates come from, or why there are none.
    bytes : Crossings
        Where the model's message is the smaller one.
    seconds : Crossings or None
        Where its batch is the shorter one, on paper.
    calibrated : Crossings or None
        The same by the calibrated model, whose terms are measured.
    untold : str
        Why there is no `calibrated`.
    """

    data_s: float | None
    model_s: float | None
    data_bytes: float
    model_bytes: float
    rates: str
    bytes: Crossings
    seconds: Crossings | None
    calibrated: Crossings | None
    untold: str


def on_paper(full: RunAnalysis, case: Case, model: Model | None) -> OnPaper | None:
    """Compare both parallelisms on paper and, where it can, by the calibrated model.

    Parameters
    ----------
    full : RunAnalysis
        Counted in full.
    case : Case
    model : Model, optional

    Returns
    -------
    OnPaper or None
        None on one rank.
    """
    if case.sizes["p"] < 2:
        return None
    sizes, ranks = sizes_of(case.sizes)
    streamed = case.settings["data_on"] != "device"
    data = split(sizes, Grid(B=ranks)).message_bytes
    apart = split(sizes, Grid(H=ranks)).message_bytes
    times: list[float | None] = [None, None]
    seconds = None
    try:
        rates = rates_of(full)
        ranked, _ = rank_grids(sizes, ranks, rates, streamed=streamed)
        kinds = [of_kind(ranked, f"{kind} parallel") for kind in ("data", "model")]
        times = [r.times.batch_s(streamed=streamed) if r else None for r in kinds]
        seconds = crossings_of_time(sizes, ranks, rates, streamed=streamed)
        source = f"{rates.source}, by {rates.through}"
    except ModelError as error:
        source = f"no rates ({error})"
    calibrated, untold = _calibrated(case, model)
    return OnPaper(
        times[0], times[1], data, apart, source, crossings_of_bytes(sizes), seconds,
        calibrated, untold,
    )  # fmt: skip


def _calibrated(case: Case, model: Model | None) -> tuple[Crossings | None, str]:
    if model is None:
        return None, "no calibrated model was given (--model model.json)"
    settings = {**case.settings, "overlap": "no"}
    try:
        kinds = [mlp_case(case.sizes, {**settings, "parallel": k}) for k in ("data", "model")]

        def faster(symbol: str) -> Callable[[int], bool]:
            def wins(value: int) -> bool:
                data, apart = (replace(k, sizes={**k.sizes, symbol: value}) for k in kinds)
                return predict(model, apart).batch_s < predict(model, data).batch_s

            return wins

        found = {symbol: _crossing(faster(symbol), *_ends(case, symbol)) for symbol in _ENDS}
    except (ModelError, WorkloadError) as error:
        return None, str(error)
    return Crossings(batch=found["B"], hidden=found["H"], ranks=found["p"]), ""


def _ends(case: Case, symbol: str) -> tuple[int, int]:
    """Values between which a run can be: a rank needs an image and a hidden unit."""
    low, high = _ENDS[symbol]
    z = case.sizes
    if symbol == "p":
        return low, min(high, z["B"], z["H"])
    return max(low, z["p"]), high


def _crossing(wins: Callable[[int], bool], low: int, high: int) -> Crossing:
    """Say from where on, or up to where, model parallelism wins, if it changes once."""
    first, last = wins(low), wins(high)
    if first == last:
        return Crossing(None, "always" if first else "never")
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if wins(middle) == first else (low, middle)
    return Crossing(float(high), "below" if first else "above")
