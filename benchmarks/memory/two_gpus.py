"""The ResNet study's memory experiment again: an epoch of ResNet-18 and ResNet-50 on 1 and 2 GPUs.

    python -m benchmarks.memory.two_gpus        # two GPUs, about 3 minutes

The study trained on ten classes of ImageNet, 3,000 files, for one epoch, by PyTorch's ImageNet
example: batches of 256, SGD with momentum, and DataParallel, which splits a batch over the GPUs.
ImageNet cannot be had everywhere: the images are synthetic, 3 x 224 x 224, as many, of ten classes.
Besides one GPU and DataParallel on two, two GPUs under DistributedDataParallel, 128 images each.
Every run is a process of its own. For each GPU: PyTorch's allocator (peaks), NVML (largest while it
trains), and at the end of a forward pass every tensor that lives: parameters, gradients, momentum,
buffers, and what autograd keeps, by the layer that made it. Rows go to
benchmarks/results/memory_two_gpus.json, beside those of other ways.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from benchmarks.common import folders, gpus, results
from benchmarks.common.arguments import count, require_module
from benchmarks.common.processes import ENVIRONMENT, visible_gpus

RESULTS: Final = folders.RESULTS / "memory_two_gpus.json"
NETS: Final = ("resnet18", "resnet50")
WAYS: Final = {"one": 1, "DataParallel": 2, "DistributedDataParallel": 2}
"""GPUs of each way."""
CLASSES: Final = 10
LIMIT_S: Final = 100.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--nets", nargs="+", choices=NETS, default=list(NETS))
    add("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    add("--images", type=count, default=3000)
    add("--batch", type=count, default=256)
    add("--side", type=count, default=224)
    add("--tf32", action="store_true", help="of convolutions; the study's V100 has none")
    add("--worker", nargs=2, metavar=("NET", "WAY"), help="this is one run; used by itself")
    add("--port", type=int, default=int(os.environ.get("MASTER_PORT", "29531")))
    add("--out", type=Path, default=RESULTS)
    c = parser.parse_args()
    if c.worker:
        worker(c, *c.worker)
        return
    require_module("torch", "torch")
    gpus.require(max(WAYS[way] for way in c.ways))
    said = {"date": results.today(), "command": results.command("memory.two_gpus", sys.argv[1:])}
    for net in c.nets:
        for way in c.ways:
            made = [{**row, **said} for row in run(c, net, way)]
            rows = results.read(c.out).get("rows", [])
            kept = [row for row in rows if (row["net"], row["way"]) != (net, way)]
            results.write(c.out, {
                "images": c.images, "batch": c.batch, "side": c.side, "rows": kept + made,
            })  # fmt: skip


def run(c: argparse.Namespace, net: str, way: str) -> list[dict[str, Any]]:
    """Train in processes of their own; return their rows."""
    own = ["-m", "benchmarks.memory.two_gpus", "--worker", net, way, "--images", str(c.images),
           "--batch", str(c.batch), "--side", str(c.side), *["--tf32"] * c.tf32]  # fmt: skip
    launch = [sys.executable]
    if way == "DistributedDataParallel":
        launch += ["-m", "torch.distributed.run", "--nproc-per-node", "2",
                   "--master-port", str(c.port)]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        done = subprocess.run(
            [*launch, *own, "--out", folder], cwd=folders.ROOT, env=ENVIRONMENT,
            capture_output=True, text=True, timeout=LIMIT_S, check=False,
        )  # fmt: skip
        rows = [json.loads(p.read_text()) for p in sorted(Path(folder).glob("rank*.json"))]
    if not rows:
        rows = [{"net": net, "way": way, "error": (done.stdout + done.stderr)[-600:]}]
    print(f"{net} {way}: {time.perf_counter() - began:.1f} s, {len(rows)} rows", flush=True)
    return rows


def worker(c: argparse.Namespace, name: str, way: str) -> None:
    """Train one epoch; write what it took to a file of this rank."""
    import torch

    from benchmarks.common.torch_device import Device, set_tf32
    from benchmarks.common.torch_nets import Network
    from perfmodel.machines.gpu_samples import NvmlSampler, Recorder
    from perfmodel.workloads.cnns import resnet

    rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    used = list(range(WAYS[way])) if way == "DataParallel" else [rank]
    numbers = [visible_gpus(2)[gpu] for gpu in used]
    on = Device(rank)
    if on.cuda:
        torch.cuda.set_device(on.device)
        for gpu in used:
            torch.cuda.reset_peak_memory_stats(gpu)
    set_tf32(c.tf32)
    torch.backends.cudnn.benchmark = True  # as the example has it
    torch.manual_seed(0)
    inner = Network(resnet(name, c.side, CLASSES)).to(on.device).train()
    net = wrapped(inner, way, on, used)
    sampler: Any = NvmlSampler(numbers, pcie=False) if on.cuda else Nothing()
    with Recorder(sampler, 0.02) as recorder:
        began = time.perf_counter()
        tensors = epoch(c, net, inner, on, rank, ranks)
        spent = time.perf_counter() - began
    series = recorder.series()
    row = {
        "net": name, "way": way, "rank": rank, "gpus": len(used), "batch": c.batch // ranks,
        "images": c.images // ranks, "tf32": c.tf32, "epoch_s": spent, "about": on.about(),
        "parameters": sum(p.numel() for p in inner.parameters()), "tensors": tensors,
        "memory": [
            {
                "gpu": gpu,
                "allocated_bytes": torch.cuda.max_memory_allocated(gpu) if on.cuda else None,
                "reserved_bytes": torch.cuda.max_memory_reserved(gpu) if on.cuda else None,
                "nvml_bytes": series.of(number).largest("memory_used_bytes"),
            }
            for gpu, number in zip(used, numbers, strict=True)
        ],
    }  # fmt: skip
    (c.out / f"rank{rank}.json").write_text(json.dumps(row), encoding="utf-8")
    if ranks > 1:
        torch.distributed.destroy_process_group()


def wrapped(inner: Any, way: str, on: Any, used: list[int]) -> Any:
    """Return the network as a way has it."""
    import torch

    ids = used if on.cuda else None
    if way == "DataParallel" and on.cuda:
        return torch.nn.DataParallel(inner, device_ids=ids)
    if way == "DistributedDataParallel":
        torch.distributed.init_process_group("nccl" if on.cuda else "gloo")
        return torch.nn.parallel.DistributedDataParallel(inner, device_ids=ids)
    return inner


def epoch(
    c: argparse.Namespace, net: Any, inner: Any, on: Any, rank: int, ranks: int
) -> list[dict[str, Any]]:
    """Train on every image once; return the tensors of the third step, behind its forward pass.

    Under DataParallel there are none: what the replica on the other GPU keeps is not seen.
    """
    import torch

    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    made, batch = torch.Generator().manual_seed(rank), c.batch // ranks
    labels = torch.randint(CLASSES, (c.images // ranks,), generator=made)
    tensors: list[dict[str, Any]] = []
    for at in range(0, len(labels), batch):
        y = labels[at : at + batch].to(on.device)
        x = torch.randn(len(y), 3, c.side, c.side, generator=made).to(on.device)
        counted = at == 2 * batch and not isinstance(net, torch.nn.DataParallel)
        optimizer.zero_grad(set_to_none=not counted)
        kept = Kept(inner) if counted else None
        with kept.hooks() if kept else contextlib.nullcontext():
            loss = torch.nn.functional.cross_entropy(net(x), y)
        if kept:
            tensors = [*own_tensors(inner, optimizer, x), *kept.rows()]
            del kept
        loss.backward()
        optimizer.step()
    on.synchronize()
    return tensors


class Nothing:
    """A sampler without a GPU."""

    def sample(self) -> list[Any]:
        """Return two GPUs that tell nothing."""
        from perfmodel.machines.gpu_samples import Reading

        return [Reading(0), Reading(1)]


class Kept:
    """What autograd keeps of a forward pass, by the layer in whose forward it was kept."""

    def __init__(self, net: Any) -> None:
        self._own = {t.untyped_storage()._cdata for t in (*net.parameters(), *net.buffers())}
        self._kept: dict[int, tuple[str, Any]] = {}
        self._now = ""
        self._handles = [
            layer.register_forward_pre_hook(lambda *_, at=placed.name: self._enter(at))
            for placed, layer in zip(net.placed, net.layers, strict=True)
        ]

    def _enter(self, name: str) -> None:
        self._now = name

    def hooks(self) -> Any:
        """Return the context of the forward pass."""
        import torch

        def keep(tensor: Any) -> Any:
            storage = tensor.untyped_storage()
            if storage._cdata not in self._own:
                self._kept.setdefault(storage._cdata, (self._now, storage))
            return tensor.detach()

        return torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)

    def rows(self) -> list[dict[str, Any]]:
        """Return a row per storage; the hooks of the layers are removed."""
        for handle in self._handles:
            handle.remove()
        return [
            {"use": "kept for backward", "name": name or "loss", "bytes": storage.nbytes()}
            for name, storage in self._kept.values()
        ]


def own_tensors(net: Any, optimizer: Any, images: Any) -> list[dict[str, Any]]:
    """Return parameters, gradients, momentum, buffers and images, a row each."""
    rows = [{"use": "images", "name": "images", "bytes": images.nbytes}]
    for name, p in net.named_parameters():
        rows.append({"use": "parameters", "name": name, "bytes": p.nbytes})
        if p.grad is not None:
            rows.append({"use": "gradients", "name": name, "bytes": p.grad.nbytes})
        momentum = optimizer.state.get(p, {}).get("momentum_buffer")
        if momentum is not None:
            rows.append({"use": "momentum", "name": name, "bytes": momentum.nbytes})
    rows += [{"use": "buffers", "name": n, "bytes": b.nbytes} for n, b in net.named_buffers()]
    return rows


if __name__ == "__main__":
    main()
