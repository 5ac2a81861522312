"""One launch that visits many configurations of the trainer, one after the other.

    mpirun -n 2 python -m profiles.visit PLAN.json --launch 1 --record TIMES.json

PLAN.json lists configurations: {"name": ..., and fields of trainer.config.Config}. Every visit
trains as `python -m trainer` does, with its ranges and its mark, so that `part.py` can cut a report
of the launch into one report per configuration; `collect_launches.py` does both. The order is drawn
anew for every launch. Before the first batch of a visit a rank moves its main thread, and no other,
to the quietest core of its own: on a shared host, a core whose sibling computes for somebody else
runs Python half as fast.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import random
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainer import mpi
from trainer.backends.choice import choose
from trainer.config import Config
from trainer.data import (
    Dataset,
    distribute,
    synthetic,
)
from trainer.ranges import Ranges, make_ranges, mark_config, name_rank
from trainer.record import Run, config_mark
from trainer.train import Session

IMAGES = 60_000
CHUNKS = 5
CHUNK_S = 0.1


def loop_s() -> float:
    """Seconds of a loop in Python, about a millisecond: the speed of this core, now."""
    begun = time.perf_counter()
    total = 0
    for number in range(12_000):
        total += number * number % 7
    return time.perf_counter() - begun


def own_cores(cores: Sequence[int], ranks: int, rank: int) -> list[int]:
    """Every other core of this rank's share, at most eight: neighbours may be two halves of one."""
    pairs = cores[::2] if len(cores) >= 2 * ranks else cores
    return list(pairs[rank % len(pairs) :: ranks][:8])


def settle(candidates: Sequence[int]) -> tuple[int, float]:
    """Move this thread to the fastest of the cores; return it and the loop's median there."""
    found = []
    for core in candidates:
        os.sched_setaffinity(0, {core})
        found.append((statistics.median(loop_s() for _ in range(5)), core))
    speed_s, core = min(found)
    os.sched_setaffinity(0, {core})
    return core, speed_s


def configuration(settings: dict[str, Any], batches: int) -> Config:
    """Return a trainer's configuration that does at least so many batches.

    Those of an epoch more with a CUDA graph, whose first epoch is captured, not replayed.
    """
    epochs = math.ceil(batches / math.ceil(IMAGES / settings["batch_size"]))
    epochs += bool(settings.get("graph"))
    return Config(
        data="synthetic", train_size=IMAGES, epochs=epochs, evaluate_every=0,
        learning_rate=0.01, **settings,
    )  # fmt: skip


def visit(
    config: Config,
    comm: mpi.Communicator,
    data: Dataset,
    run_id: str,
    *,
    timed: bool,
    usual: Ranges,
    cores: Sequence[int],
) -> dict[str, Any]:
    """Train once; return what rank 0 saw of it (collective)."""
    found: dict[str, Any] = {}
    config.check_ranks(comm.size)
    backend = choose(config, comm.local_rank)
    run = Run(config, comm, backend, 1, run_id)
    ranges = make_ranges(backend.synchronize) if config.sync_ranges else usual

    def mark(session: Session) -> None:
        if session.why_no_graph:
            raise SystemExit(f"not captured: {session.why_no_graph}")
        # only now: threads that are made before may run anywhere
        found["core"], speed_s = settle(cores)
        found["loop_s"] = comm.largest(speed_s)
        mark_config(config_mark(run, graph=config.graph))

    session = Session(config, comm, data, backend, ranges, mark=mark)
    everywhere = os.sched_getaffinity(0)
    host = session.run().batch_seconds
    session.synchronize()
    found["host_median_s"] = statistics.median(host[len(host) // 3 :])
    if timed:
        found["batch_s"] = _timed(session, comm)
    del session
    os.sched_setaffinity(0, everywhere)
    _free(backend)
    comm.barrier()
    return found


def _timed(session: Session, comm: mpi.Communicator) -> list[float]:
    """Seconds per batch of several chunks, each until the device is done; of the slowest rank."""
    count, chunks = 8, []
    for chunk in range(CHUNKS + 1):
        comm.barrier()
        begun = time.perf_counter()
        session.run_batches(count)
        session.synchronize()
        chunks.append(comm.largest(time.perf_counter() - begun) / count)
        if not chunk:
            count = max(8, min(400, int(CHUNK_S / chunks[0])))
    return chunks[1:]


def _free(backend: Any) -> None:
    gc.collect()
    if backend.on_device:
        import cupy

        cupy.get_default_memory_pool().free_all_blocks()
        cupy.get_default_pinned_memory_pool().free_all_blocks()


def main() -> None:
    """Visit every configuration of the plan."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("plan", type=Path)
    parser.add_argument("--launch", type=int, default=1, help="seed of the order")
    parser.add_argument("--batches", type=int, default=30, help="per visit, warm-up included")
    parser.add_argument("--timed", action="store_true", help="also time batches in chunks")
    parser.add_argument("--record", type=Path, required=True)
    arguments = parser.parse_args()
    comm = mpi.connect()
    name_rank(comm.rank)
    plan = json.loads(arguments.plan.read_text())
    random.Random(arguments.launch).shuffle(plan)
    settings = [{k: v for k, v in each.items() if k != "name"} for each in plan]
    first = configuration(settings[0], arguments.batches)
    data = distribute(comm, synthetic(first) if comm.rank == 0 else None)
    cores = own_cores(sorted(os.sched_getaffinity(0)), comm.size, comm.rank)
    mpi.set_threads(comm, 1)  # threads of BLAS wait for more by spinning
    usual = make_ranges(None)
    rows = []
    for each, chosen in zip(plan, settings, strict=True):
        begun = time.perf_counter()
        config = configuration(chosen, arguments.batches)
        run_id = f"{each['name']}_{arguments.launch}"
        found = visit(
            config, comm, data, run_id, timed=arguments.timed, usual=usual, cores=cores
        )  # fmt: skip
        seconds = time.perf_counter() - begun
        rows.append({"name": each["name"], **found, "visit_s": seconds})
    if comm.rank == 0:
        arguments.record.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
