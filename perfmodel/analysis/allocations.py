"""The peak of an allocator, what is alive at it by kind, module and line, and the curve to it.

The kind of a block follows from where it begins and where it ends, whatever it is called: what the
forward pass allocates and the backward pass frees are activations, what the backward pass leaves
are gradients, what outlives a step of the optimizer are its states.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from perfmodel.base.arrays import Int64
from perfmodel.programs.pytorch.operators import formula_of
from perfmodel.readers.allocator_snapshot import (
    BACKWARD,
    OPTIMIZER,
    WORKSPACE,
    Event,
    Snapshot,
)

BEFORE: Final = "(allocated before the recording)"
PARAMETERS, STATES, GRADIENTS, ACTIVATIONS, WORKSPACES, EARLIER = (
    "parameters", "optimizer", "gradients", "activations", "workspace", "before the recording",
)  # fmt: skip
KINDS: Final = (PARAMETERS, STATES, GRADIENTS, ACTIVATIONS, WORKSPACES, EARLIER)
_NEVER: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class Alive:
    """Memory alive at the peak that one line of the program allocated.

    Attributes
    ----------
    kind : str
        Of `KINDS`.
    line, module, operator : str
        As `readers.allocator_snapshot.Event`; `BEFORE` where the recording began later, as of
        parameters and the state of the optimizer.
    blocks, bytes : int
    """

    kind: str
    line: str
    module: str
    operator: str
    blocks: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Peak:
    """The peak of one device.

    Attributes
    ----------
    device : int
    peak_bytes : int
        Most bytes in blocks at once, as `torch.cuda.max_memory_allocated()`.
    peak_us : int or None
        When it was reached; None where it was there before the recording.
    operator, phase : str
        That reached it.
    peak_reserved_bytes, end_bytes, reserved_bytes : int
        Had from CUDA at the peak; in blocks, and had from CUDA, at the end.
    by_kind : mapping of str to int
        Bytes alive at the peak.
    alive : tuple of Alive
        At the peak, the largest first.
    time_us, in_use_bytes : int64, shape (events,)
        The curve: bytes in blocks after every event.
    curves_bytes : mapping of str to int64, shape (events,)
        The same by kind.
    """

    device: int
    peak_bytes: int
    peak_us: int | None
    operator: str
    phase: str
    peak_reserved_bytes: int
    end_bytes: int
    reserved_bytes: int
    by_kind: dict[str, int]
    alive: tuple[Alive, ...]
    time_us: Int64
    in_use_bytes: Int64
    curves_bytes: dict[str, Int64]


@dataclass(slots=True)
class _Block:
    """A block by the places of its events."""

    event: Event
    born: int
    size_bytes: int
    died: int = _NEVER
    kind: str = ACTIVATIONS


def peak_of(snapshot: Snapshot) -> Peak:
    """Find the peak of an allocator."""
    events = snapshot.events
    at = int(np.argmax(snapshot.in_use_bytes)) - 1
    blocks, early_ends = _blocks(events)
    _name(blocks, events)
    alive = [b for b in blocks if b.born <= at < b.died]
    before = int(snapshot.in_use_bytes[at + 1]) - sum(b.size_bytes for b in alive)
    shares = _earlier(before, blocks, events)
    curves = _curves(blocks, snapshot, shares)
    rows: dict[tuple[str, str, str, str], list[int]] = {}
    for b in alive:
        key = b.kind, b.event.line, b.event.module, b.event.operator
        rows.setdefault(key, []).append(b.size_bytes)
    found = [Alive(*key, len(sizes), sum(sizes)) for key, sizes in rows.items()]
    count = sum(died > at for died in early_ends)
    count += len(snapshot.held.keys() - {b.event.address for b in blocks})
    found += [Alive(kind, BEFORE, "", "", 0 if shares.keys() - {kind} else count, size)
              for kind, size in shares.items() if size]  # fmt: skip
    by_kind = dict.fromkeys(KINDS, 0)
    for row in found:
        by_kind[row.kind] += row.bytes
    return Peak(
        device=snapshot.device,
        peak_bytes=int(snapshot.in_use_bytes[at + 1]),
        peak_us=events[at].time_us if at >= 0 else None,
        operator=events[at].operator if at >= 0 else "",
        phase=events[at].phase if at >= 0 else "",
        peak_reserved_bytes=int(snapshot.reserved_bytes[at + 1]),
        end_bytes=int(snapshot.in_use_bytes[-1]),
        reserved_bytes=int(snapshot.reserved_bytes[-1]),
        by_kind={kind: size for kind, size in by_kind.items() if size},
        alive=tuple(sorted(found, key=lambda row: -row.bytes)),
        time_us=np.array([e.time_us for e in events], np.int64),
        in_use_bytes=snapshot.in_use_bytes[1:],
        curves_bytes=curves,
    )


def _blocks(events: Sequence[Event]) -> tuple[list[_Block], list[int]]:
    """Blocks that are allocated in the recording, and places of releases of earlier ones."""
    blocks: list[_Block] = []
    open_blocks: dict[int, _Block] = {}
    early_ends = []
    for i, event in enumerate(events):
        if event.size_bytes > 0:
            block = _Block(event, i, event.size_bytes)
            open_blocks[event.address] = block
            blocks.append(block)
        elif (found := open_blocks.pop(event.address, None)) is not None:
            found.died = i
        else:
            early_ends.append(i)
    return blocks, early_ends


def _name(blocks: Iterable[_Block], events: Sequence[Event]) -> None:
    """Say what kind every block is, by the pass that allocates it and the one that frees it."""
    begins = [0, *(i for i, (a, b) in enumerate(pairwise(events), 1) if a.phase != b.phase)]
    run = np.searchsorted(begins, np.arange(len(events)), side="right")
    backward = [i for i in begins if i < len(events) and events[i].phase == BACKWARD]
    freed: dict[int, bool] = {}  # by run: whether any of its gradients is freed
    gradients = []
    for b in blocks:
        same = b.died < len(run) and run[b.died] == run[b.born]
        following = int(np.searchsorted(backward, b.born, side="right"))
        if b.event.operator == WORKSPACE:
            b.kind = WORKSPACES
        elif b.event.phase == OPTIMIZER:
            b.kind = WORKSPACES if same else STATES
        elif b.event.phase == BACKWARD:
            b.kind = ACTIVATIONS if same else GRADIENTS
            if not same:
                gradients.append(b)
                freed[int(run[b.born])] = freed.get(int(run[b.born]), False) or b.died < _NEVER
        elif following + 1 < len(backward) and b.died > backward[following + 1]:
            b.kind = WORKSPACES if _multiplies(b) else PARAMETERS
    for b in gradients:
        if b.died == _NEVER and freed[int(run[b.born])] and _multiplies(b):
            b.kind = WORKSPACES


def _multiplies(block: _Block) -> bool:
    return formula_of(block.event.operator).product == "gemm"


def _earlier(before: int, blocks: Sequence[_Block], events: Sequence[Event]) -> dict[str, int]:
    """Bytes from before the recording by kind: every parameter has a gradient of its size."""
    change = np.zeros(len(events) + 1, np.int64)
    for b in blocks:
        if b.kind == GRADIENTS:
            change[b.born] += b.size_bytes
            change[min(b.died, len(events))] -= b.size_bytes
    gradients = int(np.cumsum(change).max(initial=0))
    held = sum(b.size_bytes for b in blocks if b.kind == PARAMETERS)
    parameters = min(max(gradients - held, 0), before)
    updates = any(e.phase == OPTIMIZER for e in events)
    rest = STATES if parameters and updates else EARLIER
    return {kind: size for kind, size in ((PARAMETERS, parameters), (rest, before - parameters))
            if size}  # fmt: skip


def _curves(
    blocks: Sequence[_Block], snapshot: Snapshot, shares: dict[str, int]
) -> dict[str, Int64]:
    """Bytes in blocks after every event by kind; what is of no block is from before."""
    count = len(snapshot.events)
    change = {kind: np.zeros(count + 1, np.int64) for kind in KINDS}
    for b in blocks:
        change[b.kind][b.born] += b.size_bytes
        change[b.kind][min(b.died, count)] -= b.size_bytes
    curves = {kind: np.cumsum(c)[:count] for kind, c in change.items()}
    before = snapshot.in_use_bytes[1:] - sum(curves.values(), np.zeros(count, np.int64))
    parameters = np.minimum(before, shares.get(PARAMETERS, 0))
    curves[PARAMETERS] = curves[PARAMETERS] + parameters
    rest = STATES if STATES in shares else EARLIER
    curves[rest] = curves[rest] + (before - parameters)
    return {kind: curve for kind, curve in curves.items() if curve.any()}


def peaks(snapshots: Sequence[Snapshot]) -> tuple[Peak, ...]:
    """Peaks of all devices of a recording."""
    return tuple(peak_of(snapshot) for snapshot in snapshots)
