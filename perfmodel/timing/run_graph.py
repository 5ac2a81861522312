"""The graph of a run: its lanes' steps, joined by the exchanges in which they wait for each other.

What a rank posts to MPI is an operation that begins with the call that posts it. It ends, after
the last of those that the rank needs has posted its own, with the call that completes it; where
that call began later still, so long after the last one as the call took.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from perfmodel.base.arrays import Bool, Int64
from perfmodel.readers.trace import NULL
from perfmodel.timing.critical_path import Replay
from perfmodel.timing.exchanges import COLLECTIVE, Exchanges, rule_of
from perfmodel.timing.nccl import NcclKernels
from perfmodel.timing.step_graph import MPI_OP, StepGraph
from perfmodel.timing.step_report import StepReport


def replay_of(
    reports: Sequence[StepReport],
    numbered: Sequence[Sequence[int]],
    sent: NcclKernels,
    found: Exchanges,
    median_s: float = 0.0,
) -> Replay:
    """Replay the lanes of all reports, one report after the other.

    Behind them come other threads of processes without a GPU that call MPI. Parameters are those of
    `graphs_of`; `median_s` is that of `Replay`.
    """
    return Replay(*graphs_of(reports, numbered, sent, found), median_s)


def graphs_of(
    reports: Sequence[StepReport],
    numbered: Sequence[Sequence[int]],
    sent: NcclKernels,
    found: Exchanges,
) -> tuple[list[StepGraph], list[int], list[Int64]]:
    """Return what `Replay` needs: graphs, their shifts, and the exchange of every operation.

    Parameters
    ----------
    reports : sequence of StepReport
    numbered : sequence of sequences of int
        Rank of every lane of every report.
    sent : NcclKernels
        Kernels that communicate, of all reports.
    found : Exchanges
        Of the run: these come first.
    """
    lanes = [graph for report in reports for graph in report.graphs]
    report = [i for i, one in enumerate(reports) for _ in one.graphs]
    rank = [number for numbers in numbered for number in numbers]
    owner = [*range(len(lanes)), *(i for i, g in enumerate(lanes) for _ in g.others)]
    graphs = [*lanes, *(other for graph in lanes for other in graph.others)]
    by_report = np.zeros(len(reports), np.int64)
    by_report[found.report] = found.shift_ns
    shifts = [int(by_report[report[lane]]) for lane in owner]
    instances = []
    for lane, graph in zip(owner, graphs, strict=True):
        mine = np.flatnonzero(sent.lane == lane)
        number = dict(zip(sent.start_ns[mine].tolist(), found.instance[mine].tolist(), strict=True))
        known = [number.get(t, -1) for t in graph.op_start_ns.tolist()]
        instances.append(np.array(known, np.int64))
    row, group, waits = _members(found)
    if len(row) == 0:
        return graphs, shifts, instances
    local = found.post_ns[row] - by_report[found.report[row]]
    end = found.completion_ns[row] - by_report[found.report[row]]
    at = [np.flatnonzero(found.rank[row] == rank[lane]) for lane in owner]
    places = [_places(g, local[i], end[i]) for g, i in zip(graphs, at, strict=True)]
    return _with_mpi(
        graphs, shifts, instances,
        [(local[i[k]], group[i[k]], call, np.where(waits[i[k]], waiter, -1))
         for i, (k, call, waiter) in zip(at, places, strict=True)],
    )  # fmt: skip


def _members(found: Exchanges) -> tuple[Int64, Int64, Bool]:
    """Rows that take part in exchanges of MPI, which one, and whether each waits for all others.

    Where ranks need only some of the others, such as a root, each is in an exchange with these.
    """
    rows = np.flatnonzero(found.by_mpi & (found.instance >= 0))
    rules = np.array([rule_of(name) for name in found.names] or [""])[found.name[rows]]
    rules = np.where(found.way[rows] == COLLECTIVE, rules, "")  # a message, which both wait for
    group, peer, rank = found.instance[rows], found.peer[rows], found.rank[rows]
    waits = np.isin(rules, ("together", "")) | (rules == "to_root") & (peer == rank)
    whom = np.where((rules == "from_root") & (peer != NULL), peer, found.cause_rank[rows])
    apart = np.isin(rules, ("from_root", "in_order")) | (rules == "to_root") & (peer == NULL)
    some = np.flatnonzero(apart & (whom >= 0) & (whom != rank))
    order = np.lexsort((rank, group))
    ranks = int(rank.max(initial=0)) + 1
    key = (group * ranks + rank)[order]
    place = np.minimum(np.searchsorted(key, group[some] * ranks + whom[some]), len(key) - 1)
    there = key[place] == group[some] * ranks + whom[some] if len(some) else some > 0
    some, others = some[there], order[place[there]]
    kept = np.flatnonzero(~apart)
    pair = int(found.instance.max(initial=-1)) + 1 + np.arange(len(some))
    return (
        rows[np.concatenate([kept, some, others])],
        np.concatenate([group[kept], pair, pair]),
        np.concatenate([waits[kept], np.ones(len(some), np.bool_), np.zeros(len(some), np.bool_)])
        & (found.begin_ns != NULL)[rows[np.concatenate([kept, some, others])]],
    )


def _places(graph: StepGraph, post: Int64, end: Int64) -> tuple[Int64, Int64, Int64]:
    """Which exchanges of a rank a graph holds, and the calls that post and (or -1) complete them.

    Every second piece of the host is a call.
    """
    starts, ends = graph.host_edge_ns[:-1][::2], graph.host_edge_ns[1:][::2]
    if len(starts) == 0:
        return post[:0], post[:0], post[:0]
    call = np.minimum(np.searchsorted(starts, post), len(starts) - 1)
    done = np.minimum(np.searchsorted(ends, end), len(ends) - 1)
    known = np.flatnonzero(starts[call] == post)
    waiter = np.where((ends[done] == end) & (done >= call), 2 * done, -1)
    return known, 2 * call[known], waiter[known]


def _with_mpi(
    graphs: Sequence[StepGraph],
    shifts: Sequence[int],
    instances: Sequence[Int64],
    found: Sequence[tuple[Int64, Int64, Int64, Int64]],
) -> tuple[list[StepGraph], list[int], list[Int64]]:
    """Add MPI's exchanges to the graphs: when they are posted, which, by and for which call."""
    by_lane = np.repeat(np.array(shifts, np.int64), [len(post) for post, *_ in found])
    posts, groups = (np.concatenate(columns) for columns in [*zip(*found, strict=True)][:2])
    distinct, number = np.unique(groups, return_inverse=True)
    arrived = np.full(len(distinct), np.iinfo(np.int64).min)
    np.maximum.at(arrived, number, posts + by_lane)
    alone = np.bincount(number, minlength=len(distinct)) < 2
    joined, known = [], []
    for graph, shift, own, (post, group, call, waiter) in zip(
        graphs, shifts, instances, found, strict=True
    ):
        at = np.searchsorted(distinct, group)
        needed = arrived[at] - shift
        edges, count = graph.host_edge_ns, len(post)
        held = (waiter >= 0) & ~alone[at]
        held[held] = edges[1:][waiter[held]] > needed[held]
        last = edges[:-1].copy()
        np.maximum.at(last, waiter[held], needed[held])
        end = post.copy()
        end[held] = needed[held] + (edges[1:] - last)[waiter[held]]
        none = np.full(count, -1)
        columns = {
            "op_start_ns": post, "op_end_ns": end, "op_stream": none, "op_step": none,
            "op_call": call, "op_kind": np.full(count, MPI_OP), "op_small": none,
            "op_waiter": np.where(held, waiter, -1),
        }  # fmt: skip
        order = np.argsort(np.append(graph.op_call, call), kind="stable")
        merged: dict[str, Any] = {
            name: np.append(getattr(graph, name), values)[order].astype(getattr(graph, name).dtype)
            for name, values in columns.items()
        }
        if graph.op_bytes is not None:
            merged["op_bytes"] = np.append(graph.op_bytes, np.zeros(count, np.int64))[order]
        joined.append(replace(graph, **merged))
        known.append(np.append(own, group)[order])
    return joined, [*shifts], known
