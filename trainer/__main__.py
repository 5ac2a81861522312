"""python -m trainer: flags, one run, its record; the only place that prints or exits."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import sys
import time
import traceback
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainer import checkpoint, mpi
from trainer.backends.choice import choose
from trainer.config import Config
from trainer.data import Dataset, load
from trainer.errors import (
    EXIT_STOPPED,
    EXIT_VERIFY,
    ConfigError,
    DeviceError,
    TrainerError,
    out_of_memory,
)
from trainer.flags import configure, parser
from trainer.ranges import leave_mark, make_ranges, mark_config, name_rank, profiler_warning
from trainer.record import Run, config_mark, run_record
from trainer.steps.batches import Split
from trainer.stop import StopRequest
from trainer.train import Result, Session
from trainer.unrecorded import begin_recording, time_first
from trainer.verify import verify


class Terminal:
    """Shows progress on rank 0: a line per epoch, and a progress bar on a terminal."""

    def __init__(self, config: Config, batches: int) -> None:
        self._config, self._batches, self._shown = config, batches, 0.0
        self._bar: Any = None
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import Progress

            self._bar = Progress(console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task("", total=config.epochs * batches)
            self._bar.start()

    def on_batch(self, epoch: int, batch: int) -> None:
        """Move the bar, ten times a second at most."""
        if self._bar is not None and time.monotonic() - self._shown > 0.1:
            self._shown = time.monotonic()
            self._bar.update(
                self._task,
                completed=epoch * self._batches + batch,
                description=f"epoch {epoch + 1}/{self._config.epochs}",
            )

    def on_epoch(self, record: dict[str, Any]) -> None:
        """Print what the epoch reached."""
        accuracy = ", ".join(
            f"{record[key]:.4f} {name}"
            for name, key in (("train", "precision_train"), ("test", "precision_test"))
            if record[key] is not None
        )
        print(
            f"epoch {record['epoch']}/{self._config.epochs}  loss {record['loss']:.4f}  "
            f"{f'accuracy {accuracy}  ' if accuracy else ''}{record['seconds']:.3f} s",
            flush=True,
        )

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()


def main(argv: Sequence[str] | None = None) -> int:
    """Run; return the exit code. An error that all ranks share is printed by rank 0 alone."""
    try:
        comm = mpi.connect()
    except TrainerError as error:
        _complain(error)
        return error.exit_code
    try:
        with contextlib.redirect_stdout(sys.stdout if comm.rank == 0 else io.StringIO()):
            arguments = parser().parse_args(argv)  # --help: once, not by every rank
        return _main(arguments, comm)
    except TrainerError as error:
        if not error.everywhere:
            _complain(error if comm.size == 1 else f"rank {comm.rank}: {error}")
            comm.abort(error.exit_code)
        if comm.rank == 0:
            _complain(error)
        comm.barrier()
        return error.exit_code
    except MemoryError as error:
        _complain(f"rank {comm.rank}: {out_of_memory(error)}")
        comm.abort(DeviceError.exit_code)
    except Exception:
        _complain(f"rank {comm.rank} of {comm.size} failed:\n{traceback.format_exc()}")
        comm.abort(1)


def _complain(what: object) -> None:
    print(f"trainer: {what}", file=sys.stderr, flush=True)


def _main(arguments: argparse.Namespace, comm: mpi.Communicator) -> int:
    config = configure(arguments)
    config.check_ranks(comm.size)
    name_rank(comm.rank)
    stop = StopRequest().install()
    with comm.agreed():
        threads = mpi.set_threads(comm, config.threads)
        backend = choose(config, comm.local_rank)
        _check_memory(config)
    if comm.rank == 0 and not backend.on_device and config.data_on not in (None, "host"):
        _complain(f"--data-on {config.data_on}: the backend numpy computes where its data is")
    warning = profiler_warning()
    if warning and comm.rank == 0:
        _complain(warning)
    run_id = comm.broadcast_bytes(uuid.uuid4().hex[:12].encode()).decode()
    run = Run(config, comm, backend, threads, run_id)
    dataset, state = _read(arguments, config, comm)
    if state and comm.rank == 0:
        why = state.why_not_identical(config, comm.size, backend.name)
        if why:
            _complain(why)
    timed = None
    if arguments.time_first:
        timed = time_first(config, comm, dataset, backend, arguments.time_first)
        timed = begin_recording(comm, timed)
    result = _train(run, arguments.checkpoint, dataset, state, stop, timed)
    return _finish(run, arguments, dataset, result, stop)


def _check_memory(config: Config) -> None:
    """Refuse a network whose initial weights alone, drawn in float64, exceed the host's memory."""
    needed = 8 * config.parameters
    here = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > here:
        raise ConfigError(
            f"--hidden-size {config.hidden_size}, --input-size {config.input_size}: expected "
            f"parameters that fit into this host's {here / 2**30:.0f} GiB; got "
            f"{needed / 2**30:.3g} GiB of them (float64); lower --hidden-size"
        )


def _read(
    arguments: argparse.Namespace, config: Config, comm: mpi.Communicator
) -> tuple[Dataset | None, checkpoint.State | None]:
    """Read data and checkpoint on rank 0; every rank gets the checkpoint."""
    dataset = state = None
    with comm.agreed():
        if comm.rank == 0:
            for place in (arguments.record and arguments.record.parent, arguments.checkpoint):
                if place:
                    _make_directory(place)
            if arguments.record and arguments.record.exists() and not arguments.record.is_file():
                raise ConfigError(
                    f"--record: expected a file to write; got {arguments.record}, which is none; "
                    "name one that is not there yet, or an ordinary file"
                )
            dataset = load(config)
            if config.batch_size > len(dataset.labels):
                raise ConfigError(
                    f"--batch-size: expected at most the {len(dataset.labels)} images to train on; "
                    f"got {config.batch_size}; give --batch-size {len(dataset.labels)} or less"
                )
            if arguments.resume:
                state = checkpoint.load(arguments.checkpoint)
                batches = len(Split(len(dataset.labels), config.batch_size))
                state.check(config, dataset.fingerprint(), batches)
    if arguments.resume:
        packed = comm.broadcast_bytes(checkpoint.pack(state) if state else b"")
        state = checkpoint.unpack(packed)
    return dataset, state


def _make_directory(path: Path) -> None:
    """Make a directory for results before hours are spent on them."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"--record, --checkpoint: expected a directory {path}; got {error}; choose another"
        ) from error


def _train(
    run: Run,
    directory: Path | None,
    dataset: Dataset | None,
    state: checkpoint.State | None,
    stop: StopRequest,
    timed: dict[str, Any] | None,
) -> Result:
    config, comm, backend = run.config, run.comm, run.backend
    ranges = make_ranges(backend.synchronize if config.sync_ranges else None)
    terminal = None
    if comm.rank == 0 and dataset is not None:
        terminal = Terminal(config, len(Split(len(dataset.labels), config.batch_size)))

    def mark(session: Session) -> None:
        if session.why_no_graph and comm.rank == 0:
            _complain(f"--graph: not captured: {session.why_no_graph}")
        mark_config(config_mark(run, graph=config.graph and session.why_no_graph is None))
        if timed:
            leave_mark(timed)

    def save(state: checkpoint.State) -> None:
        assert directory is not None
        checkpoint.save(directory, state)

    try:
        return Session(
            config, comm, dataset, backend, ranges,
            observer=terminal, stop=stop, state=state, save=save if directory else None,
            mark=mark,
        ).run()  # fmt: skip
    finally:
        if terminal is not None:
            terminal.close()


def _finish(
    run: Run,
    arguments: argparse.Namespace,
    dataset: Dataset | None,
    result: Result,
    stop: StopRequest,
) -> int:
    """Verify, write the record and say how it ended, on rank 0; return everyone's exit code."""
    comm, code = run.comm, 0
    with comm.agreed():
        try:
            if comm.rank == 0:
                code = _conclude(run, arguments, dataset, result, stop)
        finally:
            comm.yielding_barrier()  # reached by all, also after a failure
    return int(comm.broadcast_bytes(str(code).encode()))


def _conclude(
    run: Run,
    arguments: argparse.Namespace,
    dataset: Dataset | None,
    result: Result,
    stop: StopRequest,
) -> int:
    config, verification, code = run.config, None, 0
    if result.stopped:
        _report_stopped(arguments, result, stop)
        code = EXIT_STOPPED
    elif config.evaluate_every == 0:
        last = result.epochs[-1]
        print(f"accuracy {last['precision_train']:.4f} train, {last['precision_test']:.4f} test")
    if config.verify is not None and not result.stopped:
        assert dataset is not None
        mpi.set_threads(mpi.Communicator(), config.threads)  # the other ranks rest
        verification = verify(config, dataset, result, stop=stop)
        code = _report_verification(verification)
    if arguments.record:
        record = run_record(run, result, verification)
        content = json.dumps(record, indent=1, allow_nan=False) + "\n"
        checkpoint.write_atomically(arguments.record, content.encode())
    return code


def _report_verification(report: dict[str, Any] | None) -> int:
    if report is None:
        _complain("stopped during --verify: nothing verified")
        return EXIT_STOPPED
    errors = ", ".join(f"{k} {v:.2g}" for k, v in report["max_relative_error"].items())
    print(f"verify: relative error {errors}; bound {report['bound']:g}")
    if report["passed"]:
        return 0
    _complain(f"--verify: {report['explanation']}")
    return EXIT_VERIFY


def _report_stopped(arguments: argparse.Namespace, result: Result, stop: StopRequest) -> None:
    saved = (
        f"saved in {arguments.checkpoint}; continue with --resume"
        if arguments.checkpoint
        else "nothing saved: there was no --checkpoint directory"
    )
    _complain(
        f"stopped by {stop.signal_name or 'a signal to another rank'} before epoch "
        f"{result.epoch + 1}, batch {result.batch + 1}: {saved}"
    )


if __name__ == "__main__":
    sys.exit(main())
