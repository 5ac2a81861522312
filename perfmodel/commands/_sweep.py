"""The values of `--sweep`."""

from __future__ import annotations

import click


def values_of_sweep(text: str) -> tuple[str, tuple[int, ...]]:
    """Read SYMBOL=FROM:TO or SYMBOL=A,B,C."""
    from perfmodel.analysis.sweeps import doublings

    symbol, _, said = text.partition("=")
    words = said.split(":" if ":" in said else ",")
    if not symbol or not all(w.isascii() and w.isdigit() and 0 < len(w) < 10 for w in words):
        raise click.BadParameter(f"expected SYMBOL=FROM:TO or SYMBOL=A,B,C; got {text!r}")
    numbers = tuple(int(w) for w in words)
    if min(numbers) < 1 or (":" in said and (len(numbers) != 2 or numbers[0] > numbers[1])):
        raise click.BadParameter(f"expected positive numbers, FROM at most TO; got {text!r}")
    return symbol, doublings(*numbers) if ":" in said else numbers
