"""A program of which nothing is known: its steps are found, its formulas are not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from perfmodel.programs.findings import Actions, Facts, Finding, general
from perfmodel.programs.identify import Identity
from perfmodel.programs.losses import find_losses
from perfmodel.programs.program import Options, StepClock
from perfmodel.readers.trace import Trace
from perfmodel.timing.operator_times import OperatorTimes
from perfmodel.timing.run import Run
from perfmodel.timing.step_report import StepReport
from perfmodel.timing.steps import Steps, find_steps, with_steps
from perfmodel.workloads.work import Workload

_STEP: Final = "step"
"""What steps are called that nothing names."""


class UnknownProgram:
    """See `perfmodel.programs.program.Program`."""

    name: str = "unknown"
    step_clock: StepClock = "gpu"
    idle_causes: Mapping[str, str] = {}

    def recognizes(self, trace: Trace, options: Options) -> bool:
        """Any report."""
        return True

    def own_ranges(self, trace: Trace) -> Trace:
        """Return the trace with the ranges that say what the program itself does."""
        return trace

    def find(self, trace: Trace, asked: str | None) -> Steps:
        """Find the steps in the program's own ranges, or in the sequence of its operations."""
        return find_steps(trace, asked)

    def steps(self, trace: Trace, options: Options) -> tuple[Trace, Steps]:
        """Find the steps, and show each as a range of one name."""
        own = self.own_ranges(trace)
        return with_steps(own, self.find(own, options.batch_label), _STEP)

    def operators(self, trace: Trace, steps: StepReport, options: Options) -> OperatorTimes | None:
        """No operators are named."""
        return None

    def identify(self, run: Run, given: Mapping[str, int]) -> tuple[Identity, list[str]]:
        """Nothing is known but the number of ranks, and whether it used a GPU and MPI."""
        known = Identity(
            {"p": len(run.ranks), **given},
            "the report",
            {},
            uses_gpu=any(len(t.ops) for t in run.traces),
            uses_mpi=any(len(t.mpi) for t in run.traces),
        )
        return known, self.warnings(run)

    def warnings(self, run: Run) -> list[str]:
        """What such a report cannot show, and the flag that shows it."""
        return []

    def workload(self, identity: Identity, options: Options) -> Workload | None:
        """No formulas."""
        return None

    def missing(self, label: str, symbols: Sequence[str], *, marked: bool) -> str:
        """No symbols, so that none is missing."""
        return ""

    def peak(self, label: str, identity: Identity, *, seen_tf32: bool) -> str:
        """Return the tensor cores' peak for single precision where kernels use them."""
        return "tf32_tensor" if seen_tf32 else "float32"

    def actions(self, identity: Identity) -> Actions:
        """Return everything: the program says nothing of what it does."""
        return Actions()

    def advice(self, facts: Facts) -> Iterable[Finding]:
        """Find what any program may lose."""
        actions = self.actions(Identity({}, "", {}))
        if facts.steps is None:
            return general(facts, actions)
        return find_losses(facts, facts.steps, actions)


UNKNOWN_PROGRAM: Final = UnknownProgram()
