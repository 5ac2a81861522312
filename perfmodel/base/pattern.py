"""Names by a pattern of the user's: a name, a glob, or a regular expression between slashes."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Final

from perfmodel.base.errors import SchemaError

_LONGEST_SEARCH_S: Final = 5.0
_SEARCH: Final = """\
import json, re, sys
expression, names = json.load(sys.stdin)
found = re.compile(expression).search
json.dump([i for i, name in enumerate(names) if found(name)], sys.stdout)
"""


def matching(asked: str, names: Sequence[str], option: str) -> set[int]:
    """Return the positions of the names that a pattern matches.

    A name that stands among them matches itself, even if it holds `*`, `?` or `[`.

    Parameters
    ----------
    asked : str
        A name, a glob (case matters), or a regular expression between slashes, which matches
        names that contain it.
    names : sequence of str
    option : str
        What the user gave it by; errors name it.

    Raises
    ------
    SchemaError
        If the regular expression is none, or takes longer than 5 s, as `(a+)+$` may.
    """
    if len(asked) > 2 and asked[0] == asked[-1] == "/":
        return _searched(asked, names, option)
    if any(c in asked for c in "*?["):
        return {i for i, name in enumerate(names) if name == asked or fnmatchcase(name, asked)}
    return {i for i, name in enumerate(names) if name == asked}


def _searched(asked: str, names: Sequence[str], option: str) -> set[int]:
    """Search in a process of its own: nothing else ends a search that backtracks."""
    import json  # few patterns are searched for
    import subprocess

    try:
        with warnings.catch_warnings(action="ignore"):
            re.compile(asked[1:-1])
    except (re.error, OverflowError, RecursionError) as error:
        raise SchemaError(
            f"{option}: expected a regular expression between slashes; got {asked!r} "
            f"({error}); give a name, a glob or a valid expression"
        ) from None
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-W", "ignore", "-c", _SEARCH],
            input=json.dumps([asked[1:-1], names]),
            capture_output=True,
            text=True,
            timeout=_LONGEST_SEARCH_S,
            check=True,
        )
    except subprocess.SubprocessError:
        raise SchemaError(
            f"{option}: expected a regular expression that is found, or not, in all names within "
            f"{_LONGEST_SEARCH_S:.0f} s; got {asked!r}; leave out repetitions of repetitions, or "
            f"give a glob"
        ) from None
    return set(json.loads(done.stdout))
