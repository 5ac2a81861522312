"""Empirical ceilings of a machine: measured on it, written to a file, read again."""

from perfmodel.ceilings.measurement import MachineMeasurement, Products, Series
from perfmodel.ceilings.measurement_file import choose, load, save

__all__ = ["MachineMeasurement", "Products", "Series", "choose", "load", "save"]
