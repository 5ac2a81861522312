"""Runs GPTs of several sizes in one process: `python -m benchmarks.predict.gpt_runs OUT ...`.

    python -m benchmarks.predict.gpt_runs OUT --sizes eager --tag eager1
    nsys profile ... python -m benchmarks.predict.gpt_runs OUT --sizes eager --tag eager1 --record

The seconds of a step of every size are measured, by the program itself, and kept in OUT/TAG.json.
With --record the steps of all sizes are then recorded in one capture, each size in a range
`size K` with operators' sizes (`shapes`) and without (`timing`); `python -m
benchmarks.predict.gpt_split` cuts the report into one of each. With torch.distributed.run the
models are trained by DDP, or FSDP.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import sys
import time
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.common import results
from benchmarks.predict.gpt_sizes import SETS, SYMBOLS, WORDS
from profiles.programs import train
from profiles.programs.train import Run, nvtx_range


def flags() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--sizes", choices=[*SETS], required=True)
    parser.add_argument("--tag", required=True)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--fsdp", action="store_true")
    parser.add_argument("--both", action="store_true", help="DDP, then FSDP, of every size")
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--modes", default="shapes,timing", help="of --record")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--limit", type=float, default=600.0, help="seconds; later sizes are left")
    return parser.parse_args()


def defaults() -> argparse.Namespace:
    """The flags of the training program, at their defaults."""
    words, sys.argv = sys.argv, ["train.py", "gpt"]
    try:
        return train.flags()
    finally:
        sys.argv = words


def built(sizes: dict[str, int], c: argparse.Namespace) -> Run:
    """A model of these sizes, warm."""
    settings = defaults()
    chosen = {WORDS[name]: n for name, n in sizes.items()}
    for name, value in {**chosen, "compile": c.compile, "fsdp": c.fsdp}.items():
        setattr(settings, name, value)
    run = Run(settings)
    for _ in range(4):
        run.step(run.run)
    torch.cuda.synchronize()
    return run


def measured(run: Run, rounds: int) -> list[float]:
    """Seconds of a step: each of the rounds is of enough steps to last 50 ms, at least 5."""
    began = time.perf_counter()
    for _ in range(3):
        run.step(run.run)
    torch.cuda.synchronize()
    once = (time.perf_counter() - began) / 3
    steps = together(min(max(5, int(0.05 / once) + 1), 40), run)
    found = []
    for _ in range(rounds):
        if run.world > 1:
            dist.barrier()
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(steps):
            run.step(run.run)
        torch.cuda.synchronize()
        found.append((time.perf_counter() - began) / steps)
    return found


def together(value: int, run: Run) -> int:
    """The first rank's number, for all of them."""
    if run.world == 1:
        return value
    shared = torch.tensor([value], device=run.device)
    dist.broadcast(shared, 0)
    return int(shared.item())


def recorded(run: Run, k: int, mode: str) -> None:
    """Record steps of one size."""
    if run.world > 1:
        dist.barrier()
        torch.cuda.synchronize()
        time.sleep(0.05)
    shapes = torch.autograd.profiler.emit_nvtx(record_shapes=True)
    torch.cuda.nvtx.range_push(f"size {k} {mode}")
    with shapes if mode == "shapes" else contextlib.nullcontext():
        for step in range(3 if mode == "shapes" else 4):
            torch.cuda.nvtx.range_push(f"step {step}")
            run.step(run.run, nvtx_range)
            torch.cuda.nvtx.range_pop()
        torch.cuda.synchronize()
    torch.cuda.nvtx.range_pop()
    if run.world > 1:
        time.sleep(0.05)


def main() -> None:
    c = flags()
    began = time.perf_counter()
    torch._dynamo.config.automatic_dynamic_shapes = False
    for name in ("recompile_limit", "cache_size_limit", "accumulated_recompile_limit"):
        with contextlib.suppress(Exception):
            setattr(torch._dynamo.config, name, 512)
    rank = int(os.environ.get("RANK", "0"))
    world = int(os.environ.get("WORLD_SIZE", "1"))
    rows: list[dict[str, Any]] = []
    alive: list[Run] = []
    wraps = ("ddp", "fsdp") if c.both else ("fsdp",) if c.fsdp else ("ddp",)
    for values, wrap in product(SETS[c.sizes], wraps):
        c.fsdp = wrap == "fsdp"
        elapsed = time.perf_counter() - began
        late = elapsed > c.limit
        if world > 1:
            if not dist.is_initialized():
                torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
                dist.init_process_group("nccl")
            shared = torch.tensor([float(late)], device="cuda")
            dist.broadcast(shared, 0)
            late = bool(shared.item())
        if late:
            break
        sizes = dict(zip(SYMBOLS, values, strict=True))
        run = built(sizes, c)
        row: dict[str, Any] = {
            "k": len(rows), "sizes": sizes | {"p": world}, "compiled": c.compile,
            "recorded": c.record,
            "parallel": "none" if world == 1 else "fsdp" if c.fsdp else "ddp",
            "gpu": torch.cuda.get_device_name(), "torch": torch.__version__,
            "nccl": ".".join(map(str, torch.cuda.nccl.version())),
            "date": datetime.now(UTC).isoformat()[:19],
        }  # fmt: skip
        row["step_s"] = measured(run, c.rounds)
        if c.record:
            alive.append(run)
        row["elapsed_s"] = round(time.perf_counter() - began - elapsed, 2)
        rows.append(row)
        if rank == 0:
            print(json.dumps(row), flush=True)
            results.write(c.out / f"{c.tag}.json", rows)
        if not c.record:
            del run
            gc.collect()
            torch._dynamo.reset()
            torch.cuda.empty_cache()
    if c.record:
        if world > 1:
            dist.barrier()
        torch.cuda.cudart().cudaProfilerStart()
        time.sleep(0.5)
        for k, run in enumerate(alive):
            for mode in c.modes.split(","):
                recorded(run, k, mode)
        if world > 1:
            dist.barrier()
            time.sleep(0.2)
        torch.cuda.cudart().cudaProfilerStop()
    if world > 1:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
