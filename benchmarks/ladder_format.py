"""How the ladder's document writes times, factors and tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def three_digits(value: float) -> str:
    """Write a positive number with three significant digits, but whole numbers in full."""
    digits = 0 if value >= 99.95 else 1 if value >= 9.995 else 2
    return f"{value:.{digits}f}"


def microseconds(seconds: float | None) -> str:
    """Write seconds as microseconds."""
    return "" if seconds is None else three_digits(seconds * 1e6)


def times(value: float | None) -> str:
    """Write a factor."""
    return "" if value is None else three_digits(value)


def table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; empty without lines."""
    body = [f"| {' | '.join(line)} |" for line in lines]
    if not body:
        return ""
    return "\n".join([f"| {' | '.join(head)} |", "|" + "---|" * len(head), *body]) + "\n"


def signed(seconds: float | None) -> str:
    """Write microseconds with their sign."""
    return "" if seconds is None else f"{seconds * 1e6:+.1f}"
