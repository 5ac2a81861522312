"""The trainer of the two-layer MLP, and programs with its ranges."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, cast

from perfmodel.programs.findings import Actions, Facts, Finding
from perfmodel.programs.identify import Identity, read_mark
from perfmodel.programs.mlp.advice import IDLE_CAUSES, actions_of, advise
from perfmodel.programs.mlp.identify import (
    MARK_SYMBOLS,
    identify,
    missing_values,
    precision,
    precision_of,
)
from perfmodel.programs.mlp.mlp import BATCH_RANGE, Counting, as_it_ran, mlp
from perfmodel.programs.program import Options, StepClock
from perfmodel.readers.trace import Trace
from perfmodel.timing.operator_times import OperatorTimes
from perfmodel.timing.run import Run
from perfmodel.timing.step_report import StepReport
from perfmodel.timing.steps import Steps, named_steps
from perfmodel.workloads.work import Workload


class MlpProgram:
    """See `perfmodel.programs.program.Program`."""

    name: str = "mlp"
    step_clock: StepClock = "host"
    idle_causes: Mapping[str, str] = IDLE_CAUSES

    def recognizes(self, trace: Trace, options: Options) -> bool:
        """A report with the trainer's mark, with its range, or of which D, H, C or B is given."""
        mark = read_mark(trace)
        if mark:
            return bool(mark.get("workload", self.name) == self.name)
        asked = bool(options.values.keys() & (MARK_SYMBOLS.keys() - {"p"}))
        return options.workload is None and (asked or BATCH_RANGE in trace.range_labels)

    def steps(self, trace: Trace, options: Options) -> tuple[Trace, Steps]:
        """Take the trainer's range, or the one that the user or the user's workload names."""
        of_workload = options.workload.batch_range if options.workload else None
        label = options.batch_label or of_workload or BATCH_RANGE
        return trace, named_steps(trace, label, "mark" if read_mark(trace) else "range")

    def operators(self, trace: Trace, steps: StepReport, options: Options) -> OperatorTimes | None:
        """No operators are named."""
        return None

    def identify(self, run: Run, given: Mapping[str, int]) -> tuple[Identity, list[str]]:
        """Take given values first, then the mark's, then what the sizes of messages tell."""
        return identify(run, given)

    def workload(self, identity: Identity, options: Options) -> Workload:
        """Return the MLP as the mark says that it ran, or the user's own formulas."""
        chosen = options.workload
        if chosen is None:
            parallel = identity.config.get("parallel")
            counting = cast(Counting, options.counting)  # `mlp` refuses another one
            chosen = mlp(counting, "model" if parallel == "model" else "data")
        return as_it_ran(chosen, identity.config)

    def missing(self, label: str, symbols: Sequence[str], *, marked: bool) -> str:
        """Name the flags that give them."""
        return missing_values(label, symbols, marked=marked)

    def peak(self, label: str, identity: Identity, *, seen_tf32: bool) -> str:
        """Return the peak by the mark's math; the thin kernels multiply float32 as it is."""
        run = precision(identity.values.get("b", 4), identity.config, seen_tf32=seen_tf32)
        return precision_of(label, run, identity.config)

    def actions(self, identity: Identity) -> Actions:
        """Return the trainer's flags, less what the mark says is done."""
        return actions_of(identity.config)

    def advice(self, facts: Facts) -> Iterable[Finding]:
        """Find what a run of the trainer loses."""
        return advise(facts)


MLP_PROGRAM: Final = MlpProgram()
