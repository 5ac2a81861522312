"""Train on every rank, one configuration after another; rank 0 prints what came of each as JSON.

    mpirun -n 3 python -m support.trainer_on_ranks '[{"transport": "chunked"}, ...]'

A configuration is what differs from `trainer_runs.small`; "batches" beside it traces what so
many batches allocate, after as many to warm up, instead of comparing with a sequential run.
"""

import json
import sys
import tracemalloc

import numpy as np

from support.trainer_runs import small
from trainer.backends.numpy import NumpyBackend
from trainer.data import synthetic
from trainer.mpi import Communicator, connect, set_threads
from trainer.train import Session, sequential
from trainer.verify import relative_errors


def compared(comm: Communicator, changes: dict) -> dict:
    """Return how far a run on all ranks is from the sequential one, and how far ranks differ."""
    config = small(**changes)
    data = synthetic(config)
    found = Session(config, comm, data if comm.rank == 0 else None, NumpyBackend()).run()
    theirs = found.parameters.copy()
    comm.broadcast(theirs)
    alike = not comm.any(not np.array_equal(theirs, found.parameters))
    wanted = sequential(config, data)
    last = {name: (run.epochs[-1][name]) for run in (found,) for name in ("precision_train",
            "precision_test", "loss")}  # fmt: skip
    return {
        "error": max(relative_errors(found.parameters, wanted.parameters, config).values()),
        "alike": alike,
        "loss_error": abs(last["loss"] / wanted.epochs[-1]["loss"] - 1),
        "precision": [last["precision_train"], last["precision_test"]],
        "wanted": [wanted.epochs[-1][name] for name in ("precision_train", "precision_test")],
    }


def allocated(comm: Communicator, changes: dict) -> dict:
    """Return the peak of what the batch loop allocates, in bytes, on the worst rank."""
    batches = changes.pop("batches")
    config = small(**changes)
    session = Session(config, comm, synthetic(config) if comm.rank == 0 else None, NumpyBackend())
    session.prepare()
    session.run_batches(batches)
    tracemalloc.start()
    session.run_batches(batches)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return {"peak": int(comm.largest(peak))}


if __name__ == "__main__":
    ranks = connect()
    set_threads(ranks, 1)
    for asked in json.loads(sys.argv[1]):
        answer = (allocated if "batches" in asked else compared)(ranks, dict(asked))
        if ranks.rank == 0:
            print(json.dumps({**asked, **answer}), flush=True)
