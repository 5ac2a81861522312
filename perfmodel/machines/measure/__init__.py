"""Measured ceilings of a machine: arithmetic, memory, links and collectives."""
