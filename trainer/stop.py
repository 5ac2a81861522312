"""Being asked to stop: signals of a batch system become a flag that the loop reads."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Final

SIGNALS: Final = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
"""SIGTERM: preemption and time limits. SIGUSR1: mpirun passes it on to ranks, and Slurm sends it
ahead of the time limit when asked (``--signal=USR1@60``). SIGINT: Ctrl-C; a second one ends the
process at once."""


class StopRequest:
    """Remembers the first signal that asked this process to stop.

    Attributes
    ----------
    signal_name : str or None
    """

    def __init__(self) -> None:
        self.signal_name: str | None = None

    def install(self) -> StopRequest:
        """Catch `SIGNALS` from now on."""
        for number in SIGNALS:
            signal.signal(number, self._note)
        return self

    def _note(self, number: int, _: FrameType | None) -> None:
        if number == signal.SIGINT and self.requested:
            raise KeyboardInterrupt
        self.signal_name = self.signal_name or signal.Signals(number).name

    @property
    def requested(self) -> bool:
        """Whether a signal has come."""
        return self.signal_name is not None
