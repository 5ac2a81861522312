"""Times PyTorch programs at sizes that were never recorded, and their peaks of memory, on a GPU.

    python -m benchmarks.predict.one_runs -o measured.json
    python -m benchmarks.predict.one_runs --host profiles/two_hosts/NAME -o measured.json
    python -m benchmarks.predict.one_runs --peaks -o peaks.json
    torchrun --nproc_per_node 2 -m benchmarks.predict.one_runs --peaks -o peaks_2.json

Each is a training step of profiles/programs/train.py, without a profiler. `benchmarks.predict.one`
predicts them from one report of each program. With --peaks they are `PEAKS`, programs that are
changed in other ways than in their sizes: those of as many ranks as run this. With --host they are
`HOST_CASES`, of programs that were recorded into that folder on this host.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.common import results

CASES: tuple[tuple[str, dict[str, int]], ...] = (
    ("bert_shapes", {"batch": 48}),
    ("bert_shapes", {"n_layer": 10}),
    ("bert_shapes", {"d_model": 1024, "batch": 32}),
    ("bert_shapes", {"seq": 512, "batch": 64, "n_layer": 6}),
    ("bert_shapes", {"batch": 160}),
    ("llama_shapes", {"batch": 32}),
    ("llama_shapes", {"n_layer": 12, "batch": 16}),
    ("llama_shapes", {"seq": 1024}),
    ("llama_shapes", {"n_layer": 8}),
    ("llama_heads_shapes", {"batch": 16}),
    ("llama_heads_shapes", {"d_model": 1536, "n_layer": 6}),
    ("llama_heads_shapes", {"n_layer": 8, "batch": 24}),
    ("convnext_shapes", {"batch": 64}),
    ("convnext_shapes", {"batch": 256}),
    ("convnext_shapes", {"height": 224, "width": 224, "batch": 128}),
    ("resnet34_shapes", {"batch": 96}),
    ("resnet34_shapes", {"batch": 256}),
    ("resnet34_shapes", {"height": 224, "width": 224, "batch": 192}),
    ("resnet34_both", {"height": 128, "width": 128}),
    ("resnet34_both", {"batch": 128}),
    ("gpt_shapes", {"batch": 48}),
    ("gpt_shapes", {"n_layer": 15}),
    ("gpt_shapes", {"d_model": 1280, "n_layer": 8}),
    ("gpt_shapes", {"seq": 1024}),
    ("gpt_modules", {"batch": 64, "n_layer": 8}),
    ("gpt_both", {"n_layer": 12, "batch": 32}),
)
"""Reports of profiles/programs, and what is changed."""
PEAKS: tuple[tuple[str, dict[str, int], dict[str, Any]], ...] = (
    ("gpt_shapes", {"batch": 24}, {"optimizer": "foreach"}),
    ("gpt_shapes", {"batch": 1, "n_layer": 12, "d_model": 1280}, {"optimizer": "foreach"}),
    ("gpt_shapes", {"batch": 1, "n_layer": 12, "d_model": 1280}, {"optimizer": "loop"}),
    ("bert_shapes", {"batch": 1, "n_layer": 10}, {"optimizer": "foreach"}),
    ("gpt_shapes", {"batch": 24, "n_layer": 8}, {"accumulate": 4}),
    ("llama_shapes", {"batch": 16}, {"accumulate": 2}),
    ("resnet34_shapes", {"batch": 128}, {"accumulate": 2}),
    ("gpt_shapes", {"batch": 24}, {"dtype": "fp32"}),
    ("gpt_shapes", {"n_layer": 12, "d_model": 1024, "batch": 8}, {"dtype": "fp32"}),
    ("llama_heads_shapes", {"batch": 16}, {"dtype": "fp32"}),
    ("bert_shapes", {"batch": 48}, {"dtype": "fp32"}),
    ("convnext_shapes", {"batch": 64}, {"dtype": "fp32"}),
    ("resnet34_shapes", {"batch": 128}, {"dtype": "fp32"}),
    ("gpt_fp32_shapes", {"batch": 32}, {"dtype": "bf16"}),
    ("gpt_fp32_shapes", {"n_layer": 12, "d_model": 1024}, {"dtype": "bf16"}),
    ("gpt_shapes", {"batch": 48}, {"compile": True}),
    ("gpt_shapes", {"batch": 24, "n_layer": 12}, {"compile": True}),
    ("llama_shapes", {"batch": 32}, {"compile": True}),
    ("bert_shapes", {"batch": 160}, {"compile": True}),
    ("convnext_shapes", {"batch": 128}, {"compile": True}),
    ("resnet34_shapes", {"batch": 256}, {"compile": True}),
    ("gpt_shapes", {"batch": 24, "p": 2}, {}),
    ("gpt_shapes", {"n_layer": 12, "d_model": 1280, "batch": 2, "p": 2}, {}),
    ("llama_shapes", {"batch": 16, "p": 2}, {}),
    ("bert_shapes", {"batch": 48, "p": 2}, {}),
    ("resnet34_shapes", {"batch": 96, "p": 2}, {}),
    ("gpt_shapes", {"n_layer": 12, "d_model": 1280, "batch": 2, "p": 2}, {"optimizer": "foreach"}),
    ("gpt_shapes", {"batch": 24, "p": 2}, {"accumulate": 4}),
    ("gpt_shapes", {"batch": 24, "p": 2}, {"fsdp": True, "policy": True}),
    ("gpt_shapes", {"n_layer": 12, "d_model": 1280, "batch": 8, "p": 2},
     {"fsdp": True, "policy": True}),
    ("gpt_shapes", {"n_layer": 12, "d_model": 1280, "batch": 1, "p": 2},
     {"fsdp": True, "policy": True}),
    ("llama_shapes", {"batch": 16, "n_layer": 8, "p": 2}, {"fsdp": True, "policy": True}),
    ("gpt_shapes", {"n_layer": 12, "d_model": 1280, "batch": 2, "p": 2},
     {"fsdp": True, "policy": True, "accumulate": 2}),
)  # fmt: skip
"""Reports of profiles/programs, what is changed of their sizes and ranks, and of their programs."""
HOST_CASES: tuple[tuple[str, dict[str, int], dict[str, Any]], ...] = (
    ("gpt_small", {"batch": 4}, {}),
    ("gpt_small", {"n_layer": 12}, {}),
    ("gpt_small", {"d_model": 768, "n_layer": 8}, {}),
    ("gpt_small", {"batch": 96}, {}),
    ("gpt_small", {"seq": 768}, {}),
    ("gpt_large", {"d_model": 1536, "batch": 10}, {}),
    ("gpt_large", {"n_layer": 10, "batch": 6}, {}),
    ("llama_small", {"batch": 2}, {}),
    ("llama_small", {"n_layer": 11}, {}),
    ("llama_small", {"d_model": 896, "n_layer": 7, "batch": 10}, {}),
    ("llama_large", {"seq": 1280, "batch": 5}, {}),
    ("llama_large", {"n_layer": 8}, {}),
    ("bert_small", {"batch": 5}, {}),
    ("bert_small", {"n_layer": 10}, {}),
    ("bert_small", {"seq": 512, "batch": 40}, {}),
    ("bert_small", {"d_model": 1088, "batch": 56}, {}),
    ("vit_b", {"batch": 6}, {}),
    ("vit_b", {"batch": 112}, {}),
    ("convnext_s", {"batch": 7}, {}),
    ("convnext_s", {"batch": 88}, {}),
    ("convnext_s", {"height": 224, "width": 224}, {}),
    ("resnet50", {"batch": 9}, {}),
    ("resnet50", {"batch": 176}, {}),
    ("resnet50", {"height": 256, "width": 256}, {}),
    ("gpt_small", {}, {"accumulate": 4}),
    ("gpt_large", {"batch": 12}, {"accumulate": 3}),
    ("gpt_small", {"p": 2}, {}),
    ("gpt_small", {"n_layer": 12, "batch": 48, "p": 2}, {}),
    ("gpt_large", {"p": 2}, {}),
    ("llama_small", {"p": 2}, {}),
    ("llama_large", {"batch": 9, "p": 2}, {}),
    ("bert_small", {"p": 2}, {}),
    ("resnet50", {"batch": 96, "p": 2}, {}),
    ("gpt_small", {"p": 2}, {"fsdp": True}),
    ("gpt_large", {"p": 2}, {"fsdp": True}),
    ("llama_large", {"p": 2}, {"fsdp": True}),
    ("gpt_small", {"p": 2}, {"fsdp": True, "policy": True}),
    ("gpt_large", {"p": 2}, {"fsdp": True, "policy": True}),
    ("llama_large", {"p": 2}, {"fsdp": True, "policy": True}),
)
"""Reports of profiles/programs/record.py's `hosts`, and the same."""
FLAGS = {
    "batch": "batch", "n_layer": "layers", "d_model": "width", "heads": "heads", "seq": "length",
    "vocab": "vocabulary", "height": "length",
}  # fmt: skip
"""Of train.py by role."""


def arguments(
    report: str, changed: Mapping[str, int], folder: Path, options: Mapping[str, Any] | None = None
) -> list[str]:
    """Flags of train.py for a case: the report's, changed."""
    truth = json.loads((folder / f"{report}.truth.json").read_text(encoding="utf-8"))
    options = options or {}
    said = {
        name: truth[name]
        for name in ("width", "layers", "heads", "kv_heads", "vocabulary", "length", "batch")
    }
    if "d_model" in changed:
        for name in ("heads", "kv_heads"):
            said[name] = changed["d_model"] * said[name] // said["width"]
    said |= {FLAGS[name]: n for name, n in changed.items() if name in FLAGS}
    flags = [f"--{name.replace('_', '-')}={n}" for name, n in said.items()]
    fault = {"fp32": "fp32", "bf16": "healthy"}.get(options.get("dtype", ""), truth["fault"])
    flags += [
        f"--{name}={options[name]}" for name in ("optimizer", "accumulate") if name in options
    ]
    flags += ["--compile-loss"] if options.get("compile") else []
    autocast = [] if options.get("policy") else ["--fsdp-autocast"]
    flags += ["--fsdp", *autocast] if options.get("fsdp") else []
    return [str(truth["model"]), *flags, f"--fault={fault}"]


def timed(
    report: str, changed: Mapping[str, int], folder: Path, options: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Time one case."""
    import torch

    from profiles.programs import train

    words = arguments(report, changed, folder, options)
    left = torch.cuda.memory_allocated()  # of cuBLAS, where another case has run
    sys.argv = ["train.py", *words]
    run = train.Run(train.flags())
    for _ in range(6):
        run.step(run.run)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    run.step(run.run)
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated()
    found = {
        "report": report, "changed": dict(changed), "command": " ".join(["train.py", *words]),
        "gpu": torch.cuda.get_device_name(), "torch": torch.__version__,
        "parameters": run.parameters, "step_s": run.bare_seconds(), "peak_bytes": peak,
    }  # fmt: skip
    if options is not None:
        found |= {"options": dict(options), "left_bytes": left}
    del run
    gc.collect()
    torch.compiler.reset()
    torch.cuda.empty_cache()
    return found


def main() -> None:
    """Time all cases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--peaks", action="store_true", help="programs changed in other ways")
    parser.add_argument("--host", type=Path, help="reports of this host")
    given = parser.parse_args()
    folder = given.host or Path(__file__).parents[2] / "profiles" / "programs"
    ranks, rank = (int(os.environ.get(n, k)) for n, k in (("WORLD_SIZE", "1"), ("RANK", "0")))
    chosen = HOST_CASES if given.host else PEAKS
    cases = [c for c in chosen if c[1].get("p", 1) == ranks]
    if not given.host and not given.peaks:
        cases = [(report, changed, None) for report, changed in CASES]
    rows = []
    for report, changed, options in cases:
        try:
            rows.append(timed(report, changed, folder, options))
        except Exception as error:  # the other cases are worth as much without it
            print(f"{report} {changed} {options}: {error!r}"[:300], flush=True)
            continue
        if rank == 0:
            print(report, changed, options or "", f"{rows[-1]['step_s']:.6f} s",
                  f"{rows[-1]['peak_bytes']} B", flush=True)  # fmt: skip
            results.write(given.out, rows)
    if ranks > 1:
        import torch.distributed as dist

        dist.destroy_process_group()


if __name__ == "__main__":
    main()
