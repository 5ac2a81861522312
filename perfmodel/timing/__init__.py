"""Timing: from a trace to the times of ranges, steps, collectives and copies."""
