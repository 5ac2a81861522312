"""Reads the payloads of NCCL's NVTX ranges: communicator and message size."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from perfmodel.base.arrays import Int64
from perfmodel.readers.codes import Ids
from perfmodel.readers.sqlite import Database
from perfmodel.readers.trace import NULL, NcclRanges

_TABLE: Final = "NVTX_EVENTS"
_SIZE: Final = "Message size [bytes]"
_COMMUNICATOR: Final = "NCCL communicator ID"
_LARGEST_TEXT: Final = 4096


@dataclass(frozen=True, slots=True)
class Payloads:
    """Payloads of NVTX ranges that NCCL pushed, threads still as serialized ids."""

    start_ns: Int64
    tid: Int64
    communicator: Int64
    bytes: Int64

    def ranges(self, thread: Any) -> NcclRanges:
        """Return the table with threads as indices."""
        return NcclRanges(self.start_ns, thread, self.communicator, self.bytes)


def read_payloads(
    db: Database | None, ids: Ids, strings: Sequence[str], start_ns: Int64, tid: Int64
) -> Payloads:
    """Read the payloads, which only exports with ``--include-json true`` hold.

    A payload that is no JSON object of NCCL's, or whose numbers do not fit, is left out.

    Parameters
    ----------
    db : Database or None
    ids, strings
        Of the report's string table: a payload may be a registered string.
    start_ns, tid : int64, shape (rows,)
        Columns of NVTX_EVENTS, in row order.
    """
    none = np.empty(0, np.int64)
    if db is None or len(start_ns) == 0:
        return Payloads(none, none, none, none)
    code, texts = db.read_text(_TABLE, "jsonText")
    if not texts and "jsonTextId" in db.columns(_TABLE):
        code, texts = ids.codes(db.read(_TABLE, ["jsonTextId"])["jsonTextId"]), list(strings)
    if len(code) != len(start_ns):
        return Payloads(none, none, none, none)
    used = np.unique(code[code >= 0])
    said = {c: parsed for c in used.tolist() if (parsed := parse(texts[c])) is not None}
    rows = np.flatnonzero(np.isin(code, np.array([*said], np.int64)))
    rows = rows[np.lexsort((start_ns[rows], tid[rows]))]
    pairs = np.array([said[c] for c in code[rows].tolist()], np.int64).reshape(-1, 2)
    return Payloads(start_ns[rows], tid[rows], pairs[:, 0], pairs[:, 1])


def parse(text: str) -> tuple[int, int] | None:
    """Communicator (as a signed number) and message size of a payload; None if it is not NCCL's.

    Examples
    --------
    >>> parse('{"NCCL communicator ID":7,"Message size [bytes]":16777216}')
    (7, 16777216)
    """
    if len(text) > _LARGEST_TEXT or _COMMUNICATOR not in text:
        return None
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(said, dict):
        return None
    return _signed(said.get(_COMMUNICATOR)), _size(said.get(_SIZE))


def _signed(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**64:
        return NULL
    return value - 2**64 if value >= 2**63 else value


def _size(value: Any) -> int:
    return value if type(value) is int and 0 <= value < 2**62 else NULL
