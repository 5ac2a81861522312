"""Trains ResNets for benchmarks.resnet, which starts it: what is measured goes to --rows.

A step is forward, backward and SGD with momentum on synthetic images that lie on the GPU. Its
phases are NVTX ranges; between them stand CUDA events (time, ddp) or a kernel called `spin_kernel`
(counters), so that the rows of Nsight Compute's table between two of them are one phase.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from benchmarks.common.torch_device import Device, saved, set_tf32
from benchmarks.common.torch_nets import Network, counted
from perfmodel.workloads.cnns import resnet

WARM_UP: Final = 3
SMALL: Final = 32  # images up to which a step is short, so that a sample is more of them
BEGAN: Final = time.monotonic()
PHASES: Final = ("forward", "backward", "step")
HALF: Final = {"bf16": torch.bfloat16, "fp16": torch.float16}


# --- a step


@dataclass(frozen=True)
class Cell:
    """One configuration: `batch` images per GPU; `mode` is 'alone' or 'ddp'."""

    net: str
    batch: int
    math: str
    mode: str = "alone"


class Training:
    """A network, its optimizer and images on a device.

    Parameters
    ----------
    math : {'fp32', 'tf32', 'bf16', 'fp16'}
        Of a cell: IEEE fp32 on CUDA cores, TF32 products, or autocast (weights stay fp32); fp16
        with a gradient scaler, as usual.
    """

    def __init__(self, net: nn.Module, most: int, image: int, device: Device) -> None:
        self.net, self.on, self.device = net, device, device.device
        self.optimizer = torch.optim.SGD(net.parameters(), 1e-3, momentum=0.9, weight_decay=1e-4)
        generator = torch.Generator(self.device).manual_seed(0)
        shape = (most, 3, image, image)
        self.images = torch.randn(shape, device=self.device, generator=generator)
        self.labels = torch.randint(1000, (most,), device=self.device, generator=generator)
        self.scaler = torch.amp.GradScaler(self.device.type, init_scale=256.0)

    def step(self, batch: int, math: str, mark: Callable[[], None]) -> None:
        """Train on the first `batch` images; `mark` is called before, between and after phases."""
        set_tf32(math == "tf32")
        x, y = self.images[:batch], self.labels[:batch]
        if self.channels_last:
            x = x.contiguous(memory_format=torch.channels_last)
        scaler = self.scaler if math == "fp16" else None
        mark()
        with named("forward", self.device):
            self.optimizer.zero_grad(set_to_none=True)
            half = HALF.get(math)
            with torch.autocast(self.device.type, dtype=half, enabled=half is not None):
                loss = nn.functional.cross_entropy(self.net(x), y)
        mark()
        with named("backward", self.device):
            (scaler.scale(loss) if scaler else loss).backward()
        mark()
        with named("step", self.device):
            if scaler:
                scaler.step(self.optimizer)
                scaler.update()
            else:
                self.optimizer.step()
        mark()

    @property
    def channels_last(self) -> bool:
        """Whether the network's weights are NHWC; then images are, too."""
        first = next(self.net.parameters())
        return not first.is_contiguous()


@contextlib.contextmanager
def named(name: str, device: torch.device) -> Iterator[None]:
    """NVTX range, where there is a GPU."""
    if device.type != "cuda":
        yield
        return
    with torch.cuda.nvtx.range(name):
        yield


def nothing() -> None:
    """Mark of a step that is not measured."""


class Clock:
    """Marks of steps, one before, between and after their phases."""

    def __init__(self, device: Device) -> None:
        self._device, self._marks = device, list[Any]()

    def __call__(self) -> None:
        """Note now."""
        self._marks.append(self._device.mark())

    def steps(self) -> list[list[float]]:
        """Return the seconds of every phase of every step; the device must be idle."""
        every = len(PHASES) + 1
        steps = [self._marks[at : at + every] for at in range(0, len(self._marks), every)]
        return [[self._device.between(a, b) for a, b in pairwise(marks)] for marks in steps]

    def whole(self) -> float:
        """Return the seconds from the first mark to the last."""
        return self._device.between(self._marks[0], self._marks[-1])


# --- timing


def sample(training: Training, cell: Cell) -> dict[str, Any]:
    """Time some steps in a row: seconds per step, and each phase's mean."""
    count = 5 if cell.batch <= SMALL else 2
    clock = Clock(training.on)
    training.on.synchronize()
    begin = time.perf_counter()
    for _ in range(count):
        with named("batch iteration", training.device):
            training.step(cell.batch, cell.math, clock)
    host = time.perf_counter() - begin
    training.on.synchronize()
    steps = clock.steps()
    phases = {f"{p}_s": sum(s[i] for s in steps) / count for i, p in enumerate(PHASES)}
    return {"total_s": clock.whole() / count, **phases, "host_s": host / count, "steps": count}


def measure(cells: dict[Cell, Training], args: argparse.Namespace, emit: Callable) -> None:
    """Warm every cell up, then time them in turn, round by round, until the time is over."""
    alive = []
    for cell, training in cells.items():
        cuda = training.on.cuda
        if cuda:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        try:
            training.on.synchronize()
            begin = time.perf_counter()
            training.step(cell.batch, cell.math, nothing)
            training.on.synchronize()
            first = time.perf_counter() - begin
            for _ in range(WARM_UP - 1):
                training.step(cell.batch, cell.math, nothing)
            training.on.synchronize()
        except torch.OutOfMemoryError as problem:
            emit({**asdict(cell), "failed": str(problem).splitlines()[0]})
            continue
        memory = {}
        if cuda:
            free, total = torch.cuda.mem_get_info()
            memory = {
                "allocated_bytes": torch.cuda.max_memory_allocated(),
                "reserved_bytes": torch.cuda.max_memory_reserved(),
                "device_bytes": total - free,  # with CUDA's context: what nvidia-smi shows
            }
        emit({**asdict(cell), "round": -1, "first_step_s": first, **memory})
        alive.append(cell)
    for number in range(args.rounds):
        for cell in alive:
            if over(args):
                print(f"time is over in round {number} at {cell}", flush=True)
                return
            emit({**asdict(cell), "round": number, **sample(cells[cell], cell)})


def over(args: argparse.Namespace) -> bool:
    """Whether no new measurement may begin; the same on all ranks."""
    late = time.monotonic() - BEGAN > args.seconds
    if not torch.distributed.is_initialized():
        return late
    flag = torch.tensor([float(late)], device="cuda" if torch.cuda.is_available() else "cpu")
    torch.distributed.all_reduce(flag)
    return bool(flag.item() > 0)


# --- what the parts do


def network(args: argparse.Namespace, name: str, device: Device) -> nn.Module:
    torch.manual_seed(0)
    layout = torch.channels_last if args.channels_last else torch.contiguous_format
    return Network(resnet(name, args.image)).to(device.device).to(memory_format=layout).train()


def part_time(args: argparse.Namespace, device: Device, emit: Callable) -> None:
    """One network: every batch and math; the first step of all is the process's cold one."""
    training = Training(network(args, args.net, device), max(args.batches), args.image, device)
    cells = [Cell(args.net, b, m) for b in args.batches for m in args.maths]
    measure(dict.fromkeys(cells, training), args, emit)


def part_counters(args: argparse.Namespace, device: Device, emit: Callable) -> None:
    """One step of every cell between cudaProfilerStart and Stop, phases parted by spin kernels.

    ncu prints its table when this process ends, and nothing if ncu itself is killed: so a thread
    ends this process when the time is over, amid a step, too. Whole phases of it count.
    """
    training = Training(network(args, args.net, device), max(args.batches), args.image, device)
    cuda = device.cuda
    under_way: list[Cell] = []

    def mark() -> None:
        if cuda:
            torch.cuda._sleep(1000)

    def give_up() -> None:
        for cell in under_way:
            emit({**asdict(cell), "profiled_step_s": None})
            print(f"time is over: {cell} is counted in part", flush=True)
        os._exit(0)

    limit = threading.Timer(max(0.0, args.seconds - (time.monotonic() - BEGAN)), give_up)
    limit.daemon = True
    limit.start()
    for batch in args.batches:
        for math in args.maths:
            cell = Cell(args.net, batch, math)
            for _ in range(WARM_UP):
                training.step(batch, math, nothing)
            training.on.synchronize()
            if cuda:
                torch.cuda.empty_cache()  # ncu saves all memory that a kernel may write
                torch.cuda.profiler.start()
            under_way.append(cell)
            begin = time.perf_counter()
            training.step(batch, math, mark)
            training.on.synchronize()
            spent = time.perf_counter() - begin
            under_way.remove(cell)
            if cuda:
                torch.cuda.profiler.stop()
            emit({**asdict(cell), "profiled_step_s": spent})
            print(f"{cell}: {spent:.1f} s under the profiler", flush=True)
    limit.cancel()


def part_ddp(args: argparse.Namespace, device: Device, emit: Callable) -> None:
    """Both networks, alone on each GPU and under DistributedDataParallel, in turn."""
    import torch.distributed as dist

    cuda = device.cuda
    dist.init_process_group(
        "nccl" if cuda else "gloo", timeout=timedelta(seconds=45),
        device_id=device.device if cuda else None,
    )  # fmt: skip
    most = max(args.batches)
    cells: dict[Cell, Training] = {}
    for name in args.net.split(","):
        net = network(args, name, device)
        parallel = nn.parallel.DistributedDataParallel(
            copy.deepcopy(net), device_ids=[device.device.index] if cuda else None,
            gradient_as_bucket_view=True,
        )  # fmt: skip
        modes = {
            "alone": Training(net, most, args.image, device),
            "ddp": Training(parallel, most, args.image, device),
        }
        cells |= {
            Cell(name, b, m, mode): training
            for b in args.batches for m in args.maths for mode, training in modes.items()
        }  # fmt: skip
    measure(cells, args, emit if dist.get_rank() == 0 else lambda row: None)
    dist.destroy_process_group()


def part_theory(args: argparse.Namespace, device: Device, emit: Callable) -> None:
    """Operations of one image as torch counts them, and what it saves for the backward pass."""
    for name in args.net.split(","):
        net = resnet(name, args.image)
        made = Network(net).train()
        kept = saved(made, lambda m=made: m(torch.randn(1, 3, args.image, args.image)).sum())
        size = sum(storage.nbytes() for storage in kept.values())
        about = {"net": name, "image": args.image, "torch": torch.__version__}
        emit({**about, **counted(net), "saved_bytes": size})


PARTS: Final = {
    "time": part_time, "tuned": part_time, "counters": part_counters, "ddp": part_ddp,
    "theory": part_theory,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--part", choices=PARTS, required=True)
    add("--net", required=True, help="resnet18, resnet50, or both with a comma (ddp, theory)")
    add("--batches", type=int, nargs="+", default=[2])
    add("--maths", nargs="+", choices=("fp32", "tf32", "bf16", "fp16"), default=["fp32"])
    add("--image", type=int, default=224)
    add("--rounds", type=int, default=7)
    add("--seconds", type=float, default=60.0, help="no measurement begins after that long")
    add("--autotune", action="store_true", help="cudnn.benchmark: try every algorithm")
    add("--channels-last", action="store_true", help="NHWC instead of NCHW")
    add("--rows", type=Path, required=True, help="file to which rows are appended, a line each")
    args = parser.parse_args()
    device = Device(int(os.environ.get("LOCAL_RANK", "0")))
    if device.cuda:
        torch.cuda.set_device(device.device)
    torch.backends.cudnn.benchmark = args.autotune
    with args.rows.open("a", encoding="utf-8") as file:

        def emit(row: dict[str, Any]) -> None:
            file.write(json.dumps(row) + "\n")
            file.flush()

        about = device.about(
            cuda=torch.version.cuda, cudnn_benchmark=args.autotune,
            channels_last=args.channels_last, image=args.image,
        )  # fmt: skip
        emit({"about": about})
        PARTS[args.part](args, device, emit)


if __name__ == "__main__":
    main()
