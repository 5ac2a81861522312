"""Ranges of operators as a tree, and of each the nearest around it that is of some kind."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfmodel.base.arrays import Bool, Int64


@dataclass(frozen=True, slots=True)
class Tree:
    """Ranges and what each is inside of, an outer one before its inner ones.

    Attributes
    ----------
    label : int64, shape (n,)
        Row of `OperatorNames`.
    parent : int64, shape (n,)
        -1 for the outermost.
    process : int64, shape (n,)
        In which `op_id`s are unique.
    start_ns : int64, shape (n,)
    thread : int64, shape (n,), or None
        Of the program; None where it is not known.
    """

    label: Int64
    parent: Int64
    process: Int64
    start_ns: Int64
    thread: Int64 | None = None


def nearest(parent: Int64, chosen: Bool) -> Int64:
    """Of every range the innermost chosen one that it is or is inside of, -1 if none is."""
    found: list[int] = []
    for i, (above, mine) in enumerate(zip(parent.tolist(), chosen.tolist(), strict=True)):
        found.append(i if mine else found[above] if above >= 0 else -1)
    return np.array(found, np.int64)
