"""One rank of peer.cu's all-reduce on a CPU: ranks are processes, GPU memory is shared files.

    python -m support.peer_on_cpu '{"folder": ..., "rank": 0, "ranks": 2, ...}'

What the emulator lacks is put in its place in the source: loads and stores that other processes
see, in order, and a wait that gives the processor away. A thread waits only for the thread of the
same number on other ranks, so emulated ones, which run one after another, may wait for each other
as long as all ranks run them in the same order.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from support.cuda_on_cpu import KERNELS, Emulator, Module, device_array
from trainer.kernels import peer as stepper
from trainer.parameters import Tensors

ATOMIC = r"""
#include <sched.h>
#include <stdlib.h>
#include <time.h>
__device__ void tell(unsigned* flag, unsigned value)
{
    __atomic_store_n(flag, value, __ATOMIC_RELEASE);
}
__device__ unsigned ask(const unsigned* flag) { return __atomic_load_n(flag, __ATOMIC_ACQUIRE); }
__device__ unsigned long long now_ns() {
    sched_yield();
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ull + t.tv_nsec;
}
template <typename Q>
__device__ Q read_past_l1(const Q* p)
{
    static int calls;
    if (getenv("DROWSY") && calls++ % 64 == 0) {  // late: may the others have gone on meanwhile?
        const timespec nap = {0, 4000000};
        nanosleep(&nap, nullptr);
    }
    asm volatile("" ::: "memory");
    return *p;
}
__device__ void give_up() { cuda_on_cpu::fail("gave up waiting for another rank"); }
typedef unsigned long long Half;
// the half with the flag last, and read first: then the other one is there too
__device__ void send(void* to, Half low, Half high) {
    __atomic_store_n((Half*)to, low, __ATOMIC_RELAXED);
    __atomic_store_n((Half*)to + 1, high, __ATOMIC_RELEASE);
}
__device__ void receive(const void* from, Half& low, Half& high) {
    high = __atomic_load_n((const Half*)from + 1, __ATOMIC_ACQUIRE);
    low = __atomic_load_n((const Half*)from, __ATOMIC_RELAXED);
}
"""


def source() -> str:
    """Return peer.cu with `ATOMIC` for what a CPU runs instead of PTX."""
    text = (KERNELS / "peer.cu").read_text(encoding="utf-8")
    start = text.index("#else\n", text.index("#ifdef __CUDACC__")) + len("#else\n")
    return text[:start] + ATOMIC + text[text.index("#endif", start) :]


def gradient(rank: int, launch: int, count: int, dtype: str) -> np.ndarray:
    """Return what a rank adds at a launch."""
    made: np.ndarray = np.random.default_rng((rank, launch)).standard_normal(count).astype(dtype)
    return made


def main(asked: dict[str, Any]) -> None:
    """Launch as often as asked; leave the parameters in the folder."""
    folder, rank, ranks = Path(asked["folder"]), asked["rank"], asked["ranks"]
    emulator = Emulator(folder, asked["order"])
    stepper.load = lambda name, **macros: Module(emulator, Path(asked["library"]))  # type: ignore[assignment]
    stepper.MOST_PACKET_BYTES = (1 << 30) * asked["packets"]  # type: ignore[misc]
    inputs, hidden, classes = sizes = asked["sizes"]
    count = hidden * inputs + hidden + classes * hidden + classes
    flat = np.linspace(-1, 1, count).astype(asked["dtype"])
    parameters = Tensors.split(aligned(flat), *sizes)
    shared = [
        [np.memmap(folder / f"{what}{r}", np.uint8, "r+") for r in range(ranks)]
        for what in ("inbox", "flags")
    ]
    _, blocks = stepper.blocks_of(count)
    step = stepper.SumAndStep(
        parameters, rank, *(tuple(m.ctypes.data for m in files) for files in shared),
        launches=aligned(np.zeros(blocks, np.uint32)),
    )  # fmt: skip
    for launch in range(asked["launches"]):
        time.sleep(0.002 * ((launch + rank) % 3))  # now one rank is first, now another
        step(aligned(gradient(rank, launch, count, asked["dtype"])), 0.5, 0.25)
    np.save(folder / f"found{rank}.npy", np.array(parameters.flat))


def aligned(values: np.ndarray) -> Any:
    """Copy as a GPU allocates: from 16 bytes on."""
    return device_array(values, at_the_end=values.nbytes % 16 == 0)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
