"""Ranges of operators as a tree, and what each lies in: the nearest of some kind, and its module.

In the forward pass the module is the one around a range, in the backward its operator's. Autograd
gives an operator and the function of its backward one sequence number. Operators that make no
function have the number of the next one that does: the last range with it is the one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from perfmodel.base.arrays import Bool, Int32, Int64
from perfmodel.programs.pytorch.names import OperatorNames
from perfmodel.readers.frames import MODULE, module_path

EVALUATE: Final = "autograd::engine::evaluate_function"


@dataclass(frozen=True, slots=True)
class Tree:
    """Ranges of a process and what each is inside of, an outer one before its inner ones.

    Attributes
    ----------
    label : int32, shape (n,)
        Row of `OperatorNames`.
    parent : int64, shape (n,)
        -1 for the outermost.
    start_ns : int64, shape (n,)
    thread : int32, shape (n,), or None
        Of the program; None where it is not known.
    number, numbers : integer arrays, or None
        Where the numbers that were cut out of each one's name begin, and the numbers; None where
        none were.
    """

    label: Int32 | Int64
    parent: Int64
    start_ns: Int64
    thread: Int32 | Int64 | None = None
    number: Int64 | None = None
    numbers: Int64 | None = None

    def numbered(self, said: Int64, node: Int64 | slice = slice(None)) -> Int64:
        """Return what names say of some ranges, with the numbers that were cut out of them."""
        cut = np.flatnonzero(said < -1)
        if self.number is None or self.numbers is None or len(cut) == 0:
            return said
        found = said.copy()
        found[cut] = self.numbers[self.number[node][cut] - 2 - said[cut]]
        return found


def nearest(parent: Int64, chosen: Bool) -> Int64:
    """Of every range the innermost chosen one that it is or is inside of, -1 if none is."""
    found = np.where(chosen, np.arange(len(parent)), parent)
    left = np.flatnonzero(found >= 0)
    while len(left := left[~chosen[found[left]]]):
        found[left] = found[found[left]]  # what that one found already, which is further up
        left = left[found[left] >= 0]
    return found


@dataclass(frozen=True, slots=True)
class Modules:
    """Modules of ranges.

    Attributes
    ----------
    paths : tuple of str
        Qualified names; the last is '', of ranges in no module.
    of_node : int64, shape (n,)
        Position in `paths` for every range of a `Tree`; -1, the last, where it is in no module.
    """

    paths: tuple[str, ...]
    of_node: Int64


def find_modules(names: OperatorNames, tree: Tree) -> Modules:
    """Find the module of every range, by the ranges of modules: `annotate`'s, torch.profiler's."""
    is_module = names.starting(MODULE)[tree.label]
    nothing = np.full(len(tree.parent), -1, np.int64)
    if not is_module.any():
        return Modules(("",), nothing)
    around = nearest(tree.parent, is_module)
    paths: dict[str, int] = {}
    mine, outer = nothing.copy(), [""] * len(tree.parent)
    for node in np.flatnonzero(is_module).tolist():
        up = tree.parent[node]
        above = outer[around[up]] if up >= 0 and around[up] >= 0 else ""
        name = names.name[tree.label[node]].removeprefix(MODULE)
        outer[node] = module_path(above, name)
        mine[node] = paths.setdefault(outer[node], len(paths))
    of_node = np.where(around >= 0, mine[around], -1)
    backward, forward = _functions(names, tree)
    tied = nothing.copy()  # by the engine's range, which also sums gradients up after the function
    tied[tree.parent[backward]] = np.where(forward >= 0, of_node[forward], -1)
    evaluation = nearest(tree.parent, names.starting(EVALUATE)[tree.label])
    inner = evaluation > around  # what the backward pass recomputes has a module around it
    of_node[inner] = tied[evaluation[inner]]
    return Modules((*paths, ""), of_node)


def with_function(names: OperatorNames, tree: Tree) -> Int64:
    """Ranges of operators of which autograd evaluates a function after them."""
    _, forward = _functions(names, tree)
    return np.unique(forward[forward >= 0])


def differentiated(names: OperatorNames, tree: Tree) -> Int64:
    """Of every range the operator of a function of autograd that it is in, or that is evaluated.

    -1 outside of all.
    """
    backward, forward = _functions(names, tree)
    tied = np.full(len(tree.parent), -1, np.int64)
    tied[tree.parent[backward]] = forward
    mine = np.zeros(len(tree.parent), np.bool_)
    mine[forward[forward >= 0]] = True
    evaluation = nearest(tree.parent, names.starting(EVALUATE)[tree.label])
    return np.where(evaluation >= 0, tied[evaluation], nearest(tree.parent, mine))


def _functions(names: OperatorNames, tree: Tree) -> tuple[Int64, Int64]:
    """Ranges of functions that autograd's engine evaluates, and of their operators, -1 for none."""
    called = (tree.parent >= 0) & names.starting(EVALUATE)[tree.label[tree.parent]]
    seq = tree.numbered(names.seq[tree.label])
    backward = np.flatnonzero(called & (seq >= 0))
    return backward, _tied(seq, tree, np.flatnonzero((seq >= 0) & ~called), backward)


def _tied(number: Int64, tree: Tree, forward: Int64, backward: Int64) -> Int64:
    """Of every backward range the last one of a forward pass before it with its number, or -1."""
    if len(forward) == 0:
        return np.full(len(backward), -1, np.int64)
    both = np.concatenate([forward, backward])
    is_forward = np.arange(len(both)) < len(forward)
    seq = number[both]
    order = np.lexsort((is_forward, tree.start_ns[both], seq))
    last = np.maximum.accumulate(np.where(is_forward[order], np.arange(len(both)), -1))
    found = np.where(last >= 0, order[last], 0)
    same = (last >= 0) & (seq[found] == seq[order])
    of_both = np.empty(len(both), np.int64)
    of_both[order] = np.where(same, both[found], -1)
    return of_both[len(forward) :]
