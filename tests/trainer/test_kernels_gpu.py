"""Every GEMM on a GPU: the checks of `test_kernels.py`, larger, and for all of `GEMMS`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from support.kernel_cases import Case, check, random_cases, thin_cases
from trainer.errors import ConfigError
from trainer.kernels import GEMMS, MATHS, make_gemm

pytestmark = pytest.mark.gpu
cupy = pytest.importorskip("cupy", reason="no CuPy: pip install cupy-cuda13x")

KINDS = [(name, "float64", "ieee") for name in GEMMS]
KINDS += [(name, "float32", math) for name in GEMMS for math in MATHS[name]]
NETWORK = (
    Case(512, 1500, 784, "plain", "transposed"),  # W1 x, x held as (B', D)
    Case(10, 1500, 512),  # W2 a1
    Case(512, 1500, 10, "transposed"),  # W2^T dz2
    Case(10, 512, 1500, "plain", "transposed"),  # dz2 a1^T
    Case(512, 784, 1500),  # dz1 x^T
    Case(10, 1, 1500),
    Case(512, 1, 1500),
    Case(10, 750, 512, beta=1.0),
    Case(10, 64, 12000, "plain", "transposed", alpha=0.1),
    Case(2048, 600, 10, "transposed"),
    Case(257, 129, 1031, "transposed", "transposed", 3, -1.0, 0.5, 1),
)


@pytest.fixture(scope="module", autouse=True)
def _gpu() -> None:
    try:
        found = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        pytest.skip(f"no CUDA device: {error}")
    if not found:
        pytest.skip("no CUDA device")


@pytest.fixture(params=KINDS, ids="-".join)
def kind(request: pytest.FixtureRequest) -> tuple[Any, str, str]:
    name, dtype, math = request.param
    return make_gemm(name, math=math), dtype, math


def test_the_networks_products(kind: tuple[Any, str, str]) -> None:
    gemm, dtype, math = kind
    for seed, case in enumerate(NETWORK):
        check(gemm, case, dtype, cupy.asarray, math=math, seed=seed)


def test_any_shape_and_layout(kind: tuple[Any, str, str]) -> None:
    """Layouts that a kernel names as its limit may be refused; `ConfigError` must say so."""
    gemm, dtype, math = kind
    ours = gemm.name != "cublas"
    cases = [*thin_cases(), *random_cases(20 if gemm.name == "thin" else 60, seed=2)]
    for seed, case in enumerate(cases):
        try:
            check(gemm, case, dtype, cupy.asarray, math=math, seed=seed)
        except ConfigError:
            odd = {case.a, case.b} & {"stepped", "reversed"}
            assert not ours, f"{gemm.name} refused {case}"
            assert odd or not case.k, f"{gemm.name} refused {case}"


def test_the_same_input_gives_the_same_bits(kind: tuple[Any, str, str]) -> None:
    gemm, dtype, math = kind
    for case in (Case(10, 512, 1500, "plain", "transposed"), Case(512, 300, 784, "plain")):
        first, second = (check(gemm, case, dtype, cupy.asarray, math=math) for _ in range(2))
        assert np.array_equal(first, second)


def test_a_gemm_can_be_captured_in_a_graph(kind: tuple[Any, str, str]) -> None:
    """After one call for these arrays, which plans and allocates."""
    gemm, dtype, _ = kind
    rng = np.random.default_rng(0)
    a, b = (cupy.asarray(rng.standard_normal(s).astype(dtype)) for s in ((10, 64), (64, 96)))
    out, again = cupy.empty((10, 96), dtype), cupy.empty((10, 96), dtype)
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with stream:
        gemm(a, b, out)
        gemm(a, b, again)
        again.fill(0)
        stream.synchronize()
        stream.begin_capture()
        gemm(a, b, again)
        graph = stream.end_capture()
        graph.launch(stream)
        stream.synchronize()
    assert bool((out == again).all())
