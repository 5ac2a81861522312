"""JAX: steps and HLO operations from the ranges of XLA."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

import numpy as np

from perfmodel.programs.program import Options
from perfmodel.programs.unknown import UnknownProgram
from perfmodel.readers.trace import GRAPH, Trace
from perfmodel.timing.run import Run
from perfmodel.timing.steps import Steps, find_steps, relabel

_DOMAIN: Final = "TSL"
_MODULE: Final = re.compile(r"XlaModule:#(?:.*?,)?hlo_module=([^,#]+)")
_THUNK: Final = re.compile(r"Thunk:#(?:name=(?P<name>[^,#]*),)?hlo_op=(?P<op>[^,#]+)")


def is_jax(trace: Trace) -> bool:
    """Whether a report is of a JAX program: by the ranges of XLA's thunks and modules."""
    return any(
        domain == _DOMAIN and (_THUNK.match(label) or _MODULE.match(label))
        for domain, label in zip(trace.range_domains, trace.range_labels, strict=True)
    )


def own_ranges(trace: Trace) -> Trace:
    """The trace with the program's own ranges, and XLA's modules by their name."""

    def label(domain: str, text: str) -> str | None:
        if domain != _DOMAIN:
            return text
        module = _MODULE.match(text)
        return module[1] if module else None

    return relabel(trace, label)


def find_module_steps(trace: Trace, asked: str | None) -> Steps:
    """Find the steps: the program's own ranges, else the module with most of the GPU's work.

    XLA runs ahead of the GPU and launches small modules between two steps: a step that is a module
    lasts until the next one starts.

    Parameters
    ----------
    trace : Trace
        Of `own_ranges`.
    asked : str, optional
        As `perfmodel.timing.steps.find_steps`.
    """
    found = find_steps(trace, asked)
    modules = {
        text
        for domain, text in zip(trace.range_domains, trace.range_labels, strict=True)
        if domain == _DOMAIN
    }
    if found.found_by != "range" or found.label not in modules:
        return found
    end = found.end_ns.copy()
    same = found.process[1:] == found.process[:-1]
    end[:-1] = np.where(same, found.start_ns[1:] - 1, end[:-1])
    return replace(found, end_ns=end)


def hlo_operation(label: str) -> tuple[str, str] | None:
    """Name of the source operation and of the HLO operation of a thunk's range.

    >>> hlo_operation("Thunk:#name=jit(f)/jvp()/dot_general,hlo_op=gemm_fusion_dot.178,x=1#")
    ('jit(f)/jvp()/dot_general', 'gemm_fusion_dot.178')
    """
    match = _THUNK.match(label)
    return (match["name"] or "", match["op"]) if match else None


class JaxProgram(UnknownProgram):
    """See `perfmodel.programs.program.Program`."""

    name: str = "jax"

    def recognizes(self, trace: Trace, options: Options) -> bool:
        """Whether ranges are those of XLA."""
        return is_jax(trace)

    def own_ranges(self, trace: Trace) -> Trace:
        """Return the trace with XLA's modules, and without its thunks."""
        return own_ranges(trace)

    def find(self, trace: Trace, asked: str | None) -> Steps:
        """Find the steps in the program's own ranges, or in XLA's modules."""
        return find_module_steps(trace, asked)

    def warnings(self, run: Run) -> list[str]:
        """CUDA graphs that were recorded as a whole hide their kernels."""
        return [
            f"{trace.source.name}: CUDA graphs were recorded as a whole, so that kernels, "
            f"categories and collectives inside them are unknown; profile with "
            f"--cuda-graph-trace=node to see them"
            for trace in run.traces
            if (trace.ops.kind == GRAPH).any()
        ]


JAX_PROGRAM: Final = JaxProgram()
