"""Where arrays are and who computes with them: NumPy on a CPU, CuPy on a GPU."""
