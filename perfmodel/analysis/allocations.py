"""The peak of a GPU's memory, and what is alive at it, from a snapshot of PyTorch's allocator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfmodel.base.arrays import Int64
from perfmodel.readers.allocator_snapshot import Snapshot

BEFORE = "(allocated before the recording)"


@dataclass(frozen=True, slots=True)
class Alive:
    """Memory alive at the peak that one line of the program allocated.

    Attributes
    ----------
    line, module : str
        As `readers.allocator_snapshot.Event`; `BEFORE` where the recording began later, as of
        parameters and the state of the optimizer.
    blocks, bytes : int
    """

    line: str
    module: str
    blocks: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Peak:
    """The peak of one GPU.

    Attributes
    ----------
    device : int
    peak_bytes : int
        Most bytes in blocks at once, as `torch.cuda.max_memory_allocated()`.
    end_bytes, reserved_bytes : int
        In blocks, and had from CUDA, at the end.
    alive : tuple of Alive
        At the peak, the largest first.
    time_us, in_use_bytes : int64, shape (events,)
        The curve: bytes in blocks after every event.
    """

    device: int
    peak_bytes: int
    end_bytes: int
    reserved_bytes: int
    alive: tuple[Alive, ...]
    time_us: Int64
    in_use_bytes: Int64


def peak_of(snapshot: Snapshot) -> Peak:
    """Find the peak of a snapshot.

    The allocator's state is known at the end; the events lead back from there.
    """
    change = np.array([e.size_bytes for e in snapshot.events], np.int64)
    end = sum(snapshot.held.values())
    begin = end - int(change.sum())
    curve = begin + np.cumsum(change)
    at = int(np.argmax(curve)) if len(curve) and curve.max() > begin else -1
    return Peak(
        device=snapshot.device,
        peak_bytes=int(curve[at]) if at >= 0 else begin,
        end_bytes=end,
        reserved_bytes=snapshot.reserved_bytes,
        alive=_alive(snapshot, at, begin),
        time_us=np.array([e.time_us for e in snapshot.events], np.int64),
        in_use_bytes=curve,
    )


def _alive(snapshot: Snapshot, at: int, begin: int) -> tuple[Alive, ...]:
    """Return the allocations alive after an event, by the line that made them."""
    blocks: dict[int, tuple[str, str, int]] = {}
    known, count = begin, _unknown(snapshot)
    for event in snapshot.events[: at + 1]:
        if event.size_bytes > 0:
            blocks[event.address] = event.line, event.module, event.size_bytes
        elif blocks.pop(event.address, None) is None:
            known, count = known + event.size_bytes, count - 1
    found: dict[tuple[str, str], list[int]] = {}
    for line, module, size in blocks.values():
        found.setdefault((line, module), []).append(size)
    rows = [Alive(*key, len(sizes), sum(sizes)) for key, sizes in found.items()]
    if known > 0:
        rows.append(Alive(BEFORE, "", max(count, 0), known))
    return tuple(sorted(rows, key=lambda row: -row.bytes))


def _unknown(snapshot: Snapshot) -> int:
    """Blocks that were allocated before the first event."""
    seen: set[int] = set()
    count = 0
    for event in snapshot.events:
        if event.size_bytes > 0:
            seen.add(event.address)
        elif event.address in seen:
            seen.remove(event.address)
        else:
            count += 1
    return count + len(snapshot.held.keys() - seen)


def peaks(snapshots: Sequence[Snapshot]) -> tuple[Peak, ...]:
    """Peaks of all GPUs of a snapshot."""
    return tuple(peak_of(snapshot) for snapshot in snapshots)
