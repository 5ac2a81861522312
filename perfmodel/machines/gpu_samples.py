"""GPU samples: NVML read in a thread while something runs, as series over time, from and to CSV."""

from __future__ import annotations

import csv
import io
import math
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any, Final, Self

import numpy as np

from perfmodel.base.arrays import Bool, Floats, Int64
from perfmodel.base.errors import PerfmodelError, ReportError, SchemaError
from perfmodel.base.files import check_path, read_whole

_MOST_BYTES: Final = 1 << 28
"""A sample a GPU is about 100 bytes: ten samples a second of eight GPUs for more than 9 hours."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One GPU at one moment; None is what it does not tell.

    Attributes
    ----------
    gpu : int
        NVML's index.
    gpu_percent : float or None
        Share of the last sampling period (1/6 s to 1 s, by product) in which one or more kernels
        ran: nvmlUtilization_t of the NVML API reference. A kernel of one thread counts as much as
        one that fills the GPU.
    memory_percent : float or None
        Share of that period in which device memory was read or written.
    memory_used_bytes : float or None
        Of all processes, context and driver included.
    sm_clock_hz, power_w : float or None
    pcie_tx_bytes_per_s, pcie_rx_bytes_per_s : float or None
        Sent and received by the GPU, over the 20 ms before.
    """

    gpu: int
    gpu_percent: float | None = None
    memory_percent: float | None = None
    memory_used_bytes: float | None = None
    sm_clock_hz: float | None = None
    power_w: float | None = None
    pcie_tx_bytes_per_s: float | None = None
    pcie_rx_bytes_per_s: float | None = None


class NvmlSampler:
    """NVML through the package nvidia-ml-py.

    Parameters
    ----------
    gpus : sequence of int, optional
        NVML's indices; all GPUs by default.
    pcie : bool
        Also ask for PCIe throughput, which takes NVML 20 ms a counter.

    Raises
    ------
    PerfmodelError
        If the package, the driver's library or a GPU is missing.
    """

    def __init__(self, gpus: Sequence[int] | None = None, *, pcie: bool = True) -> None:
        try:
            import pynvml
        except ImportError as error:
            raise PerfmodelError(
                "expected NVML to sample the GPUs; got no package nvidia-ml-py; run: "
                "pip install nvidia-ml-py"
            ) from error
        self._nvml: Any = pynvml
        try:
            pynvml.nvmlInit()
            count = pynvml.nvmlDeviceGetCount()
        except pynvml.NVMLError as error:
            raise PerfmodelError(
                f"expected NVML to sample the GPUs; got the package, but it says: {error}; run "
                f"where nvidia-smi lists a GPU"
            ) from error
        chosen = list(range(count)) if gpus is None else list(gpus)
        beyond = [gpu for gpu in chosen if not 0 <= gpu < count]
        if beyond or not chosen:
            raise PerfmodelError(
                f"expected GPU {beyond[0] if beyond else 0}; NVML lists {count}, numbered from 0; "
                f"see nvidia-smi -L"
            )
        self._handles = {gpu: pynvml.nvmlDeviceGetHandleByIndex(gpu) for gpu in chosen}
        self._pcie = pcie

    def names(self) -> dict[int, str]:
        """Return the names of the GPUs."""
        names = {g: self._nvml.nvmlDeviceGetName(h) for g, h in self._handles.items()}
        return {g: n.decode() if isinstance(n, bytes) else str(n) for g, n in names.items()}

    def sample(self) -> Sequence[Reading]:
        """Read every GPU once; a counter that this GPU does not have is None."""
        return [self._read(gpu, handle) for gpu, handle in self._handles.items()]

    def _read(self, gpu: int, handle: Any) -> Reading:
        nvml = self._nvml

        def ask(counter: Callable[..., Any], *of: Any, scale: float = 1.0) -> Any:
            try:
                found = counter(handle, *of)
            except nvml.NVMLError:
                return None
            return found * scale if isinstance(found, int | float) else found

        rates, memory = ask(nvml.nvmlDeviceGetUtilizationRates), ask(nvml.nvmlDeviceGetMemoryInfo)
        through = nvml.nvmlDeviceGetPcieThroughput if self._pcie else None
        return Reading(
            gpu,
            rates and float(rates.gpu),
            rates and float(rates.memory),
            memory and float(memory.used),
            ask(nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_SM, scale=1e6),
            ask(nvml.nvmlDeviceGetPowerUsage, scale=1e-3),
            through and ask(through, nvml.NVML_PCIE_UTIL_TX_BYTES, scale=1e3),
            through and ask(through, nvml.NVML_PCIE_UTIL_RX_BYTES, scale=1e3),
        )


COUNTERS: Final = tuple(f.name for f in fields(Reading) if f.name != "gpu")
"""Columns of a series, but for `time_s` and `gpu`."""

_LONG: Final = 10
"""So many times the usual step between two samples is a gap."""


@dataclass(frozen=True, slots=True)
class Series:
    """Samples of one or more GPUs, by time.

    Attributes
    ----------
    time_s : float64, shape (n,)
        Since the command was started.
    gpu : int64, shape (n,)
    values : dict of str to float64, shape (n,)
        By the names in `COUNTERS`; NaN where a GPU does not tell.
    """

    time_s: Floats
    gpu: Int64
    values: dict[str, Floats]

    def __len__(self) -> int:
        return len(self.time_s)

    @property
    def gpus(self) -> tuple[int, ...]:
        """GPUs of the series, ascending."""
        return tuple(int(g) for g in np.unique(self.gpu))

    def of(self, gpu: int) -> Series:
        """Return the samples of one GPU."""
        return self._rows(self.gpu == gpu)

    def only(self, gpus: Sequence[int]) -> Series:
        """Return the samples of some GPUs.

        Raises
        ------
        SchemaError
            If one of them was not sampled.
        """
        for gpu in gpus:
            if gpu not in self.gpus:
                raise SchemaError(
                    f"expected GPU {gpu}; the series has {', '.join(map(str, self.gpus))}; take "
                    f"one of these"
                )
        return self._rows(np.isin(self.gpu, gpus))

    def gaps(self, gpu: int) -> tuple[tuple[float, float], ...]:
        """Return from when until when a GPU was not sampled: `_LONG` times the usual step."""
        times = self.of(gpu).time_s
        steps = np.diff(times)
        if len(steps) < 2:
            return ()
        at = np.flatnonzero(steps > _LONG * np.median(steps))
        return tuple((float(times[i]), float(times[i + 1])) for i in at)

    def window(self, start_s: float, end_s: float) -> Series:
        """Return the samples from `start_s` on and before `end_s`.

        Raises
        ------
        SchemaError
            If there is none.
        """
        cut = self._rows((self.time_s >= start_s) & (self.time_s < end_s))
        if len(cut) == 0:
            raise SchemaError(
                f"expected samples from {start_s:g} s to {end_s:g} s; got none among those from "
                f"{self.time_s[0]:.1f} s to {self.time_s[-1]:.1f} s; take another --window"
            )
        return cut

    def mean(self, counter: str) -> float | None:
        """Return the mean of a counter weighted by time; None where it was never recorded.

        A sample stands for the time from half-way since the one before it of its GPU to half-way
        until the next.
        """
        total = weight = 0.0
        for gpu in self.gpus:
            mine = self.of(gpu)
            value, width = mine.values[counter], np.ones(len(mine))
            if len(mine) > 1:
                width = np.maximum(np.gradient(mine.time_s), 1e-9)
            known = ~np.isnan(value)
            total += float((value[known] * width[known]).sum())
            weight += float(width[known].sum())
        return total / weight if weight else None

    def largest(self, counter: str) -> float | None:
        """Return the largest value of a counter; None where it was never recorded."""
        known = self.values[counter][~np.isnan(self.values[counter])]
        return float(known.max()) if len(known) else None

    def _rows(self, keep: Bool) -> Series:
        values = {name: column[keep] for name, column in self.values.items()}
        return Series(self.time_s[keep], self.gpu[keep], values)


def series_of(samples: Sequence[tuple[float, Reading]]) -> Series:
    """Turn readings with their times into columns, by time."""
    ordered = sorted(samples, key=lambda sample: (sample[0], sample[1].gpu))
    table = np.array([(t, *astuple(reading)) for t, reading in ordered], float)  # None is NaN
    time_s, gpu, *values = table.reshape(-1, 2 + len(COUNTERS)).T
    return Series(time_s, gpu.astype(np.int64), dict(zip(COUNTERS, values, strict=True)))


def to_csv(series: Series) -> str:
    """Return the series as CSV with units in the names; what is missing is empty."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["time_s", "gpu", *COUNTERS])
    for i in range(len(series)):
        cells = (series.values[name][i] for name in COUNTERS)
        shown = ("" if math.isnan(v) else f"{v:.12g}" for v in cells)
        writer.writerow([f"{series.time_s[i]:.4f}", int(series.gpu[i]), *shown])
    return out.getvalue()


def read_series(path: Path) -> Series:
    """Read what `to_csv` wrote.

    Raises
    ------
    ReportError
        If the file cannot be read.
    SchemaError
        If it is no such CSV, or holds no sample.
    """
    check_path(path)
    try:
        rows = list(csv.DictReader(io.StringIO(read_whole(path, _MOST_BYTES).decode())))
    except UnicodeDecodeError as error:
        raise ReportError(
            f"{path}: expected a CSV of perfmodel utilization; got bytes that are no text; "
            f"give a report as --report {path.name}"
        ) from error
    except (OSError, csv.Error) as error:
        raise ReportError(f"{path}: cannot be read as CSV ({error}); sample again") from error
    expected = {"time_s", "gpu", "gpu_percent"}
    if not rows or not expected <= set(rows[0]):
        found = ", ".join(str(name) for name in rows[0]) if rows else "no row"
        raise SchemaError(
            f"{path}: expected a series of perfmodel utilization (columns time_s, gpu, "
            f"gpu_percent, ...); got {found[:200]}; make one with: perfmodel utilization -- COMMAND"
        )
    try:
        return series_of([_sample(row) for row in rows])
    except (TypeError, ValueError) as error:
        raise SchemaError(f"{path}: expected rows of numbers; got {error}; sample again") from error


def _sample(row: dict[str, str]) -> tuple[float, Reading]:
    """Return a row's time and reading; refuse one that is torn or holds no finite numbers."""
    if None in row.values():
        raise ValueError("a row that ends early")
    known = {name: _finite(row[name]) for name in COUNTERS if row.get(name)}
    gpu = int(row["gpu"])
    if not 0 <= gpu < _MOST_GPUS:
        raise ValueError(f"{row['gpu']!r}, not the number of a GPU")
    return _finite(row["time_s"]), Reading(gpu=gpu, **known)


def _finite(cell: str) -> float:
    value = float(cell)
    if not 0 <= value < math.inf:
        raise ValueError(f"{cell!r}, not a finite number of at least 0")
    return value


_MOST_GPUS: Final = 1 << 20
_OF_SIGNALS: Final = 128
"""A shell's exit code of what a signal ended, less the signal's number."""


class Recorder:
    """Samples from the block's beginning to its end.

    Parameters
    ----------
    sampler : NvmlSampler
        Or what has its `sample`.
    period_s : float
        From one sample's start to the next one's; a sampler that takes longer is asked again at
        once.

    Examples
    --------
    >>> with Recorder(sampler, 0.1) as recorder:  # doctest: +SKIP
    ...     train()
    >>> recorder.series()  # doctest: +SKIP
    """

    def __init__(self, sampler: NvmlSampler, period_s: float = 0.1) -> None:
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

    def __exit__(self, *_: object) -> None:
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


def record_command(
    command: Sequence[str], sampler: NvmlSampler, period_s: float
) -> tuple[Series, int]:
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
