"""Distinguishes points by markers and colours that a legend explains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from matplotlib import colormaps
from matplotlib.colors import to_hex
from matplotlib.lines import Line2D

from perfmodel.models.roofline import Point
from perfmodel.render.plot.style import INK, MARKER_PT, MARKERS, PALETTE, plain

_FIRST: Final = ("H", "B", "p")  # symbols shown first where several vary
_MOST: Final = 16  # lines of a legend


@dataclass(frozen=True, slots=True)
class Look:
    """Marker, colour and filling of one point."""

    marker: str
    color: str
    hollow: bool

    def line(self, **more: Any) -> Line2D:
        """One marker without a line, as drawn and as shown in a legend.

        A filled one has a white rim, so that one of two at a place does not hide the other.
        """
        return Line2D(
            [], [], linestyle="none", marker=self.marker,
            markersize=MARKER_PT + (0.0 if self.hollow else 1.2),
            markerfacecolor="white" if self.hollow else self.color,
            markeredgecolor=self.color if self.hollow else "white", color=self.color,
            markeredgewidth=1.4 if self.hollow else 0.5, **more,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Keys:
    """The look of every point, and the legends that explain it: title and entries each."""

    looks: tuple[Look, ...]
    legends: list[tuple[str, list[Line2D], list[str]]] = field(default_factory=list)


def choose(
    points: Sequence[Point], texts: Sequence[str], colors: dict[str, str], listed: int
) -> Keys:
    """Choose how `points`, named by `texts`, are distinguished.

    Up to `listed` points are listed one by one, as are more that neither symbols nor report and
    kind tell apart.
    """
    plainly = len({(p.group, p.kind) for p in points}) == len(points)
    symbols = varying_symbols(points)
    if len(points) > listed and symbols and _entries(points, symbols) <= _MOST:
        return by_symbol(points, symbols)
    if len({p.group for p in points}) > _MOST:  # too many to list: tell what the symbols tell
        shared = varying_symbols(points, whole=False)[:2]
        return by_symbol(points, shared) if shared else by_group(points, colors, listed=False)
    keys = by_group(points, colors) if plainly else by_point(points, colors)
    if len(points) > listed and plainly:
        return keys
    return Keys(keys.looks, [("", [look.line() for look in keys.looks], list(texts))])


def by_point(points: Sequence[Point], colors: dict[str, str]) -> Keys:
    """Marker of every point on its own, in the colour of its group, else also its own."""
    hollow = _hollow(points)
    looks = [
        Look(
            MARKERS[i % len(MARKERS)], colors.get(p.group, PALETTE[i % len(PALETTE)]),
            hollow[p.kind] and p.group in colors,
        )
        for i, p in enumerate(points)
    ]  # fmt: skip
    return Keys(tuple(looks))


def by_group(points: Sequence[Point], colors: dict[str, str], *, listed: bool = True) -> Keys:
    """Marker and colour by group (a report); `colors` fixes the colour of some groups."""
    groups = list(dict.fromkeys(p.group for p in points))
    free = [c for c in PALETTE if c not in colors.values()] or list(PALETTE)
    others = [g for g in groups if g not in colors]
    hues = colors | {g: free[i % len(free)] for i, g in enumerate(others)}
    shapes = {g: MARKERS[i % len(MARKERS)] for i, g in enumerate(groups)}
    hollow = _hollow(points)
    looks = tuple(Look(shapes[p.group], hues[p.group], hollow[p.kind]) for p in points)
    entries = [Look(shapes[g], hues[g], False).line() for g in groups]
    legends = [("", entries, [plain(g) for g in groups])] if listed and len(groups) > 1 else []
    return Keys(looks, [*legends, *_kinds(hollow)])


def by_symbol(points: Sequence[Point], varying: Sequence[str]) -> Keys:
    """Marker by the first of the `varying` symbols, colour by the others (or by the same)."""
    first, rest = varying[0], tuple(varying[1:]) or (varying[0],)
    names = [_values(p, (first,)) for p in points]
    hues = [_values(p, rest) for p in points]
    shapes = {v: MARKERS[i % len(MARKERS)] for i, v in enumerate(sorted(set(names)))}
    colors = dict(zip(sorted(set(hues)), ordered_colors(len(set(hues))), strict=True))
    hollow = _hollow(points)
    looks = tuple(
        Look(shapes[n], colors[h], hollow[p.kind])
        for p, n, h in zip(points, names, hues, strict=True)
    )
    alone = rest == (first,)
    markers = [Look(m, colors[v] if alone else INK, False).line() for v, m in shapes.items()]
    legends = [(first, markers, [f"{v[0]:,}" for v in shapes])]
    if not alone:
        entries = [Look("o", c, False).line() for c in colors.values()]
        texts = [", ".join(f"{v:,}" for v in values) for values in colors]
        legends.append((", ".join(rest), entries, texts))
    return Keys(looks, [*legends, *_kinds(hollow)])


def _entries(points: Sequence[Point], varying: Sequence[str]) -> int:
    """Most lines of a legend of `by_symbol`."""
    rest = tuple(varying[1:]) or (varying[0],)
    return len({_values(p, rest) for p in points})


def varying_symbols(points: Sequence[Point], *, whole: bool = True) -> list[str]:
    """Symbols whose values tell the groups of `points` apart; empty if they do not.

    With `whole` false also those that tell only some apart.
    """
    if not points or any(not p.symbols for p in points):
        return []
    names = [n for n in (points[0].symbols or {}) if all(n in (p.symbols or {}) for p in points)]
    varying = [n for n in names if len({(p.symbols or {})[n] for p in points}) > 1]
    varying.sort(key=lambda n: (_FIRST.index(n) if n in _FIRST else len(_FIRST), n))
    configurations = {(p.kind, *_values(p, varying)) for p in points}
    return varying if not whole or len(configurations) == len(points) else []


def ordered_colors(count: int) -> list[str]:
    """Colours from dark to light, distinct in grey as well, never too light for white paper."""
    if count == 1:
        return [PALETTE[0]]
    ramp = colormaps["viridis"]
    return [to_hex(ramp(0.02 + 0.83 * i / (count - 1))) for i in range(count)]


def _values(point: Point, names: Sequence[str]) -> tuple[int, ...]:
    symbols = point.symbols or {}
    return tuple(symbols[n] for n in names)


def _hollow(points: Sequence[Point]) -> dict[str, bool]:
    """Kinds in the order they come: the first is filled, the others are hollow."""
    return {k: i > 0 for i, k in enumerate(dict.fromkeys(p.kind for p in points))}


def _kinds(hollow: dict[str, bool]) -> list[tuple[str, list[Line2D], list[str]]]:
    if len(hollow) < 2:
        return []
    entries = [Look("o", INK, h).line() for h in hollow.values()]
    return [("", entries, [plain(k) for k in hollow])]
