"""Comparison: before and after of one change, with a verdict that exceeds the noise."""
