"""Paleo's model of a training step, fitted to one measured step and compared with others."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from perfmodel.base.units import DTYPE_BYTES
from perfmodel.machines.machine import Machine
from perfmodel.studies.models.paleo import fit_ppp, platform, step
from perfmodel.workloads.networks import network


@dataclass(frozen=True, slots=True)
class Measured:
    """A training step that was timed: network, data type of `DTYPE_BYTES`, images, seconds."""

    net: str
    dtype: str
    batch: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Judged:
    """A step beside its prediction.

    Attributes
    ----------
    measured : Measured
    ppp : float
        Percent of peak (a fraction) that the fitted batch of its network and data type gives.
    predicted_s : float
    other_error : float or None
        Error of the prediction by another network's percent of peak; None without one.
    """

    measured: Measured
    ppp: float
    predicted_s: float
    other_error: float | None

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted_s / self.measured.seconds - 1


def judge(
    steps: Iterable[Measured], machine: Machine, fitted: int = 128, *, overlapped: bool = False
) -> tuple[Judged, ...]:
    """Fit the percent of peak of every network and data type to one batch, and predict all.

    Parameters
    ----------
    steps : iterable of Measured
        Those whose network and type lack the fitted batch are left out.
    machine : Machine
    fitted : int
        Images of the step that fits.
    overlapped : bool
        Whether bytes overlap operations: Paleo's program can do either.

    Raises
    ------
    ModelError
        If the machine lacks a peak, or a time is not above 0.
    WorkloadError
        If there is no such network.
    """
    steps = tuple(steps)
    at_peak_s = {m: _at_peak_s(m, machine, overlapped) for m in steps}
    ppp = {
        (m.net, m.dtype): fit_ppp(at_peak_s[m], m.seconds) for m in steps if m.batch == fitted
    }  # fmt: skip
    found = []
    for m in steps:
        mine = ppp.get((m.net, m.dtype))
        if mine is None:
            continue
        others = [p for (net, dtype), p in ppp.items() if dtype == m.dtype and net != m.net]
        other = at_peak_s[m] / others[0] / m.seconds - 1 if others else None
        found.append(Judged(m, mine, at_peak_s[m] / mine, other))
    return tuple(found)


def _at_peak_s(measured: Measured, machine: Machine, overlapped: bool) -> float:
    where, size = platform(machine, measured.dtype), DTYPE_BYTES[measured.dtype]
    net = network(measured.net)
    return step(net, where, measured.batch, size, overlapped=overlapped).training_s
