"""Assembles a rank's training from a Config: batches, network, transport and step."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from trainer.backends.base import Backend
from trainer.config import Config
from trainer.data import Dataset
from trainer.mpi import Communicator
from trainer.networks.base import Network
from trainer.ranges import Ranges
from trainer.rates import LearningRate
from trainer.steps.batches import Batches, Split
from trainer.steps.data_parallel import DataParallelStep, take_losses
from trainer.steps.graph import GraphStep, why_not_captured
from trainer.steps.model_parallel import HiddenSlices, ModelParallelStep
from trainer.transports import make_transport
from trainer.transports.base import Message, Parties, Update


class Assembly:
    """The parts of one run on this rank; the same questions for data and model parallelism.

    Parameters
    ----------
    data : Dataset
        The whole data set, on every rank.

    Attributes
    ----------
    step : callable
        Trains on a batch, by its index.
    rate : LearningRate
        Of the step; to be turned to the batch before it.
    why_no_graph : str or None
        Why ``--graph`` is not followed; None if it is, or was not asked for.
    """

    def __init__(
        self, config: Config, comm: Communicator, backend: Backend, data: Dataset, ranges: Ranges
    ) -> None:
        self._config, self._comm, self._backend, self._ranges = config, comm, backend, ranges
        self._labels = (data.labels, data.test_labels)
        sizes = (config.input_size, config.hidden_size, config.num_classes)
        self._slices = HiddenSlices(sizes, comm) if config.parallel == "model" else None
        ranks, rank = (comm.size, comm.rank) if self._slices is None else (1, 0)
        splits = [Split(len(labels), config.batch_size, ranks, rank) for labels in self._labels]
        train, test = (data.images, data.labels), (data.test_images, data.test_labels)
        with comm.agreed():  # allocates: may fail on one rank alone
            self.batches = Batches(
                backend,
                splits[0],
                train,
                config,
                on=config.images_on,
                by_pixels=config.gemm == "fused",
            )
            self._tests = Batches(backend, splits[1], test, config)
            self.network = self._make_network(max(split.share(0) for split in splits))
        self.rate = LearningRate(
            config.peak_learning_rate, len(self.batches.split), config.warmup_epochs
        )
        self._plain = self._make_step()
        self.why_no_graph: str | None = None
        self.step: Callable[[int], None] = self._plain
        if config.graph:
            self._use_graphs()

    def _make_network(self, columns: int) -> Network:
        config, slices = self._config, self._slices
        hidden = config.hidden_size if slices is None else slices.high - slices.low
        sizes = (config.input_size, hidden, config.num_classes)
        if config.gemm == "fused" and self._backend.on_device:
            from trainer.networks.fused import FusedNetwork

            return FusedNetwork(
                self._backend, *sizes, config.dtype, columns, exact_images=config.pixels == "raw"
            )
        return Network(self._backend, *sizes, config.dtype, columns)

    def _make_step(self) -> DataParallelStep | ModelParallelStep:
        config, network, ranges = self._config, self.network, self._ranges
        if self._slices is not None:
            return ModelParallelStep(network, self.batches, self._comm, config, ranges, self.rate)
        parties = Parties(
            self._backend, self._comm, ranges, Message.of_gradients(network.gradients),
            overlap=config.overlap, barrier=config.sync_ranges,
            update=Update(network.parameters, self.rate, config.regularization),
        )  # fmt: skip
        transport = make_transport(config.transport, parties)
        return DataParallelStep(network, self.batches, transport, config, ranges, self.rate)

    def _use_graphs(self) -> None:
        split = self.batches.split
        reason = why_not_captured(self._backend, len(split), self._plain.uncapturable)
        if reason is None and self._config.sync_ranges:
            reason = "--sync-ranges waits inside the step, which a graph cannot"
        if reason is None and self._config.warmup_epochs:
            reason = "--warmup-epochs gives every batch its own rate, and a graph repeats one"
        self.why_no_graph = reason
        if reason is None:
            self.step = GraphStep(self._plain, self._backend, split.size, self._ranges)

    def initialize(self, seed: int) -> None:
        """Draw the whole network's initial parameters and keep this rank's."""
        self.set_parameters(Network.initial(seed, *self._sizes()))

    def set_parameters(self, whole: np.ndarray) -> None:
        """Overwrite this rank's parameters by its part of the whole network's, flat."""
        self.network.set_parameters(whole if self._slices is None else self._slices.take(whole))

    def parameters(self) -> np.ndarray:
        """Return the whole network's parameters, flat, on every rank (collective)."""
        own = self.network.host_parameters()
        return own if self._slices is None else self._slices.gather(own)

    def take_losses(self) -> np.ndarray:
        """Return the cross-entropy of every batch since last time, summed over its images.

        Collective; shape (batches,); 0 for batches not done.
        """
        sums = take_losses(self._plain.losses, self._backend)
        if self._slices is None:
            self._comm.sum_in_place(sums)
        return sums

    def penalty(self) -> float:
        """Return 0.5 lambda ||W||^2 of the whole network (eq. 1; collective)."""
        own = np.array([self.network.penalty(self._config.regularization)])
        if self._slices is not None:
            self._comm.sum_in_place(own)
        return float(own[0])

    def accuracies(self) -> tuple[float, float]:
        """Return the accuracy on the training and on the test set (collective).

        NaN where the network's scores of an image are not finite.
        """
        sets = zip((self.batches, self._tests), self._labels, strict=True)
        counts = np.array([self._plain.count_correct(*each) for each in sets], np.int64)
        self._comm.sum_in_place(counts)
        train, test = (
            math.nan if without else int(correct) / len(labels)
            for (correct, without), labels in zip(counts, self._labels, strict=True)
        )
        return train, test

    def _sizes(self) -> tuple[int, int, int]:
        return self._config.input_size, self._config.hidden_size, self._config.num_classes
