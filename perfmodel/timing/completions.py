"""Which call of MPI waits for a request, such as that of MPI_Irecv or MPI_Iallreduce."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

import numpy as np

from perfmodel.base.arrays import Int32, Int64
from perfmodel.readers.trace import MPI_WAIT, NULL, Trace

START: Final = "MPI_Start"
_POLL: Final = "MPI_Test"


class Completions:
    """Calls that complete requests, by rank (or process, as `whose` numbers) and request."""

    def __init__(self, trace: Trace, whose: Int64 | Int32) -> None:
        calls = trace.mpi
        starts, polls = (
            np.array([n.startswith(name) for n in trace.strings] + [False], np.bool_)[calls.name]
            for name in (START, _POLL)
        )
        rows = np.flatnonzero((calls.source == MPI_WAIT) & (calls.request != NULL) & ~starts)
        self._calls: dict[tuple[int, int], list[tuple[int, int, bool]]] = {}
        for i in rows[calls.end_ns[rows] >= calls.start_ns[rows]].tolist():  # by start
            key = int(whose[i]), int(calls.request[i])
            one = int(calls.start_ns[i]), int(calls.end_ns[i]), bool(polls[i])
            self._calls.setdefault(key, []).append(one)

    def next(self, rank: int, request: int, posted_ns: int) -> tuple[int, int]:
        """Return the first call that completes a request after it was posted, or no time."""
        calls = self._calls.get((rank, request), [])
        at = bisect_left(calls, (posted_ns, 0, False))
        return calls[at][:2] if at < len(calls) else (posted_ns, posted_ns)

    def waiting(self, rank: int, request: int, posted_ns: int) -> tuple[int, int] | None:
        """Return it if it waits, without calls that only look whether the request is done."""
        calls = self._calls.get((rank, request), [])
        at = bisect_left(calls, (posted_ns, 0, False))
        return calls[at][:2] if at < len(calls) and not calls[at][2] else None
