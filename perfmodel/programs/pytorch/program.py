"""Programs of PyTorch."""

from __future__ import annotations

from typing import Final

from perfmodel.programs.program import Options
from perfmodel.programs.pytorch.operator_times import operator_times
from perfmodel.programs.pytorch.ranges import is_pytorch, own_ranges
from perfmodel.programs.unknown import UnknownProgram
from perfmodel.readers.trace import Trace
from perfmodel.timing.operator_times import OperatorTimes
from perfmodel.timing.step_report import StepReport


class PyTorchProgram(UnknownProgram):
    """See `perfmodel.programs.program.Program`."""

    name: str = "pytorch"

    def recognizes(self, trace: Trace, options: Options) -> bool:
        """Whether operators' ranges or kernels are PyTorch's."""
        return is_pytorch(trace)

    def own_ranges(self, trace: Trace) -> Trace:
        """Return the trace without the ranges of operators and libraries."""
        return own_ranges(trace)

    def operators(self, trace: Trace, steps: StepReport, options: Options) -> OperatorTimes | None:
        """Count ATen's operators, where their ranges name sizes."""
        return operator_times(trace, steps, options.dtype)


PYTORCH_PROGRAM: Final = PyTorchProgram()
