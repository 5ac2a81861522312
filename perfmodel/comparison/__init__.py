"""Comparison: before and after of one change, with a verdict that noise cannot pass."""

from __future__ import annotations

from perfmodel.comparison.compare import CompareOptions, compare_traces
from perfmodel.comparison.result import Comparison, Row, Side

__all__ = ["CompareOptions", "Comparison", "Row", "Side", "compare_traces"]
