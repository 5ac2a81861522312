"""Figures for print and screen: the only package that imports matplotlib."""

from perfmodel.plot.bars import BreakdownRow, breakdown
from perfmodel.plot.output import save, svg_text
from perfmodel.plot.roofs import roofline
from perfmodel.plot.sweeps import sweep

__all__ = ["BreakdownRow", "breakdown", "roofline", "save", "svg_text", "sweep"]
