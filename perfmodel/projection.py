"""GPU projection: which operations every NVTX range launched, and when they ran on the GPU."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfmodel.ranges import Nesting, enclosing_pairs, innermost, join_launches
from perfmodel.trace import GpuOps, Int64, Trace


@dataclass(frozen=True, slots=True)
class Launches:
    """GPU operations joined to the API calls that launched them, and these to ranges.

    Attributes
    ----------
    op, call : int64, shape (k,)
        Row pairs of `GpuOps` and `ApiCalls`, one per launched operation.
    inner : int64, shape (k,)
        Innermost enclosing range (position in the nesting), -1 outside all ranges and where a
        call's ranges are listed in pairs.
    crossing_range, crossing_pair : int64
        All (range, index into `op`) pairs of calls that one chain of nested ranges does not
        describe: on threads whose ranges cross, and calls of no length.
    repeated_ids : bool
        Whether several API calls of one process may share a correlation id.
    """

    op: Int64
    call: Int64
    inner: Int64
    crossing_range: Int64
    crossing_pair: Int64
    repeated_ids: bool


@dataclass(frozen=True, slots=True)
class Projection:
    """The ranges that launched GPU work, and its extent.

    Attributes
    ----------
    range : int64, shape (r,)
        Positions in the nesting, ascending.
    start_ns, end_ns : int64, shape (r,)
        Earliest start and latest end of the operations inside, those of inner ranges included.
    ops : int64, shape (r,)
        Distinct correlation ids inside, as Nsight Systems counts GPU operations.
    """

    range: Int64
    start_ns: Int64
    end_ns: Int64
    ops: Int64


def attribute(trace: Trace, nesting: Nesting, ops: GpuOps) -> Launches:
    """Attribute every operation to the ranges that enclose its API call on the same thread."""
    api = trace.api
    op, call, repeated = join_launches(trace, ops, api)
    used = np.zeros(len(api), np.bool_)
    used[call] = True
    calls = np.flatnonzero(used)
    thread, start, end = api.thread[calls], api.start_ns[calls], api.end_ns[calls]
    inner_of_call = np.full(len(api), -1, np.int64)
    inner_of_call[calls] = innermost(nesting, thread, start, end)
    crossing = np.empty(0, np.int64), np.empty(0, np.int64)
    one_by_one = np.flatnonzero(nesting.crossing[thread] | (start == end))
    if len(one_by_one):
        inner_of_call[calls[one_by_one]] = -1
        holder, at = enclosing_pairs(
            nesting, thread[one_by_one], start[one_by_one], end[one_by_one]
        )
        crossing = _pairs_of_calls(holder, calls[one_by_one[at]], call, len(api))
    return Launches(op, call, inner_of_call[call], *crossing, repeated)


def _pairs_of_calls(
    holder: Int64, held_call: Int64, call: Int64, call_count: int
) -> tuple[Int64, Int64]:
    """Turn (range, call) pairs into (range, index into `call`) pairs."""
    order = np.argsort(call, kind="stable")
    lo = np.searchsorted(call[order], np.arange(call_count), side="left")
    hi = np.searchsorted(call[order], np.arange(call_count), side="right")
    count = (hi - lo)[held_call]
    offset = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    return np.repeat(holder, count), order[np.repeat(lo[held_call], count) + offset]


def project(trace: Trace, nesting: Nesting, ops: GpuOps) -> Projection:
    """Project ranges onto the GPU: from their first operation's start to their last one's end.

    Source of the definition: Nsight Systems' `nvtx_gpu_proj_sum` report, matched to the digit.
    """
    launches = attribute(trace, nesting, ops)
    if len(nesting) == 0 or len(launches.op) == 0:
        none = np.empty(0, np.int64)
        return Projection(none, none, none, none)
    low = np.full(len(nesting), np.iinfo(np.int64).max)
    high = np.full(len(nesting), np.iinfo(np.int64).min)
    lo, hi, order = spans_of_subtrees(nesting, launches.inner)
    full = np.flatnonzero(hi > lo)
    if len(full):
        bounds = np.column_stack([lo[full], hi[full]]).ravel()
        rows = launches.op[order]
        pad = ops.start_ns[rows[-1:]]
        low[full] = np.minimum.reduceat(np.append(ops.start_ns[rows], pad), bounds)[::2]
        high[full] = np.maximum.reduceat(np.append(ops.end_ns[rows], pad), bounds)[::2]
    held = launches.op[launches.crossing_pair]
    np.minimum.at(low, launches.crossing_range, ops.start_ns[held])
    np.maximum.at(high, launches.crossing_range, ops.end_ns[held])
    hit = np.flatnonzero(high > np.iinfo(np.int64).min)
    counts = _distinct_correlations(trace, nesting, launches)
    return Projection(hit, low[hit], high[hit], counts[hit])


def spans_of_subtrees(nesting: Nesting, inner: Int64) -> tuple[Int64, Int64, Int64]:
    """Sort items by innermost range, so that every range's items are one slice.

    Returns
    -------
    lo, hi : int64, shape (len(nesting),)
        Range i and the ranges inside it hold the items ``order[lo[i]:hi[i]]``.
    order : int64
        Items inside any range, in preorder of their ranges.
    """
    inside = np.flatnonzero(inner >= 0)
    mine = inner[inside]
    if (mine[1:] < mine[:-1]).any():
        order = np.argsort(mine, kind="stable")
        inside, mine = inside[order], mine[order]
    first = np.concatenate([[0], np.cumsum(np.bincount(mine, minlength=len(nesting)))])
    position = np.arange(len(nesting))
    return first[position], first[position + nesting.subtree_sizes()], inside


def _distinct_correlations(trace: Trace, nesting: Nesting, launches: Launches) -> Int64:
    """Count each range's distinct correlation ids (its process is fixed by its thread)."""
    if not launches.repeated_ids and len(launches.crossing_pair) == 0:
        _, at = np.unique(launches.call, return_index=True)
        lo, hi, _ = spans_of_subtrees(nesting, launches.inner[at])
        return hi - lo
    holder, pair = all_pairs(nesting, launches)
    ids = trace.api.correlation[launches.call[pair]]
    distinct = np.unique(np.column_stack([holder, ids]), axis=0)
    return np.bincount(distinct[:, 0], minlength=len(nesting)).astype(np.int64)


def all_pairs(nesting: Nesting, launches: Launches) -> tuple[Int64, Int64]:
    """Return all (range, index into `launches.op`) pairs: every range with all that it encloses.

    Memory grows with operations times depth; summaries use `spans_of_subtrees` instead.
    """
    holders, pairs = [launches.crossing_range], [launches.crossing_pair]
    pair = np.flatnonzero(launches.inner >= 0)
    holder = launches.inner[pair]
    while len(pair):
        holders.append(holder)
        pairs.append(pair)
        holder = nesting.parent[holder]
        pair, holder = pair[holder >= 0], holder[holder >= 0]
    return np.concatenate(holders), np.concatenate(pairs)
