"""The loop: one run from setup to the last epoch, sequential or on many ranks."""

from __future__ import annotations

import math
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np

from trainer import ranges as names
from trainer.backends.base import Backend
from trainer.backends.numpy import NumpyBackend
from trainer.checkpoint import State
from trainer.config import Config
from trainer.data import Dataset, distribute
from trainer.errors import NonFiniteLossError, TrainerError
from trainer.mpi import Communicator
from trainer.ranges import SILENT, Ranges
from trainer.steps.assembly import Assembly
from trainer.steps.batches import Split
from trainer.stop import StopRequest

_FIRST_CHECK: Final = 16
_CHECK_SECONDS: Final = 0.5


class Observer(Protocol):
    """Is called as training goes on, on rank 0: a progress bar, or nothing."""

    def on_batch(self, epoch: int, batch: int) -> None:
        """A batch is done."""

    def on_epoch(self, record: dict[str, Any]) -> None:
        """An epoch is done; its record."""


class Quiet:
    """Ignores everything."""

    def on_batch(self, epoch: int, batch: int) -> None:
        """Ignore it."""

    def on_epoch(self, record: dict[str, Any]) -> None:
        """Ignore it."""


@dataclass(slots=True)
class Result:
    """The result of a run.

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
    why_no_graph : str or None
        Why the step was not captured though asked for.
    """

    parameters: np.ndarray
    epochs: list[dict[str, Any]]
    stopped: bool
    epoch: int
    batch: int
    batch_seconds: list[float]
    seconds: dict[str, float] = field(default_factory=dict)
    why_no_graph: str | None = None


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
        Called with the session right before the first batch.
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
        mark: Callable[[Session], object] | None = None,
    ) -> None:
        self.config, self.comm, self.backend, self.ranges = config, comm, backend, ranges
        self._dataset = dataset
        self._observer = observer or Quiet()
        self._stop = stop or StopRequest()
        self._save, self._mark, self._state = save, mark, state
        self._check_every = 1 if comm.size == 1 else _FIRST_CHECK
        self._batch_seconds = array("d")
        self._epoch = self._batch = 0
        self._seconds = {"setup": 0.0, "train": 0.0, "evaluate": 0.0}

    def run(self) -> Result:
        """Train to the last epoch, or until asked to stop, on every rank alike.

        Raises
        ------
        NonFiniteLossError
            If the loss of a batch or an epoch, or the output in an evaluation, is NaN or infinite
            (on every rank).
        """
        config = self.config
        with self.ranges[names.TRAIN]:
            self.prepare()
            if self._mark is not None:
                self._mark(self)
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
            parameters=self.parameters(),
            epochs=self._history,
            stopped=not finished,
            epoch=self._epoch,
            batch=self._batch % self.batches,
            batch_seconds=self._batch_seconds.tolist(),
            seconds=self._seconds,
            why_no_graph=self.why_no_graph,
        )

    def prepare(self) -> None:
        """Make all that training needs and set the first parameters (collective)."""
        started = time.perf_counter()
        with self.ranges[names.SETUP]:
            self._setup()
        self._seconds["setup"] = time.perf_counter() - started

    @property
    def batches(self) -> int:
        """Batches of an epoch."""
        return len(self._parts.batches.split)

    @property
    def why_no_graph(self) -> str | None:
        """Why ``--graph`` is not followed, after `prepare`; None if it is, or was not asked for."""
        return self._parts.why_no_graph

    def run_batches(self, count: int) -> None:
        """Train on so many batches, on and on through the epochs, without a look at the loss.

        For timing: on a GPU the last of them may still be under way when this returns.
        """
        for _ in range(count):
            self._parts.rate.turn_to(self._epoch, self._batch)
            with self.ranges[names.BATCH]:
                self._parts.step(self._batch)
            more, self._batch = divmod(self._batch + 1, self.batches)
            self._epoch += more

    def synchronize(self) -> None:
        """Wait for the device."""
        self.backend.synchronize()

    def parameters(self) -> np.ndarray:
        """Return the whole network's parameters W1, b1, W2, b2, flat (collective)."""
        return self._parts.parameters()

    def _setup(self) -> None:
        config, comm = self.config, self.comm
        data = self._dataset = distribute(comm, self._dataset)
        self._parts = Assembly(config, comm, self.backend, data, self.ranges)
        self._history: list[dict[str, Any]] = []
        self._losses = np.zeros(self.batches)
        writes = self._save is not None and comm.rank == 0
        self._fingerprint = data.fingerprint() if writes else ""
        if self._state is None:
            self._parts.initialize(config.seed)
        else:
            self._parts.set_parameters(self._state.parameters)
            self._epoch, self._batch = self._state.epoch, self._state.batch
            self._losses, self._history = self._state.losses.copy(), list(self._state.history)
        comm.barrier()

    @np.errstate(over="ignore", invalid="ignore", divide="ignore")  # the loss tells
    def _run_epoch(self) -> bool:
        """Train on the rest of the current epoch; False when stopped before its end."""
        batches, clock = self.batches, time.perf_counter
        step, batch_range = self._parts.step, self.ranges[names.BATCH]
        started = last = clock()
        first = self._batch
        turn_to = self._parts.rate.turn_to
        while self._batch < batches:
            turn_to(self._epoch, self._batch)
            with batch_range:
                step(self._batch)
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
        loss = float(self._losses.sum() / self._parts.batches.split.images) + self._parts.penalty()
        if not math.isfinite(loss):
            raise self._diverged(f"the loss became {loss:g} after epoch {self._epoch + 1}")
        self._history.append(
            {
                "epoch": self._epoch + 1,
                "loss": loss,
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
        self._losses += self._parts.take_losses()
        bad = np.flatnonzero(~np.isfinite(self._losses))
        if bad.size:
            raise self._diverged(
                f"the loss became {self._losses[bad[0]]:g} in epoch {self._epoch + 1}, batch "
                f"{bad[0] + 1} of {len(self._losses)}"
            )

    def _diverged(self, what: str) -> TrainerError:
        return NonFiniteLossError(
            f"{what}: expected a finite one; lower --learning-rate (now {self._parts.rate.now:g}), "
            "or try --pixels unit"
        ).on_all_ranks()

    @np.errstate(over="ignore", invalid="ignore")  # the accuracy is NaN then
    def _evaluate(self) -> None:
        """Compute the accuracy on both data sets for the last epoch's record."""
        started = time.perf_counter()
        train, test = self._parts.accuracies()
        if math.isnan(train + test):
            raise self._diverged(f"the network's output became NaN or infinite in the evaluation "
                                 f"after epoch {self._epoch}")  # fmt: skip
        self._history[-1] |= {"precision_train": train, "precision_test": test}
        self._seconds["evaluate"] += time.perf_counter() - started

    def _save_state(self) -> None:
        """Write a checkpoint on rank 0, if one is asked for; a failure there ends all ranks."""
        if self._save is None:
            return
        parameters = self.parameters()
        with self.comm.agreed():
            if self.comm.rank == 0:
                self._save(
                    State(
                        parameters=parameters,
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
    alone = config.with_(
        backend="numpy", transport="none", parallel="data", overlap=False, gemm="cublas",
        math="ieee", graph=False, data_on=None, sync_ranges=False,
    )  # fmt: skip
    state = None
    if parameters is not None:
        losses = np.zeros(len(Split(len(dataset.labels), config.batch_size)))
        state = State(parameters, 0, 0, losses, {}, "", 1, "numpy")
    return Session(alone, Communicator(), dataset, NumpyBackend(), stop=stop, state=state).run()
