"""Graph replays: which call of the capture made each replayed kernel, and so its operator.

A replay launches all kernels of a graph at once, inside no operator. The calls that were captured
launched nothing, but lie inside their operators, in the same recording or in one of the capture.
Nsight Systems names the node of each kernel, and when and by which thread it was captured
(`Trace.graph_nodes`). Of others the nodes run in the order of their capture on one stream, so that
the n-th kernel of a replay is the n-th captured call; a capture belongs to a replay if it has as
many, and if what multiplies in one multiplies in the other. Where no capture was recorded,
operators that launched the same kernels one by one in the same order, as a warm-up does, name them
as well.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import Final

import numpy as np

from perfmodel.base.arrays import Int32, Int64
from perfmodel.base.errors import PerfmodelError
from perfmodel.base.kernels import kernel
from perfmodel.programs.pytorch.calls import Calls, Kernels, find_calls
from perfmodel.programs.pytorch.names import OperatorNames, parse
from perfmodel.programs.pytorch.operators import Call, formula_of
from perfmodel.programs.pytorch.tree import Tree
from perfmodel.readers import read
from perfmodel.readers.trace import KERNEL, NO_NAME, Trace
from perfmodel.timing.launched import launched
from perfmodel.timing.nesting import Nesting, innermost, last_moment, nest
from perfmodel.timing.projection import join_launches
from perfmodel.timing.stack_times import nodes_at
from perfmodel.timing.step_report import StepReport

_FILE: Final = tomllib.loads(
    files("perfmodel.programs.pytorch").joinpath("replays.toml").read_text(encoding="utf-8")
)
_NODE: Final = re.compile(_FILE["node"])
_LABELS: Final = tuple(re.compile(row["pattern"]) for row in _FILE["capture"])
_RECORDINGS: Final = (
    ".json", ".json.gz", ".json.xz", ".json.zst", ".sqlite", ".sqlite.gz", ".sqlite.xz",
    ".sqlite.zst",
)  # fmt: skip
_ALIKE: Final = 0.9
"""Share of products and of torch.compile's kernels that must be the same in capture and replay:
a captured operator may choose another kernel only where the library tunes itself."""
_LOST: Final = 0.01
"""Share of the kernels of a replay that may be lost at its end; all others must then be alike."""


_RUNS: Final = 256
"""So many runs without a graph are kept of each graph: more layers have no model of today."""


@dataclass(frozen=True, slots=True)
class Capture:
    """A captured graph: the calls that made its nodes, rows of `ApiCalls`, in their order.

    `tokens` is what the range around it names, None where none does; `ran` says that it is a run
    of the same kernels without a graph.
    """

    call: Int64
    tokens: int | None
    ran: bool = False


@dataclass(frozen=True, slots=True)
class Needed:
    """Tokens and sequences of a step: engines name a capture by the one or the other."""

    tokens: int
    sequences: int


@dataclass(frozen=True, slots=True)
class Replay:
    """The operations of one replay, rows of `GpuOps` by their start; and the launching call."""

    op: Int64
    call: int
    at_ns: int


def captures(trace: Trace) -> tuple[Capture, ...]:
    """Return the graphs that were captured in a recording, in their order."""
    api = trace.api
    names = [trace.strings[code] for code in range(len(trace.strings))]
    begins, ends = (_called(trace, names, _FILE[key]) for key in ("begin", "end"))
    if not len(begins):
        return ()
    makes = np.array([bool(_NODE.match(name)) for name in names], np.bool_)[api.name]
    makes[join_launches(trace, trace.ops, api)[1]] = False  # what ran was not captured
    found = []
    tokens = _tokens_at(trace, tokens_captured)
    for begin in begins.tolist():
        same = ends[(api.thread[ends] == api.thread[begin]) & (ends > begin)]
        until = api.start_ns[same[0]] if len(same) else np.iinfo(np.int64).max
        inside = makes & (api.start_ns > api.start_ns[begin]) & (api.start_ns < until)
        inside &= api.thread == api.thread[begin]
        found.append(Capture(np.flatnonzero(inside), tokens(int(api.start_ns[begin]))))
    return tuple(one for one in found if len(one.call))


def recordings(path: Path) -> tuple[Trace, ...]:
    """Read a recording of captures, or all recordings in a folder: small batches come first.

    Raises
    ------
    PerfmodelError
        If it, or every file of the folder, is no recording.
    """
    files = sorted(path.iterdir()) if path.is_dir() else []
    files = [file for file in files if file.name.endswith(_RECORDINGS)]
    if not files:
        return (read(path),)
    found, problems = [], []
    for file in files:
        try:
            found.append(read(file))
        except PerfmodelError as problem:  # such as what a tool notes beside them
            problems.append(problem)
    if not found:
        raise problems[0]
    return tuple(
        sorted(found, key=lambda one: min((c.tokens or 0 for c in captures(one)), default=0))
    )


TokensOf = Callable[[str], int | None]
"""How many tokens the label of a range names; None where it names none."""


def _tokens_at(trace: Trace, of: TokensOf) -> Callable[[int], int | None]:
    """Return a function that says how many tokens the ranges around a time name."""
    labels = [of(label) for label in trace.range_labels]
    said = np.flatnonzero([one is not None for one in labels])
    rows = np.flatnonzero(np.isin(trace.ranges.name, said))

    def tokens(at: int) -> int | None:
        around = rows[(trace.ranges.start_ns[rows] <= at) & (trace.ranges.end_ns[rows] >= at)]
        return labels[int(trace.ranges.name[around[-1]])] if len(around) else None

    return tokens


def runs_without_graph(
    trace: Trace, wanted: Sequence[Replay], source: Trace, tokens_of: TokensOf
) -> Iterator[Capture]:
    """Yield the runs in which operators launched exactly the operations of a replay, in order."""
    api = source.api
    eager = launched(source)
    graph = np.array([name.startswith(tuple(_FILE["replay"])) for name in source.strings], np.bool_)
    alone = ~graph[api.name[eager.call]]
    codes: dict[tuple[int, str], int] = {}
    order = np.lexsort((eager.at_ns[alone], eager.thread[alone]))
    op, call = eager.op[alone][order], eager.call[alone][order]
    sequence = _codes(source, op, codes)
    tokens = _tokens_at(source, tokens_of)
    for content in {_codes(trace, one.op, codes).tobytes() for one in wanted}:
        one = np.frombuffer(content, np.int64)
        count = len(one)
        starts = np.arange(max(len(sequence) - count + 1, 0))
        for place in dict.fromkeys((0, count - 1, count // 2, count // 3, 2 * count // 3)):
            starts = starts[sequence[starts + place] == one[place]]
        same = (at for at in starts.tolist() if np.array_equal(sequence[at : at + count], one))
        for at, _ in zip(same, range(_RUNS), strict=False):
            rows = call[at : at + count]
            if len(np.unique(api.thread[rows])) == 1:
                yield Capture(rows, tokens(int(api.start_ns[rows[0]])), ran=True)


def _codes(trace: Trace, op: Int64, codes: dict[tuple[int, str], int]) -> Int64:
    """Number operations by what they are and their names, in several recordings alike."""
    kinds, names = trace.ops.kind[op].astype(np.int64), trace.ops.name[op].astype(np.int64)
    pairs, place = np.unique(np.column_stack([kinds, names]), axis=0, return_inverse=True)
    found = [
        codes.setdefault((kind, trace.strings[name] if name >= 0 else ""), len(codes))
        for kind, name in pairs.tolist()
    ]
    return np.array(found, np.int64)[place.reshape(-1)] if found else np.empty(0, np.int64)


def _called(trace: Trace, names: Sequence[str], wanted: Sequence[str]) -> Int64:
    chosen = np.array([name.startswith(tuple(wanted)) for name in names], np.bool_)
    return np.flatnonzero(chosen[trace.api.name]) if len(names) else np.empty(0, np.int64)


def tokens_captured(label: str) -> int | None:
    """Return the tokens that the label of a capture names; None if it names none."""
    found = (pattern.match(label) for pattern in _LABELS)
    return next((int(match["tokens"]) for match in found if match), None)


def replays(trace: Trace, steps: StepReport) -> tuple[Replay, ...]:
    """Return the replays in the steps of a recording, in the order of their launch."""
    known = np.array([name.startswith(tuple(_FILE["replay"])) for name in trace.strings], np.bool_)
    if not known.any():
        return ()
    found = launched(trace)
    mine = np.isin(found.op, steps.times.ops.op) & known[trace.api.name[found.call]]
    op, call = found.op[mine], found.call[mine]
    order = np.lexsort((trace.ops.start_ns[op], call))
    op, call = op[order], call[order]
    cuts = np.flatnonzero(np.diff(call)) + 1
    each = [part for part in np.split(op, cuts) if len(part)]
    first = call[np.append(0, cuts)].tolist() if len(call) else []
    made = [
        Replay(part, row, int(trace.api.start_ns[row]))
        for part, row in zip(each, first, strict=True)
    ]
    return tuple(sorted(made, key=lambda one: one.at_ns))


def with_replays(
    trace: Trace,
    steps: StepReport,
    calls: Calls,
    source: Trace,
    tokens: Sequence[Needed | None],
    dtype: str | None = None,
    *,
    causal: bool = False,
    tokens_of: TokensOf = tokens_captured,
    done: Set[int] = frozenset(),
) -> Joined:
    """Give replayed kernels the operators of their capture.

    Parameters
    ----------
    trace, steps : Trace, StepReport
        The recording with the replays.
    calls : Calls
        Its calls, one owner for every operation of `steps`.
    source : Trace
        The recording with the captures, which may be the same.
    tokens : sequence of Needed or None
        Of every step, where they are known: of captures that fit, the smallest for as many.
    dtype, causal
        As `calls.find_calls`.
    tokens_of : callable
        Tokens that the ranges around runs without a graph name.
    done : set of int
        Replays, by their launching call, that another recording has named.
    """
    every = replays(trace, steps)
    total = sum(len(one.op) for one in every)
    wanted = [one for one in every if one.call not in done]
    if not wanted:
        return Joined(calls, total)
    ops = steps.times.ops
    place = np.full(int(max(ops.op.max(initial=0), 0)) + 1, -1)
    place[ops.op] = np.arange(len(ops.op))
    names = parse((*source.range_labels, ""), cut=source.numbers is not None)
    groups = _by_node(trace, wanted) if source is trace else []
    if groups:
        nesting = _nested(source, np.concatenate([group.thread for group in groups]))
    else:
        needed = [tokens[int(ops.step[place[one.op[0]]])] for one in wanted]
        available = captures(source)
        nesting = _nested(source, _threads(source, available))
        groups = _by_count(trace, wanted, source, available, nesting, names, needed)
        if sum(len(group.ops) for group in groups) < len(wanted):
            available += tuple(runs_without_graph(trace, wanted, source, tokens_of))
            nesting = _nested(source, _threads(source, available))
            groups = _by_count(trace, wanted, source, available, nesting, names, needed)
        if not groups:
            return Joined(calls, total)
    tree = Tree(
        source.ranges.name[nesting.row], nesting.parent, nesting.start_ns, nesting.thread,
        source.ranges.number[nesting.row], source.numbers,
    )  # fmt: skip
    owner, phase, module = calls.owner.copy(), [*calls.phase], [*calls.module]
    more: list[Call] = [*calls.calls]
    matched = 0
    spent: dict[tuple[str, int], Counter[str]] = {}
    for group in groups:
        op = group.ops[0]
        node = innermost(nesting, group.thread, group.at_ns, group.at_ns)
        kernels = Kernels(
            node, trace.ops.name[op], trace.ops.kind[op],
            (trace.ops.end_ns - trace.ops.start_ns)[op], trace.ops.bytes[op], trace.strings,
        )  # fmt: skip
        its = find_calls(names, tree, kernels, dtype, causal=causal)
        used, code = np.unique(its.owner[its.owner >= 0], return_inverse=True)
        for one in group.ops:
            at = place[one]
            owner[at] = -1
            owner[at[its.owner >= 0]] = code + len(more)
            more += [its.calls[i] for i in used.tolist()]
            for i, where in enumerate(at.tolist()):
                phase[where], module[where] = its.phase[i], its.module[i]
            matched += len(at)
        if source is not trace:
            _place(trace, source, group, spent)
    found = replace(calls, calls=tuple(more), owner=owner, phase=tuple(phase), module=tuple(module))
    call_of = {int(one.op.min()): one.call for one in wanted}
    now = {call_of.get(int(one.min()), -1) for group in groups for one in group.ops}
    return Joined(found, total, matched, _most(spent), frozenset(now))


Places = Mapping[str, tuple[str | None, str | None]]


@dataclass(frozen=True, slots=True)
class Joined:
    """Calls with those of replayed graphs.

    Attributes
    ----------
    calls : Calls
    replayed, matched : int
        Operations that were replayed, and those of them with a captured call.
    places : mapping of str to (str or None, str or None)
        Line and module of the capture in another recording, by kernel.
    done : frozenset of int
        Launching calls of the replays that were named.
    """

    calls: Calls
    replayed: int
    matched: int = 0
    places: Places = field(default_factory=dict)
    done: frozenset[int] = frozenset()


def _place(
    trace: Trace, source: Trace, group: _Group, spent: dict[tuple[str, int], Counter[str]]
) -> None:
    """Add the time of replayed kernels up by the line and the module of their capture."""
    stacks = source.stacks
    nodes = nodes_at(source, group.thread, group.at_ns)
    lasted = np.sum([trace.ops.end_ns[one] - trace.ops.start_ns[one] for one in group.ops], axis=0)
    names, kinds = trace.ops.name[group.ops[0]], trace.ops.kind[group.ops[0]]
    for i in np.flatnonzero((nodes >= 0) & (kinds == KERNEL) & (names >= 0)).tolist():
        name, node = trace.strings[names[i]], nodes[i]
        texts = (stacks.line[node], stacks.frames), (stacks.module[node], stacks.modules)
        for which, (code, known_as) in enumerate(texts):
            if code >= 0:
                held = spent.setdefault((name, which), Counter())
                held[known_as[code]] += int(lasted[i])


def _most(spent: Mapping[tuple[str, int], Counter[str]]) -> Places:
    """Return the line and the module of each kernel that have most of its time."""
    most = {key: held.most_common(1)[0][0] for key, held in spent.items()}
    return {name: (most.get((name, 0)), most.get((name, 1))) for name, _ in most}


@dataclass(frozen=True, slots=True)
class _Group:
    """Replays of one graph: the operations of each, and where the calls were captured.

    Attributes
    ----------
    ops : list of int64 array, shape (k,)
        Rows of `GpuOps`, in the order of the captured calls.
    thread : int32, shape (k,)
    at_ns : int64, shape (k,)
    """

    ops: list[Int64]
    thread: Int32
    at_ns: Int64


def _by_node(trace: Trace, wanted: Sequence[Replay]) -> list[_Group]:
    """Group replays whose operations name their nodes, by these nodes."""
    groups: dict[bytes, _Group] = {}
    for one in wanted:
        node = trace.ops.node[one.op]
        order = np.argsort(node, kind="stable")
        order = order[node[order] >= 0]
        rows = node[order]
        if not len(rows):
            continue
        where = trace.graph_nodes
        group = _Group([], where.thread[rows], where.start_ns[rows])
        groups.setdefault(rows.tobytes(), group).ops.append(one.op[order])
    return [*groups.values()]


def _by_count(
    trace: Trace,
    wanted: Sequence[Replay],
    source: Trace,
    available: Sequence[Capture],
    nesting: Nesting,
    names: OperatorNames,
    tokens: Sequence[Needed | None],
) -> list[_Group]:
    """Group replays by the capture with as many calls, in the order in which they run."""
    api = source.api
    nodes = [
        innermost(nesting, api.thread[one.call], api.start_ns[one.call], api.start_ns[one.call])
        for one in available
    ]
    products = [bool(formula_of(name).product == "gemm") for name in names.name]
    labels = source.ranges.name[nesting.row]
    chosen = _chosen(trace, wanted, available, nodes, labels, names.name, products, tokens)
    groups: dict[tuple[int, int], _Group] = {}
    for one, number in zip(wanted, chosen, strict=True):
        if number is not None:
            call = available[number].call[: len(one.op)]
            group = _Group([], api.thread[call], api.start_ns[call])
            groups.setdefault((number, len(call)), group).ops.append(one.op)
    return [*groups.values()]


def _threads(source: Trace, available: Sequence[Capture]) -> Int32:
    found = [source.api.thread[one.call] for one in available]
    return np.concatenate(found) if found else np.empty(0, np.int32)


def _nested(source: Trace, threads: Int32) -> Nesting:
    """Nest the ranges of the processes of some threads."""
    processes = np.unique(source.thread_process[threads])
    mine = np.isin(source.thread_process[source.ranges.thread], processes)
    mine &= ~source.ranges.other_thread & (source.ranges.name != NO_NAME)
    rows = np.flatnonzero(mine)
    return nest(source.ranges, len(source.threads), rows, last_moment(source.ranges))


def _chosen(
    trace: Trace,
    wanted: Sequence[Replay],
    available: Sequence[Capture],
    nodes: Sequence[Int64],
    labels: Int32 | Int64,
    names: Sequence[str],
    products: Sequence[bool],
    tokens: Sequence[Needed | None],
) -> tuple[int | None, ...]:
    """Choose the capture of every replay: one that fits, after that of the replay before."""
    fits: dict[tuple[int, bytes], bool] = {}
    found: list[int | None] = []
    last = -1
    for one, needed in zip(wanted, tokens, strict=True):
        order = sorted(
            range(len(available)),
            key=lambda i: (_excess(available[i].tokens, needed), (i - last - 1) % len(available)),
        )
        content = trace.ops.name[one.op].tobytes()
        best = None
        for i in order:
            missing = len(available[i].call) - len(one.op)
            if not 0 <= missing <= _LOST * len(one.op):
                continue
            if not _holds(available[i], needed):
                continue
            key = i, content
            if key not in fits:
                node, alike = nodes[i][: len(one.op)], 1.0 if missing else _ALIKE
                fits[key] = _fits(trace, one, node, labels, names, products, alike)
            if fits[key]:
                best = i
                break
        found.append(best)
        last = last if best is None else best
    return tuple(found)


def _holds(capture: Capture, needed: Needed | None) -> bool:
    """Whether a step may replay a capture, which is padded to a larger batch; or be such a run.

    Engines capture all powers of 2, so that a batch is padded to less than twice its tokens.
    """
    if capture.tokens is None or needed is None:
        return True
    if capture.ran:
        return needed.tokens <= capture.tokens < 2 * needed.tokens
    return capture.tokens >= needed.sequences


def _excess(captured: int | None, needed: Needed | None) -> int:
    """Tokens by which a capture is too large; the more, the worse; far worse if it is too small."""
    if captured is None or needed is None:
        return 0
    more = captured - needed.tokens
    return more if more >= 0 else (1 << 32) - more


def _fits(
    trace: Trace,
    one: Replay,
    node: Int64,
    labels: Int32 | Int64,
    names: Sequence[str],
    products: Sequence[bool],
    alike: float,
) -> bool:
    """Whether GEMMs were captured where GEMMs run, and torch.compile's kernels where these run."""
    checked = same = 0
    for op, at in zip(one.op.tolist(), node.tolist(), strict=True):
        label = int(labels[at]) if at >= 0 else -1
        if label < 0 or trace.ops.kind[op] != KERNEL:
            continue
        name = trace.strings[trace.ops.name[op]]
        if products[label]:
            checked, same = checked + 1, same + kernel(name).multiplies
        elif names[label].startswith("triton_"):
            checked, same = checked + 1, same + (name == names[label])
    return checked > 0 and same >= alike * checked
