"""The interface between an analysis and what is known of one kind of program."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from perfmodel.base.errors import ModelError
from perfmodel.base.escape import printable
from perfmodel.programs.findings import Actions, Facts, Finding, general
from perfmodel.programs.identify import Identity, read_mark
from perfmodel.programs.losses import find_losses
from perfmodel.readers.trace import Trace, without_doubtful_sizes
from perfmodel.timing.candidates import find_steps
from perfmodel.timing.launched import Parts
from perfmodel.timing.levels import at_level
from perfmodel.timing.spans import Level, Steps, with_steps
from perfmodel.workloads.work import Workload

if TYPE_CHECKING:
    from perfmodel.machines.machine import Machine
    from perfmodel.machines.measure.measurement import MachineMeasurement
    from perfmodel.models.recorded import RecordedCall, RecordedStep
    from perfmodel.models.terms import Alone, Case, Microbenchmark, Observation
    from perfmodel.programs import Counting
    from perfmodel.programs.layers import LayeredStep
    from perfmodel.timing.collectives import CollectiveGroup
    from perfmodel.timing.operator_times import OperatorTimes
    from perfmodel.timing.run import Run
    from perfmodel.timing.step_report import StepReport

StepClock = Literal["host", "gpu"]
UNNAMED_STEP: Final = "step"
"""What steps are called that nothing names."""


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
    level : str or None
        Level of the steps whose spans are the unit of the analysis.
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
    host_names : bool
        Whether hosts are named as in the reports; else they are numbered.
    """

    values: Mapping[str, int] = field(default_factory=dict)
    counting: Counting = "document"
    workload: Workload | None = None
    batch_label: str | None = None
    level: Level | None = None
    warmup: int | None = None
    by_time: bool = True
    fit: str | int | None = None
    dtype: str | None = None
    shapes: Path | None = None
    causal: bool = False
    counters: Path | None = None
    layers: LayeredStep | None = None
    machine: Machine | None = None
    host_names: bool = False


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


class RecordedOperators(Protocol):
    """Operators of a framework whose reports name their sizes."""

    def recorded_step(
        self, trace: Trace, options: Options, symbols: Mapping[str, int]
    ) -> RecordedStep:
        """Return the calls of a step."""
        ...

    def call_at(self, call: RecordedCall, sizes: Sequence[tuple[int, ...]]) -> RecordedCall:
        """Return a call whose arguments have other sizes, with its FLOPs and bytes."""
        ...


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


class Program:
    """One kind of program: how its reports are recognized, what they mean, what is predicted.

    What is here is for a program of which nothing is known: its steps are found, but no formulas,
    settings or parts. Other programs derive from it.

    Attributes
    ----------
    name : str
        As `analysis.json` names it.
    step_clock : {'host', 'gpu'}
        What times a step: its range on the host, or from its first GPU operation to the next's.
    replay : str
        Range that replays a whole batch as one CUDA graph, empty if there is none.
    parses_operators : bool
        Whether labels of PyTorch's operators may be without their numbers.
    modelled : bool
        Whether `observe` takes its batches apart by the configuration mark alone.
    """

    name: str = "unknown"
    step_clock: StepClock = "gpu"
    replay: str = ""
    parses_operators: bool = False
    modelled: bool = False

    def recognizes(self, trace: Trace, options: Options) -> bool:
        """Whether a report is of such a program."""
        return True

    def own_ranges(self, trace: Trace) -> Trace:
        """Return the trace with the ranges that say what the program itself does."""
        return trace

    def steps(
        self, trace: Trace, options: Options, parts: Parts | None = None
    ) -> tuple[Trace, Steps]:
        """Return the trace with the ranges to show, and its steps.

        Every step is a range of that trace, called `Steps.label`. `parts` have the operations and
        calls where the trace holds none.
        """
        own = self.own_ranges(without_doubtful_sizes(trace))
        found = find_steps(own, options.batch_label, parts)
        if options.level:
            found = at_level(own, found, options.level, parts)
        return with_steps(own, found, UNNAMED_STEP)

    def has_operators(self, trace: Trace, options: Options) -> bool:
        """Whether there may be operators, which are counted over all of a report at once."""
        return False

    def operators(self, trace: Trace, steps: StepReport, options: Options) -> OperatorTimes | None:
        """Return the work and times of the framework's operators; None if nothing names them."""
        return None

    def operations(
        self, trace: Trace, steps: StepReport, options: Options
    ) -> Mapping[int, tuple[tuple[str, str | int], ...]]:
        """Return what is known of the work of GPU operations, by their row: name and value."""
        return {}

    @property
    def recorded_operators(self) -> RecordedOperators | None:
        """What a model of operators is calibrated on; None where none can be."""
        return None

    def identify(self, run: Run, given: Mapping[str, int]) -> tuple[Identity, list[str]]:
        """Return the values of the workload's symbols, given ones first, and warnings."""
        known = Identity(
            {"p": len(run.ranks), **given},
            "the report",
            next((mark for trace in run.traces if (mark := read_mark(trace))), {}),
            uses_gpu=any(len(t.ops) for t in run.traces),
            uses_mpi=any(len(t.mpi) for t in run.traces),
        )
        return known, self.warnings(run)

    def warnings(self, run: Run) -> list[str]:
        """What such a report cannot show, and the flag that shows it."""
        return []

    def workload(self, identity: Identity, options: Options) -> Workload | None:
        """Return the formulas of the run's FLOPs and bytes; None if nothing is known of them."""
        return None

    def workload_of(self, kernels: Mapping[str, Collection[str]]) -> Workload:
        """Return the formulas of a run of which only the kernels by range are known."""
        return Workload("unknown", "no", "", "", {}, {})

    def missing(self, label: str, symbols: Sequence[str], *, marked: bool) -> str:
        """Say how to give the values of symbols that a run's report does not give."""
        return ""

    def peak(self, label: str, identity: Identity, *, seen_tf32: bool) -> str:
        """Return which of a machine's peaks the GEMMs of a range run against.

        `label` is empty for the run as a whole. `seen_tf32` says that kernels' names show tensor
        cores for single precision.
        """
        return "tf32_tensor" if seen_tf32 else "float32"

    def actions(self, identity: Identity) -> Actions:
        """Return what to advise to such a run."""
        return Actions()

    def advice(self, facts: Facts) -> Iterable[Finding]:
        """Find what a run loses."""
        actions = self.actions(Identity({}, "", {}))
        if facts.steps is None:
            return general(facts, actions)
        return find_losses(facts, facts.steps, actions)

    def settings(self, config: Mapping[str, Any]) -> dict[str, str]:
        """Return what a configuration mark says that changes the time of a batch, by name."""
        return {}

    def unusual(self, settings: Mapping[str, str]) -> Sequence[str]:
        """Return the settings that are not the default, in words."""
        return ()

    def alone(self, settings: Mapping[str, str]) -> Mapping[str, str] | None:
        """Return the settings of the same run on one rank that sums nothing; None if all sum."""
        return None

    def queues(self, config: Mapping[str, Any]) -> bool:
        """Whether the host only queues batches on the GPU, so that its own times say nothing."""
        return False

    def case(self, sizes: Mapping[str, int], settings: Mapping[str, str], options: Options) -> Case:
        """Return a case to predict, whose `parts` are those of its batch.

        Raises
        ------
        ModelError
            If no parts are known of such a program.
        WorkloadError
            If a size or a setting is missing, unknown or impossible.
        """
        raise ModelError(
            f"expected a program whose batch is predicted; got {self.name}; describe it with "
            f"--workload FILE.toml"
        )

    def observe(self, run: Run, options: Options) -> Observation:
        """Measure the parts of a batch in one run.

        Raises
        ------
        ModelError
            If the report does not say what its batches consist of, or has none behind the warm-up.
        """
        raise not_modelled(run)

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
            f"expected a program whose changes are known; got {self.name}; leave --model out for "
            f"bounds by the report alone"
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


class UnknownPartsError(ModelError):
    """Nothing is known of the parts of a run's batches, by its configuration mark."""

    def __init__(self, found: str, how: str) -> None:
        super().__init__(f"{found}; {how}")
        self.found = found


def not_modelled(run: Run) -> UnknownPartsError:
    """Say why nothing is known of the parts of a run's batches, and how to calibrate with it."""
    config = next((c for t in run.traces if (c := read_mark(t))), {})
    if not config:
        return UnknownPartsError(
            f"{run.label}: expected a configuration mark, which says how the batch ran; got none",
            "profile with python -m trainer, or calibrate with --workload and the sizes",
        )
    return UnknownPartsError(
        f"{run.label}: expected a run of the trainer's MLP; got one of the workload "
        f"{printable(str(config.get('workload')))!r}, by its configuration mark",
        "perfmodel calibrate takes it with its formulas, --workload FILE.toml",
    )


UNKNOWN_PROGRAM: Final = Program()
