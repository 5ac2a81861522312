"""Programs of PyTorch."""

from __future__ import annotations

from typing import Final

from perfmodel.programs.program import Options
from perfmodel.programs.pytorch.ranges import is_pytorch, own_ranges
from perfmodel.programs.unknown import UnknownProgram
from perfmodel.readers.trace import Trace


class PyTorchProgram(UnknownProgram):
    """See `perfmodel.programs.program.Program`."""

    name: str = "pytorch"

    def recognizes(self, trace: Trace, options: Options) -> bool:
        """Whether operators' ranges or kernels are PyTorch's."""
        return is_pytorch(trace)

    def own_ranges(self, trace: Trace) -> Trace:
        """Return the trace without the ranges of operators and libraries."""
        return own_ranges(trace)


PYTORCH_PROGRAM: Final = PyTorchProgram()
