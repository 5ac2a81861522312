"""One training step of the MLP on a grid of ranks that own elements and send what they lack.

Every rank computes with its own blocks only; whatever another rank needs goes through
`Simulation.send`, which counts it. Nothing here knows the formulas of `perfmodel.splits`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import reduce
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from perfmodel.studies.mlp.splits import Grid, Sizes

Array = npt.NDArray[np.float64]
Index = npt.NDArray[np.int64]
Rank = tuple[int, int, int, int]
Parameters = dict[str, Array]

RATE, REGULARIZATION = 0.5, 0.01


def problem(sizes: Sizes) -> tuple[Parameters, Array, Array]:
    """Parameters, images (D, B) and one-hot labels (C, B)."""
    rng = np.random.default_rng(3)
    shapes = {
        "W1": (sizes.H, sizes.D), "b1": (sizes.H, 1), "W2": (sizes.C, sizes.H), "b2": (sizes.C, 1),
    }  # fmt: skip
    parameters = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    labels = np.eye(sizes.C)[:, rng.integers(0, sizes.C, sizes.B)]
    return parameters, rng.standard_normal((sizes.D, sizes.B)), labels


def sequential(parameters: Parameters, x: Array, y: Array) -> Parameters:
    """One step on one rank, as the handout writes it."""
    p = parameters
    a1 = 1 / (1 + np.exp(-(p["W1"] @ x + p["b1"])))
    z2 = p["W2"] @ a1 + p["b2"]
    e = np.exp(z2 - z2.max(axis=0))
    dz2 = (e / e.sum(axis=0) - y) / x.shape[1]
    dz1 = (p["W2"].T @ dz2) * a1 * (1 - a1)
    gradients = {
        "W1": dz1 @ x.T, "b1": dz1.sum(axis=1, keepdims=True),
        "W2": dz2 @ a1.T, "b2": dz2.sum(axis=1, keepdims=True),
    }  # fmt: skip
    return {name: _descend(name, p[name], g) for name, g in gradients.items()}


def _descend(name: str, value: Array, gradient: Array) -> Array:
    return value - RATE * (gradient + (REGULARIZATION * value if name[0] == "W" else 0))


class Simulation:
    """The ranks of a grid, what each sent, and which triplets of each product each did."""

    def __init__(self, sizes: Sizes, grid: Grid) -> None:
        self.sizes, self.grid = sizes, grid
        self.ranks: list[Rank] = list(
            product(range(grid.B), range(grid.H), range(grid.D), range(grid.C))
        )
        self.sent = dict.fromkeys(self.ranks, 0)
        self.collectives = dict.fromkeys(self.ranks, 0)
        self.flops: dict[str, dict[Rank, int]] = {}
        self.done: dict[str, npt.NDArray[np.int64]] = {}

    # --- who owns what

    def images(self, r: Rank) -> Index:
        return np.array_split(np.arange(self.sizes.B), self.grid.B)[r[0]]

    def pixels(self, r: Rank) -> Index:
        return np.array_split(np.arange(self.sizes.D), self.grid.D)[r[2]]

    def classes(self, r: Rank) -> Index:
        return np.array_split(np.arange(self.sizes.C), self.grid.C)[r[3]]

    def hidden(self, r: Rank) -> Index:
        shared = np.array_split(np.arange(self.sizes.H), self.grid.H)[r[1]]
        return np.array_split(shared, self.grid.D * self.grid.C)[r[2] * self.grid.C + r[3]]

    def rows_1(self, r: Rank) -> Index:
        return np.concatenate([self.hidden((*r[:2], d, r[3])) for d in range(self.grid.D)])

    def rows_2(self, r: Rank) -> Index:
        return np.concatenate([self.hidden((*r[:3], c)) for c in range(self.grid.C)])

    # --- what crosses ranks

    def send(self, source: Rank, target: Rank, values: Array) -> Array:
        if source != target:
            self.sent[source] += values.size
        return values.copy()

    def groups(self, *along: int) -> Iterator[list[Rank]]:
        """Ranks that differ in these coordinates only; groups of one have nothing to do."""
        found: dict[tuple[int, ...], list[Rank]] = {}
        for r in self.ranks:
            found.setdefault(tuple(x for i, x in enumerate(r) if i not in along), []).append(r)
        for group in found.values():
            if len(group) > 1:
                for r in group:
                    self.collectives[r] += 1
                yield group

    def reduce_scatter(
        self, values: dict[Rank, Array], parts: Callable[[Rank], Index], rows: Any, along: int,
    ) -> dict[Rank, Array]:  # fmt: skip
        """Sum `values` (rows `rows(r)` of everybody) over a group; each keeps rows `parts(r)`."""
        kept = dict(values)
        for group in self.groups(along):
            for target in group:
                at = np.searchsorted(rows(target), parts(target))
                kept[target] = sum(self.send(s, target, values[s][at]) for s in group)  # type: ignore[assignment]
        return kept

    def all_gather(
        self, values: dict[Rank, Array], parts: Callable[[Rank], Index], rows: Any, along: int,
    ) -> dict[Rank, Array]:  # fmt: skip
        whole = dict(values)
        for group in self.groups(along):
            for target in group:
                out = np.empty((len(rows(target)), values[target].shape[1]))
                for source in group:
                    at = np.searchsorted(rows(target), parts(source))
                    out[at] = self.send(source, target, values[source])
                whole[target] = out
        return whole

    def all_reduce(
        self, values: dict[Rank, Array], *along: int, by: Any = np.add
    ) -> dict[Rank, Array]:
        """Reduce parts and hand them round, so that nobody sends anything twice."""
        result = dict(values)
        for group in self.groups(*along):
            cut = {r: np.array_split(values[r].ravel(), len(group)) for r in group}
            reduced = [
                reduce(by, [self.send(s, target, cut[s][i]) for s in group])
                for i, target in enumerate(group)
            ]
            for target in group:
                parts = [self.send(s, target, reduced[i]) for i, s in enumerate(group)]
                result[target] = np.concatenate(parts).reshape(values[target].shape)
        return result

    def multiply(
        self, name: str, loops: tuple[Callable[[Rank], Index], ...],
        a: dict[Rank, Array], b: dict[Rank, Array],
    ) -> dict[Rank, Array]:  # fmt: skip
        """Multiply local blocks and note the triplets (i, k, j) that each rank did."""
        size = {self.images: "B", self.pixels: "D", self.classes: "C"}
        shape = [getattr(self.sizes, size.get(loop, "H")) for loop in loops]
        self.done[name] = np.zeros(shape, np.int64)
        self.flops[name] = {}
        for r in self.ranks:
            triplets = np.ix_(*(loop(r) for loop in loops))
            self.done[name][triplets] += 1
            self.flops[name][r] = 2 * self.done[name][triplets].size
        return {r: a[r] @ b[r] for r in self.ranks}

    # --- one step

    def step(self, parameters: Parameters, x: Array, y: Array) -> Parameters:
        """Return the parameters after one step, put together from what the ranks own."""
        p = {
            "W1": {r: parameters["W1"][np.ix_(self.rows_1(r), self.pixels(r))] for r in self.ranks},
            "b1": {r: parameters["b1"][self.hidden(r)] for r in self.ranks},
            "W2": {r: parameters["W2"][np.ix_(self.classes(r), self.rows_2(r))]
                   for r in self.ranks},
            "b2": {r: parameters["b2"][self.classes(r)] for r in self.ranks},
        }  # fmt: skip
        mine = {r: x[np.ix_(self.pixels(r), self.images(r))] for r in self.ranks}
        labels = {r: y[np.ix_(self.classes(r), self.images(r))] for r in self.ranks}
        own, a1, a1_own = self._forward_1(p, mine)
        dz2 = self._forward_2(p, a1, labels)
        dz1_own, dz1 = self._backward(p, a1_own, dz2)
        gradients = {
            "W1": self.multiply("backward GEMM 3", (self.rows_1, self.images, self.pixels),
                                dz1, {r: mine[r].T for r in self.ranks}),
            "b1": {r: dz1_own[r].sum(axis=1, keepdims=True) for r in own},
            "W2": self.multiply("backward GEMM 2", (self.classes, self.images, self.rows_2),
                                dz2, {r: a1[r].T for r in self.ranks}),
            "b2": {r: dz2[r].sum(axis=1, keepdims=True) for r in self.ranks},
        }  # fmt: skip
        flat = {
            r: np.concatenate([g[r].ravel() for g in gradients.values()])[:, None]
            for r in self.ranks
        }
        flat = self.all_reduce(flat, 0)
        for r in self.ranks:
            start = 0
            for g in gradients.values():
                stop = start + g[r].size
                g[r] = flat[r][start:stop].reshape(g[r].shape)
                start = stop
        return self._assemble(p, gradients)

    def _forward_1(self, p: Any, x: dict[Rank, Array]) -> Any:
        z1 = self.multiply("forward GEMM 1", (self.rows_1, self.pixels, self.images), p["W1"], x)
        own = self.reduce_scatter(z1, self.hidden, self.rows_1, 2)
        a1_own = {r: 1 / (1 + np.exp(-(own[r] + p["b1"][r]))) for r in self.ranks}
        return own, self.all_gather(a1_own, self.hidden, self.rows_2, 3), a1_own

    def _forward_2(self, p: Any, a1: dict[Rank, Array], y: dict[Rank, Array]) -> dict[Rank, Array]:
        z2 = self.multiply("forward GEMM 2", (self.classes, self.rows_2, self.images), p["W2"], a1)
        z2 = self.all_reduce(z2, 1, 2)
        z2 = {r: z2[r] + p["b2"][r] for r in self.ranks}
        largest = {r: z2[r].max(axis=0, keepdims=True) for r in self.ranks}
        largest = self.all_reduce(largest, 3, by=np.maximum)
        e = {r: np.exp(z2[r] - largest[r]) for r in self.ranks}
        total = self.all_reduce({r: e[r].sum(axis=0, keepdims=True) for r in self.ranks}, 3)
        return {r: (e[r] / total[r] - y[r]) / self.sizes.B for r in self.ranks}

    def _backward(self, p: Any, a1_own: dict[Rank, Array], dz2: dict[Rank, Array]) -> Any:
        da1 = self.multiply(
            "backward GEMM 1", (self.rows_2, self.classes, self.images),
            {r: p["W2"][r].T for r in self.ranks}, dz2,
        )  # fmt: skip
        da1 = self.reduce_scatter(da1, self.hidden, self.rows_2, 3)
        own = {r: da1[r] * a1_own[r] * (1 - a1_own[r]) for r in self.ranks}
        return own, self.all_gather(own, self.hidden, self.rows_1, 2)

    def _assemble(self, p: Any, gradients: Any) -> Parameters:
        s = self.sizes
        whole = {
            "W1": np.full((s.H, s.D), np.nan), "b1": np.full((s.H, 1), np.nan),
            "W2": np.full((s.C, s.H), np.nan), "b2": np.full((s.C, 1), np.nan),
        }  # fmt: skip
        for r in self.ranks:
            at: dict[str, Any] = {
                "W1": np.ix_(self.rows_1(r), self.pixels(r)), "b1": self.hidden(r),
                "W2": np.ix_(self.classes(r), self.rows_2(r)), "b2": self.classes(r),
            }  # fmt: skip
            for name, place in at.items():
                new = _descend(name, p[name][r], gradients[name][r])
                before = whole[name][place]
                copies = np.isnan(before) | np.isclose(before, new, rtol=1e-12, atol=1e-14)
                assert copies.all(), f"copies of {name} differ between ranks"
                whole[name][place] = new
        return whole
