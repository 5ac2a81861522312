"""A PyTorch program as somebody else would write it: an MLP under DDP, with NVTX ranges.

    nsys profile -t cuda,nvtx mpirun -n 2 python profiles/ddp.py

It visits a few sizes, each inside a range `GPU parallel train` and with a mark, so that `part.py`
cuts the report into one per size. perfmodel reads those with
`perfmodel/workloads/examples/pytorch_mlp.toml`; `collect_ddp.py` does it all.
"""

from __future__ import annotations

import argparse
import json
import os

import torch
from torch import distributed, nn
from torch.cuda import nvtx
from torch.nn.parallel import DistributedDataParallel

D, C = 784, 10
SIZES = (
    (256, 3000), (512, 3000), (512, 12000), (1024, 6000), (1024, 24000), (2048, 3000),
    (2048, 12000), (4096, 6000), (4096, 12000), (4096, 24000),
)  # fmt: skip
"""H, and B of all ranks together."""


def join() -> tuple[int, int, torch.device]:
    """Join the ranks that mpirun or torchrun started; return rank, ranks and device."""
    env = os.environ
    rank = int(env.get("OMPI_COMM_WORLD_RANK", env.get("RANK", "0")))
    ranks = int(env.get("OMPI_COMM_WORLD_SIZE", env.get("WORLD_SIZE", "1")))
    env.setdefault("MASTER_ADDR", "127.0.0.1")
    env.setdefault("MASTER_PORT", "29511")
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", rank % torch.cuda.device_count()) if on_gpu else "cpu"
    if on_gpu:
        torch.cuda.set_device(device)
    distributed.init_process_group("nccl" if on_gpu else "gloo", rank=rank, world_size=ranks)
    return rank, ranks, torch.device(device)


def train(hidden: int, batch: int, batches: int, ranks: int, device: torch.device) -> None:
    """Train one size on random images that lie on the device."""
    generator = torch.Generator(device).manual_seed(hidden)
    share = batch // ranks
    images = torch.rand(4 * share, D, device=device, generator=generator)
    labels = torch.randint(C, (4 * share,), device=device, generator=generator)
    net = nn.Sequential(nn.Linear(D, hidden), nn.ReLU(), nn.Linear(hidden, C)).to(device)
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loss_of = nn.CrossEntropyLoss()
    distributed.barrier()
    for index in range(batches):
        at = index % 4 * share
        nvtx.range_push("batch iteration")
        nvtx.range_push("forward")
        loss = loss_of(model(images[at : at + share]), labels[at : at + share])
        nvtx.range_pop()
        nvtx.range_push("backward")
        loss.backward()
        nvtx.range_pop()
        nvtx.range_push("optimizer")
        optimizer.step()
        optimizer.zero_grad()
        nvtx.range_pop()
        nvtx.range_pop()
    if device.type == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    """Visit every size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, default=40)
    arguments = parser.parse_args()
    rank, ranks, device = join()
    for hidden, batch in SIZES:
        mark = {
            "perfmodel_config": 1, "workload": "PyTorch DDP MLP", "input_size": D,
            "hidden_size": hidden, "num_classes": C, "batch_size": batch, "ranks": ranks,
            "rank": rank, "dtype": "float32", "run_id": f"ddp_p{ranks}_H{hidden}_B{batch}_1",
            "versions": {"torch": torch.__version__},
        }  # fmt: skip
        distributed.barrier()
        nvtx.range_push("GPU parallel train")
        nvtx.mark(json.dumps(mark))
        train(hidden, batch, arguments.batches, ranks, device)
        nvtx.range_pop()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
