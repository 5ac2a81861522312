"""Devices with arrays and arithmetic: NumPy on a CPU, CuPy on a GPU."""
