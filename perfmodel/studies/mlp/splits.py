"""Splits of the trainer's GEMMs over ranks: grids, what they compute and send, time, crossings.

Source: the handout, section 4.3: each GEMM is a triple loop, sum over k of A[i, k] B[k, j], and
the question is how to partition its triplets (i, k, j) over the ranks. [D] is the CME 213
assignment.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Final, Literal

from perfmodel.base.errors import WorkloadError
from perfmodel.machines.machine import Collective, Link
from perfmodel.programs.mlp.settings import (
    GEMM_LOOPS,
    HIDDEN_FLOPS,
    LAYER_1,
    OUTPUT_FLOPS,
    gemm_flops,
    parameters,
)
from perfmodel.studies.models.collectives import cost
from perfmodel.workloads.work import Symbol

MOST_RANKS: Final = 65_536
"""Of those, 55,440 have the most grids, 22,400: two seconds. Larger numbers may take hours."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """The network and its batch: D inputs, H hidden units, C classes, B images, b bytes each."""

    D: int
    H: int
    C: int
    B: int
    b: int = 4

    def __post_init__(self) -> None:
        for f in fields(self):
            Symbol(f.name).check(getattr(self, f.name))

    @property
    def parameters(self) -> int:
        """Elements of the network's parameters, n."""
        return int(parameters(self.D, self.H, self.C))


@dataclass(frozen=True, slots=True)
class Grid:
    """A process grid, p = B x H x D x C: into how many parts each dimension is cut.

    Ranks along D have work in layer 1 only, ranks along C in layer 2 only; in the other layer
    they cut H further. So every rank does 1/p of the triplets of every GEMM, and none twice:

    =======  ==============  ==============  =========
    layer    i               k               j
    =======  ==============  ==============  =========
    1        H in H x C      D in D          B in B
    2        C in C          H in H x D      B in B
    =======  ==============  ==============  =========

    Both layers cut the batch alike: changing that between them would move all of a1 and da1.
    """

    B: int = 1
    H: int = 1
    D: int = 1
    C: int = 1

    @property
    def ranks(self) -> int:
        """Return the number of ranks, p."""
        return self.B * self.H * self.D * self.C

    @property
    def name(self) -> str:
        """Data parallel, model parallel, or the cuts, such as 'B2 x H2'."""
        cuts = [(f.name, getattr(self, f.name)) for f in fields(self)]
        cut = [(dimension, n) for dimension, n in cuts if n > 1]
        known = {"": "one rank", "B": "data parallel", "H": "model parallel"}
        return known.get(
            "".join(d for d, _ in cut), " x ".join(f"{dimension}{n}" for dimension, n in cut)
        )

    def parts(self, gemm: str) -> tuple[int, int, int]:
        """Return into how many parts the loops i, k and j of a GEMM are cut."""
        cuts = {f.name: getattr(self, f.name) for f in fields(self)}
        cuts["H"] *= self.C if gemm in LAYER_1 else self.D
        i, k, j = (cuts[dimension] for dimension in GEMM_LOOPS[gemm])
        return i, k, j

    def why_not(self, sizes: Sizes) -> str | None:
        """Say why the sizes cannot be cut like this; None if they can."""
        for dimension, cut in (
            ("B", self.B), ("H", self.H * self.D * self.C), ("D", self.D), ("C", self.C),
        ):  # fmt: skip
            size = getattr(sizes, dimension)
            if cut > size:
                return f"{dimension} = {size} cannot be cut into {cut} parts"
        return None


@dataclass(frozen=True, slots=True)
class Transfer:
    """One collective of every batch: who takes part, and what the whole vector is.

    Attributes
    ----------
    what : str
    collective : {'all-reduce', 'reduce-scatter', 'all-gather'}
    ranks : int
        Of one group; the groups work side by side.
    elements : int
        The vector's: reduced whole, scattered from, or gathered to on every rank.
    bytes : int
        The same in bytes: what is handed to MPI (an all-gather's: what it hands back).
    """

    what: str
    collective: Collective
    ranks: int
    elements: int
    bytes: int

    @property
    def sent_bytes(self) -> float:
        """Bytes one rank sends by a ring, the fewest there can be; it receives as many."""
        return cost(self.collective, self.bytes, self.ranks).sent_bytes

    @property
    def staged_bytes(self) -> float:
        """Bytes over PCIe where MPI reads host memory: what goes in and what comes out."""
        if self.collective == "all-reduce":
            return 2 * self.bytes
        return self.bytes + self.bytes / self.ranks


@dataclass(frozen=True, slots=True)
class Split:
    """The work of one rank of a grid in one batch; the busiest one where sizes do not divide.

    Attributes
    ----------
    products : mapping of str to int
        FLOPs of every GEMM.
    elementwise_flops, step_flops, reduce_flops : float
        Of the activations and their gradients, of the update, of adding in collectives.
    balance : float
        Mean over busiest rank of the GEMMs' FLOPs: 1 if all dimensions divide.
    parameters : int
        Elements of W1, b1, W2 and b2 that the rank holds.
    activations : int
        Elements of the hidden and output layer's buffers.
    image_bytes : int
        Its part of the pixels and one-hot labels of one batch: PCIe bytes if streamed.
    """

    sizes: Sizes
    grid: Grid
    transfers: tuple[Transfer, ...]
    products: Mapping[str, int]
    elementwise_flops: int
    step_flops: int
    reduce_flops: float
    balance: float
    parameters: int
    activations: int
    image_bytes: int

    @property
    def compute_flops(self) -> int:
        """FLOPs on the GPU: GEMMs, elementwise work, step."""
        return sum(self.products.values()) + self.elementwise_flops + self.step_flops

    @property
    def flops(self) -> float:
        """All FLOPs, those of the collectives included."""
        return self.compute_flops + self.reduce_flops

    @property
    def message_bytes(self) -> int:
        """Bytes handed to MPI."""
        return sum(t.bytes for t in self.transfers)

    @property
    def sent_bytes(self) -> float:
        """Bytes sent, one direction."""
        return sum(t.sent_bytes for t in self.transfers)

    @property
    def staged_bytes(self) -> float:
        """Bytes copied between GPU and host for MPI."""
        return sum(t.staged_bytes for t in self.transfers)

    def memory_bytes(self, images: int | None = None) -> int:
        """GPU memory: parameters, gradients, activations, and the images of a batch or of all.

        Parameters
        ----------
        images : int, optional
            Number of images that stay resident; a buffer for one batch by default.
        """
        held = self.image_bytes
        if images is not None:
            per_image = self.image_bytes // -(-self.sizes.B // self.grid.B)
            held = per_image * -(-images // self.grid.B)
        return self.sizes.b * (2 * self.parameters + self.activations) + held


def grids(ranks: int) -> tuple[Grid, ...]:
    """Enumerate all grids of p ranks: every way to write p as B x H x D x C.

    Examples
    --------
    >>> [grid.name for grid in grids(2)]
    ['C2', 'D2', 'model parallel', 'data parallel']
    """
    if not 1 <= ranks <= MOST_RANKS:
        raise WorkloadError(f"expected 1 to {MOST_RANKS} ranks; got {ranks}; give another p")
    return tuple(Grid(*factors) for factors in _factorizations(ranks, len(fields(Grid))))


def _factorizations(number: int, count: int) -> Iterator[tuple[int, ...]]:
    if count == 1:
        yield (number,)
        return
    small = [factor for factor in range(1, math.isqrt(number) + 1) if number % factor == 0]
    for factor in sorted({*small, *(number // one for one in small)}):
        for rest in _factorizations(number // factor, count - 1):
            yield (factor, *rest)


def split(sizes: Sizes, grid: Grid) -> Split:
    """Count what one rank of a grid does and sends.

    The rules: a loop's cut in k leaves partial sums, which are reduced over the ranks of that cut;
    a cut in i or j leaves different elements, which are gathered where the next GEMM needs them
    whole. Elements are ceil(size / parts), the busiest rank's.

    Raises
    ------
    WorkloadError
        If the sizes cannot be cut like this.
    """
    problem = grid.why_not(sizes)
    if problem is not None:
        raise WorkloadError(f"{grid.name}: {problem}; take fewer ranks along it")
    hidden = -(-sizes.H // (grid.H * grid.D * grid.C))  # what a rank owns of a1 and b1
    rows_1, rows_2 = -(-sizes.H // (grid.H * grid.C)), -(-sizes.H // (grid.H * grid.D))
    pixels, classes = -(-sizes.D // grid.D), -(-sizes.C // grid.C)
    images = -(-sizes.B // grid.B)
    weights = rows_1 * pixels + classes * rows_2
    parameters = weights + hidden + classes
    products = {
        name: int(
            gemm_flops(*(-(-getattr(sizes, d) // cut) for d, cut in zip(loops, cuts, strict=True)))
        )
        for name, loops in GEMM_LOOPS.items()
        for cuts in (grid.parts(name),)
    }
    whole = sum(gemm_flops(*(getattr(sizes, d) for d in loops)) for loops in GEMM_LOOPS.values())
    moved = tuple(_transfers(sizes.b, grid, (rows_1, rows_2, classes, images), parameters))
    reduced = [t for t in moved if t.collective != "all-gather"]
    apart = grid.D > 1 or grid.C > 1  # then the layers hold different rows of the hidden layer
    buffers = rows_1 + 2 * rows_2 if apart else 2 * rows_1
    return Split(
        sizes=sizes,
        grid=grid,
        transfers=moved,
        products=products,
        elementwise_flops=(
            sum(HIDDEN_FLOPS.values()) * hidden + sum(OUTPUT_FLOPS.values()) * classes
        )
        * images,
        step_flops=2 * parameters + 2 * weights,
        reduce_flops=sum((t.ranks - 1) * t.elements / t.ranks for t in reduced),
        balance=whole / grid.ranks / sum(products.values()),
        parameters=parameters,
        activations=(buffers + classes) * images,
        image_bytes=sizes.b * (pixels + classes) * images,
    )


def _transfers(
    b: int, grid: Grid, blocks: tuple[int, int, int, int], parameters: int
) -> Iterator[Transfer]:
    """Yield the collectives of one batch in order, those of one rank left out."""
    rows_1, rows_2, classes, images = blocks
    found: tuple[tuple[str, Collective, int, int], ...] = (
        ("z1, partial over D", "reduce-scatter", grid.D, rows_1 * images),
        ("a1", "all-gather", grid.C, rows_2 * images),
        ("z2, partial over H", "all-reduce", grid.H * grid.D, classes * images),
        ("maxima of the softmax", "all-reduce", grid.C, images),
        ("sums of the softmax", "all-reduce", grid.C, images),
        ("da1, partial over C", "reduce-scatter", grid.C, rows_2 * images),
        ("dz1", "all-gather", grid.D, rows_1 * images),
        ("gradients, partial over B", "all-reduce", grid.B, parameters),
    )
    for what, collective, ranks, elements in found:
        if ranks > 1:
            yield Transfer(what, collective, ranks, elements, b * elements)


Side = Literal["below", "above", "always", "never"]
Through = Literal["MPI", "NCCL"]


@dataclass(frozen=True, slots=True)
class SplitRates:
    """Rates that turn counts into seconds.

    Attributes
    ----------
    flops_per_s : float
        P_flops.
    link : Link
        alpha and beta of MPI, or of NCCL; 1/beta is P_mpi, or P_peer, in bytes sent, one direction.
    images_bytes_per_s, staging_bytes_per_s : float or None
        P_pci of the images, and of what MPI is handed; None where nothing is copied.
    algorithm : str
        Of the all-reduce (`perfmodel.studies.models.collectives.algorithms`).
    source : str
        Where the rates come from.
    notes : tuple of str
        What is missing in them.
    through : {'MPI', 'NCCL'}
        Whose link it is.
    copied : mapping of str to float
        Rates at which the images were copied, by what timed the copy, in B/s: of the image copy,
        where `images_bytes_per_s` is another or one of them.
    """

    flops_per_s: float
    link: Link
    images_bytes_per_s: float | None
    staging_bytes_per_s: float | None
    algorithm: str = "ring"
    source: str = "given"
    notes: tuple[str, ...] = ()
    through: Through = "MPI"
    copied: Mapping[str, float] = field(default_factory=dict)

    @property
    def link_name(self) -> str:
        """Name of 1/beta."""
        return "P_mpi" if self.through == "MPI" else "P_peer"


DOCUMENT: Final = SplitRates(
    flops_per_s=1.632730e12,
    link=Link(0.0, 2 / 7.9502e9),
    images_bytes_per_s=1.2720e10,
    staging_bytes_per_s=1.2720e10,
    source="the CME 213 assignment, Question 2.4",
    notes=("alpha is unknown: messages cost their bytes only; give --rate alpha=2us, say",),
    copied={
        "Figure 11, GPU": 4 * 1500 * (784 + 10) / 574.799e-6,
        "Figure 11, host": 4 * 1500 * (784 + 10) / 2.002e-3,
    },
)
"""The assignment's rates, of two GPUs; its P_mpi counts both directions, 2 n b bytes. Question 2.4
leaves out the copy of images, whose medians are in Figure 11: 574.799 us on the GPU, 2.002 ms on
the host, for b B/2 (D + C) bytes at B = 3000."""


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


def time_split(found: Split, rates: SplitRates) -> Times:
    """Predict one batch: F / P_flops + bytes / P_pci + alpha, beta (and gamma) of the collectives.

    Source: CME 213 assignment, Question 2.5 for the sum, `models.collectives` for the messages.
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
    sizes: Sizes, ranks: int, rates: SplitRates, *, streamed: bool = True
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
            possible.append(Ranked(found, time_split(found, rates)))
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
    """The point along one symbol at which model parallelism overtakes data parallelism.

    `model_wins` is 'below' or 'above' the value `at`, or 'always' or 'never' (`at` is None).
    """

    at: float | None
    model_wins: Side

    def where(self, symbol: str, *, digits: int = 4) -> str:
        """Say for which values model parallelism wins; below 1000 with so many digits."""
        if self.at is None:
            return f"for {'every' if self.model_wins == 'always' else 'no'} {symbol}"
        shown = f"{self.at:,.0f}" if self.at >= 1000 or not digits else f"{self.at:.{digits}g}"
        return f"for {symbol} {'<' if self.model_wins == 'below' else '>'} {shown}"


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
    sizes: Sizes, ranks: int, rates: SplitRates, *, streamed: bool = True
) -> Crossings:
    """Say where a model parallel batch takes less time than a data parallel one.

    With q = 1 - 1/p and shares that divide, the ring's (or Rabenseifner's) difference is

        t_model - t_data = q X + Y,
        X = b (D + C) B / P_images + (2 beta + gamma) b (C B - n)
            + (9 C B - 4 H (D + C) - 2 H) / P_flops,
        Y = 2 b (C B - n) / P_staging:

    the images that model parallelism copies needlessly, the bytes it does not send, its repeated
    softmax against the step on all parameters, and the bytes it does not stage. It is affine in
    B, in H and in q; alpha cancels, since each all-reduces once.
    """

    def difference(images: float, hidden: float, q: float) -> float:
        s, pci, host = sizes, rates.images_bytes_per_s, rates.staging_bytes_per_s
        fewer = s.b * (s.C * images - hidden * (s.D + s.C + 1) - s.C)
        extra = _over(s.b * (s.D + s.C) * images, pci) if streamed else 0.0
        sent = (2 * rates.link.beta_s_per_byte + rates.link.gamma_s_per_byte) * fewer
        flops = sum(OUTPUT_FLOPS.values()) * s.C * images - hidden * (4 * (s.D + s.C) + 2)
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
