"""Exchanges halos in a ring of ranks of which rank 3 computes 2 ms longer than the others.

nsys profile --trace=nvtx,mpi --mpi-impl=openmpi -o halo mpirun -n 8 python halo.py [blocking]
"""

from __future__ import annotations

import sys
import time

import numpy as np
import nvtx
from mpi4py import MPI

STEPS, LATE, SECONDS, MORE = 20, 3, 0.0022, 0.0020


def compute(seconds: float) -> None:
    """Let the time pass, and the core to others."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        time.sleep(0.0001)


def main(*, blocking: bool) -> None:
    """Compute and exchange with both neighbours, step after step."""
    world = MPI.COMM_WORLD
    left, right = (world.rank - 1) % world.size, (world.rank + 1) % world.size
    out, a, b = np.zeros(1024), np.zeros(1024), np.zeros(1024)
    world.Barrier()
    for step in range(STEPS):
        with nvtx.annotate(f"step {step}"):
            with nvtx.annotate("compute"):
                compute(SECONDS + (MORE if world.rank == LATE else 0.0))
            with nvtx.annotate("exchange"):
                if blocking:
                    world.Sendrecv(out, right, 0, a, left, 0)
                    world.Sendrecv(out, left, 1, b, right, 1)
                else:
                    requests = [world.Irecv(a, left, 0), world.Irecv(b, right, 1)]
                    requests += [world.Isend(out, right, 0), world.Isend(out, left, 1)]
                    MPI.Request.Waitall(requests)


if __name__ == "__main__":
    main(blocking=len(sys.argv) > 1)
