"""Every transport on the same ranks, batch by batch and message by message, in turns.

    mpirun --bind-to none -n 2 python -m benchmarks.cuda_aware --launch 1    # a CUDA-aware MPI
    mpirun -n 2 python -m benchmarks.cuda_aware --rehearse --out /tmp/try.json

One launch makes a session of the trainer for every transport (images stay on the GPU), compares
their parameters after the same batches, and visits them in another order each round; then it sums
messages of several sizes with the same transports, and exchanges them by MPI_Sendrecv. A visit's
time is the slowest rank's. Rows go to benchmarks/results/cuda_aware.json, those of the same number
of ranks and launch replaced.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.common import folders, gpus, results
from benchmarks.common.arguments import require_module
from trainer.backends.base import Backend
from trainer.backends.choice import choose
from trainer.config import Config
from trainer.data import Dataset, distribute, synthetic
from trainer.errors import TrainerError
from trainer.mpi import Communicator, connect, library_version
from trainer.ranges import SILENT
from trainer.train import Session
from trainer.transports import TRANSPORTS, make_transport
from trainer.transports.base import Message, Parties

RESULTS: Final = folders.RESULTS / "cuda_aware.json"
SIZES: Final = (64, 512, 2048)
BATCH: Final = 3000
MESSAGES: Final = tuple(4 << 2 * n for n in range(5, 13))
"""Bytes: 4 KiB to 64 MiB."""
TRAINED: Final = [name for name in TRANSPORTS if name != "none"]
SUMMED: Final = ("cuda-aware", "ring", "host-flat", "chunked", "nccl")
ROUNDS: Final = 9
VISIT_S: Final = 0.02
CHECKED: Final = 20
"""Batches after which parameters are compared."""

Timed = dict[str, Callable[[int], None]]
"""By name, what does something so many times and waits for its end."""


def timed(
    comm: Communicator, work: Timed, seed: str, rounds: int = ROUNDS
) -> Iterator[tuple[str, list[float]]]:
    """Visit all in another order each round; yield each with its seconds a time (collective)."""

    def visit(name: str, times: int) -> float:
        work[name](max(3, times // 10))
        comm.barrier()
        started = time.perf_counter()
        work[name](times)
        return comm.largest(time.perf_counter() - started) / times

    times = {name: max(5, round(VISIT_S / min(visit(name, 5), visit(name, 5)))) for name in work}
    seconds: dict[str, list[float]] = {name: [] for name in work}
    order, shuffle = list(work), random.Random(seed)
    for _ in range(rounds):
        shuffle.shuffle(order)
        for name in order:
            seconds[name].append(visit(name, times[name]))
    yield from seconds.items()


def row(seconds: list[float], **about: Any) -> dict[str, Any]:
    """Return a row of results."""
    return {**about, "median_s": statistics.median(seconds), "round_s": seconds}


def batches(
    comm: Communicator, backend: Backend, data: Dataset, hidden: int, a: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """Yield a row for every transport that works here: its batch, its parameters' distance."""
    sessions: dict[str, Session] = {}
    found: dict[str, np.ndarray] = {}
    for name in TRAINED:
        on = "device" if backend.on_device else None
        config = Config(
            hidden_size=hidden, batch_size=a.batch, transport=name, data_on=on, data="synthetic",
            input_size=data.images.shape[1], backend=backend.name, evaluate_every=0,
            train_size=len(data.labels),
        )  # fmt: skip
        session = Session(config, comm, data, backend)
        try:
            session.prepare()
        except TrainerError as error:
            why = {"p": comm.size, "launch": a.launch, "reason": str(error)}
            yield {"what": "batch", "transport": name, "H": hidden, **why}
            continue
        session.run_batches(CHECKED)
        session.synchronize()
        sessions[name], found[name] = session, session.parameters()

    def run(session: Session) -> Callable[[int], None]:
        def work(times: int) -> None:
            session.run_batches(times)
            session.synchronize()

        return work

    reference = found["host-flat"]
    work = {name: run(session) for name, session in sessions.items()}
    for name, seconds in timed(comm, work, f"{hidden}{a.launch}", a.rounds):
        error = np.abs(found[name] - reference).max() / np.abs(reference).max()
        yield row(
            seconds, what="batch", transport=name, H=hidden, B=a.batch, p=comm.size,
            launch=a.launch, message_bytes=reference.nbytes, max_relative_error=float(error),
            bits_equal=bool(np.array_equal(found[name], reference)),
        )  # fmt: skip


def messages(
    comm: Communicator, backend: Backend, size: int, a: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """Yield a row for the sum of a message by every transport, and for its exchange alone."""
    work: Timed = {}
    arrays = {}
    for name in SUMMED:
        arrays[name] = array = backend.xp.ones(size // 4, "float32")
        parties = Parties(backend, comm, SILENT, Message.of_one(array))
        try:
            transport = make_transport(name, parties)
        except TrainerError:
            continue

        def repeat(times: int, call: Callable[[], None] = transport.all_reduce) -> None:
            for _ in range(times):
                call()
            backend.synchronize()

        transport.all_reduce()
        backend.synchronize()
        assert bool((array == comm.size).all()), f"{name} does not sum"
        array.fill(0)  # what is summed again and again stays finite
        work[name] = repeat
    if "ring" in work:
        here, there = backend.xp.ones(size // 4, "float32"), backend.xp.empty(size // 4, "float32")

        def exchange(times: int) -> None:
            for _ in range(times):
                comm.exchange(here, (comm.rank + 1) % comm.size, there, (comm.rank - 1) % comm.size)

        work["exchange"] = exchange
    for name, seconds in timed(comm, work, f"{size}{a.launch}", a.rounds):
        yield row(
            seconds, what="message", transport=name, message_bytes=size, p=comm.size,
            launch=a.launch,
        )  # fmt: skip


def main() -> None:
    """Time one launch; add its rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--out", type=Path, default=RESULTS)
    add("--launch", type=int, default=1)
    add("--sizes", type=int, nargs="+", default=list(SIZES), metavar="H")
    add("--messages", type=int, nargs="+", default=list(MESSAGES), metavar="BYTES")
    add("--batch", type=int, default=BATCH)
    add("--rounds", type=int, default=ROUNDS)
    add("--rehearse", action="store_true", help="NumPy, few images of few pixels")
    a = parser.parse_args()
    if not a.rehearse:
        gpus.require()
        require_module("cupy", "cupy-cuda12x")
    elif a.out == RESULTS:
        parser.error("expected --out FILE with --rehearse; got none")
    comm = connect()
    few = {"input_size": 20, "train_size": 6000} if a.rehearse else {}
    config = Config(
        data="synthetic", backend="numpy" if a.rehearse else "cupy", test_size=64, **few
    )  # fmt: skip
    backend = choose(config, comm.local_rank)
    data = distribute(comm, synthetic(config) if comm.rank == 0 else None)
    rows: list[dict[str, Any]] = []
    for hidden in a.sizes:
        rows += batches(comm, backend, data, hidden, a)
    for size in a.messages:
        rows += messages(comm, backend, size, a)
    if comm.rank == 0:
        mine = (comm.size, a.launch)
        found = results.read(a.out)
        before = found.get("rows", [])
        kept = [r for r in before if (r["p"], r["launch"]) != mine]
        results.write(a.out, {**found,
            "command": f"mpirun -n {comm.size} {results.command('cuda_aware', sys.argv[1:])}",
            "date": results.now(),
            "versions": {**backend.describe(), "mpi": library_version()}, "rows": [*kept, *rows],
        })  # fmt: skip
        for r in rows:
            print({k: v for k, v in r.items() if k != "round_s"}, flush=True)


if __name__ == "__main__":
    main()
