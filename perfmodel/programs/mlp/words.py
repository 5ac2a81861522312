"""Words: the answer to the question and the case for model parallelism, in sentences."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from perfmodel.analysis.whatif_result import WhatIf
from perfmodel.base.units import si
from perfmodel.programs.mlp.model import Crossing, Crossings
from perfmodel.programs.mlp.paper import OnPaper
from perfmodel.programs.mlp.question import FLAT, SMOOTH, Answer, Reach

_NEAR: Final = 1.05
"""A roof at most so many times the measured rate needs no explanation."""


def words(said: WhatIf) -> Iterator[str]:
    """Say where the batch is on the roofline, what moves it, and what the other split would do."""
    yield from _position(said.answer, said.label)
    yield from (_follows(said.answer, r) for r in said.answer.reach)
    if said.answer.ceilings:
        far = [f"{c.name} {si(c.flops_per_s, 'FLOP/s')} ({c.factor:.3g}x)"
               for c in said.answer.ceilings]  # fmt: skip
        yield f"Distance to the ceilings: {', '.join(far)}."
    if said.parallel is not None:
        yield from _parallel(said.parallel)


def _position(said: Answer, label: str) -> Iterator[str]:
    if said.intensity_flops_per_byte is None or said.flops_per_s is None:
        yield f"{label}: no bytes over a link or no FLOPs are known: no arithmetic intensity."
        return
    ai, ridge = said.intensity_flops_per_byte, said.ridge_flops_per_byte
    where = "the report has no rates of its own, so no ridge"
    if ridge is not None:
        side = "left of it the links bound a batch" if ai < ridge else "past it computing does"
        where = f"the ridge of its effective rates is at {ridge:,.0f}: {side}"
    yield f"Arithmetic intensity {ai:,.0f} FLOP/B at {si(said.flops_per_s, 'FLOP/s')}; {where}."
    smooth = next((c for c in said.ceilings if c.name == SMOOTH), None)
    if smooth is not None and smooth.factor > _NEAR:
        yield (
            f"That is {100 / smooth.factor:.0f} % of the smooth roof; the rest goes to what the "
            f"roof leaves out: images, launches, small kernels, waiting."
        )


def _follows(said: Answer, r: Reach) -> str:
    """Say how intensity and FLOP/s follow one symbol."""
    rise = r.flops_exponent - r.bytes_exponent
    how = "raises" if rise > FLAT else "lowers" if rise < -FLAT else "hardly changes"
    text = (
        f"{r.symbol} {how} the intensity: FLOPs go as {r.symbol}^{r.flops_exponent:.2f}, bytes as "
        f"{r.symbol}^{r.bytes_exponent:.2f}"
    )
    ai, ridge = said.intensity_flops_per_byte, said.ridge_flops_per_byte
    if r.ridge_at is not None:
        text += f"; {r.symbol} = {r.ridge_at:,} reaches the ridge"
    elif ridge is not None and ai is not None and ai < ridge and how != "hardly changes":
        text += f"; no {r.symbol} reaches the ridge"
    if r.doubled_flops_per_s is not None:
        limit = "" if r.doubled_by == "model" else "at most "
        text += f"; {r.symbol} = {2 * r.value:,}: {limit}{si(r.doubled_flops_per_s, 'FLOP/s')}"
    return f"{text}."


def _parallel(p: OnPaper) -> Iterator[str]:
    yield (
        f"Model parallelism hands the all-reduce {si(p.model_bytes, 'B')} for "
        f"{si(p.data_bytes, 'B')}: fewer bytes {_where(p.bytes)}."
    )
    if p.seconds is None or p.data_s is None or p.model_s is None:
        yield f"On paper, its time cannot be told: {p.rates}."
    else:
        yield (
            f"On paper (rates of {p.rates}; no launches): {si(p.model_s, 's')} for data "
            f"parallelism's {si(p.data_s, 's')}; faster {_where(p.seconds)}."
        )
    if p.calibrated is not None:
        yield f"By the calibrated model, whose terms are measured: faster {_where(p.calibrated)}."
    else:
        yield f"Not by a calibrated model: {p.untold}."


def _where(at: Crossings) -> str:
    return "; ".join(_side(c, s) for c, s in ((at.hidden, "H"), (at.batch, "B"), (at.ranks, "p")))


def _side(crossing: Crossing, symbol: str) -> str:
    if crossing.at is None:
        return f"for {'every' if crossing.model_wins == 'always' else 'no'} {symbol}"
    return f"for {symbol} {'<' if crossing.model_wins == 'below' else '>'} {crossing.at:,.0f}"
