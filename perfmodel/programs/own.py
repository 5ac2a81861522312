"""A program of the user's own, whose work a TOML file of formulas counts, range by range."""

from __future__ import annotations

from typing import Final

from perfmodel.programs.identify import Identity
from perfmodel.programs.mlp.identify import identify, precision
from perfmodel.programs.mlp.settings import BATCH_RANGE
from perfmodel.programs.program import Options, Program, StepClock
from perfmodel.readers.trace import Trace
from perfmodel.timing.launched import Parts
from perfmodel.timing.spans import Steps, named_steps
from perfmodel.workloads.work import Workload


class OwnProgram(Program):
    """See `perfmodel.programs.program.Program`."""

    name: str = "own"
    step_clock: StepClock = "gpu"
    identify = staticmethod(identify)
    by_formulas: bool = True

    def recognizes(self, trace: Trace, options: Options) -> bool:
        """Whether the user gave formulas."""
        return options.workload is not None and options.level is None

    def steps(
        self, trace: Trace, options: Options, parts: Parts | None = None
    ) -> tuple[Trace, Steps]:
        """Take the range that the user, or the file, names."""
        assert options.workload is not None  # `recognizes`
        label = options.batch_label or options.workload.batch_range or BATCH_RANGE
        return trace, named_steps(trace, label, "asked" if options.batch_label else "declared")

    def workload(self, identity: Identity, options: Options) -> Workload | None:
        """Return the user's formulas."""
        return options.workload

    def peak(self, label: str, identity: Identity, *, seen_tf32: bool) -> str:
        """Return the peak for elements of b bytes."""
        return precision(identity.values.get("b", 4), {}, seen_tf32=seen_tf32)


OWN_PROGRAM: Final = OwnProgram()
