"""The nest of loops that a generated program runs: operations, sequences, loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from perfmodel.base.arrays import Floats, Int32, Int64

KERNEL, MEMCPY, MEMSET, MPI = 0, 1, 2, 4
"""Kinds of operations; those of the GPU are numbered as in `perfmodel.readers.trace`."""
TO_GPU, TO_HOST, ON_GPU = 1, 2, 8
"""Kinds of copies, as CUPTI numbers them."""
MAIN_STREAM: Final = 7
COPY_STREAM: Final = 13
NCCL_STREAM: Final = 20
APART: Final = 2
"""Threads from this number on run beside the main thread; lower ones run in turn with it."""
SIZES: Final = 3
"""Number of names of a kernel that has another name at small, usual and large sizes."""
RANGE: Final = "range:"
"""A level whose name begins so is recorded as an NVTX range."""


@dataclass(frozen=True, eq=False, slots=True)
class Op:
    """One operation of the GPU, or one MPI call, as a template.

    Attributes
    ----------
    names : tuple of str
        Name of the kernel or MPI call; libraries choose another name where the size is below half,
        or above double of the usual one, if three names are given.
    kind, copy_kind : int
        Of an MPI call, `copy_kind` is its source as in `perfmodel.readers.trace.MPI_SOURCES`.
    us, sigma : float
        Median time on the GPU (of an MPI call: of the call), and the standard deviation of its
        logarithm.
    grid, bytes : int
    host_us, pause_us : float
        Host time of the launch with what the framework does for it; further work before it.
    stream, thread : int
        Of an MPI call, `stream` is the other rank. Thread 1 is the one that runs backward passes.
    waits : bool
        The host waits for the operation's end.
    joins : bool
        The operation begins after all earlier operations of other streams.
    meets : bool
        A collective operation: it ends on all processes at once.
    """

    names: tuple[str, ...]
    kind: int = KERNEL
    copy_kind: int = -1
    us: float = 5.0
    sigma: float = 0.03
    grid: int = 1
    bytes: int = 0
    host_us: float = 6.0
    pause_us: float = 0.0
    stream: int = MAIN_STREAM
    thread: int = 0
    waits: bool = False
    joins: bool = False
    meets: bool = False

    def but(self, **changes: object) -> Op:
        """Return another operation with some attributes changed."""
        return replace(self, **changes)  # type: ignore[arg-type]


@dataclass(frozen=True, eq=False, slots=True)
class Seq:
    """Nodes one after the other."""

    nodes: tuple[Node, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Loop:
    """Instances of a level, each with its own body; a body may stand more than once."""

    level: str
    bodies: tuple[Node, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Sized:
    """A body on other data: times, grids and bytes are multiplied by `factor`."""

    body: Node
    factor: float


Node = Op | Seq | Loop | Sized


def ranged(name: str, body: Node) -> Loop:
    """Return a body that the program puts into an NVTX range."""
    return Loop(RANGE + name, (body,))


def seq(*nodes: Node | Sequence[Node] | None) -> Seq:
    """Put nodes and lists of nodes one after the other; None is left out."""
    flat: list[Node] = []
    for node in nodes:
        if isinstance(node, Op | Seq | Loop | Sized):
            flat.append(node)
        elif node is not None:
            flat += node
    return Seq(tuple(flat))


def loop(level: str, bodies: Sequence[Node]) -> Loop:
    """Return a loop over bodies."""
    return Loop(level, tuple(bodies))


@dataclass(frozen=True, eq=False)
class Flat:
    """A node's operations in order, and the instances of levels inside.

    Attributes
    ----------
    op : int32, shape (n,)
        Index into `Flattened.ops`.
    factor : float, shape (n,)
    levels : dict of str to int64, shape (instances, 2)
        First operation of each instance, and the operation after its last.
    """

    op: Int32
    factor: Floats
    levels: dict[str, Int64]


@dataclass(frozen=True)
class Flattener:
    """Flattens nodes; a node that stands in several places is flattened once."""

    ops: list[Op] = field(default_factory=list)
    _codes: dict[int, int] = field(default_factory=dict)
    _done: dict[int, Flat] = field(default_factory=dict)

    def flat(self, node: Node) -> Flat:
        """Return the operations of a node."""
        if id(node) not in self._done:
            self._done[id(node)] = self._flatten(node)
        return self._done[id(node)]

    def _flatten(self, node: Node) -> Flat:
        if isinstance(node, Op):
            code = self._codes.setdefault(id(node), len(self.ops))
            if code == len(self.ops):
                self.ops.append(node)
            return Flat(np.array([code], np.int32), np.ones(1), {})
        if isinstance(node, Sized):
            inner = self.flat(node.body)
            return Flat(inner.op, inner.factor * node.factor, inner.levels)
        parts = [self.flat(n) for n in (node.nodes if isinstance(node, Seq) else node.bodies)]
        at = np.cumsum([0, *(len(part.op) for part in parts)])
        levels: dict[str, list[Int64]] = {}
        for part, offset in zip(parts, at, strict=False):
            for level, spans in part.levels.items():
                levels.setdefault(level, []).append(spans + offset)
        joined = {level: np.concatenate(spans) for level, spans in levels.items()}
        if isinstance(node, Loop):
            own = np.stack([at[:-1], at[1:]], axis=1)
            own = own[own[:, 0] < own[:, 1]]  # an instance without operations cannot be seen
            inner = [joined[node.level]] if node.level in joined else []
            joined[node.level] = np.concatenate([*inner, own])
        if not parts:
            return Flat(np.empty(0, np.int32), np.empty(0), joined)
        return Flat(
            np.concatenate([part.op for part in parts]),
            np.concatenate([part.factor for part in parts]),
            joined,
        )


def renamed(node: Node, rename: Callable[[Op], Op]) -> Node:
    """Return a node with other operations; one that stands in several places still does."""
    done: dict[int, Node] = {}

    def of(one: Node) -> Node:
        if id(one) not in done:
            if isinstance(one, Op):
                done[id(one)] = rename(one)
            elif isinstance(one, Sized):
                done[id(one)] = Sized(of(one.body), one.factor)
            elif isinstance(one, Seq):
                done[id(one)] = Seq(tuple(of(n) for n in one.nodes))
            else:
                done[id(one)] = Loop(one.level, tuple(of(n) for n in one.bodies))
        return done[id(one)]

    return of(node)
