"""Records the allocations of a small program by torch.profiler, and what PyTorch says of them.

    OMP_NUM_THREADS=1 python profiles/memory/torch_cpu.py profiles/memory

writes `torch_cpu.json.xz`, and `torch_cpu.truth.json`: the peak by the categories of PyTorch's own
`torch.profiler._memory_profiler`, which sees the tensors, and no file has. PyTorch 2.13, no GPU.
"""

from __future__ import annotations

import json
import lzma
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch.profiler._memory_profiler import Action

WIDTH, LAYERS, WORDS, BATCH, LENGTH = 64, 3, 100, 8, 32


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, words: Any) -> Any:
        return self.head(self.blocks(self.words(words)))


def train(steps: int) -> None:
    """Train from the program's first tensor on."""
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters(), foreach=True)
    for _ in range(steps):
        words = torch.randint(0, WORDS, (BATCH, LENGTH))
        target = torch.randint(0, WORDS, (BATCH * LENGTH,))
        loss = nn.functional.cross_entropy(net(words).flatten(0, 1), target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def peak(recorded: Any) -> dict[str, int]:
    """Bytes by PyTorch's category when their sum is largest."""
    found = recorded._memory_profile()
    alive: Counter[str] = Counter()
    most: Counter[str] = Counter()
    for _, action, (key, version), size in found.timeline:
        now = found._categories.get(key, version)
        alive[now.name if now else "NONE"] += -size if action in (
            Action.INCREMENT_VERSION, Action.DESTROY) else size  # fmt: skip
        if action == Action.INCREMENT_VERSION:
            later = found._categories.get(key, version + 1)
            alive[later.name if later else "NONE"] += size
        most = max(most, +alive, key=Counter.total)
    return dict(most)


def main() -> None:
    out = Path(sys.argv[1])
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, record_shapes=True,
                 with_stack=True, with_modules=True) as recorded:  # fmt: skip
        train(3)
    path = out / "torch_cpu.json"
    recorded.export_chrome_trace(str(path))
    trace = json.loads(path.read_text(encoding="utf-8"))
    kept = [e for e in trace["traceEvents"] if e.get("ph") in "Xi"]
    for event in kept:  # nothing of this machine
        event["pid"] = event["tid"] = 1
    trace = {"schemaVersion": 1, "traceEvents": kept}
    with lzma.open(f"{path}.xz", "wt", preset=9) as file:
        json.dump(trace, file)
    path.unlink()
    truth = {"torch": torch.__version__, "peak_bytes": peak(recorded)}
    (out / "torch_cpu.truth.json").write_text(json.dumps(truth, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
