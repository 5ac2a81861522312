r"""PyTorch training steps to be profiled: transformers and CNNs, healthy or with a fault.

    nsys profile -t cuda,nvtx --cuda-graph-trace=node --capture-range=cudaProfilerApi \
        --capture-range-end=stop -o R python train.py gpt --shapes --truth truth.json

With `-m torch.distributed.run --nproc_per_node 2` before the file the model is trained by DDP, or
FSDP with --fsdp, or with --tensor-parallel: the ranks share the heads and the inner neurons of
every block (M. Shoeybi et al., Megatron-LM, 2019, arXiv:1909.08053, section 3); embeddings and head
are whole on each. Only the profiled steps lie inside the profiler's capture. The truth holds
FlopCounterMode's count of one step (of one rank's shard) and the median time of a step without a
profiler.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

FAULTS = ("healthy", "item", "pageable", "straggler", "loop_optimizer", "late_allreduce", "fp32",
          "dataloader", "empty_cache")  # fmt: skip

OPTIMIZERS = ("fused", "foreach", "loop")


def flags() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="gpt, llama, bert, or a model of torchvision")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--kv-heads", type=int, default=0, help="of llama; all heads by default")
    parser.add_argument("--vocabulary", type=int, default=8192)
    parser.add_argument("--length", type=int, default=256, help="tokens, or pixels of an edge")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--fault", choices=FAULTS, default="healthy")
    parser.add_argument("--shapes", action="store_true", help="record the operators' sizes")
    parser.add_argument("--annotate", action="store_true", help="a range around every module")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument(
        "--compile-loss", action="store_true", help="with the loss inside of what is compiled"
    )
    parser.add_argument("--fsdp", action="store_true")
    parser.add_argument(
        "--fsdp-autocast", action="store_true",
        help="FSDP of float32 parameters under autocast, not of parameters gathered in bfloat16",
    )  # fmt: skip
    parser.add_argument("--accumulate", type=int, default=1, help="micro-batches of the batch")
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="fused", help="of AdamW")
    parser.add_argument("--tensor-parallel", action="store_true", help="of gpt")
    parser.add_argument("--name", default="step %d", help="of a step's range; none: no ranges")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument(
        "--timed", action="store_true", help="by perfmodel.RecordSteps, which marks the report"
    )
    parser.add_argument("--truth", type=Path)
    parser.add_argument("--kineto", type=Path, help="record by torch.profiler, into *_rankN.json")
    return parser.parse_args()


@contextlib.contextmanager
def nvtx_range(name: str) -> Iterator[None]:
    torch.cuda.nvtx.range_push(name)
    yield
    torch.cuda.nvtx.range_pop()


class ToShards(torch.autograd.Function):
    """Where a shared part begins: nothing forward, the sum of the shards' gradients backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        gradient = gradient.contiguous()
        dist.all_reduce(gradient)
        return gradient


class FromShards(torch.autograd.Function):
    """Where it ends: the sum of the shards' outputs forward, nothing backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.contiguous()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


class Sharded(nn.Module):
    """A part that all ranks compute a share of; its last linear layer's bias is added once."""

    def __init__(self, part: nn.Module, width: int) -> None:
        super().__init__()
        self.part, self.bias = part, nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        return FromShards.apply(self.part(ToShards.apply(x))) + self.bias


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, kv_heads: int, shards: int = 1) -> None:
        super().__init__()
        self.size = width // heads
        self.heads, self.kv_heads = heads // shards, kv_heads // shards
        self.query = nn.Linear(width, self.heads * self.size)
        self.key_value = nn.Linear(width, 2 * self.kv_heads * self.size)
        self.out = nn.Linear(self.heads * self.size, width, bias=shards == 1)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q = self.query(x).view(batch, length, self.heads, self.size).transpose(1, 2)
        kv = self.key_value(x).view(batch, length, 2, self.kv_heads, self.size)
        k, v = kv.permute(2, 0, 3, 1, 4)
        grouped = self.kv_heads != self.heads
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
        return self.out(y.transpose(1, 2).reshape(batch, length, -1))


class Gelu(nn.Module):
    def __init__(self, width: int, shards: int = 1) -> None:
        super().__init__()
        inner = 4 * width // shards
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width, bias=shards == 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


class SwiGlu(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        inner = (8 * width // 3 + 63) // 64 * 64
        self.gate, self.up = (
            nn.Linear(width, inner, bias=False),
            nn.Linear(width, inner, bias=False),
        )
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self, c: argparse.Namespace) -> None:
        super().__init__()
        llama = c.model == "llama"
        norm = nn.RMSNorm if llama else nn.LayerNorm
        self.first, self.second = norm(c.width), norm(c.width)
        heads = c.heads, (c.kv_heads if llama else 0) or c.heads
        if c.tensor_parallel:
            shards = dist.get_world_size()
            self.attention = Sharded(Attention(c.width, *heads, shards), c.width)
            self.mlp = Sharded(Gelu(c.width, shards), c.width)
            return
        self.attention = Attention(c.width, *heads)
        self.mlp = SwiGlu(c.width) if llama else Gelu(c.width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.first(x))
        return x + self.mlp(self.second(x))


class Transformer(nn.Module):
    def __init__(self, c: argparse.Namespace) -> None:
        super().__init__()
        self.tokens = nn.Embedding(c.vocabulary, c.width)
        self.places = nn.Embedding(c.length, c.width)
        self.blocks = nn.ModuleList(Block(c) for _ in range(c.layers))
        self.norm = nn.LayerNorm(c.width)
        self.head = nn.Linear(c.width, c.vocabulary, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.tokens(x) + self.places(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def problem(
    c: argparse.Namespace, device: torch.device
) -> tuple[nn.Module, Tensor, Callable[[Any], Tensor]]:
    """Model, inputs and loss."""
    if c.model in ("gpt", "llama", "bert"):
        x = torch.randint(0, c.vocabulary, (c.batch, c.length), device=device)
        y = torch.randint(0, c.vocabulary, (c.batch * c.length,), device=device)
        if c.model == "bert":
            from transformers import BertConfig, BertModel

            config = BertConfig(
                vocab_size=c.vocabulary, hidden_size=c.width, num_hidden_layers=c.layers,
                num_attention_heads=c.heads, intermediate_size=4 * c.width,
                max_position_embeddings=c.length,
            )  # fmt: skip
            return BertModel(config), x, lambda out: out.last_hidden_state.float().square().mean()
        loss = lambda out: F.cross_entropy(out.view(-1, c.vocabulary).float(), y)  # noqa: E731
        return Transformer(c), x, loss
    import torchvision

    x = torch.randn(c.batch, 3, c.length, c.length, device=device)
    x = x.to(memory_format=torch.channels_last)
    y = torch.randint(0, 1000, (c.batch,), device=device)
    model = getattr(torchvision.models, c.model)(weights=None)
    return (
        model.to(memory_format=torch.channels_last),
        x,
        lambda out: F.cross_entropy(out.float(), y),
    )


class Run:
    """One rank: its model, optimizer, and a training step."""

    def __init__(self, c: argparse.Namespace) -> None:
        self.c = c
        self.rank, self.world = (
            int(os.environ.get("RANK", "0")),
            int(os.environ.get("WORLD_SIZE", "1")),
        )
        self.device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(self.device)
        torch.manual_seed(0)
        if self.world > 1 and not dist.is_initialized():
            dist.init_process_group("nccl", device_id=self.device)
        tf32 = c.fault != "fp32"
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
        self.amp = tf32 and (c.fsdp_autocast or not c.fsdp)
        model, self.x, self.loss = problem(c, self.device)
        self.raw = model.to(self.device)
        self.parameters = sum(p.numel() for p in self.raw.parameters())
        if c.annotate:
            import perfmodel

            perfmodel.annotate(self.raw)
        self.model = self.raw if self.world == 1 else self.distributed()
        self.run = torch.compile(self.model) if c.compile else self.model
        self.whole = torch.compile(lambda x: self.loss(self.model(x))) if c.compile_loss else None
        kind = "loop" if c.fault == "loop_optimizer" else c.optimizer
        self.optimizer = torch.optim.AdamW(
            self.raw.parameters(), lr=1e-4, fused=kind == "fused", foreach=kind == "foreach"
        )
        self.big = torch.randn(120_000_000) if c.fault == "pageable" else None

    def distributed(self) -> nn.Module:
        if self.c.tensor_parallel:
            return self.raw
        if not self.c.fsdp:
            return nn.parallel.DistributedDataParallel(self.raw, device_ids=[self.device.index])
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        kept = self.c.fsdp_autocast
        policy = MixedPrecisionPolicy(param_dtype=None if kept else torch.bfloat16)
        for block in self.raw.blocks:
            fully_shard(block, mp_policy=policy)
        fully_shard(self.raw, mp_policy=policy)
        return self.raw

    def step(self, model: nn.Module, phase: Callable[[str], Any] = contextlib.nullcontext) -> None:
        """One training step; `phase` makes the range around each of its phases."""
        fault = self.c.fault

        with phase("data"):
            if fault == "dataloader":
                np.sort(np.random.default_rng(0).random(3_000_000))
            if self.big is not None:
                self.big.to(self.device)
        late = fault == "late_allreduce" and self.world > 1
        ddp = isinstance(self.model, nn.parallel.DistributedDataParallel)
        for left in reversed(range(self.c.accumulate)):
            apart = late or (ddp and left > 0)
            with self.model.no_sync() if apart else contextlib.nullcontext():
                with phase("forward"):
                    if fault == "straggler" and self.rank == 1:
                        time.sleep(0.020)
                    with torch.autocast("cuda", dtype=torch.bfloat16, enabled=self.amp):
                        loss = self.whole(self.x) if self.whole else self.loss(model(self.x))
                    if fault == "item":
                        loss.item()
                with phase("backward"):
                    loss.backward()
                    for p in self.raw.parameters() if late else ():
                        dist.all_reduce(p.grad)
                        p.grad /= self.world
        with phase("optimizer"):
            for p in self.raw.parameters() if fault == "item" else ():
                p.grad.norm().item()
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            if fault == "empty_cache":
                torch.cuda.empty_cache()

    def count_flops(self) -> dict[str, Any]:
        from torch.utils.flop_counter import FlopCounterMode

        try:
            with FlopCounterMode(display=False) as counter:
                self.step(self.raw)
        except AssertionError as error:  # it knows no grouped-query attention
            return {"flop_counter_total": None, "flop_counter_error": str(error)}
        counts = counter.get_flop_counts().get("Global", {})
        return {
            "flop_counter_total": counter.get_total_flops(),
            "flop_counter_by_op": {str(op): n for op, n in counts.items()},
        }

    def bare_seconds(self) -> float:
        """Median over five rounds of the time of a step without a profiler."""
        rounds = []
        for _ in range(5):
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(5):
                self.step(self.run)
            torch.cuda.synchronize()
            rounds.append((time.perf_counter() - start) / 5)
        return sorted(rounds)[2]

    def timed(self) -> None:
        """The steps that Nsight Systems records, after others that are timed."""
        from perfmodel import RecordSteps

        first = 10 + 25
        record = RecordSteps(warmup=10, timed=25, steps=self.c.steps)
        with contextlib.ExitStack() as held:
            for k in range(first + self.c.steps):
                if self.c.shapes and k == first:
                    held.enter_context(torch.autograd.profiler.emit_nvtx(record_shapes=True))
                with record:
                    self.step(self.run, nvtx_range)

    def profiled(self) -> None:
        """The steps that Nsight Systems records."""
        named = contextlib.nullcontext if self.c.name == "none" else nvtx_range
        self.meet()
        torch.cuda.cudart().cudaProfilerStart()
        shapes = torch.autograd.profiler.emit_nvtx(record_shapes=True)
        with shapes if self.c.shapes else contextlib.nullcontext():
            for k in range(self.c.steps):
                with named(self.step_name(k)):
                    self.step(self.run, named)
            torch.cuda.synchronize()
        self.meet()
        torch.cuda.cudart().cudaProfilerStop()

    def meet(self) -> None:
        """Wait for all ranks: the first that begins or stops the recording does so for all."""
        if self.world > 1:
            dist.barrier()
            torch.cuda.synchronize()
            time.sleep(0.2)

    def step_name(self, k: int) -> str:
        return self.c.name % k if "%" in self.c.name else self.c.name

    def kineto(self, path: Path) -> None:
        """The same steps by torch.profiler, which calls each ProfilerStep#N, as JSON."""
        from torch.profiler import ProfilerActivity, profile, record_function, schedule

        named = contextlib.nullcontext if self.c.name == "none" else record_function
        with profile(
            activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA],
            schedule=schedule(wait=0, warmup=1, active=self.c.steps, repeat=1),
            record_shapes=self.c.shapes,
        ) as recorded:
            for k in range(-1, self.c.steps):  # the first warms the profiler up
                with named(self.step_name(k)):
                    self.step(self.run, named)
                if k in (-1, self.c.steps - 1):
                    torch.cuda.synchronize()
                recorded.step()
        trace = path.with_name(f"{path.stem}_rank{self.rank}.json")
        recorded.export_chrome_trace(str(trace))


def main() -> None:
    c = flags()
    run = Run(c)
    truth = {
        **{k: v for k, v in vars(c).items() if isinstance(v, str | int | float | bool)},
        "world": run.world, "parameters": run.parameters, "torch": torch.__version__,
        "gpu": torch.cuda.get_device_name(),
    }  # fmt: skip
    if c.shapes and (run.world == 1 or c.tensor_parallel):
        truth |= run.count_flops()
        run.optimizer.zero_grad(set_to_none=True)
    for _ in range(6):
        run.step(run.run)
    truth["step_s_bare"] = run.bare_seconds()
    if c.kineto:
        run.kineto(c.kineto)
    elif c.timed:
        run.timed()
    else:
        run.profiled()
    if run.rank == 0 and c.truth:
        c.truth.write_text(json.dumps(truth, indent=1) + "\n", encoding="utf-8")
    if run.world > 1:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
