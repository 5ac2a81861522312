"""Programs of PyTorch."""

from __future__ import annotations

from typing import Final

from perfmodel.programs.findings import Actions
from perfmodel.programs.identify import Identity
from perfmodel.programs.kernels import categorize
from perfmodel.programs.program import Options
from perfmodel.programs.pytorch.advice import PyTorchActions
from perfmodel.programs.pytorch.ranges import is_pytorch, own_ranges
from perfmodel.programs.unknown import UnknownProgram
from perfmodel.readers import read
from perfmodel.readers.trace import Trace
from perfmodel.timing.operator_times import OperatorTimes
from perfmodel.timing.run import Run
from perfmodel.timing.step_report import StepReport, report_steps


class PyTorchProgram(UnknownProgram):
    """See `perfmodel.programs.program.Program`."""

    name: str = "pytorch"

    def recognizes(self, trace: Trace, options: Options) -> bool:
        """Whether operators' ranges or kernels are PyTorch's."""
        return is_pytorch(trace)

    def own_ranges(self, trace: Trace) -> Trace:
        """Return the trace without the ranges of operators and libraries."""
        return own_ranges(trace)

    def actions(self, identity: Identity) -> Actions:
        """Return what to call in PyTorch."""
        return PyTorchActions()

    def operators(self, trace: Trace, steps: StepReport, options: Options) -> OperatorTimes | None:
        """Count ATen's operators, where their ranges name sizes, or those of another recording."""
        # most reports are of other programs: the formulas are imported for those that need them
        if options.shapes is None:
            from perfmodel.programs.pytorch.operator_times import operator_times

            return operator_times(trace, steps, options.dtype)
        from perfmodel.programs.pytorch.two_recordings import operator_times_from

        other = read(options.shapes)
        shown, found = self.steps(other, options)
        measured = report_steps(shown, found, categorize)
        return operator_times_from(trace, steps, other, measured, options.dtype)

    def warnings(self, run: Run) -> list[str]:
        """Say how to record what FLOPs are counted from."""
        if run.operators:
            return []
        return [
            f"{run.label}: FLOPs are unknown: the operators' sizes were not recorded; record them "
            f"with nsys profile --pytorch=autograd-shapes-nvtx (docs/pytorch.md)"
        ]


PYTORCH_PROGRAM: Final = PyTorchProgram()
