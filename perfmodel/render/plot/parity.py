"""Predicted against measured: a point for every run, the diagonal where they agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from perfmodel.base.errors import ModelError
from perfmodel.render.plot.style import (
    GREY,
    GRID,
    INK,
    MARKERS,
    PALETTE,
    TEXT_PT,
    axes_of,
    entry,
    finish,
    plain,
    put_title,
    si_tick,
    size_pt,
    text_width_pt,
)

Pairs = Sequence[tuple[float, float]]


def parity(
    models: Mapping[str, Pairs],
    *,
    unit: str = "s",
    words: str = "time of a batch",
    ax: Axes | None = None,
    title: str | None = None,
) -> Axes:
    """Draw predictions over measurements on equal logarithmic axes.

    Parameters
    ----------
    models : mapping of str to sequence of (measured, predicted)
        By the model's name; the grey bands are 10 % and a factor of 2 around agreement.
    unit, words : str
        Of both axes.

    Raises
    ------
    ModelError
        If there is no pair, or a number that has no logarithm.
    """
    values = [v for pairs in models.values() for pair in pairs for v in pair]
    if not values or not all(v > 0 for v in values):
        raise ModelError("wanted pairs of positive numbers, measured and predicted; found others")
    foreign = ax is not None
    ax = axes_of(ax, 3.5, 3.3)
    low, high = min(values) / 1.3, max(values) * 1.3
    ax.set_xscale("log")
    ax.set_yscale("log")
    ends = (low, high)
    for factor, shade in ((2.0, 0.10), (1.1, 0.22)):
        ax.fill_between(ends, [v / factor for v in ends], [v * factor for v in ends],
                        color=GREY, alpha=shade, lw=0)  # fmt: skip
    ax.plot(ends, ends, color=INK, lw=0.9)
    for i, (name, pairs) in enumerate(models.items()):
        x, y = zip(*pairs, strict=True)
        color = PALETTE[i % len(PALETTE)]
        ax.plot(x, y, MARKERS[i % len(MARKERS)], ls="none", ms=4.5, mec=color, zorder=3,
                mfc="white" if i % 2 else color, label=entry(plain(name)))  # fmt: skip
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_minor_formatter(NullFormatter())
        axis.set_major_formatter(FuncFormatter(lambda v, _: si_tick(v, unit)))
    ax.set_xlim(low, high)
    ax.set_ylim(low, high)
    ax.grid(True, which="major", color=GRID, lw=0.6)
    finish(ax, f"Measured {words}", f"Predicted {words}")
    width = size_pt(ax, foreign)[0]
    fits = sum(text_width_pt(plain(n)) + 24 for n in models) < width
    columns = len(models) if fits else 1
    ax.legend(
        loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=columns, frameon=False,
        fontsize=TEXT_PT, labelcolor=INK, borderaxespad=0.2, handletextpad=0.2, columnspacing=1.0,
    )  # fmt: skip
    put_title(ax, title, width, 6 + 12 * (len(models) // columns))
    return ax
