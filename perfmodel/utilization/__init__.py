"""Utilization: what NVML says of the GPUs while a command runs, beside what a report says."""
