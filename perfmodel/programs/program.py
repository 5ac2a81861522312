"""The interface between an analysis and what is known of one kind of program."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from perfmodel.readers.trace import Trace

if TYPE_CHECKING:
    from perfmodel.machines.machine import Machine
    from perfmodel.machines.measure.measurement import MachineMeasurement
    from perfmodel.models.terms import Alone, Case, Microbenchmark, Observation
    from perfmodel.programs import Counting
    from perfmodel.programs.findings import Actions, Facts, Finding
    from perfmodel.programs.identify import Identity
    from perfmodel.programs.layers import LayeredStep
    from perfmodel.timing.collectives import CollectiveGroup
    from perfmodel.timing.operator_times import OperatorTimes
    from perfmodel.timing.run import Run
    from perfmodel.timing.step_report import StepReport
    from perfmodel.timing.steps import Steps
    from perfmodel.workloads.work import Workload

StepClock = Literal["host", "gpu"]


@dataclass(frozen=True, slots=True)
class Options:
    """What the user may choose; None lets the report decide.

    Attributes
    ----------
    values : mapping of str to int
        Given symbols (D, H, C, B, p, ...).
    counting : {'document', 'full'}
        How FLOPs and bytes are counted.
    workload : Workload or None
        The user's own formulas.
    batch_label : str or None
        Ranges that are one step each: a name, a glob, or a regular expression between slashes.
    warmup : int or None
        Leading batches to leave out.
    by_time : bool
        Whether GPU work of other threads belongs to the range open at its launch.
    fit : str, int or None
        Index or label of the run that fits the roofline, the first that can by default.
    dtype : str or None
        Type of tensors of which a report gives none.
    shapes : Path or None
        Another recording of the same program, which names the sizes of its operators.
    causal : bool
        Whether operators that attend are counted as under a causal mask.
    counters : Path or None
        Table of Nsight Compute of the same program, with the ranges of its operators.
    layers : LayeredStep or None
        Network whose layers count a step, in place of the operators' sizes.
    machine : Machine or None
        Ceilings in place of those of the datasheet of the GPU in the report.
    """

    values: Mapping[str, int] = field(default_factory=dict)
    counting: Counting = "document"
    workload: Workload | None = None
    batch_label: str | None = None
    warmup: int | None = None
    by_time: bool = True
    fit: str | int | None = None
    dtype: str | None = None
    shapes: Path | None = None
    causal: bool = False
    counters: Path | None = None
    layers: LayeredStep | None = None
    machine: Machine | None = None


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


class Evidence(Protocol):
    """What one report shows of its batch by part, and what that bounds; times in seconds."""

    @property
    def case(self) -> Case:
        """What ran."""

    @property
    def batch_s(self) -> float:
        """Median batch."""

    @property
    def seconds(self) -> Mapping[str, float]:
        """Medians along the critical path, by part."""

    def part_of(self, label: str) -> str:
        """Return the part that moves the bytes of a range."""

    def changes(self, case: Case) -> Iterator[Offer]:
        """Yield the changes that a run of this case has not made."""

    def least(self, after: Case) -> Floor:
        """Return the least time of a batch of the changed case.

        Raises
        ------
        ModelError
            If the structure of such a run is not modelled.
        """

    def without(self, names: Sequence[str]) -> float:
        """Return the batch if some parts took no time: what runs beside them may then show."""

    def if_free(self, flops: float) -> Iterator[Free]:
        """Yield the bound of every link or unit that takes time; `flops` are those of a batch."""

    def draws(self, run: Run, observed: Observation) -> Sequence[Evidence]:
        """Return the same evidence as other batches of this launch give it."""


class Program(Protocol):
    """One kind of program: how its reports are recognized, what they mean, what is predicted.

    `perfmodel.programs.unknown.UnknownProgram` does what any program allows; others derive from it.

    Attributes
    ----------
    name : str
        As `analysis.json` names it.
    step_clock : {'host', 'gpu'}
        What times a step: its range on the host, or from its first GPU operation to the next's.
    replay : str
        Range that replays a whole batch as one CUDA graph, empty if there is none.
    modelled : bool
        Whether `observe` takes its batches apart by the configuration mark alone.
    """

    name: str
    step_clock: StepClock
    replay: str
    modelled: bool

    def recognizes(self, trace: Trace, options: Options) -> bool:
        """Whether a report is of such a program."""

    def steps(self, trace: Trace, options: Options) -> tuple[Trace, Steps]:
        """Return the trace with the ranges to show, and its steps.

        Every step is a range of that trace, called `Steps.label`.
        """

    def operators(self, trace: Trace, steps: StepReport, options: Options) -> OperatorTimes | None:
        """Return the work and times of the framework's operators; None if nothing names them."""

    def identify(self, run: Run, given: Mapping[str, int]) -> tuple[Identity, list[str]]:
        """Return the values of the workload's symbols, given ones first, and warnings."""

    def workload(self, identity: Identity, options: Options) -> Workload | None:
        """Return the formulas of the run's FLOPs and bytes; None if nothing is known of them."""

    def workload_of(self, kernels: Mapping[str, Collection[str]]) -> Workload:
        """Return the formulas of a run of which only the kernels by range are known."""

    def missing(self, label: str, symbols: Sequence[str], *, marked: bool) -> str:
        """Say how to give the values of symbols that a run's report does not give."""

    def peak(self, label: str, identity: Identity, *, seen_tf32: bool) -> str:
        """Return which of a machine's peaks the GEMMs of a range run against.

        `label` is empty for the run as a whole. `seen_tf32` says that kernels' names show tensor
        cores for single precision.
        """

    def actions(self, identity: Identity) -> Actions:
        """Return what to advise to such a run."""

    def advice(self, facts: Facts) -> Iterable[Finding]:
        """Find what a run loses."""

    def settings(self, config: Mapping[str, Any]) -> dict[str, str]:
        """Return what a configuration mark says that changes the time of a batch, by name."""

    def unusual(self, settings: Mapping[str, str]) -> Sequence[str]:
        """Return the settings that are not the default, in words."""

    def alone(self, settings: Mapping[str, str]) -> Mapping[str, str] | None:
        """Return the settings of the same run on one rank that sums nothing; None if all sum."""

    def queues(self, config: Mapping[str, Any]) -> bool:
        """Whether the host only queues batches on the GPU, so that its own times say nothing."""

    def case(self, sizes: Mapping[str, int], settings: Mapping[str, str], options: Options) -> Case:
        """Return a case to predict, whose `parts` are those of its batch.

        Raises
        ------
        ModelError
            If no parts are known of such a program.
        WorkloadError
            If a size or a setting is missing, unknown or impossible.
        """

    def observe(self, run: Run, options: Options) -> Observation:
        """Measure the parts of a batch in one run.

        Raises
        ------
        ModelError
            If the report does not say what its batches consist of, or has none behind the warm-up.
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

    def microbenchmarks(
        self, found: MachineMeasurement, source: str
    ) -> tuple[Alone | None, Sequence[Microbenchmark]]:
        """Return what a machine's measurement, a file of this name, says of the parts."""

    def separating(self, term: str, amounts: Sequence[str], missing: int) -> str:
        """Say which runs, so many of them, would separate the amounts of a term."""

    def too_large(self, cases: Sequence[Case], gpu: str, images: int) -> str | None:
        """Say which cases a GPU's memory does not hold; None where it does, or that is not known.

        `images` are those of the training set.
        """
