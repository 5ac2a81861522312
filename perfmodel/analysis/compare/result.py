"""The result of a comparison: frozen rows for ranges, links and kernels, and the verdicts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from perfmodel.analysis.compare.configuration import Difference
from perfmodel.analysis.compare.links import Group
from perfmodel.analysis.compare.series import Launch

Verdict = Literal["faster", "slower", "within noise", "only before", "only after"]


@dataclass(frozen=True, slots=True)
class Row:
    """One range, link or kernel on both sides; seconds per batch, None on a side without it.

    Attributes
    ----------
    path : tuple of str
        A range's labels from the batch inwards; a link's or kernel's kind and name.
    part : bool
        A link or kernel that is part of a total among the rows.
    before_s, after_s : float or None
        Median batch of the slowest rank; of several launches, the geometric mean of their medians.
    ratio, low, high : float or None
        After over before, with the interval that decides the verdict.
    level : float or None
        Probability that the interval was allowed to miss the truth with.
    share_before : float or None
        Of the batch before.
    launches : tuple of (int, int)
        Launches that have it.
    """

    group: Group
    path: tuple[str, ...]
    part: bool
    before_s: float | None
    after_s: float | None
    ratio: float | None
    low: float | None
    high: float | None
    p: float | None
    level: float | None
    verdict: Verdict
    share_before: float | None
    launches: tuple[int, int]

    @property
    def name(self) -> str:
        """What a reader calls it: the innermost label, with its kind where no total has it."""
        if self.group == "range" or self.part or len(self.path) == 1:
            return self.path[-1]
        return ": ".join(self.path) if self.group == "link" else self.path[-1]

    @property
    def depth(self) -> int:
        """Depth in the tree of its group."""
        return len(self.path) - 1 if self.group == "range" else int(self.part)

    @property
    def difference_s(self) -> float:
        """After less before, per batch; what is missing on a side took no time there."""
        return (self.after_s or 0.0) - (self.before_s or 0.0)


@dataclass(frozen=True, slots=True)
class Side:
    """The launches of one side, and what they say of themselves."""

    launches: tuple[Launch, ...]
    settings: tuple[Mapping[str, str], ...]

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the runs."""
        return tuple(launch.label for launch in self.launches)

    @property
    def queues(self) -> bool:
        """Whether the host of any launch leaves batches before they are done."""
        return any(launch.queues for launch in self.launches)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Everything perfmodel says about two sides.

    Attributes
    ----------
    rows : tuple of Row
        The batch first, then ranges, links and kernels.
    tested : int
        Rows on both sides, which share the chance of a wrong verdict.
    alpha : float
        That chance, over all of them together.
    least : float
        Relative change that a verdict must exceed.
    noise : float or None
        Assumed relative standard deviation between launches; None if launches told it.
    detectable : float
        Smallest relative change of the batch that could have passed.
    addressed : tuple of Row
        The range and the link that lost the most time, of those that lost any for certain.
    """

    before: Side
    after: Side
    rows: tuple[Row, ...]
    differences: tuple[Difference, ...]
    tested: int
    alpha: float
    least: float
    noise: float | None
    machines: bool
    detectable: float
    addressed: tuple[Row, ...]
    warnings: tuple[str, ...]

    @property
    def batch(self) -> Row:
        """The whole batch."""
        return self.rows[0]

    def group(self, name: Group) -> tuple[Row, ...]:
        """Rows of one group."""
        return tuple(row for row in self.rows if row.group == name)
