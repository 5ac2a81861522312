"""Empirical ceilings of a machine: measured on it, written to a file, read again."""
