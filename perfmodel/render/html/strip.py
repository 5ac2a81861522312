"""The ranks of a run as a strip: a cell for every rank, by host or by time, dark where slow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from html import escape
from typing import Final

from perfmodel.analysis.outliers import own_seconds
from perfmodel.analysis.result import RankRow, RunAnalysis
from perfmodel.base.escape import printable
from perfmodel.base.units import si
from perfmodel.render.html.blocks import Picture, cut

_SIDE: Final = 12
_WIDTH: Final = 64
"""Cells of a row."""
_SLOWEST: Final = 1.25
"""Cells are darkest from so many times the fastest rank's time on."""
_OUTLIER: Final = "#d1495b"
_Place = tuple[RankRow, int, int]
"""A rank, and the column and line of its cell."""


def strips(run: RunAnalysis) -> Iterator[Picture]:
    """Draw the ranks by number, hosts apart, and the slowest first.

    Those that are outliers, or on a host or GPU that is one, are red.
    """
    slow = {rank for one in run.outliers for rank in one.ranks}
    title = f"{run.label}: {len(run.ranks)} ranks, {len(slow)} of them slower than the others"
    order = "by number, hosts apart" if run.hosts else "by number"
    yield Picture(
        _drawn(run, _by_host(run), title, slow),
        f"{title}; {order}. The darker, the longer a step takes without waiting; red: an outlier. "
        f"Hold the pointer over a cell for its rank and times.",
        wide=False,
    )
    by_time = sorted(run.ranks, key=lambda rank: (-(_seconds(rank) or 0.0), rank.rank))
    cells = [(rank, i % _WIDTH, i // _WIDTH) for i, rank in enumerate(by_time)]
    yield Picture(_drawn(run, cells, title, slow), "The same, the slowest first.", wide=False)


def _drawn(run: RunAnalysis, cells: Sequence[_Place], title: str, slow: Set[int]) -> str:
    least = min((s for rank in run.ranks if (s := _seconds(rank)) is not None), default=0.0)
    drawn = [_cell(run, rank, _SIDE * x, _SIDE * y, least, rank.rank in slow)
             for rank, x, y in cells]  # fmt: skip
    height = _SIDE * (1 + max((y for _, _, y in cells), default=0))
    return (
        f'<svg role="img" viewBox="0 0 {_SIDE * _WIDTH} {height}">'
        f"<title>{escape(printable(title))}</title>{''.join(drawn)}</svg>"
    )


def _by_host(run: RunAnalysis) -> list[_Place]:
    """Columns and lines of the ranks: as many hosts beside each other as a line has room for."""
    by_host: dict[str, list[RankRow]] = {}
    for rank in sorted(run.ranks, key=lambda rank: rank.rank):
        by_host.setdefault(run.hosts.get(rank.rank, ""), []).append(rank)
    widest = min(max(map(len, by_host.values())), _WIDTH)
    beside = (_WIDTH + 1) // (widest + 1)
    places, line = [], 0
    for i, some in enumerate(by_host.values()):
        x = i % beside * (widest + 1)
        places += [(rank, x + j % _WIDTH, line + j // _WIDTH) for j, rank in enumerate(some)]
        if i % beside == beside - 1:
            line += -(-len(some) // _WIDTH)
    return places


def _seconds(rank: RankRow) -> float | None:
    own = own_seconds(rank)
    return rank.step_s if own is None else own


def _cell(run: RunAnalysis, rank: RankRow, x: int, y: int, least: float, slow: bool) -> str:
    seconds = _seconds(rank)
    said = [f"rank {rank.rank}"]
    if rank.rank in run.hosts:
        said.append(f"host {cut(printable(run.hosts[rank.rank]))}")
    if rank.gpu is not None:
        said.append(f"GPU {rank.gpu}")
    if seconds is not None:
        said.append(f"{si(seconds, 's', 4)} of its own")
    if rank.waiting_s is not None:
        said.append(f"{si(rank.waiting_s, 's')} waiting")
    part = (seconds / least - 1.0) / (_SLOWEST - 1.0) if seconds and least > 0 else 0.0
    shade = 0.15 + 0.65 * min(max(part, 0.0), 1.0)
    fill = _OUTLIER if slow else "currentColor"
    return (
        f'<rect x="{x}" y="{y}" width="{_SIDE - 1}" height="{_SIDE - 1}" fill="{fill}" '
        f'fill-opacity="{shade:.2f}"><title>{escape(", ".join(said))}</title></rect>'
    )
