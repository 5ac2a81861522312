"""JAX: steps and HLO operations from the ranges of XLA."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from perfmodel.base.arrays import Bool, Int64
from perfmodel.base.units import si
from perfmodel.programs.actions import Actions
from perfmodel.programs.identify import Identity
from perfmodel.programs.program import UNNAMED_STEP, Options, Program
from perfmodel.readers.trace import Trace, without_doubtful_sizes
from perfmodel.readers.trace import rows as select
from perfmodel.timing.candidates import find_steps, held_share
from perfmodel.timing.intervals import lengths
from perfmodel.timing.launched import Launched, Parts, launched
from perfmodel.timing.levels import at_level
from perfmodel.timing.nesting import Nesting, closed_ends, innermost, nest
from perfmodel.timing.operator_times import OperatorKey, OperatorTimes
from perfmodel.timing.spans import Candidate, Steps, relabel, with_steps
from perfmodel.timing.step_report import StepReport

_DOMAIN: Final = "TSL"
_MODULE: Final = re.compile(r"XlaModule:#(?:.*?,)?hlo_module=([^,#]+)(,program_id=)?")
_NUMBER: Final = re.compile(r"[._]\d+$")
_THUNK: Final = re.compile(r"Thunk:#(?:name=(?P<name>[^,#]*),)?hlo_op=(?P<op>[^,#]+)")

_COMPILE: Final = re.compile(r"Xla(?:Compile|PassPipeline|CreateGpuExecutable|EmitGpuAsm)")
_MUCH: Final = 0.2
"""Share that is worth a warning: of a recording in which XLA compiles, of graphs not recorded."""
_GRAPH: Final = "command_buffer"
"""XLA's name of the thunks that launch CUDA graphs."""
_NO_SIZES: Final = (
    "FLOPs, bytes and MFU are unknown: XLA's ranges name no sizes; "
    "jax.jit(step).lower(...).compile().cost_analysis() counts those of a step"
)


def is_jax(trace: Trace) -> bool:
    """Whether a report is of a JAX program: by the ranges of XLA's thunks and modules."""
    return any(
        domain == _DOMAIN and (_THUNK.match(label) or _MODULE.match(label))
        for domain, label in zip(trace.range_domains, trace.range_labels, strict=True)
    )


def _modules(trace: Trace) -> list[str | None]:
    """Name of the program's module that each label is of; None for all other labels.

    Where some modules have a number, the autotuner's candidates have none: they are no part of the
    program.
    """
    found = [
        _MODULE.match(label) if domain == _DOMAIN else None
        for domain, label in zip(trace.range_domains, trace.range_labels, strict=True)
    ]
    numbered = any(match and match[2] for match in found)
    return [match[1] if match and (match[2] or not numbered) else None for match in found]


def own_ranges(trace: Trace) -> Trace:
    """The trace with the program's own ranges, and XLA's modules by their name.

    Modules end as `_ended` says.
    """
    names = dict(zip(trace.range_labels, _modules(trace), strict=True))
    trace = _ended(trace)
    return relabel(trace, lambda domain, text: names[text] if domain == _DOMAIN else text)


def _ended(trace: Trace) -> Trace:
    """The trace with an end of every module before the modules that it cannot hold.

    XLA executes no module within itself, and one whose callbacks execute others goes on with its
    thunks: a range that holds its own module again, or another one several times with no own
    thunk after the first, has lost its end. It ends where the first of them starts.
    """
    ranges = trace.ranges
    found = _modules(trace)
    code = {name: i for i, name in enumerate(dict.fromkeys(found)) if name}
    module = np.array([code.get(name or "", -1) for name in found] + [-1], np.int64)[ranges.name]
    rows = np.flatnonzero((module >= 0) & ~ranges.other_thread)
    end = closed_ends(ranges)
    order = rows[np.lexsort((ranges.start_ns[rows], module[rows], ranges.thread[rows]))]
    row, after = order[:-1], order[1:]
    same = (ranges.thread[row] == ranges.thread[after]) & (module[row] == module[after])
    again = same & (end[row] > ranges.start_ns[after])
    end[row[again]] = ranges.start_ns[after[again]]
    while len(rows):  # one that lost its end may hold another one that did
        row, first_ns = _holding_several(replace(trace, ranges=replace(ranges, end_ns=end)), module)
        earlier = first_ns < end[row]
        end[row[earlier]] = first_ns[earlier]
        if not earlier.any():
            break
    changed = end != closed_ends(ranges)
    return replace(trace, ranges=replace(ranges, end_ns=np.where(changed, end, ranges.end_ns)))


def _holding_several(trace: Trace, module: Int64) -> tuple[Int64, Int64]:
    """Rows of modules that hold another one several times, and no own thunk after its first start.

    Parameters
    ----------
    trace : Trace
    module : int64, shape (ranges,)
        Which module of the program each range is, -1 for none.

    Returns
    -------
    rows, first_ns : int64 arrays
        The ranges, and when the first one inside starts.
    """
    ranges = trace.ranges
    texts = [
        text if domain == _DOMAIN else ""
        for domain, text in zip(trace.range_domains, trace.range_labels, strict=True)
    ]
    candidate, thunk = (
        np.array([bool(name.match(text)) for text in (*texts, "")], np.bool_)[ranges.name]
        for name in (_MODULE, _THUNK)
    )
    nesting = nest(ranges, len(trace.threads), np.flatnonzero(candidate & ~ranges.other_thread))
    start, at = ranges.start_ns, np.flatnonzero(thunk)
    own = innermost(nesting, ranges.thread[at], start[at], start[at])
    last_ns = np.full(len(nesting) + 1, np.iinfo(np.int64).min)
    np.maximum.at(last_ns, own, start[at])  # those in no module are the last one's
    inside = np.flatnonzero((nesting.parent >= 0) & (module[nesting.row] >= 0))
    inside = inside[module[nesting.row[nesting.parent[inside]]] >= 0]
    pairs = np.column_stack([nesting.parent[inside], module[nesting.row[inside]]])
    found, first, count = np.unique(pairs, axis=0, return_index=True, return_counts=True)
    outer, first_ns = found[:, 0], nesting.start_ns[inside[first]]
    lost = (count > 1) & (last_ns[outer] < first_ns)
    order = np.lexsort((first_ns[lost], outer[lost]))
    outer, at = np.unique(outer[lost], return_index=True)
    return nesting.row[outer], first_ns[lost][order][at]


def executing(trace: Trace, parts: Parts | None) -> Parts:
    """Return the parts with what the program's modules launch, without compiling and autotuning.

    All that is launched counts where none of it is in a module.

    Parameters
    ----------
    trace : Trace
        With all its ranges.
    parts : callable, optional
        As `perfmodel.timing.candidates.find_steps`.
    """
    if parts is None:
        everything = [(trace, launched(trace))]
        parts = everything.copy
    is_module = np.array([m is not None for m in _modules(trace)] + [False], np.bool_)
    rows = np.flatnonzero(is_module[trace.ranges.name])
    nesting = nest(_ended(trace).ranges, len(trace.threads), rows)

    def held(found: Launched) -> Bool:
        return innermost(nesting, found.thread, found.at_ns, found.at_ns) >= 0

    if not any(held(found).any() for _, found in parts()):
        return parts

    def inside() -> Iterable[tuple[Trace, Launched]]:
        for part, found in parts():
            yield part, select(found, held(found))

    return inside


def find_module_steps(
    trace: Trace, asked: str | None, parts: Parts, agreed: Candidate | None = None
) -> Steps:
    """Find the steps: the program's own ranges, else the module with most of the GPU's work.

    XLA runs ahead of the GPU and launches small modules between two steps: a step that is a module
    lasts until the next one starts. A process with several GPUs executes the module on one thread
    for each: a step starts with the first of them.

    Parameters
    ----------
    trace : Trace
        Of `own_ranges`.
    asked, parts
        As `perfmodel.timing.candidates.find_steps`.
    """
    found = find_steps(trace, asked, parts, agreed)
    modules = {
        text
        for domain, text in zip(trace.range_domains, trace.range_labels, strict=True)
        if domain == _DOMAIN
    }
    if found.found_by not in ("asked", "declared") or found.label not in modules:
        return found
    found = _on_all_threads(trace, found)
    end = found.end_ns.copy()
    same = found.process[1:] == found.process[:-1]
    end[:-1] = np.where(same, found.start_ns[1:] - 1, end[:-1])
    found = replace(found, end_ns=end)
    return replace(found, confidence=held_share(trace, found, parts))


def _on_all_threads(trace: Trace, steps: Steps) -> Steps:
    """Begin each step on the thread that is first, of those that execute as many as it has.

    Where there are several, the steps are no ranges.
    """
    ranges, start, row = trace.ranges, steps.start_ns.copy(), steps.row.copy()
    module = _called(trace, steps.label)
    for process in np.unique(steps.process).tolist():
        mine = np.flatnonzero(steps.process == process)
        others = np.setdiff1d(np.flatnonzero(trace.thread_process == process), steps.thread[mine])
        for thread in others.tolist():
            there = np.sort(ranges.start_ns[module & (ranges.thread == thread)])
            if len(there) == len(mine):
                start[mine] = np.minimum(start[mine], there)
                row[mine] = -1
    return replace(steps, start_ns=start, row=row)


def _called(trace: Trace, label: str) -> Bool:
    """Return whether each range has a label."""
    is_label = np.array([text == label for text in (*trace.range_labels, "")], np.bool_)
    chosen: Bool = is_label[trace.ranges.name]
    return chosen


def hlo_operation(label: str) -> tuple[str, str] | None:
    """Name of the source operation and of the HLO operation of a thunk's range.

    >>> hlo_operation("Thunk:#name=jit(f)/jvp()/dot_general,hlo_op=gemm_fusion_dot.178,x=1#")
    ('jit(f)/jvp()/dot_general', 'gemm_fusion_dot.178')
    """
    match = _THUNK.match(label)
    return (match["name"] or "", match["op"]) if match else None


def hlo_times(trace: Trace, steps: StepReport) -> OperatorTimes | None:
    """GPU time of the HLO operations of every step, without FLOPs; None if no thunk has any.

    An operation belongs to the innermost thunk that was open on its thread when it was launched.

    Parameters
    ----------
    trace : Trace
        Whole, with all its ranges.
    steps : StepReport
        Of the same trace.
    """
    thunks = [hlo_operation(label) for label in trace.range_labels]
    inside = steps.times.ops
    found = launched(trace)
    at = np.searchsorted(found.op, inside.op)
    chosen = np.array([t is not None for t in thunks] + [False], np.bool_)[trace.ranges.name]
    nesting = nest(trace.ranges, len(trace.threads), np.flatnonzero(chosen))
    node = innermost(nesting, found.thread[at], found.at_ns[at], found.at_ns[at])
    held = np.flatnonzero(node >= 0)
    lost = tuple(_unrecorded_graphs(trace, nesting, found))
    if len(held) == 0 and not lost:
        return None
    names = trace.ranges.name[nesting.row[node[held]]]
    keys = {int(name): _hlo_key(*(thunks[name] or ("", ""))) for name in np.unique(names)}
    codes: dict[OperatorKey, int] = {}
    for key in keys.values():
        codes.setdefault(key, len(codes))
    code = np.array([codes[keys[name]] for name in names.tolist()], np.int64)
    op = inside.op[held]
    number = steps.steps.number[inside.step[held]].astype(np.int64)
    cells = np.column_stack([code, inside.lane[held], number])
    rows, row = np.unique(cells, axis=0, return_inverse=True)
    row = row.ravel()
    calls = np.unique(np.column_stack([row, node[held]]), axis=0)[:, 0]
    none = np.zeros(len(rows), np.int64)
    return OperatorTimes(
        keys=tuple(codes),
        key=rows[:, 0],
        lane=rows[:, 1],
        step=rows[:, 2],
        count=np.bincount(calls, minlength=len(rows)).astype(np.int64),
        kernels=np.bincount(row, minlength=len(rows)).astype(np.int64),
        flops=none,
        read_bytes=none,
        write_bytes=none,
        fusible_bytes=none,
        gpu_ns=lengths(row, trace.ops.start_ns[op], trace.ops.end_ns[op], len(rows)),
        lanes=len(steps.times.process),
        warnings=(_NO_SIZES, *lost, *_compiling(trace, steps.steps)),
        source="none",
    )


def _unrecorded_graphs(trace: Trace, thunks: Nesting, found: Launched) -> Iterator[str]:
    """Say that XLA executes CUDA graphs of which no operation was recorded."""
    held = innermost(thunks, found.thread, found.at_ns, found.at_ns)
    launching = np.bincount(held[held >= 0], minlength=len(thunks.row)) > 0
    operations = (hlo_operation(label) for label in trace.range_labels)
    graphs = [bool(operation and operation[1].startswith(_GRAPH)) for operation in operations]
    is_graph = np.array([*graphs, False], np.bool_)[trace.ranges.name[thunks.row]]
    lost, every = int((is_graph & ~launching).sum()), int(is_graph.sum())
    if lost > _MUCH * every:
        yield (
            f"{lost} of {every} executions of XLA's command buffers, which are CUDA graphs, have "
            f"no GPU operation in the report: GPU times are too short, and idle times too long; "
            f"record with XLA_FLAGS=--xla_gpu_enable_command_buffer= (none), "
            f"or nsys profile --cuda-graph-trace=node"
        )


def _compiling(trace: Trace, steps: Steps) -> Iterator[str]:
    """Say that a recording of one step is mostly compilation."""
    if (steps.number > 0).any():
        return
    compiles = [
        domain == _DOMAIN and bool(_COMPILE.match(label))
        for domain, label in zip(trace.range_domains, trace.range_labels, strict=True)
    ]
    rows = np.flatnonzero(np.array([*compiles, False], np.bool_)[trace.ranges.name])
    start, end = trace.ranges.start_ns[rows], closed_ends(trace.ranges)[rows]
    seconds = float(lengths(np.zeros(len(rows), np.int64), start, end, 1)[0]) * 1e-9
    first = min(int(steps.start_ns.min()), int(start.min(initial=steps.start_ns.min())))
    recorded = float(steps.end_ns.max() - first) * 1e-9
    if seconds > _MUCH * recorded:
        yield (
            f"XLA compiles and tunes kernels in {si(seconds, 's')} of the {si(recorded, 's')} "
            f"recorded, and nothing else repeats: record steps after the first ones, with nsys "
            f"profile --delay or --capture-range=cudaProfilerApi"
        )


def _hlo_key(source: str, operation: str) -> OperatorKey:
    """Operations of one kind: the HLO name without its number, by the phase of its source."""
    name = _NUMBER.sub("", operation)
    phase = "backward" if "transpose(" in source else "forward" if "jvp(" in source else ""
    function = source.rpartition("/")[2]
    shown = f"{name} ({function})" if function and function not in name else name
    return OperatorKey(shown, phase, "", "", "", "", False, False)


ACTIONS: Final = Actions(texts={
    "launch_less":
        "launch less: jit the whole step as one function, several steps by jax.lax.scan; "
        "XLA_FLAGS=--xla_gpu_enable_command_buffer=FUSION,CUBLAS,CUSTOM_CALL",
    "wait_less": "call block_until_ready, float() and print on device arrays every n steps only",
    "allocate_less": "jit(step, donate_argnums=...), and leave XLA_PYTHON_CLIENT_PREALLOCATE on",
    "load_ahead": "prefetch batches{where} by a thread and jax.device_put, a step ahead",
    **dict.fromkeys(
        ("pin in", "pin out"),
        "jax.device_put the next batch while this one computes; keep data on the GPU",
    ),
    "lower_precision": "jax.default_matmul_precision('tensorfloat32'), or bfloat16 arrays",
    "fuse_attention": "jax.nn.dot_product_attention(q, k, v, implementation='cudnn')",
    "fuse_small": "put the operations into one jitted function, so that XLA fuses them",
})  # fmt: skip
"""Calls of JAX against each loss."""


class JaxProgram(Program):
    """See `perfmodel.programs.program.Program`."""

    name: str = "jax"

    def recognizes(self, trace: Trace, options: Options) -> bool:
        """Whether ranges are those of XLA."""
        return is_jax(trace)

    def steps(
        self, trace: Trace, options: Options, parts: Parts | None = None
    ) -> tuple[Trace, Steps]:
        """Return the trace with XLA's modules, without thunks, and steps of what they launch."""
        own = own_ranges(without_doubtful_sizes(trace))
        choice = options.batch_label, executing(trace, parts), options.agreed
        found = find_module_steps(own, *choice)
        several = found.declared and (found.row < 0).any()
        if several:  # the ranges that are made for them have the modules' name
            kept = ~_called(own, found.label)
            own = replace(own, ranges=select(own.ranges, kept))
        if options.level:
            found = at_level(own, found, options.level, executing(trace, parts))
        return with_steps(own, found, UNNAMED_STEP)

    def has_operators(self, trace: Trace, options: Options) -> bool:
        """Whether there are ranges of thunks."""
        return any(map(hlo_operation, trace.range_labels))

    def operators(self, trace: Trace, steps: StepReport, options: Options) -> OperatorTimes | None:
        """Return the times of HLO operations."""
        return hlo_times(trace, steps)

    def actions(self, identity: Identity) -> Actions:
        """Return what to call in JAX."""
        return ACTIONS


JAX_PROGRAM: Final = JaxProgram()
