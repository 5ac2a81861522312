"""Exchanges of a run, matched once: collectives and messages of MPI, kernels that communicate.

A rank waits in an exchange from the beginning of the call (or kernel) that holds it until the ranks
that it needs have come, at most until the call ends. Which these are depends on the exchange:

- Collectives in which all need all: until the last rank comes. Those with a root: the others until
  the root comes, the root until the last of the others does; senders to a root, which may leave
  before it comes, only where they do not. Of a root that is not recorded: until
  the last rank comes that may be it, or that came before the rank left. Prefix sums: until the
  ranks before it have come.
- Messages: a receiver waits for a late sender, a sender for a late receiver ("Late Sender" and
  "Late Receiver" of Scalasca); not where it left before the other end was posted.
- Non-blocking exchanges hold a rank in the call that completes them, but for those that only look
  whether they are done (`MPI_Test`). A call that completes several waits for the last of them.

The n-th collective of every rank of a communicator is one. The n-th send of a rank to another with
one tag is the n-th receive there, since messages between two ranks do not overtake each other (MPI
standard 4.0, 3.5); receives of any source or tag get what is left, in the order of the sends.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any, Final, Self

import numpy as np

from perfmodel.base.arrays import Bool, Floats, Int64, distinct_rows
from perfmodel.base.units import si
from perfmodel.readers.trace import NULL
from perfmodel.timing.clock_sync import FAR, Alignment, align, collective_limits
from perfmodel.timing.intervals import lengths

_OVERLAPPING: Final = 0.95
"""Kernels without a communicator's id are one collective if at least this share of the n-th ones
overlap in time: all but those that a recording cuts, such as 1 of 20."""
_LETTER: Final = re.compile(r"(?:_c|[vw])$")
COLLECTIVE, SEND, RECEIVE = -1, 0, 1
ANY: Final = -1
"""The source of a message from any rank."""


@dataclass(frozen=True, slots=True)
class Exchanges:
    """One row for each exchange and rank that takes part; times on one clock, int64 ns.

    Attributes
    ----------
    names : tuple of str
        Distinct `MPI_Allreduce`, `NCCL AllReduce`, ...; `name` indexes it.
    ranks : tuple of int
        Ranks of the run.
    name, rank : int64, shape (n,)
    report, row : int64, shape (n,)
        Where it was recorded: a row of that report's MPI calls, or of all reports' kernels.
    way : int64, shape (n,)
        `COLLECTIVE`, `SEND` or `RECEIVE`.
    communicator, bytes, tag : int64, shape (n,)
        `NULL` where the report does not say.
    peer : int64, shape (n,)
        Rank at the other end of a message, `ANY` for any; root of a collective, `NULL` if unknown.
    post_ns, end_ns : int64, shape (n,)
        When the rank came to the exchange, and when that call returned or the kernel ended.
    begin_ns, completion_ns : int64, shape (n,)
        Begin and end of the call that may hold the rank: the same call, or of non-blocking ones the
        call that completes it; `NULL` where no call waits for it.
    step, held_step : int64, shape (n,)
        Steps in which `post_ns` and `begin_ns` are, -1 outside of steps.
    instance : int64, shape (n,)
        Equal for the rows of one exchange; -1 where it cannot be matched.
    wait_ns : int64, shape (n,)
        How long the rank was held before those came that it needs; `NULL` where that is unknown.
    cause_rank : int64, shape (n,)
        Rank that was waited for; -1 where the rank did not wait, or waited longer for another
        exchange that the same call completes.
    shift_ns, clock_error_ns : int64, shape (n,)
        What was added to the report's own times, and by how much that may be wrong, either way.
    warnings : tuple of str
    """

    names: tuple[str, ...]
    ranks: tuple[int, ...]
    name: Int64
    rank: Int64
    report: Int64
    row: Int64
    way: Int64
    communicator: Int64
    bytes: Int64
    peer: Int64
    tag: Int64
    post_ns: Int64
    end_ns: Int64
    begin_ns: Int64
    completion_ns: Int64
    step: Int64
    held_step: Int64
    instance: Int64
    wait_ns: Int64
    cause_rank: Int64
    shift_ns: Int64
    clock_error_ns: Int64
    warnings: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.name)

    @classmethod
    def of(
        cls,
        names: Sequence[str],
        ranks: Sequence[int],
        columns: dict[str, Int64],
        warnings: Sequence[str] = (),
    ) -> Self:
        """Make a table of what was recorded, before it is matched.

        `columns` has `name`, `rank`, `post_ns` and `end_ns`, and others where they are known.
        """
        count = len(columns["name"])
        unknown = ("communicator", "bytes", "peer", "tag", "wait_ns")
        none = ("way", "step", "held_step", "instance", "cause_rank")
        filled = {c: np.full(count, NULL) for c in unknown} | {c: np.full(count, -1) for c in none}
        filled |= {c: np.zeros(count, np.int64) for c in ("report", "shift_ns", "clock_error_ns")}
        filled |= {"row": np.arange(count), **columns}
        filled = {"begin_ns": filled["post_ns"], "completion_ns": filled["end_ns"]} | filled
        return cls(tuple(names), tuple(ranks), **filled, warnings=tuple(warnings))

    def taken(self, rows: Int64 | Bool | slice) -> Self:
        """Return some of the rows."""
        return replace(self, **{name: getattr(self, name)[rows] for name in _COLUMNS})

    @property
    def blocking(self) -> Bool:
        """Return whether the call itself holds each row."""
        blocking: Bool = (self.begin_ns == self.post_ns) & (self.completion_ns == self.end_ns)
        return blocking

    @property
    def spent_ns(self) -> Int64:
        """Time in the call, and in the one that completes it."""
        again = ~self.blocking & (self.begin_ns != NULL)
        return self.end_ns - self.post_ns + np.where(again, self.completion_ns - self.begin_ns, 0)

    @property
    def transfer_ns(self) -> Int64:
        """The part of `spent_ns` that is no waiting; `NULL` where that is unknown."""
        return np.where(self.wait_ns == NULL, NULL, self.spent_ns - self.wait_ns)

    def named(self, start: str) -> Bool:
        """Return whether each row has a name that begins so."""
        return np.array([n.startswith(start) for n in self.names] + [False], np.bool_)[self.name]

    @property
    def by_mpi(self) -> Bool:
        """Return whether each row is a call of MPI; the others are kernels."""
        return self.named("MPI_")

    def seconds_by_step(self, steps: int, *, waiting: bool = False) -> Floats:
        """Seconds in exchanges, or waiting, of every rank and step, shape (ranks, steps).

        Unions: what two exchanges wait for at once counts once.
        """
        begin, end = self.begin_ns, self.completion_ns
        step, rank = self.held_step, np.searchsorted(self.ranks, self.rank)
        known = begin != NULL
        if waiting:
            known = known & (self.wait_ns > 0)
            end = begin + self.wait_ns
        else:  # and the calls that only begin something
            known = known & ~self.blocking
            rank, step, begin, end, known = (
                np.concatenate(pair)
                for pair in zip(
                    (rank, self.step, self.post_ns, self.end_ns, np.ones(len(self), np.bool_)),
                    (rank, step, begin, end, known),
                    strict=True,
                )
            )
        known = known & (step >= 0) & (step < steps)
        cell = rank[known] * steps + step[known]
        total = lengths(cell, begin[known], end[known], len(self.ranks) * steps)
        return total.reshape(len(self.ranks), steps).astype(np.float64) * 1e-9


_COLUMNS: Final = tuple(Exchanges.__annotations__)[2:-1]


def joined(parts: Sequence[Exchanges]) -> Exchanges:
    """Put tables together, the rows of one after those of another."""
    codes: dict[str, int] = {}
    columns: dict[str, list[Int64]] = {name: [] for name in _COLUMNS}
    for part in parts:
        number = [codes.setdefault(name, len(codes)) for name in part.names]
        for name in _COLUMNS:
            values = getattr(part, name)
            columns[name].append(np.array(number or [0])[values] if name == "name" else values)
    return Exchanges(
        tuple(codes),
        tuple(sorted({rank for part in parts for rank in part.ranks})),
        **{name: np.concatenate(values) for name, values in columns.items()},
        warnings=tuple(w for part in parts for w in part.warnings),
    )


def match(
    found: Exchanges,
    *,
    reports: int = 1,
    world: Sequence[int] = (),
    on_one_clock: bool = True,
    stopped: frozenset[int] = frozenset(),
) -> Exchanges:
    """Match what the ranks recorded, put it on one clock, and find who waited for whom.

    Parameters
    ----------
    found : Exchanges
        Times of each report shifted by its UTC start, where it is known.
    reports : int
        Reports that the rows are of.
    world : sequence of int
        Ranks of MPI_COMM_WORLD.
    on_one_clock : bool
        Whether all reports know their UTC start.
    stopped : set of int
        Ranks whose last calls may be lost: they began and never came to MPI_Finalize.
    """
    collectives, warnings = _collectives(found, world, stopped)
    sends, receives, left = _messages(found)
    if reports > 1:
        alignment, said = _aligned(found, collectives, (sends, receives), reports, on_one_clock)
        found, warnings = _shifted(found, alignment), (*warnings, *said)
    if not on_one_clock:
        by_mpi = found.by_mpi
        collectives = [grid for grid in collectives if not by_mpi[grid[0, 0]]]
    collectives = [grid for grid in collectives if _sure(found, grid)]
    some = _messages_of_any(found, left)
    sends, receives = (np.append(a, b) for a, b in zip((sends, receives), some, strict=True))
    instance, needed, cause = (np.full(len(found), v) for v in (-1, NULL, -1))
    number = 0
    for grid in collectives:
        instance[grid] = number + np.arange(grid.shape[1])
        number += grid.shape[1]
        needed[grid], cause[grid] = _needed(found, grid)
    instance[sends] = instance[receives] = number + np.arange(len(sends))
    for here, there in ((sends, receives), (receives, sends)):
        left_before = found.post_ns[there] > found.completion_ns[here]
        needed[here] = np.where(left_before, found.begin_ns[here], found.post_ns[there])
        cause[here] = found.rank[there]
    known = (needed != NULL) & (found.begin_ns != NULL)
    held = np.where(known, found.completion_ns - found.begin_ns, 0)
    wait = np.clip(np.where(known, needed - found.begin_ns, 0), 0, held)
    cause = np.where((wait > 0) & _last_of_call(found, needed, known), cause, -1)
    return replace(
        found,
        instance=instance,
        wait_ns=np.where(known, wait, NULL),
        cause_rank=cause,
        warnings=(*found.warnings, *warnings),
    )


def _last_of_call(found: Exchanges, needed: Int64, known: Bool) -> Bool:
    """Which exchange is the last one that a call waits for, of all that it completes.

    Of a message that it sends and one that it receives at once, the one that it receives.
    """
    chosen = np.zeros(len(found), np.bool_)
    rows = np.flatnonzero(known)
    if len(rows):
        _, call = distinct_rows(
            *(c[rows] for c in (found.rank, found.begin_ns, found.completion_ns))
        )
        order = np.lexsort((-rows, found.way[rows], needed[rows], call))
        final = np.append(call[order][1:] != call[order][:-1], True)
        chosen[rows[order[final]]] = True
    return chosen


@cache
def _rules() -> dict[str, str]:
    text = files("perfmodel.timing").joinpath("exchange_rules.toml").read_text(encoding="utf-8")
    return {name: rule for rule, names in tomllib.loads(text).items() for name in names}


@cache
def rule_of(name: str) -> str:
    """Return the rule of waiting in a collective by `exchange_rules.toml`; '' without one."""
    operation = re.sub(r"^(?:MPI_I?(?=[a-zA-Z])|.* )", "", name).lower()
    operation = _LETTER.sub("", operation)
    return _rules().get(operation, _rules().get(_LETTER.sub("", operation), ""))


def _collectives(
    found: Exchanges, world: Sequence[int], stopped: frozenset[int]
) -> tuple[list[Int64], tuple[str, ...]]:
    """Rows of every communicator's collectives, shape (its ranks, n), and warnings."""
    rows = np.flatnonzero(found.way == COLLECTIVE)
    if len(rows) == 0:
        return [], ()
    by_mpi = found.by_mpi
    _, key = distinct_rows(np.where(by_mpi, -1, found.name)[rows], found.communicator[rows])
    order = np.lexsort((found.post_ns[rows], found.rank[rows], key))
    grids, unequal = [], False
    for mine in np.split(rows[order], np.flatnonzero(np.diff(key[order])) + 1):
        ranks, first, counts = np.unique(found.rank[mine], return_index=True, return_counts=True)
        mpi, count = bool(by_mpi[mine[0]]), int(counts.min())
        cut = mpi and stopped.issuperset(ranks[counts < counts.max()].tolist())
        lacking = mpi and found.communicator[mine[0]] == 0 and len(ranks) < len(world)
        grid = np.stack([mine[at : at + count] for at in first.tolist()])
        same = ((counts == count).all() or cut) and not lacking
        if same and (found.name[grid] == found.name[grid[0]]).all():
            grids += [grid] if len(ranks) > 1 else []
        else:
            unequal |= mpi
    if not unequal:
        return grids, ()
    return grids, (
        "the ranks' collectives differ in number or order: waiting and transfer "
        "cannot be separated; profile all ranks over the same interval",
    )


def _sure(found: Exchanges, grid: Int64) -> bool:
    """Whether the n-th kernels are one collective: as a communicator says, or their times.

    Kernels that send and receive may be of some ranks only, such as two stages of a pipeline.
    """
    first = int(grid[0, 0])
    name = found.names[found.name[first]]
    rule = rule_of(name)
    known = found.communicator[first] != NULL and (rule != "" or len(grid) == 2)
    if name.startswith("MPI_") or known or rule in ("from_root", "to_root"):
        return True
    come, gone = found.post_ns[grid].max(axis=0), found.end_ns[grid].min(axis=0)
    return bool((come < gone).mean() >= _OVERLAPPING)


def _needed(found: Exchanges, grid: Int64) -> tuple[Int64, Int64]:
    """When those had come that each rank of some collectives needs, and the last of them."""
    post, rank = found.post_ns[grid], found.rank[grid]
    last = post.argmax(axis=0)
    each = np.broadcast_to(np.arange(grid.shape[1]), grid.shape)
    whom = np.broadcast_to(last, grid.shape).copy()  # row of the grid that a rank waits for
    rules = np.array([rule_of(name) for name in found.names])[found.name[grid[0]]]
    root = found.peer[grid].max(axis=0)
    for rule in set(rules.tolist()) - {"together", ""}:
        at = np.flatnonzero(rules == rule)
        came, gone = post[:, at], found.completion_ns[grid][:, at]
        own = np.broadcast_to(np.arange(len(grid))[:, None], came.shape)
        is_root = rank[:, at] == root[at]
        known, of_root = is_root.any(axis=0), is_root.argmax(axis=0)
        if rule == "in_order":
            newest = np.where(came == np.maximum.accumulate(came, axis=0), own, 0)
            whom[:, at] = np.maximum.accumulate(newest, axis=0)
        elif rule == "from_root":
            may_be = np.where(came <= gone.min(axis=0), came, NULL).argmax(axis=0)
            whom[:, at] = np.where(known, of_root, may_be)
        else:
            before = (
                own
                if known.all()
                else np.array([np.where(came <= left, came, NULL).argmax(axis=0) for left in gone])
            )
            held = gone > came[of_root, np.arange(len(at))]  # a sender that had not left before
            of_known = np.where(is_root, last[at], np.where(held, of_root, own))
            whom[:, at] = np.where(known, of_known, before)
    return post[whom, each], rank[whom, each]


def _messages(found: Exchanges) -> tuple[Int64, Int64, Int64]:
    """Sends, their receives, and the messages' ends that are left."""
    rows = np.flatnonzero(found.way != COLLECTIVE)
    if len(rows) == 0:
        return rows, rows, rows
    sent = found.way[rows] == SEND
    rank, peer = found.rank[rows], found.peer[rows]
    ends = np.where(sent, rank, peer), np.where(sent, peer, rank)
    _, route = distinct_rows(found.communicator[rows], *ends, found.tag[rows])
    order = np.lexsort((rows, found.post_ns[rows], sent, route))
    _, group = distinct_rows(route[order], sent[order].astype(np.int64))
    first = np.concatenate([[0], np.flatnonzero(np.diff(group)) + 1])
    place = np.empty(len(rows), np.int64)
    place[order] = np.arange(len(rows)) - first[group]
    key = route * (len(rows) + 1) + place
    outward, inward = np.flatnonzero(sent), np.flatnonzero(~sent)
    _, a, b = np.intersect1d(key[outward], key[inward], return_indices=True)
    a, b = outward[a], inward[b]
    left = np.setdiff1d(np.arange(len(rows)), np.append(a, b))
    return rows[a], rows[b], rows[left]


def _messages_of_any(found: Exchanges, left: Int64) -> tuple[Int64, Int64]:
    """Match receives of any source or tag with the first message each could have received."""
    waiting: dict[tuple[int, int], list[int]] = {}
    left = left[np.argsort(found.post_ns[left], kind="stable")]
    for send in left[found.way[left] == SEND].tolist():
        key = int(found.communicator[send]), int(found.peer[send])
        waiting.setdefault(key, []).append(send)
    matched: list[tuple[int, int]] = []
    for receive in left[found.way[left] == RECEIVE].tolist():
        candidates = waiting.get((int(found.communicator[receive]), int(found.rank[receive])), [])
        done = max(int(found.completion_ns[receive]), int(found.end_ns[receive]))
        for i, send in enumerate(candidates):
            if found.post_ns[send] > done:
                break
            if found.peer[receive] in (ANY, found.rank[send]) and found.tag[receive] in (
                NULL, found.tag[send],
            ):  # fmt: skip
                matched.append((candidates.pop(i), receive))
                break
    pairs = np.array(matched, np.int64).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


def _aligned(
    found: Exchanges,
    collectives: Sequence[Int64],
    messages: tuple[Int64, Int64],
    reports: int,
    on_one_clock: bool,
) -> tuple[Alignment, tuple[str, ...]]:
    """Find the shifts with which nobody leaves before all have come, and warnings.

    No message arrives before it was sent. Where the UTC starts contradict that, or the collectives,
    the reports of a run with messages are shifted so that their collectives end at the same time,
    as far as all agrees.
    """
    limits, guess = np.full((reports, reports), FAR), None
    by_mpi = spanning = False
    for grid in collectives:
        own = found.taken(grid[0])
        mpi = bool(own.by_mpi[0])
        together = [rule_of(n) == "together" for n in found.names]
        strict = np.array(together)[own.name] & found.blocking[grid].all(axis=0)
        part = found.report[grid[:, 0]]
        those, where = np.unique(part, return_inverse=True)
        if not strict.any() or len(those) < 2 or (not mpi and (spanning or len(those) < reports)):
            continue  # kernels of no known communicator may not be one collective
        rows = grid[:, strict]
        post, end = found.post_ns[rows], found.end_ns[rows]
        bound = collective_limits(post, end, where)
        limits[np.ix_(those, those)] = np.minimum(limits[np.ix_(those, those)], bound)
        spanning |= not mpi
        by_mpi |= mpi
        if len(messages[0]) and len(those) == reports:
            guess = np.zeros(reports, np.int64)
            guess[part] = np.median(end[0] - end, axis=1)
            guess -= guess[0]
    sends, receives = messages
    i, j = found.report[receives], found.report[sends]
    done = np.maximum(found.completion_ns, found.end_ns)
    np.minimum.at(limits, (i, j), np.where(i == j, FAR, done[receives] - found.post_ns[sends]))
    alignment = align(limits, guess)
    if not on_one_clock:
        said: tuple[str, ...] = (
            "the reports have no UTC start time: ranks cannot be aligned, so waiting and "
            "transfer cannot be separated; profile the whole mpirun in one report",
        )
        return alignment, said if by_mpi else ()
    what = " and ".join(["the collectives"] * by_mpi + ["messages"] * bool(len(sends)))
    return alignment, tuple(_said(alignment, what)) if what else ()


def _said(found: Alignment, what: str) -> list[str]:
    """Warn of clocks that contradict the order of exchanges."""
    said, reports = [], len(found.shift_ns)
    if len(found.moved):
        said.append(
            f"the clocks of {len(found.moved)} of {reports} reports contradict the order of {what} "
            f"by up to {si(float(np.abs(found.shift_ns).max()) * 1e-9, 's')}: they are aligned by "
            f"these, to {si(float(found.bound_ns.max()) * 1e-9, 's')} either way"
        )
    if len(found.drifting):
        said.append(
            f"the clocks of {len(found.drifting)} of {reports} reports drift: no one shift puts "
            f"{what} in order, so that waiting is wrong by up to "
            f"{si(float(found.bound_ns[found.drifting].max()) * 1e-9, 's')}; profile for a shorter "
            f"time"
        )
    return said


def _shifted(found: Exchanges, alignment: Alignment) -> Exchanges:
    by = alignment.shift_ns[found.report]
    times: dict[str, Any] = {
        name: np.where(getattr(found, name) == NULL, NULL, getattr(found, name) + by)
        for name in ("post_ns", "end_ns", "begin_ns", "completion_ns")
    }
    return replace(
        found,
        **times,
        shift_ns=found.shift_ns + by,
        clock_error_ns=alignment.bound_ns[found.report],
    )
