"""Models: formulas and statistics that need no report."""
