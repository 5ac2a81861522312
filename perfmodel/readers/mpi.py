"""Reads the MPI tables, and the MPI ranges that stood for them in exports of 2022."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from perfmodel.base.arrays import Int32, Int64
from perfmodel.readers.codes import Ids, factorize
from perfmodel.readers.nvtx import MPI_DOMAIN, PROCESS_BITS, Nvtx
from perfmodel.readers.sqlite import Database
from perfmodel.readers.trace import MPI_SOURCES, NULL, MpiCalls, rows

TABLES: Final = (
    "MPI_P2P_EVENTS",
    "MPI_START_WAIT_EVENTS",
    "MPI_OTHER_EVENTS",
    "MPI_COLLECTIVES_EVENTS",
)
"""In the order of `perfmodel.readers.trace.MPI_SOURCES`."""

_P2P = ("MPI_Send", "MPI_Recv", "MPI_Isend", "MPI_Irecv", "MPI_Sendrecv", "MPI_Ssend", "MPI_Bsend")
_START_WAIT = ("MPI_Start", "MPI_Wait", "MPI_Test")
_ALL_REDUCE: Final = frozenset({"MPI_Allreduce", "MPI_Iallreduce", "MPI_Allreduce_c"})
_BROADCAST: Final = frozenset({"MPI_Bcast", "MPI_Ibcast", "MPI_Bcast_c"})
_OTHER = ("MPI_Init", "MPI_Finalize", "MPI_Comm", "MPI_Abort")


@dataclass(frozen=True, slots=True)
class Mpi:
    """MPI calls with serialized thread ids, and ranks by serialized process id."""

    calls: MpiCalls
    ranks: dict[int, int]
    world_size: int | None
    from_nvtx: bool = False


def read_mpi(db: Database, ids: Ids, strings: tuple[str, ...]) -> Mpi:
    """Read every MPI table there is."""
    columns = ["globalTid", "textId", "size", "recvSize", "commHandle", "remoteRank", "tag",
               "requestHandle"]  # fmt: skip
    tables = [db.read_events(t, columns, needed=["globalTid"], open_ends=True) for t in TABLES]
    start, end, tid, text, size, received, handle, peer, tag, request = (
        np.concatenate([t[c] for t in tables]) for c in ["start", "end", *columns]
    )
    ranks = {
        thread & PROCESS_BITS: rank
        for thread, rank in db.rows("MPI_RANKS", ["globalTid", "rank"])
        if isinstance(thread, int) and isinstance(rank, int) and 0 <= rank < 2**31
    }
    columns = ["rank", "commHandle", "size", "localRank", "groupRoot", "groupRootUid"]
    known = {
        (rank, at): (
            size,
            0 if root is None or uid is None else (root << 32) + uid + 1,
            rank if own is None else own,
        )
        for rank, at, size, own, root, uid in db.rows("MPI_COMMUNICATORS", columns)
        if all(
            isinstance(v, int) and v < 1 << 31 for v in (rank, size, own or 0, root or 0, uid or 0)
        )
        and isinstance(at, int)
        and size > 0
    }
    world = max((size for size, _, _ in known.values()), default=0)
    name = ids.codes(text)
    members, group, own = _communicators(tid, handle, ranks, known, world)
    thread: Any = tid
    source = np.repeat(np.arange(len(TABLES), dtype=np.int8), [len(t["start"]) for t in tables])
    sent = _message_bytes(name, strings, size, received, members)
    calls = MpiCalls(
        start, end, thread, name, source, sent, received, group, own, peer, tag, request
    )
    return Mpi(calls, ranks, world or None)


def _communicators(
    tid: Int64,
    handle: Int64,
    ranks: dict[int, int],
    known: dict[tuple[int, int], tuple[int, int, int]],
    world: int,
) -> tuple[Int64, Int64, Int64]:
    """Size and number of every call's communicator, and the caller's rank in it.

    Handles are those of the calling rank; a communicator that is not described is the world.
    """
    process, processes = factorize(tid & PROCESS_BITS)
    which, handles = factorize(handle)
    pair, pairs = factorize(process.astype(np.int64) * len(handles) + which)
    found = np.empty((len(pairs), 3), np.int64)
    for i, p in enumerate(pairs.tolist()):
        rank = ranks.get(int(processes[p // len(handles)]), NULL)
        found[i] = known.get((rank, int(handles[p % len(handles)])), (world, 0, rank))
    size, group, own = found[pair].T
    return size, group, own


def _message_bytes(
    name: Int32, strings: tuple[str, ...], size: Int64, received: Int64, members: Int64
) -> Int64:
    """Bytes of the buffer that every call handed to MPI.

    Nsight Systems records for an all-reduce among p ranks p - 1 times the buffer (none at p = 1)
    and for a broadcast p times the buffer at the root, the buffer itself as received size; the
    other calls' sizes are kept. Measured on reports of 1, 2 and 4 ranks of known messages.
    """
    used = np.array([s in _ALL_REDUCE for s in strings] + [False], np.bool_)[name]
    whole = used & (members > 1) & (size != NULL)
    factor = np.where(whole, members - 1, 1)
    size = np.where(whole & (size % factor == 0), size // factor, size)
    cast = np.array([s in _BROADCAST for s in strings] + [False], np.bool_)[name]
    return np.where(cast & (received != NULL), received, size)


def from_nvtx(nvtx: Nvtx, mpi: Mpi, strings: tuple[str, ...]) -> tuple[Mpi, tuple[str, ...]]:
    """Make MPI calls of the NVTX ranges in domain 'MPI', as Nsight Systems 2022 records them.

    Sizes and communicators stay `NULL`: those exports do not have them. Returns the calls and
    the strings with the calls' names appended.
    """
    texts = zip(nvtx.domains, nvtx.labels, strict=True)
    is_mpi = [domain == MPI_DOMAIN and label.startswith("MPI_") for domain, label in texts]
    if not any(is_mpi):
        return mpi, strings
    found = nvtx.ranges
    found = rows(found, (found.name >= 0) & np.array([*is_mpi, False])[found.name])
    source = np.array([_source(label) for label in nvtx.labels], np.int8)[found.name]
    name = found.name + np.int32(len(strings))
    missing = [np.full(len(found), NULL)] * 7
    calls = MpiCalls(found.start_ns, found.end_ns, found.thread, name, source, *missing)
    return replace(mpi, calls=calls, from_nvtx=True), (*strings, *nvtx.labels)


def _source(name: str) -> int:
    for prefixes, source in ((_P2P, "p2p"), (_START_WAIT, "start-wait"), (_OTHER, "other")):
        if name.startswith(prefixes):
            return MPI_SOURCES.index(source)
    return MPI_SOURCES.index("collectives")
