"""Reads traces of PyTorch's profiler (Kineto's JSON): the events become tables of Nsight Systems.

`torch.profiler.profile` writes one file a process: operators and annotations of the host, calls of
CUDA, kernels and copies, tied by correlation ids. With ``record_shapes=True`` every operator has
its sizes and types; collectives have theirs always. Times are in µs with three decimals, since
`baseTimeNanoseconds` (torch/csrc/profiler and libkineto/src/output_json.cpp).

An annotation that only the GPU's rows have becomes a range of `GPU_DOMAIN`, on a thread of its own:
it covers the GPU work that was launched in it. Copies and kernels of MTIA, Meta's accelerator, are
read as those of a GPU.

An operator becomes the range that `torch.autograd.profiler.emit_nvtx` would push, and a collective
the payload that NCCL would, so that everything behind the reader treats both recordings alike.
"""

from __future__ import annotations

import hashlib
import json
import re
from array import array
from collections.abc import Hashable, Iterator, Mapping
from decimal import Decimal, InvalidOperation
from itertools import chain, islice
from math import prod
from pathlib import Path
from typing import IO, Any, Final, TypeGuard

from perfmodel.base.errors import SchemaError
from perfmodel.base.kernels.types import ITEM_BYTES, dtype_named
from perfmodel.readers.checks import RECORD
from perfmodel.readers.frames import FRAMEWORK, MODULE, python_frame
from perfmodel.readers.json_stream import JsonStream
from perfmodel.readers.nvtx import BEGUN, GPU_DOMAIN, PAYLOAD_COMMUNICATOR, PAYLOAD_SIZE
from perfmodel.readers.stacks import FUNCTION_COLUMNS, FUNCTION_NAMES, FUNCTIONS
from perfmodel.readers.trace import (
    COPY_KINDS,
    MEMORY_KINDS,
    NO_CALLS,
    OPERATORS,
    PROCESS_BITS,
    TORCH_PROFILER,
)
from perfmodel.readers.write_sqlite import SqliteWriter, written

_CALLS: Final = "CUPTI_ACTIVITY_KIND_RUNTIME"
_TABLES: Final[Mapping[str, tuple[str, ...]]] = {
    "NVTX_EVENTS": (
        "start", "end", "globalTid", "eventType", "domainId", "textId", BEGUN, "jsonText TEXT",
    ),
    _CALLS: ("start", "end", "globalTid", "correlationId", "nameId"),
    "CUPTI_ACTIVITY_KIND_KERNEL": (
        "start", "end", "deviceId", "streamId", "correlationId", "globalPid", "demangledName",
        "gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ",
    ),
    "CUPTI_ACTIVITY_KIND_MEMCPY": (
        "start", "end", "deviceId", "streamId", "correlationId", "globalPid", "bytes", "copyKind",
        "srcKind", "dstKind",
    ),
    "CUPTI_ACTIVITY_KIND_MEMSET": (
        "start", "end", "deviceId", "streamId", "correlationId", "globalPid", "bytes",
    ),
}  # fmt: skip

_HOST, _OPERATOR, _CALL, _KERNEL, _COPY, _SET, _ON_GPU, _MTIA = range(8)
_FUNCTION: Final = "python_function"
_BUILT_IN: Final = "<"
_STACKS: Final = ("Call stack", "Call Stack")
_STEP: Final = "ProfilerStep"
_KINDS: Final = {
    "user_annotation": _HOST, "cpu_op": _OPERATOR, "gpu_user_annotation": _ON_GPU,
    "cuda_runtime": _CALL, "cuda_driver": _CALL, "hip_runtime": _CALL, "hip_driver": _CALL,
    "xpu_runtime": _CALL, "xpu_driver": _CALL,
    "privateuse1_runtime": _CALL, "privateuse1_driver": _CALL,
    "kernel": _KERNEL, "gpu_memcpy": _COPY, "gpu_memset": _SET,
    "mtia_runtime": _MTIA, "mtia_ccp_events": _MTIA,
    "Operator": _OPERATOR, "Runtime": _CALL, "Kernel": _KERNEL, "Memcpy": _COPY, "Memset": _SET,
}  # fmt: skip
"""What an event of a category is (libkineto/include/ActivityType.h); the last line names them as
PyTorch before 1.13 does, where annotations such as `ProfilerStep#5` are operators."""

_TOLD_APART: Final = "cpu_op"
"""The category of operators and autograd functions alone, where annotations have one of their own
(since PyTorch 1.13)."""

_ROCTRACER: Final = {
    "CopyHostToDevice": _COPY, "CopyDeviceToHost": _COPY, "CopyDeviceToDevice": _COPY,
    "CopyHostToDevice2D": _COPY, "CopyDeviceToHost2D": _COPY, "CopyDeviceToDevice2D": _COPY,
    "FillBuffer": _SET,
}  # fmt: skip
"""Copies and sets that old traces of ROCm may have as kernels, as ROCclr names its commands."""

_MTIA_COPY: Final = "dma_request"
_MTIA_ORDER: Final = ("event_wait", "event_record")
"""Operations that order MTIA's streams, and are no work."""

_FOREIGN: Final = {
    "rocprofiler-sdk-tool": "JSON of rocprofv3, which has no operators and no steps of PyTorch",
}
"""Keys that only other tools' files have, and what such a file is."""

_NO_CALL: Final = "(launch not recorded)"
"""Stands for the call that launched an operation where no call was recorded."""
_EXECUTION_TRACE: Final = frozenset({"schema", "nodes"})
"""Keys of the files of torch.profiler.ExecutionTraceObserver."""

_OLD_PROFILER: Final = ("CPU functions", "CUDA functions")
"""The processes in traces of torch.autograd.profiler without Kineto (profiler_util.py)."""

_PUSH_POP: Final = 59
_WARNING: Final = 2
"""A severity in DIAGNOSTIC_EVENT of Nsight Systems."""
_DOMAIN_CREATE: Final = 75
_GPU_DOMAIN_ID: Final = 1
_PROCESS_BITS: Final = 24
_MOST_IDS: Final = 1 << _PROCESS_BITS
_ROWS: Final = 10_000
_FIRST: Final = 32 << 20  # characters of events whose earliest time is the zero at first
_BESIDE: Final = (
    "schemaVersion", "baseTimeNanoseconds", "deviceProperties", "computeProperties",
    "distributedInfo",
)  # fmt: skip
_LATEST_NS: Final = 1 << 62
_NEVER: Final = 1 << 63
_SINCE_EPOCH_NS: Final = 10**18
"""Times from here on are of 2001 and later, not of a clock that starts with the machine."""

_COUNTED, _NUMBERED_AS = "External id", "Ev Idx"
"""Arguments that count operators and annotations as they begin. Times in whole µs do not say which
of two that begin and end together is the parent."""

_COPY_NAME: Final = re.compile(r"Memcpy (\w)(?:to|2)(\w)(?: \((\w[\w ]*) -> (\w[\w ]*)\))?")
_COPY_WORDS: Final = re.compile(r"(?:Copy)?(Host|Device)_?To_?(Host|Device)(?:2D)?", re.IGNORECASE)
"""A copy as roctracer names it, or the direction of one of MTIA's."""
_NUMBERED: Final = re.compile(r"(?:[A-Za-z]+ )?(-?[0-9]{1,20})")
_LIST: Final = "TensorList"
_BOOLEANS: Final = re.compile(r"\[(?:True|False)(?:, (?:True|False)){2}\]")
_NO_BRACKETS: Final = str.maketrans("[],", "   ")
_LAMBDA: Final = re.compile(r"\{lambda\(([^{}]*)\)#(\d+)\}")
_PLACES: Final = {"M": "Host", "H": "Host", "D": "Device", "A": "Array", "P": "Peer"}
_COPY_CODE: Final = {name: k for k, name in COPY_KINDS.items()}
_MEMORY_CODE: Final = {name: k for k, name in MEMORY_KINDS.items()}
_NCCL: Final = "nccl:"
"""Ranges of PyTorch around NCCL's calls: in older traces nothing else has a size."""
_EXCHANGES: Final = (
    "symm_mem::", "_C_custom_ar::all_reduce", "sgl_kernel::all_reduce", "trtllm::allreduce",
    "aiter::all_reduce",
)  # fmt: skip
"""Operators of PyTorch, vLLM, SGLang, TensorRT-LLM and AITER whose kernel exchanges a tensor."""
_ITEM_BYTES: Final = {
    "Double": 8, "Long": 8, "Float": 4, "Int": 4, "Half": 2, "BFloat16": 2, "Short": 2, "Char": 1,
    "Byte": 1, "Bool": 1, "Float8_e4m3fn": 1, "Float8_e5m2": 1,
}  # fmt: skip
_TO_EACH: Final = ("all_gather", "allgather", "reduce_scatter")
"""Collectives of which NCCL names one rank's share as the size, not all ranks' together."""


def to_sqlite(stream: IO[bytes], source: Path, target: Path) -> None:
    """Convert a trace to the SQLite file that an export of Nsight Systems would be.

    Takes memory for the distinct names of operators, not for the events.

    Parameters
    ----------
    stream : file
        Of the trace's bytes.
    source : Path
        What errors call the trace.
    target : Path

    Raises
    ------
    ReportError
        If the file is damaged or truncated.
    SchemaError
        If it is no trace of torch.profiler, or holds what no profiler writes.
    """
    parsed = JsonStream(stream, source, "traceEvents", _BESIDE, tuple(_FOREIGN))
    with written(target, source) as out:
        events = _Events(parsed, source, out)
        events.convert()
        events.finish(parsed)


class _Events:
    """Turns events into rows, some at a time."""

    def __init__(self, parsed: JsonStream, source: Path, out: SqliteWriter) -> None:
        self._source, self._out = source, out
        self._parsed, self._events = parsed, enumerate(iter(parsed))
        self._strings: dict[str, int] = {}
        self._threads: dict[tuple[Hashable, Hashable], int] = {}
        self._annotated: set[str] = set()
        self._operators: set[str] = set()
        self._counted = False
        self._sized: list[tuple[tuple[Any, ...], str]] = []
        self._on_gpu: list[tuple[str, int, int | None, tuple[Any, ...]]] = []
        self._unread: dict[str, None] = {}
        self._functions = _Functions()
        self._of_xla = False
        self._rows: dict[str, list[tuple[Any, ...]]] = {table: [] for table in _TABLES}
        self._made: set[str] = set()
        self._origin_ns = 0
        self._first_ns = _NEVER
        self._first_on_host = True, _NEVER
        self._process = self._gpu_process = 0
        self._count = self._without_time = 0
        self._without_host = self._without_calls = False

    def convert(self) -> None:
        """Write the rows of all events."""
        first: list[tuple[int, Any]] = []
        while self._parsed.characters < _FIRST and (more := [*islice(self._events, 100)]):
            first += more
            if len(first) >= _ROWS:
                break
        usable = [e for _, e in first if isinstance(e, dict) and e.get("ph") == "X"]
        starts = [
            ns for e in usable if _kind(e) is not None
            and (ns := _ns(e.get("ts"))) is not None and (ns or e.get("dur"))
        ]  # fmt: skip
        self._origin_ns = min(starts, default=0)
        of_host = (e.get("pid") for e in usable if _kind(e) in (_HOST, _OPERATOR, _CALL))
        found = next((pid for each in of_host if (pid := _number(each)) is not None), 0)
        self._process = self._gpu_process = self._process_id(found)
        for number, event in chain(first, self._events):
            if not isinstance(event, dict):
                raise self._odd(number, "an object", event)
            if event.get("ph") != "X":
                self._of_xla |= _is_of_xla(event)
                continue
            if event.get("cat") == _FUNCTION:
                self._functions.add(event, event.get("name"))
            kind = _kind(event)
            if kind == _MTIA:
                kind, event = _as_of_gpu(event)
            if kind is not None:
                self._add(number, kind, event)
                self._count += 1
            elif not self._count and len(self._unread) < _MOST_NAMED:
                self._unread[_unread(event)] = None
        for row, payload in self._sized:  # inside operators that may have counted it
            self._row("NVTX_EVENTS", (*row, None if self._counted else payload))
        self._add_on_gpu()
        for table in _TABLES:
            self._flush(table)
        self._without_host = not self._threads.keys() - {*self._gpu_threads()}
        self._without_calls = _CALLS not in self._made
        if self._without_calls:
            self._launch_all()
        if self._made and (early := self._origin_ns - self._first_ns):
            for table in self._made:  # events are in any order
                self._out.add_to(table, ("start", "end"), early)
            self._origin_ns = self._first_ns
        self._write_functions()
        if late := self._process - self._gpu_process:
            for table in self._made.intersection(_GPU_TABLES):  # kernels came before the host's
                self._out.add_to(table, ("globalPid",), late)

    def _add(self, number: int, kind: int, event: dict[str, Any]) -> None:
        start, spent = _ns(event.get("ts")), _ns(event.get("dur", 0))
        if start is None or not -_LATEST_NS < start - self._origin_ns < _LATEST_NS:
            raise self._odd(number, "a time in µs as 'ts'", event.get("ts"))
        if spent is None or not 0 <= spent < _LATEST_NS:
            if spent is None or spent >= _LATEST_NS or kind > _OPERATOR:
                raise self._odd(number, "a duration of 0 µs or more as 'dur'", event.get("dur"))
            spent = None  # recording ended before the range did
        if start == spent == 0 and kind in (_KERNEL, _COPY, _SET):
            self._without_time += 1
            return
        self._first_ns = min(self._first_ns, start)
        start -= self._origin_ns
        args = event.get("args")
        if args is None:
            args = {}
        name = event.get("name")
        if not isinstance(name, str) or not isinstance(args, dict):
            raise self._odd(number, "a name, and arguments as an object", event)
        span = start, None if spent is None else start + spent
        if kind <= _OPERATOR:
            if kind == _HOST:
                self._annotated.add(name)
            elif event.get("cat") == _TOLD_APART:
                self._operators.add(name)
            label = _label(name, args) if kind == _OPERATOR else name
            payload = _payload(args) if "Collective name" in args else None
            self._counted |= payload is not None
            begun = args.get(_COUNTED, args.get(_NUMBERED_AS))
            thread = self._thread(number, event, start)
            for stack in _STACKS:
                if args.get(stack) and not name.startswith(_STEP):  # which ends elsewhere
                    self._functions.add(event, args[stack], is_stack=True)
            range_row = *span, thread, _PUSH_POP, None, self._text(label), _number(begun)
            if name.startswith(_NCCL) and (size := _payload_of_sizes(args)):
                self._sized.append((range_row, size))
                return
            if name.startswith(_EXCHANGES):
                payload = _payload_of_sizes(args)
            self._row("NVTX_EVENTS", (*range_row, payload))
            return
        if kind == _ON_GPU:
            if name not in self._annotated:
                row: tuple[Any, ...] = _number(event.get("pid")), _number(event.get("tid"))
                self._on_gpu.append((name, *span, row))
            return
        correlation = args.get("correlation")
        if correlation is not None and not _is_small(correlation):
            given, correlation = correlation, _number(correlation)
            if correlation is None:
                raise self._odd(number, "a number as 'correlation'", given)
        if kind == _CALL:
            if correlation is not None:  # else it launches nothing
                thread = self._thread(number, event, start, launches=True)
                call = (*span, thread, correlation, self._text(name))
                self._row(_CALLS, call)
            return
        self._add_work(number, kind, event, (*span, correlation))

    def _add_work(
        self, number: int, kind: int, event: dict[str, Any], when: tuple[int, int | None, Any]
    ) -> None:
        """Add a kernel, a copy or a set: `when` is its start, its end and its correlation id."""
        name, args = event["name"], event.get("args") or {}
        where = [args.get(key, event.get(other)) for key, other in _WHERE]
        if not all(_is_small(v) for v in where):
            given, where = where, [_number(v) for v in where]
            if None in where:
                raise self._odd(number, "numbers as 'device' and 'stream'", given)
        start, end, correlation = when
        row = (start, end, *where, correlation, self._gpu_process)
        if kind == _KERNEL and (kind := _ROCTRACER.get(name, _KERNEL)) == _KERNEL:
            shape = (*_three(args.get("grid")), *_three(args.get("block")))
            self._row("CUPTI_ACTIVITY_KIND_KERNEL", (*row, self._text(_as_nsys(name)), *shape))
            return
        size = args.get("bytes")
        if size is not None and (not _is_small(size) or size < 0):
            given, size = size, _number(size)
            if size is None or size < 0:
                raise self._odd(number, "0 bytes or more as 'bytes'", given)
        if kind == _COPY:
            self._row("CUPTI_ACTIVITY_KIND_MEMCPY", (*row, size, *_copy_kinds(name)))
        else:
            self._row("CUPTI_ACTIVITY_KIND_MEMSET", (*row, size))

    def _add_on_gpu(self) -> None:
        """Add the ranges that only the GPU's rows have, each row as a thread."""
        found = [each for each in self._on_gpu if each[0] not in self._annotated]
        for number, (name, start, end, row) in enumerate(found):
            key = GPU_DOMAIN, row
            thread = self._threads.setdefault(key, self._process | self._next_id())
            if not number:
                made = start, start, thread, _DOMAIN_CREATE, _GPU_DOMAIN_ID
                self._row("NVTX_EVENTS", (*made, self._text(GPU_DOMAIN), None, None))
            at = start, end, thread, _PUSH_POP, _GPU_DOMAIN_ID
            self._row("NVTX_EVENTS", (*at, self._text(name), None, None))

    def _gpu_threads(self) -> Iterator[tuple[Hashable, Hashable]]:
        """Threads that stand for the GPU's rows of annotations."""
        return (key for key in self._threads if key[0] == GPU_DOMAIN)

    def _launch_all(self) -> None:
        """Add a call for every GPU operation, where no call was recorded.

        Each is launched when it begins, so that annotations of the GPU hold their own operations,
        and those of the host what runs meanwhile.
        """
        tables = sorted(self._made.intersection(_GPU_TABLES))
        if not tables:
            return
        self._made.add(_CALLS)
        self._out.create(_CALLS, dict.fromkeys(_TABLES[_CALLS], "INTEGER"))
        thread, name = self._process | self._next_id(), self._text(_NO_CALL)
        for i, table in enumerate(tables):
            self._out.change(table, "correlationId", f"rowid * {len(tables)} + {i}")
            row = ("start", "start", str(thread), "correlationId", str(name))
            self._out.add_from(_CALLS, table, row)

    def _write_functions(self) -> None:
        """Write functions of Python and stacks; modules become ranges, too, as `annotate` does."""
        rows, names = self._functions.rows(self._threads, self._origin_ns), self._functions.names
        if not rows or "NVTX_EVENTS" not in self._made:
            return
        _write(self._out, FUNCTIONS, dict.fromkeys(FUNCTION_COLUMNS, "INTEGER"), rows)
        texts = ((i, _written(name)) for i, name in enumerate(names))
        _write(self._out, FUNCTION_NAMES, {"id": "INTEGER PRIMARY KEY", "value": "TEXT"}, texts)
        for start, end, thread, name, is_stack in rows:
            if not is_stack and names[name].startswith(MODULE):
                span = start, end, thread, _PUSH_POP, None
                self._row("NVTX_EVENTS", (*span, self._text(names[name]), None, None))
        self._flush("NVTX_EVENTS")

    def _row(self, table: str, row: tuple[Any, ...]) -> None:
        rows = self._rows[table]
        rows.append(row)
        if len(rows) == _ROWS:
            self._flush(table)

    def _flush(self, table: str) -> None:
        rows, columns = self._rows[table], _TABLES[table]
        if rows and table not in self._made:
            self._made.add(table)
            kinds = (column.partition(" ") for column in columns)
            self._out.create(table, {name: kind or "INTEGER" for name, _, kind in kinds})
        if rows:
            self._out.add(table, len(columns), rows)
            rows.clear()

    def _text(self, text: str) -> int:
        return self._strings.setdefault(text, len(self._strings))

    def _process_id(self, pid: int) -> int:
        return (pid % _MOST_IDS) << _PROCESS_BITS

    def _thread(
        self, number: int, event: dict[str, Any], start_ns: int, *, launches: bool = False
    ) -> int:
        """Serialized id of a thread; ids that do not fit are numbered from the last that does.

        The process of the first call, without calls of the first event on the host, is the one that
        launched the GPU's work.
        """
        given = event.get("pid"), event.get("tid")
        try:
            found = self._threads.get(given)
        except TypeError:  # a list or an object
            raise self._odd(number, "numbers as 'pid' and 'tid'", given) from None
        if found is None:
            pid, tid = _number(given[0]), _number(given[1])
            if pid is None or (tid is None and not isinstance(given[1], str)):
                raise self._odd(number, "numbers as 'pid' and 'tid'", given)
            fits = tid is not None and 0 <= tid < _MOST_IDS >> 1
            found = self._process_id(pid) | (tid if tid is not None and fits else self._next_id())
            self._threads[given] = found
        if (not launches, start_ns) < self._first_on_host:
            self._first_on_host = not launches, start_ns
            self._process = found & PROCESS_BITS
        return found

    def _next_id(self) -> int:
        """Return the id of a thread whose own does not fit, or that has none."""
        return _MOST_IDS - 1 - len(self._threads)

    def finish(self, parsed: JsonStream) -> None:
        """Write strings, ranks, GPUs and the clock's zero, which the file may name at its end."""
        if not parsed.found or not self._count:
            raise SchemaError(
                f"{self._source}: expected a trace of torch.profiler, with operators or kernels in "
                f"'traceEvents'; got {self._instead(parsed)}; {self._advice(parsed)}"
            )
        out, beside = self._out, parsed.beside
        _write(out, "StringIds", {"id": "INTEGER PRIMARY KEY", "value": "TEXT"},
               ((i, _written(text)) for text, i in self._strings.items()))  # fmt: skip
        version = beside.get("schemaVersion")
        _write(out, "META_DATA_EXPORT", {"name": "TEXT", "value": "TEXT"}, [
            ("EXPORT_PRODUCT_VERSION", TORCH_PROFILER),
            ("EXPORT_SCHEMA_VERSION", str(version) if _is_small(version) else "unknown"),
        ])  # fmt: skip
        diagnostics = []
        if self._without_time:
            diagnostics.append(
                f"torch.profiler recorded no times of {self._without_time} GPU operations"
            )
        if self._made.intersection(_GPU_TABLES) and self._without_calls:
            lacking = "nothing of the host" if self._without_host else "no calls of CUDA"
            diagnostics.append(
                f"torch.profiler recorded {lacking}: {NO_CALLS}, and idle time has no cause; "
                "record with "
                "activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]"
            )
        if diagnostics:
            kinds = {"timestamp": "INTEGER", "text": "TEXT", "severity": "INTEGER"}
            rows = [(0, text, _WARNING) for text in diagnostics]
            _write(out, "DIAGNOSTIC_EVENT", kinds, rows)
        if not any(name.startswith(_STEP) for name in self._operators):  # which is an annotation
            names = ((_written(name),) for name in sorted(self._operators - self._annotated))
            _write(out, OPERATORS, {"name": "TEXT"}, names)
        base = beside.get("baseTimeNanoseconds", 0)
        utc = base + self._origin_ns if type(base) is int else 0
        if _SINCE_EPOCH_NS < utc < _LATEST_NS:
            _write(out, "TARGET_INFO_SESSION_START_TIME", {"utcEpochNs": "INTEGER"}, [(utc,)])
        self._write_gpus(beside.get("deviceProperties") or beside.get("computeProperties"))
        self._write_ranks(beside.get("distributedInfo"))

    def _advice(self, parsed: JsonStream) -> str:
        """Say what to give in place of a file that is no trace of torch.profiler."""
        if self._of_xla:
            return "give the .xplane.pb file that the profiler wrote into the same folder"
        if parsed.foreign is not None:
            return "record with rocprofv3 --output-format rocpd, and give its .db file"
        return f"record one with {RECORD}"

    def _instead(self, parsed: JsonStream) -> str:
        """Name what a file is that is no trace of torch.profiler."""
        if self._of_xla:
            return "a trace of JAX or TensorFlow, which does not say what launched a kernel"
        if parsed.foreign is not None:
            return _FOREIGN[parsed.foreign]
        if parsed.found:
            return f"{', '.join(self._unread)}" if self._unread else "none of them"
        if parsed.beside.keys() >= _EXECUTION_TRACE:
            return "an execution trace of PyTorch, which has no times of GPU work"
        return f"JSON with {', '.join(list(parsed.beside)[:_MOST_NAMED]) or 'no keys'}"

    def _write_gpus(self, devices: Any) -> None:
        found = [
            (d["id"], d["name"] or None, *(next((d[k] for k in keys if _is_small(d.get(k))), None)
                                   for keys in _GPU_FACTS))
            for d in (devices if isinstance(devices, list) else ())
            if isinstance(d, dict) and isinstance(d.get("name"), str) and _is_small(d.get("id"))
        ]  # fmt: skip
        columns = ("id", "name TEXT", "smCount", "totalMemory", "computeMajor", "computeMinor")
        kinds = (column.partition(" ") for column in columns)
        if found:
            _write(self._out, "TARGET_INFO_GPU", {n: k or "INTEGER" for n, _, k in kinds}, found)

    def _write_ranks(self, said: Any) -> None:
        """Name the process's rank and the number of ranks, as a trace of MPI would."""
        if not isinstance(said, dict):
            return
        rank, size = said.get("rank"), said.get("world_size")
        if not (_is_small(rank) and _is_small(size) and 0 <= rank < size):
            return
        _write(self._out, "MPI_RANKS", {"globalTid": "INTEGER", "rank": "INTEGER"},
               [(self._process, rank)])  # fmt: skip
        columns = dict.fromkeys(("rank", "commHandle", "size"), "INTEGER")
        _write(self._out, "MPI_COMMUNICATORS", columns, [(rank, 0, size)])

    def _odd(self, number: int, expected: str, got: Any) -> SchemaError:
        return SchemaError(
            f"{self._source}: traceEvents[{number}]: expected {expected}; got {repr(got)[:60]}; "
            f"the trace is damaged: record it again"
        )


class _Functions:
    """Functions of Python and stacks of operators, without those of the framework.

    Attributes
    ----------
    names : list of str
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self._known: dict[str, int] = {}
        self._threads: dict[tuple[Hashable, Hashable], int] = {}
        self._flat = array("q")

    def add(self, event: Mapping[str, Any], name: Any, *, is_stack: bool = False) -> None:
        """Add an event; one that is none of PyTorch's is left out."""
        if not isinstance(name, str) or name.startswith(_BUILT_IN):
            return
        code = self._known.get(name)
        if code is None:
            own = is_stack or python_frame(name)[1] < FRAMEWORK
            code = self._known[name] = len(self.names) if own else -1
            self.names += [name] * own
        start, spent = _ns(event.get("ts")), _ns(event.get("dur", 0))
        if code < 0 or start is None or spent is None or spent < 0:
            return
        given = event.get("pid"), event.get("tid")
        if max(abs(start), spent) < _LATEST_NS and all(isinstance(v, Hashable) for v in given):
            thread = self._threads.setdefault(given, len(self._threads))
            self._flat.extend((start, start + spent, thread, code, is_stack))

    def rows(
        self, threads: Mapping[tuple[Hashable, Hashable], int], origin_ns: int
    ) -> list[tuple[int, int, int, int, int]]:
        """Return rows of `FUNCTIONS` of the threads that did something else, too."""
        known = [threads.get(given) for given in self._threads]
        return [
            (start - origin_ns, end - origin_ns, tid, code, is_stack)
            for start, end, thread, code, is_stack in zip(*[iter(self._flat)] * 5, strict=True)
            if (tid := known[thread]) is not None
        ]


_WHERE: Final = (("device", "pid"), ("stream", "tid"))
"""Places of a GPU operation: its arguments, or its row in the trace."""

_GPU_TABLES: Final = frozenset(
    table for table, columns in _TABLES.items() if "globalPid" in columns
)
_GPU_FACTS: Final = (
    ("numSms", "multiProcessorCount"), ("totalGlobalMem",), ("computeMajor", "major"),
    ("computeMinor", "minor"),
)  # fmt: skip
"""Columns of `TARGET_INFO_GPU`; the second names are those of `computeProperties` (early 2021)."""
_MOST_NAMED: Final = 5


def _write(out: SqliteWriter, table: str, columns: Mapping[str, str], rows: Any) -> None:
    out.create(table, columns)
    out.add(table, len(columns), rows)


def _written(text: str) -> str:
    """Return a text as SQLite holds it: without halves of characters."""
    return text.encode("utf-8", "replace").decode()


def _kind(event: Mapping[str, Any]) -> int | None:
    """Return what an event is; None if it is not read."""
    try:
        return _KINDS.get(event.get("cat", ""))
    except TypeError:  # a list or an object
        return None


def _is_of_xla(event: Mapping[str, Any]) -> bool:
    """Whether an event names a process as the profiler of JAX and TensorFlow does."""
    args = event.get("args")
    name = args.get("name") if isinstance(args, dict) else None
    return isinstance(name, str) and name.startswith(("/device:", "/host:"))


def _unread(event: Mapping[str, Any]) -> str:
    """Name an event that is not read, for an error."""
    if event.get("pid") in _OLD_PROFILER:
        return "events of torch.autograd.profiler, which do not say what launched a kernel"
    category = event.get("cat")
    return f"events of category {repr(category)[:40]}" if category else "events of no category"


def _payload_of_sizes(args: Mapping[str, Any]) -> str | None:
    """Return the same of an operator by the sizes and type of its first tensors, no communicator.

    >>> _payload_of_sizes({"Input Dims": [[], [4, 8]], "Input type": ["", "c10::BFloat16"]})
    '{"NCCL communicator ID": null, "Message size [bytes]": 64}'
    """
    dims, kinds = args.get("Input Dims"), args.get("Input type")
    if not isinstance(dims, list) or not isinstance(kinds, list):
        return None
    for dim, kind in zip(dims, kinds, strict=False):
        item = ITEM_BYTES.get(dtype_named(str(kind)) or "")
        sizes = dim if _is_nested(dim) else [dim]
        if item and dim and all(isinstance(s, list) and all(map(_is_small, s)) for s in sizes):
            size = sum(prod(s) for s in sizes) * item
            return json.dumps({PAYLOAD_COMMUNICATOR: None, PAYLOAD_SIZE: size})
    return None


def _as_of_gpu(event: dict[str, Any]) -> tuple[int | None, dict[str, Any]]:
    """Return what an event of MTIA is, and the event as Kineto writes a GPU's.

    A call that is drawn among the device's rows is drawn among the host's, too.
    """
    name, args = event.get("name"), event.get("args") or {}
    if not isinstance(args, dict):
        return _KERNEL, event
    if event["cat"] == "mtia_runtime":
        return None if event.get("pid") == args.get("device") else _CALL, event
    if name == _MTIA_COPY:
        said = {"name": args.get("direction", name), "args": args | {"bytes": args.get("size")}}
        return _COPY, event | said
    return None if name in _MTIA_ORDER else _KERNEL, event


def _number(value: Any) -> int | None:
    """Return an id, which traces of 2021 write as text; None if it is none that SQLite holds.

    >>> _number("25738"), _number("stream 7"), _number(2**64 - 1), _number("main")
    (25738, 7, -1, None)
    """
    if isinstance(value, str):
        found = _NUMBERED.fullmatch(value)
        value = int(found[1]) if found else None
    if type(value) is int and _LATEST_NS <= value < 1 << 64:
        value -= 1 << 64  # a negative number, written as one without a sign
    return value if _is_small(value) else None


def _is_small(value: Any) -> TypeGuard[int]:
    """Whether a value is a whole number that SQLite holds."""
    return type(value) is int and abs(value) < _LATEST_NS


def _ns(us: Any) -> int | None:
    """Return a time in µs, a whole number or a text with decimals, in ns; None if it is neither.

    >>> _ns("4471160574158.131")
    4471160574158131
    """
    if type(us) is int:
        return us * 1000
    if not isinstance(us, str):
        return None
    whole, _, rest = us.partition(".")
    if len(rest) == 3 and rest.isdecimal() and whole.isdecimal() and len(whole) < 20:
        return int(whole + rest)
    try:
        exact = Decimal(us)
        return round(exact * 1000) if exact.is_finite() and exact.adjusted() < 20 else None
    except InvalidOperation:
        return None


def _label(name: str, args: Mapping[str, Any]) -> str:
    """Return the text that `emit_nvtx` gives an operator's range, with types in place of ids.

    `perfmodel.programs.pytorch.names` parses it. The profiler leaves out the sizes of lists of more
    than 30 tensors (torch/csrc/profiler/util.h): an operator on such a list has none here.

    >>> _label("aten::mm", {"Sequence number": 4, "Input Dims": [[2, 3], [3, 5]],
    ...                     "Input type": ["float", "float"]})
    'aten::mm, seq = 4, sizes = [[2, 3], [3, 5]], types = [float, float]'
    """
    dims = args.get("Input Dims")
    if dims is None:
        dims = args.get("Input dims")  # until early 2021
    if not isinstance(dims, list) or not dims:
        return name
    kinds = args.get("Input type")
    kinds = kinds if isinstance(kinds, list) and len(kinds) == len(dims) else [""] * len(dims)
    sizes: list[Any] = []
    types: list[str] = []
    for dim, kind in zip(dims, kinds, strict=True):
        if kind == _LIST and not dim:
            return name
        parts = dim if _is_nested(dim) else [dim]
        sizes += parts
        types += [str(kind).translate(_NO_BRACKETS)] * len(parts)
    number = args.get("Sequence number")
    seq = f", seq = {number}" if _is_small(number) and number >= 0 else ""
    said = f", types = [{', '.join(types)}]" if any(types) else ""
    return f"{name}{seq}, sizes = {sizes}{said}{_needed(name, args) if said else ''}"


def _needed(name: str, args: Mapping[str, Any]) -> str:
    """Return which gradients a convolution's backward is asked for: its last argument."""
    values = args.get("Concrete Inputs")
    if name != "aten::convolution_backward" or not isinstance(values, list) or not values:
        return ""
    last = str(values[-1])
    return f", needed = {last}" if _BOOLEANS.fullmatch(last) else ""


def _is_nested(dim: Any) -> bool:
    """Whether sizes are those of a list of tensors."""
    return isinstance(dim, list) and bool(dim) and isinstance(dim[0], list)


def _payload(args: Mapping[str, Any]) -> str | None:
    """Return the JSON that NCCL would give its range: communicator and size of this rank's message.

    A communicator is its ranks and name, of which every rank's trace makes the same number.
    """
    counts = [args.get("In msg nelems"), args.get("Out msg nelems")]
    known = [n for n in counts if _is_small(n) and n > 0]
    item = _ITEM_BYTES.get(str(args.get("dtype")))
    if not known or item is None:
        return None
    each = str(args.get("Collective name")).lstrip("_").startswith(_TO_EACH)
    group = f"{args.get('Process Group Name')} {args.get('Process Group Ranks')}"
    digest = hashlib.blake2b(group.encode("utf-8", "replace"), digest_size=8).digest()
    size = (min(known) if each else max(known)) * item
    return json.dumps({PAYLOAD_COMMUNICATOR: int.from_bytes(digest, "big"), PAYLOAD_SIZE: size})


def _three(sizes: Any) -> tuple[int | None, ...]:
    """Return the sizes of a launch; None where they are none."""
    if isinstance(sizes, list) and len(sizes) == 3 and all(type(n) is int for n in sizes):
        return tuple(n if 0 < n < 1 << 31 else None for n in sizes)
    return (None,) * 3


def _as_nsys(kernel: str) -> str:
    """Return a kernel's name with lambdas and unnamed namespaces as Nsight Systems writes them.

    >>> _as_nsys("void f<(anonymous namespace)::g(int)::{lambda(float)#1}>(int)")
    'void f<<unnamed>::g(int)::[lambda(float) (instance 1)]>(int)'
    """
    if "(anonymous namespace)" in kernel:
        kernel = kernel.replace("(anonymous namespace)", "<unnamed>")
    return _LAMBDA.sub(r"[lambda(\1) (instance \2)]", kernel) if "{lambda(" in kernel else kernel


def _copy_kinds(name: str) -> tuple[int, int, int]:
    """Direction of a copy, and the kinds of memory at its ends, by its name.

    >>> _copy_kinds("Memcpy HtoD (Pageable -> Device)")
    (1, 0, 2)
    >>> _copy_kinds("CopyDeviceToHost")
    (2, 2, 7)
    """
    found = _COPY_NAME.match(name)
    if found is None:
        words = _COPY_WORDS.fullmatch(name)
        ends = [word.title() for word in words.group(1, 2)] if words else ["", ""]
        memory = [_MEMORY_CODE.get(end.lower(), _MEMORY_CODE["unknown"]) for end in ends]
        return _COPY_CODE.get("-to-".join(ends), 0), memory[0], memory[1]
    ends = [_PLACES.get(letter, "") for letter in found.group(1, 2)]
    kinds = [_MEMORY_CODE.get((k or "unknown").lower(), 7) for k in found.group(3, 4)]
    return _COPY_CODE.get("-to-".join(ends), 0), kinds[0], kinds[1]
