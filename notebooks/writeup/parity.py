"""Predicted against measured: a point for every run, the diagonal where they agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from perfmodel.base.errors import ModelError

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, slots=True)
class Pair:
    """One prediction beside its measurement; the marker follows `shape`, the colour `hue`."""

    shape: str
    hue: str
    measured: float
    predicted: float
    low: float | None = None
    high: float | None = None


def pairs_of(models: Mapping[str, Sequence[tuple[float, float]]]) -> list[Pair]:
    """Return the pairs (measured, predicted) of several models, by name."""
    return [Pair(name, name, *pair) for name, pairs in models.items() for pair in pairs]


def parity(
    pairs: Sequence[Pair],
    *,
    words: str = "time of a batch",
    within: Sequence[float] = (1.1, 2.0),
    ordered: bool = False,
    ax: Axes | None = None,
) -> Axes:
    """Draw predictions over measurements on equal logarithmic axes.

    Parameters
    ----------
    pairs : sequence of Pair
        Vertical lines are their intervals.
    words : str
        Of both axes, which are seconds.
    within : sequence of float
        Factors around agreement that are shaded.
    ordered : bool
        Hues follow a quantity: colours go from dark to light.

    Raises
    ------
    ModelError
        If there is no pair, or a number that has no logarithm.
    """
    from perfmodel.render.plot import style
    from perfmodel.render.plot.labels import ordered_colors

    values = [v for pair in pairs for v in (pair.measured, pair.predicted)]
    if not values or not all(v > 0 for v in values):
        raise ModelError("expected pairs of positive numbers, measured and predicted; got others")
    foreign = ax is not None
    ax = style.axes_of(ax, 3.5, 3.3)
    ends = (min(values) / 1.3, max(values) * 1.3)
    ax.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
    for factor in sorted(within, reverse=True):
        said = f"within {100 * (factor - 1):.0f} %" if factor < 2 else f"a factor of {factor:g}"
        ax.fill_between(ends, [v / factor for v in ends], [v * factor for v in ends], lw=0,
                        color=style.GREY, alpha=0.15 if factor >= 2 else 0.3, label=said)  # fmt: skip
    ax.plot(ends, ends, color=style.INK, lw=0.9)
    shapes, hues = (list(dict.fromkeys(getattr(p, key) for p in pairs)) for key in ("shape", "hue"))
    colors = ordered_colors(len(hues)) if ordered else style.PALETTE
    marker = {s: style.MARKERS[i % len(style.MARKERS)] for i, s in enumerate(shapes)}
    color = {h: colors[i % len(colors)] for i, h in enumerate(hues)}
    for pair in pairs:
        x, look = [pair.measured], dict[str, Any](color=color[pair.hue], zorder=3)
        if pair.low is not None and pair.high is not None:
            ax.plot(2 * x, [pair.low, pair.high], lw=0.7, alpha=0.6, **look)
        ax.plot(x, [pair.predicted], marker[pair.shape], ms=5, mec="white", mew=0.3, **look)
    style.finish(ax, f"Measured {words}", f"Predicted {words}")
    style.ticks(ax.xaxis, "s", ratio=300.0)
    style.ticks(ax.yaxis, "s")
    dot: dict[str, Any] = {"ls": "", "ms": 5}
    if shapes == hues:
        entries = [ax.plot([], [], marker[s], color=color[s], **dot)[0] for s in shapes]
        texts = shapes
    else:
        entries = [ax.plot([], [], marker[s], color=style.INK, **dot)[0] for s in shapes]
        entries += [ax.plot([], [], color=color[h], lw=4)[0] for h in hues]
        texts = [*shapes, *hues]
    bands, words_of = ax.get_legend_handles_labels()
    style.legend_above(ax, [*entries, *bands], [*texts, *words_of], foreign=foreign)
    return ax
