"""Trains ResNet-18 and ResNet-50: time, memory, and Nsight Compute's counters of one step.

    python -m benchmarks.resnet --part time counters tuned   # one GPU; ncu for the counters
    python -m benchmarks.resnet --part ddp2                  # two GPUs; ddp4: four
    python -m benchmarks.resnet --part theory                # torch, no GPU
    python -m benchmarks.resnet --document                   # docs/resnet.md and its pictures

Every part runs in processes of its own under a time limit, keeps what it has measured when the
limit ends it, and replaces only its own part of benchmarks/results/resnet.json. What ncu counted
lies beside it as CSV, xz-compressed, and is summed up when the page is made.

    time       every batch and math, cudnn.benchmark off (cuDNN's heuristics choose), NCHW
    tuned      cudnn.benchmark on (cuDNN tries every algorithm), channels last
    counters   one step per cell, kernel replay, caches flushed before each kernel; when the time is
               over the worker ends itself amid a step, and ncu prints what it has
    ddp2, ddp4 two or four ranks: the step alone on each GPU and under DistributedDataParallel, in
               turn, with the batches per GPU of the DDP study (docs/scaling.md)
    theory     parameters, and FLOPs as torch counts them

Times are medians of interleaved repeats, without a profiler; events on the GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import json
import lzma
import os
import shutil
import signal
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.common import folders, gpus, results
from benchmarks.common.ncu import Failed, collect
from benchmarks.common.processes import module

RESULTS: Final = folders.RESULTS / "resnet.json"
NETS: Final = ("resnet18", "resnet50")
PARTS: Final = ("time", "tuned", "counters", "ddp2", "ddp4", "theory")
CELL: Final = ("net", "batch", "math", "mode")
GRACE_S: Final = 25.0  # after the time in which measurements may begin: the last one, ncu's report

METRICS: Final = (
    "gpu__time_duration.sum", "dram__bytes_read.sum", "dram__bytes_write.sum",
    "lts__t_bytes.sum", "l1tex__t_bytes.sum",
    *(f"smsp__sass_thread_inst_executed_op_f{op}_pred_on.sum" for op in ("add", "mul", "fma")),
    "sm__ops_path_tensor_src_tf32_dst_fp32.sum",
)  # fmt: skip
"""What steps in fp32 and TF32 need: every metric more is another pass over every kernel."""


@dataclass(frozen=True)
class Plan:
    """What one process of a part runs, and for how long it may begin measurements."""

    net: str
    flags: tuple[str, ...]
    seconds: float


def plans(part: str, tiny: bool) -> list[Plan]:
    """Return the processes of a part; `tiny` is a rehearsal on any machine."""
    batches, maths = ("2", "10", "32", "128", "256"), ("fp32", "tf32", "bf16", "fp16")
    # The first cell of a process is its cold one: the study's ten images.
    every = ("--batches", "10", "2", *batches[2:], "--maths", *maths)
    # Trying every algorithm takes 10 s (ResNet-18) to 25 s a math.
    large = ("--batches", "128", "--maths", "tf32", "bf16", "--rounds", "5", "--autotune")
    large += ("--channels-last",)
    # A step is hundreds of kernels, each run once per pass: the study's ten images, nothing more.
    study = ("--batches", "10", "--maths", "fp32", "tf32")
    found = {
        "time": [Plan(n, every, s) for n, s in zip(NETS, (20, 30), strict=True)],
        "tuned": [Plan(n, large, s) for n, s in zip(NETS, (25, 55), strict=True)],
        "counters": [Plan(n, study, s) for n, s in zip(NETS, (120, 210), strict=True)],
        "ddp": [
            Plan("resnet18", ("--batches", "32", "128", "512", "--maths", "fp32", "tf32"), 22),
            Plan("resnet50", ("--batches", "32", "128", "--maths", "fp32", "tf32", "bf16"), 22),
        ],
        "theory": [Plan(",".join(NETS), (), 60)],
    }[kind(part)]
    if not tiny:
        return found
    small = ("--batches", "2", "--maths", "fp32", "bf16", "--image", "32", "--rounds", "2")
    return [Plan(p.net, () if part == "theory" else small, p.seconds) for p in found]


def kind(part: str) -> str:
    """Return what the worker calls a part."""
    return part.rstrip("24")


def ranks_of(part: str) -> int:
    """Return how many processes, one a GPU, measure a part together."""
    return int(part.removeprefix("ddp")) if kind(part) == "ddp" else 1


# --- running


def run(commands: Sequence[Sequence[str]], envs: Sequence[dict[str, str]], limit_s: float) -> str:
    """Run processes side by side; return '' or why they did not all end well. None is left."""
    with tempfile.TemporaryFile("w+", errors="replace") as said:
        begun = [
            subprocess.Popen(
                command, cwd=folders.ROOT, env={**os.environ, "LC_ALL": "C", **env}, stdout=said,
                stderr=subprocess.STDOUT, start_new_session=True,
            )
            for command, env in zip(commands, envs, strict=True)
        ]  # fmt: skip
        end, problem = time.monotonic() + limit_s, ""
        while any(p.poll() is None for p in begun):
            if any(p.poll() for p in begun):
                time.sleep(2)  # the others may be saying why
                break
            if time.monotonic() > end:
                problem = f"ended after {limit_s:.0f} s"
                break
            time.sleep(0.1)
        for process in begun:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        said.seek(0)
        text = said.read()
    print(text[-3000:].rstrip(), flush=True)
    codes = [p.returncode for p in begun]
    if not problem and any(codes):
        problem = f"exit codes {codes}: {text[-1500:]}"
    return problem


def worker(part: str, plan: Plan, rows: Path) -> list[str]:
    """Return the command of one process."""
    words = ("--part", kind(part), "--net", plan.net, "--seconds", plan.seconds, "--rows", rows)
    return module("resnet.worker", *words, *plan.flags)


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return what a process wrote; a line that was cut off is not there."""
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        with contextlib.suppress(json.JSONDecodeError):
            rows.append(json.loads(line))
    return rows


def keep(text: str, path: Path) -> int:
    """Write the needed columns of ncu's table, xz-compressed; return the number of kernels."""
    head = text.find('"ID"')
    if head < 0:
        print(f"ncu gave no table: {text[-1500:]}", flush=True)
        return 0
    header, *rows = list(csv.reader(io.StringIO(text[head:])))
    wanted = [i for i, name in enumerate(header) if name in ("ID", "Kernel Name", *METRICS)]
    kept = io.StringIO()
    write = csv.writer(kept, quoting=csv.QUOTE_ALL, lineterminator="\n").writerow
    for row in (header, *rows):
        if len(row) == len(header):
            write([row[i][:160] for i in wanted])
    path.write_bytes(lzma.compress(kept.getvalue().encode(), preset=9))
    return len(rows) - 1


def count(ncu: str, command: list[str], limit_s: float) -> tuple[str, list[str], str]:
    """Run under ncu between cudaProfilerStart and Stop, clocks as they are.

    Returns what was printed, the metrics that are known, and '' or what went wrong.
    """
    words = [
        ncu, "--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none",
        "--cache-control", "all", "--replay-mode", "kernel", "--profile-from-start", "off",
    ]  # fmt: skip
    try:
        return (*collect(words, command, METRICS, limit_s), "")
    except FileNotFoundError:
        raise SystemExit(
            f"--part counters: expected Nsight Compute; got no {ncu!r}; give --ncu PATH, or leave "
            "this part out"
        ) from None
    except Failed as problem:
        return problem.printed, list(METRICS), str(problem)


def part_of(part: str, args: argparse.Namespace) -> dict[str, Any]:
    """Run a part; return its rows, how it went, and what it ran with."""
    began, rows, problems = time.monotonic(), [], []
    more: dict[str, Any] = {"tables": {}} if part == "counters" else {}
    with tempfile.TemporaryDirectory() as folder:
        for plan in plans(part, args.tiny):
            path = Path(folder) / f"{plan.net}.jsonl"
            command, limit_s = worker(part, plan, path), plan.seconds + GRACE_S
            print(f"== {part} {plan.net} ({time.monotonic() - began:.0f} s)", flush=True)
            if part == "counters":
                text, more["metrics"], problem = count(args.ncu, command, limit_s)
                table = args.out.with_name(f"{args.out.stem}_ncu_{plan.net}.csv.xz")
                more["tables"][plan.net] = {"file": table.name, "kernels": keep(text, table)}
            else:
                envs = environments(ranks_of(part))
                problem = run([command] * len(envs), envs, limit_s)
            problems.append(problem)
            rows += read_rows(path)
    about = next((r["about"] for r in rows if "about" in r), {})
    kept = [r for r in rows if "about" not in r]
    plain = kind(part) in ("counters", "theory")
    return {
        "date": results.now(),
        "command": results.command("resnet", ["--part", part]),
        "seconds": round(time.monotonic() - began, 1), "problems": [p for p in problems if p],
        "about": about, **more, "rows": kept if plain else medians(kept),
    }  # fmt: skip


def environments(ranks: int) -> list[dict[str, str]]:
    """Return what torch.distributed reads, for each of some ranks; nothing for one."""
    if ranks == 1:
        return [{}]
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(ranks)}
    return [{**common, "RANK": str(r), "LOCAL_RANK": str(r)} for r in range(ranks)]


def medians(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one row per cell: medians over rounds, every step's time, memory, the first step."""
    cells: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        cells.setdefault(tuple(row[k] for k in CELL), []).append(row)
    found = []
    for key, of_cell in cells.items():
        row: dict[str, Any] = dict(zip(CELL, key, strict=True))
        samples = [r for r in of_cell if r.get("round", -1) >= 0]
        for first in of_cell:
            if first.get("round", -1) < 0:
                row |= {k: v for k, v in first.items() if k not in (*CELL, "round")}
        names = [k for k in (samples[0] if samples else ()) if k.endswith("_s")]
        row |= {k: statistics.median(s[k] for s in samples) for k in names}
        row["samples_s"] = [s["total_s"] for s in samples]
        found.append(row)
    return found


def main() -> None:
    parser = results.parser(__doc__, "docs/resnet.md", RESULTS)
    add = parser.add_argument
    add("--part", nargs="+", default=(), choices=PARTS)
    add("--tiny", action="store_true", help="rehearse with small images")
    add("--ncu", default=shutil.which("ncu") or "ncu")
    args = parser.parse_args()
    if not args.tiny and set(args.part) - {"theory"}:
        gpus.require(max(ranks_of(part) for part in args.part))
    results.run_parts(args.part, args.out, lambda part: part_of(part, args))
    if args.document:
        from benchmarks.resnet import report

        report.write(args.out)


if __name__ == "__main__":
    main()
