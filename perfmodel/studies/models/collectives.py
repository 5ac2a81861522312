"""Collectives: messages, bytes and time by algorithm, bus bandwidth, and alpha and beta fitted.

Sources: [T] R. Thakur, R. Rabenseifner, W. Gropp, *Optimization of Collective Communication
Operations in MPICH*, Int. J. High Perform. Comput. Appl. 19(1), 49-66, 2005; [P] P. Patarasuk,
X. Yuan, *Bandwidth optimal all-reduce algorithms for clusters of workstations*, J. Parallel
Distrib. Comput. 69, 117-124, 2009; [N] NVIDIA, *nccl-tests*, doc/PERFORMANCE.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, get_args

import numpy as np

from perfmodel.base.errors import ModelError
from perfmodel.machines.machine import Collective, Link


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one collective for the busiest rank: the factors of alpha, beta and gamma.

    Attributes
    ----------
    messages : int
        Messages one after the other.
    sent_bytes, reduced_bytes : float
        Bytes that rank sends (it receives as many at the same time) and reduces.
    """

    messages: int
    sent_bytes: float
    reduced_bytes: float

    def seconds(self, link: Link) -> float:
        """Return messages alpha + sent beta + reduced gamma."""
        return (
            self.messages * link.alpha_s
            + self.sent_bytes * link.beta_s_per_byte
            + self.reduced_bytes * link.gamma_s_per_byte
        )


_ROUNDING: Final = 1e-9
"""Times that differ by no larger share are equal: means of nanoseconds, in float64."""

ALGORITHMS: Final[Mapping[str, Mapping[str, Callable[[float, int, int], Cost]]]] = {
    "all-reduce": {
        # 2 (p-1) alpha + 2 (p-1)/p n beta + (p-1)/p n gamma [P]: the fewest bytes there can be
        "ring": lambda n, p, rounds: Cost(2 * (p - 1), 2 * (p - 1) * n / p, (p - 1) * n / p),
        # L (alpha + n beta + n gamma): everybody exchanges everything, L times [T]
        "recursive doubling": lambda n, p, rounds: Cost(rounds, rounds * n, rounds * n),
        # 2 L alpha + 2 (p-1)/p n beta + (p-1)/p n gamma: halve and reduce, double back [T]
        "rabenseifner": lambda n, p, rounds: Cost(2 * rounds, 2 * (p - 1) * n / p, (p - 1) * n / p),
    },
    "reduce-scatter": {  # [T]: pairwise exchange costs what a ring does
        "ring": lambda n, p, rounds: Cost(p - 1, (p - 1) * n / p, (p - 1) * n / p),
        "recursive halving": lambda n, p, rounds: Cost(rounds, (p - 1) * n / p, (p - 1) * n / p),
    },
    "all-gather": {  # [T]
        "ring": lambda n, p, rounds: Cost(p - 1, (p - 1) * n / p, 0.0),
        "recursive doubling": lambda n, p, rounds: Cost(rounds, (p - 1) * n / p, 0.0),
    },
    "broadcast": {  # [T]
        "binomial tree": lambda n, p, rounds: Cost(rounds, rounds * n, 0.0),
        "scatter and all-gather": lambda n, p, rounds: Cost(
            rounds + p - 1, 2 * (p - 1) * n / p, 0.0
        ),
    },
}


def cost(
    collective: Collective, size_bytes: float, ranks: int, algorithm: str | None = None
) -> Cost:
    """Count the messages, bytes sent and bytes reduced of the busiest rank.

    Parameters
    ----------
    collective : {'all-reduce', 'reduce-scatter', 'all-gather', 'broadcast'}
    size_bytes : float
        n, the whole vector: what all-reduce and broadcast leave on every rank, what reduce-scatter
        starts from on every rank, what all-gather ends with on every rank.
    ranks : int
        p. L = ceil(log2 p) rounds; exact where p is a power of two, and a little too low
        elsewhere, where the algorithms that double need one or two messages more [T].
    algorithm : str, optional
        One of `ALGORITHMS`; the first, a ring or a tree, by default.

    Raises
    ------
    ModelError
        If there is no such algorithm, or a number is out of range.

    Examples
    --------
    >>> cost("all-reduce", 1000, 4)  # a ring
    Cost(messages=6, sent_bytes=1500.0, reduced_bytes=750.0)
    """
    known = ALGORITHMS.get(collective)
    if known is None:
        raise ModelError(
            f"expected a collective among {', '.join(get_args(Collective))}; got {collective!r}; "
            "take one"
        )
    name = algorithm or next(iter(known))
    if name not in known:
        raise ModelError(
            f"expected an algorithm of {collective} among {', '.join(known)}; got {name!r}; "
            "take one"
        )
    if ranks < 1 or not size_bytes >= 0:
        raise ModelError(
            f"expected at least one rank and 0 bytes; got {ranks} ranks and {size_bytes} bytes; "
            "give the size of the group and of its whole vector"
        )
    if ranks == 1:
        return Cost(0, 0.0, 0.0)
    return known[name](size_bytes, ranks, (ranks - 1).bit_length())


def fit_link(sizes_bytes: Sequence[float], seconds: Sequence[float], ranks: int) -> Link:
    """Fit alpha and beta of an all-reduce to measured times, by least squares in seconds.

    An error of one microsecond costs a batch one microsecond, whatever the message: residuals are
    not weighted. gamma cannot be separated from beta and is part of it. A negative alpha becomes 0.

    Parameters
    ----------
    sizes_bytes, seconds : sequences of float, the same length
        Size of every message and its (median) time, without waiting for the other ranks.
    ranks : int

    Raises
    ------
    ModelError
        If there are fewer than two sizes or ranks, or time does not grow with size.
    """
    if len({*sizes_bytes}) < 2 or ranks < 2 or len(sizes_bytes) != len(seconds):
        raise ModelError(
            f"expected times of two or more sizes over two or more ranks to fit alpha and beta; "
            f"got {len({*sizes_bytes})} sizes, {len(seconds)} times and {ranks} ranks; measure "
            "messages of several sizes"
        )
    costs = [cost("all-reduce", n, ranks) for n in sizes_bytes]
    matrix = np.array([[c.messages, c.sent_bytes] for c in costs], np.float64)
    scale = matrix.max(axis=0)
    found, *_ = np.linalg.lstsq(matrix / scale, np.asarray(seconds, np.float64), rcond=None)
    alpha, beta = (found / scale).tolist()
    if alpha < 0:
        alpha, sent = 0.0, matrix[:, 1]
        beta = float(sent @ np.asarray(seconds) / (sent @ sent))
    grows_s = beta * float(np.ptp(matrix[:, 1]))
    if not grows_s > _ROUNDING * max(seconds):
        raise ModelError(
            f"expected times that grow with the size; got {list(seconds)} s for "
            f"{list(sizes_bytes)} bytes; measure longer messages"
        )
    return Link(alpha, beta)
