"""The time of a split from rates, the ranking of all grids, and where one overtakes another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from perfmodel.machines.link import Link
from perfmodel.models.collectives import cost
from perfmodel.programs.mlp.grids import FLOPS_PER_OUTPUT, Grid, Sizes, Split, grids, split

Side = Literal["below", "above", "always", "never"]
Through = Literal["MPI", "NCCL"]


@dataclass(frozen=True, slots=True)
class Rates:
    """What turns counts into seconds.

    Attributes
    ----------
    flops_per_s : float
        P_flops.
    link : Link
        alpha and beta of MPI, or of NCCL; 1/beta is P_mpi, or P_peer, in bytes sent, one direction.
    images_bytes_per_s, staging_bytes_per_s : float or None
        P_pci of the images, and of what MPI is handed; None where nothing is copied.
    algorithm : str
        Of the all-reduce (`perfmodel.models.collectives.algorithms`).
    source : str
        Where the rates come from.
    notes : tuple of str
        What is missing in them.
    through : {'MPI', 'NCCL'}
        Whose link it is.
    """

    flops_per_s: float
    link: Link
    images_bytes_per_s: float | None
    staging_bytes_per_s: float | None
    algorithm: str = "ring"
    source: str = "given"
    notes: tuple[str, ...] = ()
    through: Through = "MPI"

    @property
    def link_name(self) -> str:
        """Name of 1/beta."""
        return "P_mpi" if self.through == "MPI" else "P_peer"


DOCUMENT: Final = Rates(
    flops_per_s=1.632730e12,
    link=Link(0.0, 2 / 7.9502e9),
    images_bytes_per_s=1.2720e10,
    staging_bytes_per_s=1.2720e10,
    source="the document, Question 2.4",
    notes=("alpha is unknown: messages cost their bytes only; give --rate alpha=2us, say",),
)
"""The document's rates, of two GPUs; its P_mpi counts both directions, 2 n b bytes."""


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of one batch, one after the other.

    `images_s` is the time to copy the batch's images: part of the batch only if they are streamed.
    """

    compute_s: float
    images_s: float
    staging_s: float
    mpi_s: float

    def batch_s(self, *, streamed: bool) -> float:
        """Return the sum, with or without copying the images."""
        return self.compute_s + self.staging_s + self.mpi_s + streamed * self.images_s


@dataclass(frozen=True, slots=True)
class Ranked:
    """A grid that can be, and its time."""

    split: Split
    times: Times


def predict(found: Split, rates: Rates) -> Times:
    """Predict one batch: F / P_flops + bytes / P_pci + alpha, beta (and gamma) of the collectives.

    Source: the document's Question 2.5 for the sum, `models.collectives` for the messages.
    """
    mpi = 0.0
    for t in found.transfers:
        algorithm = rates.algorithm if t.collective == "all-reduce" else None
        mpi += cost(t.collective, t.bytes, t.ranks, algorithm).seconds(rates.link)
    return Times(
        compute_s=found.compute_flops / rates.flops_per_s,
        images_s=_over(found.image_bytes, rates.images_bytes_per_s),
        staging_s=_over(found.staged_bytes, rates.staging_bytes_per_s),
        mpi_s=mpi,
    )


def _over(amount: float, rate: float | None) -> float:
    return amount / rate if rate is not None else 0.0


def rank_grids(
    sizes: Sizes, ranks: int, rates: Rates, *, streamed: bool = True
) -> tuple[tuple[Ranked, ...], tuple[tuple[Grid, str], ...]]:
    """Rank all grids of p ranks by time; of equals, the one with fewer messages, then less memory.

    Returns
    -------
    ranked : tuple of Ranked
        The fastest first.
    impossible : tuple of (Grid, str)
        The grids that these sizes cannot be cut into, with the reason.
    """
    possible, impossible = [], []
    for grid in grids(ranks):
        problem = grid.why_not(sizes)
        if problem is not None:
            impossible.append((grid, problem))
        else:
            found = split(sizes, grid)
            possible.append(Ranked(found, predict(found, rates)))
    possible.sort(
        key=lambda r: (
            r.times.batch_s(streamed=streamed),
            len(r.split.transfers),
            r.split.memory_bytes(),
        )
    )
    return tuple(possible), tuple(impossible)


@dataclass(frozen=True, slots=True)
class Crossing:
    """Where model parallelism overtakes data parallelism along one symbol.

    `model_wins` is 'below' or 'above' the value `at`, or 'always' or 'never' (`at` is None).
    """

    at: float | None
    model_wins: Side


@dataclass(frozen=True, slots=True)
class Crossings:
    """The same along the batch, the hidden size and the number of ranks, the others held."""

    batch: Crossing
    hidden: Crossing
    ranks: Crossing


def crossings_of_bytes(sizes: Sizes) -> Crossings:
    """Say where the model's message, C B elements, is smaller than the data's, n.

    C B < n = H (D + C + 1) + C, so B < n / C, or H > C (B - 1) / (D + C + 1). Both send
    2 (p-1)/p of it: p does not matter.

    Examples
    --------
    >>> crossings_of_bytes(Sizes(784, 512, 10, 3000)).batch
    Crossing(at=40705.0, model_wins='below')
    """
    n, per_unit = sizes.parameters, sizes.D + sizes.C + 1
    return Crossings(
        batch=_affine(-n, sizes.C),
        hidden=_affine(sizes.C * (sizes.B - 1), -per_unit),
        ranks=Crossing(None, "always" if n > sizes.C * sizes.B else "never"),
    )


def crossings_of_time(
    sizes: Sizes, ranks: int, rates: Rates, *, streamed: bool = True
) -> Crossings:
    """Say where a model parallel batch takes less time than a data parallel one.

    With q = 1 - 1/p and shares that divide, the ring's (or Rabenseifner's) difference is

        t_model - t_data = q X + Y,
        X = b (D + C) B / P_images + (2 beta + gamma) b (C B - n)
            + (9 C B - 4 H (D + C) - 2 H) / P_flops,
        Y = 2 b (C B - n) / P_staging:

    the images that model parallelism copies in vain, the bytes it does not send, its repeated
    softmax against the step on all parameters, and the bytes it does not stage. It is affine in
    B, in H and in q; alpha cancels, since each all-reduces once.
    """

    def difference(images: float, hidden: float, q: float) -> float:
        s, pci, host = sizes, rates.images_bytes_per_s, rates.staging_bytes_per_s
        fewer = s.b * (s.C * images - hidden * (s.D + s.C + 1) - s.C)
        extra = _over(s.b * (s.D + s.C) * images, pci) if streamed else 0.0
        sent = (2 * rates.link.beta_s_per_byte + rates.link.gamma_s_per_byte) * fewer
        flops = FLOPS_PER_OUTPUT * s.C * images - hidden * (4 * (s.D + s.C) + 2)
        return q * (extra + sent + flops / rates.flops_per_s) + _over(2 * fewer, host)

    batch, hidden, q = float(sizes.B), float(sizes.H), 1 - 1 / max(ranks, 2)
    none = difference(0, hidden, q), difference(batch, 0, q), difference(batch, hidden, 0)
    along_ranks = _affine(none[2], difference(batch, hidden, 1) - none[2], low=0.5, high=1)
    at = along_ranks.at
    return Crossings(
        batch=_affine(none[0], difference(1, hidden, q) - none[0]),
        hidden=_affine(none[1], difference(batch, 1, q) - none[1]),
        ranks=along_ranks if at is None else replace(along_ranks, at=1 / (1 - at)),
    )


def _affine(start: float, slope: float, *, low: float = 1.0, high: float = math.inf) -> Crossing:
    """Say where start + slope x is negative, from `low` on."""
    first = start + slope * low
    last = start + slope * high if math.isfinite(high) else slope
    if first * last >= 0 or (first == 0 and last == 0):
        return Crossing(None, "always" if min(first, last) < 0 else "never")
    return Crossing(-start / slope, "below" if first < 0 else "above")


def best_hidden_ranks(sizes: Sizes, ranks: int) -> float:
    """Return p_H of the grid p/p_H x p_H that sends the fewest bytes, were it no whole number.

    A rank of it sends 2 (1/p_H - 1/p) n + 2 (1 - 1/p_H) C B p_H / p elements, least at
    p_H = sqrt(n p / (C B)): data parallel where that is at most 1 (C B >= n p), model parallel
    where it is at least p (C B <= n / p), in between a mixture.
    """
    return math.sqrt(sizes.parameters * ranks / (sizes.C * sizes.B))


def of_kind(ranked: Sequence[Ranked], name: str) -> Ranked | None:
    """Return the ranked grid of that name, such as 'data parallel'; None if it cannot be."""
    return next((r for r in ranked if r.split.grid.name == name), None)
