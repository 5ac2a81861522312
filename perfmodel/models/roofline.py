"""Rooflines from effective throughputs: ridge point, smooth and hard roof, points on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from perfmodel.base.arrays import Floats
from perfmodel.base.errors import ModelError


@dataclass(frozen=True, slots=True)
class Roofline:
    """A roof from one compute throughput and one or more links used one after the other.

    Parameters
    ----------
    label : str
        What the roof was fitted on, such as a report's name.
    flops_per_s : float
        P_flops, the effective compute throughput.
    links_bytes_per_s : mapping of str to float
        Effective throughput P_k of every link, such as ``{"pci": 1.27e10, "mpi": 7.95e9}``.
    shares : mapping of str to float
        Each link's share s_k of the bytes; the shares add up to one.

    Notes
    -----
    The assignment's Question 2.5 writes the smooth roof with s_k = 1/2, which holds because its
    two byte counts are equal; with n_k bytes over link k the time is F/P_flops + sum n_k/P_k, so
    in general s_k = n_k / sum n_k.
    """

    label: str
    flops_per_s: float
    links_bytes_per_s: Mapping[str, float]
    shares: Mapping[str, float]

    def __post_init__(self) -> None:
        values = (self.flops_per_s, *self.links_bytes_per_s.values())
        if not values[1:] or not all(np.isfinite(v) and v > 0 for v in values):
            raise ModelError(
                f"expected P_flops and at least one link, all positive and finite; got "
                f"P_flops={self.flops_per_s!r}, links={dict(self.links_bytes_per_s)!r}"
            )
        if set(self.shares) != set(self.links_bytes_per_s) or any(
            s < 0 for s in self.shares.values()
        ):
            raise ModelError(
                "expected one non-negative share of the bytes for every link; got "
                f"{dict(self.shares)!r}"
            )
        if not np.isclose(sum(self.shares.values()), 1.0):
            raise ModelError(
                f"expected shares of the links that add up to 1; got {sum(self.shares.values())}"
            )

    @property
    def bandwidth_bytes_per_s(self) -> float:
        """Combined effective bandwidth, 1 / sum(s_k / P_k) (document, Question 2.5)."""
        return 1.0 / sum(self.shares[k] / p for k, p in self.links_bytes_per_s.items())

    @property
    def ridge_flops_per_byte(self) -> float:
        """Ridge point: the arithmetic intensity where both terms take equal time."""
        return self.flops_per_s / self.bandwidth_bytes_per_s

    def smooth(self, intensity_flops_per_byte: npt.ArrayLike) -> Floats:
        """FLOP/s when computing and moving do not overlap: AI / (AI/P_flops + sum s_k/P_k)."""
        ai = np.asarray(intensity_flops_per_byte, dtype=np.float64)
        return ai / (ai / self.flops_per_s + 1.0 / self.bandwidth_bytes_per_s)

    def for_shares(self, shares: Mapping[str, float]) -> Roofline:
        """Return the roof of the same rates for another mix of bytes, as of another p.

        Links without a rate here cannot be mixed in: the roof is then returned as it is.
        """
        if not shares or not set(shares) <= set(self.links_bytes_per_s):
            return self
        links = {k: self.links_bytes_per_s[k] for k in shares}
        return Roofline(self.label, self.flops_per_s, links, shares)

    def hard(self, intensity_flops_per_byte: npt.ArrayLike) -> Floats:
        """FLOP/s when they overlap perfectly: min(P_flops, AI * bandwidth) (Williams 2009)."""
        ai = np.asarray(intensity_flops_per_byte, dtype=np.float64)
        return np.minimum(self.flops_per_s, ai * self.bandwidth_bytes_per_s)


@dataclass(frozen=True, slots=True)
class Point:
    """One measured point: `flops / seconds` at `flops / bytes`.

    Attributes
    ----------
    group : str
        What the point belongs to: a report's label.
    kind : str
        What was timed: 'batch iteration', 'forward + backward + step'.
    low_flops_per_s, high_flops_per_s : float or None
        95 % interval of `flops_per_s`.
    """

    label: str
    kind: str
    group: str
    intensity_flops_per_byte: float
    flops_per_s: float
    low_flops_per_s: float | None = None
    high_flops_per_s: float | None = None
    symbols: Mapping[str, int] | None = None
