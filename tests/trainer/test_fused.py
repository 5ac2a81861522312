"""The fused network: its kernels on the CPU against the network's formulas in float64."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from support.cuda_on_cpu import Emulator, device_array
from trainer.backends.numpy import NumpyBackend
from trainer.errors import ConfigError
from trainer.kernels import peer as stepper
from trainer.kernels.hierarchical import HierarchicalGemm
from trainer.networks import fused as network_fused
from trainer.networks.base import Network
from trainer.networks.fused import MOST_CLASSES, FusedNetwork

INPUTS = 21


@pytest.fixture(scope="session")
def emulator(gxx: str, tmp_path_factory: pytest.TempPathFactory) -> Emulator:
    return Emulator(tmp_path_factory.mktemp("fused"))


class Device:
    """Enough of CuPy's functions for a network: its arrays know their addresses."""

    isfinite, where = staticmethod(np.isfinite), staticmethod(np.where)

    @staticmethod
    def full(shape: Any, value: float, dtype: Any) -> Any:
        """As a GPU allocates: from 16 bytes on, here up to a forbidden page where that fits."""
        values = np.full(shape, value, dtype)
        return device_array(values, at_the_end=values.nbytes % 16 == 0)

    def zeros(self, shape: Any, dtype: Any) -> Any:
        return self.full(shape, 0, dtype)

    def ones(self, shape: Any, dtype: Any) -> Any:
        return self.full(shape, 1, dtype)

    def empty(self, shape: Any, dtype: Any) -> Any:
        return self.full(shape, np.nan, dtype)

    def asarray(self, values: np.ndarray) -> np.ndarray:
        return values


class Emulated(NumpyBackend):
    """The GPU that the emulator is; products by our kernel, or by a BLAS as with cuBLAS."""

    on_device = True

    def __init__(self, emulator: Emulator, fuses: bool) -> None:
        super().__init__()
        self.xp: Any = Device()
        self.multiply: Any = HierarchicalGemm(device=emulator) if fuses else blas


def blas(a: np.ndarray, b: np.ndarray, out: np.ndarray) -> None:
    out[...] = np.asarray(a) @ np.asarray(b)


@pytest.fixture(autouse=True)
def _emulated(emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(network_fused, "load", emulator.load)
    monkeypatch.setattr(stepper, "load", emulator.load)
    yield
    emulator.order = 0


def parameters(hidden: int, classes: int) -> np.ndarray:
    rng = np.random.default_rng(hidden + classes)
    return 0.3 * rng.standard_normal(hidden * INPUTS + hidden + classes * hidden + classes)


def batch(columns: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(columns)
    y = np.arange(classes)[:, None] == rng.integers(0, classes, columns)
    return rng.random((columns, INPUTS)), y.astype(float)


def train(net: Network, x: Any, y: Any, loss: Any) -> None:
    work = net.forward(x)
    net.loss_gradient(work, y, 1 / max(1, len(x)), loss)
    net.backward_output(work)
    net.backward_hidden(x, work)


def check(emulator: Emulator, dtype: str, hidden: int, classes: int, columns: int, *,
          fuses: bool = True, order: int = 0) -> np.ndarray:  # fmt: skip
    """Compare loss, gradients, step and prediction of one batch; return the gradients."""
    emulator.order = order
    made = FusedNetwork(Emulated(emulator, fuses), INPUTS, hidden, classes, dtype, columns)
    wanted = Network(NumpyBackend(), INPUTS, hidden, classes, "float64", columns)
    for net in (made, wanted):
        net.set_parameters(parameters(hidden, classes))
    x, y = batch(columns, classes)
    found_loss, wanted_loss = device_array(np.full(columns, np.nan, dtype)), np.empty(columns)
    train(made, device_array(x.astype(dtype)), device_array(y.astype(dtype)), found_loss)
    train(wanted, x, y, wanted_loss)
    gradients = np.array(made.gradients.flat)
    unit = np.finfo(dtype).eps
    close = {"rtol": 40 * unit, "atol": 40 * unit}
    np.testing.assert_allclose(found_loss, wanted_loss, **close)
    for name, gradient in wanted.gradients.named().items():
        np.testing.assert_allclose(made.gradients.named()[name], gradient, err_msg=name, **close)
    for net in (made, wanted):
        net.step(0.5, 0.1)
    np.testing.assert_allclose(made.parameters.flat, wanted.parameters.flat, **close)
    scores = wanted.forward(x).z2 + wanted.parameters.b2[:, None]
    found = np.array(made.predict(device_array(x.astype(dtype))))
    top = np.sort(scores, axis=0)[-2:]
    clear = top[1] - top[0] > 1e-4 if classes > 1 and columns else np.zeros(columns, bool)
    assert np.array_equal(found[clear], scores.argmax(axis=0)[clear])
    return gradients


@pytest.mark.slow
@pytest.mark.parametrize("columns", [1, 15, 36, 50])
@pytest.mark.parametrize(("hidden", "classes"), [(37, 10), (3, 13), (301, 2), (1, 32), (130, 17)])
def test_a_batch_in_float32(emulator: Emulator, hidden: int, classes: int, columns: int) -> None:
    """One and two rows a block; more classes than rows, so that some blocks have but one of dz2."""
    check(emulator, "float32", hidden, classes, columns)


@pytest.mark.slow
@pytest.mark.parametrize(("hidden", "classes", "columns"), [(37, 10, 50), (2, 16, 7), (260, 3, 33)])
def test_a_batch_in_float64(emulator: Emulator, hidden: int, classes: int, columns: int) -> None:
    check(emulator, "float64", hidden, classes, columns)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hidden", "classes", "columns"), [(37, 10, 50), (301, 10, 33), (5, 13, 8)]
)
def test_the_sigmoid_may_be_left_to_the_kernels_in_the_middle(
    emulator: Emulator, hidden: int, classes: int, columns: int
) -> None:
    """As with cuBLAS and TF32, whose z1 they read twice."""
    check(emulator, "float32", hidden, classes, columns, fuses=False)


@pytest.mark.slow
def test_a_rank_without_images_has_no_gradient(emulator: Emulator) -> None:
    made = FusedNetwork(Emulated(emulator, True), INPUTS, 37, 10, "float32", 4)
    made.set_parameters(parameters(37, 10))
    made.gradients.flat[:] = np.nan
    x, y = batch(0, 10)
    train(made, *(device_array(v.astype("f4")) for v in (x, y)), device_array(np.zeros(0, "f4")))
    assert not made.gradients.flat.any()


@pytest.mark.slow
def test_threads_in_any_order_give_the_same_bits(emulator: Emulator) -> None:
    results = [check(emulator, "float32", 70, 10, 37, order=order) for order in (0, 1, 2, 3)]
    assert all(np.array_equal(results[0], other) for other in results[1:])


def test_batches_of_two_sizes_take_turns(emulator: Emulator) -> None:
    """What lies between a row's last image and the next row is 0 whatever came before."""
    made = FusedNetwork(Emulated(emulator, False), INPUTS, 40, 10, "float32", 50)
    wanted = Network(NumpyBackend(), INPUTS, 40, 10, "float64", 50)
    for net in (made, wanted):
        net.set_parameters(parameters(40, 10))
    for columns in (50, 13, 50, 13):
        x, y = batch(columns, 10)
        loss = device_array(np.zeros(columns, "f4"))
        train(made, device_array(x.astype("f4")), device_array(y.astype("f4")), loss)
        train(wanted, x, y, np.empty(columns))
        np.testing.assert_allclose(made.gradients.flat, wanted.gradients.flat, rtol=0, atol=5e-6)


@pytest.mark.slow
def test_images_by_pixels_give_the_same_gradient(emulator: Emulator) -> None:
    made = FusedNetwork(Emulated(emulator, True), INPUTS, 40, 10, "float32", 36)
    made.set_parameters(parameters(40, 10))
    x, y = (device_array(v.astype("f4")) for v in batch(36, 10))
    train(made, x, y, device_array(np.zeros(36, "f4")))
    once = np.array(made.gradients.W1)
    made.backward_hidden(x, made.work(36), xt=device_array(np.ascontiguousarray(x.T)))
    np.testing.assert_allclose(made.gradients.W1, once, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_more_classes_than_registers_are_refused(emulator: Emulator, dtype: str) -> None:
    most = MOST_CLASSES[dtype]
    with pytest.raises(ConfigError, match=f"at most {most} in {dtype}; got {most + 1}; use"):
        FusedNetwork(Emulated(emulator, True), INPUTS, 8, most + 1, dtype, 4)
