"""Workloads: FLOPs and bytes per NVTX range, symbolic in the sizes of the problem."""

from __future__ import annotations

from perfmodel.workloads.expression import Expression
from perfmodel.workloads.spec import load
from perfmodel.workloads.work import Counts, Symbol, Work, Workload

__all__ = ["Counts", "Expression", "Symbol", "Work", "Workload", "load"]
