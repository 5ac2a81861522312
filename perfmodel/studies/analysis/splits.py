"""Splits with reports: rates from a report, measured communication, all grids ranked."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Final

from perfmodel.analysis.result import RangeRow, RunAnalysis
from perfmodel.base.errors import ModelError, WorkloadError
from perfmodel.base.units import si
from perfmodel.machines.machine import Link
from perfmodel.programs.mlp.settings import COPY, D2H, H2D, REDUCE
from perfmodel.studies.mlp.case import Case, mlp_case
from perfmodel.studies.mlp.splits import (
    Crossing,
    Crossings,
    Grid,
    Ranked,
    Sizes,
    SplitRates,
    Through,
    crossings_of_bytes,
    crossings_of_time,
    of_kind,
    rank_grids,
    split,
    time_split,
)
from perfmodel.studies.models import terms
from perfmodel.studies.models.collectives import cost, fit_link
from perfmodel.studies.models.model import Model
from perfmodel.studies.models.predict import predict
from perfmodel.timing.collectives import NCCL, CollectiveGroup

_IMAGES = (COPY,)
_STAGING = (D2H, H2D)
_RATES = ("P_flops", "P_pci", "P_images", "P_mpi", "P_peer", "alpha")


@dataclass(frozen=True, slots=True)
class SplitMeasured:
    """One report's communication per rank and batch: estimated by formula, and measured.

    Attributes
    ----------
    label, parallel : str
        The report, and 'data' or 'model'.
    grid : Grid
    through : {'MPI', 'NCCL'} or None
        What summed; None if the report shows no all-reduce.
    estimated_bytes, measured_bytes : float or None
        Handed to it; measured by the calls' sizes inside the range MPI_Allreduce. A report does
        not record those of NCCL.
    estimated_calls, measured_calls : float or None
        All-reduces.
    estimated_s, measured_s : float or None
        Time of the all-reduce by the rates, None if these are of another link; and of the range on
        the host, or of NCCL's kernels on the GPU.
    transfer_s : float or None
        Measured from the last rank's arrival on.
    estimated_batch_s : float or None
        The whole batch by the rates, images included, without launches and host overhead; None if
        the rates are of another link.
    measured_batch_s : float
        Its median.
    """

    label: str
    parallel: str
    grid: Grid
    through: Through | None
    estimated_bytes: float
    measured_bytes: float | None
    estimated_calls: float
    measured_calls: float | None
    estimated_s: float | None
    measured_s: float | None
    transfer_s: float | None
    estimated_batch_s: float | None
    measured_batch_s: float


def sizes_of(values: Mapping[str, int]) -> tuple[Sizes, int]:
    """Return the sizes and p from values of D, H, C, B, p and b (4 by default).

    Raises
    ------
    WorkloadError
        If one is missing, unknown or no positive whole number.
    """
    flags = {"D": "input-size", "H": "hidden-size", "C": "num-classes", "B": "batch-size"}
    flags["p"] = "ranks"
    unknown = [name for name in values if name not in (*flags, "b")]
    if unknown:
        raise WorkloadError(
            f"expected values of D, H, C, B, p and b; got {unknown[0]!r}; leave it out"
        )
    missing = [name for name in flags if name not in values]
    if missing:
        flagged = " ".join(f"--{flags[name]} {name}" for name in missing)
        raise WorkloadError(
            f"expected D, H, C, B and p; got no {', '.join(missing)}; give {flagged}, or a report "
            "that gives them"
        )
    of_network = {name: values[name] for name in "DHCB"}
    return Sizes(**of_network, b=values.get("b", 4)), values["p"]


def rates_of(run: RunAnalysis) -> SplitRates:
    """Take the rates from a report that was analyzed with full counting.

    P_flops is over the GEMMs. Images and staging have rates of their own, bytes over the
    ranges' median time on the GPU, or on the host without one. alpha and beta are fitted to the
    report's all-reduces by size; where these have one size, or are NCCL's, whose sizes are not
    recorded, beta takes all of their time.

    Raises
    ------
    ModelError
        If the report gives no P_flops or no all-reduce.
    """
    compute = run.rates.get("P_flops")
    groups = _all_reduces(run)
    if compute is None or not groups or len(run.ranks) < 2:
        lacking = "no P_flops" if compute is None else "no all-reduce of two or more ranks"
        apart = ", without a CUDA graph," if run.workload.replay else ""
        raise ModelError(
            f"{run.label}: expected the rates of a parallel run; got {lacking}; give the report of "
            f"a run of two or more ranks{apart} first, or --rate P_flops=... and --rate P_mpi=..."
        )
    through = _through(groups)
    by_nccl = through == "NCCL"
    link, notes = _nccl_link(run, groups) if by_nccl else _link(groups, len(run.ranks), run.label)
    return SplitRates(
        flops_per_s=compute.value,
        link=link,
        images_bytes_per_s=_rate(run, _IMAGES),
        staging_bytes_per_s=_rate(run, _STAGING),
        source=run.label,
        notes=notes,
        through=through or "MPI",
        copied={
            f"{run.label}, {clock}": rate
            for clock in ("GPU", "host")
            if (rate := _rate(run, _IMAGES, host=clock == "host")) is not None
        },
    )


def override(rates: SplitRates, given: Mapping[str, float]) -> SplitRates:
    """Replace rates by given ones: P_flops, P_pci, P_mpi or P_peer (one direction), alpha.

    P_images is the rate of the images alone, P_pci that of the staging and, without P_images, of
    the images, too.

    Raises
    ------
    ModelError
        If a name is unknown or a value not above 0.
    """
    for name, value in given.items():
        if name not in _RATES or not value >= 0 or (name != "alpha" and value == 0):
            raise ModelError(
                f"expected a rate among {', '.join(_RATES)}, above 0; got {name}={value:g}; give "
                "--rate P_mpi=4GB/s, say"
            )
    changed = rates
    if {"P_mpi", "P_peer"} <= given.keys():
        raise ModelError("expected one link; got P_mpi and P_peer; give the one that sums")
    if given.keys() & {"P_mpi", "P_peer", "alpha"}:
        sent = given.get("P_mpi", given.get("P_peer", 1 / rates.link.beta_s_per_byte))
        through: Through = "NCCL" if "P_peer" in given else rates.through
        through = "MPI" if "P_mpi" in given else through
        alpha = given.get("alpha", rates.link.alpha_s)
        notes = () if "alpha" in given else rates.notes
        changed = replace(changed, link=Link(alpha, 1 / sent), notes=notes, through=through)
    if "P_pci" in given:
        pci = given["P_pci"]
        changed = replace(changed, images_bytes_per_s=pci, staging_bytes_per_s=pci)
    if "P_images" in given:
        changed = replace(changed, images_bytes_per_s=given["P_images"])
    if "P_flops" in given:
        changed = replace(changed, flops_per_s=given["P_flops"])
    return replace(changed, source=f"{rates.source} and --rate") if given else changed


def compare(run: RunAnalysis, rates: SplitRates) -> SplitMeasured:
    """Compare a data or model parallel report's all-reduce with the formulas' estimate.

    Raises
    ------
    WorkloadError
        If the report's sizes are unknown.
    """
    sizes, ranks = sizes_of({s: run.identity.values[s] for s in run.workload.symbols})
    parallel = "model" if run.identity.config.get("parallel") == "model" else "data"
    grid = Grid(H=ranks) if parallel == "model" else Grid(B=ranks)
    parts = split(sizes, grid)
    transfers = parts.transfers
    groups = _all_reduces(run)
    through = _through(groups)
    row = None if through == "NCCL" else _row(run, REDUCE)
    transfer = [g.transfer_s for g in groups]
    known = [s for s in transfer if s is not None]
    estimated = sum(
        cost(t.collective, t.bytes, t.ranks, rates.algorithm).seconds(rates.link) for t in transfers
    )
    measured = row.host_s if row else None
    if through == "NCCL":  # the host only queues it
        measured = sum(g.count * g.seconds for g in groups)
    return SplitMeasured(
        label=run.label,
        parallel=parallel,
        grid=grid,
        through=through,
        estimated_bytes=sum(t.bytes for t in transfers),
        measured_bytes=row.measured_mpi_bytes if row else None,
        estimated_calls=len(transfers),
        measured_calls=sum(g.count for g in groups) if groups else None,
        estimated_s=estimated if through in (None, rates.through) else None,
        measured_s=measured,
        transfer_s=(
            sum(g.count * (g.transfer_s or 0.0) for g in groups)
            if known and len(known) == len(transfer)
            else None
        ),
        estimated_batch_s=(
            time_split(parts, rates).batch_s(streamed=_row(run, COPY) is not None)
            if through in (None, rates.through)
            else None
        ),
        measured_batch_s=run.batch.median.value,
    )


def _link(groups: list[CollectiveGroup], ranks: int, label: str) -> tuple[Link, tuple[str, ...]]:
    sizes = [float(g.bytes or 0) for g in groups]
    seconds = [g.own_s for g in groups]
    try:
        return fit_link(sizes, seconds, ranks), ()
    except ModelError:  # one size, or times that do not grow
        sent = sum(g.count * cost("all-reduce", g.bytes or 0, ranks).sent_bytes for g in groups)
        spent = sum(g.count * s for g, s in zip(groups, seconds, strict=True))
    note = (
        f"{label}: the times of its all-reduces do not determine alpha and beta, so alpha is "
        "unknown and beta takes all of them; give the report of a data parallel run first, or "
        "--rate alpha=..."
    )
    return Link(0.0, spent / sent), (note,)


def _nccl_link(run: RunAnalysis, groups: list[CollectiveGroup]) -> tuple[Link, tuple[str, ...]]:
    """Take beta from the formula's bytes of a batch over the time of all kernels in it."""
    handed = float(run.totals.peer_message_bytes)
    spent = sum(g.count * g.own_s for g in groups)
    note = (
        f"{run.label}: reports do not record the sizes of NCCL's messages, so P_peer takes those "
        "of the formulas, alpha is unknown and beta takes all of the time; give --rate alpha=..."
    )
    return Link(0.0, spent / cost("all-reduce", handed, len(run.ranks)).sent_bytes), (note,)


def _all_reduces(run: RunAnalysis) -> list[CollectiveGroup]:
    """All-reduces of MPI with their sizes, else those of NCCL."""
    found = [g for g in run.collectives if g.name == REDUCE and g.bytes]
    return found or [g for g in run.collectives if g.name == f"{NCCL}AllReduce"]


def _through(groups: list[CollectiveGroup]) -> Through | None:
    if not groups:
        return None
    return "NCCL" if groups[0].name.startswith(NCCL) else "MPI"


def _row(run: RunAnalysis, label: str) -> RangeRow | None:
    return next((row for row in run.ranges if row.label == label), None)


def _rate(run: RunAnalysis, labels: tuple[str, ...], *, host: bool = False) -> float | None:
    """Bytes over time of these ranges together; None where they were not measured."""
    moved = spent = 0.0
    for row in (r for label in labels if (r := _row(run, label)) is not None):
        seconds = row.host_s if host or row.gpu_projection_s is None else row.gpu_projection_s
        if row.pci_bytes and seconds:
            moved, spent = moved + row.pci_bytes, spent + seconds
    return moved / spent if spent else None


@dataclass(frozen=True, slots=True)
class Copied:
    """The B at which model parallelism overtakes if images are copied at this rate."""

    timed: str
    bytes_per_s: float
    batch: Crossing


@dataclass(frozen=True, slots=True)
class Splits:
    """Everything `perfmodel study splits` says.

    Attributes
    ----------
    images : int or None
        Images that stay on the GPUs; None if each batch's are copied.
    ranked, impossible
        As of `perfmodel.studies.mlp.splits.rank_grids`.
    bytes, seconds : Crossings
        Between data and model parallelism.
    measured : tuple of Comparison
        A row per report.
    """

    sizes: Sizes
    ranks: int
    rates: SplitRates
    images: int | None
    ranked: tuple[Ranked, ...]
    impossible: tuple[tuple[Grid, str], ...]
    bytes: Crossings
    seconds: Crossings
    measured: tuple[SplitMeasured, ...] = ()

    @property
    def copied(self) -> tuple[Copied, ...]:
        """Return the crossings if images are copied at each of the rates that were timed."""
        return tuple(
            Copied(
                name, rate,
                crossings_of_time(
                    self.sizes, self.ranks, replace(self.rates, images_bytes_per_s=rate)
                ).batch,
            )
            for name, rate in self.rates.copied.items()
        )  # fmt: skip

    @property
    def streamed(self) -> bool:
        """Whether every batch copies its images."""
        return self.images is None


def rank_splits(
    sizes: Sizes,
    ranks: int,
    rates: SplitRates,
    *,
    images: int | None = None,
    measured: tuple[SplitMeasured, ...] = (),
) -> Splits:
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
    return Splits(
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


_ENDS: Final = {"H": (1, 1 << 17), "B": (1, 1 << 20), "p": (2, 1 << 10)}
"""Range in which crossings are searched."""


@dataclass(frozen=True, slots=True)
class Parallelisms:
    """Data against model parallelism for one report's sizes and ranks.

    Attributes
    ----------
    data_s, model_s : float or None
        Seconds of a batch by formula (`perfmodel.splits`): bytes and FLOPs over the report's rates,
        without launches. None where the report has no rates.
    data_bytes, model_bytes : float
        Handed to the all-reduce.
    rates : str
        Where the rates come from, or why there are none.
    bytes : Crossings
        Where the model's message is the smaller one.
    seconds : Crossings or None
        Sizes from which its batch is the shorter one, by formula.
    calibrated : Crossings or None
        The same by the calibrated model, whose terms are measured.
    missing_calibration : str
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
    missing_calibration: str


def parallelisms(full: RunAnalysis, case: terms.Case, model: Model | None) -> Parallelisms | None:
    """Compare both parallelisms by formula and, where it can, by the calibrated model.

    Parameters
    ----------
    full : RunAnalysis
        Counted in full.
    case : Case
    model : Model, optional

    Returns
    -------
    Parallelisms or None
        None on one rank, and of another program than the trainer.
    """
    if not isinstance(case, Case) or case.sizes["p"] < 2:
        return None
    sizes, ranks = sizes_of(case.sizes)
    streamed = case.streamed
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
    calibrated, missing = _calibrated(case, model)
    return Parallelisms(
        times[0], times[1], data, apart, source, crossings_of_bytes(sizes), seconds,
        calibrated, missing,
    )  # fmt: skip


def _calibrated(case: Case, model: Model | None) -> tuple[Crossings | None, str]:
    if model is None:
        return None, "no calibrated model was given (--model model.json)"
    settings = case.having(overlap="no").settings
    try:
        kinds = [mlp_case(case.sizes, {**settings, "parallel": k}) for k in ("data", "model")]

        def faster(symbol: str) -> Callable[[int], bool]:
            def wins(value: int) -> bool:
                data, apart = (k.resized({symbol: value}) for k in kinds)
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
    at = low + bisect_left(range(low, high), True, key=lambda value: wins(value) != first)
    return Crossing(float(at), "below" if first else "above")


def words(p: Parallelisms) -> Iterator[str]:
    """Say which parallelism sends less, and which takes less time, by formula and by a model."""
    yield (
        f"Model parallelism hands the all-reduce {si(p.model_bytes, 'B')} for "
        f"{si(p.data_bytes, 'B')}: fewer bytes {_where(p.bytes)}."
    )
    if p.seconds is None or p.data_s is None or p.model_s is None:
        yield f"Its time cannot be predicted: {p.rates}."
    else:
        yield (
            f"By formula (rates of {p.rates}; no launches): {si(p.model_s, 's')} for data "
            f"parallelism's {si(p.data_s, 's')}; faster {_where(p.seconds)}."
        )
    if p.calibrated is not None:
        yield f"By the calibrated model, whose terms are measured: faster {_where(p.calibrated)}."
    else:
        yield f"Not by a calibrated model: {p.missing_calibration}."


def _where(at: Crossings) -> str:
    along = (at.hidden, "H"), (at.batch, "B"), (at.ranks, "p")
    return "; ".join(crossing.where(symbol, digits=0) for crossing, symbol in along)
