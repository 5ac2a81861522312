"""A generated program: its operations as columns, and the truth about its loops."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from .play import Times, play
from .tree import APART, MEMCPY, MEMSET, MPI, RANGE, SIZES, Flat, Flattener, Node, Op

if TYPE_CHECKING:
    from pathlib import Path

    from perfmodel.base.arrays import Floats, Int8, Int32, Int64
    from perfmodel.readers.trace import Trace


@dataclass(frozen=True, eq=False)
class Instances:
    """Instances of one level of loops in one process, in order.

    Attributes
    ----------
    first, end : int64, shape (n,)
        First operation, counted from the process's first, and the operation after the last.
    start_ns : int64, shape (n,)
        Host time at which the main thread launches the first operation.
    """

    first: Int64
    end: Int64
    start_ns: Int64

    def __len__(self) -> int:
        return len(self.first)


@dataclass(frozen=True, eq=False)
class Truth:
    """What the author of a program would say about its loops.

    Attributes
    ----------
    step : str
        The level that a practitioner calls the step.
    levels : dict of str to tuple of Instances
        Instances of each level (epoch, step, micro_batch, layer, ...), by process.
    also : dict of str to str
        Other levels that an expert would accept as the step, with the reason.
    steps : int
        Number of steps in the recording; of a cut recording, of the whole ones.
    answers : frozenset of int
        All counts that are right.
    """

    step: str
    levels: Mapping[str, tuple[Instances, ...]]
    also: Mapping[str, str]
    steps: int
    answers: frozenset[int]

    @property
    def one(self) -> bool:
        """Whether the recording holds one step only."""
        return self.steps == 1


@dataclass(frozen=True, eq=False)
class Operations:
    """Operations of all processes: those of process 0 in order of launch, then of process 1, ...

    Attributes
    ----------
    process, stream, thread : int32, shape (n,)
        Of an MPI call, `stream` is the other rank.
    kind, copy_kind : int8, shape (n,)
        As in `support.structured.tree`; `copy_kind` is -1 where there is none.
    code : int32, shape (n,)
        Index into `names`.
    names : tuple of str
        Names of kernels and MPI calls; copies and sets have the name ''.
    bytes, grid : int64, shape (n,)
        0 where they do not apply.
    launch_ns, launched_ns : int64, shape (n,)
        Host time, begin and end of the call that launches it.
    start_ns, end_ns : int64, shape (n,)
        Time on the GPU; of MPI calls, on the host.
    wait_ns : int64, shape (n, 2)
        Begin and end of the host's call that waits for the operation, or -1.
    """

    process: Int32
    stream: Int32
    thread: Int32
    kind: Int8
    copy_kind: Int8
    code: Int32
    names: tuple[str, ...]
    bytes: Int64
    grid: Int64
    launch_ns: Int64
    launched_ns: Int64
    start_ns: Int64
    end_ns: Int64
    wait_ns: Int64

    def __len__(self) -> int:
        return len(self.process)

    @property
    def processes(self) -> int:
        """Number of processes."""
        return int(self.process[-1]) + 1

    @property
    def uses_gpu(self) -> bool:
        """Whether any operation is one of the GPU."""
        return bool((self.kind != MPI).any())


@dataclass(frozen=True, eq=False)
class Range:
    """An NVTX range of the main thread of a process."""

    name: str
    process: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True, eq=False)
class Program:
    """A program, as recorded.

    Attributes
    ----------
    kind : str
        Key of `KINDS`.
    seed : int
        With the kind, it determines the program.
    truth : Truth
    operations : Operations
    ranges : tuple of Range
        By process and start.
    draws : dict
        Numbers of layers, steps and so on that were drawn for the program.
    """

    kind: str
    seed: int
    truth: Truth
    operations: Operations
    ranges: tuple[Range, ...]
    draws: Mapping[str, int | str]

    def to_trace(self) -> Trace:
        """Return the trace that a reader would make of the report, without writing it."""
        from .traces import to_trace

        return to_trace(self)

    def to_report(self, path: Path) -> Path:
        """Write an export of Nsight Systems, or a trace of torch.profiler if `path` is JSON."""
        from .reports import to_report

        return to_report(self, path)


@dataclass
class Drawing:
    """Draws numbers for a program and keeps them."""

    rng: random.Random
    draws: dict[str, int | str] = field(default_factory=dict)

    def count(self, name: str, least: int, most: int) -> int:
        """Draw an integer; small ones are as frequent as large ones on a logarithmic scale."""
        value = round(least * (most / least) ** self.rng.random()) if most > least else least
        self.draws[name] = value
        return value

    def choice(self, name: str, of: Sequence[str]) -> str:
        """Draw one of some words."""
        value = self.rng.choice(of)
        self.draws[name] = value
        return value

    def chance(self, name: str, probability: float) -> bool:
        """Draw whether the program has a feature."""
        value = self.rng.random() < probability
        self.draws[name] = int(value)
        return value

    def near(self, median: float, sigma: float) -> float:
        """Draw from a lognormal distribution."""
        return median * self.rng.lognormvariate(0.0, sigma)


@dataclass(frozen=True, eq=False)
class Built:
    """What a kind of program returns; `support.structured.program` adds kind and seed."""

    truth: Truth
    operations: Operations
    ranges: tuple[Range, ...]


def build(
    drawing: Drawing,
    trees: Node | Sequence[Node],
    *,
    step: str = "step",
    also: Mapping[str, str] | None = None,
    cut: tuple[float, float] | None = None,
) -> Built:
    """Run a program's trees, one per process.

    Parameters
    ----------
    drawing : Drawing
    trees : node or list of nodes
        Nodes with the level `step`.
    step : str
        The level that a practitioner calls the step.
    also : dict of str to str, optional
        Other levels that an expert would accept, with the reason.
    cut : (float, float), optional
        The recording begins and ends after so many steps of process 0. Then the steps that are
        whole may be counted, or also those that are not.
    """
    flattener = Flattener()
    flats = [flattener.flat(tree) for tree in (trees if isinstance(trees, list) else [trees])]
    ops = flattener.ops
    timed = play(flats, ops, drawing.rng.getrandbits(60))
    partly = 0
    if cut is not None:
        spans = flats[0].levels[step]
        window = (_position(spans, cut[0]), _position(spans, cut[1]))
        whole = int(((spans[:, 0] >= window[0]) & (spans[:, 1] <= window[1])).sum())
        partly = int(((spans[:, 1] > window[0]) & (spans[:, 0] < window[1])).sum()) - whole
        flats = [_cut_flat(flat, *window) for flat in flats]
        timed = [_cut_times(times, *window) for times in timed]
    found = _levels(flats, timed, ops)
    steps = len(found[step][0]) if cut is None else whole
    other = {len(found[level][0]) for level in also or {}}
    answers = frozenset({*range(steps, steps + partly + 1), *other})
    return Built(
        Truth(step, found, also or {}, steps, answers),
        Operations(**_columns(flats, ops), **_times(timed)),
        tuple(_ranges(flats, timed)),
    )


def _levels(
    flats: Sequence[Flat], timed: Sequence[Times], ops: Sequence[Op]
) -> dict[str, tuple[Instances, ...]]:
    """Return instances of levels; a process that lacks a level has none of it."""
    apart = np.array([op.thread >= APART for op in ops])
    names = dict.fromkeys(level for flat in flats for level in flat.levels)
    levels: dict[str, tuple[Instances, ...]] = {}
    for name in names:
        if name.startswith(RANGE):
            continue
        each = []
        for flat, times in zip(flats, timed, strict=True):
            spans = flat.levels.get(name, np.empty((0, 2), np.int64))
            spans = spans[np.lexsort((-spans[:, 1], spans[:, 0]))]
            mine = np.flatnonzero(~apart[flat.op])
            first = mine[np.minimum(np.searchsorted(mine, spans[:, 0]), len(mine) - 1)]
            each.append(Instances(spans[:, 0], spans[:, 1], times.launch_ns[first]))
        levels[name] = tuple(each)
    return levels


def _ranges(flats: Sequence[Flat], timed: Sequence[Times]) -> list[Range]:
    found = []
    for process, (flat, times) in enumerate(zip(flats, timed, strict=True)):
        for level, spans in flat.levels.items():
            if level.startswith(RANGE):
                found += [
                    Range(
                        level.removeprefix(RANGE), process,
                        int(times.launch_ns[first]) - 500, int(times.launched_ns[end - 1]) + 200,
                    )
                    for first, end in spans.tolist()
                ]  # fmt: skip
    return sorted(found, key=lambda one: (one.process, one.start_ns, -one.end_ns))


def _position(spans: Int64, steps: float) -> int:
    """Return the operation that stands so many steps after the first step's begin."""
    which = min(int(steps), len(spans) - 1)
    first, end = spans[which].tolist()
    return first + round((steps - which) * (end - first))


def _cut_flat(flat: Flat, begin: int, end: int) -> Flat:
    levels = {}
    for level, spans in flat.levels.items():
        kept = spans[(spans[:, 0] >= begin) & (spans[:, 0] < end)]
        if level.startswith(RANGE):
            kept = kept[kept[:, 1] <= end]
        levels[level] = np.minimum(kept, end) - begin
    return Flat(flat.op[begin:end], flat.factor[begin:end], levels)


def _cut_times(times: Times, begin: int, end: int) -> Times:
    first = times.launch_ns[begin] - 5000
    columns = [getattr(times, name)[begin:end] - first for name in Times.__annotations__]
    *columns, wait = columns
    return Times(*columns, np.where(wait == -1 - first, -1, wait))


def _columns(flats: Sequence[Flat], ops: Sequence[Op]) -> dict[str, Any]:
    """Return the columns that do not depend on time."""
    names: dict[str, int] = {}
    codes = np.array(
        [[names.setdefault(_name(op, size), len(names)) for size in range(SIZES)] for op in ops]
    )
    op = np.concatenate([flat.op for flat in flats])
    factor = np.concatenate([flat.factor for flat in flats])
    size = np.where(factor < 0.5, 0, np.where(factor > 2, 2, 1))

    def column(name: str, dtype: type) -> Any:
        return np.array([getattr(o, name) for o in ops], dtype=dtype)[op]

    def scaled(name: str) -> Int64:
        values: Floats = column(name, float)
        return np.ceil(values * factor).astype(np.int64)

    kind = column("kind", np.int8)
    return {
        "process": np.repeat(np.arange(len(flats)), [len(f.op) for f in flats]).astype(np.int32),
        "stream": column("stream", np.int32),
        "thread": column("thread", np.int32),
        "kind": kind,
        "copy_kind": column("copy_kind", np.int8),
        "code": codes[op, size].astype(np.int32),
        "names": tuple(names),
        "bytes": scaled("bytes"),
        "grid": np.where((kind == MEMCPY) | (kind == MEMSET) | (kind == MPI), 0, scaled("grid")),
    }


def _name(op: Op, size: int) -> str:
    return op.names[size] if len(op.names) == SIZES else op.names[0]


def _times(timed: Sequence[Times]) -> dict[str, Int64]:
    return {
        name: np.concatenate([getattr(times, name) for times in timed])
        for name in Times.__annotations__
    }
