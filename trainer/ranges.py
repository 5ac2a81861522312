"""The names of the NVTX ranges, their fast push and pop, and the mark that describes the run."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

TRAIN: Final = "GPU parallel train"
SETUP: Final = "train setup"
BATCH: Final = "batch iteration"
COPY_IMAGES: Final = "copying images host -> device"
FORWARD: Final = "forward"
FORWARD_GEMM_1: Final = "forward GEMM 1"
FORWARD_GEMM_2: Final = "forward GEMM 2"
BACKWARD: Final = "backward"
BACKWARD_GEMM_1: Final = "backward GEMM 1"
BACKWARD_GEMM_2: Final = "backward GEMM 2"
BACKWARD_GEMM_3: Final = "backward GEMM 3"
DEVICE_TO_HOST: Final = "cudaMemcpyDeviceToHost"
SYNCHRONIZE: Final = "cudaDeviceSynchronize"
ALLREDUCE: Final = "MPI_Allreduce"
HOST_TO_DEVICE: Final = "cudaMemcpyHostToDevice"
NCCL_ALLREDUCE: Final = "ncclAllReduce"
PEER_ALLREDUCE: Final = "peer all-reduce and step"
GRAPH: Final = "CUDA graph"
STEP: Final = "step"

PARENT: Final[dict[str, str | None]] = {
    TRAIN: None,
    SETUP: TRAIN,
    BATCH: TRAIN,
    COPY_IMAGES: BATCH,
    FORWARD: BATCH,
    FORWARD_GEMM_1: FORWARD,
    FORWARD_GEMM_2: FORWARD,
    BACKWARD: BATCH,
    BACKWARD_GEMM_1: BACKWARD,
    BACKWARD_GEMM_2: BACKWARD,
    BACKWARD_GEMM_3: BACKWARD,
    DEVICE_TO_HOST: BACKWARD,
    SYNCHRONIZE: BACKWARD,
    ALLREDUCE: BACKWARD,
    HOST_TO_DEVICE: BACKWARD,
    NCCL_ALLREDUCE: BACKWARD,
    STEP: BATCH,
    PEER_ALLREDUCE: BATCH,
    GRAPH: BATCH,
}
"""Every range and the range that encloses it."""

SYNCHRONIZED: Final = (COPY_IMAGES, FORWARD, BACKWARD, STEP)
"""The ranges that wait for the GPU before they end under --sync-ranges, as in the assignment."""

MARK_KEY: Final = "perfmodel_config"


class _Range:
    """One named range; entering pushes attributes prepared once, leaving pops."""

    __slots__ = ("_arguments", "_before_end", "_pop", "_pop_arguments", "_push")

    def __init__(
        self,
        push: Callable[..., Any],
        arguments: tuple[Any, ...],
        pop: Callable[..., Any],
        pop_arguments: tuple[Any, ...],
        before_end: Callable[[], None] | None,
    ) -> None:
        self._push, self._arguments = push, arguments
        self._pop, self._pop_arguments = pop, pop_arguments
        self._before_end = before_end

    def __enter__(self) -> None:
        self._push(*self._arguments)

    def __exit__(self, *_: object) -> None:
        if self._before_end is not None:
            self._before_end()
        self._pop(*self._pop_arguments)


class _Silent(Mapping[str, AbstractContextManager[Any]]):
    """Ranges that record nothing: without nvtx, and for evaluation and the reference run."""

    def __init__(self) -> None:
        self._nothing = contextlib.nullcontext()

    def __getitem__(self, name: str) -> AbstractContextManager[Any]:
        return self._nothing

    def __iter__(self) -> Any:
        return iter(PARENT)

    def __len__(self) -> int:
        return len(PARENT)


Ranges = Mapping[str, AbstractContextManager[Any]]
SILENT: Final[Ranges] = _Silent()


def make_ranges(synchronize: Callable[[], None] | None = None) -> Ranges:
    """Prepare every range in NVTX's default domain; `SILENT` when nvtx is not installed.

    Parameters
    ----------
    synchronize : callable, optional
        Waits for the GPU; called before the end of the `SYNCHRONIZED` ranges.

    Notes
    -----
    A fresh ``nvtx.annotate`` per range costs 600-800 ns without a tool; attributes prepared
    once and pushed on a domain cost a tenth of that (measured in docs/trainer.md).
    """
    try:
        import nvtx
    except ImportError:
        if synchronize is None:
            return SILENT
        return {name: _only_waits(name, synchronize) for name in PARENT}
    domain = nvtx.get_domain(None)
    made: dict[str, AbstractContextManager[Any]] = {}
    for name in PARENT:
        wait = synchronize if name in SYNCHRONIZED else None
        attributes = domain.get_event_attributes(message=name, color="blue")
        if hasattr(domain, "push_range"):  # nvtx >= 0.2.12
            made[name] = _Range(domain.push_range, (attributes,), domain.pop_range, (), wait)
        else:
            from nvtx import _lib

            handle = domain.handle
            made[name] = _Range(
                _lib.push_range, (attributes, handle), _lib.pop_range, (handle,), wait
            )
    return made


def _only_waits(name: str, synchronize: Callable[[], None]) -> AbstractContextManager[Any]:
    wait = synchronize if name in SYNCHRONIZED else None
    return _Range(_nothing, (), _nothing, (), wait)


def _nothing() -> None:
    pass


def mark_config(config: Mapping[str, Any]) -> str:
    """Emit one NVTX mark that holds the run's configuration as JSON; return its text."""
    return leave_mark({MARK_KEY: 1, **config})


def leave_mark(said: Mapping[str, Any]) -> str:
    """Emit one NVTX mark that holds JSON, if nvtx is there; return its text."""
    text = json.dumps(said, separators=(",", ":"))
    with contextlib.suppress(ImportError):
        import nvtx

        nvtx.mark(message=text, domain=None)
    return text


def name_rank(rank: int) -> None:
    """Name the main thread "MPI Rank N", as Nsight Systems does; shown by top and ps (Linux)."""
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text(f"MPI Rank {rank}")


def profiler_warning(environment: Mapping[str, str] | None = None) -> str | None:
    """Say why Nsight Systems, which runs this process, will see no ranges; None if it will.

    nvtx >= 0.2.12 asks through the payload extension whether a tool listens. Nsight Systems up
    to 2024.2 knows another number for that extension, says no, and nvtx returns a dummy domain
    that records nothing and says so nowhere.
    """
    env = os.environ if environment is None else environment
    if "NSYS_PROFILING_SESSION_ID" not in env:
        return None
    try:
        import nvtx
    except ImportError:
        return (
            "Nsight Systems is recording, but the package nvtx is missing: the report will hold "
            f"no ranges; run {sys.executable} -m pip install nvtx"
        )
    if type(nvtx.get_domain(None)).__name__ != "DummyDomain":
        return None
    version = importlib.metadata.version("nvtx")
    return (
        f"Nsight Systems is recording, but nvtx {version} finds no listener: the report will "
        "hold no ranges. Either --trace lacks nvtx, or this Nsight Systems is 2024.2 or older, "
        "which nvtx >= 0.2.12 cannot talk to: run pip install 'nvtx==0.2.11', or use a newer one"
    )
