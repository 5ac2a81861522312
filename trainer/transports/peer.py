"""Our own all-reduce over the GPUs of one host, in one kernel with the step."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from trainer import ranges as names
from trainer.errors import ConfigError, DeviceError
from trainer.kernels.peer import SumAndStep, blocks_of, inbox_bytes
from trainer.mpi import Communicator
from trainer.transports.base import Kind, Parties, register

_HANDLE_BYTES: Final = 64  # cudaIpcMemHandle_t
_BUS_BYTES: Final = 32  # longer than a PCI bus id


class PeerTransport:
    """Every GPU writes its gradients into the others' memory, adds what it finds, and steps.

    n (p - 1) elements leave and reach each GPU: for a few GPUs and messages of megabytes, where
    the latency of more rounds would cost more than the bytes they save. No host, no copy engine,
    no NCCL: one launch, which a CUDA graph can hold.

    The memory is shared by cudaIpcGetMemHandle (CUDA Runtime API, "Device management"), so the
    ranks must be processes of one host, each with a GPU of its own that can reach the others'.
    """

    steps: bool = True
    uncapturable: str | None = None

    def __init__(self, parties: Parties) -> None:
        self._parties = parties
        update, comm = parties.update, parties.comm
        if not parties.backend.on_device:
            raise ConfigError(
                "--transport peer: expected gradients on a GPU; got the backend numpy; use "
                "--transport host"
            ).on_all_ranks()
        assert update is not None
        with comm.agreed():
            if comm.local_size != comm.size:
                raise ConfigError(
                    f"--transport peer: expected all {comm.size} ranks on one host; got "
                    f"{comm.local_size} here; use --transport nccl"
                )
        check_own_gpus(parties)
        flat = parties.message.flat
        _, blocks = blocks_of(flat.size)
        self._inbox = SharedMemory(comm, inbox_bytes(flat, comm.size))
        self._flags = SharedMemory(comm, 4 * blocks * comm.size)
        launches = parties.backend.xp.zeros(blocks, np.uint32)
        parties.backend.synchronize()
        comm.barrier()  # no rank writes a flag before all have zeroed theirs
        self._sum_and_step = SumAndStep(
            update.parameters, comm.rank, self._inbox.addresses, self._flags.addresses, launches
        )

    def start(self) -> None:
        """Do nothing: everything is summed at the end."""

    def all_reduce(self) -> None:
        """Sum the gradients of all ranks and update the parameters, in one launch."""
        p, update = self._parties, self._parties.update
        assert update is not None
        with p.ranges[names.PEER_ALLREDUCE]:
            self._sum_and_step(p.message.flat, update.rate.now, update.regularization)


def check_own_gpus(parties: Parties) -> None:
    """Refuse two ranks on one GPU: each would wait for the other to be given the GPU (collective).

    Raises
    ------
    DeviceError
        If ranks share a GPU.
    """
    from cupy.cuda import runtime

    comm = parties.comm
    places = np.zeros((comm.size, _BUS_BYTES), np.uint8)
    bus = runtime.deviceGetPCIBusId(runtime.getDevice()).encode()[:_BUS_BYTES]
    places[comm.rank, : len(bus)] = np.frombuffer(bus, np.uint8)
    comm.sum_in_place(places)
    different = len({row.tobytes() for row in places})
    if different < comm.size:
        raise DeviceError(
            f"--transport peer: expected a GPU for each of {comm.size} ranks; got {different}; "
            "start fewer ranks, or use --transport pinned"
        ).on_all_ranks()


class SharedMemory:
    """Zeroed device memory of the same size on every rank, open to all of them (collective).

    Attributes
    ----------
    addresses : tuple of int
        Where this process sees each rank's memory.
    """

    def __init__(self, comm: Communicator, size: int) -> None:
        from cupy.cuda import runtime

        self._runtime: Any = runtime
        self._opened: list[int] = []
        self._own = 0
        handle = np.zeros(_HANDLE_BYTES, np.uint8)
        with comm.agreed():
            self._own = runtime.malloc(size)  # not of a pool, whose blocks share a handle
            runtime.memset(self._own, 0, size)
            if comm.size > 1:
                handle[:] = np.frombuffer(runtime.ipcGetMemHandle(self._own), np.uint8)
        handles = np.zeros((comm.size, _HANDLE_BYTES), np.uint8)
        handles[comm.rank] = handle
        comm.sum_in_place(handles)
        addresses = []
        with comm.agreed():
            for rank in range(comm.size):
                addresses.append(self._own if rank == comm.rank else self._open(handles[rank]))
        self.addresses = tuple(addresses)

    def _open(self, handle: np.ndarray) -> int:
        try:
            address = int(self._runtime.ipcOpenMemHandle(handle.tobytes()))
        except self._runtime.CUDARuntimeError as error:
            raise DeviceError(
                f"--transport peer: expected GPUs that can reach each other's memory, but CUDA "
                f"says {error}; see nvidia-smi topo -p2p r, or use --transport nccl"
            ) from error
        self._opened.append(address)
        return address

    def __del__(self) -> None:
        for address in self._opened:
            self._runtime.ipcCloseMemHandle(address)
        if self._own:
            self._runtime.free(self._own)


register(Kind("peer", PeerTransport, model_parallel_instead="nccl"))
