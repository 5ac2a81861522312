"""The answer: the ranked grids as a table and as JSON, and which one is best, in sentences."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

from perfmodel.base.errors import WorkloadError
from perfmodel.base.table import Column, Table
from perfmodel.base.units import si
from perfmodel.programs.mlp.grids import Grid, Sizes
from perfmodel.programs.mlp.measured import Comparison
from perfmodel.programs.mlp.model import (
    Crossing,
    Crossings,
    Ranked,
    Rates,
    best_hidden_ranks,
    crossings_of_bytes,
    crossings_of_time,
    of_kind,
    rank_grids,
)

_MOST_ROWS: Final = 16


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
            f"wanted a way to split {_sizes(sizes)} over {ranks} ranks; found none: no dimension "
            "has so many elements; take fewer ranks"
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


def grids_table(found: Answer, most: int = _MOST_ROWS) -> Table:
    """One row per grid, the fastest first."""
    columns = (
        Column("split", "Split"),
        Column("layer_1", "Layer 1"),
        Column("layer_2", "Layer 2"),
        Column("flops", "FLOPs", "si", ""),
        Column("calls", "Calls", "int"),
        Column("sent_bytes", "Sent", "si", "B"),
        Column("staged_bytes", "Staged", "si", "B"),
        Column("image_bytes", "Images", "si", "B"),
        Column("memory_bytes", "Memory", "si", "B"),
        Column("compute_s", "Compute", "si", "s"),
        Column("copies_s", "Copies", "si", "s"),
        Column("mpi_s", found.rates.through, "si", "s"),
        Column("batch_s", "Batch", "si", "s"),
    )
    shown = found.ranked[:most]
    notes = [
        "per rank and batch; layers: into how many parts the loops i, k, j are cut; sent: bytes a "
        "rank sends by a ring; staged: copied between GPU and host for MPI",
        f"rates: {_rates(found.rates)}",
    ]
    uneven = [r.split for r in shown if r.split.balance < 1]
    if uneven:
        worst = min(uneven, key=lambda s: s.balance)
        notes.append(
            f"{len(uneven)} do not divide evenly: the numbers are the busiest rank's, which "
            f"multiplies up to {100 / worst.balance - 100:.2g} % more than the mean "
            f"({worst.grid.name})"
        )
    if len(shown) < len(found.ranked):
        notes.append(f"{len(found.ranked) - len(shown)} slower grids are in --json")
    if found.impossible:
        grid, problem = found.impossible[0]
        more = f" and {len(found.impossible) - 1} more" if len(found.impossible) > 1 else ""
        notes.append(f"impossible: {grid.name} ({problem}){more}")
    how = "images copied in every batch" if found.streamed else "images resident"
    title = f"{len(found.ranked)} ways to split {_sizes(found.sizes)} over p={found.ranks}, {how}"
    return Table(title, columns, [_row(found, r) for r in shown], tuple(notes))


def _row(found: Answer, ranked: Ranked) -> list[object]:
    s, t = ranked.split, ranked.times
    layers = [s.grid.parts(name) for name in ("forward GEMM 1", "forward GEMM 2")]
    return [
        s.grid.name,
        *("x".join(map(str, layer)) for layer in layers),
        s.flops,
        len(s.transfers),
        s.sent_bytes,
        s.staged_bytes if found.rates.staging_bytes_per_s else None,
        s.image_bytes,
        s.memory_bytes(found.images),
        t.compute_s,
        t.staging_s + found.streamed * t.images_s,
        t.mpi_s,
        t.batch_s(streamed=found.streamed),
    ]


def measured_table(found: Answer) -> Table:
    """Each report's all-reduces beside the paper's estimate."""
    columns = (
        Column("report", "Report"),
        Column("split", "Split"),
        Column("through", "By"),
        Column("estimated_bytes", "Paper", "si", "B", digits=4),
        Column("measured_bytes", "Measured", "si", "B", digits=4),
        Column("measured_calls", "Calls", "int"),
        Column("estimated_s", "Paper's time", "si", "s"),
        Column("transfer_s", "Transfer", "si", "s"),
        Column("measured_s", "Range", "si", "s"),
    )
    rows = [
        (
            m.label, m.grid.name, m.through, m.estimated_bytes, m.measured_bytes, m.measured_calls,
            m.estimated_s, m.transfer_s, m.measured_s,
        )
        for m in found.measured
    ]  # fmt: skip
    notes = [
        "bytes handed over per rank and batch; transfer: from the last rank's arrival on; range: "
        f"MPI_Allreduce on the host; the paper's time takes alpha and beta of {found.rates.source}"
    ]
    if any(m.through == "NCCL" for m in found.measured):
        notes.append(
            "NCCL: a report does not record its bytes; calls and times are those of its kernels on "
            "the GPU, range with the waiting for other ranks"
        )
    if any(m.estimated_s is None for m in found.measured):
        notes.append(
            f"no paper's time: {found.rates.source} tells alpha and beta of {found.rates.through} "
            "only; give a report that sums by the same first"
        )
    return Table("Communication on paper and measured", columns, rows, tuple(notes))


def sentences(found: Answer) -> tuple[str, ...]:
    """Answer the handout's question, which split is best, and say when it would be another."""
    return tuple(_sentences(found))


def _sentences(found: Answer) -> Iterator[str]:
    best = found.ranked[0]
    yield (
        f"Best for {_sizes(found.sizes)}, p={found.ranks}: {best.split.grid.name}, "
        f"{_batch(found, best)} a batch; layer 1 cuts {_loops(best, 'forward GEMM 1')}, layer 2 "
        f"{_loops(best, 'forward GEMM 2')}."
    )
    if found.ranks == 1:
        return
    data, model = (of_kind(found.ranked, f"{k} parallel") for k in ("data", "model"))
    if data and model:
        n, m = data.split.message_bytes, model.split.message_bytes
        yield (
            f"Data parallelism hands {found.rates.through} {si(n, 'B')} a batch and takes "
            f"{_batch(found, data)}, model parallelism {si(m, 'B')} ({m / n:.3g} times as much) "
            f"and {_batch(found, model)}."
        )
    yield (
        "Model parallelism sends fewer bytes while C B < HD + H + CH + C: "
        f"{_where(found.bytes.batch, 'B')} at this H, {_where(found.bytes.hidden, 'H')} at this "
        "B, whatever p."
    )
    other = crossings_of_time(found.sizes, found.ranks, found.rates, streamed=not found.streamed)
    cases = {found.streamed: found.seconds, not found.streamed: other}
    for streamed, said in (("images copied in every batch", True), ("images resident", False)):
        at = cases[said]
        yield (
            f"It takes less time, {streamed}: {_where(at.batch, 'B')}; "
            f"{_where(at.hidden, 'H')}; {_where(at.ranks, 'p')}."
        )
    ideal = best_hidden_ranks(found.sizes, found.ranks)
    fewest = min(found.ranked, key=lambda r: r.split.sent_bytes).split
    yield (
        f"Fewest bytes sent of all: {fewest.grid.name}, {si(fewest.sent_bytes, 'B')}; on paper "
        f"p_H = sqrt(n p / (C B)) = {ideal:.3g} ranks should share the hidden units (1 or fewer: "
        f"data parallel; {found.ranks} or more: model parallel)."
    )


def _where(crossing: Crossing, symbol: str) -> str:
    if crossing.at is None:
        return f"for {'every' if crossing.model_wins == 'always' else 'no'} {symbol}"
    return f"for {symbol} {'<' if crossing.model_wins == 'below' else '>'} {_number(crossing.at)}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _loops(ranked: Ranked, product: str) -> str:
    cuts = zip("ikj", ranked.split.grid.parts(product), strict=True)
    said = [f"{loop} into {n}" for loop, n in cuts if n > 1]
    return " and ".join(said) or "nothing"


def _batch(found: Answer, ranked: Ranked) -> str:
    return si(ranked.times.batch_s(streamed=found.streamed), "s")


def _sizes(sizes: Sizes) -> str:
    return "  ".join(f"{name}={value}" for name, value in asdict(sizes).items())


def _rates(rates: Rates) -> str:
    pci = [
        f"{what} {si(rate, 'B/s')}"
        for what, rate in (
            ("images", rates.images_bytes_per_s),
            ("staging", rates.staging_bytes_per_s),
        )
        if rate is not None
    ]
    return (
        f"P_flops {si(rates.flops_per_s, 'FLOP/s')}, P_pci {', '.join(pci) or 'none'}, "
        f"{rates.link_name} {si(1 / rates.link.beta_s_per_byte, 'B/s')} one way, alpha "
        f"{si(rates.link.alpha_s, 's')}, {rates.algorithm} (from {rates.source})"
    )


def document(found: Answer) -> dict[str, Any]:
    """Return everything as JSON types, in base units; a grid that cannot be has a reason."""
    return {
        "sizes": asdict(found.sizes),
        "ranks": found.ranks,
        "images": found.images,
        "rates": asdict(found.rates),
        "grids": [_grid_document(found, r) for r in found.ranked],
        "impossible": [{"grid": asdict(g), "reason": why} for g, why in found.impossible],
        "crossings": {"bytes": asdict(found.bytes), "seconds": asdict(found.seconds)},
        "best_hidden_ranks": best_hidden_ranks(found.sizes, found.ranks),
        "measured": [asdict(m) for m in found.measured],
        "answer": list(sentences(found)),
    }


def _grid_document(found: Answer, ranked: Ranked) -> dict[str, Any]:
    s = ranked.split
    return {
        "name": s.grid.name,
        "grid": asdict(s.grid),
        "parts": {name: list(s.grid.parts(name)) for name in s.products},
        "transfers": [
            {**asdict(t), "sent_bytes": t.sent_bytes, "staged_bytes": t.staged_bytes}
            for t in s.transfers
        ],
        "products_flops": dict(s.products),
        "flops": s.flops,
        "balance": s.balance,
        "parameters": s.parameters,
        "memory_bytes": s.memory_bytes(found.images),
        "image_bytes": s.image_bytes,
        "staged_bytes": s.staged_bytes,
        "message_bytes": s.message_bytes,
        "sent_bytes": s.sent_bytes,
        "seconds": asdict(ranked.times),
        "batch_s": ranked.times.batch_s(streamed=found.streamed),
    }
