"""Arguments of the benchmarks: numbers that argparse checks, and modules that must be installed."""

from __future__ import annotations

import argparse
import importlib.util
import math


def positive(text: str) -> float:
    """Return a finite number above 0."""
    value = float(text)
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"expected a finite number above 0; got {text}")
    return value


def not_negative(text: str) -> float:
    """Return a finite number, 0 or more."""
    return 0.0 if float(text) == 0 else positive(text)


def count(text: str) -> int:
    """Return a whole number, 1 or more."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of 1 or more; got {text}")
    return value


def require_module(name: str, package: str) -> None:
    """End the program where a module cannot be imported.

    Raises
    ------
    SystemExit
        If it is not installed; with the package that has it.
    """
    if importlib.util.find_spec(name) is None:
        raise SystemExit(f"expected the module {name}; got none; install it: pip install {package}")


def report(doc: str | None) -> None:
    """Read the command line of a program that only writes parts of the documents: ``--help``.

    Raises
    ------
    SystemExit
        If there is any other argument, or the help was asked for.
    """
    argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawTextHelpFormatter
    ).parse_args()
