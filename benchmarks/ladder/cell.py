"""One cell of the ladder: implementations are made, checked, visited in turns, and get a row."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import math
import os
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from benchmarks.ladder.configurations import MATHS
from benchmarks.ladder.floor import Sizes, terms
from benchmarks.ladder.rows import best_peer, make_row
from trainer.backends.choice import choose
from trainer.backends.numpy import NumpyBackend
from trainer.checkpoint import State
from trainer.config import Config
from trainer.data import Dataset
from trainer.errors import DeviceError, TrainerError
from trainer.mpi import Communicator, set_threads
from trainer.networks.base import Network
from trainer.parameters import Tensors
from trainer.steps.batches import Split
from trainer.train import Session

FEWEST_ROUNDS: Final = 5
LONGEST_VISIT_S: Final = 0.25
UNTIMED: Final = 3
BOUNDS: Final = {"fp32": 3e-5, "tf32": 5e-3}
"""Of the error relative to the way gone: 21 batches of H = 512, B = 3000 err by 4e-6 in float32,
and by 7e-4 with factors rounded to TF32; without regularization one errs by 1e-4."""


class Clock:
    """Says on rank 0 what is done and when; ends the process when a phase is stuck.

    Collectives that wait for a rank that failed wait for ever: after `patience_s` without a word,
    every thread's stack is shown and the process exits, which ends the other ranks.
    """

    def __init__(self, comm: Communicator, patience_s: float) -> None:
        self._comm, self._patience_s = comm, patience_s
        self._started = self._last = time.perf_counter()
        faulthandler.dump_traceback_later(patience_s, exit=True)

    def say(self, words: object) -> None:
        """Print one line with the time since the start and since the last line."""
        now = time.perf_counter()
        if self._comm.rank == 0:
            print(f"[{now - self._started:7.1f} s, +{now - self._last:5.1f}] {words}", flush=True)
        self._last = now
        faulthandler.dump_traceback_later(self._patience_s, exit=True)

    def close(self) -> None:
        """Stop watching."""
        faulthandler.cancel_dump_traceback_later()


@dataclass
class Entry:
    """One implementation in one cell, and what became of it."""

    name: str
    kind: str
    text: str
    make: Callable[[], Any]
    place: int
    parallel: str = "data"
    graph: bool = False
    compiled: bool = False
    math: str | None = None
    made: Any = None
    reason: str | None = None
    error: float | None = None
    prepare_s: float | None = None
    batches: int = 0
    seconds: list[float] = field(default_factory=list)

    @property
    def alive(self) -> bool:
        """Whether it can be timed."""
        return self.made is not None

    def close(self) -> None:
        """Let go of it."""
        made, self.made = self.made, None
        with contextlib.suppress(Exception):  # it may be what failed
            getattr(made, "close", lambda: None)()


def attempt(comm: Communicator, action: Callable[[], Any]) -> str | None:
    """Run something on every rank; if it fails on any, return the lowest failing rank's words."""
    words = None
    try:
        action()
    except Exception as error:  # whatever it is belongs into the row
        known = isinstance(error, TrainerError)
        words = str(error) if known else f"{type(error).__name__}: {error}"
    first = comm.size - int(comm.largest(0 if words is None else comm.size - comm.rank))
    if first == comm.size:
        return None
    return comm.broadcast_bytes((words or "").encode(), first).decode().strip()[:500]


def time_cell(
    cell: Any, options: Any, comm: Communicator, clock: Clock, data: Any, torch: tuple[Any, Any],
    ceilings: Any,
) -> list[dict[str, Any]]:  # fmt: skip
    """Return a row for every rung and peer (collective)."""
    time.sleep(0.3)  # NCCL's watchdogs have let go of the last collectives: captures follow
    reference = options.references.get((cell.hidden, cell.batch))
    if reference is None:
        reference = Reference.compute(cell.config({"math": "ieee"}), data, comm)
        options.references = {(cell.hidden, cell.batch): reference}  # the last size's only
    clock.say(f"{cell}: reference of {reference.steps} batches")
    entries = _ours(cell, options, comm, data) + _peers(cell, options, comm, data, torch, reference)
    for entry in entries:
        if entry.reason is None:
            _prepare(entry, cell, options, comm, reference)
            clock.say(f"{cell}: {entry.name}: {entry.reason or f'ready, error {entry.error:.1e}'}")
    _rounds([e for e in entries if e.alive], cell, options, comm, clock)
    rows = _rows(entries, cell, comm, ceilings)
    for entry in entries:
        entry.close()
    _free()
    clock.say(f"{cell}: done")
    if comm.rank == 0:
        _show(rows)
    return rows


def _ours(cell: Any, options: Any, comm: Communicator, data: Any) -> list[Entry]:
    entries = []
    for place, rung in cell.rungs:
        if rung.name not in options.rungs:
            continue

        def make(settings: dict[str, Any] = rung.settings) -> Session:
            config = cell.config(settings)
            config.check_ranks(comm.size)
            return Session(config, comm, data, choose(config, comm.local_rank))

        parallel = str(rung.settings.get("parallel", "data"))
        math = str(rung.settings.get("math", cell.math))
        entry = Entry(rung.name, "rung", rung.change, make, place, parallel, math=math)
        low, high = rung.ranks
        if not low <= comm.size <= high:
            entry.reason = f"expected {'one rank' if high == 1 else f'at least {low} ranks'}"
        entries.append(entry)
    return entries


def _peers(
    cell: Any, options: Any, comm: Communicator, data: Any, torch: tuple[Any, Any],
    reference: Reference,
) -> list[Entry]:  # fmt: skip
    peers, device = torch
    if peers is None:
        why = "expected the package torch; got none"
        return [
            Entry(f"torch {name}", "peer", "", lambda: None, place, reason=why)
            for place, name in enumerate(options.peers)
        ]
    from benchmarks.ladder.torch_graphs import kinds

    problem = peers.Problem.make(cell.config(), data, reference.initial, comm, device)
    entries = []
    for place, name in enumerate(options.peers):
        kind = kinds()[name]
        entry = Entry(
            f"torch {name}", "peer", kind.text,
            lambda kind=kind: kind.make(problem, cell.math),
            place, graph=kind.graph, compiled=kind.compiled,
        )  # fmt: skip
        if comm.size < kind.ranks:
            entry.reason = f"expected at least {kind.ranks} ranks"
        entries.append(entry)
    return entries


def _prepare(
    entry: Entry, cell: Any, options: Any, comm: Communicator, reference: Reference
) -> None:
    """Make it, compare its parameters, and let it do another epoch, so that nothing is new."""
    if entry.compiled and options.compile_budget_s <= 0:
        entry.reason = "the time for torch.compile is spent (--compile-budget)"
        return
    started = time.perf_counter()

    def make() -> None:
        entry.made = entry.make()
        entry.made.prepare()

    def run() -> None:
        why = getattr(entry.made, "why_no_graph", None)
        if why:
            raise TrainerError(f"not captured as a graph: {why}")
        entry.made.run_batches(reference.steps)
        entry.made.synchronize()
        error = reference.error(entry.made.parameters())
        entry.error = comm.largest(-1.0 if error is None else error)
        entry.made.run_batches(reference.steps)
        entry.made.synchronize()

    reason = attempt(comm, make) or attempt(comm, run)
    entry.prepare_s = comm.largest(time.perf_counter() - started)
    if entry.compiled:
        options.compile_budget_s -= entry.prepare_s
    if reason is not None:
        entry.reason = reason
        entry.close()
    elif entry.error is not None and not entry.error <= BOUNDS[cell.math]:
        entry.reason = (
            f"parameters differ from the reference by {entry.error:.1e} of the way gone: expected "
            f"at most {BOUNDS[cell.math]:g}"
        )


def _visit(entry: Entry, batches: int, comm: Communicator) -> float:
    """Return the slowest rank's seconds for so many batches."""
    made = entry.made
    made.run_batches(max(UNTIMED, batches // 10))
    made.synchronize()
    comm.barrier()
    started = time.perf_counter()
    made.run_batches(batches)
    made.synchronize()
    return comm.largest(time.perf_counter() - started)


def _rounds(
    entries: list[Entry], cell: Any, options: Any, comm: Communicator, clock: Clock
) -> None:
    """Visit all in another order each round, the same on all ranks."""
    for entry in entries:
        batches, seconds = 4, _visit(entry, 4, comm)
        if seconds < options.visit_s / 4:
            batches, seconds = 40, _visit(entry, 40, comm)
        entry.batches = batches_of_visit(seconds / batches, options.visit_s, options.least)
    clock.say(f"{cell}: {len(entries)} implementations to time")
    order, shuffle = list(entries), random.Random(f"{cell}")
    started = time.perf_counter()
    gc.collect()
    gc.disable()
    try:
        for done in range(options.rounds):
            if done >= FEWEST_ROUNDS and comm.any(time.perf_counter() - started > options.budget_s):
                break
            shuffle.shuffle(order)
            for entry in order:
                entry.seconds.append(_visit(entry, entry.batches, comm) / entry.batches)
            clock.say(f"{cell}: round {done + 1} of {options.rounds}")
    finally:
        gc.enable()


def batches_of_visit(batch_s: float, visit_s: float, least: int) -> int:
    """Return how many batches fill a visit: `least` at least, unless they take too long."""
    wanted = max(least, math.ceil(visit_s / batch_s))
    if wanted * batch_s > max(visit_s, LONGEST_VISIT_S):
        wanted = max(5, int(LONGEST_VISIT_S / batch_s))
    return wanted


def _rows(
    entries: list[Entry], cell: Any, comm: Communicator, ceilings: Any
) -> list[dict[str, Any]]:
    """Make the rows (collective: the floor's all-reduces are measured here)."""
    bound = BOUNDS[cell.math]
    times = {e.name: e.seconds for e in entries}
    sound = [e.name for e in entries if e.graph and e.reason is None]
    best = best_peer(times, sound)
    floors: dict[Any, Any] = dict.fromkeys((e.parallel, e.math or cell.math) for e in entries)
    at_shapes = None
    if ceilings is not None:
        for parallel, math in floors:
            sizes = Sizes.of(cell, comm.size, parallel)
            floors[parallel, math] = terms(sizes, ceilings, math, parallel, comm.size, sizes.images)
        at_shapes = ceilings.products(Sizes.of(cell, comm.size, "data").shapes(), cell.math)
    rows = []
    for entry in entries:
        about = {
            "rung": entry.name, "H": cell.hidden, "B": cell.batch, "p": comm.size,
            "dtype": cell.math, "math": MATHS[entry.math or cell.math],
            "kind": entry.kind, "place": entry.place,
            "text": entry.text, "parallel": entry.parallel, "whole_graph": entry.graph,
            "D": cell.inputs, "C": cell.classes, "images": cell.images,
            "error": entry.error, "error_bound": bound,
            "valid": entry.error is not None and entry.error <= bound, "reason": entry.reason,
            "batches_per_visit": entry.batches or None, "prepare_s": entry.prepare_s,
            "gemms_at_shapes_s": at_shapes if entry.parallel == "data" else None,
        }  # fmt: skip
        peer = None if best is None else (best, times[best])
        floor = floors[entry.parallel, entry.math or cell.math]
        rows.append(make_row(about, entry.seconds, peer, floor))
    return rows


def _free() -> None:
    """Give back graphs first, then memory, of all libraries."""
    gc.collect()
    if "torch" in sys.modules:
        torch = sys.modules["torch"]
        if "torch._dynamo" in sys.modules:
            torch._dynamo.reset()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
    if "cupy" in sys.modules:
        cupy = sys.modules["cupy"]
        cupy.get_default_memory_pool().free_all_blocks()
        cupy.get_default_pinned_memory_pool().free_all_blocks()


def _show(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        if row["median_s"] is None:
            print(f"    {row['rung']:22} not timed: {(row['reason'] or '')[:90]}")
            continue
        ratio = "" if row["ratio"] is None else f" {row['ratio']:8.3f} of {row['peer']}"
        times = row["median_s"] / row["floor_s"] if row["floor_s"] else None
        floor = f" {times:7.2f} of the floor" if times else ""
        wrong = "" if row["valid"] else f"  INVALID: {row['reason']}"
        print(f"    {row['rung']:22} {1e6 * row['median_s']:9.1f} us{ratio}{floor}{wrong}")
    sys.stdout.flush()


# --- whether an implementation computes what it should


@dataclass(frozen=True)
class Reference:
    """Where training starts, and where it should be after so many batches.

    Attributes
    ----------
    initial, final : float64, shape (n,)
        W1, b1, W2, b2; final is None on all ranks but 0.
    """

    config: Config
    steps: int
    initial: np.ndarray
    final: np.ndarray | None

    @classmethod
    def compute(cls, config: Config, data: Dataset, comm: Communicator) -> Reference:
        """Train one epoch and a batch in float64 on rank 0, on the cores of all (collective)."""
        split = Split(len(data.labels), config.batch_size)
        steps = len(split) + 1
        sizes = (config.input_size, config.hidden_size, config.num_classes)
        # what float32 implementations start from
        initial = Network.initial(config.seed, *sizes).astype(np.float32).astype(np.float64)
        final = None
        with contextlib.suppress(DeviceError):  # no threadpoolctl: as many threads as before
            set_threads(comm, len(os.sched_getaffinity(0)) if comm.rank == 0 else 1)
        with comm.agreed():
            try:
                if comm.rank == 0:
                    final = _train(config, data, split, initial, steps)
            finally:
                comm.yielding_barrier()
        set_threads(comm, 0)
        return cls(config, steps, initial, final)

    def error(self, found: np.ndarray) -> float | None:
        """Return the largest over the four tensors of |found - wanted| / |wanted - initial|.

        Euclidean norms; None where the reference is not.
        """
        if self.final is None:
            return None
        c = self.config
        parts = [
            Tensors.split(flat, c.input_size, c.hidden_size, c.num_classes).named()
            for flat in (np.asarray(found, np.float64), self.final, self.initial)
        ]
        norm = np.linalg.norm
        errors = [
            float(norm(parts[0][name] - wanted) / norm(wanted - parts[2][name]))
            for name, wanted in parts[1].items()
        ]
        return max(errors) if np.all(np.isfinite(errors)) else float("inf")


def _train(
    config: Config, data: Dataset, split: Split, initial: np.ndarray, steps: int
) -> np.ndarray:
    """Return the parameters after `steps` batches of the trainer's NumPy in float64."""
    alone = config.with_(dtype="float64", backend="numpy", transport="none", data_on=None)
    start = State(initial, 0, 0, np.zeros(len(split)), {}, "", 1, "numpy")
    session = Session(alone, Communicator(), data, NumpyBackend(), state=start)
    session.prepare()
    session.run_batches(steps)
    return session.parameters()
