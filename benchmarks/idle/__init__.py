"""Savings that findings predict, against runs with and without a planted fault."""
