"""CUDA graphs: the work of a whole step recorded once and replayed by one call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from trainer import ranges as names
from trainer.backends.base import Backend
from trainer.ranges import Ranges

MOST_GRAPHS: Final = 512
"""One graph for each batch of an epoch, since each reads its own images; beyond, memory adds up."""


def why_not_captured(backend: Backend, batches: int, uncapturable: str | None) -> str | None:
    """Say why a step cannot be captured; None if it can."""
    if not backend.on_device:
        return "the backend numpy has no CUDA graphs"
    if uncapturable:
        return uncapturable
    if batches > MOST_GRAPHS:
        return (
            f"an epoch has {batches} batches and would need as many graphs (at most "
            f"{MOST_GRAPHS}); use a larger --batch-size"
        )
    return None


class GraphStep:
    """A step that runs as it is the first time a batch size is seen, then as graphs.

    The first run compiles kernels and makes workspaces, which a capture cannot. Each batch has a
    graph of its own: its images are at its own address.

    Parameters
    ----------
    step : callable
        Trains on a batch, by its index, without waiting for the device.
    size : callable
        Images in a batch over all ranks, by its index: whether a sum is captured must be the
        same on all of them (NCCL User Guide, "Using NCCL with CUDA Graphs").
    """

    def __init__(
        self,
        step: Callable[[int], None],
        backend: Backend,
        size: Callable[[int], int],
        ranges: Ranges,
    ) -> None:
        self._step, self._backend, self._size, self._ranges = step, backend, size, ranges
        self._graphs: dict[int, Any] = {}
        self._seen: set[int] = set()

    def __call__(self, index: int) -> None:
        """Train on batch `index`."""
        graph = self._graphs.get(index)
        if graph is None:
            size = self._size(index)
            if size not in self._seen:
                self._seen.add(size)
                self._step(index)
                return
            graph = self._graphs[index] = self._backend.capture(lambda: self._step(index))
        with self._ranges[names.GRAPH]:
            graph()
