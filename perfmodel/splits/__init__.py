"""Splits: every way to cut the MLP's products over p ranks, what it costs, and which is best."""

from __future__ import annotations

from perfmodel.splits.answer import Answer, answer, document, grids_table, measured_table, sentences
from perfmodel.splits.grids import Grid, Sizes, Split, Transfer, grids, split
from perfmodel.splits.measured import Comparison, compare, override, rates_of, sizes_of
from perfmodel.splits.model import (
    DOCUMENT,
    Crossing,
    Crossings,
    Ranked,
    Rates,
    Times,
    best_hidden_ranks,
    crossings_of_bytes,
    crossings_of_time,
    predict,
    rank_grids,
)

__all__ = [
    "DOCUMENT",
    "Answer",
    "Comparison",
    "Crossing",
    "Crossings",
    "Grid",
    "Ranked",
    "Rates",
    "Sizes",
    "Split",
    "Times",
    "Transfer",
    "answer",
    "best_hidden_ranks",
    "compare",
    "crossings_of_bytes",
    "crossings_of_time",
    "document",
    "grids",
    "grids_table",
    "measured_table",
    "override",
    "predict",
    "rank_grids",
    "rates_of",
    "sentences",
    "sizes_of",
    "split",
]
