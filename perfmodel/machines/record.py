"""Records a sampler's readings in a thread while something else runs."""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self

from perfmodel.base.errors import PerfmodelError
from perfmodel.machines.gpu_samples import Series, series_of
from perfmodel.machines.sampler import Reading, Sampler

_OF_SIGNALS: Final = 128
"""A shell's exit code of what a signal ended, less the signal's number."""


class Recorder:
    """Samples from the block's beginning to its end.

    Parameters
    ----------
    sampler : Sampler
    period_s : float
        From one sample's start to the next one's; a sampler that takes longer is asked again at
        once.

    Examples
    --------
    >>> with Recorder(sampler, 0.1) as recorder:  # doctest: +SKIP
    ...     train()
    >>> recorder.series()  # doctest: +SKIP
    """

    def __init__(self, sampler: Sampler, period_s: float = 0.1) -> None:
        self._sampler, self._period_s = sampler, period_s
        self._samples: list[tuple[float, Reading]] = []
        self._stopped = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)
        self._started = 0.0

    def __enter__(self) -> Self:
        self._started = time.perf_counter()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stopped.set()
        self._thread.join()

    @property
    def elapsed_s(self) -> float:
        """Time since the block's beginning: the clock of the series."""
        return time.perf_counter() - self._started

    def series(self) -> Series:
        """Return what was sampled.

        Raises
        ------
        PerfmodelError
            If the sampler failed before it gave anything.
        """
        if self._failure is not None and not self._samples:
            raise PerfmodelError(
                f"expected samples of the GPUs; the sampler says: {self._failure}; check nvidia-smi"
            ) from self._failure
        return series_of(self._samples)

    def _run(self) -> None:
        while True:
            at = self.elapsed_s
            try:
                readings = self._sampler.sample()
            except Exception as error:  # in a thread nobody else would hear of it
                self._failure = error
                return
            self._samples += [(at, reading) for reading in readings]
            if self._stopped.wait(max(0.0, self._period_s - (self.elapsed_s - at))):
                return


def record_command(command: Sequence[str], sampler: Sampler, period_s: float) -> tuple[Series, int]:
    """Run a command to its end under a recorder; return the series and its exit code.

    The command has this process's terminal, environment and signals. An interrupt (Ctrl-C) ends the
    command, not the recording: what was sampled until then is returned.

    Raises
    ------
    PerfmodelError
        If the command cannot be started, or nothing could be sampled.
    """
    with Recorder(sampler, period_s) as recorder:
        try:
            code = subprocess.run(list(command), check=False).returncode
        except KeyboardInterrupt:
            code = -signal.SIGINT
        except OSError as error:
            raise PerfmodelError(
                f"expected to start {command[0]!r}; got: {error.strerror or error}; check its name "
                f"and the PATH"
            ) from error
    return recorder.series(), code if code >= 0 else _OF_SIGNALS - code
