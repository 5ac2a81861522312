"""Figures for print and screen: the only package that imports matplotlib."""

from perfmodel.render.plot.bars import BreakdownRow, breakdown
from perfmodel.render.plot.output import figure_of, save, svg_text
from perfmodel.render.plot.page import panels
from perfmodel.render.plot.roofs import roofline
from perfmodel.render.plot.sweeps import sweep

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
