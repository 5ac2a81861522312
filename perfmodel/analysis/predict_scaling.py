"""Sweeps of predictions: over one symbol, strong and weak scaling, epochs and efficiency."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from perfmodel.analysis.predict import Prediction
from perfmodel.base.errors import ModelError, WorkloadError
from perfmodel.programs.mlp.case import TRAIN_IMAGES, Case

Scaling = Literal["strong", "weak"]
MOST_POINTS: Final = 200
_Predict = Callable[[Case], Prediction]


@dataclass(frozen=True, slots=True)
class Scaled:
    """One number of ranks: its prediction, speed-up and efficiency against the fewest ranks."""

    prediction: Prediction
    speedup: float
    efficiency: float


def at(case: Case, symbol: str, value: int) -> Case:
    """Return the case with another value of one symbol.

    Raises
    ------
    WorkloadError
        If the case has no such symbol, or p exceeds the images of a batch.
    """
    if symbol not in case.sizes:
        raise WorkloadError(
            f"wanted a symbol among {', '.join(case.sizes)}; found {symbol!r}; take one of those"
        )
    changed = replace(case, sizes={**case.sizes, symbol: value})
    if changed.sizes.get("p", 1) > changed.sizes.get("B", 1 << 62):
        raise WorkloadError(
            f"wanted at most as many ranks as images in a batch; found p={changed.sizes['p']}, "
            f"B={changed.sizes['B']}; take fewer ranks or a larger batch"
        )
    return changed


def sweep(
    predict: _Predict, case: Case, symbol: str, values: Sequence[int]
) -> tuple[Prediction, ...]:
    """Predict the case at several values of one symbol, ascending."""
    if not values or len(values) > MOST_POINTS:
        raise WorkloadError(
            f"wanted 1 to {MOST_POINTS} values of {symbol}; found {len(values)}; give fewer"
        )
    return tuple(predict(at(case, symbol, value)) for value in sorted(set(values)))


def scale(predict: _Predict, case: Case, ranks: Sequence[int], kind: Scaling) -> tuple[Scaled, ...]:
    """Predict strong scaling (B fixed) or weak scaling (B/p fixed) over numbers of ranks.

    Speed-up is in images per second against the fewest ranks, whose own is 1 per rank; efficiency
    is speed-up over the ratio of ranks.
    """
    if not {"B", "p"} <= set(case.sizes):
        raise WorkloadError(
            f"wanted symbols B and p to scale over; found {', '.join(case.sizes)}; name the batch "
            "of all ranks B and the ranks p in the workload"
        )
    share = case.sizes["B"] / case.sizes["p"]
    found: list[Scaled] = []
    first: tuple[int, float] | None = None
    for p in sorted(set(ranks)):
        batch = case.sizes["B"] if kind == "strong" else round(share * p)
        moved = replace(case, sizes={**case.sizes, "B": batch})
        prediction = predict(at(moved, "p", p))
        rate = batch / prediction.batch_s
        first = first or (p, rate)
        speedup = rate / first[1]
        found.append(Scaled(prediction, speedup, speedup * first[0] / p))
    if not found:
        raise ModelError("wanted numbers of ranks to scale over; found none; give some")
    return tuple(found)


def doublings(first: int, last: int) -> tuple[int, ...]:
    """Return first, 2 first, 4 first, ... up to last, which is the end in any case."""
    values = []
    while first < last:
        values.append(first)
        first *= 2
    return (*values, last)


def epoch_s(prediction: Prediction, images: int = TRAIN_IMAGES) -> float | None:
    """Return the time of one epoch: ceil(images / B) batches, the last one in proportion.

    None where a batch takes more images than there are, or the workload has no B.
    """
    batch = prediction.case.sizes.get("B")
    return None if batch is None or batch > images else prediction.batch_s * images / batch
