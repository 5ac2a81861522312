"""The learning rate of every batch: scaled with the batch, and warmed up."""

from __future__ import annotations


class LearningRate:
    """The rate of the batch under way, which the network's step and the peer transport read.

    During the first W batches it grows by equal amounts, rate(i) = peak (i + 1) / W, and is the
    peak from the last of them on. Source: P. Goyal et al., Accurate, Large Minibatch SGD, 2017
    (arXiv:1706.02677), section 2.2: "gradual warmup"; theirs starts from the rate before scaling,
    ours from nothing, so that it is a warm-up without scaling, too.

    It follows from epoch and batch alone: a checkpoint need not hold it.

    Parameters
    ----------
    peak : float
        The rate behind the warm-up.
    batches : int
        Batches of an epoch.
    warmup_epochs : int
        Epochs of the warm-up; 0: none.

    Attributes
    ----------
    now : float
        Of the batch under way.
    """

    def __init__(self, peak: float, batches: int, warmup_epochs: int = 0) -> None:
        self._peak, self._batches, self._warmup = peak, batches, warmup_epochs * batches
        self.now = self.at(0, 0)

    def at(self, epoch: int, batch: int) -> float:
        """Return the rate of a batch; both count from 0."""
        done = epoch * self._batches + batch + 1
        return self._peak * done / self._warmup if done < self._warmup else self._peak

    def turn_to(self, epoch: int, batch: int) -> None:
        """Make it the rate of this batch."""
        self.now = self.at(epoch, batch)
