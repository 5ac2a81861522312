"""The interface to a calibrated model of a program's steps, part by part; few programs have one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from perfmodel.base.errors import ModelError
from perfmodel.base.escape import printable
from perfmodel.programs.identify import read_mark

if TYPE_CHECKING:
    from perfmodel.machines.machine import Machine
    from perfmodel.machines.measure.measurement import MachineMeasurement
    from perfmodel.programs.program import Options
    from perfmodel.studies.mlp.bounds import Evidence
    from perfmodel.studies.models.terms import Alone, Case, Microbenchmark, Observation
    from perfmodel.timing.collectives import CollectiveGroup
    from perfmodel.timing.run import Run


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a program's settings or sizes.

    Attributes
    ----------
    name, change, removes : str
        Its short name, what is changed, and which term of the batch that removes.
    doubles : str
        Symbol that doubles, or empty.
    exact : bool
        Whether results keep the accuracy of the data type.
    """

    name: str = ""
    change: str = ""
    removes: str = ""
    doubles: str = field(default="", kw_only=True)
    exact: bool = field(default=True, kw_only=True)


@dataclass(frozen=True, slots=True)
class Offer:
    """A change that a case does not have yet, and what it becomes; None where others are first.

    `needs` names the settings that must come first.
    """

    change: Change
    case: Case | None
    needs: str = ""


@dataclass(frozen=True, slots=True)
class Floor:
    """The least that a changed batch takes, in seconds, and its parts; per batch of the change."""

    batch_s: float
    parts: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Free:
    """Amdahl's bound: the batch if one link or unit took no time.

    `seconds` is what it takes now, hidden or not.
    """

    name: str
    seconds: float
    batch_s: float
    speedup: float
    flops_per_s: float | None


class Calibrated(ABC):
    """A program whose steps are modelled part by part, beside `Program`.

    What is here is for a program without settings, of which one step is taken apart at a time.

    Attributes
    ----------
    by_mark : bool
        Whether `observe` takes steps apart by the configuration mark alone.
    """

    by_mark: bool = False

    @abstractmethod
    def case(self, sizes: Mapping[str, int], settings: Mapping[str, str], options: Options) -> Case:
        """Return a case to predict, whose `parts` are those of its step.

        Raises
        ------
        WorkloadError
            If a size or a setting is missing, unknown or impossible.
        """

    @abstractmethod
    def observe(self, run: Run, options: Options) -> Observation:
        """Measure the parts of a step in one run.

        Raises
        ------
        ModelError
            If the report does not say what its steps consist of, or has none behind the warm-up.
        """

    def evidence(
        self,
        observed: Observation,
        busy_s: Mapping[str, float],
        collectives: Sequence[CollectiveGroup],
        machine: Machine | None,
    ) -> Evidence:
        """Put together what a report gives.

        Parameters
        ----------
        observed : Observation
            Of `observe`.
        busy_s : mapping of str to float
            The GPU's busy time of the same run's ranges, and of a graph's kernels, the batch first.
        collectives : sequence of CollectiveGroup
            Of the same run.
        machine : Machine, optional
        """
        raise ModelError(
            f"expected a program whose changes are known; got {observed.case.workload}; leave "
            f"--model out for bounds by the report alone"
        )

    def microbenchmarks(
        self, found: MachineMeasurement, source: str
    ) -> tuple[Alone | None, Sequence[Microbenchmark]]:
        """Return what a machine's measurement, a file of this name, says of the parts."""
        return None, ()

    def separating(self, term: str, amounts: Sequence[str], missing: int) -> str:
        """Say which runs, so many of them, would separate the amounts of a term."""
        return (
            "a report at sizes that change their proportions would separate them; if by the "
            "workload's formulas no sizes do, nothing is missing"
        )

    def too_large(self, cases: Sequence[Case], gpu: str, images: int) -> str | None:
        """Say which cases a GPU's memory does not hold; None where it does, or that is not known.

        `images` are those of the training set.
        """
        return None

    def unusual(self, settings: Mapping[str, str]) -> Sequence[str]:
        """Return the settings that are not the default, in words."""
        return ()

    def alone(self, settings: Mapping[str, str]) -> Mapping[str, str] | None:
        """Return the settings of the same run on one rank that sums nothing; None if all sum."""
        return None

    def queues(self, config: Mapping[str, Any]) -> bool:
        """Whether the host only queues batches on the GPU, so that its own times say nothing."""
        return False


class UnknownPartsError(ModelError):
    """Nothing is known of the parts of a run's steps, by its configuration mark."""

    def __init__(self, found: str, how: str) -> None:
        super().__init__(f"{found}; {how}")
        self.found = found


def not_modelled(run: Run) -> UnknownPartsError:
    """Say why nothing is known of the parts of a run's steps, and how to calibrate with it."""
    config = next((c for t in run.traces if (c := read_mark(t))), {})
    what = f"program {run.program!r}"
    if "workload" in config:
        what = f"workload {printable(str(config['workload']))!r}"
    return UnknownPartsError(
        f"{run.label}: expected a program whose steps are modelled part by part; got {what}",
        "describe its ranges by formulas (docs/workloads.md), and give --workload FILE.toml with "
        "the sizes",
    )
