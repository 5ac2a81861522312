"""Tests of how time grows: CPU time of this process, to which other processes add nothing."""

from __future__ import annotations

import time
from collections.abc import Callable

_TRIES = 3
_LEAST_S = 0.002
"""Less than this is the clock's own noise."""
_OVER = 3
"""A linear algorithm may miss the caches of the processor with a large input; a quadratic one
takes `times` times as long again."""


def cpu_s(work: Callable[[], object]) -> float:
    """Return the least CPU time of a few tries, in seconds."""
    found = []
    for _ in range(_TRIES):
        begin = time.process_time()
        work()
        found.append(time.process_time() - begin)
    return min(found)


def assert_linear(work: Callable[[int], object], size: int, times: int = 8) -> None:
    """Assert that an input `times` as large takes about `times` as long as one of `size`."""
    small, large = (cpu_s(lambda n=n: work(n)) for n in (size, size * times))  # type: ignore[misc]
    assert large <= _OVER * times * max(small, _LEAST_S), f"{size}: {small} s, x{times}: {large} s"
