"""Reads NVTX_EVENTS: ranges with their names and domains, marks, ranks named by NVTX.

NCCL's ranges have payloads: communicator and message size.
"""

from __future__ import annotations

import heapq
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, cast

import numpy as np

from perfmodel.base.arrays import Arena, Bool, Int32, Int64
from perfmodel.readers.codes import Ids, factorize
from perfmodel.readers.order import ordered_ranges
from perfmodel.readers.packed import Packed
from perfmodel.readers.pages import Texts
from perfmodel.readers.sqlite import Database
from perfmodel.readers.trace import NO_NAME, NULL, PROCESS_BITS, NcclRanges, NcclRank, Ranges

_TABLE: Final = "NVTX_EVENTS"
PAYLOAD_SIZE: Final = "Message size [bytes]"
PAYLOAD_COMMUNICATOR: Final = "NCCL communicator ID"
_PAYLOAD_RANKS: Final = "No. of ranks"
_PAYLOAD_RANK: Final = "Rank"
_MOST_RANKS: Final = 1 << 20
_LARGEST_TEXT: Final = 4096
_LARGEST_MESSAGE: Final = 2**48
"""Bytes; more than any memory holds, and sums of thousands still fit in 64 bits."""


def read_payloads(
    db: Database, events: _Events, ids: Ids, strings: Sequence[str]
) -> tuple[NcclRanges, tuple[NcclRank, ...]]:
    """Read the payloads, which only exports with ``--include-json true`` hold.

    A payload that is no JSON object of NCCL's, or whose numbers do not fit, is left out.

    Parameters
    ----------
    events : _Events
        Of NVTX_EVENTS.
    ids, strings
        The report's strings: a payload may be one of them.

    Returns
    -------
    ranges : NcclRanges
        Threads still as serialized ids.
    ranks : tuple of NcclRank
        Of communicators that were made while it was recorded.
    """
    code, texts, _ = db.read_text(_TABLE, "jsonText")
    if not texts and "jsonTextId" in db.columns(_TABLE):
        code, texts = ids.codes(events.column("jsonTextId")), list(strings)
    used = np.unique(code[code >= 0])
    said = {c: parsed for c in used.tolist() if (parsed := parse(texts[c])) is not None}
    if len(code) != len(events) or not said:
        none = np.empty(0, np.int64)
        return NcclRanges(none, none.astype(np.int32), none, none), ()
    members = (parse_rank(texts[c]) for c in said)
    rows = np.flatnonzero(np.isin(code, np.array([*said], np.int64)))
    start_ns, tid = (events.column(name)[rows] for name in ("start", "globalTid"))
    pairs = np.array([said[c] for c in code[rows].tolist()], np.int64).reshape(-1, 2)
    thread: Any = tid
    ranges = NcclRanges(start_ns, thread, pairs[:, 0], pairs[:, 1])
    return ranges, tuple(sorted({member for member in members if member is not None}))


def parse(text: str) -> tuple[int, int] | None:
    """Communicator (as a signed number) and message size of a payload; None if it is not NCCL's.

    Examples
    --------
    >>> parse('{"NCCL communicator ID":7,"Message size [bytes]":16777216}')
    (7, 16777216)
    """
    said = _object(text)
    if said is None:
        return None
    size = said.get(PAYLOAD_SIZE)
    known = size if type(size) is int and 0 <= size <= _LARGEST_MESSAGE else NULL
    return _communicator(said), known


def parse_rank(text: str) -> NcclRank | None:
    """Return the rank of a new communicator in a payload; None where it is of another call.

    Examples
    --------
    >>> parse_rank('{"NCCL communicator ID":7,"No. of ranks":8,"Rank":3,"CUDA device":3}')
    NcclRank(communicator=7, ranks=8, rank=3)
    """
    if _PAYLOAD_RANKS not in text or (said := _object(text)) is None:
        return None
    communicator, ranks, rank = (
        _communicator(said),
        said.get(_PAYLOAD_RANKS),
        said.get(_PAYLOAD_RANK),
    )
    if type(ranks) is not int or type(rank) is not int or communicator == NULL:
        return None
    return NcclRank(communicator, ranks, rank) if 0 <= rank < ranks <= _MOST_RANKS else None


def _object(text: str) -> dict[str, Any] | None:
    """Return the JSON object that names a communicator of NCCL; None for another text."""
    if len(text) > _LARGEST_TEXT or PAYLOAD_COMMUNICATOR not in text:
        return None
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return said if isinstance(said, dict) else None


def _communicator(said: dict[str, Any]) -> int:
    """Return the communicator as a signed number, `NULL` where there is none."""
    communicator = said.get(PAYLOAD_COMMUNICATOR)
    if type(communicator) is int and 0 <= communicator < 2**64:
        return communicator - (2**64 if communicator >= 2**63 else 0)
    return NULL


MPI_DOMAIN: Final = "MPI"
GPU_DOMAIN: Final = "GPU"
"""Of ranges that a trace of torch.profiler has on the GPU's rows only, with times of the GPU."""
BEGUN: Final = "begun"
"""Column with the numbers of ranges as they began, which the profiler of PyTorch gives them."""
_MARKS = (34, 65)
_THREAD_NAME = 39
_PUSH_POP = (59, 70)
_START_END = (60, 71)
_DOMAIN_CREATE = 75
_RANK = re.compile(r"MPI Rank (\d{1,9})")
_MAX_MARKS = 10_000


@dataclass(frozen=True, slots=True)
class Nvtx:
    """Rows of NVTX_EVENTS, threads still as serialized ids, ranges and names in any order.

    `begun` counts the ranges as they began, where the report does; `all_domains` are those of
    marks, too.
    """

    ranges: Ranges
    names: tuple[str, ...]
    labels: tuple[str, ...]
    domains: tuple[str, ...]
    marks: tuple[tuple[int, int, str], ...]
    ranks: dict[int, int]
    last_ns: int | None
    payloads: NcclRanges
    nccl_ranks: tuple[NcclRank, ...]
    numbers: Int64 | None
    begun: Int64 | None
    all_domains: frozenset[str]

    def in_order(self) -> Nvtx:
        """Return the same with ranges and names in order; threads are numbered."""
        ranges, old = ordered_ranges(self.ranges, self.names, self.begun)
        found = replace(self, ranges=ranges, begun=None)
        if old is None:
            return found
        names, labels, domains = (
            tuple(texts[i] for i in old.tolist())
            for texts in (self.names, self.labels, self.domains)
        )
        return replace(found, names=names, labels=labels, domains=domains)


def read_nvtx(
    db: Database, strings: tuple[str, ...], ids: Ids, kind_of_texts: type[Texts] = Texts
) -> Nvtx:
    """Read the NVTX events of every schema since 2022.

    A range's text is its registered string (`textId`) or, if that is null, its inline `text`.
    A range outside the default domain is named ``domain:text``; the domain's name is the text of
    the earliest domain-create event (type 75) of the same process. Of inline texts the numbers of
    operators are apart where their kind is `OperatorTexts`.
    """
    table = "NVTX_EVENTS"
    needed = ["eventType", "globalTid"]
    columns = [*needed, "endGlobalTid", "textId", "domainId"]
    columns += [c for c in ("jsonTextId", BEGUN) if c in db.columns(table)]
    inline, inline_texts, numbered = db.read_text(table, "text", kind_of_texts)
    events: _Events = db.collect(table, columns, dict, _Events, needed, open_ends=True)
    ranges, others, chosen = events.ranges.column, events.others.column, events.are_ranges
    few = ~chosen
    payloads, nccl_ranks = read_payloads(db, events, ids, strings)
    text = ids.codes(events.column("textId"))
    if len(inline_texts):
        text = np.where(text >= 0, text, np.where(inline >= 0, inline + len(strings), NO_NAME))
    texts = (*strings, *inline_texts)
    del inline
    number, numbers = numbered or (np.broadcast_to(np.int64(0), text.shape), None)
    number, said, text = number[chosen], text[few], text[chosen]
    kind, began, whose = (others(name) for name in ("eventType", "start", "globalTid"))
    domain_of = _domains(kind, began, whose, others("domainId"), said, texts)
    names, labels, domains, name = _names(
        ranges("globalTid"), ranges("domainId"), text, texts, domain_of
    )
    style = np.isin(ranges("eventType"), _START_END).astype(np.int8)
    start, end = ranges("start"), ranges("end")
    times = (start, end, began, others("end"))
    last = max(int(column.max(initial=NULL)) for column in times)
    thread: Any = ranges("globalTid")
    return Nvtx(
        ranges=Ranges(start, end, thread, name, style, ranges("endGlobalTid") != NULL, number),
        names=names,
        labels=labels,
        domains=domains,
        marks=_marks(kind, began, whose, said, texts),
        ranks=_ranks(kind, whose, said, texts),
        last_ns=last if len(chosen) else None,
        payloads=payloads,
        nccl_ranks=nccl_ranks,
        numbers=numbers,
        begun=ranges(BEGUN) if BEGUN in columns else None,
        all_domains=frozenset(domain_of.values()),
    )


class _Events:
    """Rows of NVTX_EVENTS, added some at a time: ranges and others, packed."""

    def __init__(self) -> None:
        arena = Arena(np.uint8)
        self.ranges, self.others = Packed(arena), Packed(arena)
        self._are_ranges: list[Bool] = []

    def __len__(self) -> int:
        return len(self.ranges) + len(self.others)

    def append(self, rows: dict[str, Int64]) -> None:
        """Add rows."""
        chosen = np.isin(rows["eventType"], (*_PUSH_POP, *_START_END))
        for table, mine in ((self.ranges, chosen), (self.others, ~chosen)):
            table.append({name: values[mine] for name, values in rows.items()})
        self._are_ranges.append(chosen)

    @property
    def are_ranges(self) -> Bool:
        """Return whether each row is a range."""
        return np.concatenate(self._are_ranges)

    def column(self, name: str) -> Int64:
        """Return a column of all rows."""
        chosen = self.are_ranges
        found = np.empty(len(chosen), np.int64)
        found[chosen], found[~chosen] = self.ranges.column(name), self.others.column(name)
        return found


def _domains(
    kind: Int64, start: Int64, tid: Int64, domain: Int64, text: Int32, texts: tuple[str, ...]
) -> dict[tuple[int, int], str]:
    """Name of every (domain id, process): the earliest create event's text."""
    at = np.flatnonzero((kind == _DOMAIN_CREATE) & (text >= 0)).tolist()
    names: dict[tuple[int, int], str] = {}
    for i in sorted(at, key=lambda i: (start[i], texts[text[i]])):
        names.setdefault((int(domain[i]), int(tid[i]) & PROCESS_BITS), texts[text[i]])
    return names


def _names(
    tid: Int64,
    domain: Int64,
    text: Int32,
    texts: tuple[str, ...],
    domain_of: dict[tuple[int, int], str],
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...], Int32]:
    """Names as nsys writes them, labels without domain, domains, and a code per range."""
    process_code, processes = factorize(tid & PROCESS_BITS)
    domain_code, domain_ids = factorize(domain)
    key = (process_code.astype(np.int64) * len(domain_ids) + domain_code) * (len(texts) + 1)
    combination, distinct = factorize(key + text + 1)
    rest, text_code = np.divmod(distinct, len(texts) + 1)
    first = np.flatnonzero(np.diff(rest, prepend=-1))
    codes: dict[tuple[str, str] | str, int] = {}  # a label, where it is the name as well
    domains: list[str] = []
    recode: list[int] = []
    for packed, mine in zip(rest[first].tolist(), np.split(text_code, first[1:]), strict=False):
        process, which = divmod(packed, len(domain_ids))
        owner = domain_of.get((int(domain_ids[which]), int(processes[process])))
        found = (texts[code - 1] for code in mine.tolist() if code)
        named: Iterable[tuple[str, str] | str] = found
        if owner is not None:
            named = ((f"{owner}:{label}", label) for label in found)
        recode += [NO_NAME] * int(mine[0] == 0)  # it is the least
        recode += [codes.setdefault(each, len(codes)) for each in named]
        domains += [owner or ""] * (len(codes) - len(domains))
    name = np.array(recode, np.int32)[combination]
    if not any(domains):
        names = labels = cast("tuple[str, ...]", tuple(codes))
    else:
        names, labels = (tuple(n if isinstance(n, str) else n[i] for n in codes) for i in (0, 1))
    return names, labels, tuple(domains), name


def _marks(
    kind: Int64, start: Int64, tid: Int64, text: Int32, texts: tuple[str, ...]
) -> tuple[tuple[int, int, str], ...]:
    """Marks that may hold a JSON object, the first ones: the trainer's configuration is one."""
    at = np.flatnonzero(np.isin(kind, _MARKS) & (text >= 0))
    found = ((int(start[i]), int(tid[i]), texts[text[i]]) for i in at)
    marks = (mark for mark in found if mark[2].startswith("{"))
    return tuple(heapq.nsmallest(_MAX_MARKS, marks, key=lambda mark: (mark[0], mark[2])))


def _ranks(kind: Int64, tid: Int64, text: Int32, texts: tuple[str, ...]) -> dict[int, int]:
    """MPI rank by serialized process id, from thread names 'MPI Rank N'; of several the largest."""
    ranks: dict[int, int] = {}
    for i in np.flatnonzero((kind == _THREAD_NAME) & (text >= 0)):
        match = _RANK.fullmatch(texts[text[i]])
        if match:
            process = int(tid[i]) & PROCESS_BITS
            ranks[process] = max(ranks.get(process, 0), int(match[1]))
    return ranks
