"""Transports: a file for each way of summing, which registers its transports with `base`.

To add a transport, write a file here that ends with ``register(Kind(...))``: flags, checks and
refusals follow from that.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import Final

from trainer.transports.base import KINDS, Kind, make_transport

__all__ = ["TRANSPORTS", "Kind", "make_transport"]

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

TRANSPORTS: Final[dict[str, Kind]] = dict(sorted(KINDS.items()))
"""All transports by name."""
