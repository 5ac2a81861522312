"""Whether an implementation computes what it should: parameters against a float64 reference."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from trainer.backends.numpy import NumpyBackend
from trainer.config import Config
from trainer.data import Dataset, one_hot
from trainer.errors import DeviceError
from trainer.mpi import Communicator, set_threads
from trainer.networks.base import Network
from trainer.parameters import Tensors
from trainer.steps.batches import Split

BOUNDS: Final = {"fp32": 3e-5, "tf32": 5e-3}
"""Of the error relative to the way gone: 21 batches of H = 512, B = 3000 err by 4e-6 in float32,
and by 7e-4 with factors rounded to TF32; without regularization one errs by 1e-4."""


@dataclass(frozen=True)
class Reference:
    """Where training starts, and where it should be after so many batches.

    Attributes
    ----------
    initial, final : float64, shape (n,)
        W1, b1, W2, b2; final is None on all ranks but 0.
    """

    config: Config
    steps: int
    initial: np.ndarray
    final: np.ndarray | None

    @classmethod
    def compute(cls, config: Config, data: Dataset, comm: Communicator) -> Reference:
        """Train one epoch and a batch in float64 on rank 0, on the cores of all (collective)."""
        split = Split(len(data.labels), config.batch_size)
        steps = len(split) + 1
        sizes = (config.input_size, config.hidden_size, config.num_classes)
        # what float32 implementations start from
        initial = Network.initial(config.seed, *sizes).astype(np.float32).astype(np.float64)
        final = None
        with contextlib.suppress(DeviceError):  # no threadpoolctl: as many threads as before
            set_threads(comm, len(os.sched_getaffinity(0)) if comm.rank == 0 else 1)
        with comm.agreed():
            try:
                if comm.rank == 0:
                    final = _train(config, data, split, initial, steps)
            finally:
                comm.yielding_barrier()
        set_threads(comm, 0)
        return cls(config, steps, initial, final)

    def error(self, found: np.ndarray) -> float | None:
        """Return the largest over the four tensors of |found - wanted| / |wanted - initial|.

        Euclidean norms; None where the reference is not.
        """
        if self.final is None:
            return None
        c = self.config
        parts = [
            Tensors.split(flat, c.input_size, c.hidden_size, c.num_classes).named()
            for flat in (np.asarray(found, np.float64), self.final, self.initial)
        ]
        norm = np.linalg.norm
        errors = [
            float(norm(parts[0][name] - wanted) / norm(wanted - parts[2][name]))
            for name, wanted in parts[1].items()
        ]
        return max(errors) if np.all(np.isfinite(errors)) else float("inf")


def _train(
    config: Config, data: Dataset, split: Split, initial: np.ndarray, steps: int
) -> np.ndarray:
    """Return the parameters after `steps` batches of `trainer.networks.base` in float64."""
    network: Any = Network(
        NumpyBackend(), config.input_size, config.hidden_size, config.num_classes, "float64",
        split.size(0),
    )  # fmt: skip
    network.set_parameters(initial)
    for step in range(steps):
        low, high = split.bounds(step % len(split))
        x = data.images[low:high].astype(np.float64)
        if config.pixels == "unit":
            x /= 255
        y = one_hot(data.labels[low:high], config.num_classes, np.float64)
        work = network.forward(x)
        network.loss_gradient(work, y, 1.0 / len(x), np.empty(len(x)))
        network.backward_output(work)
        network.backward_hidden(x, work)
        network.step(config.learning_rate, config.regularization)
    found: np.ndarray = network.host_parameters()
    return found
