"""GPU utilization of the trainer before and after: NVML's time series, and GPU busy by nsys.

    python -m benchmarks.utilization --ranks 2

The settings of `RUNGS` train one after the other for --seconds each under perfmodel's NVML
recorder, without a profiler; the window is from the end of the first epoch, which compiles, to the
request to stop. Then each is profiled shortly, while the time lasts (--budget), for how busy the
GPU was; the page takes the ladder's reports of the same flags where there is none
(benchmarks.utilization.busy). Results go to benchmarks/results/utilization.json, series and
reports to benchmarks/results/utilization/ and profiles/utilization/. `--fake` rehearses with the
backend numpy and a sampler that knows no GPU.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import folders, gpus, results
from benchmarks.common.processes import ENVIRONMENT
from perfmodel.machines import gpu_samples
from perfmodel.machines.gpu_samples import NvmlSampler, Recorder, Series

RUNGS = {
    "document": ["--transport", "host"],
    "resident": ["--data-on", "device", "--transport", "nccl"],
    "graph": ["--data-on", "device", "--transport", "nccl", "--graph"],
    "fused": ["--data-on", "device", "--transport", "nccl", "--graph", "--gemm", "fused",
              "--math", "tf32x3"],
}  # fmt: skip
IMAGES = 120_000  # 40 batches an epoch: what happens between epochs is rare
BATCH = 3000
START_S = 15.0
STOP_S = 5.0
PROFILE_S = 8.0  # what a short profile takes, with its start and its export
SETTLED_S = 0.7  # NVML looks back up to a second


class Nothing:
    """A sampler without a GPU."""

    def sample(self) -> Sequence[gpu_samples.Reading]:
        """Return one GPU that tells nothing."""
        return [gpu_samples.Reading(0)]


class Epochs:
    """Reads the trainer's lines in a thread and notes when each epoch ended."""

    def __init__(self, process: subprocess.Popen[str], recorder: Recorder) -> None:
        self.at: list[float] = []
        self.first = threading.Event()
        self.lines: list[str] = []
        self._process, self._recorder = process, recorder
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("epoch "):
                self.at.append(self._recorder.elapsed_s)
                self.first.set()
            else:
                self.lines = [*self.lines[-20:], line]
        self.first.set()


def command(c: argparse.Namespace, flags: list[str], epochs: int, images: int) -> list[str]:
    """Return the trainer's command line."""
    if c.ranks == 1:
        flags = ["none" if flag in ("nccl", "host") else flag for flag in flags]
    train = [
        "-m", "trainer", "--data", "synthetic", "--train-size", str(images), "--batch-size",
        str(BATCH), "--epochs", str(epochs), "--evaluate-every", "0", "--backend",
        "numpy" if c.fake else "cupy", *flags,
    ]  # fmt: skip
    launch = ["mpirun", "--bind-to", "none", "-n", str(c.ranks)] if c.ranks > 1 else []
    return [*launch, sys.executable, *train]


def sampled(
    c: argparse.Namespace, name: str, flags: list[str], sampler: Any, kept: dict[str, Series]
) -> dict[str, Any]:
    """Train under the recorder; return means over the window, by GPU; keep all samples."""
    words = command(c, flags, 1_000_000, 12_000 if c.fake else IMAGES)
    with Recorder(sampler, c.period) as recorder:
        process = subprocess.Popen(
            words, cwd=folders.ROOT, env=ENVIRONMENT, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        epochs = Epochs(process, recorder)
        epochs.first.wait(START_S)
        began = recorder.elapsed_s + SETTLED_S
        time.sleep(c.seconds + SETTLED_S if epochs.at else 0)
        ended = recorder.elapsed_s
        end(process)
    if not epochs.at:
        return {"name": name, "error": "".join(epochs.lines)[-600:]}
    kept[name] = series = recorder.series()
    inside = [t for t in epochs.at if began <= t < ended]
    batches = (len(inside) - 1) * (12_000 if c.fake else IMAGES) // BATCH
    return {
        "name": name, "flags": flags, "ranks": c.ranks, "window_s": [began, ended],
        "batch_s": (inside[-1] - inside[0]) / batches if batches > 0 else None,
        "samples": len(series), "gpus": means(series.window(began, ended)),
    }  # fmt: skip


def end(process: subprocess.Popen[str]) -> None:
    """End the trainer at once: nothing of its result is needed.

    On SIGTERM mpirun kills its ranks a second later. SIGUSR1, after which they would end by
    themselves, did not reach the ranks of Open MPI 4.1.6 on the H200s: each setting took 15 s more.
    """
    for number in (signal.SIGTERM, signal.SIGKILL):
        process.send_signal(number)
        try:
            process.wait(STOP_S)
            return
        except subprocess.TimeoutExpired:
            continue


def means(series: Series) -> list[dict[str, Any]]:
    """Return the means of all counters, a row per GPU."""
    return [
        {"gpu": gpu, **{name: series.of(gpu).mean(name) for name in gpu_samples.COUNTERS}}
        for gpu in series.gpus
    ]


def profiled(c: argparse.Namespace, name: str, flags: list[str]) -> dict[str, Any]:
    """Profile a short run; the page's maker reads how busy the GPU was."""
    from profiles.collect import TRACE, keep, profile

    trace = [*TRACE, "--cuda-graph-trace=node"]
    trace += ["--gpu-metrics-devices=all", "--gpu-metrics-frequency=1000"] * c.gpu_metrics
    target = c.reports / f"{name}.sqlite.xz"
    with tempfile.TemporaryDirectory() as scratch:
        raw = Path(scratch) / "report"
        try:
            said = profile(trace, command(c, flags, 2, 60_000), raw, timeout_s=30, attempts=1)
        except SystemExit as error:
            return {"profile_error": str(error)[-600:]}
        c.reports.mkdir(parents=True, exist_ok=True)
        keep(raw, target)
    return {"report": target.name, "profile_command": said}


def attempt(action: Any) -> dict[str, Any]:
    """Run something; its failure is a row, too."""
    try:
        return action()
    except Exception as error:  # the other settings go on
        return {"error": f"{type(error).__name__}: {error}"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--ranks", type=int, default=2)
    add("--seconds", type=float, default=2.5, help="of training in every window")
    add("--budget", type=float, default=58.0, help="seconds in which profiles must end")
    add("--period", type=float, default=0.1, help="seconds between samples")
    add("--rungs", nargs="+", choices=list(RUNGS), default=list(RUNGS))
    add("--parts", nargs="+", choices=("sample", "profile"), default=["sample", "profile"])
    add("--gpu-metrics", action="store_true", help="let nsys sample GPU metrics, too")
    add("--fake", action="store_true", help="rehearse without a GPU")
    add("--out", type=Path, default=folders.RESULTS / "utilization.json")
    add("--series", type=Path, help="folder (utilization, beside --out)")
    add("--reports", type=Path, default=folders.PROFILES / "utilization")
    c = parser.parse_args()
    if not c.fake:
        gpus.require(c.ranks)
    sampler: Any = Nothing() if c.fake else NvmlSampler(range(c.ranks))
    gpu = None if c.fake else sampler.names()[0]
    before = results.read(c.out).get("rows", [])
    rows: dict[str, dict[str, Any]] = {row["name"]: row for row in before}
    series: dict[str, Series] = {}
    began, out = time.perf_counter(), c.out
    for kind in c.parts:
        for name in c.rungs:
            print(f"[{time.perf_counter() - began:5.1f} s] {kind} {name}", flush=True)
            flags = RUNGS[name]
            if kind == "sample":
                rows[name] = attempt(lambda n=name, f=flags: sampled(c, n, f, sampler, series))
                rows[name]["name"] = name
            elif c.budget - (time.perf_counter() - began) < PROFILE_S:
                print("   no time left: the ladder's reports stand in", flush=True)
            elif shutil.which("nsys"):
                rows.setdefault(name, {"name": name})
                rows[name] |= attempt(lambda n=name, f=flags: profiled(c, n, f))
            if "error" in rows.get(name, {}):
                print(rows[name]["error"], file=sys.stderr, flush=True)
            out = results.write(c.out, {
                "command": f"{results.command('utilization')} --ranks {c.ranks}",
                "date": results.today(), "gpu": gpu,
                "rows": [rows[name] for name in RUNGS if name in rows],
            })  # fmt: skip
            if name in series:
                folder = c.series or out.parent / "utilization"
                folder.mkdir(parents=True, exist_ok=True)
                (folder / f"{name}.csv").write_text(gpu_samples.to_csv(series.pop(name)))
    print(f"[{time.perf_counter() - began:5.1f} s] {out}")


if __name__ == "__main__":
    main()
