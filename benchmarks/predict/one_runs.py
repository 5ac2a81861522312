"""Times PyTorch programs at sizes that were never recorded, and their peaks of memory, on a GPU.

    python -m benchmarks.predict.one_runs -o measured.json

Each is a training step of profiles/programs/train.py, without a profiler. `benchmarks.predict.one`
predicts them from one report of each program.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
from pathlib import Path
from typing import Any

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
FLAGS = {
    "batch": "batch", "n_layer": "layers", "d_model": "width", "heads": "heads", "seq": "length",
    "vocab": "vocabulary", "height": "length",
}  # fmt: skip
"""Of train.py by role."""


def arguments(report: str, changed: dict[str, int], folder: Path) -> list[str]:
    """Flags of train.py for a case: the report's, changed."""
    truth = json.loads((folder / f"{report}.truth.json").read_text(encoding="utf-8"))
    said = {
        name: truth[name]
        for name in ("width", "layers", "heads", "kv_heads", "vocabulary", "length", "batch")
    }
    if "d_model" in changed:
        said["heads"] = changed["d_model"] * said["heads"] // said["width"]
    said |= {FLAGS[name]: n for name, n in changed.items() if name in FLAGS}
    flags = [f"--{name.replace('_', '-')}={n}" for name, n in said.items()]
    return [str(truth["model"]), *flags, f"--fault={truth['fault']}"]


def timed(report: str, changed: dict[str, int], folder: Path) -> dict[str, Any]:
    """Time one case."""
    import torch

    sys.path.insert(0, str(folder))
    import train  # type: ignore[import-not-found]

    words = arguments(report, changed, folder)
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
        "report": report, "changed": changed, "command": " ".join(["train.py", *words]),
        "gpu": torch.cuda.get_device_name(), "torch": torch.__version__,
        "parameters": run.parameters, "step_s": run.bare_seconds(), "peak_bytes": peak,
    }  # fmt: skip
    del run
    gc.collect()
    torch.cuda.empty_cache()
    return found


def main() -> None:
    """Time all cases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--out", type=Path, required=True)
    out = parser.parse_args().out
    folder = Path(__file__).parents[2] / "profiles" / "programs"
    rows = []
    for report, changed in CASES:
        try:
            rows.append(timed(report, changed, folder))
        except Exception as error:  # the other cases are worth as much without it
            print(f"{report} {changed}: {error!r}"[:300])
            continue
        print(rows[-1]["report"], changed, f"{rows[-1]['step_s']:.6f}", flush=True)
        out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
