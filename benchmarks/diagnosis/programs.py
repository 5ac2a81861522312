"""MPI programs with a fault that is put in on purpose, or without one.

    mpirun -n 4 python -m benchmarks.diagnosis.programs PROGRAM [FAULT [RANK [SECONDS]]]

Each program computes something real: a plate's heat, a regression, a linear system, a Fourier
transform, a task farm, forces of particles, sorted numbers, pi. A step is paced: what is left of
the time of a phase passes asleep, so that it does not depend on the cores of the machine. A fault
is extra time of one phase on some ranks in some steps (`TIMED`), or another way to exchange
(`Net`). Prints the mean step of the slowest rank in seconds, without the first steps.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

import numpy as np
import nvtx

from benchmarks.diagnosis.faults import OTHER_WAYS, STEPS, TIMED, WARMUP

sys.setdlopenflags(os.RTLD_NOW | os.RTLD_GLOBAL)  # Nsight Systems looks MPI's functions up
from mpi4py import MPI  # noqa: E402

Floats = np.ndarray[Any, np.dtype[np.float64]]

PACE: Final = {"input": 0.0004, "compute": 0.0030, "update": 0.0003}
"""Seconds of the phases of a healthy step; the exchange takes what it takes."""
SIZE: Final = 256
"""Numbers that a rank exchanges with another."""
PIECES, TIMES = 64, 64
"""Messages in place of one, and bytes in place of one."""


def passing(seconds: float) -> None:
    """Let time pass, and the core to others."""
    end = time.perf_counter() + seconds
    while (left := end - time.perf_counter()) > 0:
        time.sleep(min(left, 0.0002))


class Net:
    """Exchanges between ranks, as a good program does them or in a worse way.

    Parameters
    ----------
    way : str
        Of `OTHER_WAYS`, else the good one.
    at : int
        The rank of the fault.
    seconds : float
    """

    def __init__(self, way: str, at: int, seconds: float) -> None:
        self.world, self.way, self.at, self.seconds = MPI.COMM_WORLD, way, at, seconds
        self.rank, self.size = self.world.rank, self.world.size

    def _finish(self, requests: list[MPI.Request]) -> None:
        if self.way == "polling":
            while not MPI.Request.Testall(requests):
                time.sleep(0.0001)
        else:
            MPI.Request.Waitall(requests)

    def sum(self, values: Floats) -> Floats:
        """Return the sum over all ranks."""
        total = np.empty_like(values)
        if self.way == "barriers":
            self.world.Barrier()
        if self.way == "many_collectives":
            for i in range(len(values)):
                self.world.Allreduce(values[i : i + 1], total[i : i + 1])
        elif self.way == "serial_root":
            parts = np.empty((self.size, len(values))) if self.rank == 0 else None
            self.world.Gather(values, parts)
            if parts is not None:
                total[:] = parts.sum(axis=0)
                passing(self.seconds)
            self.world.Bcast(total)
        elif self.way == "polling":
            self._finish([self.world.Iallreduce(values, total)])
        else:
            self.world.Allreduce(values, total)
        return total

    def neighbours(self, values: Floats) -> tuple[Floats, Floats]:
        """Send values to both neighbours of a ring, and return theirs."""
        left, right = (self.rank - 1) % self.size, (self.rank + 1) % self.size
        values = np.tile(values, TIMES * TIMES) if self.way == "large_messages" else values
        a, b = np.empty_like(values), np.empty_like(values)
        if self.way == "barriers":
            self.world.Barrier()
        if self.way == "slow_link" and self.rank == self.at:
            passing(self.seconds)
        if self.way == "in_order":  # each rank sends on when it has what is before it
            if self.rank:
                self.world.Recv(a, left)
            passing(self.seconds / self.size)
            if right:
                self.world.Ssend(values, right)
            self.world.Sendrecv(values, left, 1, b, right, 1)
            a = b if self.rank == 0 else a
        elif self.way == "small_messages":
            pieces = zip(*(np.array_split(x, PIECES) for x in (values, a, b)), strict=True)
            for own, one, other in pieces:
                self.world.Sendrecv(own, right, 0, one, left, 0)
                self.world.Sendrecv(own, left, 1, other, right, 1)
        else:
            requests = [self.world.Irecv(a, left, 0), self.world.Irecv(b, right, 1)]
            requests += [self.world.Isend(values, right, 0), self.world.Isend(values, left, 1)]
            self._finish(requests)
        return a[:SIZE], b[:SIZE]

    def transpose(self, values: Floats) -> Floats:
        """Send the n-th block of values to rank n, and return the blocks of all ranks for this."""
        values = np.tile(values, (1, TIMES * 16)) if self.way == "large_messages" else values
        found = np.empty_like(values)
        if self.way == "barriers":
            self.world.Barrier()
        if self.way == "slow_link" and self.rank == self.at:
            passing(self.seconds)
        if self.way == "small_messages":
            for i in range(PIECES):
                piece = np.ascontiguousarray(values[:, i::PIECES])
                part = np.empty_like(piece)
                self.world.Alltoall(piece, part)
                found[:, i::PIECES] = part
        elif self.way == "polling":
            self._finish([self.world.Ialltoall(values, found)])
        else:
            self.world.Alltoall(values, found)
        return np.ascontiguousarray(found[:, :SIZE])


class Program:
    """What a program holds and does; `compute` before `exchange`."""

    def __init__(self, net: Net) -> None:
        self.net, self.draws = net, np.random.default_rng(net.rank)
        self.values = self.draws.random(SIZE)

    def read(self, step: int) -> None:
        """Take the inputs of a step."""
        self.values += 1e-6 * self.draws.random(SIZE)

    def compute(self) -> None:
        """Do what needs no other rank."""
        self.values = np.sqrt(self.values**2 + 1e-9)

    def exchange(self, step: int) -> None:
        """Do what needs others."""
        raise NotImplementedError


class Heat(Program):
    """The temperature of a plate that is cut into strips, by Jacobi's iteration."""

    def exchange(self, step: int) -> None:
        """Average with the edges of the neighbours; measure the change in every fifth step."""
        upper, lower = self.net.neighbours(self.values)
        self.values = (upper + lower + 2 * self.values) / 4
        if step % 5 == 4 or self.net.way in ("many_collectives", "serial_root"):
            self.net.sum(self.values)


class Regression(Program):
    """Weights of a logistic regression by gradient descent, data-parallel."""

    def compute(self) -> None:
        """Make the gradient of own samples."""
        inputs = self.draws.random((64, SIZE))
        chance = 1 / (1 + np.exp(-inputs @ self.values))
        self.gradient = inputs.T @ (chance - 0.5) / 64

    def exchange(self, step: int) -> None:
        """Add up gradients."""
        self.values = self.values - 0.1 * self.net.sum(self.gradient) / self.net.size


class Conjugate(Program):
    """A linear system by conjugate gradients: neighbours, and two sums a step."""

    def exchange(self, step: int) -> None:
        """Multiply by the matrix, and orthogonalize."""
        left, right = self.net.neighbours(self.values)
        product = 2.1 * self.values - 0.5 * (left + right)
        for other in (product, self.values):
            self.net.sum(self.values * other)


class Fourier(Program):
    """A Fourier transform in two dimensions: two transpositions a step."""

    def exchange(self, step: int) -> None:
        """Transform rows, transpose, transform columns, transpose back."""
        rows = np.abs(np.fft.fft(np.tile(self.values, (self.net.size, 1)), axis=1))
        columns = np.abs(np.fft.fft(self.net.transpose(rows), axis=1))
        self.values = self.net.transpose(columns)[0] % 1.0


class Farm(Program):
    """Tasks that rank 0 hands out, and whose results it gathers."""

    def read(self, step: int) -> None:
        """Take new tasks, on rank 0."""
        if self.net.rank == 0:
            self.values = self.draws.random(SIZE)

    def exchange(self, step: int) -> None:
        """Gather results at rank 0, and hand out the next tasks."""
        world = self.net.world
        if self.net.way == "barriers":
            world.Barrier()
        results = np.empty((self.net.size, SIZE)) if self.net.rank == 0 else None
        world.Gather(self.values, results)
        if self.net.way == "serial_root" and results is not None:
            passing(self.net.seconds)
        world.Bcast(self.values)


class Particles(Program):
    """Forces between particles, which go round a ring of ranks."""

    def exchange(self, step: int) -> None:
        """Add the forces of the particles of each rank in turn."""
        others = self.values
        for _ in range(self.net.size - 1):
            others = self.net.neighbours(others)[0]
            self.values = self.values + 1e-3 * np.tanh(others - self.values)


class Sort(Program):
    """Numbers sorted by samples: splitters of all ranks, then a block for each."""

    def exchange(self, step: int) -> None:
        """Agree on splitters, exchange blocks, sort."""
        splitters = np.empty(self.net.size * 8)
        self.net.world.Allgather(np.sort(self.values)[:: SIZE // 8].copy(), splitters)
        blocks = self.net.transpose(np.tile(self.values, (self.net.size, 1)))
        self.values = np.sort(blocks[:, :: self.net.size].ravel())[:SIZE]


class Pi(Program):
    """Pi by random points: one sum a step."""

    def exchange(self, step: int) -> None:
        """Add up hits."""
        points = self.draws.random((SIZE, 2))
        self.net.sum(((points**2).sum(axis=1) < 1).astype(np.float64))


PROGRAMS: Final[dict[str, type[Program]]] = {
    "heat": Heat, "regression": Regression, "conjugate": Conjugate, "fourier": Fourier,
    "farm": Farm, "particles": Particles, "sort": Sort, "pi": Pi,
}  # fmt: skip


def run(program: Program, fault: str, at: int, seconds: float) -> float:
    """Run all steps; return the mean one of the slowest rank in seconds, without the warm-up."""
    net = program.net
    slow_phase, extra = TIMED.get(fault, ("", lambda r, s, p, at: 0.0))
    named = fault != "unnamed"

    def phase(name: str, step: int) -> AbstractContextManager[object]:
        return nvtx.annotate(f"step {step}" if name == "step" else name) if named else nullcontext()

    def spend(name: str, step: int, work: Callable[[], None] | None) -> None:
        more = seconds * extra(net.rank, step, net.size, at) if name == slow_phase else 0.0
        if work is None and not more:
            return
        with phase(name, step):
            begin = time.perf_counter()
            if work is not None:
                work()
            passing(PACE.get(name, 0.0) + more - (time.perf_counter() - begin))

    net.world.Barrier()
    for step in range(STEPS):
        if step == WARMUP:
            begin = time.perf_counter()
        with phase("step", step):
            spend("input", step, lambda step=step: program.read(step))  # type: ignore[misc]
            if fault == "passed_on" and net.rank == (at + 1) % net.size:
                with phase("input", step):
                    net.world.recv(source=at, tag=9)
            spend("compute", step, program.compute)
            if fault == "passed_on" and net.rank == at:
                net.world.send(step, (at + 1) % net.size, 9)
            spend("log", step, None)
            with phase("exchange", step):
                program.exchange(step)
            spend("update", step, lambda: None)
            spend("validation", step, None)
            spend("checkpoint", step, None)
    mean = (time.perf_counter() - begin) / (STEPS - WARMUP)
    return float(net.world.allreduce(mean, MPI.MAX))


def main(name: str, fault: str = "healthy", at: str = "0", seconds: str = "0") -> None:
    """Run a program, and print its step."""
    way = fault if fault in OTHER_WAYS else ""
    program = PROGRAMS[name](Net(way, int(at), float(seconds)))
    mean = run(program, fault, int(at), float(seconds))
    if program.net.rank == 0:
        print(mean)


if __name__ == "__main__":
    main(*sys.argv[1:])
