"""Scores the diagnosis of perfmodel on recordings whose fault is known."""
