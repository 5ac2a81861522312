"""The hierarchical GEMM: its plain arithmetic on the CPU, and how tiles and splits are chosen."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.cuda_on_cpu import Emulator, device_array
from support.kernel_cases import Case, check
from trainer.kernels.hierarchical import (
    _MOST_TILES_SPLIT,
    TILES,
    HierarchicalGemm,
    Plan,
    Tile,
    choose,
    predicted_us,
)
from trainer.kernels.launch import ceil

H200 = 132
SHARED = 227 << 10
"""Shared memory of a block on Hopper (CUDA C++ Programming Guide, "Compute Capabilities")."""
IEEE = [(dtype, tile) for (math, dtype), t in TILES.items() if math == "ieee" for tile in t.tiles]


def named(value: Any) -> str:
    return f"{value.bm}x{value.bn}" if isinstance(value, Tile) else str(value)


@pytest.fixture(scope="session")
def emulator(gxx: str, tmp_path_factory: pytest.TempPathFactory) -> Emulator:
    return Emulator(tmp_path_factory.mktemp("hierarchical"))


@pytest.fixture(autouse=True)
def _cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a GEMM takes of CuPy: memory for splits; the partial sums begin as NaN."""
    fake = SimpleNamespace(
        zeros=lambda count, dtype: device_array(np.zeros(count, dtype)),
        empty=lambda count, dtype: device_array(np.full(count, 255, dtype)),
    )
    monkeypatch.setitem(sys.modules, "cupy", fake)


# --- right results


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "tile"), IEEE, ids=named)
def test_every_tile_multiplies_every_layout(dtype: str, tile: Tile, emulator: Emulator) -> None:
    """Inside the matrix and across its edges, aligned and not, whole slabs of k and parts."""
    m, n, k = tile.bm, tile.bn, tile.bk
    cases = [
        Case(m, n, 2 * k, "plain", "plain"),
        Case(m, 2 * n, 2 * k + 5, "transposed", "transposed", alpha=-0.5),
        Case(m + 1, n - 1, 3 * k - 1, "plain", "transposed", shift=1),
        Case(2 * m - 3, n + 7, 1, "transposed", "plain", gap=3, beta=2.0),
        Case(9, 10, 5 * k, "sliced", "sliced transposed", gap=1, beta=1.0),
        Case(33, 1, 2 * k, "stepped", "reversed"),
        Case(1, n, 4, "reversed", "stepped", shift=3),
        Case(7, 5, 0, beta=0.5),
    ]
    for splits in (1, 2, 3):
        gemm = HierarchicalGemm(plan=Plan(tile, splits), device=emulator)
        for seed, case in enumerate(cases[: 8 if splits == 1 else 5]):
            emulator.order = splits if seed % 2 else 0
            check(gemm, case, dtype, device_array, seed=seed)
    emulator.order = 0


@pytest.mark.slow
@given(m=st.integers(1, 90), n=st.integers(1, 90), k=st.integers(0, 90), splits=st.integers(1, 5),
       order=st.integers(0, 3), along=st.booleans())  # fmt: skip
def test_products_of_drawn_shapes(
    emulator: Emulator, m: int, n: int, k: int, splits: int, order: int, along: bool
) -> None:
    emulator.order = order
    gemm = HierarchicalGemm(plan=Plan(IEEE[0][1], splits), device=emulator)
    check(gemm, Case(m, n, k, "plain", "transposed" if along else "plain"), "float32", device_array)
    emulator.order = 0


@pytest.mark.parametrize(("dtype", "tile"), [IEEE[0], IEEE[-1]], ids=named)
@pytest.mark.parametrize("splits", [1, 3])
def test_a_sigmoid_may_follow(dtype: str, tile: Tile, splits: int, emulator: Emulator) -> None:
    rng = np.random.default_rng(2)
    m, n, k = tile.bm + 5, tile.bn + 3, 6 * tile.bk
    a, b, bias = (rng.standard_normal(s).astype(dtype) for s in ((m, k), (n, k), m))
    out = device_array(np.full((m, n), np.nan, dtype))
    gemm = HierarchicalGemm(plan=Plan(tile, splits), device=emulator)
    gemm(device_array(a), device_array(b).T, out, bias=device_array(bias))
    z = a.astype(float) @ b.T.astype(float) + bias[:, None]
    np.testing.assert_allclose(out, 1 / (1 + np.exp(-z)), rtol=0, atol=2e-6)


def test_splits_give_the_same_bits_whoever_is_last(emulator: Emulator) -> None:
    """Blocks in any order; the counters are ready for the next launch."""
    gemm = HierarchicalGemm(plan=Plan(IEEE[0][1], 4), device=emulator)
    case = Case(70, 65, 150, "plain", "transposed")
    results = []
    for emulator.order in (0, 1, 2):
        results.append(check(gemm, case, "float32", device_array))
        assert not gemm._arrived.any()
    emulator.order = 0
    assert all(np.array_equal(results[0], other) for other in results[1:])


@pytest.mark.slow
def test_memory_for_splits_grows_and_what_a_graph_knows_is_kept(emulator: Emulator) -> None:
    gemm = HierarchicalGemm(plan=Plan(IEEE[0][1], 2), device=emulator)
    check(gemm, Case(64, 64, 64), "float32", device_array)
    small = gemm._partial
    check(gemm, Case(200, 200, 64), "float32", device_array)
    assert gemm._partial.nbytes == 16 * 2 * 64 * 64 * 4
    assert any(kept is small for kept in gemm._outgrown)
    large = gemm._partial
    check(gemm, Case(64, 64, 64, "transposed"), "float32", device_array)
    assert gemm._partial is large


def test_a_known_product_is_prepared_once(emulator: Emulator) -> None:
    gemm = HierarchicalGemm(plan=Plan(IEEE[0][1], 3), device=emulator)
    shapes = ((20, 20), (19, 20), (20, 19))
    a, b, out = (device_array(np.ones(shape, np.float32)) for shape in shapes)
    b = b.T  # the kernels of other tests
    for _ in range(3):
        gemm(a, b, out)
    gemm(a.T, b, out)
    gemm(a, b, out, 2.0)
    gemm(a, b, out, bias=device_array(np.zeros(20, np.float32)))
    assert len(gemm._calls) == 4
    rows, made = (device_array(np.ones((0, columns), np.float32)) for columns in (20, 19))
    gemm(rows, b, made)


# --- which tile, how many splits

NETWORK = {  # D = 784, H = 512, B' = 1500 and 3000: the two large products
    "forward 1500": (512, 1500, 784),
    "backward 1500": (512, 784, 1500),
    "forward 3000": (512, 3000, 784),
    "backward 3000": (512, 784, 3000),
}
CHOSEN = {  # rows, columns, splits
    "ieee": [(64, 64, 2), (128, 64, 5), (64, 64, 1), (128, 64, 5)],
    "tf32": [(128, 128, 5), (128, 128, 4), (128, 128, 5), (128, 128, 9)],
    "tf32x3": [(64, 128, 5), (128, 64, 5), (64, 128, 2), (128, 64, 5)],
    "tf32x2": [(64, 96, 1), (64, 96, 7), (64, 96, 1), (64, 128, 7)],
}
sizes = st.integers(1, 5000)
kinds = st.sampled_from(sorted(TILES))


@pytest.mark.parametrize("math", CHOSEN)
def test_the_choice_for_the_networks_products(math: str) -> None:
    """On an H200; change them together with the fitted times, knowing why."""
    plans = [choose(*shape, (math, "float32"), H200) for shape in NETWORK.values()]
    assert [(p.tile.bm, p.tile.bn, p.splits) for p in plans] == CHOSEN[math]


@given(m=sizes, n=sizes, k=sizes, kind=kinds, processors=st.sampled_from((1, 40, 108, 132)))
def test_a_choice_is_one_that_can_be_launched_and_the_fastest(
    m: int, n: int, k: int, kind: tuple[str, str], processors: int
) -> None:
    tiles = TILES[kind]
    plan = choose(m, n, k, kind, processors)
    assert plan.tile in tiles.tiles
    count = ceil(m, plan.tile.bm) * ceil(n, plan.tile.bn)
    assert 1 <= plan.splits <= 16
    if plan.splits > 1:
        assert count <= _MOST_TILES_SPLIT  # a counter for each
        assert ceil(k, plan.tile.bk) // plan.splits >= 4
    best = predicted_us(m, n, k, plan, tiles, processors)
    for tile in tiles.tiles:
        assert best <= predicted_us(m, n, k, Plan(tile, 1), tiles, processors)


def test_more_tiles_than_counters_are_not_split() -> None:
    assert choose(128 * 64 + 1, 64 * 64, 100_000, ("ieee", "float32"), H200).splits == 1


@given(m=sizes, n=sizes, k=sizes, kind=kinds, splits=st.integers(1, 16), place=st.integers(0, 3))
def test_a_larger_product_is_not_predicted_to_be_faster(
    m: int, n: int, k: int, kind: tuple[str, str], splits: int, place: int
) -> None:
    """Beyond four waves the dealing evens out, which may save half a wave: 4.5 for 5."""
    tiles = TILES[kind]
    plan = Plan(tiles.tiles[place % len(tiles.tiles)], splits)
    here = predicted_us(m, n, k, plan, tiles, H200)
    for larger in ((m + 64, n, k), (m, n + 64, k), (m, n, k + 64)):
        assert predicted_us(*larger, plan, tiles, H200) >= here - 1e-9
    assert predicted_us(m, n, k, plan, tiles, H200 // 2) >= here - 1e-9
    assert here > tiles.launch_us


def test_a_prediction_by_hand() -> None:
    """64 x 64 tiles of 512 x 1500: 8 x 24 = 192 blocks, two on the busiest of 132; 49 slabs."""
    tiles = TILES["ieee", "float32"]
    tile = replace(tiles.tiles[0], bm=64, bn=64, bk=16, alone_us=0.5, each_us=0.4)
    made = replace(tiles, launch_us=9.0, split_us=1.0, partial_us=0.6)
    assert predicted_us(512, 1500, 784, Plan(tile, 1), made, H200) == pytest.approx(9 + 49 * 0.8)
    two = 9 + 25 * 3 * 0.4 + 1 + 0.6 * 2 * 64 * 64 * 1e-4  # 384 blocks: three on the busiest
    assert predicted_us(512, 1500, 784, Plan(tile, 2), made, H200) == pytest.approx(two)
    many = 9 + 49 * (9600 / 132 + 0.5) * 0.4
    assert predicted_us(64 * 400, 1500, 784, Plan(tile, 1), made, H200) == pytest.approx(many)


# --- what a block needs


@pytest.mark.parametrize("kind", TILES, ids="-".join)
def test_every_tile_fits_a_block_of_hopper(kind: tuple[str, str]) -> None:
    math, dtype = kind
    for tile in TILES[kind].tiles:
        assert tile.bm % tile.wm == tile.bn % tile.wn == 0
        assert 32 <= tile.threads <= 1024
        for a_along in (False, True):
            for b_along in (False, True):
                size = tile.shared_bytes(np.dtype(dtype).itemsize, math, a_along, b_along)
                assert size + 1024 <= SHARED, (kind, tile)  # CUDA keeps 1 KiB of each block


def test_shared_memory_by_hand() -> None:
    tile = Tile(64, 32, 16, 32, 32, 3)
    assert tile.shared_bytes(4, "ieee", True, True) == 3 * 16 * (68 + 36) * 4
    swizzled = Tile(64, 32, 32, 32, 16, 4)
    assert swizzled.shared_bytes(4, "tf32", True, False) == 4 * (64 * 32 + 32 * (32 + 8)) * 4
