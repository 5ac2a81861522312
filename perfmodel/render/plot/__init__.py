"""Figures for print and screen: the only package that imports matplotlib."""

from perfmodel.render.plot.bars import BreakdownRow, breakdown
from perfmodel.render.plot.lines import sweep
from perfmodel.render.plot.output import figure_of, panels, save, svg_text
from perfmodel.render.plot.roofline import roofline

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
