"""Figures for print and screen: the only package that imports matplotlib."""

from perfmodel.plot.bars import BreakdownRow, breakdown
from perfmodel.plot.output import figure_of, save, svg_text
from perfmodel.plot.page import panels
from perfmodel.plot.roofs import roofline
from perfmodel.plot.sweeps import sweep

__all__ = [
    "BreakdownRow",
    "breakdown",
    "figure_of",
    "panels",
    "roofline",
    "save",
    "svg_text",
    "sweep",
]
