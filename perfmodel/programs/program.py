"""The interface between an analysis and what is known of one kind of program."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from perfmodel.programs.findings import Actions, Facts, Finding
from perfmodel.programs.identify import Identity
from perfmodel.readers.trace import Trace
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
    """

    values: Mapping[str, int] = field(default_factory=dict)
    counting: str = "document"
    workload: Workload | None = None
    batch_label: str | None = None
    warmup: int | None = None
    by_time: bool = True
    fit: str | int | None = None
    dtype: str | None = None
    shapes: Path | None = None
    causal: bool = False


class Program(Protocol):
    """One kind of program: how its reports are recognized, and what they mean.

    Attributes
    ----------
    name : str
        As `analysis.json` names it.
    step_clock : {'host', 'gpu'}
        What times a step: its range on the host, or from its first GPU operation to the next's.
    idle_causes : mapping of str to str
        Why a GPU idles, by the label of the range in which the host is.
    """

    name: str
    step_clock: StepClock
    idle_causes: Mapping[str, str]

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
