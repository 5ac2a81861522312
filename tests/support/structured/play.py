"""Runs the operations of a generated program on a host and a GPU per process: times of each."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from .tree import APART, MPI, Flat, Op

if TYPE_CHECKING:
    from perfmodel.base.arrays import Floats, Int64

_QUEUE: Final = 1024
"""Launches that the driver queues; the host waits with further ones."""
_LATENCY_US: Final = 1.5
_GAP_US: Final = 0.9
"""From the end of an operation to the begin of the next one on its stream."""
_RETURN_US: Final = 4.0
"""From the end of an operation to the return of the call that waits for it."""
_HICCUP: Final = 0.0007
"""Share of launches before which the host does something else."""
_JOINS, _MEETS, _WAITS, _MPI, _APART = 1, 2, 4, 8, 16


@dataclass(frozen=True, eq=False)
class Times:
    """Times of the operations of one process, in ns; -1 in `wait_ns` where no call waits.

    `wait_ns` has shape (n, 2): begin and end of the call that waits for the operation.
    """

    launch_ns: Int64
    launched_ns: Int64
    start_ns: Int64
    end_ns: Int64
    wait_ns: Int64


def play(flats: Sequence[Flat], ops: Sequence[Op], seed: int) -> list[Times]:
    """Run all processes; collective operations end at once on all of them."""
    random = np.random.default_rng(seed)
    tables = [_drawn(flat, ops, random) for flat in flats]
    found: list[Times | None] = [None] * len(flats)
    running = {i: _run(*table) for i, table in enumerate(tables)}
    answers: dict[int, float | None] = dict.fromkeys(running)
    while running:
        ready: dict[int, float] = {}
        for i in list(running):
            try:
                ready[i] = running[i].send(answers[i])
            except StopIteration as stop:
                found[i] = stop.value
                del running[i]
        last = max(ready.values(), default=0.0)
        answers = dict.fromkeys(ready, last)
    return [times for times in found if times is not None]


_Table = tuple[list[float], list[float], list[float], list[int], list[int], float]


def _drawn(flat: Flat, ops: Sequence[Op], random: np.random.Generator) -> _Table:
    """Draw the host's and the GPU's time of every operation."""

    def column(name: str) -> Floats:
        return np.array([getattr(op, name) for op in ops], dtype=float)[flat.op]

    n = len(flat.op)
    us = column("us") * flat.factor * np.exp(column("sigma") * random.standard_normal(n))
    host = column("host_us") * np.exp(0.12 * random.standard_normal(n))
    pause = column("pause_us") * np.exp(0.1 * random.standard_normal(n))
    pause += np.where(random.random(n) < _HICCUP, random.exponential(150, n), 0)
    flags = [
        _JOINS * op.joins
        | _MEETS * op.meets
        | _WAITS * op.waits
        | _MPI * (op.kind == MPI)
        | _APART * (op.thread >= APART)
        for op in ops
    ]
    streams = np.array([op.stream for op in ops])[flat.op]
    return (
        (pause + 0.6 * host).tolist(),
        (0.4 * host).tolist(),
        np.maximum(us, 0.9).tolist(),
        streams.tolist(),
        np.array(flags)[flat.op].tolist(),
        float(1000 * random.random()),
    )


def _run(
    gap: list[float],
    call: list[float],
    us: list[float],
    stream: list[int],
    flags: list[int],
    t: float,
) -> Generator[float, float | None, Times]:
    """Run one process; yields when it is ready for a collective, and is sent when all are."""
    launch, launched, start, end = [], [], [], []
    waits: list[tuple[int, float, float]] = []
    free = dict.fromkeys(stream, 0.0)
    main = apart = t
    for i, flag in enumerate(flags):
        t = (max(main, apart) if flag & _APART else main) + gap[i]
        if i >= _QUEUE and start[i - _QUEUE] > t:
            t = start[i - _QUEUE]
        launch.append(t)
        if flag & _MPI:
            done = t + us[i]
            if flag & _MEETS:
                answer = yield t
                done = max(t, answer or 0.0) + us[i]
            start.append(t)
            end.append(done)
            launched.append(done)
            main = done
            continue
        t += call[i]
        launched.append(t)
        at = t + _LATENCY_US
        own = stream[i]
        if free[own] > at:
            at = free[own]
        if flag & _JOINS:
            at = max(at, *free.values())
        done = at + us[i]
        if flag & _MEETS:
            answer = yield at
            done = max(at, answer or 0.0) + us[i]
        start.append(at)
        end.append(done)
        free[own] = done + _GAP_US
        if flag & _WAITS:
            t += 1.0
            returned = max(t, done) + _RETURN_US
            waits.append((i, t, returned))
            t = returned
        if flag & _APART:
            apart = t
        else:
            main = t
    wait_ns = np.full((len(start), 2), -1, np.int64)
    for i, began, returned in waits:
        wait_ns[i] = _ns([began, returned])
    return Times(_ns(launch), _ns(launched), _ns(start), _ns(end), wait_ns)


def _ns(us: list[float]) -> Int64:
    return np.floor(np.array(us, dtype=float) * 1000).astype(np.int64)
