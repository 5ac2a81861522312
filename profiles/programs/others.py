"""Programs of other kinds than train.py's, to be profiled: `python others.py NAME`.

    nsys profile -t cuda,nvtx -s none --capture-range=cudaProfilerApi --capture-range-end=stop \
        -o R python others.py gan --truth truth.json

`lstm` is a language model of cuDNN's LSTM in FP32, with clipped gradients and SGD. `gan` is a DCGAN
with two optimizers, three backward passes a step, images from pageable memory and printed losses.
Both record their operators' sizes and name no steps. `streams` is a CuPy program on three streams
without any range (`nsys profile -t cuda,nvtx,osrt -s none`, without a capture range). So are `cg`,
conjugate gradients by CuPy whose norm the host reads in every 50th iteration, and `epochs`, a
PyTorch program that replays one CUDA graph a step, and evaluates and saves after every 40th.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Step = Callable[[], object]
EPOCH = 40


def lstm() -> tuple[Step, dict[str, Any]]:
    """A step of a language model; the FLOPs of its cells, which FlopCounterMode leaves out."""
    import torch
    import torch.nn.functional as F
    from torch import Tensor, nn

    words, width, layers, batch, length = 10000, 650, 2, 64, 35

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.out = nn.Embedding(words, width), nn.Linear(width, words)
            self.rnn, self.drop = nn.LSTM(width, width, layers, dropout=0.5), nn.Dropout(0.5)

        def forward(self, x: Tensor, h: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
            y, h = self.rnn(self.drop(self.embed(x)), h)
            return self.out(self.drop(y)), h

    model = Model().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    x = torch.randint(0, words, (length, batch), device="cuda")
    y = torch.randint(0, words, (length * batch,), device="cuda")
    state = [tuple(torch.zeros(layers, batch, width, device="cuda") for _ in range(2))]

    def step() -> None:
        h = tuple(s.detach() for s in state[0])
        optimizer.zero_grad()
        out, state[0] = model(x, h)
        F.cross_entropy(out.view(-1, words), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()

    cells = layers * 3 * 2 * 4 * width * 2 * width * length * batch
    return step, {"rnn_flops_by_hand": cells, "parameters": _count(model), "tokens": batch * length}


def gan() -> tuple[Step, dict[str, Any]]:
    """A step of a DCGAN: the discriminator on real and made images, then the generator."""
    import torch
    from torch import nn

    def up(a: int, b: int, stride: int, padding: int) -> list[nn.Module]:
        conv = nn.ConvTranspose2d(a, b, 4, stride, padding, bias=False)
        return [conv, nn.BatchNorm2d(b), nn.ReLU(True)]

    def down(a: int, b: int) -> list[nn.Module]:
        conv = nn.Conv2d(a, b, 4, 2, 1, bias=False)
        return [conv, nn.BatchNorm2d(b), nn.LeakyReLU(0.2, True)]

    generator = nn.Sequential(
        *up(100, 512, 1, 0), *up(512, 256, 2, 1), *up(256, 128, 2, 1), *up(128, 64, 2, 1),
        nn.ConvTranspose2d(64, 3, 4, 2, 1, bias=False), nn.Tanh(),
    ).cuda()  # fmt: skip
    judge = nn.Sequential(
        nn.Conv2d(3, 64, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, True), *down(64, 128),
        *down(128, 256), *down(256, 512), nn.Conv2d(512, 1, 4, 1, 0, bias=False),
    ).cuda()  # fmt: skip
    of_generator, of_judge = (
        torch.optim.Adam(m.parameters(), lr=2e-4, betas=(0.5, 0.999)) for m in (generator, judge)
    )
    real, loss = torch.randn(128, 3, 64, 64), nn.BCEWithLogitsLoss()

    def step() -> tuple[float, float]:
        x = real.cuda()
        judge.zero_grad()
        one, zero = torch.ones(128, device="cuda"), torch.zeros(128, device="cuda")
        a = loss(judge(x).view(-1), one)
        a.backward()
        fake = generator(torch.randn(128, 100, 1, 1, device="cuda"))
        b = loss(judge(fake.detach()).view(-1), zero)
        b.backward()
        of_judge.step()
        generator.zero_grad()
        c = loss(judge(fake).view(-1), one)
        c.backward()
        of_generator.step()
        return a.item() + b.item(), c.item()

    return step, {"parameters": _count(generator) + _count(judge), "images": 128}


def streams() -> tuple[Step, dict[str, Any]]:
    """A step of six parts on three streams: copy in, transform, multiply, copy out; then wait."""
    import cupy as cp
    import cupyx
    import numpy as np

    n, parts = 2048, 6
    saxpy = cp.ElementwiseKernel("T a, T x, T y", "T z", "z = a * x + sin(y)", "saxpy_sin")
    lanes = [cp.cuda.Stream(non_blocking=True) for _ in range(3)]
    host, back = ([cupyx.empty_pinned((n, n), np.float32) for _ in range(parts)] for _ in range(2))
    for block in host:
        block[:] = np.random.default_rng(0).random((n, n))
    w = cp.random.rand(n, n, dtype=cp.float32)
    device = [cp.empty((n, n), np.float32) for _ in range(parts)]

    def step() -> None:
        for k in range(parts):
            with lanes[k % 3]:
                device[k].set(host[k])
                y = cp.fft.ifft(cp.fft.fft(device[k], axis=1), axis=1).real
                saxpy(np.float32(2), y @ w, y).get(out=back[k], blocking=False)
        for lane in lanes:
            lane.synchronize()

    return step, {"gemm_flops_by_hand": parts * 2 * n**3, "bytes_copied": parts * 2 * n * n * 4}


def conjugate_gradients() -> tuple[Step, dict[str, Any]]:
    """An iteration for the five-point Laplacian of a square, by element-wise kernels."""
    import cupy as cp

    n, read_every = 1024, 50
    x = cp.linspace(0.0, 1.0, n)
    b = cp.sin(3 * cp.pi * x)[:, None] * cp.sin(2 * cp.pi * x)[None, :] / (n + 1) ** 2
    padded, product, found = cp.zeros((n + 2, n + 2)), cp.empty_like(b), cp.zeros_like(b)
    residual, direction = b.copy(), b.copy()
    state: dict[str, Any] = {"square": cp.vdot(residual, residual), "iteration": 0}

    def step() -> None:
        nonlocal direction, found, residual
        padded[1:-1, 1:-1] = direction
        cp.multiply(direction, 4.0, out=product)
        inner = slice(1, -1)
        for there in ((slice(-2), inner), (slice(2, None), inner),
                      (inner, slice(-2)), (inner, slice(2, None))):  # fmt: skip
            cp.subtract(product, padded[there], out=product)
        alpha = state["square"] / cp.vdot(direction, product)
        found += alpha * direction
        residual -= alpha * product
        square = cp.vdot(residual, residual)
        direction *= square / state["square"]
        direction += residual
        state["square"] = square
        state["iteration"] += 1
        if state["iteration"] % read_every == 0:
            print(state["iteration"], float(cp.sqrt(square)))

    return step, {"unknowns": n * n, "read_every": read_every}


def epochs() -> tuple[Step, dict[str, Any]]:
    """A replay of a step's graph on a batch made by the host; `evaluate` is what ends an epoch."""
    import tempfile

    import numpy as np
    import torch
    import torch.nn.functional as F
    from torch import nn
    from torch.utils.flop_counter import FlopCounterMode

    shape, width = (128, 8, 512), 96
    model = nn.Sequential(
        nn.Conv1d(8, width, 7, 2, 3), nn.ELU(), nn.Conv1d(width, width, 5, 2, 2), nn.ELU(),
        nn.ConvTranspose1d(width, width, 4, 2, 1), nn.ELU(), nn.ConvTranspose1d(width, 8, 4, 2, 1),
    ).cuda()  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), capturable=True)
    x, y = (torch.zeros(shape, device="cuda") for _ in range(2))
    pinned = [torch.empty(shape).pin_memory() for _ in range(2)]
    held = [torch.randn(shape) for _ in range(4)]
    random = np.random.default_rng(0)

    def train() -> None:
        optimizer.zero_grad()
        F.smooth_l1_loss(model(x), y).backward()
        optimizer.step()

    with FlopCounterMode(display=False) as counter:
        train()
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):
            train()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        train()

    def step() -> None:
        for host in pinned:
            host.copy_(torch.from_numpy(random.standard_normal(shape, np.float32)))
        for device, host in zip((x, y), pinned, strict=True):
            device.copy_(host, non_blocking=True)
        graph.replay()
        torch.cuda.synchronize()

    def evaluate() -> None:
        with torch.no_grad():
            print(sum(F.mse_loss(model(h.cuda()), h.cuda()).item() for h in held) / len(held))
        torch.save(model.state_dict(), Path(tempfile.gettempdir()) / "epochs.pt")

    return step, {"flop_counter_total": counter.get_total_flops(), "evaluate": evaluate}


def _count(model: Any) -> int:
    return sum(p.numel() for p in model.parameters())


def recorded(step: Step, steps: int) -> float:
    """Seconds of a step of PyTorch inside the profiler's capture, with the operators' sizes."""
    import torch

    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStart()
    with torch.autograd.profiler.emit_nvtx(record_shapes=True):
        start = time.perf_counter()
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
        seconds = (time.perf_counter() - start) / steps
    torch.cuda.cudart().cudaProfilerStop()
    return seconds


def alone(step: Step, steps: int, evaluate: Step | None) -> float:
    """Seconds of a step of a program that is recorded from its start to its end."""
    spent = 0.0
    for i in range(steps):
        start = time.perf_counter()
        step()
        spent += time.perf_counter() - start
        if evaluate and (i + 1) % EPOCH == 0:
            evaluate()
    return spent / steps


def in_capture(step: Step, steps: int) -> dict[str, Any]:
    """FLOPs and seconds of a step of PyTorch, without the profiler and in its capture."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        step()
    for _ in range(10):
        step()
    rounds = []
    for _ in range(5):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(5):
            step()
        torch.cuda.synchronize()
        rounds.append((time.perf_counter() - start) / 5)
    return {
        "flop_counter_total": counter.get_total_flops(),
        "step_s_bare": statistics.median(rounds),
        "step_s_profiled": recorded(step, steps),
    }


def main() -> None:
    whole = {"streams": (streams, 30), "cg": (conjugate_gradients, 300), "epochs": (epochs, 120)}
    programs = {"lstm": (lstm, 8), "gan": (gan, 6), **whole}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", choices=programs)
    parser.add_argument("--truth", type=Path)
    c = parser.parse_args()
    make, steps = programs[c.program]
    step, truth = make()
    if c.program in whole:
        evaluate = truth.pop("evaluate", None)
        for _ in range(3):
            step()
        truth["step_s_profiled"] = alone(step, steps, evaluate)
    else:
        truth |= in_capture(step, steps)
    if c.truth:
        c.truth.write_text(json.dumps({**truth, "steps": steps}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
