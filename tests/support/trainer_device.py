"""A device and an MPI whose work is late, for tests: what is used too early, or too long, fails.

NumPy computes at once; `DelayedDevice` makes the worst of the freedom that a GPU has. A copy to the
host takes its numbers as late as it may, a copy to the device destroys what was there as early as
it may, and their targets are NaN until the one who looks may know that they are done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trainer.backends.numpy import NumpyBackend


class DelayedDevice(NumpyBackend):
    """NumPy that claims to be a device; its copies are done once they were asked about.

    Parameters
    ----------
    lags : int
        How often; of each queue's first events, and then these again.
    """

    on_device = True

    def __init__(self, *lags: int) -> None:
        super().__init__()
        self.lags = lags or (0,)
        self.clock = self.completed = 0
        """Kernels launched, and kernels that the host knows to be done."""
        self.uses: list[tuple[int, np.ndarray, bool]] = []
        """When a kernel used what, and whether it wrote it."""
        self.queues: list[DelayedQueue] = []

    def compute(
        self,
        *,
        reads: Iterable[np.ndarray] = (),
        writes: Iterable[tuple[np.ndarray, Any]] = (),
    ) -> None:
        """Launch a kernel that reads arrays and writes values into others."""
        self.clock += 1
        for array in reads:
            self._check(array)
            assert not np.isnan(array).any(), "read before anything was there"
            self.uses.append((self.clock, array, False))
        for array, value in writes:
            self._check(array)
            array[...] = value
            self.uses.append((self.clock, array, True))

    def _check(self, array: np.ndarray) -> None:
        arriving = (target for queue in self.queues for target in queue.arriving)
        early = any(np.shares_memory(array, target) for target in arriving)
        assert not early, "used before its copy was joined"

    def queue(self) -> DelayedQueue:
        self.queues.append(DelayedQueue(self))
        return self.queues[-1]

    def to_host(self, source: np.ndarray, target: np.ndarray) -> None:
        self._check(source)
        self.completed = self.clock
        super().to_host(source, target)

    def to_device(self, source: np.ndarray, target: np.ndarray) -> None:
        assert not np.isnan(source).any(), "sent before it was there"
        self.completed = self.clock
        super().to_device(source, target)


@dataclass(eq=False)
class Copy:
    """A copy under way; its numbers are taken when they must be."""

    source: np.ndarray
    target: np.ndarray
    taken: np.ndarray | None = None

    def take(self) -> None:
        if self.taken is None:
            self.taken = self.source.copy()

    def arrive(self) -> None:
        self.take()
        np.copyto(self.target, self.taken)


@dataclass(eq=False)
class DelayedQueue:
    """A stream whose copies happen at the worst time that is allowed."""

    device: DelayedDevice
    covered: int = 0
    """Kernels that what is queued from now on waits for."""
    leaving: list[Copy] = field(default_factory=list)
    returning: list[Copy] = field(default_factory=list)
    events: list[int] = field(default_factory=list)
    """How often each is still to be asked about."""

    @property
    def arriving(self) -> list[np.ndarray]:
        """Device arrays that the computing stream does not wait for yet."""
        return [copy.target for copy in self.returning]

    def follow(self) -> None:
        self.covered = self.device.clock

    def to_host(self, source: np.ndarray, target: np.ndarray) -> None:
        assert not self._used(source, only_written=True), "what computes this was not followed"
        target.fill(np.nan)
        self.leaving.append(Copy(source, target))

    def to_device(self, source: np.ndarray, target: np.ndarray) -> None:
        assert not np.isnan(source).any(), "sent before it was there"
        assert not self._used(target), "overwritten while still in use"
        target.fill(np.nan)
        self.returning.append(Copy(source, target))

    def _used(self, array: np.ndarray, *, only_written: bool = False) -> bool:
        """Whether a kernel that nobody waited for may still use memory of this array."""
        safe = max(self.covered, self.device.completed)
        return any(
            when > safe and np.shares_memory(array, other) and (written or not only_written)
            for when, other, written in self.device.uses
        )

    def record(self) -> Callable[[], bool]:
        place, covered, mine = len(self.events), self.covered, list(self.leaving)
        self.events.append(self.device.lags[place % len(self.device.lags)])

        def done() -> bool:
            if self.events[place] > 0:
                self.events[place] -= 1
                return False
            self.events[:place] = [0] * place  # in order: those before are done too
            for copy in mine:
                if copy in self.leaving:
                    copy.arrive()
                    self.leaving.remove(copy)
            self.device.completed = max(self.device.completed, covered)
            return True

        return done

    def join(self) -> None:
        for copy in self.leaving:  # done before the next kernel, but the host cannot know
            copy.take()
        for copy in self.returning:
            copy.arrive()
        self.returning.clear()


class DelayedComm:
    """Ranks that all have the same numbers; a sum is done once it was asked about `lag` times."""

    raw = None
    rank = local_rank = 0

    def __init__(self, lag: int = 0, ranks: int = 2) -> None:
        self.lag, self.ranks = lag, ranks
        self.size = self.local_size = ranks
        self.calls: list[tuple[str, int]] = []
        self.under_way: list[DelayedSum] = []
        self.most_under_way = 0

    def sum_in_place(self, values: np.ndarray) -> None:
        assert not np.isnan(values).any(), "summed before it was there"
        self.calls.append(("Allreduce", values.size))
        values *= self.ranks

    def start_sum(self, values: np.ndarray) -> DelayedSum:
        assert not np.isnan(values).any(), "summed before it was there"
        self.calls.append(("Iallreduce", values.size))
        self.under_way.append(DelayedSum(self, values))
        self.most_under_way = max(self.most_under_way, len(self.under_way))
        return self.under_way[-1]

    def barrier(self) -> None:
        self.calls.append(("Barrier", 0))


class DelayedSum:
    """The request of a sum: its buffer belongs to MPI until it is done."""

    def __init__(self, comm: DelayedComm, values: np.ndarray) -> None:
        self._comm, self._values, self._kept, self._left = comm, values, values.copy(), comm.lag

    def Test(self) -> bool:
        if self._left > 0:
            self._left -= 1
            return False
        self.Wait()
        return True

    def Wait(self) -> None:
        if self in self._comm.under_way:  # else it is done, as MPI_REQUEST_NULL is
            assert np.array_equal(self._values, self._kept), "touched while it was summed"
            self._values *= self._comm.ranks
            self._comm.under_way.remove(self)


class Capturing(DelayedDevice):
    """A device that notes what a capture holds; its replay is the work itself."""

    def __init__(self) -> None:
        super().__init__()
        self.captured = 0

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        self.captured += 1
        return work
