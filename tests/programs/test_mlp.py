"""The MLP: the document's golden numbers, both countings, both ways to split the work."""

from __future__ import annotations

import math
from dataclasses import asdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.base.errors import WorkloadError
from perfmodel.programs.mlp.mlp import DOCUMENT_GEMMS, PHASES, mlp
from perfmodel.programs.mlp.settings import BATCH_RANGE
from perfmodel.workloads import Counts, Workload

DOCUMENT = {"D": 784, "H": 512, "C": 10, "B": 3000, "p": 2, "b": 4}
COPY = "copying images host -> device"
WORKLOADS = [mlp(c, k) for c in ("document", "full") for k in ("data", "model")]

sizes = st.integers(1, 5000)
values = st.builds(
    lambda d, h, c, b, p, width: {"D": d, "H": h * p, "C": c, "B": b * p, "p": p, "b": width},
    *(sizes, sizes, sizes, sizes, st.integers(1, 64), st.sampled_from([2, 4, 8])),
)
ANY = pytest.mark.parametrize("load", WORKLOADS, ids=lambda w: f"{w.name}, {w.counting}")


# --- golden numbers -------------------------------------------------------------------------


def test_document_golden_numbers() -> None:
    total = mlp("document").total().subs(DOCUMENT)
    assert total.flops == 4 * 1500 * 512 * 794 == 2_439_168_000
    assert total.pci_bytes == 3_256_400
    assert total.mpi_bytes == 3_256_400
    assert total.arithmetic_intensity == 2_439_168_000 / 6_512_800
    assert total.mpi_message_bytes == 1_628_200


def test_document_throughputs_from_its_medians() -> None:
    """Figure 11's medians in seconds; the document prints 1.632730e12: its own rounding."""
    seconds = {
        "forward GEMM 1": 470.879e-6, "forward GEMM 2": 100.112e-6,
        "backward GEMM 1": 234.144e-6, "backward GEMM 3": 688.815e-6,
        "cudaMemcpyDeviceToHost": 124.960e-6, "cudaMemcpyHostToDevice": 131.055e-6,
        "MPI_Allreduce": 409.599e-6,
    }  # fmt: skip
    load = mlp("document")
    pci = ["cudaMemcpyDeviceToHost", "cudaMemcpyHostToDevice"]
    flops = load.total(DOCUMENT_GEMMS).subs(DOCUMENT).flops
    assert flops / sum(seconds[g] for g in DOCUMENT_GEMMS) == pytest.approx(1.632730e12, rel=5e-5)
    copied = load.total(pci).subs(DOCUMENT).pci_bytes
    assert copied / sum(seconds[k] for k in pci) == pytest.approx(1.2720e10, rel=5e-5)
    reduced = load.total(["MPI_Allreduce"]).subs(DOCUMENT).mpi_bytes
    assert reduced / seconds["MPI_Allreduce"] == pytest.approx(7.9502e9, rel=5e-5)


def test_document_leaves_out_one_small_gemm() -> None:
    document, full = (mlp(c).total().subs(DOCUMENT).flops for c in ("document", "full"))
    missing = mlp("full").ranges["backward GEMM 2"].subs(DOCUMENT).flops
    assert missing == 2 * 512 * 10 * 1500
    assert round(100 * missing / document, 2) == 0.63
    gemms = [name for name in mlp().ranges if "GEMM" in name]
    assert mlp("full").total(gemms).subs(DOCUMENT).flops == document + missing
    assert full > document + missing


def test_document_counts_only_its_four_gemms() -> None:
    counts = mlp("document").evaluate(DOCUMENT)
    assert {name for name, c in counts.items() if c.flops} == set(DOCUMENT_GEMMS)
    assert {name for name, c in counts.items() if c.pci_bytes} == {
        "cudaMemcpyDeviceToHost",
        "cudaMemcpyHostToDevice",
    }
    assert {name for name, c in counts.items() if c.mpi_bytes} == {"MPI_Allreduce"}


@pytest.mark.parametrize("counting", ["document", "full"])
@pytest.mark.parametrize(
    ("hidden", "images", "gradients"),
    [(512, 4_704_000 + 60_000, 1_628_200), (2048, 4_764_000, 6_512_680)],
)
def test_messages_equal_what_real_reports_measured(
    counting: str, hidden: int, images: int, gradients: int
) -> None:
    """Bytes per rank and batch in h200x2_2ranks_{base,h2048}_nsys2025.3.1 (two H200s)."""
    counts = mlp(counting).evaluate({**DOCUMENT, "H": hidden})  # type: ignore[arg-type]
    assert counts[COPY].pci_message_bytes == images
    assert counts["cudaMemcpyDeviceToHost"].pci_message_bytes == gradients
    assert counts["cudaMemcpyHostToDevice"].pci_message_bytes == gradients
    assert counts["MPI_Allreduce"].mpi_message_bytes == gradients


def test_full_by_hand() -> None:
    """D=3, H=4, C=2, B=6, p=2, b=4: B'=3, n=12+4+8+2=26; the worked example of docs/model.md."""
    counts = mlp("full").evaluate({"D": 3, "H": 4, "C": 2, "B": 6, "p": 2, "b": 4})
    assert counts[COPY] == Counts(pci_bytes=60, pci_message_bytes=60)
    assert counts["forward GEMM 1"] == Counts(flops=72, dram_bytes=4 * (12 + 9 + 12))
    assert counts["forward GEMM 2"] == Counts(flops=48, dram_bytes=4 * (8 + 12 + 6))
    assert counts["forward"] == Counts(flops=5 * 12 + 8 * 6, dram_bytes=4 * (24 + 4 + 18 + 2))
    assert counts["backward GEMM 1"] == Counts(flops=48, dram_bytes=4 * (8 + 6 + 12))
    assert counts["backward GEMM 2"] == Counts(flops=48, dram_bytes=4 * (6 + 12 + 8))
    assert counts["backward GEMM 3"] == Counts(flops=72, dram_bytes=4 * (12 + 9 + 12))
    assert counts["backward"] == Counts(flops=4 * 12 + 6, dram_bytes=4 * (48 + 4 + 6 + 2))
    assert counts["cudaMemcpyDeviceToHost"] == Counts(pci_bytes=104, pci_message_bytes=104)
    assert counts["cudaMemcpyHostToDevice"] == Counts(pci_bytes=104, pci_message_bytes=104)
    assert counts["MPI_Allreduce"] == Counts(flops=13, mpi_bytes=104, mpi_message_bytes=104)
    assert counts["step"] == Counts(flops=52 + 40, dram_bytes=312)
    total = mlp("full").total().subs({"D": 3, "H": 4, "C": 2, "B": 6, "p": 2, "b": 4})
    assert total.flops == 288 + 108 + 54 + 13 + 92
    assert (total.pci_bytes, total.mpi_bytes) == (268, 104)
    assert total.arithmetic_intensity == 555 / 372


def test_model_parallel_by_hand() -> None:
    """All-reduced: z2 alone, C B = 12 elements; every rank copies all of x."""
    counts = mlp("full", "model").evaluate({"D": 3, "H": 4, "C": 2, "B": 6, "p": 2, "b": 4})
    assert counts[COPY].pci_bytes == 4 * (3 + 2) * 6
    assert counts["forward GEMM 1"] == Counts(flops=2 * 3 * 2 * 6, dram_bytes=4 * (6 + 18 + 12))
    assert counts["MPI_Allreduce"] == Counts(flops=6, mpi_bytes=48, mpi_message_bytes=48)
    assert counts["cudaMemcpyDeviceToHost"] == Counts(pci_bytes=48, pci_message_bytes=48)
    assert counts["step"].dram_bytes == 3 * 4 * (6 + 2 + 4 + 2)


def test_model_parallel_sends_less_at_the_document_s_sizes() -> None:
    data, model = (mlp("full", k).total().subs(DOCUMENT) for k in ("data", "model"))
    assert (data.mpi_message_bytes, model.mpi_message_bytes) == (1_628_200, 120_000)
    assert (data.mpi_bytes, model.mpi_bytes) == (1_628_200, 120_000)
    images = [mlp("full", k).ranges[COPY].subs(DOCUMENT).pci_bytes for k in ("data", "model")]
    assert images == [4_764_000, 9_528_000]


def test_ranks_of_unequal_hidden_shares_are_counted_by_their_mean() -> None:
    """H = 5 on 2 ranks: 3 and 2 units; what is sent does not depend on the shares."""
    at = {"D": 3, "H": 5, "C": 2, "B": 6, "p": 2, "b": 4}
    counts = mlp("full", "model").evaluate(at)
    assert counts["forward GEMM 1"].flops == (2 * 3 * 3 * 6 + 2 * 3 * 2 * 6) / 2
    assert counts["MPI_Allreduce"].mpi_message_bytes == 48
    with pytest.raises(WorkloadError, match=r"expected p of at most H: .* got H=1, p=2; take H=2"):
        mlp("full", "model").evaluate({**at, "H": 1})


def test_ranges_are_those_of_the_trainer() -> None:
    names = pytest.importorskip("trainer.ranges")
    around = {names.TRAIN, names.SETUP, names.BATCH}
    assert set(mlp().ranges) <= set(names.PARENT) - around
    assert names.BATCH == BATCH_RANGE == mlp().batch_range
    for phases in PHASES.values():
        assert all(names.PARENT[name] == BATCH_RANGE for name in phases)


def test_unknown_countings_are_refused() -> None:
    with pytest.raises(WorkloadError, match="expected one of document, full; got 'fll'; take one"):
        mlp("fll")  # type: ignore[arg-type]
    with pytest.raises(WorkloadError, match="expected one of data, model; got 'pipeline'"):
        mlp("full", "pipeline")  # type: ignore[arg-type]


# --- properties -----------------------------------------------------------------------------


@ANY
@settings(deadline=None)
@given(at=values)
def test_counts_are_exact_nonnegative_ints(load: Workload, at: dict[str, int]) -> None:
    for name, counts in load.evaluate(at).items():
        for key, count in asdict(counts).items():
            if (name, key) == ("MPI_Allreduce", "flops") or key == "mpi_bytes":
                assert count >= 0  # (p - 1)/p of n elements need not be whole
            else:
                assert type(count) is int
                assert count >= 0


@ANY
@settings(deadline=None)
@given(at=values)
def test_ranges_add_up_to_the_total(load: Workload, at: dict[str, int]) -> None:
    parts, total = load.evaluate(at).values(), load.total().subs(at)
    for key, count in asdict(total).items():
        assert math.isclose(sum(getattr(part, key) for part in parts), count, rel_tol=1e-15)


@settings(deadline=None)
@given(at=values, factor=st.integers(2, 9))
def test_document_is_linear_in_the_batch(at: dict[str, int], factor: int) -> None:
    once, more = (mlp("document").total().subs({**at, "B": b}) for b in (at["B"], factor * at["B"]))
    assert more.flops == factor * once.flops
    assert (more.pci_bytes, more.mpi_bytes) == (once.pci_bytes, once.mpi_bytes)


@ANY
@settings(deadline=None)
@given(at=values, factor=st.integers(2, 9))
def test_every_gemm_and_copy_of_images_is_linear_in_the_batch(
    load: Workload, at: dict[str, int], factor: int
) -> None:
    once, more = load.evaluate(at), load.evaluate({**at, "B": factor * at["B"]})
    for name in [COPY, *(n for n in load.ranges if "GEMM" in n)]:
        assert more[name].flops == factor * once[name].flops
        assert more[name].pci_message_bytes == factor * once[name].pci_message_bytes
        assert more[name].dram_bytes <= factor * once[name].dram_bytes


@settings(deadline=None)
@given(at=values)
def test_ranks_together_do_the_work_of_one(at: dict[str, int]) -> None:
    """GEMM FLOPs do not depend on how the work is split; nothing is all-reduced at p = 1."""
    gemms = [name for name in mlp().ranges if "GEMM" in name]
    alone = mlp().total(gemms).subs({**at, "p": 1}).flops
    for parallel in ("data", "model"):
        load = mlp("full", parallel)
        assert at["p"] * load.total(gemms).subs(at).flops == alone
        assert load.total().subs({**at, "p": 1}).mpi_bytes == 0


@settings(deadline=None)
@given(at=values)
def test_document_counts_mpi_in_both_directions(at: dict[str, int]) -> None:
    for parallel in ("data", "model"):
        document, full = (mlp(c, parallel).total().subs(at) for c in ("document", "full"))
        assert document.mpi_bytes == pytest.approx(2 * full.mpi_bytes)
        assert document.dram_bytes == full.dram_bytes
        assert document.mpi_message_bytes == full.mpi_message_bytes
        assert document.pci_message_bytes == full.pci_message_bytes == full.pci_bytes


@ANY
@settings(deadline=None)
@given(at=values)
def test_phases_hold_all_the_counted_work(load: Workload, at: dict[str, int]) -> None:
    held = [n for n in load.ranges if n in load.phases or n not in (COPY, "step")]
    assert load.total(held).subs(at).flops == pytest.approx(load.total().subs(at).flops)
    assert load.total(held).subs(at).pci_bytes == load.total().subs(at).pci_bytes
