"""The ranks: MPI loaded so that Nsight Systems sees it, a communicator, threads per rank."""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from trainer.errors import ConfigError, DeviceError, TrainerError, out_of_memory

_LAUNCHED = ("OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS")


class _Done:
    """The request of a lone rank: there was nothing to wait for."""

    def Test(self) -> bool:  # noqa: N802
        return True

    def Wait(self) -> bool:  # noqa: N802
        return True


class Communicator:
    """The ranks of one run; without MPI, one rank whose collectives do nothing.

    Only buffers travel, never pickled objects: each operation is one plain MPI call that a
    profiler shows under its own name.

    Attributes
    ----------
    raw : mpi4py.MPI.Comm or None
    rank, size : int
        Of this process, in all.
    local_rank, local_size : int
        Of this process among those of its host.
    """

    def __init__(self, raw: Any = None) -> None:
        self.raw = raw
        self.rank = self.local_rank = 0
        self.size = self.local_size = 1
        if raw is not None:
            self.rank, self.size = raw.Get_rank(), raw.Get_size()
            host = raw.Split_type(_mpi().COMM_TYPE_SHARED)
            self.local_rank, self.local_size = host.Get_rank(), host.Get_size()
            host.Free()

    def sum_in_place(self, values: npt.NDArray[Any]) -> None:
        """Replace a contiguous array by its sum over the ranks (MPI_Allreduce)."""
        if self.raw is not None:
            self.raw.Allreduce(_mpi().IN_PLACE, values)

    def start_sum(self, values: npt.NDArray[Any]) -> Any:
        """Begin to replace a contiguous array by its sum (MPI_Iallreduce); return the request."""
        if self.raw is None:
            return _Done()
        return self.raw.Iallreduce(_mpi().IN_PLACE, values)

    def exchange(
        self, sent: npt.NDArray[Any], to: int, received: npt.NDArray[Any], source: int
    ) -> None:
        """Send a contiguous array to one rank while one from another arrives (MPI_Sendrecv)."""
        if self.raw is not None:
            self.raw.Sendrecv(sent, to, recvbuf=received, source=source)

    def broadcast(self, values: npt.NDArray[Any], root: int = 0) -> None:
        """Overwrite a contiguous array by rank `root`'s (MPI_Bcast)."""
        if self.raw is not None:
            self.raw.Bcast(values, root)

    def broadcast_bytes(self, content: bytes, root: int = 0) -> bytes:
        """Return rank `root`'s bytes; the others may pass anything."""
        length = np.array([len(content)], np.int64)
        self.broadcast(length, root)
        buffer = np.zeros(int(length[0]), np.uint8)
        if self.rank == root:
            buffer[:] = np.frombuffer(content, np.uint8)
        self.broadcast(buffer, root)
        return buffer.tobytes()

    def barrier(self) -> None:
        """Wait for all ranks (MPI_Barrier)."""
        if self.raw is not None:
            self.raw.Barrier()

    def any(self, flag: bool) -> bool:
        """Whether any rank says yes; every rank gets the same answer."""
        if self.raw is None:
            return flag
        answer = np.array([flag], np.int32)
        self.raw.Allreduce(_mpi().IN_PLACE, answer, _mpi().MAX)
        return bool(answer[0])

    def largest(self, value: float) -> float:
        """Return the largest value of any rank."""
        if self.raw is None:
            return value
        answer = np.array([value], np.float64)
        self.raw.Allreduce(_mpi().IN_PLACE, answer, _mpi().MAX)
        return float(answer[0])

    def yielding_barrier(self) -> None:
        """Wait for all ranks, asleep: a rank that still computes may use the others' cores."""
        if self.raw is not None:
            request = self.raw.Ibarrier()
            while not request.Test():
                time.sleep(0.01)

    def abort(self, code: int) -> NoReturn:
        """End every rank now (MPI_Abort); for an error that only this rank knows of."""
        sys.stderr.flush()
        if self.raw is not None:
            self.raw.Abort(code)
        os._exit(code)

    @contextmanager
    def agreed(self) -> Iterator[None]:
        """Run a block without collectives; if it fails on any rank, raise that on all of them.

        The lowest failing rank's message is raised everywhere, so one rank can print it.
        """
        error: Exception | None = None
        try:
            yield
        except (TrainerError, OSError, MemoryError, RuntimeError, ImportError) as caught:
            error = caught
        if self.raw is None:
            if isinstance(error, MemoryError):
                raise DeviceError(out_of_memory(error)).on_all_ranks() from error
            if error is not None:
                raise error
            return
        first = np.array([self.size if error is None else self.rank], np.int32)
        self.raw.Allreduce(_mpi().IN_PLACE, first, _mpi().MIN)
        failed = int(first[0])
        if failed == self.size:
            return
        code = np.array([_exit_code(error)], np.int32)
        self.broadcast(code, failed)
        message = self.broadcast_bytes(_message(error).encode(), failed).decode()
        shared = TrainerError(message if self.size == 1 else f"rank {failed}: {message}")
        shared.exit_code = int(code[0])
        raise shared.on_all_ranks() from error


def _exit_code(error: Exception | None) -> int:
    if isinstance(error, MemoryError):
        return DeviceError.exit_code
    return int(getattr(error, "exit_code", 1))


def _message(error: Exception | None) -> str:
    if error is None or isinstance(error, TrainerError):
        return str(error)
    if isinstance(error, MemoryError):
        return out_of_memory(error)
    return f"{type(error).__name__}: {error}"


def _mpi() -> Any:
    """Import mpi4py.MPI with libmpi's symbols visible to all libraries.

    Nsight Systems' MPI injection resolves PMPI_* symbols in the global scope; an extension module
    is opened with RTLD_LOCAL, which hides the libmpi it pulls in, and the injection then calls
    null pointers.
    """
    if "mpi4py.MPI" not in sys.modules:
        flags = sys.getdlopenflags()
        sys.setdlopenflags(os.RTLD_NOW | os.RTLD_GLOBAL)
        try:
            importlib.import_module("mpi4py.MPI")
        finally:
            sys.setdlopenflags(flags)
    return sys.modules["mpi4py.MPI"]


def connect(environment: Mapping[str, str] | None = None) -> Communicator:
    """Join the ranks that mpirun or srun started; one lone rank when none of them did.

    Raises
    ------
    DeviceError
        If a launcher started ranks but mpi4py or a working MPI library is missing.
    """
    env = os.environ if environment is None else environment
    tasks = env.get("SLURM_STEP_NUM_TASKS", "1")
    if not any(name in env for name in _LAUNCHED):
        if tasks.isdigit() and int(tasks) > 1 and "SLURM_PROCID" in env:
            raise ConfigError(
                f"srun started {tasks} tasks that cannot find each other: expected PMIx; got "
                "none in the environment; use srun --mpi=pmix (Debian: package libpmix-dev)"
            )
        return Communicator()
    try:
        return Communicator(_mpi().COMM_WORLD)
    except (ImportError, RuntimeError) as error:
        raise DeviceError(
            f"started by an MPI launcher: expected mpi4py; got {error}; run "
            "pip install mpi4py beside the MPI library whose mpirun you use"
        ) from error


def library_version() -> str | None:
    """Return the MPI library's first line about itself, None when MPI was not loaded."""
    if "mpi4py.MPI" not in sys.modules:
        return None
    return str(_mpi().Get_library_version()).split("\n")[0].split(",")[0].strip("\x00 ")


def cores_of_rank(comm: Communicator) -> int:
    """Return the cores this rank may use: those it is bound to, divided among who shares them.

    mpirun binds one or two ranks to a core each and more to a socket each; under --bind-to none
    and srun all ranks of a host see the same cores. Counting, per core, the ranks of this host
    that may run there covers all of these.
    """
    mine = sorted(os.sched_getaffinity(0))
    claims = np.zeros(max(4096, mine[-1] + 1), np.int32)
    claims[mine] = 1
    if comm.raw is not None:
        host = comm.raw.Split_type(_mpi().COMM_TYPE_SHARED)
        host.Allreduce(_mpi().IN_PLACE, claims)
        host.Free()
    return max(1, int((1.0 / claims[mine]).sum() + 1e-9))


def set_threads(comm: Communicator, requested: int) -> int:
    """Limit the BLAS threads of this rank; return how many it now has.

    Parameters
    ----------
    requested : int
        Threads; 0 is what OMP_NUM_THREADS says, else this rank's cores.
    """
    given = os.environ.get("OMP_NUM_THREADS", "")
    allowed = int(given) if given.isdigit() and int(given) > 0 else cores_of_rank(comm)
    threads = requested or allowed
    try:
        import threadpoolctl
    except ImportError:
        if requested:
            raise DeviceError(
                f"--threads {requested}: expected the package threadpoolctl; got none; run "
                f"pip install threadpoolctl, or start with OMP_NUM_THREADS={requested}"
            ) from None
        return threads
    threadpoolctl.threadpool_limits(threads)
    return threads
