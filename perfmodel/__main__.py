"""The program: `python -m perfmodel` and the command `perfmodel`. Ctrl-C ends it with 130."""

from __future__ import annotations

import gc
import os
import signal
import sys
from types import FrameType

TYPE_CHECKING = False  # as in perfmodel/__init__.py
if TYPE_CHECKING:
    from typing import Any

INTERRUPTED = 130
"""Exit code of Ctrl-C, as of any program in a shell: 128 + SIGINT."""

_AGAIN_S = 0.01
"""After so long an interrupt looks again whether an import is over."""


def main() -> None:
    """Run the command line.

    While modules are imported, and after the command, Ctrl-C ends the process at once; while the
    command runs it is a KeyboardInterrupt, so that half-written files go and worker processes end.
    Where SIGINT is ignored, as in a shell's background, it stays so.
    """
    heard = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if heard:
        signal.signal(signal.SIGINT, _end)
    from perfmodel import cli

    try:
        if heard:
            signal.signal(signal.SIGINT, _interrupt)
            sys.unraisablehook = _unraisable
        cli.main(prog_name="perfmodel")
    except KeyboardInterrupt:  # right behind the command, which says nothing of its own
        _end()
    finally:
        gc.freeze()  # the process ends: cycles in what its modules hold need not be found
        if heard:
            signal.signal(signal.SIGINT, _end)
        if hasattr(signal, "setitimer") and signal.getsignal(signal.SIGALRM) is _interrupt:
            signal.signal(signal.SIGALRM, _end)
            if signal.setitimer(signal.ITIMER_REAL, 0)[0] > 0:
                _end()


def _end(*_: object) -> None:
    os._exit(INTERRUPTED)


def _interrupt(_: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt, after the import that is under way.

    Extension modules print what is raised while they are imported, and raise another exception.
    """
    from perfmodel import cli

    signal.signal(signal.SIGINT, _end)  # another one ends it at once
    cli.interrupted = True
    if hasattr(signal, "setitimer") and _importing(frame):
        signal.signal(signal.SIGALRM, _interrupt)
        signal.setitimer(signal.ITIMER_REAL, _AGAIN_S)
        return
    raise KeyboardInterrupt


def _importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _unraisable(problem: Any) -> None:
    """End at once where an interrupt came in a place that swallows exceptions, as a destructor."""
    if issubclass(problem.exc_type, KeyboardInterrupt):
        os._exit(INTERRUPTED)
    sys.__unraisablehook__(problem)


if __name__ == "__main__":  # processes that read reports import this file, too
    main()
