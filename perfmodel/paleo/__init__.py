"""Paleo: the time of a network's layers and of their exchange, from peaks and one percentage."""

from perfmodel.paleo.exchange import SCHEMES, Exchange, exchange, exchanges
from perfmodel.paleo.times import (
    DTYPES,
    LayerTime,
    Platform,
    Times,
    fit_ppp,
    layer_times,
    platform,
    step,
)

__all__ = [
    "DTYPES",
    "SCHEMES",
    "Exchange",
    "LayerTime",
    "Platform",
    "Times",
    "exchange",
    "exchanges",
    "fit_ppp",
    "layer_times",
    "platform",
    "step",
]
