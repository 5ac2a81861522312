"""One rank of a GPT whose blocks are shared, beside the whole one: prints how far they are apart.

The shard's weights are cut from the whole model's; outputs, gradients and FLOPs are compared.
"""

from __future__ import annotations

import argparse
import json

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from profiles.programs import train

WIDTH, BATCH, LENGTH, VOCABULARY = 32, 3, 16, 50


def model(*, shared: bool) -> nn.Module:
    torch.manual_seed(0)
    return train.Transformer(argparse.Namespace(
        model="gpt", width=WIDTH, heads=4, kv_heads=0, layers=2, length=LENGTH, batch=BATCH,
        vocabulary=VOCABULARY, tensor_parallel=shared,
    ))  # fmt: skip


def cut(whole: nn.Module, shard: nn.Module, rank: int, ranks: int) -> None:
    """Copy this rank's rows and columns, and all of what is not shared."""

    def part(n: int) -> slice:
        return slice(rank * n // ranks, (rank + 1) * n // ranks)

    pairs = [(shard.tokens, whole.tokens), (shard.places, whole.places), (shard.head, whole.head)]
    with torch.no_grad():
        for mine, theirs in pairs:
            mine.weight.copy_(theirs.weight)
        for a, b in zip(whole.blocks, shard.blocks, strict=True):
            old, new = a.attention, b.attention.part
            new.query.weight.copy_(old.query.weight[part(WIDTH)])
            new.query.bias.copy_(old.query.bias[part(WIDTH)])
            both = old.key_value.weight.view(2, WIDTH, WIDTH)[:, part(WIDTH)]
            new.key_value.weight.copy_(both.reshape(-1, WIDTH))
            new.key_value.bias.copy_(old.key_value.bias.view(2, WIDTH)[:, part(WIDTH)].reshape(-1))
            new.out.weight.copy_(old.out.weight[:, part(WIDTH)])
            b.attention.bias.copy_(old.out.bias)
            old, new = a.mlp, b.mlp.part
            new.up.weight.copy_(old.up.weight[part(4 * WIDTH)])
            new.up.bias.copy_(old.up.bias[part(4 * WIDTH)])
            new.down.weight.copy_(old.down.weight[:, part(4 * WIDTH)])
            b.mlp.bias.copy_(old.down.bias)


def apart(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / a.norm())


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    whole, shard = model(shared=False), model(shared=True)
    cut(whole, shard, rank, ranks)
    torch.manual_seed(1)
    x = torch.randint(0, VOCABULARY, (BATCH, LENGTH))
    y = torch.randint(0, VOCABULARY, (BATCH * LENGTH,))
    flops = []
    for each in (whole, shard):
        with FlopCounterMode(display=False) as counter:
            F.cross_entropy(each(x).view(-1, VOCABULARY), y).backward()
        flops.append(counter.get_total_flops())
    inner = slice(rank * 4 * WIDTH // ranks, (rank + 1) * 4 * WIDTH // ranks)
    a, b = whole.blocks[0], shard.blocks[0]
    pairs = {
        "output": (whole(x), shard(x)),
        "tokens": (whole.tokens.weight.grad, shard.tokens.weight.grad),
        "up": (a.mlp.up.weight.grad[inner], b.mlp.part.up.weight.grad),
        "norm": (a.first.weight.grad, b.first.weight.grad),
        "bias": (a.attention.out.bias.grad, b.attention.bias.grad),
    }
    print(json.dumps({"flops": flops, **{name: apart(*both) for name, both in pairs.items()}}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
