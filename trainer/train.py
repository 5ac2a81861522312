"""The loop: one run from setup to the last epoch, sequential or on many ranks."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np

from trainer import ranges as names
from trainer.backend import Backend, NumpyBackend
from trainer.checkpoint import State
from trainer.config import Config
from trainer.data import Dataset
from trainer.errors import NonFiniteLossError
from trainer.mpi import Communicator
from trainer.network import Network
from trainer.parallel import Batches, DataParallelStep, Split, count_correct, distribute
from trainer.ranges import SILENT, Ranges
from trainer.stop import StopRequest
from trainer.transport import make_transport

_FIRST_CHECK: Final = 16
_CHECK_SECONDS: Final = 0.5


class Observer(Protocol):
    """Hears how training goes, on rank 0: a progress bar, or nothing."""

    def on_batch(self, epoch: int, batch: int) -> None:
        """Hear that a batch is done."""

    def on_epoch(self, record: dict[str, Any]) -> None:
        """Hear what an epoch reached."""


class Quiet:
    """Hears nothing."""

    def on_batch(self, epoch: int, batch: int) -> None:
        """Ignore it."""

    def on_epoch(self, record: dict[str, Any]) -> None:
        """Ignore it."""


@dataclass(slots=True)
class Result:
    """What a run gives.

    Attributes
    ----------
    parameters : ndarray, shape (n,)
        W1, b1, W2, b2.
    epochs : list of dict
        Per epoch: epoch (from 1), loss, precision_train, precision_test (None where not
        evaluated) and seconds.
    stopped : bool
        A signal ended the run before its last batch.
    epoch, batch : int
        The next batch, had the run gone on.
    batch_seconds : list of float
        Host time of every batch of this process, first to last.
    seconds : dict of float
        Host time of setup, training and evaluation.
    """

    parameters: np.ndarray
    epochs: list[dict[str, Any]]
    stopped: bool
    epoch: int
    batch: int
    batch_seconds: list[float]
    seconds: dict[str, float] = field(default_factory=dict)


class Session:
    """One run on this rank: network, batches and transport made, then trained.

    Parameters
    ----------
    config : Config
    comm : Communicator
    dataset : Dataset or None
        Rank 0's; the other ranks receive it.
    backend : Backend
    ranges : Ranges
    state : State, optional
        Where to continue, on every rank.
    mark : callable, optional
        Called right before the first batch.
    """

    def __init__(
        self,
        config: Config,
        comm: Communicator,
        dataset: Dataset | None,
        backend: Backend,
        ranges: Ranges = SILENT,
        *,
        observer: Observer | None = None,
        stop: StopRequest | None = None,
        state: State | None = None,
        save: Callable[[State], None] | None = None,
        mark: Callable[[], object] | None = None,
    ) -> None:
        self.config, self.comm, self.backend, self.ranges = config, comm, backend, ranges
        self._dataset = dataset
        self._observer = observer or Quiet()
        self._stop = stop or StopRequest()
        self._save, self._mark, self._state = save, mark, state
        self._check_every = 1 if comm.size == 1 else _FIRST_CHECK
        self._batch_seconds = array("d")
        self._seconds = {"setup": 0.0, "train": 0.0, "evaluate": 0.0}

    def run(self) -> Result:
        """Train to the last epoch, or until asked to stop, on every rank alike.

        Raises
        ------
        NonFiniteLossError
            If the loss of a batch is NaN or infinite (on every rank).
        """
        config = self.config
        with self.ranges[names.TRAIN]:
            started = time.perf_counter()
            with self.ranges[names.SETUP]:
                self._setup()
            self._seconds["setup"] = time.perf_counter() - started
            if self._mark is not None:
                self._mark()
            batches = len(self._batches.split)
            while self._epoch < config.epochs:
                if not self._run_epoch():
                    break
                every = config.evaluate_every
                if every and (self._epoch % every == 0 or self._epoch == config.epochs):
                    self._evaluate()
                self._observer.on_epoch(self._history[-1])
                self._save_state()
                if self._epoch < config.epochs and self.comm.any(self._stop.requested):
                    break
        finished = self._epoch >= config.epochs
        if finished and self._history and self._history[-1]["precision_test"] is None:
            self._evaluate()
        return Result(
            parameters=self._network.host_parameters(),
            epochs=self._history,
            stopped=not finished,
            epoch=self._epoch,
            batch=self._batch % batches,
            batch_seconds=self._batch_seconds.tolist(),
            seconds=self._seconds,
        )

    def _setup(self) -> None:
        config, comm, backend = self.config, self.comm, self.backend
        data = self._dataset = distribute(comm, self._dataset)
        split = Split(len(data.labels), config.batch_size, comm.size, comm.rank)
        test = Split(len(data.test_labels), config.batch_size, comm.size, comm.rank)
        pinned = config.transport == "pinned"
        with comm.agreed():  # allocates: may fail on one rank alone
            self._batches = Batches(
                backend, split, (data.images, data.labels), config, pinned=pinned
            )
            self._tests = Batches(backend, test, (data.test_images, data.test_labels), config)
            widest = max(s.share(0) for s in (split, test))
            self._network = Network(
                backend, config.input_size, config.hidden_size, config.num_classes,
                config.dtype, widest,
            )  # fmt: skip
            transport = make_transport(
                config.transport, backend, comm, self.ranges, self._network.gradients,
                barrier=config.sync_ranges,
            )  # fmt: skip
            self._step = DataParallelStep(
                self._network, self._batches, transport, config, self.ranges
            )
        self._epoch = self._batch = 0
        self._history: list[dict[str, Any]] = []
        self._losses = np.zeros(len(split))
        self._fingerprint = data.fingerprint() if self._save is not None else ""
        if self._state is None:
            self._network.initialize(config.seed)
        else:
            self._network.set_parameters(self._state.parameters)
            self._epoch, self._batch = self._state.epoch, self._state.batch
            self._losses, self._history = self._state.losses.copy(), list(self._state.history)
        comm.barrier()

    @np.errstate(over="ignore", invalid="ignore", divide="ignore")  # the loss tells
    def _run_epoch(self) -> bool:
        """Train on the rest of the current epoch; False when stopped before its end."""
        batches, clock = len(self._batches.split), time.perf_counter
        started = last = clock()
        first = self._batch
        while self._batch < batches:
            self._step(self._batch)
            self._batch += 1
            now = clock()
            self._batch_seconds.append(now - last)
            last = now
            self._observer.on_batch(self._epoch, self._batch)
            if self._batch % self._check_every == 0 and self._batch < batches:
                if self.comm.any(self._stop.requested):
                    self._collect_losses()
                    self._save_state()
                    return False
                last = clock()
        self._collect_losses()
        elapsed = clock() - started
        self._seconds["train"] += elapsed
        if self.comm.size > 1:
            per_batch = self.comm.largest(elapsed / max(1, batches - first))
            self._check_every = max(1, int(_CHECK_SECONDS / per_batch))
        self._history.append(
            {
                "epoch": self._epoch + 1,
                "loss": float(self._losses.sum() / self._batches.split.images)
                + self._network.penalty(self.config.regularization),
                "precision_train": None,
                "precision_test": None,
                "seconds": elapsed,
            }
        )
        self._losses[:] = 0
        self._epoch, self._batch = self._epoch + 1, 0
        return True

    def _collect_losses(self) -> None:
        """Add the losses of the batches done since last time; refuse NaN and infinity."""
        sums = self._step.take_losses()
        self.comm.sum_in_place(sums)
        self._losses += sums
        bad = np.flatnonzero(~np.isfinite(self._losses))
        if bad.size:
            raise NonFiniteLossError(
                f"the loss became {self._losses[bad[0]]:g} in epoch {self._epoch + 1}, batch "
                f"{bad[0] + 1} of {len(self._losses)}: wanted a finite one; lower "
                f"--learning-rate (now {self.config.learning_rate:g}), or try --pixels unit"
            ).on_all_ranks()

    def _evaluate(self) -> None:
        """Compute the precision on both sets for the last epoch's record."""
        started = time.perf_counter()
        data = self._dataset
        assert data is not None
        sets = ((self._batches, data.labels), (self._tests, data.test_labels))
        correct = np.array([count_correct(self._network, *s) for s in sets], np.int64)
        self.comm.sum_in_place(correct)
        for name, count, (_, labels) in zip(("train", "test"), correct, sets, strict=True):
            self._history[-1][f"precision_{name}"] = float(count / len(labels))
        self._seconds["evaluate"] += time.perf_counter() - started

    def _save_state(self) -> None:
        """Write a checkpoint on rank 0, if one is wanted; a failure there ends all ranks."""
        if self._save is None:
            return
        with self.comm.agreed():
            if self.comm.rank == 0:
                self._save(
                    State(
                        parameters=self._network.host_parameters(),
                        epoch=self._epoch,
                        batch=self._batch,
                        losses=self._losses,
                        config=self.config.as_dict(),
                        data=self._fingerprint,
                        ranks=self.comm.size,
                        backend=self.backend.name,
                        history=self._history,
                    )
                )


def sequential(
    config: Config,
    dataset: Dataset,
    *,
    parameters: np.ndarray | None = None,
    stop: StopRequest | None = None,
) -> Result:
    """Run the reference: one rank, NumPy, no MPI and no ranges.

    Parameters
    ----------
    parameters : ndarray, shape (n,), optional
        Where to start instead of the seeded initial weights.
    """
    alone = config.with_(backend="numpy", transport="none", sync_ranges=False)
    state = None
    if parameters is not None:
        losses = np.zeros(len(Split(len(dataset.labels), config.batch_size)))
        state = State(parameters, 0, 0, losses, {}, "", 1, "numpy")
    return Session(alone, Communicator(), dataset, NumpyBackend(), stop=stop, state=state).run()
