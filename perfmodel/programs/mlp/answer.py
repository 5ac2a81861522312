"""All ways to split the MLP over p ranks, ranked, and where one overtakes another."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from perfmodel.base.errors import WorkloadError
from perfmodel.programs.mlp.grids import Grid, Sizes
from perfmodel.programs.mlp.measured import Comparison
from perfmodel.programs.mlp.model import (
    Crossings,
    Ranked,
    Rates,
    crossings_of_bytes,
    crossings_of_time,
    rank_grids,
)


@dataclass(frozen=True, slots=True)
class Answer:
    """Everything `perfmodel splits` says.

    Attributes
    ----------
    images : int or None
        Images that stay on the GPUs; None if each batch's are copied.
    ranked, impossible
        As of `perfmodel.programs.mlp.model.rank_grids`.
    bytes, seconds : Crossings
        Between data and model parallelism.
    measured : tuple of Comparison
        A row per report.
    """

    sizes: Sizes
    ranks: int
    rates: Rates
    images: int | None
    ranked: tuple[Ranked, ...]
    impossible: tuple[tuple[Grid, str], ...]
    bytes: Crossings
    seconds: Crossings
    measured: tuple[Comparison, ...] = ()

    @property
    def streamed(self) -> bool:
        """Whether every batch copies its images."""
        return self.images is None


def answer(
    sizes: Sizes,
    ranks: int,
    rates: Rates,
    *,
    images: int | None = None,
    measured: tuple[Comparison, ...] = (),
) -> Answer:
    """Rank all grids of p ranks and say where data and model parallelism change places.

    Raises
    ------
    WorkloadError
        If no grid can be.
    """
    streamed = images is None
    ranked, impossible = rank_grids(sizes, ranks, rates, streamed=streamed)
    if not ranked:
        raise WorkloadError(
            f"expected a way to split {sizes_text(sizes)} over {ranks} ranks; got none: no "
            "dimension has so many elements; take fewer ranks"
        )
    return Answer(
        sizes=sizes,
        ranks=ranks,
        rates=rates,
        images=images,
        ranked=ranked,
        impossible=impossible,
        bytes=crossings_of_bytes(sizes),
        seconds=crossings_of_time(sizes, ranks, rates, streamed=streamed),
        measured=measured,
    )


def sizes_text(sizes: Sizes) -> str:
    """The sizes in one line."""
    return "  ".join(f"{name}={value}" for name, value in asdict(sizes).items())
