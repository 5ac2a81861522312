"""Reads the MPI tables, and the MPI ranges that stood for them in exports of 2022."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from perfmodel.base.arrays import Int8, Int32, Int64
from perfmodel.readers.codes import Ids, factorize
from perfmodel.readers.nvtx import MPI_DOMAIN, PROCESS_BITS, Nvtx
from perfmodel.readers.sqlite import Database
from perfmodel.readers.trace import MPI_SOURCES, NULL, MpiCalls

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
    """MPI calls with their threads factorized, ranks by serialized process id."""

    start_ns: Int64
    end_ns: Int64
    tids: tuple[Int32, Int64]
    name: Int32
    source: Int8
    size_bytes: Int64
    recv_size_bytes: Int64
    communicator: Int64
    peer: Int64
    tag: Int64
    request: Int64
    ranks: dict[int, int]
    world_size: int | None
    from_nvtx: bool = False

    def calls(self, thread: Int32) -> MpiCalls:
        """Return the table of a trace whose threads have the codes `thread`."""
        return MpiCalls(
            self.start_ns,
            self.end_ns,
            thread,
            self.name,
            self.source,
            self.size_bytes,
            self.recv_size_bytes,
            self.communicator,
            self.peer,
            self.tag,
            self.request,
        )


def read_mpi(db: Database | None, ids: Ids, strings: tuple[str, ...]) -> Mpi:
    """Read every MPI table there is; with no database, none."""
    columns = ["globalTid", "textId", "size", "recvSize", "commHandle", "remoteRank", "tag",
               "requestHandle"]  # fmt: skip
    tables = [
        db.read_events(t, columns, needed=["globalTid"], open_ends=True) for t in TABLES if db
    ]
    joined = {
        c: np.concatenate([t[c] for t in tables]) if tables else np.empty(0, np.int64)
        for c in ["start", "end", *columns]
    }
    sources = [np.full(len(t["start"]), i, np.int8) for i, t in enumerate(tables)]
    ranks = {
        tid & PROCESS_BITS: rank
        for tid, rank in (db.rows("MPI_RANKS", ["globalTid", "rank"]) if db else ())
        if isinstance(tid, int) and isinstance(rank, int) and 0 <= rank < 2**31
    }
    columns = ["rank", "commHandle", "size"]
    groups = [
        row
        for row in (db.rows("MPI_COMMUNICATORS", columns) if db else ())
        if all(isinstance(v, int) for v in row) and row[2] > 0
    ]
    world = max((size for _, _, size in groups), default=0)
    name = ids.codes(joined["textId"])
    members = _members(joined["globalTid"], joined["commHandle"], ranks, groups, world)
    return Mpi(
        start_ns=joined["start"],
        end_ns=joined["end"],
        tids=factorize(joined["globalTid"]),
        name=name,
        source=np.concatenate(sources) if sources else np.empty(0, np.int8),
        size_bytes=_message_bytes(name, strings, joined["size"], joined["recvSize"], members),
        recv_size_bytes=joined["recvSize"],
        communicator=joined["commHandle"],
        peer=joined["remoteRank"],
        tag=joined["tag"],
        request=joined["requestHandle"],
        ranks=ranks,
        world_size=world if world > 0 else None,
    )


def _members(
    tid: Int64,
    handle: Int64,
    ranks: dict[int, int],
    groups: list[tuple[int, int, int]],
    world: int,
) -> Int64:
    """Number of ranks in every call's communicator; handles are those of the calling rank."""
    known = {(rank, communicator): size for rank, communicator, size in groups}
    process, processes = factorize(tid & PROCESS_BITS)
    which, handles = factorize(handle)
    pair, pairs = factorize(process.astype(np.int64) * len(handles) + which)
    size = [
        known.get(
            (ranks.get(int(processes[p // len(handles)]), -1), int(handles[p % len(handles)]))
        )
        or world
        for p in pairs.tolist()
    ]
    return np.array(size, np.int64)[pair] if size else np.empty(0, np.int64)


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
    is_mpi = [
        d == MPI_DOMAIN and label.startswith("MPI_")
        for d, label in zip(nvtx.domains, nvtx.labels, strict=True)
    ]
    if not any(is_mpi):
        return mpi, strings
    at = np.flatnonzero((nvtx.name >= 0) & np.array([*is_mpi, False])[nvtx.name])
    missing = np.full(len(at), NULL)
    source = np.array([_source(label) for label in nvtx.labels], np.int8)
    calls = Mpi(
        start_ns=nvtx.start_ns[at],
        end_ns=nvtx.end_ns[at],
        tids=factorize(nvtx.tid[at]),
        name=nvtx.name[at] + np.int32(len(strings)),
        source=source[nvtx.name[at]],
        size_bytes=missing,
        recv_size_bytes=missing,
        communicator=missing,
        peer=missing,
        tag=missing,
        request=missing,
        ranks=mpi.ranks,
        world_size=mpi.world_size,
        from_nvtx=True,
    )
    return calls, (*strings, *nvtx.labels)


def _source(name: str) -> int:
    for prefixes, source in ((_P2P, "p2p"), (_START_WAIT, "start-wait"), (_OTHER, "other")):
        if name.startswith(prefixes):
            return MPI_SOURCES.index(source)
    return MPI_SOURCES.index("collectives")
