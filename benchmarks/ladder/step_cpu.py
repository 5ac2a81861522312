"""One training step on a CPU: the trainer's NumPy against PyTorch eager, the same mathematics.

    python -m benchmarks.ladder.step_cpu                 # writes benchmarks/results/step_cpu.json

Each implementation runs in processes of its own (spinning BLAS threads of one library slow the
other down), taking turns, round after round; the ratio is taken within each round, so a machine
that others slow down slows both.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from benchmarks.common import folders, results
from benchmarks.common.processes import in_turn, module

RATE, REGULARIZATION = 0.01, 1e-4


def problem(sizes: argparse.Namespace):
    """Return images (B, D), labels (B,) and initial weights, the same for all."""
    rng = np.random.default_rng(0)
    d, h, c, b = sizes.inputs, sizes.hidden, sizes.classes, sizes.batch
    x = (rng.integers(0, 256, (b, d)) * (rng.random((b, d)) < 0.2) / 255).astype(sizes.dtype)
    return x, rng.integers(0, c, b), *(0.01 * rng.standard_normal(s) for s in ((h, d), (c, h)))


def numpy_step(sizes: argparse.Namespace):
    from trainer.backends.numpy import NumpyBackend
    from trainer.data import one_hot
    from trainer.networks.base import Network

    x, labels, w1, w2 = problem(sizes)
    backend = NumpyBackend()
    network = Network(backend, sizes.inputs, sizes.hidden, sizes.classes, sizes.dtype, len(x))
    network.parameters.W1[:], network.parameters.W2[:] = w1, w2
    y = one_hot(labels.astype(np.uint8), sizes.classes, sizes.dtype)
    losses = np.empty(len(x), sizes.dtype)

    def step() -> float:
        work = network.forward(x)
        network.loss_gradient(work, y, 1 / len(x), losses)
        network.backward_output(work)
        network.backward_hidden(x, work)
        network.step(RATE, REGULARIZATION)
        return float(losses.mean())

    return step


def torch_tensors(sizes: argparse.Namespace):
    import torch

    torch.set_num_threads(sizes.threads)
    x, labels, w1, w2 = problem(sizes)
    kind = getattr(torch, sizes.dtype)
    zeros = (torch.zeros(n, dtype=kind) for n in (sizes.hidden, sizes.classes))
    weights = (torch.tensor(w, dtype=kind) for w in (w1, w2))
    (b1, b2), (t1, t2) = zeros, weights
    return torch, torch.tensor(x), torch.tensor(labels), (t1, b1, t2, b2)


def torch_autograd_step(sizes: argparse.Namespace):
    """What a PyTorch user writes: modules, cross_entropy, SGD with weight decay."""
    torch, x, labels, (w1, b1, w2, b2) = torch_tensors(sizes)
    f = torch.nn.functional
    for tensor in (w1, b1, w2, b2):
        tensor.requires_grad_()
    decayed = {"params": [w1, w2], "weight_decay": REGULARIZATION}
    optimizer = torch.optim.SGD([decayed, {"params": [b1, b2]}], lr=RATE)

    def step() -> float:
        optimizer.zero_grad()
        loss = f.cross_entropy(f.linear(torch.sigmoid(f.linear(x, w1, b1)), w2, b2), labels)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def torch_manual_step(sizes: argparse.Namespace):
    """The same formulas written out in eager PyTorch, without autograd, in place where it can."""
    torch, x, labels, (w1, b1, w2, b2) = torch_tensors(sizes)
    y = torch.nn.functional.one_hot(labels, sizes.classes).to(x.dtype)

    def step() -> float:
        a1 = torch.addmm(b1, x, w1.T).sigmoid_()
        z2 = torch.addmm(b2, a1, w2.T)
        log_p = torch.log_softmax(z2, 1)
        loss = -(log_p * y).sum() / len(x)
        dz2 = log_p.exp_().sub_(y).div_(len(x))
        dw2, db2 = dz2.T @ a1, dz2.sum(0)
        dz1 = (dz2 @ w2).mul_(a1).mul_(1 - a1)
        dw1, db1 = dz1.T @ x, dz1.sum(0)
        for weight, gradient in ((w1, dw1), (w2, dw2)):
            weight.sub_(gradient.add_(weight, alpha=REGULARIZATION), alpha=RATE)
        b1.sub_(db1, alpha=RATE)
        b2.sub_(db2, alpha=RATE)
        return loss.item()

    return step


STEPS = {
    "numpy": numpy_step, "torch autograd": torch_autograd_step, "torch manual": torch_manual_step,
}  # fmt: skip


def work(sizes: argparse.Namespace) -> None:
    """Time one implementation in this process; print the median and the last loss as JSON."""
    step = STEPS[sizes.worker](sizes)
    for _ in range(sizes.warm_up):
        step()
    seconds = []
    for _ in range(sizes.steps):
        start = time.perf_counter()
        loss = step()
        seconds.append(time.perf_counter() - start)
    print(json.dumps({"seconds": statistics.median(seconds), "loss": loss}))


def busy_share() -> float:
    """Return the share of this machine's CPU time that others use during a second."""

    def read() -> tuple[int, int]:
        numbers = [int(n) for n in Path("/proc/stat").read_text().split("\n")[0].split()[1:]]
        return sum(numbers), numbers[3] + numbers[4]  # all, idle + waiting for disks

    (all_0, idle_0), _, (all_1, idle_1) = read(), time.sleep(1.0), read()
    return 1 - (idle_1 - idle_0) / max(1, all_1 - all_0)


def measure(name: str, arguments: list[str], threads: int, patience_s: float) -> dict[str, float]:
    until = time.monotonic() + patience_s
    while (busy := busy_share()) > 0.05 and time.monotonic() < until:
        pass
    env = {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    done = subprocess.run(
        module("ladder.step_cpu", "--worker", name, *arguments),
        cwd=folders.ROOT, capture_output=True, text=True, check=True, env=env,
    )  # fmt: skip
    return {**json.loads(done.stdout), "busy_before": busy}


def versions() -> dict[str, str]:
    import torch

    blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    mkl = torch.__config__.show().split("Math Kernel Library Version ")
    return {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "blas": f"{blas['name']} {blas['version']}",
        "torch": torch.__version__,
        "mkl": mkl[1].split()[0] if len(mkl) > 1 else "none",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    for name, value in (("inputs", 784), ("hidden", 512), ("classes", 10), ("batch", 3000),
                        ("threads", 2), ("warm-up", 5), ("steps", 25), ("rounds", 9)):  # fmt: skip
        add(f"--{name}", type=int, default=value)
    add("--patience", type=float, default=60, help="seconds to wait for an idle machine, each time")
    add("--dtype", default="float32", choices=("float32", "float64"))
    add("--worker", choices=STEPS)
    add("--out", type=Path, default=folders.RESULTS / "step_cpu.json")
    sizes = parser.parse_args()
    if sizes.worker:
        work(sizes)
        return
    shape = ("inputs", "hidden", "classes", "batch", "threads", "warm_up", "steps", "dtype")
    arguments = [a for n in shape for a in (f"--{n.replace('_', '-')}", str(getattr(sizes, n)))]
    measured = in_turn(
        {n: lambda n=n: measure(n, arguments, sizes.threads, sizes.patience) for n in STEPS},
        sizes.rounds,
    )
    losses = [run["loss"] for runs in measured.values() for run in runs]
    if max(losses) - min(losses) > 1e-3 * max(losses):
        sys.exit(f"the implementations disagree: losses {losses}")
    seconds = {name: [run["seconds"] for run in runs] for name, runs in measured.items()}
    rows = []
    for name, mine in seconds.items():
        ratios = sorted(ours / this for ours, this in zip(seconds["numpy"], mine, strict=True))
        rows.append({
            "implementation": name,
            "inputs": sizes.inputs, "hidden": sizes.hidden, "classes": sizes.classes,
            "batch": sizes.batch, "dtype": sizes.dtype, "threads": sizes.threads,
            "seconds_median": statistics.median(mine), "seconds_min": min(mine),
            "numpy_over_this_median": statistics.median(ratios),
            "numpy_over_this_min": ratios[0], "numpy_over_this_max": ratios[-1],
            "rounds": sizes.rounds,
        })  # fmt: skip
        print(f"{name:15} {1e3 * rows[-1]['seconds_median']:8.2f} ms   "
              f"numpy / this {rows[-1]['numpy_over_this_median']:.3f}")  # fmt: skip
    busiest = max(run["busy_before"] for runs in measured.values() for run in runs)
    record = {
        "command": results.command("ladder.step_cpu", sys.argv[1:]),
        "date": results.now(),
        "machine": {
            "processor": results.processor(), "cores": len(os.sched_getaffinity(0)),
            "system": platform.platform(),
        },
        "versions": versions(),
        "busiest_before_a_process": busiest, "rows": rows,
    }  # fmt: skip
    results.write(sizes.out, record)


if __name__ == "__main__":
    main()
