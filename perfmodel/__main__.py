"""The program: `python -m perfmodel` and the command `perfmodel`, and what signals do to it.

Ctrl-C, SIGTERM (scancel, a time limit of CI) and SIGHUP (a closed terminal) end it with 128 and the
signal's number, without a word and without temporary files.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from types import FrameType

TYPE_CHECKING = False  # as in perfmodel/__init__.py
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

_ENDING = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)
_USUAL = (signal.default_int_handler, signal.SIG_DFL)
_OF_SIGNALS = 128
"""A shell's exit code of what a signal ended, less the signal's number."""
_came = 0
"""Exit code of the first signal, 0 before."""
_AGAIN_S = 0.01
"""After so long an interrupt looks again whether an import is over."""


def main() -> None:
    """Run the command line.

    While modules are imported, and after the command, a signal ends the process at once; while the
    command runs it is a KeyboardInterrupt, so that half-written files go and worker processes end.
    Signals that are ignored, as SIGINT in a shell's background and SIGHUP under nohup, stay so.
    """
    heard = [number for number in _ENDING if signal.getsignal(number) in _USUAL]
    _handle(heard, _end)
    from perfmodel import cli

    try:
        _handle(heard, _interrupt)
        if heard:
            sys.unraisablehook = _unraisable
        cli.main(prog_name="perfmodel")
    except KeyboardInterrupt:  # right behind the command, which says nothing of its own
        _end()
    finally:
        gc.freeze()  # the process ends: cycles in what its modules hold need not be found
        _handle(heard, _end)
        if hasattr(signal, "setitimer") and signal.getsignal(signal.SIGALRM) is _interrupt:
            signal.signal(signal.SIGALRM, _end)
            if signal.setitimer(signal.ITIMER_REAL, 0)[0] > 0:
                _end()


def _handle(numbers: Iterable[int], handler: Callable[[int, FrameType | None], None]) -> None:
    for number in numbers:
        signal.signal(number, handler)


def _end(number: int = signal.SIGINT, *_: object) -> None:
    os._exit(_came or _OF_SIGNALS + number)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt, after the import that is under way.

    Extension modules print what is raised while they are imported, and raise another exception.
    Another Ctrl-C ends the process at once; batch systems send other signals twice.
    """
    from perfmodel import cli

    global _came
    _came = cli.interrupted = _came or _OF_SIGNALS + number
    for one in _ENDING:
        if signal.getsignal(one) is _interrupt:
            signal.signal(one, _end if one == signal.SIGINT else signal.SIG_IGN)
    if hasattr(signal, "setitimer") and _importing(frame):
        _again()
        return
    raise KeyboardInterrupt


def _again() -> None:
    """Interrupt once more, a little later."""
    signal.signal(signal.SIGALRM, _interrupt)
    signal.setitimer(signal.ITIMER_REAL, _AGAIN_S)


def _importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _unraisable(problem: Any) -> None:
    """Interrupt again where one came in a place that swallows exceptions, as a destructor."""
    if issubclass(problem.exc_type, KeyboardInterrupt):
        if not hasattr(signal, "setitimer"):
            _end()
        _again()
        return
    sys.__unraisablehook__(problem)


if __name__ == "__main__":  # processes that read reports import this file, too
    main()
