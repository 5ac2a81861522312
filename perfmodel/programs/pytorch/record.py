"""Records steps of a PyTorch training loop for nsys, and times steps without it before.

Needs torch and the package nvtx alone: copy this file beside your program, or import it.

    from perfmodel import RecordSteps      # or: from record import RecordSteps
    step = RecordSteps(steps=8)
    for batch in loader:
        with step:                         # or @step above the function that is one step
            train(batch)

    nsys profile -t cuda,nvtx --capture-range=cudaProfilerApi python train.py

The first steps warm up, the next ones are timed, then nsys begins to record. What the timed ones
took, and what launches and ranges cost before and after, is in the report as an NVTX mark, of
which `perfmodel analyze` says how long a step takes without nsys.
"""

from __future__ import annotations

import functools
import json
import statistics
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

_KEY: Final = "perfmodel_recorder"
_CAPTURE: Final = "capture"
_DOMAIN: Final = "perfmodel"
"""Of what is no part of the program."""
_ROUND: Final = 5
"""Steps between two waits for the GPU while steps are timed."""
_PROBES: Final = 100
_SIZED: Final = "aten::addmm, seq = {}, op_id = {}, sizes = [[96], [32, 32], [32, 96], [], []]"

_F = TypeVar("_F", bound=Callable[..., Any])


class RecordSteps:
    """A context, or a decorator, of one step of a training loop.

    Parameters
    ----------
    warmup, timed, steps : int
        Steps that come first; that are timed without the profiler, in rounds of 5; and that are
        recorded. All later ones are neither.
    name : str
        Of the ranges of recorded steps; the number follows.
    """

    def __init__(
        self, *, warmup: int = 10, timed: int = 25, steps: int = 8, name: str = "step"
    ) -> None:
        self._first = warmup
        self._begin = warmup + max(timed // _ROUND, 1) * _ROUND
        self._end, self._name = self._begin + steps, name
        self._number, self._round_s, self._since = 0, list[float](), 0.0

    def __enter__(self) -> None:
        if self._number == self._first:
            _synchronize()
            self._since = time.perf_counter()
        if self._number == self._begin:
            _start({"step_s": statistics.median(self._round_s), "low_s": min(self._round_s),
                    "high_s": max(self._round_s), "steps": self._begin - self._first})  # fmt: skip
        if self._begin <= self._number < self._end:
            _push(f"{self._name} {self._number - self._begin}")

    def __exit__(self, *_: object) -> None:
        if self._begin <= self._number < self._end:
            _pop()
        self._number += 1
        if self._number == self._end:
            _stop()
        done = self._number - self._first
        if 0 < done <= self._begin - self._first and done % _ROUND == 0:
            _synchronize()
            now = time.perf_counter()
            self._round_s.append((now - self._since) / _ROUND)
            self._since = now

    def __call__(self, function: _F) -> _F:
        """Make every call of a function one step."""

        @functools.wraps(function)
        def step(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return step  # type: ignore[return-value]


def _start(timed: dict[str, float]) -> None:
    """Begin to record, on all ranks at once, and leave a mark with what was timed."""
    import nvtx
    import torch

    before = _probe()
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.barrier()
    if torch.cuda.is_available():
        torch.cuda.cudart().cudaProfilerStart()
    else:
        _push(_CAPTURE, _DOMAIN)  # nsys --capture-range=nvtx --nvtx-capture=capture@perfmodel
        _pop(_DOMAIN)
    time.sleep(0.2)  # of several ranks the first one begins for all
    after = _probe()
    probe = {kind: [before[kind], after[kind]] for kind in before}
    nvtx.mark(json.dumps({_KEY: 1, **timed, "probe": probe}), domain=None)


def _stop() -> None:
    import torch

    _synchronize()
    if torch.cuda.is_available():
        torch.cuda.cudart().cudaProfilerStop()


def _probe() -> dict[str, float]:
    """Seconds of a launch that does nothing, of an empty range, and of one that names sizes."""
    import torch

    def ranges(text: str) -> None:
        for i in range(_PROBES):
            _push(text.format(i, i), _DOMAIN)
            _pop(_DOMAIN)

    ranges("first")  # the first ones take longer
    found = {}
    if torch.cuda.is_available():
        one = torch.zeros(1, device="cuda")
        _synchronize()
        found["launch"] = _seconds(lambda: [one.zero_() for _ in range(_PROBES)])
        _synchronize()
    found["range"] = _seconds(lambda: ranges("probe"))
    found["sized_range"] = _seconds(lambda: ranges(_SIZED))
    return found


def _seconds(repeat: Callable[[], object]) -> float:
    start = time.perf_counter()
    repeat()
    return (time.perf_counter() - start) / _PROBES


def _synchronize() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _push(text: str, domain: str | None = None) -> None:
    import nvtx

    nvtx.push_range(text, domain=domain)


def _pop(domain: str | None = None) -> None:
    import nvtx

    nvtx.pop_range(domain=domain)
