"""When a run reaches its target: the first epoch, and the moment within it by interpolation."""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.readers.training_records import Training


@dataclass(frozen=True, slots=True)
class Reached:
    """When a run first had the target, or that it never did.

    Attributes
    ----------
    reached : bool
        False: the run is censored, and all below say where it ended instead.
    epoch : int
        The first evaluated epoch at or above the target.
    time_s : float
        Training time at its end: what was observed.
    epochs_between, time_between_s : float
        The moment in between where the line from the evaluation before crosses the target; equal
        to `epoch` and `time_s` for the first evaluation, which has none before it.
    """

    reached: bool
    epoch: int
    time_s: float
    epochs_between: float
    time_between_s: float


def reach(training: Training, target: float) -> Reached:
    """Find the first evaluation with a test precision of `target` or more.

    Source: time to accuracy as DAWNBench has it (C. Coleman et al., Analysis of DAWNBench, 2019,
    arXiv:1806.01427): when a run first reaches the target; later falls do not count.
    """
    before = None
    for now in training.evaluated:
        assert now.precision is not None
        if now.precision >= target:
            share = 1.0
            if before is not None and before.precision is not None:
                share = (target - before.precision) / (now.precision - before.precision)
            first, began_s = (before.epoch, before.time_s) if before else (0, 0.0)
            return Reached(
                True, now.epoch, now.time_s,
                first + share * (now.epoch - first), began_s + share * (now.time_s - began_s),
            )  # fmt: skip
        before = now
    last = training.epochs[-1]
    return Reached(False, last.epoch, last.time_s, float(last.epoch), last.time_s)
