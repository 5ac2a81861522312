"""What a step takes after changes: one replay, and one rule for what several changes save.

For a set S of changes, with T the step, R(S) its replay with all of them, and for each change what
it saves alone (`alone_s`) and at most (`most_s`)

    T(S) = max(0, min(max(R(S), T - sum of most_s), min over S of (T - alone_s), T)),

and T - alone_s where S is one change. So a change alone saves what its finding says, one more
change never makes the step longer, and what each saves behind those before it adds up to T - T(S).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from perfmodel.timing.critical_path import Change, Replay


@dataclass(frozen=True, slots=True)
class Item:
    """A change of a step, and what it saves.

    Attributes
    ----------
    key : str
    change : Change or None
        What is replayed; None of a bound, which is in no order with other changes.
    alone_s : float
        What it saves alone.
    most_s : float
        The most that it saves behind others: of shorter kernels all their time, however much of it
        the host hides now.
    """

    key: str
    change: Change | None
    alone_s: float
    most_s: float


@dataclass(frozen=True)
class Ledger:
    """The step of a run, and what it takes after changes.

    Attributes
    ----------
    step_s : float
        Without the recorder where that makes it longer, else as recorded.
    recorded_s : float
    base : Change
        What takes the recorder's cost off the replay.
    replay : Replay or None
        None where no step can be replayed.
    """

    step_s: float
    recorded_s: float
    base: Change = field(default_factory=Change)
    replay: Replay | None = None
    _replayed: dict[frozenset[str], float] = field(default_factory=dict, repr=False)

    @property
    def scale(self) -> float:
        """Factor that makes the replay without changes as long as the step."""
        if frozenset() not in self._replayed:
            self._replayed[frozenset()] = self.replay.step_s(self.base) if self.replay else 0.0
        unchanged = self._replayed[frozenset()]
        return self.step_s / unchanged if unchanged else 0.0

    def without_recorder_s(self, recorded_s: float) -> float:
        """Return another step without the recorder, which costs all steps as much."""
        return max(recorded_s - (self.recorded_s - self.step_s), 0.0)

    def replayed_s(self, change: Change) -> float:
        """Replay the step with a change; the step itself where it cannot be replayed."""
        if self.replay is None or not self.scale:
            return self.step_s
        return self.scale * self.replay.step_s(self.base | change)

    def critical_path(self) -> dict[str, float]:
        """Seconds of the longest chain of the step by kind; they add up to the step."""
        path = self.replay.critical_path(self.base) if self.replay and self.scale else {}
        total = sum(path.values())
        return {kind: self.step_s * seconds / total for kind, seconds in path.items()}

    def step_after(self, items: Sequence[Item]) -> float | None:
        """Return the step after all of some changes; None of several with a bound among them."""
        items = list({item.key: item for item in items}.values())
        least_s = min((self.step_s - item.alone_s for item in items), default=self.step_s)
        least_s = min(least_s, self.step_s)
        if len(items) < 2:
            return max(least_s, 0.0)
        changes = [item.change for item in items if item.change is not None]
        if len(changes) < len(items):
            return None
        keys = frozenset(item.key for item in items)
        if keys not in self._replayed:
            together = Change()
            for change in changes:
                together |= change
            self._replayed[keys] = self.replayed_s(together)
        most_s = sum(max(item.most_s, item.alone_s) for item in items)
        return max(min(max(self._replayed[keys], self.step_s - most_s), least_s), 0.0)

    def saved_s(self, item: Item, before: Sequence[Item] = ()) -> float | None:
        """Return what a change saves behind others; None where no order is known."""
        first, then = self.step_after(before), self.step_after([*before, item])
        return None if first is None or then is None else max(first - then, 0.0)
