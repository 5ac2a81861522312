"""PyTorch's NVTX ranges: which are the program's own, which are operators of the framework."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from perfmodel.readers.frames import MODULE
from perfmodel.readers.trace import Trace
from perfmodel.timing.spans import relabel

SIZES: Final = ", sizes = "
"""Is in the names of operators that say the sizes of their arguments."""
_SAID: Final = re.compile(r", (?:seq|op_id|sizes|input_op_ids) = ")
_OPERATOR: Final = re.compile(
    r"(?:aten|prims?|c10d|c10d_functional|_c10d_functional|torchvision|fbgemm|inductor|record_param_comms)"
    r"(?:::|$)|autograd::|torch::autograd::|\w*Backward\d*$|## Call |triton_\w+$|TorchDynamo|"
    r"CompiledFunction|AccumulateGrad|nccl:"
)
_OF_AUTOGRAD: Final = ", seq = "
"""Is in the names of ranges that autograd numbers, which no annotation is."""
_LIBRARIES: Final = frozenset({"NCCL", "CCCL", "cuBLAS", "cuDNN", "cuSPARSE", "cuSOLVER", "NVTX",
                               "perfmodel"})  # fmt: skip
_KERNELS: Final = (
    "at::native",
    "at_cuda_detail",
    "c10::",
    "triton_poi_",
    "triton_red_",
    "triton_per_",
)


def is_pytorch(trace: Trace) -> bool:
    """Whether a report is of a PyTorch program: by its operators' ranges or ATen's kernels."""
    return any(label.startswith("aten::") for label in trace.range_labels) or any(
        name.startswith(_KERNELS) or " at::native::" in name[:80] for name in trace.strings
    )


def name_of(label: str) -> str:
    """Name of an operator or function, without what `emit_nvtx` says of it.

    >>> name_of("aten::mm, op_id = 37, sizes = [[96, 32], [32, 32]]")
    'aten::mm'
    """
    said = _SAID.search(label)
    return label[: said.start()] if said else label


def own_ranges(trace: Trace) -> Trace:
    """The trace with the program's own ranges only: steps, phases, named functions.

    Operators of the framework and ranges that libraries push do not say what a program is doing;
    they are thousands a step. Modules are shown with the operators that they call. Autograd
    functions of the program are kept, as `Trace.operators`.
    """

    def label(domain: str, text: str) -> str | None:
        if domain in _LIBRARIES:
            return None
        name = name_of(text)
        framework = _OPERATOR.match(name) or name.startswith(MODULE) or SIZES in text
        return None if framework else name

    numbered = {name_of(text) for text in trace.range_labels if _OF_AUTOGRAD in text}
    operators = trace.operators | numbered.difference(trace.range_labels)
    return replace(relabel(trace, label), operators=operators)
