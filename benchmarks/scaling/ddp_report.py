"""Writes what docs/ddp.md shows of the DDP lab, from results of benchmarks.resnet and .ddp_lab.

python -m benchmarks.scaling.ddp_report

Times are of GPUs (resnet.json: ddp2 and ddp4; ddp_lab_1.json); messages, replicas and the sampler
of four ranks, which may share a CPU (ddp_lab_4.json): they do not depend on the device.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from typing import Any, Final

from benchmarks.common import folders
from benchmarks.common.pages import markdown, put_parts
from benchmarks.common.results import called
from benchmarks.common.results import read as read_json
from perfmodel.analysis.tta import welch

PAGE: Final = folders.DOCS / "ddp.md"
SCRIPT: Final = "benchmarks.scaling.ddp_report"
GPUS: Final = (2, 4)
BATCHES: Final = (32, 128, 512)
IMAGES: Final = 50_000
"""Of an epoch of CIFAR-10."""
WORDS: Final = {"broadcast_buffers": "no buffers", "bucket_cap_mb": "buckets of 1 MiB"}

Row = dict[str, Any]


def on_gpus() -> dict[int, dict[tuple[int, str], Row]]:
    """Return the steps of ResNet-18 on 2 and 4 GPUs, by batch and mode."""
    record = read_json(folders.RESULTS / "resnet.json")
    return {
        p: {(r["batch"], r["mode"]): r for r in record[f"ddp{p}"]["rows"]
            if (r["net"], r["math"]) == ("resnet18", "fp32")}
        for p in GPUS
    }  # fmt: skip


def gradients_bytes() -> int:
    """Return the bytes of ResNet-18's gradients."""
    theory = read_json(folders.RESULTS / "resnet.json")["theory"]["rows"]
    return 4 * int(next(r["parameters"] for r in theory if r["net"] == "resnet18"))


def lab(ranks: int) -> dict[str, Any]:
    """Return the results of the lab on so many ranks."""
    return read_json(folders.RESULTS / f"ddp_lab_{ranks}.json")


def rows(ranks: int, part: str) -> list[Row]:
    """Return the rows of a part of the lab on so many ranks."""
    return [row for row in lab(ranks)["rows"] if row["part"] == part]


def parts() -> dict[str, str]:
    """Return the generated parts of the page by name."""
    return {
        "epochs": epochs(), "steps": steps(), "messages": messages(), "replicas": replicas(),
        "sampler": sampler(), "one": one_gpu(),
    }  # fmt: skip


def epochs() -> str:
    """Return the time of an epoch (questions 1 and 2)."""
    columns = (
        "images a GPU=int; GPUs=int; step=s; steps of an epoch=int; epoch=s; T1 / Tp=float.2; "
        "efficiency=percent; against 32 a GPU, as the lab's tables=float.2"
    )
    found, table = on_gpus(), []
    for batch in BATCHES:
        for p in (1, *GPUS):

            def epoch_s(size: int, p: int = p) -> float:
                return math.ceil(IMAGES / (size * p)) * _step(found, size, p)

            gain = math.ceil(IMAGES / batch) * _step(found, batch, 1) / epoch_s(batch)
            table.append(
                (batch, p, _step(found, batch, p), math.ceil(IMAGES / (batch * p)), epoch_s(batch),
                 gain, gain / p, epoch_s(32) / epoch_s(batch))
            )  # fmt: skip
    return markdown(columns, table)


def _step(found: dict[int, dict[tuple[int, str], Row]], batch: int, p: int) -> float:
    """Return the seconds of a step; of one GPU that of the pair's alone."""
    return float(found[max(p, 2)][batch, "alone" if p == 1 else "ddp"]["total_s"])


def steps() -> str:
    """Return computing and exposed communication (question 3), and what DDP allocates."""
    columns = (
        "images a GPU=int; GPUs=int; computing: the step alone=s; exposed communication=s; "
        "of the step=percent; gradients over it, bus bandwidth=B/s; allocated more by DDP=B"
    )
    size, table = gradients_bytes(), []
    for batch in BATCHES:
        for p, found in on_gpus().items():
            alone, ddp = found[batch, "alone"], found[batch, "ddp"]
            exposed = ddp["total_s"] - alone["total_s"]
            table.append(
                (batch, p, alone["total_s"], exposed, exposed / ddp["total_s"],
                 size / exposed * 2 * (p - 1) / p,
                 ddp["allocated_bytes"] - alone["allocated_bytes"])
            )  # fmt: skip
    record = read_json(folders.RESULTS / "resnet.json")["ddp2"]
    return (
        f"{record['about']['device']}, torch {record['about']['torch']}, {record['date'][:10]}: "
        f"`{called(record['command'])}`, and `ddp4`. Gradients are {size / 1e6:.1f} MB.\n\n"
        f"{markdown(columns, table)}"
    )


def one_gpu() -> str:
    """Return the small batch on one GPU (question 4.1)."""
    read, last = lab(1), [row["curve"][-1] for row in rows(1, "large")]
    tests = [statistics.fmean(row["test_accuracy"]) for row in rows(1, "large")]
    return (
        f"One {read['about']['device']}, torch {read['about']['torch']}, {read['date']}, 128 "
        f"images a batch, {len(last)} seeds, after epoch {last[0]['epoch']}: training loss "
        f"{_spread([one['loss'] for one in last])}, training accuracy "
        f"{_spread([one['train_accuracy'] for one in last])}, test accuracy {_spread(tests)}."
    )


def collectives(events: list[dict[str, Any]]) -> Iterator[tuple[str, int]]:
    """Yield the kind and the elements of every collective that c10d was asked for.

    >>> list(collectives([{"name": "c10d::allreduce_", "args": {
    ...     "Input Dims": [[[256]], []], "Input type": ["TensorList", ""]}}]))
    [('allreduce', 256)]
    """
    for event in events:
        name = event["name"]
        if not name.startswith("c10d::"):
            continue
        args = event["args"] or {}
        yield name.removeprefix("c10d::").rstrip("_"), _elements(args.get("Input Dims") or [])


def _elements(found: Any) -> int:
    """Sum the elements of all tensors in nested lists of extents."""
    if not isinstance(found, list) or not found:
        return 0
    if all(isinstance(n, int) for n in found):
        return math.prod(found)
    return sum(_elements(one) for one in found)


def messages() -> str:
    """Return what is sent besides gradients, phase by phase (question 6)."""
    columns = "DDP; phase; collective; how many=int; elements=int; largest=int"
    read, table = lab(4), []
    for row in rows(4, "messages"):
        counted: dict[str, list[int]] = {}
        for kind, size in collectives(row["events"]):
            counted.setdefault(kind, []).append(size)
        how = " ".join(WORDS[key] for key in row["how"]) or "as it is"
        for kind, sizes in sorted(counted.items()):
            table.append((how, row["phase"], kind, len(sizes), sum(sizes), max(sizes)))
    own = rows(4, "tensors")[0]
    return (
        f"Four ranks ({read['about']['device']}, torch {read['about']['torch']}, {read['date']}: "
        f"`{read['commands'][0]}`), the calls of c10d on rank 0 by torch.profiler. ResNet-18 has "
        f"{own['parameters']:,} parameters in {own['parameter_tensors']} tensors and "
        f"{own['buffers_bytes']:,} bytes of buffers in {own['buffer_tensors']}.\n\n"
        f"{markdown(columns, table)}"
    )


def _by_setting(found: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    settings: dict[str, list[dict[str, Any]]] = {}
    for row in found:
        settings.setdefault(row["setting"], []).append(row)
    return settings


def _spread(values: list[float], form: str = ".3f") -> str:
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.fmean(values):{form}} ± {deviation:{form}}"


def replicas() -> str:
    """Return how far replicas are from each other after some epochs (questions 6 and 7)."""
    columns = (
        "setting; runs=int; parameters differ by up to; buffers differ by up to; "
        "training loss, last (± s); test accuracy, rank by rank, first run"
    )
    table = []
    for name, mine in _by_setting(rows(4, "large")).items():
        if name in ("base", "scaled"):
            continue
        ranks = ", ".join(f"{v:.3f}" for v in mine[0]["test_accuracy"])
        table.append(
            (name, len(mine), f"{max(r['parameters_apart'] for r in mine):.3g}",
             f"{max(r['buffers_apart'] for r in mine):.3g}",
             _spread([r["curve"][-1]["loss"] for r in mine]), ranks)
        )  # fmt: skip
    return f"{_said('large')}\n\n{markdown(columns, table)}"


def sampler() -> str:
    """Return training with and without the epoch given to the sampler (question 5)."""
    columns = (
        "setting; runs=int; images that rank 0 saw=int; of all=percent; training loss, last (± s); "
        "training accuracy, last (± s); test accuracy (± s)"
    )
    table = []
    for name, mine in _by_setting(rows(4, "sampler")).items():
        last = [row["curve"][-1] for row in mine]
        seen = statistics.fmean(row["distinct_images"] for row in mine)
        table.append(
            (name, len(mine), round(seen), seen / mine[0]["images"],
             _spread([one["loss"] for one in last]),
             _spread([one["train_accuracy"] for one in last]),
             _spread([statistics.fmean(row["test_accuracy"]) for row in mine]))
        )  # fmt: skip
    with_it, without = (
        [statistics.fmean(row["test_accuracy"]) for row in mine]
        for mine in _by_setting(rows(4, "sampler")).values()
    )
    apart = welch(without, with_it)
    tested = (
        f"\n\nTest accuracy with the epoch less without: {apart.value:+.3f} ({apart.low:+.3f} to "
        f"{apart.high:+.3f}, 95 %; p = {apart.p:.2g}, Welch)."
        if apart
        else ""
    )
    return f"{_said('sampler')}\n\n{markdown(columns, table)}{tested}"


def _said(part: str) -> str:
    """Say how a part was trained."""
    read, first = lab(4), rows(4, part)[0]
    command = read["commands"][1 if part == "large" else 2]
    return (
        f"Four ranks ({read['about']['device']}, torch {read['about']['torch']}, {read['date']}: "
        f"`{command}`): {len(first['curve'])} epochs of {first['images']:,} images, "
        f"{first['batch']} a rank."
    )


def main() -> None:
    put_parts(PAGE, SCRIPT, parts())


if __name__ == "__main__":
    main()
