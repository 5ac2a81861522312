"""The strongest PyTorch peers, whole steps captured into CUDA graphs; and all peers by name."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.nn import functional

from benchmarks.ladder import torch_peers as peers
from benchmarks.ladder.torch_peers import Ddp, Net, Peer, Problem


class Graph(Peer):
    """A whole step per CUDA graph over flat buffers, one graph per batch: nothing is copied in.

    Here forward and backward are the module's and autograd's; the gradients are gathered into one
    buffer, all-reduced once, and applied by the fused optimizer.
    """

    def _make(self) -> None:
        problem = self.problem
        self._flat = problem.initial.clone()
        self._gradients = torch.zeros_like(self._flat)
        self._replays: list[Callable[[], None]] = []
        self._allocate()
        if problem.device.type != "cuda":
            return
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for index in peers.first_of_each_shape(problem):
                for _ in range(peers.WARM_UP):
                    self._body(index)
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        gc.collect()
        gc.disable()  # what it frees, a capture would record
        try:
            self._capture(side)
        finally:
            gc.enable()
        self._flat.copy_(problem.initial)

    def _capture(self, side: torch.cuda.Stream) -> None:
        pool = None
        for index in range(len(self.problem.x)):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.stream(side):  # torch.cuda.graph would collect garbage every time
                # other threads (NCCL's watchdog) may query events meanwhile
                graph.capture_begin(pool=pool, capture_error_mode="thread_local")
                try:
                    self._body(index)
                finally:
                    graph.capture_end()
            pool = graph.pool()
            self._replays.append(graph.replay)

    def _step(self, index: int) -> None:
        if self._replays:
            self._replays[index]()
        else:
            self._body(index)

    def _allocate(self) -> None:
        problem = self.problem
        self._net = Net(problem)
        gradients = problem.views(self._gradients)
        views = problem.views(self._flat)
        for parameter, view, gradient in zip(self._net.parameters(), views, gradients, strict=True):
            parameter.data, parameter.grad = view, gradient
        self._optimizer = self._net.optimizer(problem.config)

    def _body(self, index: int) -> None:
        problem = self.problem
        loss = self._net(problem.x[index], problem.labels[index])
        share = self._factors[index] / problem.ranks  # a sum over the ranks follows
        scaled = loss if share == 1 else loss * share
        found = torch.autograd.grad(scaled, list(self._net.parameters()))
        torch.cat([g.view(-1) for g in found], out=self._gradients)
        if problem.ranks > 1:
            dist.all_reduce(self._gradients)
        self._optimizer.step()
        self._losses[index].copy_(loss.detach())

    def parameters(self) -> np.ndarray:
        return self._flat.cpu().numpy()


class ManualGraph(Graph):
    """Forward and backward as out= operations on buffers allocated once; no autograd.

    The gradients are computed times -rate (the factor is in the gradient of the loss), so that the
    step is one kernel over the flat buffers, p <- g + keep p with keep = 1 - rate decay on weights
    and 1 on biases.

    Parameters
    ----------
    branches : bool
        What nothing on the step's longest chain waits for runs on a branch of the graph.
    fused : bool
        Chains of element-wise operations are fused by torch.compile.
    chunks : int
        All-reduces: each but the last runs behind the next rows of W1's gradient.
    """

    def __init__(
        self, problem: Problem, math: str, *, branches: bool = False, fused: bool = False,
        chunks: int = 1,
    ) -> None:  # fmt: skip
        super().__init__(problem, math)
        self._branches, self._fused, self._chunks = branches, fused, chunks

    def _allocate(self) -> None:
        problem, config, device = self.problem, self.problem.config, self.problem.device
        rows = max(len(x) for x in problem.x)
        self._a1, self._d1 = (torch.empty(rows, config.hidden_size, device=device) for _ in "ad")
        self._z2, self._log_p = (torch.empty(rows, config.num_classes, device=device) for _ in "zp")
        self._scales = [-config.learning_rate / size for size in problem.sizes]
        self._targets = [
            functional.one_hot(labels, config.num_classes).float().mul_(-scale)
            for labels, scale in zip(problem.labels, self._scales, strict=True)
        ]
        self._keep = torch.ones_like(self._flat)
        for weights in problem.views(self._keep)[::2]:
            weights.fill_(1 - config.learning_rate * config.regularization)
        self._side = None
        if device.type == "cuda" and self._branches:
            self._side = torch.cuda.Stream()
        self._output: Any = None
        if self._fused:
            peers.allow_recompilation()
            self._output = torch.compile(fused_output, dynamic=False)

    @torch.no_grad()
    def _body(self, index: int) -> None:
        problem, rows = self.problem, len(self.problem.x[index])
        x = problem.x[index]
        w1, b1, _, _ = problem.views(self._flat)
        g1, gb1, g2, gb2 = problem.views(self._gradients)
        a1, d1, z2 = self._a1[:rows], self._d1[:rows], self._z2[:rows]
        torch.addmm(b1, x, w1.T, out=a1).sigmoid_()  # cuBLASLt adds the bias
        self._output_gradient(index, a1, z2)
        with self._aside():
            torch.mm(z2.T, a1, out=g2)
            torch.sum(z2, 0, out=gb2)
        self._hidden_gradient(a1, z2, d1)
        with self._aside():
            torch.sum(d1, 0, out=gb1)
        self._last_product(d1, x, g1)
        torch.addcmul(self._gradients, self._keep, self._flat, out=self._flat)

    def _output_gradient(self, index: int, a1: torch.Tensor, z2: torch.Tensor) -> None:
        """Z2 <- scale (softmax(a1 W2^T + b2) - y); the batch's loss goes to `_losses`."""
        _, _, w2, b2 = self.problem.views(self._flat)
        target, scale, loss = self._targets[index], self._scales[index], self._losses[index]
        torch.addmm(b2, a1, w2.T, out=z2)
        if self._output is not None:
            self._output(target, scale, z2, loss)
            return
        log_p = self._log_p[: len(z2)]
        torch.log_softmax(z2, 1, out=log_p)
        with self._aside():
            torch.dot(log_p.view(-1), target.view(-1), out=loss)
        torch.add(target, torch.exp(log_p, out=z2), alpha=scale, out=z2)

    def _hidden_gradient(self, a1: torch.Tensor, z2: torch.Tensor, d1: torch.Tensor) -> None:
        """D1 <- (z2 W2) a1 (1 - a1)."""
        _, _, w2, _ = self.problem.views(self._flat)
        torch.mm(z2, w2, out=d1)
        torch.ops.aten.sigmoid_backward.grad_input(d1, a1, grad_input=d1)

    def _last_product(self, d1: torch.Tensor, x: torch.Tensor, g1: torch.Tensor) -> None:
        """Compute dW1 = dz1^T x from its last rows to its first, all-reducing what is complete."""
        hidden, inputs = g1.shape
        end, waiting = self._gradients.numel(), []
        if self._chunks == 1:
            torch.mm(d1.T, x, out=g1)
            self._join()
            if self.problem.ranks > 1:
                dist.all_reduce(self._gradients)
            return
        for part in reversed(range(self._chunks)):
            low, high = hidden * part // self._chunks, hidden * (part + 1) // self._chunks
            torch.mm(d1[:, low:high].T, x, out=g1[low:high])
            self._join()
            segment = self._gradients[low * inputs : end]
            end = low * inputs
            if self.problem.ranks > 1:
                waiting.append(dist.all_reduce(segment, async_op=True))
        for work in waiting:
            work.wait()

    @contextmanager
    def _aside(self) -> Iterator[None]:
        """Run on the branch, after what is done so far."""
        if self._side is None:
            yield
            return
        self._side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._side):
            yield

    def _join(self) -> None:
        """Wait for the branch."""
        if self._side is not None:
            torch.cuda.current_stream().wait_stream(self._side)


def fused_output(target: torch.Tensor, scale: float, z2: torch.Tensor, loss: torch.Tensor) -> None:
    """Compute z2 <- scale softmax(z2) + target and the loss, for a compiler."""
    log_p = torch.log_softmax(z2, 1)
    loss.copy_((log_p * target).sum())
    z2.copy_(torch.exp(log_p) * scale + target)


@dataclass(frozen=True)
class Kind:
    """How a peer is made, and what it needs.

    Attributes
    ----------
    graph : bool
        A whole step is one CUDA graph: a candidate for the strongest peer.
    compiled : bool
        torch.compile is used: counts against the budget of compilation.
    ranks : int
        Fewest ranks for which it differs from the others.
    """

    make: Callable[[Problem, str], Peer]
    text: str
    graph: bool = False
    compiled: bool = False
    ranks: int = 1


def kinds() -> dict[str, Kind]:
    """Return every peer by name."""

    def manual(**options: Any) -> Callable[[Problem, str], Peer]:
        return lambda problem, math: ManualGraph(problem, math, **options)

    return {
        "ddp_eager": Kind(Ddp, "DDP, eager"),
        "ddp_compiled": Kind(
            lambda p, m: Ddp(p, m, compiled=True), "DDP under torch.compile", compiled=True
        ),
        "graph": Kind(Graph, "whole-step CUDA graph, autograd", graph=True),
        "graph_manual": Kind(
            manual(), "whole-step CUDA graph, hand-written backward", graph=True
        ),
        "graph_branches": Kind(
            manual(branches=True),
            "the same with small products on a parallel branch", graph=True,
        ),
        "graph_compiled": Kind(
            manual(branches=True, fused=True),
            "the same with element-wise chains fused by torch.compile", graph=True, compiled=True,
        ),
        "graph_overlap": Kind(
            manual(branches=True, chunks=2),
            "the same with the all-reduce in two parts behind the last product", graph=True,
            ranks=2,
        ),
    }  # fmt: skip
