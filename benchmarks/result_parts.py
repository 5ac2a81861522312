"""Runs the parts of a benchmark one after the other; each replaces its own key of the results."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any


def run_parts(parts: Sequence[str], out: Path, run: Callable[[str], dict[str, Any]]) -> None:
    """Run parts by name into a file of results; one that fails is said, and the next begins.

    Parameters
    ----------
    run : callable
        Returns a part's result: `rows`, `seconds` and `problems` at least.
    """
    for part in parts:
        try:
            done = run(part)
        except Exception as problem:  # the next part may still work
            print(f"{part} failed: {problem!r}", flush=True)
            continue
        store(out, part, done)
        print(f"{part}: {len(done['rows'])} rows in {done['seconds']} s -> {out}", flush=True)
        for problem in done["problems"]:
            print(f"  {problem}", flush=True)


def store(out: Path, part: str, done: dict[str, Any]) -> None:
    """Write a part beside the others; one without rows does not replace what was measured."""
    result = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}
    if done["rows"] or part not in result:
        result[part] = done
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=1, allow_nan=False) + "\n", encoding="utf-8")
