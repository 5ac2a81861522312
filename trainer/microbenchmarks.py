"""The trainer's own kernels one by one, for `perfmodel machine measure --kernels`.

Each is called exactly as a batch calls it: by the same network, on matrices of the same layout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from trainer.kernels import make_gemm
from trainer.mpi import Communicator
from trainer.networks.fused import FusedNetwork
from trainer.parameters import Tensors

INPUTS: Final = 784
CLASSES: Final = 10
_MOST_BYTES: Final = 4 << 30
"""Of a network's matrices for one batch."""

Timed = tuple[str, str, str, tuple[int, int, int], Callable[[], None]]


class _Backend:
    """The operations of a backend that a network needs, on CuPy's current stream."""

    on_device = True

    def __init__(self, math: str) -> None:
        import cupy

        self.xp = cupy
        self.multiply = make_gemm("hierarchical", math=math)

    def to_host(self, source: Any, target: np.ndarray) -> None:
        """Copy to the host."""
        source.get(out=target)


def kernels(hidden: Sequence[int], batches: Sequence[int]) -> Iterator[Timed]:
    """Yield the kernels of the fused network (tf32x3) and the thin GEMMs at every H and B'."""
    import cupy

    backend: Any = _Backend("tf32x3")
    random = cupy.random.default_rng(213)
    for h in hidden:
        network = FusedNetwork(
            backend, INPUTS, h, CLASSES, "float32", max(batches), exact_images=True
        )
        network.initialize(213)
        for b in batches:
            if 8 * h * b > _MOST_BYTES:
                continue
            yield from _fused(network, random, h, b)
            yield from _thin(random, h, b)
        del network
        cupy.get_default_memory_pool().free_all_blocks()


def _fused(network: FusedNetwork, random: Any, h: int, b: int) -> Iterator[Timed]:
    """Yield the four kernels of one batch, in their order: each needs what the last one left."""
    import cupy

    stride = -(-b // 4) * 4
    x = random.integers(0, 256, (b, INPUTS)).astype(np.float32)
    xt = cupy.zeros((INPUTS, stride), np.float32)[:, :b]
    xt[:] = x.T
    y = cupy.zeros((CLASSES, b), np.float32)
    y[random.integers(0, CLASSES, b), cupy.arange(b)] = 1
    loss = cupy.empty(b, np.float32)
    work = network.work(b)
    of = "tf32x3"
    yield "fused forward 1", of, "nt", (h, b, INPUTS), lambda: void(network.forward(x))
    yield (
        "fused output", of, "nn", (CLASSES, b, h),
        lambda: network.loss_gradient(work, y, 1 / b, loss),
    )  # fmt: skip
    yield "fused backward", of, "tn", (h, b, CLASSES), lambda: network.backward_output(work)
    yield (
        "fused backward 3", of, "nn", (h, INPUTS, b),
        lambda: network.backward_hidden(x, work, xt=xt),
    )  # fmt: skip


def _thin(random: Any, h: int, b: int) -> Iterator[Timed]:
    """Yield the three GEMMs of C classes by the thin kernels."""
    import cupy

    thin = make_gemm("thin")
    w2, z2 = (random.random((CLASSES, n), dtype=np.float32) for n in (h, b))
    a1 = random.random((h, b), dtype=np.float32)
    out, d1, g2 = (cupy.empty(s, np.float32) for s in ((CLASSES, b), (h, b), (CLASSES, h)))
    of = "float32"
    yield "thin forward 2", of, "nn", (CLASSES, b, h), lambda: thin(w2, a1, out)
    yield "thin backward 1", of, "tn", (h, b, CLASSES), lambda: thin(w2.T, z2, d1)
    yield "thin backward 2", of, "nt", (CLASSES, h, b), lambda: thin(z2, a1.T, g2)


def void(_: object) -> None:
    """Return nothing: what a call leaves is not its time."""


def steps(mpi: Any, hidden: Sequence[int]) -> Iterator[tuple[int, Callable[[], None]]]:
    """Yield the step in one kernel by gradient bytes; with ranks, with their sum (collective)."""
    import cupy

    from trainer.kernels.peer import SumAndStep, blocks_of, inbox_bytes
    from trainer.transports.peer import SharedMemory

    comm = Communicator(None if mpi is None else mpi.COMM_WORLD)
    for h in sorted(set(hidden)):
        count = h * INPUTS + h + CLASSES * h + CLASSES
        flats = [cupy.zeros(count, np.float32) for _ in range(2)]
        parameters = Tensors.split(flats[0], INPUTS, h, CLASSES)
        if comm.size == 1:
            step = SumAndStep(parameters)
        else:
            _, blocks = blocks_of(count)
            inbox = SharedMemory(comm, inbox_bytes(flats[0], comm.size))
            flags = SharedMemory(comm, 4 * blocks * comm.size)
            launches = cupy.zeros(blocks, np.uint32)
            cupy.cuda.runtime.deviceSynchronize()
            comm.barrier()
            step = SumAndStep(parameters, comm.rank, inbox.addresses, flags.addresses, launches)
        yield 4 * count, partial(step, flats[1], 0.01, 0.0)
        cupy.cuda.runtime.deviceSynchronize()
        comm.barrier()
