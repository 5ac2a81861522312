"""The GEMM kernels on the CPU: right on any shape, layout, alpha and beta, in any thread order."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.cuda_on_cpu import Emulator, device_array
from support.kernel_cases import LAYOUTS, Case, check, random_cases, thin_cases
from trainer.errors import ConfigError
from trainer.kernels import GEMMS, MATHS, make_gemm
from trainer.kernels.launch import Operand, PlannedGemm
from trainer.kernels.plain import NaiveGemm, RegisterGemm, TiledGemm
from trainer.kernels.thin import ThinGemm, vector

pytestmark = pytest.mark.slow

PLAIN = (NaiveGemm, TiledGemm, RegisterGemm)
DTYPES = ("float32", "float64")


@pytest.fixture(scope="session")
def emulator(gxx: str, tmp_path_factory: pytest.TempPathFactory) -> Emulator:
    """One for all tests of a session: it compiles each kernel once."""
    return Emulator(tmp_path_factory.mktemp("kernels"))


@pytest.fixture(params=PLAIN, ids=lambda cls: cls.name)
def plain(request: pytest.FixtureRequest, emulator: Emulator) -> PlannedGemm:
    emulator.order = 0
    gemm: PlannedGemm = request.param(emulator)
    return gemm


# --- right results


@pytest.mark.parametrize("dtype", DTYPES)
def test_products_of_any_shape_and_layout(plain: PlannedGemm, dtype: str) -> None:
    for seed, case in enumerate(random_cases(25, seed=1)):
        check(plain, case, dtype, device_array, seed=seed)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("each", "step", "wide", "staged"),
    [(1, 4, True, False), (1, 16, True, False), (1, 16, True, True), (2, 16, True, True),
     (4, 8, True, True), (2, 4, False, True)],
)  # fmt: skip
def test_every_change_of_the_register_kernel(
    emulator: Emulator, each: int, step: int, wide: bool, staged: bool, dtype: str
) -> None:
    gemm = RegisterGemm(emulator, each=each, step=step, wide=wide, staged=staged)
    for seed, case in enumerate(random_cases(12, seed=2)):
        results = []
        for emulator.order in (0, 3):
            results.append(check(gemm, case, dtype, device_array, seed=seed))
        assert np.array_equal(*results)
    emulator.order = 0
    check(gemm, Case(130, 40, 64), dtype, device_array)  # rows that all loads may take wide


def test_the_trainer_s_register_kernel_loads_16_bytes(emulator: Emulator) -> None:
    """Of rows that are contiguous and aligned; of others an element at a time."""
    gemm = GEMMS["register"](device=emulator)
    assert isinstance(gemm, RegisterGemm)
    assert gemm.wide
    assert (gemm.each, gemm.step, gemm.staged) == (1, 4, False)
    check(gemm, Case(130, 40, 64), "float32", device_array)


sizes = st.integers(1, 70)


@given(
    st.sampled_from(PLAIN), st.sampled_from(DTYPES),
    st.builds(
        Case, m=sizes, n=sizes, k=st.integers(0, 70), a=st.sampled_from(LAYOUTS),
        b=st.sampled_from(LAYOUTS), gap=st.integers(0, 5), shift=st.integers(0, 3),
        alpha=st.sampled_from((1.0, 0.0, -2.5)), beta=st.sampled_from((0.0, 1.0, 0.5)),
    ),
)  # fmt: skip
def test_products_of_drawn_shapes(
    emulator: Emulator, cls: type[PlannedGemm], dtype: str, case: Case
) -> None:
    check(cls(emulator), case, dtype, device_array)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", list(thin_cases()), ids=str)
def test_thin_products(emulator: Emulator, case: Case, dtype: str) -> None:
    """Threads and blocks in other orders give the same bits: no barrier lacks, no race decides."""
    gemm = ThinGemm(emulator)
    results = []
    for emulator.order in (0, 1, 7):
        results.append(check(gemm, case, dtype, device_array))
    emulator.order = 0
    assert np.array_equal(results[0], results[1])
    assert np.array_equal(results[0], results[2])


def test_thin_products_of_blocks_with_several_groups(emulator: Emulator) -> None:
    """Few multiprocessors make wide tiles: several warps of a block side by side along n."""
    emulator.order = 3
    gemm = ThinGemm(emulator)
    gemm.device = SimpleNamespace(multiprocessors=2, load=emulator.load)
    for case in (Case(10, 70, 140, "plain", "transposed"), Case(10, 130, 72, beta=1.0)):
        check(gemm, case, "float32", device_array)
    emulator.order = 0


def test_results_do_not_depend_on_the_order_of_threads(plain: PlannedGemm, emulator: Any) -> None:
    case = Case(70, 37, 50, "transposed", "sliced", 1, 2.0, 0.5)
    results = []
    for emulator.order in (0, 1, 2, 3):
        results.append(check(plain, case, "float32", device_array))
    emulator.order = 0
    assert all(np.array_equal(results[0], other) for other in results[1:])


def test_outputs_of_more_rows_than_a_grid_has(emulator: Emulator) -> None:
    """CUDA takes 65535 blocks in y; the kernels walk on from there."""
    rows = 8 * 65535 + 5
    check(NaiveGemm(emulator), Case(rows, 1, 1), "float32", device_array)


@pytest.mark.parametrize("cls", [*PLAIN, ThinGemm], ids=lambda cls: cls.name)
@pytest.mark.parametrize(("m", "n"), [(0, 4), (4, 0), (0, 0)])
def test_an_empty_output_is_left_alone(cls: type[PlannedGemm], m: int, n: int) -> None:
    """CUDA refuses an empty grid: nothing is compiled or launched, nothing near it is written."""
    compiled: list[Any] = []
    gemm = cls(SimpleNamespace(multiprocessors=132, load=lambda *args, **_: compiled.append(args)))
    memory = device_array(np.full((4, 4), 7, np.float32))
    for _ in range(2):  # the second call is a known shape
        gemm(*(device_array(np.ones(s, np.float32)) for s in ((m, 3), (3, n))), memory[:m, :n])
    assert compiled == []
    assert (memory == 7).all()
    with pytest.raises(ConfigError, match="k the same"):
        gemm(*(device_array(np.ones(s, np.float32)) for s in ((m, 3), (2, n))), memory[:m, :n])


# --- what a launch costs and refuses


def test_a_known_shape_is_planned_once(emulator: Emulator) -> None:
    planned = []

    class Counting(NaiveGemm):
        def plan(self, *args: Any) -> Any:
            planned.append(args)
            return super().plan(*args)

    gemm = Counting(emulator)
    arrays = [device_array(np.ones((4, 4), np.float32)) for _ in range(3)]
    for _ in range(3):
        gemm(*arrays)
    gemm(arrays[0].T, *arrays[1:])
    assert len(planned) == 2
    assert (arrays[2] == 4).all()


@pytest.mark.parametrize(
    ("shapes", "dtypes", "says"),
    [
        (((2, 3), (4, 5), (2, 5)), "fff", "k the same"),
        (((2, 3), (3, 5), (5, 2)), "fff", "(m, k) x (k, n) -> (m, n)"),
        (((6,), (3, 5), (2, 5)), "fff", "(m, k) x (k, n) -> (m, n)"),
        (((2, 3), (3, 5), (2, 5)), "ffd", "all of float32 or all of float64"),
        (((2, 3), (3, 5), (2, 5)), "eee", "all of float32 or all of float64"),
        (((2, 3), (3, 5), (2, 5)), "lll", "all of float32 or all of float64"),
    ],
)
def test_what_does_not_fit_is_refused(plain: PlannedGemm, shapes: Any, dtypes: str, says: str):
    arrays = [device_array(np.zeros(s, np.dtype(t))) for s, t in zip(shapes, dtypes, strict=True)]
    with pytest.raises(ConfigError) as error:
        plain(*arrays)
    assert says in str(error.value)
    assert "got" in str(error.value)


def test_an_output_that_is_not_row_major_is_refused(plain: PlannedGemm) -> None:
    a, b = (device_array(np.zeros((4, 4), np.float32)) for _ in range(2))
    wide = device_array(np.zeros((4, 8), np.float32))
    for out in (wide[:, :4].T, wide[:, ::2], np.broadcast_to(wide[0, :4], (4, 4), subok=True)):
        with pytest.raises(ConfigError, match="row-major"):
            plain(a, b, out)


def test_a_gemm_is_found_by_name(emulator: Emulator) -> None:
    assert list(GEMMS) == ["naive", "tiled", "register", "hierarchical", "thin", "cublas"]
    with pytest.raises(ConfigError, match=r"naive, tiled, .* got 'fast'"):
        make_gemm("fast")
    for name in (n for n in GEMMS if "tf32" not in MATHS[n]):
        with pytest.raises(ConfigError, match=r"only ieee; use hierarchical or cublas"):
            make_gemm(name, math="tf32")


# --- vectors and tiles of the thin kernels


@pytest.mark.parametrize(
    ("x", "real", "width"),
    [
        (Operand(10, 1500, 1500, 1, 0), "float", 4),
        (Operand(10, 1500, 1500, 1, 0), "double", 2),
        (Operand(10, 750, 750, 1, 0), "float", 2),  # 3000 bytes a row
        (Operand(10, 1500, 1500, 1, 8), "float", 2),  # starts 8 bytes off
        (Operand(10, 1500, 1500, 1, 4), "float", 1),
        (Operand(10, 1500, 1501, 1, 0), "float", 1),  # a slice of odd rows
        (Operand(10, 1501, 1504, 1, 0), "float", 1),  # an odd edge
        (Operand(1, 1500, 0, 1, 0), "float", 4),  # one row: its distance to the next is nothing
        (Operand(10, 1500, 1, 10, 0), "float", 1),  # transposed
    ],
)
def test_vectors_are_as_wide_as_every_load_allows(x: Operand, real: str, width: int) -> None:
    assert vector(x, real) == width


@pytest.mark.parametrize(("hidden", "columns"), [(512, 1500), (2048, 6000), (64, 1600), (512, 750)])
def test_the_networks_thin_products_fill_an_h200(hidden: int, columns: int) -> None:
    """One launch each, of a block for nearly every multiprocessor, or for every row there is."""
    asked = []

    def load(name: str, **macros: Any) -> Any:
        asked.append((name, macros))
        return SimpleNamespace(get_function=lambda kernel: kernel)

    gemm = ThinGemm(SimpleNamespace(multiprocessors=132, load=load))

    def blocks(a: Operand, b: Operand) -> int:
        out = Operand(a.rows, b.columns, b.columns, 1, 0)
        grid = gemm.plan(a, b, out, "float").grid
        return int(np.prod(grid))

    def rows(height: int, width: int) -> Operand:
        return Operand(height, width, width, 1, 0)

    a1, z2, w2 = rows(hidden, columns), rows(10, columns), rows(10, hidden)
    assert blocks(w2, a1) >= 94
    assert blocks(z2, a1.transposed) >= min(94, hidden)
    assert blocks(w2.transposed, z2) >= 94
    assert [name for name, _ in asked] == ["thin", "thin", "thin_outer"]
    assert [macros.get("ROWS") for _, macros in asked[:2]] == [10, 10]
    for _, macros in asked[:2]:  # the static shared memory that CUDA allows
        values = macros["WARPS"] * macros["LANES"] * macros["ROWS"] * macros["COLUMNS"]
        assert 4 * values <= 48 << 10


def test_no_plan_needs_more_than_cuda_gives() -> None:
    """Threads of a block, static shared memory and grid, for many shapes and both dtypes."""
    seen = {}

    def load(name: str, **macros: Any) -> Any:
        seen[tuple(macros.items())] = macros
        return SimpleNamespace(get_function=lambda kernel: kernel)

    gemm = ThinGemm(SimpleNamespace(multiprocessors=132, load=load))
    extents = (1, 2, 10, 16, 17, 37, 64, 750, 4096, 12000)
    for real, size in (("float", 4), ("double", 8)):
        for m in extents:
            for n in extents:
                for k in extents:
                    for b in (Operand(k, n, n, 1, 0), Operand(k, n, 1, k, 0)):
                        out = Operand(m, n, n, 1, 0)
                        plan = gemm.plan(Operand(m, k, k, 1, 0), b, out, real)
                        assert plan.block[0] <= 1024
                        assert plan.grid[1] <= 65535
        for macros in seen.values():
            if macros["REAL"] == real and "LANES" in macros:
                values = macros["WARPS"] * macros["LANES"] * macros["ROWS"] * macros["COLUMNS"]
                assert size * values <= 48 << 10
                assert macros["WARPS"] % macros["GROUPS"] == 0
