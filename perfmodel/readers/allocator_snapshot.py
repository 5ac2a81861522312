"""Reads what `torch.cuda.memory._dump_snapshot()` wrote: a pickle, of which nothing is executed.

A pickle may name any function and have it called. A snapshot holds dictionaries, lists, tuples,
texts and numbers alone, so that only these are read, and a file with anything else is refused.
"""

from __future__ import annotations

import pickletools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from perfmodel.base.errors import ReportError
from perfmodel.base.escape import printable
from perfmodel.base.files import read_whole

_MOST_BYTES: Final = 1 << 30
"""A million events with stacks take some 250 MB."""
_LIBRARIES: Final = ("/torch/", "<frozen", "/importlib/")
_ADVICE: Final = "record with torch.cuda.memory._record_memory_history() and _dump_snapshot()"


@dataclass(frozen=True, slots=True)
class Event:
    """An allocation, or the end of one.

    Attributes
    ----------
    address, size_bytes, time_us : int
        The size is negative where a block is given back.
    line : str
        `file.py:12 function` that allocated it, the innermost outside of PyTorch; '' if unknown.
    module : str
        File of PyTorch's modules on the way, such as `normalization.forward`; '' for none.
    """

    address: int
    size_bytes: int
    time_us: int
    line: str
    module: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The caching allocator of one GPU.

    Attributes
    ----------
    device : int
    events : tuple of Event
        In order; the oldest may be missing.
    held : mapping of int to int
        Bytes of the blocks in use at the end, by address.
    reserved_bytes : int
        What the allocator has from CUDA at the end.
    """

    device: int
    events: tuple[Event, ...]
    held: Mapping[int, int]
    reserved_bytes: int


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
        yield Snapshot(device, tuple(_events(trace)), held, reserved)


def _events(trace: Sequence[Mapping[str, Any]]) -> Iterator[Event]:
    for event in trace:
        sign = {"alloc": 1, "free_completed": -1}.get(event["action"], 0)
        if sign:
            line, module = _place(event.get("frames") or ()) if sign > 0 else ("", "")
            size, time = int(event["size"]), int(event.get("time_us", 0))
            yield Event(int(event["addr"]), sign * size, time, line, module)


def _place(frames: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """Line of the program, and module of PyTorch, that allocated; frames are innermost first."""
    module = ""
    for frame in frames:
        file, name = str(frame["filename"]), str(frame["name"])
        if not file.endswith(".py") and not file.startswith("<"):
            continue
        if not any(part in file for part in _LIBRARIES):
            return f"{Path(file).name}:{int(frame['line'])} {name}", module
        if not module and "/nn/modules/" in file and name == "forward":
            module = Path(file).stem
    return "", module
