"""Exchanges halos in a ring of ranks of which rank 3 computes 2 ms longer than the others.

nsys profile --trace=nvtx,mpi --mpi-impl=openmpi -o halo mpirun -n 8 python halo.py [WAY [TIMES]]

WAY is `waitall`, `blocking` (MPI_Sendrecv), `sum` (MPI_Allreduce) or `chain`: rank 5 computes 2 ms
longer, and rank 3 computes what rank 5 sent; `plain` is `waitall` without ranges and with a
reduction in every fifth step, `pairs` sums in pairs of ranks without ranges, by MPI_Iallreduce;
in `root` rank 3 broadcasts to the ranks behind it.
All compute TIMES as long.
"""

from __future__ import annotations

import sys
import time
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import nvtx
from mpi4py import MPI

STEPS, LATE, ORIGIN, SECONDS, MORE = 20, 3, 5, 0.0022, 0.0020


def compute(seconds: float) -> None:
    """Let the time pass, and the core to others."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        time.sleep(0.0001)


def range_of(way: str, name: str) -> AbstractContextManager[object]:
    """Return a range, or nothing where the program has none."""
    return nullcontext() if way in ("plain", "pairs") else nvtx.annotate(name)


def main(way: str, times: float) -> None:
    """Compute and exchange with both neighbours, step after step."""
    world = MPI.COMM_WORLD
    left, right = (world.rank - 1) % world.size, (world.rank + 1) % world.size
    out, a, b = np.zeros(1024), np.zeros(1024), np.zeros(1024)
    late = ORIGIN if way == "chain" else LATE
    pair = world.Split(world.rank // 2)
    upper = world.Split(int(world.rank < LATE), -world.rank)
    world.Barrier()
    for step in range(STEPS):
        with range_of(way, f"step {step}"):
            if way == "chain" and world.rank == LATE:
                with range_of(way, "input"):
                    world.Recv(a, ORIGIN, 2)
            with range_of(way, "compute"):
                compute(times * (SECONDS + (MORE if world.rank == late else 0.0)))
            if way == "chain" and world.rank == ORIGIN:
                world.Send(out, LATE, 2)
            with range_of(way, "exchange"):
                if way == "blocking":
                    world.Sendrecv(out, right, 0, a, left, 0)
                    world.Sendrecv(out, left, 1, b, right, 1)
                elif way == "sum":
                    world.Allreduce(out, a)
                elif way == "root":
                    if world.rank >= LATE:
                        upper.Bcast(a, upper.size - 1)
                elif way == "pairs":
                    pair.Iallreduce(out, a).Wait()
                else:
                    requests = [world.Irecv(a, left, 0), world.Irecv(b, right, 1)]
                    requests += [world.Isend(out, right, 0), world.Isend(out, left, 1)]
                    MPI.Request.Waitall(requests)
                if way == "plain" and step % 5 == 4:
                    world.Allreduce(out, a)


if __name__ == "__main__":
    way, times = [*sys.argv[1:], *("waitall", "1")[len(sys.argv) - 1 :]]
    main(way, float(times))
