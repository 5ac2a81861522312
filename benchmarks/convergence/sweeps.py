"""Sweeps that answer the document's Problem 1: convergence and discrepancy, as tidy CSV.

python -m benchmarks.convergence.sweeps convergence OUT.csv --hidden-sizes 64 512 --seeds 1 2 3
python -m benchmarks.convergence.sweeps discrepancy OUT.csv --learning-rates 0.01 0.1 --epochs 3
mpirun -n 2 python -m benchmarks.convergence.sweeps parallel OUT.csv --backend cupy
"""

from __future__ import annotations

import argparse
import csv
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from trainer.backends.base import Backend
from trainer.backends.choice import choose
from trainer.backends.numpy import NumpyBackend
from trainer.checkpoint import State
from trainer.config import DTYPES, MNIST, Config
from trainer.data import Dataset, load
from trainer.errors import NonFiniteLossError
from trainer.mpi import Communicator, connect, set_threads
from trainer.networks.base import Network
from trainer.ranges import SILENT
from trainer.rates import LearningRate
from trainer.steps.batches import Batches, Split
from trainer.train import Session
from trainer.verify import one_ulp_off, relative_errors

Row = dict[str, Any]


def convergence(
    config: Config, dataset: Dataset, learning_rates: Sequence[float], hidden_sizes: Sequence[int],
    *, seeds: Sequence[int] = (), backend: Backend | None = None, thin: bool = False,
) -> Iterator[Row]:  # fmt: skip
    """Yield loss and precision after every epoch, per seed, hidden size and learning rate.

    One rank computes, with NumPy or another backend; on a GPU each step is a CUDA graph on images
    that stay there. With `thin` only the first 20 epochs are kept, some 20 in each factor of ten
    beyond, and the last. A run whose loss becomes infinite is reported and has no rows.
    """
    device = backend or NumpyBackend()
    if device.on_device:
        config = config.with_(graph=True, data_on="device")
    for seed, hidden, rate in product(seeds or (config.seed,), hidden_sizes, learning_rates):
        one = config.with_(hidden_size=hidden, learning_rate=rate, transport="none", seed=seed)
        try:
            run = Session(one, Communicator(), dataset, device).run()
        except NonFiniteLossError as error:
            print(f"H={hidden}, rate {rate:g}, seed {seed}: {error}", file=sys.stderr, flush=True)
            continue
        for record in run.epochs:
            if thin and not _milestone(record["epoch"], config.epochs):
                continue
            yield {
                "backend": device.name, "hidden_size": hidden,
                "batch_size": config.batch_size, "learning_rate": rate,
                "dtype": config.dtype, "seed": seed, **record,
            }  # fmt: skip


def _milestone(epoch: int, last: int) -> bool:
    return epoch in (*range(1, 21), last) or math.floor(20 * math.log10(epoch)) > math.floor(
        20 * math.log10(epoch - 1)
    )


def parallel(
    config: Config, dataset: Dataset | None, comm: Communicator, backend: Backend,
    learning_rates: Sequence[float], hidden_sizes: Sequence[int],
) -> Iterator[Row]:  # fmt: skip
    """Yield how runs on these ranks do beside the sequential one, after every epoch.

    The learning rates are tried with the first of the hidden sizes, the other hidden sizes with
    the first of the learning rates. Collective: rank 0, which has the dataset, yields.
    """
    first_rate, first_size = learning_rates[0], hidden_sizes[0]
    pairs = [(rate, first_size) for rate in learning_rates]
    pairs += [(first_rate, size) for size in hidden_sizes[1:]]
    for rate, hidden in pairs:
        one = config.with_(learning_rate=rate, hidden_size=hidden, evaluate_every=1)
        states: list[State] = []
        session = Session(one, comm, dataset, backend, save=states.append)
        found = session.run()
        if comm.rank == 0 and dataset is not None:
            wanted_states: list[State] = []
            alone = one.with_(backend="numpy", transport="none", gemm="cublas", math="ieee")
            wanted = Session(
                alone, Communicator(), dataset, NumpyBackend(), save=wanted_states.append
            ).run()
            for at, (state, reference) in enumerate(zip(states, wanted_states, strict=True)):
                yield {
                    "backend": backend.name, "ranks": comm.size, "dtype": config.dtype,
                    "batch_size": config.batch_size, "seed": config.seed, "hidden_size": hidden,
                    "learning_rate": rate, "epoch": at + 1, "loss": found.epochs[at]["loss"],
                    "precision_test": found.epochs[at]["precision_test"],
                    "sequential_loss": wanted.epochs[at]["loss"],
                    "sequential_precision_test": wanted.epochs[at]["precision_test"],
                    **relative_errors(state.parameters, reference.parameters, one),
                }  # fmt: skip
        comm.yielding_barrier()


def discrepancy(
    config: Config, dataset: Dataset, learning_rates: Iterable[float], ranks: Sequence[int] = (2, 4)
) -> Iterator[Row]:
    """Yield how far runs drift from the sequential one after every epoch (document's Figure 2).

    The other runs are: the batch summed in p parts (what p ranks compute, in one process), the
    other precision, and a start one unit in the last place away.
    """
    other = next(d for d in DTYPES if d != config.dtype)
    for rate in learning_rates:
        base = config.with_(learning_rate=rate)
        wanted = _snapshots(base, dataset)
        variants: dict[str, list[State]] = {
            f"{p} ranks": virtual_ranks(base, dataset, p) for p in ranks
        }
        variants[other] = _snapshots(base.with_(dtype=other), dataset)
        start = State(one_ulp_off(base), 0, 0, wanted[0].losses * 0, {}, "", 1, "numpy")
        variants["one ulp"] = _snapshots(base, dataset, start)
        for variant, states in variants.items():
            for reference, state in zip(wanted, states, strict=True):
                errors = relative_errors(state.parameters, reference.parameters, base)
                for parameter, error in errors.items():
                    yield {
                        "learning_rate": rate, "hidden_size": base.hidden_size,
                        "batch_size": base.batch_size, "dtype": base.dtype, "variant": variant,
                        "epoch": reference.epoch, "parameter": parameter,
                        "max_relative_error": error,
                    }  # fmt: skip


def _snapshots(config: Config, dataset: Dataset, start: State | None = None) -> list[State]:
    """Run sequentially; return the state after every epoch."""
    states: list[State] = []
    alone = config.with_(backend="numpy", transport="none", evaluate_every=0)
    Session(alone, Communicator(), dataset, NumpyBackend(), state=start, save=states.append).run()
    return states


def virtual_ranks(config: Config, dataset: Dataset, ranks: int) -> list[State]:
    """Train in one process as `ranks` ranks would: part gradients summed in rank order.

    Returns
    -------
    list of State
        After every epoch.
    """
    backend = NumpyBackend()
    splits = [Split(len(dataset.labels), config.batch_size, ranks, r) for r in range(ranks)]
    data = (dataset.images, dataset.labels)
    parts = [Batches(backend, split, data, config) for split in splits]
    network = Network(
        backend, config.input_size, config.hidden_size, config.num_classes, config.dtype,
        max(split.share(0) for split in splits),
    )  # fmt: skip
    network.initialize(config.seed)
    total = np.empty_like(network.gradients.flat)
    rate = LearningRate(config.peak_learning_rate, len(splits[0]), config.warmup_epochs)
    states = []
    for epoch in range(config.epochs):
        for index in range(len(splits[0])):
            total[:] = 0
            for part in parts:
                x, y, _ = part.load(index, SILENT)
                work = network.forward(x)
                scale = 1.0 / splits[0].size(index)
                network.loss_gradient(work, y, scale, np.empty(len(x), config.dtype))
                network.backward_output(work)
                network.backward_hidden(x, work)
                total += network.gradients.flat
            network.gradients.flat[:] = total
            network.step(rate.at(epoch, index), config.regularization)
        losses = np.zeros(len(splits[0]))
        states.append(
            State(network.host_parameters(), epoch + 1, 0, losses, {}, "", ranks, "numpy")
        )
    return states


def write_csv(path: Path, rows: Iterable[Row]) -> None:
    """Write rows with the same keys to a CSV file, each as soon as it is known."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer: csv.DictWriter[str] | None = None
        for row in rows:
            if writer is None:
                writer = csv.DictWriter(file, list(row))
                writer.writeheader()
            writer.writerow(row)
            file.flush()


def main(argv: Sequence[str] | None = None) -> None:
    a = _parser().parse_args(argv)
    config = Config(
        data=a.data, batch_size=a.batch_size, epochs=a.epochs, dtype=a.dtype, seed=a.seeds[0],
        hidden_size=a.hidden_sizes[0], backend=a.backend, train_size=a.train_size,
    )  # fmt: skip
    comm = connect() if a.study == "parallel" else Communicator()
    set_threads(comm, 0)
    with comm.agreed():
        dataset = load(config) if comm.rank == 0 else None
        backend = choose(config, comm.local_rank)
    if a.study == "parallel":
        rows = parallel(config, dataset, comm, backend, a.learning_rates, a.hidden_sizes)
    elif a.study == "convergence":
        assert dataset is not None
        sizes = a.learning_rates, a.hidden_sizes
        rows = convergence(
            config, dataset, *sizes, seeds=a.seeds, backend=backend, thin=a.thin
        )  # fmt: skip
    else:
        assert dataset is not None
        rows = discrepancy(config, dataset, a.learning_rates)
    if comm.rank == 0:
        write_csv(a.out, rows)
    else:
        assert list(rows) == []  # takes part


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.convergence.sweeps", description=__doc__
    )
    add = parser.add_argument
    add("study", choices=("convergence", "discrepancy", "parallel"))
    add("out", type=Path)
    add("--data", default=MNIST)
    add("--learning-rates", type=float, nargs="+", default=[0.01, 0.1, 0.2])
    add("--hidden-sizes", type=int, nargs="+", default=[512])
    add("--batch-size", type=int, default=3000)
    add("--train-size", type=int, help="images to train on; all by default")
    add("--epochs", type=int, default=5)
    add("--dtype", choices=DTYPES, default="float32")
    add("--seeds", type=int, nargs="+", default=[1], help="convergence: several")
    add("--backend", choices=("numpy", "cupy"), default="numpy", help="not of discrepancy")
    add("--thin", action="store_true", help="convergence: fewer rows of long runs")
    return parser


if __name__ == "__main__":
    main()
