"""Links between ranks: latency and time per byte of a message, and bus bandwidth."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from perfmodel.base.errors import ModelError

Collective = Literal["all-reduce", "reduce-scatter", "all-gather", "broadcast"]


@dataclass(frozen=True, slots=True)
class Link:
    """The alpha-beta-gamma model of a message: alpha + n beta, and n gamma to reduce n bytes.

    Attributes
    ----------
    alpha_s : float
        Latency of one message in seconds.
    beta_s_per_byte : float
        Transfer time per byte; one over the bandwidth of one direction.
    gamma_s_per_byte : float
        Time to reduce one byte; 0 where it is part of beta, as in a fit to measured times.
    """

    alpha_s: float
    beta_s_per_byte: float
    gamma_s_per_byte: float = 0.0

    def __post_init__(self) -> None:
        values = (self.alpha_s, self.beta_s_per_byte, self.gamma_s_per_byte)
        if not all(math.isfinite(v) and v >= 0 for v in values):
            raise ModelError(
                f"expected alpha, beta and gamma finite and at least 0; got {values}; give seconds "
                "and seconds per byte"
            )


def bus_bytes_per_s(collective: Collective, size_bytes: float, seconds: float, ranks: int) -> float:
    """Return the bus bandwidth: the rate of the busiest link if no byte is sent twice.

    Source: NVIDIA, nccl-tests, doc/PERFORMANCE.md. n/t times 2 (p-1)/p for all-reduce, (p-1)/p
    for reduce-scatter and all-gather, 1 for broadcast; comparable between numbers of ranks and
    with the hardware's rate.
    """
    if not seconds > 0:
        raise ModelError(f"expected a time above 0 s; got {seconds}; leave unmeasured ones out")
    share = (ranks - 1) / ranks
    scale = {
        "all-reduce": 2 * share, "reduce-scatter": share, "all-gather": share, "broadcast": 1.0,
    }  # fmt: skip
    if collective not in scale:
        raise ModelError(f"expected one of {', '.join(scale)}; got {collective!r}; take one")
    return size_bytes / seconds * scale[collective]
