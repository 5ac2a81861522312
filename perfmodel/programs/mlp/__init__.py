"""The trainer of the two-layer MLP: its ranges, formulas and settings, and its parts to predict."""
