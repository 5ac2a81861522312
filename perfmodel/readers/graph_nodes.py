"""Nodes of CUDA graphs in Nsight Systems' exports: where each one was captured.

With `--cuda-graph-trace=node` a kernel names its node, `CUDA_GRAPH_NODE_EVENTS` says which node it
was cloned from when the graph was instantiated, and which thread made that one at which time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from perfmodel.base.arrays import Int32, Int64
from perfmodel.readers.sqlite import Database
from perfmodel.readers.trace import NULL, PROCESS_BITS, GraphNodes

TABLE: Final = "CUDA_GRAPH_NODE_EVENTS"
_CLONES: Final = 8
"""A graph may be cloned or be part of another before it is instantiated: as many times at most."""


class Nodes:
    """Nodes of all processes, the earliest first."""

    def __init__(self, db: Database) -> None:
        columns = ("globalTid", "start", "graphNodeId", "originalGraphNodeId")
        absent = set(columns) - set(db.columns(TABLE))
        found = {} if absent else db.read(TABLE, columns)
        thread, at, node, original = (found.get(name, np.empty(0, np.int64)) for name in columns)
        process = np.where(thread == NULL, NULL, thread & PROCESS_BITS)
        made = np.flatnonzero((original == NULL) & (thread != NULL))
        made = made[np.lexsort((node[made], thread[made], at[made]))]
        self._thread, self._start_ns = thread[made], at[made]
        self._by_process: dict[int, tuple[Int64, Int64]] = {}
        for one in np.unique(process[original != NULL]).tolist():
            mine = np.flatnonzero(process == one)
            ids, rows = _origins(node, original, mine, made[process[made] == one])
            if len(ids):
                self._by_process[one] = ids, rows
        place = np.full(len(node), -1, np.int32)
        place[made] = np.arange(len(made))
        self._place = place

    @property
    def begun(self) -> Iterator[tuple[int, int]]:
        """Threads that made nodes, and when they made the first of them."""
        thread, first = np.unique(self._thread, return_index=True)
        yield from zip(thread.tolist(), self._start_ns[first].tolist(), strict=True)

    def of(self, process: Int64, node: Int64) -> Int32:
        """Return the row of the captured node that each was cloned from, -1 where none is known."""
        if not self._by_process:
            return np.broadcast_to(np.int32(-1), node.shape)
        found = np.full(len(node), -1, np.int32)
        for one, (ids, rows) in self._by_process.items():
            mine = np.flatnonzero((process == one) & (node != NULL))
            at = np.searchsorted(ids, node[mine])
            at[at == len(ids)] = 0
            same = ids[at] == node[mine]
            found[mine[same]] = self._place[rows[at[same]]]
        return found

    def numbered(self, thread: Callable[[Int64], Int32]) -> GraphNodes:
        """Return them with the threads as a trace numbers them."""
        return GraphNodes(self._start_ns, thread(self._thread))


def _origins(node: Int64, original: Int64, mine: Int64, made: Int64) -> tuple[Int64, Int64]:
    """Return the clones of a process, ascending, and the rows that made what each was cloned from.

    `made` is by time: of ids that are used again the last one counts.
    """
    clones = mine[original[mine] != NULL]
    ids, last = np.unique(node[clones][::-1], return_index=True)
    source = original[clones][::-1][last]
    for _ in range(_CLONES):  # a clone of a clone
        at = np.searchsorted(ids, source)
        at[at == len(ids)] = 0
        again = (ids[at] == source) & (source != ids)
        if not again.any():
            break
        source = np.where(again, source[at], source)
    first, row = np.unique(node[made][::-1], return_index=True)
    if not len(first):
        return ids[:0], ids[:0]
    at = np.searchsorted(first, source)
    at[at == len(first)] = 0
    known = first[at] == source
    return ids[known], made[::-1][row[at[known]]]
