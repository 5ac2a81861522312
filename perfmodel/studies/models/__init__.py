"""Formulas of the studies: calibration, prediction, hosts, collectives, Paleo."""
