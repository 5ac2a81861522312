"""Samplers: one method that reads every GPU once; NVML's, and whatever tests put in its place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from perfmodel.base.errors import PerfmodelError


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


class Sampler(Protocol):
    """Reads all GPUs that it watches."""

    def sample(self) -> Sequence[Reading]:
        """Read every GPU once, now."""


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
        return {gpu: self._name(handle) for gpu, handle in self._handles.items()}

    def sample(self) -> Sequence[Reading]:
        """Read every GPU once; a counter that this GPU does not have is None."""
        return [self._read(gpu, handle) for gpu, handle in self._handles.items()]

    def _read(self, gpu: int, handle: Any) -> Reading:
        nvml, ask = self._nvml, self._ask
        rates = ask(lambda: nvml.nvmlDeviceGetUtilizationRates(handle))
        memory = ask(lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
        clock = ask(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM))
        power = ask(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
        sent = received = None
        if self._pcie:
            through, out, back = (
                nvml.nvmlDeviceGetPcieThroughput,
                nvml.NVML_PCIE_UTIL_TX_BYTES,
                nvml.NVML_PCIE_UTIL_RX_BYTES,
            )
            sent, received = ask(lambda: through(handle, out)), ask(lambda: through(handle, back))
        return Reading(
            gpu=gpu,
            gpu_percent=None if rates is None else float(rates.gpu),
            memory_percent=None if rates is None else float(rates.memory),
            memory_used_bytes=None if memory is None else float(memory.used),
            sm_clock_hz=None if clock is None else clock * 1e6,
            power_w=None if power is None else power * 1e-3,
            pcie_tx_bytes_per_s=None if sent is None else sent * 1e3,
            pcie_rx_bytes_per_s=None if received is None else received * 1e3,
        )

    def _ask(self, question: Callable[[], Any]) -> Any:
        try:
            return question()
        except self._nvml.NVMLError:
            return None

    def _name(self, handle: Any) -> str:
        name = self._nvml.nvmlDeviceGetName(handle)
        return name.decode() if isinstance(name, bytes) else str(name)
