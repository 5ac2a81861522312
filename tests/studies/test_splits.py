"""Splits: hand-worked counts, agreement with the MLP's formulas, and a simulation of every grid."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import perfmodel
from benchmarks.common import results
from benchmarks.common.folders import PROFILES, RESULTS, ROOT
from perfmodel.base.document import plain
from perfmodel.base.errors import ModelError, WorkloadError
from perfmodel.machines.machine import Link
from perfmodel.programs.mlp.mlp import mlp
from perfmodel.studies.analysis.splits import compare, override, rank_splits, rates_of, sizes_of
from perfmodel.studies.mlp.splits import (
    DOCUMENT,
    Crossing,
    Grid,
    Sizes,
    SplitRates,
    best_hidden_ranks,
    crossings_of_bytes,
    crossings_of_time,
    grids,
    rank_grids,
    split,
    time_split,
)
from perfmodel.studies.render.splits import document, grids_table, sentences
from support.partitioned_mlp import Simulation, problem, sequential

PAPER = Sizes(D=784, H=512, C=10, B=3000)
SMALL = Sizes(D=3, H=4, C=2, B=6)
EVEN = Sizes(D=8, H=16, C=8, B=8)
RATES = SplitRates(2e12, Link(2e-6, 1 / 4e9, 1 / 20e9), 40e9, 10e9)


def moved(sizes: Sizes, grid: Grid) -> list[tuple[str, int, int]]:
    return [(t.collective, t.ranks, t.elements) for t in split(sizes, grid).transfers]


# --- by hand


def test_grids_of_four_ranks() -> None:
    found = grids(4)
    assert len(found) == 10  # exponents of 2 in four places: (2+3 over 3)
    assert {g.ranks for g in found} == {4}
    names = ["data parallel", "model parallel", "B2 x H2", "H2 x D2", "D4", "D2 x C2"]
    assert {*names} < {g.name for g in found}
    assert [len(grids(p)) for p in (1, 2, 6, 8, 12)] == [1, 4, 16, 20, 40]
    assert grids(1)[0].name == "one rank"


def test_both_layers_cut_their_own_loops() -> None:
    """B2 x H3 x D5 x C7: H is cut by the ranks that have nothing of their own to cut."""
    grid = Grid(B=2, H=3, D=5, C=7)
    assert grid.parts("forward GEMM 1") == (21, 5, 2)  # (H, D, B)
    assert grid.parts("forward GEMM 2") == (7, 15, 2)  # (C, H, B)
    assert grid.parts("backward GEMM 1") == (15, 7, 2)  # (H, C, B)
    assert grid.parts("backward GEMM 2") == (7, 2, 15)  # (C, B, H)
    assert grid.parts("backward GEMM 3") == (21, 2, 5)  # (H, B, D)


def test_what_each_kind_sends_by_hand() -> None:
    """D=3, H=4, C=2, B=6 on two ranks: n = 12 + 4 + 8 + 2 = 26."""
    assert moved(SMALL, Grid(B=2)) == [("all-reduce", 2, 26)]
    assert moved(SMALL, Grid(H=2)) == [("all-reduce", 2, 2 * 6)]
    assert moved(SMALL, Grid(D=2)) == [
        ("reduce-scatter", 2, 4 * 6), ("all-reduce", 2, 2 * 6), ("all-gather", 2, 4 * 6)
    ]  # fmt: skip
    assert moved(SMALL, Grid(C=2)) == [
        ("all-gather", 2, 4 * 6), ("all-reduce", 2, 6), ("all-reduce", 2, 6),
        ("reduce-scatter", 2, 4 * 6),
    ]  # fmt: skip
    mixed = split(SMALL, Grid(B=2, H=2))
    assert moved(SMALL, mixed.grid) == [("all-reduce", 2, 2 * 3), ("all-reduce", 2, 14)]
    assert mixed.message_bytes == 4 * 20
    assert mixed.sent_bytes == 4 * 20  # 2 (2-1)/2 of each


def test_a_rank_s_share_by_hand() -> None:
    """B2 x H2: 2 hidden units, 3 images; W1 2x3, b1 2, W2 2x2, b2 2: 14 parameters."""
    found = split(SMALL, Grid(B=2, H=2))
    assert found.parameters == 14
    assert found.products == {
        "forward GEMM 1": 2 * 2 * 3 * 3, "forward GEMM 2": 2 * 2 * 2 * 3,
        "backward GEMM 1": 2 * 2 * 2 * 3, "backward GEMM 2": 2 * 2 * 3 * 2,
        "backward GEMM 3": 2 * 2 * 3 * 3,
    }  # fmt: skip
    assert found.elementwise_flops == 9 * 2 * 3 + 9 * 2 * 3
    assert found.step_flops == 2 * 14 + 2 * (6 + 4)
    assert found.reduce_flops == 6 / 2 + 14 / 2
    assert found.image_bytes == 4 * (3 + 2) * 3
    assert found.memory_bytes() == 4 * (2 * 14 + (2 * 2 + 2) * 3) + 60
    assert found.memory_bytes(images=60) == 4 * (2 * 14 + (2 * 2 + 2) * 3) + 20 * 30


def test_the_document_s_sizes() -> None:
    data, model = (split(PAPER, g) for g in (Grid(B=2), Grid(H=2)))
    assert (data.message_bytes, model.message_bytes) == (1_628_200, 120_000)
    assert (data.image_bytes, model.image_bytes) == (4_764_000, 9_528_000)
    assert (data.staged_bytes, model.staged_bytes) == (3_256_400, 240_000)
    pixels = split(PAPER, Grid(D=2))  # the k-split of layer 1 copies only its pixels
    assert pixels.image_bytes == 4 * (392 + 10) * 3000
    assert pixels.sent_bytes == 4 * (512 * 3000 + 10 * 3000)


def test_uneven_shares_are_the_busiest_rank_s() -> None:
    found = split(Sizes(D=3, H=5, C=2, B=6), Grid(H=2))
    assert found.products["forward GEMM 1"] == 2 * 3 * 3 * 6
    assert found.balance == pytest.approx((5 / 2) / 3)
    assert split(SMALL, Grid(H=2)).balance == 1


@pytest.mark.parametrize(
    ("grid", "problem"),
    [
        (Grid(B=7), "B = 6 cannot be cut into 7 parts"),
        (Grid(D=4), "D = 3 cannot be cut into 4 parts"),
        (Grid(C=3), "C = 2 cannot be cut into 3 parts"),
        (Grid(H=3, D=2), "H = 4 cannot be cut into 6 parts"),
    ],
)
def test_grids_that_cannot_be(grid: Grid, problem: str) -> None:
    assert grid.why_not(SMALL) == problem
    with pytest.raises(WorkloadError, match=problem):
        split(SMALL, grid)
    _, impossible = rank_grids(SMALL, grid.ranks, RATES)
    assert (grid, problem) in impossible


# --- against the workload


shares = st.integers(1, 500)


@settings(deadline=None)
@given(D=shares, H=shares, C=shares, B=shares, p=st.integers(2, 64), b=st.sampled_from([2, 4, 8]))
@pytest.mark.parametrize("parallel", ["data", "model"])
def test_data_and_model_parallel_are_the_mlp_s(
    parallel: str, D: int, H: int, C: int, B: int, p: int, b: int
) -> None:
    sizes = Sizes(D, H * p, C, B * p, b)
    found = split(sizes, Grid(B=p) if parallel == "data" else Grid(H=p))
    load = mlp("full", parallel)  # type: ignore[arg-type]
    values = {"D": D, "H": H * p, "C": C, "B": B * p, "p": p, "b": b}
    total = load.total().subs(values)
    # a share (p - 1)/p of p = 59 ranks is rounded in another order
    assert found.flops == pytest.approx(total.flops, rel=1e-12)
    assert found.sent_bytes == pytest.approx(total.mpi_bytes, rel=1e-12)
    assert found.message_bytes == total.mpi_message_bytes
    assert found.image_bytes + found.staged_bytes == total.pci_bytes
    counts = load.evaluate(values)
    assert found.products == {n: c.flops for n, c in counts.items() if "GEMM" in n}
    assert found.image_bytes == counts["copying images host -> device"].pci_bytes


# --- against a simulation that owns elements


@pytest.mark.parametrize("grid", [g for p in (1, 2, 4, 8) for g in grids(p)], ids=lambda g: g.name)
def test_ranks_send_what_is_counted_and_compute_what_one_rank_would(grid: Grid) -> None:
    parameters, x, y = problem(EVEN)
    run, counted = Simulation(EVEN, grid), split(EVEN, grid)
    found = run.step(parameters, x, y)
    for name, expected in sequential(parameters, x, y).items():
        np.testing.assert_allclose(found[name], expected, rtol=1e-12, atol=1e-14)
    assert {*run.sent.values()} == {counted.sent_bytes / EVEN.b}
    assert {*run.collectives.values()} == {len(counted.transfers)}
    for name, flops in counted.products.items():
        assert {*run.flops[name].values()} == {flops}
        assert (run.done[name] == 1).all(), "every triplet (i, k, j) once"


@pytest.mark.parametrize("grid", [g for p in (2, 3, 5, 6) for g in grids(p)], ids=lambda g: g.name)
def test_uneven_sizes_compute_the_same(grid: Grid) -> None:
    sizes = Sizes(D=7, H=13, C=7, B=11)
    parameters, x, y = problem(sizes)
    run, counted = Simulation(sizes, grid), split(sizes, grid)
    found = run.step(parameters, x, y)
    for name, expected in sequential(parameters, x, y).items():
        np.testing.assert_allclose(found[name], expected, rtol=1e-12, atol=1e-14)
    for name, flops in counted.products.items():
        assert (run.done[name] == 1).all()
        if grid.D == 1 or grid.C == 1:  # the simulation cuts H plainly, not evenly both ways
            assert max(run.flops[name].values()) == flops
    if grid.name == "model parallel":
        assert max(run.sent.values()) == pytest.approx(counted.sent_bytes / sizes.b, rel=0.05)


# --- time and crossings


def test_times_by_hand() -> None:
    """Model parallel at the document's sizes: alpha 2 µs, 4 GB/s, gamma 1/20 ns, PCIe 40 and 10."""
    times = time_split(split(PAPER, Grid(H=2)), RATES)
    assert times.mpi_s == pytest.approx(2 * 2e-6 + 120_000 / 4e9 + 60_000 / 20e9)
    assert times.images_s == pytest.approx(9_528_000 / 40e9)
    assert times.staging_s == pytest.approx(240_000 / 10e9)
    assert times.compute_s == pytest.approx(split(PAPER, Grid(H=2)).compute_flops / 2e12)
    resident = times.batch_s(streamed=False)
    assert resident == times.compute_s + times.staging_s + times.mpi_s
    assert times.batch_s(streamed=True) == resident + times.images_s


def test_nothing_is_copied_without_a_rate_for_it() -> None:
    times = time_split(split(PAPER, Grid(B=2)), SplitRates(2e12, Link(0, 1e-9), None, None))
    assert (times.images_s, times.staging_s) == (0, 0)


def test_the_document_s_rates_answer_its_optional_question() -> None:
    """The all-reduce of data parallelism then takes what Figure 11 measured: 409.6 µs."""
    data = time_split(split(PAPER, Grid(B=2)), DOCUMENT)
    assert data.mpi_s == pytest.approx(409.599e-6, rel=1e-4)
    assert data.staging_s == pytest.approx((124.960 + 131.055) * 1e-6, rel=1e-4)
    ranked, _ = rank_grids(PAPER, 2, DOCUMENT)
    assert [r.split.grid.name for r in ranked] == ["model parallel", "data parallel", "D2", "C2"]


def test_crossings_of_bytes_by_hand() -> None:
    """C B < n: B < 407,050 / 10; H > 10 (3000 - 1) / 795; p cancels."""
    found = crossings_of_bytes(PAPER)
    assert found.batch == Crossing(40705.0, "below")
    assert found.hidden == Crossing(29_990 / 795, "above")
    assert found.ranks == Crossing(None, "always")
    assert crossings_of_bytes(Sizes(784, 512, 10, 50_000)).ranks == Crossing(None, "never")


def difference(sizes: Sizes, p: int, rates: SplitRates, streamed: bool) -> float:
    data, model = (time_split(split(sizes, g), rates) for g in (Grid(B=p), Grid(H=p)))
    return model.batch_s(streamed=streamed) - data.batch_s(streamed=streamed)


@settings(deadline=None)
@given(
    D=st.integers(1, 2000),
    H=st.integers(1, 200),
    C=st.integers(1, 200),
    B=st.integers(1, 2000),
    p=st.sampled_from([2, 4, 8]),
    pci=st.sampled_from([None, 1e9, 4e10]),
    streamed=st.booleans(),
)
def test_crossings_of_time_part_wins_from_losses(
    D: int, H: int, C: int, B: int, p: int, pci: float | None, streamed: bool
) -> None:
    """At sizes that divide, the formula's sides are what the whole model says."""
    rates = SplitRates(2e12, Link(2e-6, 1 / 4e9, 1 / 20e9), 40e9, pci)
    sizes = Sizes(D, 8 * H, C, 8 * B)
    found = crossings_of_time(sizes, p, rates, streamed=streamed)
    for value, crossing in ((sizes.B, found.batch), (sizes.H, found.hidden), (p, found.ranks)):
        wins = difference(sizes, p, rates, streamed)
        if abs(wins) < 1e-12:
            continue
        at = crossing.at or 0.0
        side = {"always": True, "never": False, "below": value < at, "above": value > at}
        assert (wins < 0) == side[crossing.model_wins]


@pytest.mark.parametrize("streamed", [True, False])
def test_at_the_crossing_both_take_as_long(streamed: bool) -> None:
    at = crossings_of_time(PAPER, 2, DOCUMENT, streamed=streamed).batch.at
    assert at is not None
    below, above = (Sizes(784, 512, 10, 2 * (int(at) // 2) + step) for step in (0, 2))
    assert difference(below, 2, DOCUMENT, streamed) < 0 < difference(above, 2, DOCUMENT, streamed)
    assert at == pytest.approx(4717 if streamed else 40667, abs=1)


def test_more_ranks_can_turn_the_tables() -> None:
    """Slow PCIe, fast MPI: what p ranks copy needlessly grows with p, staging does not."""
    rates = SplitRates(1e15, Link(0, 1e-12), 20e9, 10.5e9)
    found = crossings_of_time(PAPER, 2, rates).ranks
    assert found.model_wins == "below"
    assert found.at is not None
    before, after = (difference(PAPER, p, rates, True) for p in (2, 4))
    assert before < 0 < after
    assert 2 < found.at < 4


@pytest.mark.parametrize(
    ("batch", "kind"), [(200, "H16"), (40_704, "B4 x H4"), (40_704 * 64, "B16")]
)
def test_the_best_mixture_sends_the_fewest_bytes(batch: int, kind: str) -> None:
    """p_H = sqrt(n p / (C B)): 57, 4.0 and 0.5 of 16 ranks."""
    sizes = Sizes(784, 512, 10, batch)
    plain = [Grid(B=16 // k, H=k) for k in (1, 2, 4, 8, 16)]
    best = min(plain, key=lambda g: split(sizes, g).sent_bytes)
    ideal = best_hidden_ranks(sizes, 16)
    assert min(16, max(1, round(ideal))) == best.H
    assert kind == {"data parallel": "B16", "model parallel": "H16"}.get(best.name, best.name)


@given(D=shares, H=shares, C=st.integers(1, 50), B=shares, p=st.sampled_from([2, 3, 4, 6, 8, 12]))
def test_every_grid_is_ranked_or_refused(D: int, H: int, C: int, B: int, p: int) -> None:
    ranked, impossible = rank_grids(Sizes(D, H, C, B), p, RATES)
    assert len(ranked) + len(impossible) == len(grids(p))
    times = [r.times.batch_s(streamed=True) for r in ranked]
    assert times == sorted(times)
    for r in ranked:
        assert math.isfinite(r.times.mpi_s)
        assert 0 < r.split.balance <= 1
        assert r.split.sent_bytes > 0


# --- the answer


def test_the_answer_to_the_handout() -> None:
    found = rank_splits(PAPER, 2, DOCUMENT)
    said = sentences(found)
    assert said[0] == (
        "Best for D=784  H=512  C=10  B=3000  b=4, p=2: model parallel, 2.31 ms a batch; layer 1 "
        "cuts i into 2, layer 2 k into 2."
    )
    assert "1.63 MB" in said[1]
    assert "120 kB (0.0737 times as much)" in said[1]
    assert "for B < 40,705 at this H, for H > 37.72 at this B, whatever p" in said[2]
    assert "images copied in every batch: for B < 4,717; for H > 325.6; for every p" in said[3]
    assert "images resident: for B < 40,667; for H > 37.76; for every p" in said[4]


def test_the_crossing_depends_on_the_rate_at_which_images_are_copied() -> None:
    """At P_pci, and at both rates of Figure 11: b B/2 (D + C) bytes in 574.8 us and in 2.002 ms."""
    found = rank_splits(PAPER, 2, DOCUMENT)
    at = {"P_pci": found.seconds.batch.at} | {c.timed: c.batch.at for c in found.copied}
    assert at == pytest.approx(
        {"P_pci": 4717, "Figure 11, GPU": 3203, "Figure 11, host": 974.2}, rel=2e-4
    )
    by_hand = override(DOCUMENT, {"P_images": 4 * 1500 * 794 / 574.799e-6})
    assert rank_splits(PAPER, 2, by_hand).seconds.batch.at == at["Figure 11, GPU"]
    assert by_hand.staging_bytes_per_s == DOCUMENT.staging_bytes_per_s


def test_a_report_gives_both_rates_of_its_copy_and_its_batch() -> None:
    runs = perfmodel.analyze(
        PROFILES / "ladder/document_1.sqlite.xz", PROFILES / "ladder/model-host_1.sqlite.xz",
        counting="full",
    ).analysis.runs  # fmt: skip
    rates = rates_of(runs[0])
    gpu, host = rates.copied.values()
    assert gpu == rates.images_bytes_per_s
    assert host < gpu
    data, model = (compare(run, rates) for run in runs)
    assert data.estimated_batch_s == pytest.approx(1.36e-3, rel=5e-3)
    assert model.estimated_batch_s == pytest.approx(178e-6, rel=5e-3)  # its images are resident
    assert data.measured_batch_s == runs[0].batch.median.value


def test_model_parallelism_is_faster_where_the_formula_says_so() -> None:
    """The six pairs of docs/splits.md, timed without a profiler, images on the GPUs."""
    timed = {
        (row["rung"], row["H"], row["B"]): 1e6 * row["median_s"]
        for row in results.read(RESULTS / "ladder.json")["rows"]
        if row["p"] == 2 and row["dtype"] == "fp32" and row.get("median_s")
    }
    page = (ROOT / "docs" / "splits.md").read_text(encoding="utf-8")
    for data, model in (("resident", "model host"), ("graph", "model graph")):
        for hidden, batch in ((64, 3200), (512, 3000), (2048, 12000)):
            at = crossings_of_bytes(Sizes(784, hidden, 10, batch)).batch.at
            before, after = timed[data, hidden, batch], timed[model, hidden, batch]
            assert at is not None
            assert (batch < at) == (after < before)
            shown = (f"{t:,.3g}" if t < 1000 else f"{t:,.0f}" for t in (before, after))
            assert f"| {' µs | '.join(shown)} µs | {after / before:.2f} |" in page


def test_tables_and_json_say_the_same() -> None:
    found = rank_splits(PAPER, 4, DOCUMENT, images=60_000)
    table, written = grids_table(found), plain(document(found))
    assert [row[0] for row in table.rows] == [g["name"] for g in written["grids"]]
    assert [row[-1] for row in table.rows] == [g["batch_s"] for g in written["grids"]]
    assert written["grids"][0]["transfers"][0]["what"] == "z2, partial over H"
    assert written["crossings"]["bytes"]["batch"] == {"at": 40705.0, "model_wins": "below"}
    assert written["answer"] == list(sentences(found))
    assert any("do not divide evenly" in note for note in table.notes)  # C = 10 into 4


def test_one_rank_and_too_many() -> None:
    assert len(sentences(rank_splits(PAPER, 1, DOCUMENT))) == 1
    with pytest.raises(WorkloadError, match="over 5 ranks; got none"):
        rank_splits(Sizes(1, 1, 1, 1), 5, DOCUMENT)
    assert any("impossible" in n for n in grids_table(rank_splits(SMALL, 6, DOCUMENT)).notes)


def test_sizes_and_rates_from_values() -> None:
    assert sizes_of({"D": 784, "H": 512, "C": 10, "B": 3000, "p": 2}) == (PAPER, 2)
    with pytest.raises(WorkloadError, match="got no H, p; give --hidden-size H --ranks p"):
        sizes_of({"D": 784, "C": 10, "B": 3000})
    with pytest.raises(WorkloadError, match="got 'Q'; leave it out"):
        sizes_of({"Q": 1})
    with pytest.raises(WorkloadError, match="whole number from 1"):
        Sizes(0, 1, 1, 1)
    rates = override(DOCUMENT, {"P_mpi": 4e9, "alpha": 2e-6, "P_pci": 5e10, "P_flops": 2e13})
    assert rates.link == Link(2e-6, 1 / 4e9)
    assert (rates.images_bytes_per_s, rates.staging_bytes_per_s) == (5e10, 5e10)
    assert (rates.flops_per_s, rates.notes) == (2e13, ())
    assert override(DOCUMENT, {}) is DOCUMENT
    with pytest.raises(ModelError, match="expected a rate among"):
        override(DOCUMENT, {"P_mpi": 0.0})
