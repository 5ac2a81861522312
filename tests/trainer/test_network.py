import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.trainer_runs import images, session, small
from trainer.backends import numpy as backend_module
from trainer.backends.numpy import NumpyBackend
from trainer.networks.base import Network
from trainer.parameters import Tensors


def network(config, dtype=None, columns=50):
    sizes = (config.input_size, config.hidden_size, config.num_classes)
    made = Network(NumpyBackend(), *sizes, dtype or config.dtype, columns)
    made.initialize(config.seed)
    made.parameters.flat[:] *= 30  # away from the linear part of the sigmoid
    made.parameters.b1[:] = np.linspace(-1, 1, config.hidden_size)
    made.parameters.b2[:] = np.linspace(1, -1, config.num_classes)
    return made


def loss_and_gradient(net, x, y):
    """Return the mean cross-entropy of a batch and its gradient, flat."""
    columns = len(x)
    loss = np.empty(columns, net.dtype)
    work = net.forward(x)
    net.loss_gradient(work, y, 1 / columns, loss)
    net.backward_output(work)
    net.backward_hidden(x, work)
    return loss.sum() / columns, net.gradients.flat.copy()


def test_gradient_is_that_of_central_differences():
    config = small(dtype="float64")
    net = network(config)
    x, y, _ = images(config, 17)
    _, gradient = loss_and_gradient(net, x, y)
    h = 1e-6
    flat = net.parameters.flat
    for index in range(flat.size):
        kept = flat[index]
        ends = []
        for sign in (1, -1):
            flat[index] = kept + sign * h
            ends.append(loss_and_gradient(net, x, y)[0])
        flat[index] = kept
        assert (ends[0] - ends[1]) / (2 * h) == pytest.approx(gradient[index], abs=2e-9)


def test_gradient_is_that_of_the_complex_step():
    # Im J(p + i h) / h has no cancellation: the derivative to the last digits
    config = small(dtype="float64")
    net, x_y = network(config), images(config, 17)
    _, gradient = loss_and_gradient(net, *x_y[:2])
    turned = network(config, dtype=np.complex128)
    x, y = x_y[0].astype(complex), x_y[1].astype(complex)
    for index in range(gradient.size):
        turned.parameters.flat[index] += 1e-30j
        derivative = loss_and_gradient(turned, x, y)[0].imag / 1e-30
        turned.parameters.flat[index] -= 1e-30j
        assert derivative == pytest.approx(gradient[index], rel=1e-11, abs=1e-15)


def test_a_step_is_that_of_torch_autograd():
    torch = pytest.importorskip("torch", reason="torch is not installed (a development extra)")
    config = small(dtype="float64", regularization=0.1, learning_rate=0.5)
    net = network(config)
    x, y, labels = images(config, 23)
    p = {k: torch.tensor(v, requires_grad=True) for k, v in net.parameters.named().items()}
    a1 = torch.sigmoid(torch.tensor(x) @ p["W1"].T + p["b1"])
    z2 = a1 @ p["W2"].T + p["b2"]
    j = torch.nn.functional.cross_entropy(z2, torch.tensor(labels))
    weights = (p["W1"] ** 2).sum() + (p["W2"] ** 2).sum()
    total = j + 0.5 * config.regularization * weights
    total.backward()
    loss, _ = loss_and_gradient(net, x, y)
    assert loss == pytest.approx(j.item(), rel=1e-13)
    assert loss + net.penalty(config.regularization) == pytest.approx(total.item(), rel=1e-13)
    net.step(config.learning_rate, config.regularization)
    for name, tensor in p.items():
        wanted = tensor.detach() - config.learning_rate * tensor.grad
        np.testing.assert_allclose(
            net.parameters.named()[name], wanted.numpy(), rtol=1e-12, atol=1e-15
        )


def test_worked_example():
    """D = H = 1, C = 2, x = 1, W1 = 0, b1 = 0: a1 = 1/2; W2 = 0, b2 = 0: softmax = 1/2, 1/2."""
    net = Network(NumpyBackend(), 1, 1, 2, "float64", 1)
    net.parameters.W2[:] = [[1.0], [-1.0]]
    loss, _ = loss_and_gradient(net, np.ones((1, 1)), np.array([[1.0], [0.0]]))
    p = 1 / (1 + np.exp(-1.0))  # softmax of (1/2, -1/2)
    assert loss == pytest.approx(-np.log(p))
    np.testing.assert_allclose(net.gradients.b2, [p - 1, 1 - p])  # eq. 5
    np.testing.assert_allclose(net.gradients.W2[:, 0], [(p - 1) / 2, (1 - p) / 2])  # eq. 4
    d1 = (p - 1) - (1 - p)
    np.testing.assert_allclose(net.gradients.b1, [d1 / 4])  # eq. 7
    np.testing.assert_allclose(net.gradients.W1, [[d1 / 4]])  # eq. 6


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_huge_scores_do_not_overflow(dtype):
    backend = NumpyBackend()
    z = np.array([[3e4, -3e4], [-3e4, 3e4]], dtype)
    y = np.array([[1, 1], [0, 0]], dtype)
    loss = np.empty(2, dtype)
    backend.softmax_gradient(z, np.zeros(2, dtype), y, 1.0, loss)
    np.testing.assert_array_equal(loss, [0, 6e4])
    np.testing.assert_array_equal(z, [[0, -1], [0, 1]])
    a = np.array([[-1e5, 1e5]], dtype)
    backend.bias_sigmoid(a, np.zeros(1, dtype))
    np.testing.assert_array_equal(a, [[0, 1]])


def test_not_a_number_reaches_the_loss():
    config = small()
    net = network(config)
    x, y, _ = images(config, 5)
    net.parameters.W1[0, 0] = np.nan
    loss, _ = loss_and_gradient(net, x.astype("f4"), y.astype("f4"))
    assert np.isnan(loss)


@given(rows=st.integers(1, 40), columns=st.integers(0, 9), block=st.sampled_from([1, 100, 1 << 19]))
def test_blocks_cover_every_shape(rows, columns, block):
    rng = np.random.default_rng(3)
    z, a, bias = rng.standard_normal((rows, columns)), rng.random((rows, columns)), rng.random(rows)
    sigmoid, gradient, p = z.copy(), z.copy(), z.copy()
    backend_module_block, backend_module._BLOCK_BYTES = backend_module._BLOCK_BYTES, block
    try:
        backend = NumpyBackend()
        backend.bias_sigmoid(sigmoid, bias)
        backend.sigmoid_gradient(gradient, a)
        backend.descend(p, a.copy(), 0.5, 0.25)
    finally:
        backend_module._BLOCK_BYTES = backend_module_block
    np.testing.assert_allclose(sigmoid, 1 / (1 + np.exp(-(z + bias[:, None]))), rtol=1e-15)
    np.testing.assert_allclose(gradient, z * a * (1 - a), rtol=1e-15)
    np.testing.assert_allclose(p, z - 0.5 * (a + 0.25 * z), rtol=1e-14, atol=1e-15)


def test_parameters_are_views_of_one_buffer_in_the_documents_order():
    flat = np.arange(12 * 8 + 8 + 4 * 8 + 4)
    tensors = Tensors.split(flat, 12, 8, 4)
    named = tensors.named()
    assert list(named) == ["W1", "b1", "W2", "b2"]
    assert [t.shape for t in named.values()] == [(8, 12), (8,), (4, 8), (4,)]
    np.testing.assert_array_equal(np.concatenate([t.ravel() for t in named.values()]), flat)
    assert all(np.shares_memory(t, flat) for t in named.values())


def test_initial_weights_are_the_documents():
    config = small(input_size=784, hidden_size=512)
    net = Network(NumpyBackend(), 784, 512, 10, "float64", 1)
    net.initialize(config.seed)
    p = net.parameters
    assert p.W1.std() == pytest.approx(0.01, rel=0.01)
    assert not p.b1.any()
    assert not p.b2.any()
    single = Network(NumpyBackend(), 784, 512, 10, "float32", 1)
    single.initialize(config.seed)
    np.testing.assert_array_equal(single.parameters.flat, p.flat.astype("f4"))


@pytest.mark.slow
def test_the_batch_loop_allocates_nothing():
    config = small(
        input_size=100, hidden_size=256, num_classes=10, batch_size=2000, train_size=7000,
        test_size=10, epochs=1, threads=1,
    )  # fmt: skip
    running = session(config)
    running.prepare()
    running.run_batches(8)
    tracemalloc.start()
    try:
        running.run_batches(20)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # NumPy's ufuncs borrow 32 KB while they cast a scalar; the smallest matrix has 80 KB
    assert peak < 40_000, peak
