"""The ways to split the MLP over ranks: ranked, which is best in sentences, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Final

from perfmodel.base.document import pick
from perfmodel.base.table import Column, Table
from perfmodel.base.units import si
from perfmodel.programs.mlp.settings import LAYER_1, LAYER_2
from perfmodel.render.result import Result
from perfmodel.studies.analysis.splits import Splits, sizes_text
from perfmodel.studies.mlp.splits import (
    Ranked,
    SplitRates,
    best_hidden_ranks,
    crossings_of_time,
    of_kind,
)

_MOST_ROWS: Final = 16


def result(found: Splits) -> Result:
    """Return the ranked splits in every format."""
    tables = [grids_table(found), *([measured_table(found)] if found.measured else [])]
    return Result([*tables, sentences(found)], lambda: document(found))


def grids_table(found: Splits) -> Table:
    """One row per grid, the fastest first."""
    staged = found.rates.staging_bytes_per_s
    columns = (
        Column("split", "Split", of="split.grid.name"),
        Column("layer_1", "Layer 1", of=lambda r: _parts(r, LAYER_1[0])),
        Column("layer_2", "Layer 2", of=lambda r: _parts(r, LAYER_2[0])),
        Column("flops", "FLOPs", "si", "", of="split.flops"),
        Column("calls", "Calls", "int", of=lambda r: len(r.split.transfers)),
        Column("sent_bytes", "Sent", "si", "B", of="split.sent_bytes"),
        Column("staged_bytes", "Staged", "si", "B",
               of=lambda r: r.split.staged_bytes if staged else None),
        Column("image_bytes", "Images", "si", "B", of="split.image_bytes"),
        Column("memory_bytes", "Memory", "si", "B",
               of=lambda r: r.split.memory_bytes(found.images)),
        Column("compute_s", "Compute", "si", "s", of="times.compute_s"),
        Column("copies_s", "Copies", "si", "s",
               of=lambda r: r.times.staging_s + found.streamed * r.times.images_s),
        Column("mpi_s", found.rates.through, "si", "s", of="times.mpi_s"),
        Column("batch_s", "Batch", "si", "s",
               of=lambda r: r.times.batch_s(streamed=found.streamed)),
    )  # fmt: skip
    how = "images copied in every batch" if found.streamed else "images resident"
    title = (
        f"{len(found.ranked)} ways to split {sizes_text(found.sizes)} over p={found.ranks}, {how}"
    )
    return Table.of(title, found.ranked[:_MOST_ROWS], columns, _grid_notes(found))


def _parts(ranked: Ranked, gemm: str) -> str:
    return "x".join(map(str, ranked.split.grid.parts(gemm)))


def _grid_notes(found: Splits) -> Iterator[str]:
    yield (
        "per rank and batch; layers: into how many parts the loops i, k, j are cut; sent: bytes a "
        "rank sends by a ring; staged: copied between GPU and host for MPI"
    )
    yield f"rates: {_rates(found.rates)}"
    uneven = [r.split for r in found.ranked[:_MOST_ROWS] if r.split.balance < 1]
    if uneven:
        worst = min(uneven, key=lambda s: s.balance)
        yield (
            f"{len(uneven)} do not divide evenly: the numbers are the busiest rank's, which "
            f"multiplies up to {100 / worst.balance - 100:.2g} % more than the mean "
            f"({worst.grid.name})"
        )
    if len(found.ranked) > _MOST_ROWS:
        yield f"{len(found.ranked) - _MOST_ROWS} slower grids are in --json"
    if found.impossible:
        grid, problem = found.impossible[0]
        more = f" and {len(found.impossible) - 1} more" if len(found.impossible) > 1 else ""
        yield f"impossible: {grid.name} ({problem}){more}"


MEASURED: Final = (
    Column("report", "Report", of="label"),
    Column("split", "Split", of="grid.name"),
    Column("through", "By"),
    Column("estimated_bytes", "Paper", "si", "B", digits=4),
    Column("measured_bytes", "Measured", "si", "B", digits=4),
    Column("measured_calls", "Calls", "int"),
    Column("estimated_s", "Paper's time", "si", "s"),
    Column("transfer_s", "Transfer", "si", "s"),
    Column("measured_s", "Range", "si", "s"),
    Column("estimated_batch_s", "Paper's batch", "si", "s"),
    Column("measured_batch_s", "Batch", "si", "s"),
)


def measured_table(found: Splits) -> Table:
    """Each report's all-reduces and the formulas' estimate."""
    notes = [
        "bytes handed over per rank and batch; transfer: from the last rank's arrival on; range: "
        f"MPI_Allreduce on the host; the paper's time takes alpha and beta of "
        f"{found.rates.source}; the paper's batch leaves out launches and host overhead"
    ]
    if any(m.through == "NCCL" for m in found.measured):
        notes.append(
            "NCCL: a report does not record its bytes; calls and times are those of its kernels on "
            "the GPU, range with the waiting for other ranks"
        )
    if any(m.estimated_s is None for m in found.measured):
        notes.append(
            f"no paper's time: {found.rates.source} gives alpha and beta of {found.rates.through} "
            "only; give a report that sums by the same first"
        )
    return Table.of("Communication by formula and measured", found.measured, MEASURED, notes)


def sentences(found: Splits) -> tuple[str, ...]:
    """Answer the handout's question, which split is best, and say when it would be another."""
    return tuple(_sentences(found))


def _sentences(found: Splits) -> Iterator[str]:
    best = found.ranked[0]
    yield (
        f"Best for {sizes_text(found.sizes)}, p={found.ranks}: {best.split.grid.name}, "
        f"{_batch(found, best)} a batch; layer 1 cuts {_loops(best, LAYER_1[0])}, layer 2 "
        f"{_loops(best, LAYER_2[0])}."
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
        f"{found.bytes.batch.where('B')} at this H, {found.bytes.hidden.where('H')} at this "
        "B, whatever p."
    )
    other = crossings_of_time(found.sizes, found.ranks, found.rates, streamed=not found.streamed)
    cases = {found.streamed: found.seconds, not found.streamed: other}
    for streamed, said in (("images copied in every batch", True), ("images resident", False)):
        at = cases[said]
        yield (
            f"It takes less time, {streamed}: {at.batch.where('B')}; "
            f"{at.hidden.where('H')}; {at.ranks.where('p')}."
        )
    for one in found.copied:
        yield (
            f"With images copied at {si(one.bytes_per_s, 'B/s')}, as timed by {one.timed}: "
            f"{one.batch.where('B')}."
        )
    ideal = best_hidden_ranks(found.sizes, found.ranks)
    fewest = min(found.ranked, key=lambda r: r.split.sent_bytes).split
    yield (
        f"Fewest bytes sent of all: {fewest.grid.name}, {si(fewest.sent_bytes, 'B')}; by formula "
        f"p_H = sqrt(n p / (C B)) = {ideal:.3g} ranks should share the hidden units (1 or fewer: "
        f"data parallel; {found.ranks} or more: model parallel)."
    )


def _loops(ranked: Ranked, product: str) -> str:
    cuts = zip("ikj", ranked.split.grid.parts(product), strict=True)
    said = [f"{loop} into {n}" for loop, n in cuts if n > 1]
    return " and ".join(said) or "nothing"


def _batch(found: Splits, ranked: Ranked) -> str:
    return si(ranked.times.batch_s(streamed=found.streamed), "s")


def _rates(rates: SplitRates) -> str:
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


def document(found: Splits) -> dict[str, Any]:
    """Return everything as JSON types, in base units; a grid that cannot be has a reason."""
    return {
        **pick(found, "sizes ranks images rates measured"),
        "grids": [_grid_document(found, r) for r in found.ranked],
        "impossible": [{"grid": grid, "reason": why} for grid, why in found.impossible],
        "crossings": pick(found, "bytes seconds copied"),
        "best_hidden_ranks": best_hidden_ranks(found.sizes, found.ranks),
        "answer": sentences(found),
    }


def _grid_document(found: Splits, ranked: Ranked) -> dict[str, Any]:
    s = ranked.split
    return {
        **pick(
            s, "grid flops balance parameters image_bytes staged_bytes message_bytes sent_bytes"
        ),
        "name": s.grid.name,
        "parts": {name: s.grid.parts(name) for name in s.products},
        "transfers": [{**asdict(t), **pick(t, "sent_bytes staged_bytes")} for t in s.transfers],
        "products_flops": s.products,
        "memory_bytes": s.memory_bytes(found.images),
        "seconds": ranked.times,
        "batch_s": ranked.times.batch_s(streamed=found.streamed),
    }
