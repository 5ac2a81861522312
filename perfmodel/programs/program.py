"""The interface between an analysis and what is known of one kind of program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, Protocol

from perfmodel.programs.actions import Actions
from perfmodel.programs.identify import Identity, read_mark
from perfmodel.readers.trace import Trace, without_doubtful_sizes
from perfmodel.timing.candidates import find_steps
from perfmodel.timing.levels import at_level
from perfmodel.timing.spans import Candidate, Level, Steps, with_steps

if TYPE_CHECKING:
    from perfmodel.machines.machine import Machine
    from perfmodel.models.recorded import RecordedCall, RecordedStep
    from perfmodel.models.roles import Roles
    from perfmodel.programs import Counting
    from perfmodel.programs.facts import Facts
    from perfmodel.programs.layers import LayeredStep
    from perfmodel.timing.launched import Parts
    from perfmodel.timing.operator_times import OperatorTimes
    from perfmodel.timing.run import Run
    from perfmodel.timing.step_report import StepReport
    from perfmodel.workloads.decoder import Decoder
    from perfmodel.workloads.work import Workload

StepClock = Literal["host", "gpu"]
UNNAMED_STEP: Final = "step"
"""Name of steps that nothing names."""


@dataclass(frozen=True, slots=True)
class Options:
    """Choices of the user; None lets the report decide.

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
    agreed : Candidate or None
        The step of all ranks of a run; None where each report says what its own is.
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
    decoder : Decoder or None
        The language model that an engine serves.
    machine : Machine or None
        Ceilings in place of those of the datasheet of the GPU in the report.
    host_names : bool
        Whether hosts are named as in the reports; else they are numbered.
    """

    values: Mapping[str, int] = field(default_factory=dict)
    counting: Counting = "document"
    workload: Workload | None = None
    batch_label: str | None = None
    agreed: Candidate | None = None
    level: Level | None = None
    warmup: int | None = None
    by_time: bool = True
    fit: str | int | None = None
    dtype: str | None = None
    shapes: Path | None = None
    causal: bool = False
    counters: Path | None = None
    layers: LayeredStep | None = None
    decoder: Decoder | None = None
    machine: Machine | None = None
    host_names: bool = False


class RecordedOperators(Protocol):
    """Operators of a framework whose reports name their sizes."""

    def recorded_step(self, trace: Trace, options: Options) -> RecordedStep:
        """Return the calls of a step."""
        ...

    def call_at(self, call: RecordedCall, sizes: Sequence[tuple[int, ...]]) -> RecordedCall:
        """Return a call whose arguments have other sizes, with its FLOPs and bytes."""
        ...

    def roles(self, step: RecordedStep, named: Mapping[str, int]) -> Roles:
        """Infer what the numbers of a step's sizes are; `named` are numbers by role."""
        ...


class Program:
    """One kind of program: how its reports are recognized, and what they mean.

    What is here is for a program of which nothing is known: its steps are found, but no formulas
    and no settings. Other programs derive from it.

    Attributes
    ----------
    name : str
        As `analysis.json` names it.
    step_clock : {'host', 'gpu'}
        What times a step: its range on the host, or from its first GPU operation to the next's.
    replay : str
        Range that replays a whole step as one CUDA graph, empty if there is none.
    parses_operators : bool
        Whether labels of PyTorch's operators may be without their numbers.
    recorded_operators : RecordedOperators or None
        What a step of other sizes is predicted from; None where nothing is.
    by_formulas : bool
        Whether formulas count its steps, its own ones or the user's.
    """

    name: str = "unknown"
    step_clock: StepClock = "gpu"
    replay: str = ""
    parses_operators: bool = False
    recorded_operators: RecordedOperators | None = None
    by_formulas: bool = False

    def recognizes(self, trace: Trace, options: Options) -> bool:
        """Whether a report is of such a program."""
        return True

    def steps(
        self, trace: Trace, options: Options, parts: Parts | None = None
    ) -> tuple[Trace, Steps]:
        """Return the trace with the ranges that say what the program does, and its steps.

        Every step is a range of that trace, called `Steps.label`. `parts` have the operations and
        calls where the trace holds none.
        """
        own = without_doubtful_sizes(trace)
        found = find_steps(own, options.batch_label, parts, options.agreed)
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

    def identify(self, run: Run, given: Mapping[str, int]) -> tuple[Identity, list[str]]:
        """Return the values of the workload's symbols, given ones first, and warnings.

        These say what such a report cannot show, and the flag that shows it.
        """
        known = Identity(
            {"p": len(run.ranks), **given},
            "the report",
            next((mark for trace in run.traces if (mark := read_mark(trace))), {}),
            uses_gpu=any(len(t.ops) for t in run.traces),
            uses_mpi=any(len(t.mpi) for t in run.traces),
        )
        return known, []

    def workload(self, identity: Identity, options: Options) -> Workload | None:
        """Return the formulas of the run's FLOPs and bytes; None if nothing is known of them."""
        return None

    def peak(self, label: str, identity: Identity, *, seen_tf32: bool) -> str:
        """Return which of a machine's peaks the GEMMs of a range run against.

        `label` is empty for the run as a whole. `seen_tf32` says that kernels' names show tensor
        cores for single precision.
        """
        return "tf32_tensor" if seen_tf32 else "float32"

    def actions(self, identity: Identity) -> Actions:
        """Return what to advise to such a run."""
        return Actions()

    def facts(self, facts: Facts) -> Facts:
        """Return the facts with those that the program's own ranges tell."""
        return facts


UNKNOWN_PROGRAM: Final = Program()
