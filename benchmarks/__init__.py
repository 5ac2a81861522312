"""What was measured: a package a study, each run as `python -m benchmarks.NAME` (README.md)."""
