"""Transports that hand GPU memory over: to a CUDA-aware MPI, or to NCCL."""

from __future__ import annotations

import contextlib
import ctypes
from typing import Any, Final
from weakref import WeakKeyDictionary

import numpy as np

from trainer import ranges as names
from trainer.errors import ConfigError, DeviceError
from trainer.mpi import Communicator, library_version
from trainer.transports.base import Kind, Parties, register

_NCCL_TYPES: Final = {"float32": "NCCL_FLOAT32", "float64": "NCCL_FLOAT64"}
_COMMUNICATORS: WeakKeyDictionary[Communicator, Any] = WeakKeyDictionary()


def why_not_cuda_aware(comm: Communicator) -> str | None:
    """Ask the MPI library whether it takes GPU pointers; None if it does.

    Open MPI answers MPIX_Query_cuda_support (mpi-ext.h); MPICH and its relatives answer
    MPIX_GPU_query_support (MPICH 4, section "GPU support"). A library that has neither is not
    trusted with a pointer: it would read it as host memory and crash.
    """
    if comm.raw is None:
        return "this is a lone process, without MPI (start it with mpirun)"
    library = ctypes.CDLL(None)  # libmpi's symbols are global: see trainer.mpi
    name = library_version() or "this MPI"
    with contextlib.suppress(AttributeError):
        return None if library.MPIX_Query_cuda_support() else f"{name} says it has no CUDA support"
    with contextlib.suppress(AttributeError):
        answer = ctypes.c_int(0)
        library.MPIX_GPU_query_support(0, ctypes.byref(answer))  # 0: MPIX_GPU_SUPPORT_CUDA
        return None if answer.value else f"{name} says it has no CUDA support"
    return f"{name} offers no way to ask (MPIX_Query_cuda_support, MPIX_GPU_query_support)"


class CudaAwareTransport:
    """MPI_Allreduce on GPU pointers: no copies in our code, whatever the library does inside."""

    steps: bool = False
    uncapturable: str | None = "MPI is called by the host, which a CUDA graph cannot do"

    def __init__(self, parties: Parties) -> None:
        self._parties = parties
        reason = why_not_cuda_aware(parties.comm)
        if reason is None and not parties.backend.on_device:
            reason = "the gradients are in host memory (backend numpy)"
        if reason:
            raise ConfigError(
                "--transport cuda-aware: expected an MPI that takes GPU pointers; got none: "
                f"{reason}; load a CUDA-aware MPI (ompi_info --parsable | grep cuda), or use "
                "--transport nccl"
            ).on_all_ranks()

    def start(self) -> None:
        """Do nothing: everything is summed at the end."""

    def all_reduce(self) -> None:
        """Wait for the gradients and sum them in one call."""
        p = self._parties
        with p.ranges[names.SYNCHRONIZE]:
            p.backend.synchronize()
        if p.barrier:
            p.comm.barrier()
        with p.ranges[names.ALLREDUCE]:
            p.comm.sum_in_place(p.message.flat)


class NcclTransport:
    """NCCL's all-reduce of GPU memory, queued on a stream: the host waits for nothing.

    One flat message; with `Parties.overlap` two, the early gradients' on a stream of their own
    beside the GEMM that computes W1's.
    """

    steps: bool = False
    uncapturable: str | None = None

    def __init__(self, parties: Parties) -> None:
        self._parties = parties
        if not parties.backend.on_device:
            raise ConfigError(
                "--transport nccl: expected gradients on a GPU; got the backend numpy; use "
                "--transport host"
            ).on_all_ranks()
        self._nccl = nccl_communicator(parties.comm)
        self._queue = parties.backend.queue() if parties.overlap else None

    def start(self) -> None:
        """Queue the early gradients' all-reduce beside the computing stream."""
        if self._queue is not None:
            self._sum(self._parties.message.flat[self._parties.message.late :])

    def all_reduce(self) -> None:
        """Queue the all-reduce of all, or of the late gradients."""
        message = self._parties.message
        self._sum(message.flat if self._queue is None else message.flat[: message.late])
        if self._queue is not None:
            self._queue.join()

    def _sum(self, values: Any) -> None:
        import cupy
        from cupy.cuda import nccl

        if not values.size:
            return
        stream = cupy.cuda.get_current_stream().ptr
        if self._queue is not None:
            self._queue.follow()
            stream = self._queue.stream.ptr
        kind = getattr(nccl, _NCCL_TYPES[str(values.dtype)])
        with self._parties.ranges[names.NCCL_ALLREDUCE]:
            pointer = values.data.ptr
            self._nccl.allReduce(pointer, pointer, values.size, kind, nccl.NCCL_SUM, stream)


def nccl_communicator(comm: Communicator) -> Any:
    """Return NCCL's communicator of these ranks, made on first use (collective).

    Raises
    ------
    DeviceError
        If this CuPy has no NCCL, or two ranks share a GPU.
    """
    if comm in _COMMUNICATORS:
        return _COMMUNICATORS[comm]
    with comm.agreed():
        try:
            from cupy.cuda import nccl

            identity = nccl.get_unique_id()
        except (ImportError, AttributeError) as error:
            raise DeviceError(
                f"--transport nccl: expected NCCL; got none ({error}); run "
                "pip install nvidia-nccl-cu13 (or -cu12) beside CuPy, or use --transport pinned"
            ) from error
    if isinstance(identity, bytes):  # CuPy 14
        identity = comm.broadcast_bytes(identity)
    else:
        packed = np.array(identity, np.int8).tobytes()
        identity = tuple(np.frombuffer(comm.broadcast_bytes(packed), np.int8).tolist())
    with comm.agreed():
        try:
            _COMMUNICATORS[comm] = nccl.NcclCommunicator(comm.size, identity, comm.rank)
        except nccl.NcclError as error:
            raise DeviceError(
                f"--transport nccl: expected a GPU for each of {comm.size} ranks, but NCCL says: "
                f"{error}; start fewer ranks, or use --transport pinned"
            ) from error
    return _COMMUNICATORS[comm]


register(Kind("cuda-aware", CudaAwareTransport))
register(Kind("nccl", NcclTransport, overlaps=True))
