"""The ranks of a run as a strip: a cell for every rank, a row for every host, dark where slow."""

from __future__ import annotations

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


def strip(run: RunAnalysis) -> Picture:
    """Draw the ranks; those that are outliers, or on a host or GPU that is one, in red."""
    rows = _rows(run)
    slow = {rank for one in run.outliers for rank in one.ranks}
    known = [s for rank in run.ranks if (s := _seconds(rank)) is not None]
    least = min(known, default=0.0)
    cells = [
        _cell(run, rank, _SIDE * x, _SIDE * y, least, rank.rank in slow)
        for y, row in enumerate(rows)
        for x, rank in enumerate(row)
    ]
    width, height = _SIDE * max(map(len, rows)), _SIDE * len(rows)
    title = f"{len(run.ranks)} ranks, {len(slow)} of them slower than the others"
    svg = (
        f'<svg role="img" viewBox="0 0 {max(width, _SIDE * _WIDTH)} {height}">'
        f"<title>{title}</title>{''.join(cells)}</svg>"
    )
    order = "a row for every host" if run.hosts else f"{_WIDTH} a row"
    return Picture(
        svg,
        f"{title}: {order}. The darker, the longer a step takes without waiting; red: an outlier. "
        f"Hold the pointer over a cell for its rank and times.",
        wide=False,
    )


def _rows(run: RunAnalysis) -> list[list[RankRow]]:
    """Ranks by host, and so many in a row that a page has room for them."""
    ranks = sorted(run.ranks, key=lambda rank: rank.rank)
    by_host: dict[str, list[RankRow]] = {}
    for rank in ranks:
        by_host.setdefault(run.hosts.get(rank.rank, ""), []).append(rank)
    return [some[i : i + _WIDTH] for some in by_host.values() for i in range(0, len(some), _WIDTH)]


def _seconds(rank: RankRow) -> float | None:
    own = own_seconds(rank)
    return rank.batch_s if own is None else own


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
