"""Writes what docs/ddp.md shows of the DDP lab, from benchmarks/results/ddp_lab_*.json.

python -m benchmarks.scaling.ddp_report
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from benchmarks.common import folders
from benchmarks.common.pages import markdown, put_parts
from benchmarks.common.results import read as read_json

PAGE: Final = folders.DOCS / "ddp.md"
SCRIPT: Final = "benchmarks.scaling.ddp_report"
NOT_YET: Final = "Not measured yet."
GPUS: Final = (1, 2, 4)
BATCHES: Final = (32, 128, 512)
WORDS: Final = {"broadcast_buffers": "no buffers", "bucket_cap_mb": "buckets of 1 MiB"}

Runs = dict[int, dict[str, Any]]


def lab() -> Runs:
    """Return the results by number of GPUs."""
    paths = {p: folders.RESULTS / f"ddp_lab_{p}.json" for p in GPUS}
    return {p: read_json(path) for p, path in paths.items() if path.exists()}


def rows(runs: Runs, p: int, part: str) -> list[dict[str, Any]]:
    """Return the rows of a part on so many GPUs."""
    return [row for row in runs[p]["rows"] if row["part"] == part] if p in runs else []


def largest(runs: Runs, part: str) -> int | None:
    """Return the most GPUs that a part was measured on."""
    return max((p for p in runs if rows(runs, p, part)), default=None)


def parts(runs: Runs) -> dict[str, str]:
    """Return the generated parts of the page by name."""
    return {
        "about": about(runs), "epochs": epochs(runs), "steps": steps(runs),
        "bandwidth": bandwidth(runs), "messages": messages(runs), "large": large(runs),
        "replicas": replicas(runs), "sampler": sampler(runs),
    }  # fmt: skip


def about(runs: Runs) -> str:
    """Say what ran where."""
    said = []
    for p, read in runs.items():
        a = read["about"]
        said.append(f"{p} x {a['device']}, torch {a['torch']}, {read['date']}: `{read['command']}`")
    return "; ".join(said) + "."


def epochs(runs: Runs) -> str:
    """Return the time of an epoch (questions 1 and 2)."""
    columns = (
        "images a GPU=int; GPUs=int; epoch=s; images/s=int; T1 / Tp, the same batch a GPU=float.2; "
        "efficiency=percent; against 32 a GPU, as the lab's tables=float.2"
    )
    table = []
    for batch in BATCHES:
        for p in runs:
            found = {r["batch"]: r["epoch_s"] for r in rows(runs, p, "epochs")}
            alone = {r["batch"]: r["epoch_s"] for r in rows(runs, 1, "epochs")}
            if batch not in found:
                continue
            gain = alone[batch] / found[batch] if batch in alone else None
            table.append(
                (batch, p, found[batch], round(runs[p]["about"]["images"] / found[batch]), gain,
                 gain and gain / p, found[32] / found[batch])
            )  # fmt: skip
    return markdown(columns, table)


def step_times(runs: Runs, p: int) -> dict[tuple[int, str], float]:
    """Return the seconds of a step by batch and variant."""
    return {(r["batch"], r["variant"]): r["step_s"] for r in rows(runs, p, "steps")}


def steps(runs: Runs) -> str:
    """Return where the time of a step goes that one GPU does not need (question 3.1)."""
    columns = (
        "images a GPU=int; GPUs=int; alone: computing=s; DDP without messages, longer by=s; "
        "gradients, then=s; buffers, then=s; all=s; exposed, of the step=percent; "
        "buckets of 1 MiB, longer by=s; one bucket, longer by=s; gradients as views, longer by=s"
    )
    table = []
    for batch in BATCHES:
        for p in runs:
            found = step_times(runs, p)
            if p == 1 or (batch, "all") not in found:
                continue
            alone, silent, gradients, whole = (
                found[batch, name] for name in ("alone", "no messages", "gradients", "all")
            )
            others = (found.get((batch, name)) for name in
                      ("buckets of 1 MiB", "one bucket", "view"))  # fmt: skip
            table.append(
                (batch, p, alone, silent - alone, gradients - silent, whole - gradients, whole,
                 (whole - alone) / whole, *(o and o - whole for o in others))
            )  # fmt: skip
    return markdown(columns, table)


def bandwidth(runs: Runs) -> str:
    """Return the collectives by themselves and their bandwidths (question 3.2)."""
    columns = (
        "GPUs=int; collective; bytes=B; by itself=s; algorithm bandwidth=B/s; bus bandwidth=B/s"
    )
    table = []
    for p in runs:
        for r in rows(runs, p, "collective"):
            rate = r["bytes"] / r["seconds"]
            bus = rate * 2 * (p - 1) / p if r["collective"].startswith("all") else rate
            table.append((p, r["collective"], r["bytes"], r["seconds"], rate, bus))
    return markdown(columns, table)


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


def messages(runs: Runs) -> str:
    """Return what is sent besides gradients, phase by phase (question 6)."""
    p = largest(runs, "messages")
    if p is None:
        return NOT_YET
    columns = "DDP; phase; collective; how many=int; elements=int; largest=int"
    table = []
    for row in rows(runs, p, "messages"):
        counted: dict[str, list[int]] = {}
        for kind, size in collectives(row["events"]):
            counted.setdefault(kind, []).append(size)
        how = " ".join(WORDS[key] for key in row["how"]) or "as it is"
        for kind, sizes in sorted(counted.items()):
            table.append((how, row["phase"], kind, len(sizes), sum(sizes), max(sizes)))
    own = rows(runs, p, "tensors")[0]
    return (
        f"On {p} GPUs, as torch.profiler records the calls of c10d on rank 0. The network has "
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


def _training(settings: dict[str, list[dict[str, Any]]], gpus: int) -> Iterator[tuple[Any, ...]]:
    for name, mine in settings.items():
        last = [row["curve"][-1] for row in mine]
        yield (
            name, gpus, mine[0]["batch"], f"{mine[0]['rate']:g}", len(mine),
            _spread([one["loss"] for one in last]),
            _spread([one["train_accuracy"] for one in last]),
            _spread([statistics.fmean(row["test_accuracy"]) for row in mine]),
        )  # fmt: skip


LARGE: Final = (
    "setting; GPUs=int; images a GPU=int; rate; runs=int; training loss, epoch 5 (± s); "
    "training accuracy, epoch 5 (± s); test accuracy (± s)"
)


def large(runs: Runs) -> str:
    """Return the large batch beside the small one (question 4)."""
    table = [
        row for p in runs for row in _training(_by_setting(rows(runs, p, "large")), p)
        if row[0] in ("reference", "base", "scaled", "rule")
    ]  # fmt: skip
    return markdown(LARGE, table)


def replicas(runs: Runs) -> str:
    """Return how far replicas are from each other after five epochs (questions 6 and 7)."""
    p = largest(runs, "large")
    if p is None or p == 1:
        return NOT_YET
    columns = (
        "setting; runs=int; parameters differ by up to; buffers differ by up to; "
        "test accuracy, over runs (± s); test accuracy, rank by rank, first run"
    )
    table = []
    for name, mine in _by_setting(rows(runs, p, "large")).items():
        if name in ("base", "scaled"):
            continue
        ranks = ", ".join(f"{v:.4f}" for v in mine[0]["test_accuracy"])
        table.append(
            (name, len(mine), f"{max(r['parameters_apart'] for r in mine):.3g}",
             f"{max(r['buffers_apart'] for r in mine):.3g}",
             _spread([statistics.fmean(r["test_accuracy"]) for r in mine]), ranks)
        )  # fmt: skip
    return markdown(columns, table)


def sampler(runs: Runs) -> str:
    """Return training with and without the epoch given to the sampler (question 5)."""
    p = largest(runs, "sampler")
    if p is None:
        return NOT_YET
    columns = (
        "setting; runs=int; images that rank 0 saw=int; of all=percent; training loss, last (± s); "
        "training accuracy, last (± s); test accuracy (± s)"
    )
    table = []
    for name, mine in _by_setting(rows(runs, p, "sampler")).items():
        last = [row["curve"][-1] for row in mine]
        seen = statistics.fmean(row["distinct_images"] for row in mine)
        table.append(
            (name, len(mine), round(seen), seen / mine[0]["images"],
             _spread([one["loss"] for one in last], ".4f"),
             _spread([one["train_accuracy"] for one in last], ".4f"),
             _spread([statistics.fmean(row["test_accuracy"]) for row in mine], ".4f"))
        )  # fmt: skip
    epochs_ = Counter(len(row["curve"]) for row in rows(runs, p, "sampler")).most_common(1)[0][0]
    first = rows(runs, p, "sampler")[0]
    return (
        f"{epochs_} epochs of {first['images']:,} images on {p} GPUs, {first['batch']} a GPU.\n\n"
        f"{markdown(columns, table)}"
    )


def main() -> None:
    put_parts(PAGE, SCRIPT, parts(lab()))


if __name__ == "__main__":
    main()
