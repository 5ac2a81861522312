"""The MLP as different runs compute and reduce it: transports, fused kernels, graphs."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from perfmodel.base.errors import WorkloadError
from perfmodel.programs.mlp.mlp import as_it_ran, mlp
from perfmodel.programs.mlp.settings import COPY, GRAPH, NCCL, PEER
from perfmodel.workloads import Counts, Workload

DOCUMENT = {"D": 784, "H": 512, "C": 10, "B": 3000, "p": 2, "b": 4}
HAND = {"D": 3, "H": 4, "C": 2, "B": 6, "p": 2, "b": 4}
STAGES = {"cudaMemcpyDeviceToHost", "MPI_Allreduce", "cudaMemcpyHostToDevice"}
COUNTINGS = pytest.mark.parametrize("counting", ["document", "full"])
PARALLEL = pytest.mark.parametrize("parallel", ["data", "model"])


def total(load: Workload, at: dict[str, int] = DOCUMENT) -> Counts:
    return load.total().subs(at)


# --- transports -----------------------------------------------------------------------------


@COUNTINGS
def test_nccl_sends_a_ring_s_bytes_between_the_gpus(counting: Any) -> None:
    """2 (p-1)/p n b each way; the document counts both ways: its 2 n b at p = 2."""
    through_mpi, direct = mlp(counting), mlp(counting, transport="nccl")
    assert total(direct).peer_bytes == total(through_mpi).mpi_bytes
    assert total(direct).peer_bytes == {"document": 3_256_400, "full": 1_628_200}[counting]
    assert total(direct).peer_message_bytes == 1_628_200
    assert total(direct).mpi_bytes == total(direct).mpi_message_bytes == 0
    assert total(direct).flops == total(through_mpi).flops
    assert set(through_mpi.ranges) - set(direct.ranges) == STAGES
    assert set(direct.ranges) - set(through_mpi.ranges) == {NCCL}


def test_a_gpu_sends_its_gradients_to_each_of_the_others() -> None:
    """n = 26, p = 4, b = 4: 3 x 104 bytes leave; 3 x 26 additions and 2 n + 2 H (D + C) = 92."""
    at = HAND | {"p": 4, "B": 8}
    own = mlp(transport="peer").evaluate(at)[PEER]
    assert own.peer_bytes == 3 * 104
    assert own.peer_message_bytes == 104
    assert own.flops == 3 * 26 + 92
    assert own.dram_bytes == 3 * 104 + 2 * 3 * 104
    assert mlp("document", transport="peer").evaluate(at)[PEER].peer_bytes == 2 * 3 * 104


def test_two_gpus_send_as_much_as_a_ring() -> None:
    assert total(mlp(transport="peer")).peer_bytes == total(mlp(transport="nccl")).peer_bytes


def test_intensity_counts_the_bytes_between_gpus() -> None:
    """4 B' H (D + C) over 2 n b: half the document's bytes, so twice its 374.5 FLOP/byte."""
    load = mlp("document", transport="nccl")
    assert total(load).arithmetic_intensity == 2_439_168_000 / 3_256_400
    assert float(load.total().arithmetic_intensity().evaluate(DOCUMENT)) == pytest.approx(
        749.04, abs=0.01
    )


def test_model_parallel_nccl_sums_z2() -> None:
    load = mlp(parallel="model", transport="nccl")
    assert load.evaluate(DOCUMENT)[NCCL].peer_message_bytes == 120_000
    with pytest.raises(WorkloadError, match="model parallelism, which sums z2; take 'nccl'"):
        mlp(parallel="model", transport="peer")


@PARALLEL
def test_one_rank_sends_nothing(parallel: Any) -> None:
    alone = DOCUMENT | {"p": 1}
    assert total(mlp(parallel=parallel, transport="nccl"), alone).peer_bytes == 0
    assert total(mlp(transport="peer"), alone).peer_bytes == 0
    assert NCCL not in mlp(parallel=parallel, transport="none").ranges


def test_images_that_stay_are_not_copied() -> None:
    load = mlp(copies_images=False, transport="nccl")
    assert total(load).pci_bytes == total(load).pci_message_bytes == 0
    assert COPY not in load.ranges
    assert COPY not in load.phases


# --- fused kernels and graphs ---------------------------------------------------------------


@COUNTINGS
@PARALLEL
@pytest.mark.parametrize("fused", ["products", "all"])
def test_fusing_moves_work_and_loses_none(counting: Any, parallel: Any, fused: Any) -> None:
    apart, together = mlp(counting, parallel), mlp(counting, parallel, fused=fused)
    assert set(apart.ranges) - set(together.ranges) == {"forward GEMM 2", "backward GEMM 2"}
    before, after = total(apart), total(together)
    assert after.flops == before.flops
    assert (after.pci_bytes, after.mpi_bytes) == (before.pci_bytes, before.mpi_bytes)
    assert after.dram_bytes < before.dram_bytes


def test_fused_by_hand() -> None:
    """D=3, H=4, C=2, B'=3: the sigmoid's 5 H B' = 60 join GEMM 1, the 48 of GEMM 2 `forward`."""
    counts = mlp(fused="all").evaluate(HAND)
    assert counts["forward GEMM 1"] == Counts(flops=72 + 60, dram_bytes=4 * (12 + 9 + 12 + 4))
    assert counts["forward"] == Counts(flops=48 + 48, dram_bytes=4 * (8 + 12 + 12 + 2))
    assert counts["backward GEMM 1"] == Counts(
        flops=48 + 48 + 54, dram_bytes=4 * (2 * 8 + 2 * 12 + 6 + 4 + 2)
    )
    assert counts["backward"] == Counts()
    apart = mlp(fused="products").evaluate(HAND)
    assert apart["forward GEMM 1"].flops == 72
    assert apart["forward"] == Counts(flops=48 + 108, dram_bytes=4 * (34 + 24 + 4))


@COUNTINGS
@pytest.mark.parametrize("transport", ["nccl", "peer", "none"])
@pytest.mark.parametrize("fused", ["no", "all"])
def test_a_graph_is_the_whole_batch(counting: Any, transport: Any, fused: Any) -> None:
    rest: dict[str, Any] = {"transport": transport, "copies_images": False, "fused": fused}
    load = mlp(counting, graph=True, **rest)
    assert list(load.ranges) == [GRAPH] == [load.replay]
    assert load.phases == ()
    assert total(load) == total(mlp(counting, **rest))


# --- what the mark says ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "has", "lacks"),
    [
        ({"transport": "host"}, STAGES | {COPY, "step"}, {NCCL, PEER}),
        ({"transport": "pinned", "data_on": "pinned"}, STAGES | {COPY}, {NCCL}),
        ({"transport": "chunked", "data_on": "prefetch", "overlap": True}, STAGES | {COPY}, set()),
        ({"transport": "cuda-aware"}, {"MPI_Allreduce", "cudaDeviceSynchronize", COPY},
         STAGES - {"MPI_Allreduce"}),
        ({"transport": "nccl", "data_on": "device"}, {NCCL, "step"}, STAGES | {COPY}),
        ({"transport": "peer", "data_on": "device"}, {PEER}, STAGES | {COPY, "step"}),
        ({"transport": "none"}, {"step", COPY}, STAGES),
        ({"transport": "host", "backend": "numpy"}, {"MPI_Allreduce"}, {COPY, *STAGES} - {
            "MPI_Allreduce"}),
        ({"transport": "nccl", "gemm": "fused"}, {"backward GEMM 1"}, {"forward GEMM 2"}),
        ({"transport": "nccl", "gemm": "thin"}, {"forward GEMM 2"}, set()),
        ({"transport": "peer", "data_on": "device", "graph": True}, {GRAPH}, {PEER, "forward"}),
        ({"transport": "nccl", "parallel": "model"}, {NCCL, COPY}, STAGES),
        ({"transport": ["?"], "graph": "yes", "gemm": 3, "data_on": None}, STAGES | {COPY}, {NCCL}),
    ],
    ids=lambda value: str(sorted(value) if isinstance(value, set) else value),
)  # fmt: skip
def test_a_mark_chooses_the_ranges(config: Any, has: set[str], lacks: set[str]) -> None:
    for counting in ("document", "full"):
        load = as_it_ran(mlp(counting), config)
        assert load.counting == counting
        assert has <= set(load.ranges)
        assert not lacks & set(load.ranges)


def test_only_fused_kernels_that_multiply_ieee_take_the_sigmoid() -> None:
    """cuBLAS, which multiplies TF32 for them, has no such epilogue."""
    said = {"transport": "nccl", "gemm": "fused"}
    ieee = as_it_ran(mlp(), said | {"math": "ieee"}).evaluate(HAND)
    assert as_it_ran(mlp(), said | {"math": "tf32x3"}).evaluate(HAND) == ieee
    tf32 = as_it_ran(mlp(), said | {"math": "tf32"}).evaluate(HAND)
    assert ieee["forward GEMM 1"].flops - tf32["forward GEMM 1"].flops == 60


def test_other_workloads_and_reports_without_a_mark_stay_as_they_are() -> None:
    load = mlp()
    assert as_it_ran(load, {}) is load
    other = Workload("mine", "spec", "a file", "batch", {}, {})
    assert as_it_ran(other, {"transport": "nccl"}) is other


def test_names_tell_variants_apart() -> None:
    shown = {
        mlp(parallel=p, transport=t, graph=g).name
        for p, t, g in product(("data", "model"), ("host", "nccl"), (False, True))
    }
    assert len(shown) == 8
    assert mlp().name == "MLP, data parallel"


def test_unknown_variants_are_refused() -> None:
    with pytest.raises(
        WorkloadError, match="expected one of host, mpi, mpi-gpu, nccl, peer, none; got"
    ):
        mlp(transport="pigeon")  # type: ignore[arg-type]
    with pytest.raises(WorkloadError, match="expected one of no, products, all; got 'yes'"):
        mlp(fused="yes")  # type: ignore[arg-type]
