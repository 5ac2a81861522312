"""Reads what `torch.cuda.memory._dump_snapshot()` wrote: a pickle, of which nothing is executed.

A pickle may name any function and have it called. A snapshot holds dictionaries, lists, tuples,
texts and numbers alone, so that only these are read, and a file with anything else is refused.
"""

from __future__ import annotations

import pickletools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import numpy as np

from perfmodel.base.arrays import Int64
from perfmodel.base.errors import ReportError
from perfmodel.base.escape import printable
from perfmodel.base.files import read_whole

_MOST_BYTES: Final = 1 << 30
"""A million events with stacks take some 250 MB."""
_LIBRARIES: Final = ("/torch/", "<frozen", "/importlib/")
_ADVICE: Final = "record with torch.cuda.memory._record_memory_history() and _dump_snapshot()"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a program allocates.

    Attributes
    ----------
    line : str
        `file.py:12 function` that allocated it, the innermost outside of PyTorch; '' if unknown.
    module : str
        Module of PyTorch on the way, such as `normalization.forward`; '' for none.
    operator : str
        Such as `aten::addmm`; `WORKSPACE` of what cuBLAS keeps; '' if unknown.
    phase : {'forward', 'backward', 'optimizer'}
        In which it happened; what is neither backward nor the optimizer's is forward.
    """

    line: str
    module: str
    operator: str
    phase: str


@dataclass(frozen=True, slots=True)
class Event(Place):
    """An allocation, or the end of one.

    Attributes
    ----------
    address, size_bytes, time_us : int
        The size is negative where a block is given back.
    """

    address: int
    size_bytes: int
    time_us: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The allocator of one device over time.

    Attributes
    ----------
    device : int
        Number of the GPU; `CPU` for the host's allocator.
    events : tuple of Event
        In order; the oldest may be missing.
    in_use_bytes, reserved_bytes : int64, shape (events + 1,)
        In blocks, and had from CUDA, before the first event and after each.
    held : mapping of int to int
        Bytes of the blocks in use at the end, by address; empty where the recording has none.
    """

    device: int
    events: tuple[Event, ...]
    in_use_bytes: Int64
    reserved_bytes: Int64
    held: Mapping[int, int]


CPU: Final = -1
WORKSPACE: Final = "cuBLAS workspace"
FORWARD, BACKWARD, OPTIMIZER = "forward", "backward", "optimizer"
_OPERATOR: Final = re.compile(r"at::_ops::(\w+)::(?:call|redispatch)")
_OF_CUBLAS: Final = ("CUDABlasHandle", "CUDABlasLtWorkspace", "Workspace")
"""Functions of PyTorch that allocate for cuBLAS (aten/src/ATen/cuda/CublasHandlePool.cpp)."""
_OF_AUTOGRAD: Final = "torch::autograd::Engine"
_OF_OPTIMIZERS: Final = "/torch/optim/"
_SEGMENTS: Final = {"segment_alloc": 1, "segment_free": -1, "segment_map": 1, "segment_unmap": -1}
_PUSHED: Final = {
    "NONE": None, "NEWTRUE": True, "NEWFALSE": False,
}  # fmt: skip
_GIVEN: Final = frozenset({
    "BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT", "BINUNICODE", "BINUNICODE8",
    "SHORT_BINUNICODE",
})  # fmt: skip
"""Opcodes whose argument is the value."""
_TUPLES: Final = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


def _plain(data: bytes) -> Any:
    """Read a pickle of dictionaries, lists, tuples, texts and numbers.

    Only opcodes that make these are known: there is none here that looks up or calls anything.

    Raises
    ------
    ValueError
        If there is another opcode, or the data end early.
    """
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[int, Any] = {}

    def since_mark() -> list[Any]:
        first = marks.pop()
        found = stack[first:]
        del stack[first:]
        return found

    for opcode, argument, _ in pickletools.genops(data):
        name, given = opcode.name, cast(Any, argument)
        if name in _GIVEN:
            stack.append(given)
        elif name in _PUSHED:
            stack.append(_PUSHED[name])
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(memo[given])
        elif name in ("MEMOIZE", "BINPUT", "LONG_BINPUT"):
            memo[len(memo) if given is None else given] = stack[-1]
        elif name == "MARK":
            marks.append(len(stack))
        elif name in ("EMPTY_DICT", "EMPTY_LIST"):
            stack.append({} if name == "EMPTY_DICT" else [])
        elif name in _TUPLES:
            first = len(stack) - _TUPLES[name]
            stack[first:] = [tuple(stack[first:])]
        elif name == "TUPLE":
            stack.append(tuple(since_mark()))
        elif name in ("APPEND", "APPENDS"):
            items = [stack.pop()] if name == "APPEND" else since_mark()
            stack[-1].extend(items)
        elif name in ("SETITEM", "SETITEMS"):
            if name == "SETITEM":
                marks.append(len(stack) - 2)
            items = since_mark()
            stack[-1].update(zip(items[::2], items[1::2], strict=True))
        elif name == "STOP":
            return stack.pop()
        elif name not in ("PROTO", "FRAME"):
            raise ValueError(f"a snapshot has no {name}")
    raise ValueError("the file ends early")


def read_snapshot(path: Path) -> tuple[Snapshot, ...]:
    """Read a snapshot, one entry per GPU that allocated.

    Raises
    ------
    ReportError
        If the file cannot be read, or is no snapshot.
    """
    where = printable(str(path))
    try:
        data = _plain(read_whole(path, _MOST_BYTES))
        return tuple(_snapshots(data))
    except (
        OSError, AttributeError, LookupError, TypeError, ValueError, OverflowError,
    ) as error:  # fmt: skip
        raise ReportError(
            f"{where}: expected a snapshot of PyTorch's allocator; got none that can be read "
            f"({printable(str(error))[:200]}); {_ADVICE}"
        ) from error


def _snapshots(data: Any) -> Iterator[Snapshot]:
    segments, traces = data["segments"], data["device_traces"]
    for device, trace in enumerate(traces):
        mine = [s for s in segments if int(s["device"]) == device]
        if not mine and not trace:
            continue
        held = {}
        for segment in mine:
            at = int(segment["address"])
            for block in segment["blocks"]:
                if str(block["state"]).startswith("active"):
                    held[int(block.get("address", at))] = int(block["size"])
                at += int(block["size"])
        reserved = sum(int(s["total_size"]) for s in mine)
        events = list[Event]()
        changes = [0]
        for event in trace:
            size = int(event.get("size", 0))
            changes[-1] += _SEGMENTS.get(event["action"], 0) * size
            sign = {"alloc": 1, "free_completed": -1}.get(event["action"], 0)
            if sign:
                before = events[-1].phase if events else FORWARD
                events.append(_event(event, sign * size, before))
                changes.append(0)
        yield Snapshot(
            device, tuple(events), _back_from(sum(held.values()), [e.size_bytes for e in events]),
            _back_from(reserved, changes[1:]), held,
        )  # fmt: skip


def _back_from(end: int, changes: Sequence[int]) -> Int64:
    """A curve of which the end and the changes are known."""
    so_far = np.append(0, np.cumsum(np.array(changes, np.int64)))
    return np.asarray(so_far + (end - so_far[-1]), np.int64)


def _event(event: Mapping[str, Any], size: int, before: str) -> Event:
    """An event, with what its stack says; frames are innermost first.

    A release without a stack is in the pass of the event before.
    """
    line = module = operator = ""
    frames = event.get("frames") or ()
    phase, python = FORWARD, False
    for frame in frames:
        file, name = str(frame["filename"]), str(frame["name"])
        if not file.endswith(".py") and not file.startswith("<"):
            found = _OPERATOR.match(name)
            if found is not None and not found[1].startswith("empty"):
                operator = operator or f"aten::{found[1]}"
            elif not operator and any(word in name for word in _OF_CUBLAS):
                operator = WORKSPACE
            if _OF_AUTOGRAD in name and phase == FORWARD and not python:
                phase = BACKWARD
            continue
        python = True
        if _OF_OPTIMIZERS in file:
            phase = OPTIMIZER
        if not any(part in file for part in _LIBRARIES):
            line = f"{Path(file).name}:{int(frame['line'])} {name}"
            break
        if not module and "/nn/modules/" in file and name == "forward":
            module = Path(file).stem
    if not python and size > 0:  # autograd's thread has no frames of Python
        phase = BACKWARD
    if size < 0:
        line = module = operator = ""
        phase = phase if frames else before
    time = int(event.get("time_us", 0))
    return Event(line, module, operator, phase, int(event["addr"]), size, time)
