"""A two-layer network trained with NumPy or CuPy over MPI, annotated for Nsight Systems."""
