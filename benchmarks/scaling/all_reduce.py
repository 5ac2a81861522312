"""Times the trainer's own all-reduce (`--transport peer`) against NCCL's, by message size.

    mpirun --bind-to none -n 8 "$(command -v python)" -m benchmarks.scaling.all_reduce

The peer transport sums and takes the step of gradient descent in one kernel: NCCL is timed alone
and with the step's kernel behind it. Each is a CUDA graph of several calls; every round visits all
in another order: a barrier, replays for about 2 ms, a synchronization; a visit's time per call is
the slowest rank's. Every launch of this script adds a run to the file. Without a GPU it rehearses
with MPI over host memory.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.common import folders, results

RESULTS: Final = folders.RESULTS / "all_reduce.json"
SIZES: Final = tuple(4096 << k for k in range(17))
"""Bytes: 4 KiB to 256 MiB."""
CALLS: Final = 16
"""Of one graph."""
VISIT_S: Final = 2e-3
RATE: Final = -1.0
"""p <- p - rate (sum of g): parameters of zero become the sum."""


def parse(words: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--out", type=Path, default=RESULTS)
    add("--bytes", type=int, nargs="+", default=list(SIZES), metavar="N")
    add("--rounds", type=int, default=9)
    return parser.parse_args(words)


class Sums:
    """Messages of one size on this rank, and the ways to sum them.

    Parameters
    ----------
    size : int
        Bytes of float32; at least 16.
    """

    def __init__(self, size: int, backend: Any, comm: Any) -> None:
        from trainer.parameters import Tensors
        from trainer.ranges import SILENT
        from trainer.rates import LearningRate
        from trainer.transports import make_transport
        from trainer.transports.base import Message, Parties, Update

        self.backend, self.comm, self.n = backend, comm, size // 4
        xp = backend.xp
        self.gradients, self.parameters = xp.ones(self.n, "f4"), xp.zeros(self.n, "f4")
        gradients, parameters = (
            Tensors.split(flat, self.n - 3, 1, 1) for flat in (self.gradients, self.parameters)
        )
        update = Update(parameters, LearningRate(RATE, 1), 0.0)
        message = Message.of_gradients(gradients)
        parties = Parties(backend, comm, SILENT, message, update=update)
        names = ("nccl", "peer") if backend.on_device else ("host-flat",)
        self._by_name = {name: make_transport(name, parties) for name in names}
        self._step: Callable[[], None] | None = None
        if backend.on_device:
            from trainer.kernels.peer import SumAndStep

            self._step = partial(SumAndStep(parameters), self.gradients, RATE, 0.0)

    def calls(self) -> dict[str, Callable[[], None]]:
        """Return what is timed, by name."""
        found = {name: t.all_reduce for name, t in self._by_name.items()}
        if self._step is not None:
            step, nccl = self._step, found["nccl"]

            def both() -> None:
                nccl()
                step()

            found["nccl and step"] = both
        return found

    def check(self, name: str, call: Callable[[], None]) -> None:
        """Sum once: with 1 on the first rank, 2 on the second ... every element is p (p + 1) / 2.

        Raises
        ------
        SystemExit
            If one is not, on any rank.
        """
        self.gradients[:] = self.comm.rank + 1
        self.parameters[:] = 0
        self.backend.synchronize()
        self.comm.barrier()
        call()
        self.backend.synchronize()
        found = self.gradients if name in ("nccl", "host-flat") else self.parameters
        wanted = self.comm.size * (self.comm.size + 1) / 2
        wrong = not bool((found == wanted).all())
        if self.comm.any(wrong):
            raise SystemExit(f"{name}, {4 * self.n} bytes: expected sums of {wanted}; got others")
        self.gradients[:] = 0

    def replay(self, call: Callable[[], None]) -> Callable[[], None]:
        """Return a function that makes `CALLS` calls, as one CUDA graph where there is a GPU."""

        def several() -> None:
            for _ in range(CALLS):
                call()

        self.backend.synchronize()
        self.comm.barrier()
        return self.backend.capture(several) if self.backend.on_device else several


def visit(run: Callable[[], None], times: int, backend: Any, comm: Any) -> float:
    """Return the slowest rank's seconds per call of `times` replays behind an untimed one."""
    run()
    backend.synchronize()
    comm.barrier()
    started = time.perf_counter()
    for _ in range(times):
        run()
    backend.synchronize()
    return float(comm.largest((time.perf_counter() - started) / (times * CALLS)))


def measure(size: int, rounds: int, backend: Any, comm: Any) -> Iterator[dict[str, Any]]:
    """Yield a row for each way to sum `size` bytes (collective)."""
    sums = Sums(size, backend, comm)
    runs: dict[str, Callable[[], None]] = {}
    for name, call in sums.calls().items():
        sums.check(name, call)
        runs[name] = sums.replay(call)
    once = {name: visit(run, 1, backend, comm) for name, run in runs.items()}
    times = {name: max(1, math.ceil(VISIT_S / (CALLS * s))) for name, s in once.items()}
    found: dict[str, list[float]] = {name: [] for name in runs}
    order, shuffle = list(runs), random.Random(size)
    for _ in range(rounds):
        shuffle.shuffle(order)
        for name in order:
            found[name].append(visit(runs[name], times[name], backend, comm))
    comm.barrier()  # no rank frees memory that another one still writes
    for name, seconds in found.items():
        yield {"kind": name, "bytes": size, "calls": CALLS * times[name], "round_s": seconds}


def main() -> None:
    from trainer.backends.choice import choose
    from trainer.config import Config
    from trainer.mpi import connect, library_version

    options = parse()
    comm = connect()
    backend = choose(Config(data="synthetic"), comm.local_rank)
    if options.out == RESULTS and not backend.on_device:
        raise SystemExit("expected a GPU; got none: a rehearsal on the CPU writes where --out says")
    words = results.command("scaling.all_reduce", sys.argv[1:])
    run: dict[str, Any] = {
        "date": results.now(), "command": f"mpirun -n {comm.size} {words}", "ranks": comm.size,
        "environment": {k: v for k, v in os.environ.items() if k.startswith("NCCL_")},
        "versions": {**backend.describe(), "nccl": nccl_version(), "mpi": library_version()},
        "rows": [],
    }  # fmt: skip
    started = time.perf_counter()
    for size in options.bytes:
        run["rows"] += measure(size, options.rounds, backend, comm)
        if comm.rank == 0:
            last = ", ".join(
                f"{row['kind']} {1e6 * min(row['round_s']):.1f} us"
                for row in run["rows"] if row["bytes"] == size
            )  # fmt: skip
            print(f"[{time.perf_counter() - started:6.1f} s] {size} bytes: {last}", flush=True)
    if comm.rank == 0:
        runs = results.read(options.out).get("runs", [])
        results.write(options.out, {"runs": [*runs, run]}, digits=6)


def nccl_version() -> int | None:
    """Return NCCL's version as it numbers itself; None without it."""
    try:
        from cupy.cuda import nccl
    except ImportError:
        return None
    return int(nccl.get_version())


if __name__ == "__main__":
    main()
