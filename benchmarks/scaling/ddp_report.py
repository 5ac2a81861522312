"""Writes what docs/ddp.md shows of the DDP lab, from results of benchmarks.resnet and .ddp_lab.

python -m benchmarks.scaling.ddp_report

Times are of GPUs: resnet.json (ddp2 and ddp4), ddp_lab_1.json, ddp_lab_2.json. Training is of one
GPU, of two, of four ranks that share two (ddp_lab_4x512.json), and of four that one process
emulates (ddp_lab_emulated.json); messages, replicas and the sampler also of four ranks on a CPU
(ddp_lab_4.json).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

from studies.ddp import study

from benchmarks.common import folders
from benchmarks.common.arguments import report
from benchmarks.common.pages import markdown, percent, put_parts, written_in
from benchmarks.common.results import called
from benchmarks.common.results import read as read_json
from perfmodel.base.units import si
from perfmodel.studies.analysis.tta import welch

PAGE: Final = folders.DOCS / "ddp.md"
SCRIPT: Final = "benchmarks.scaling.ddp_report"
GPUS: Final = (2, 4)
BATCHES: Final = (32, 128, 512)
IMAGES: Final = 50_000
"""Of an epoch of CIFAR-10."""
ASKED: Final = 5
"""The epoch after which the lab asks for loss and accuracy."""
FILES: Final = ("1", "2", "4", "4x512", "emulated")
"""Results of the lab by the name of their file."""
LARGE: Final = ("1", "2", "4x512", "emulated")
"""Files with training by the size of the batch."""
RATES: Final = {
    "reference": "", "base": "the same", "scaled": "times 16",
    "rule": "times 16, 2 epochs of warm-up", "long warm-up": "times 16, 6 epochs of warm-up",
    "root": "times 4, 2 epochs of warm-up",
}  # fmt: skip
"""Settings that differ in the learning rate, or in the statistics of batch normalization."""
SENT: Final = ("gradients only", "other starts", "SyncBatchNorm")
"""Settings that differ from DDP as it is in what is sent."""
WORDS: Final = {"broadcast_buffers": "no buffers", "bucket_cap_mb": "buckets of 1 MiB"}

written: Final = written_in(Path(__file__).with_name("ddp.md"))

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


@cache
def lab(name: str) -> dict[str, Any]:
    """Return the results of the lab by the name of their file; nothing where there is none."""
    return read_json(folders.RESULTS / f"ddp_lab_{name}.json")


def rows(name: str, part: str) -> list[Row]:
    """Return the rows of a part of the lab."""
    return [row for row in lab(name).get("rows", ()) if row["part"] == part]


def parts() -> dict[str, str]:
    """Return the generated parts of the page by name."""
    return {
        "runs": runs(), "epochs": epochs(), "own epochs": own_epochs(), "steps": steps(),
        "variants": variants(), "messages": messages(), "replicas": replicas(),
        "sampler": sampler(), "large batch": large_batch(),
    }  # fmt: skip


def where(name: str) -> str:
    """Say what the ranks of a file ran on."""
    about = lab(name)["about"]
    ranks, gpus = about["ranks"], about.get("gpus", about["ranks"])
    if about["device"] == "CPU":
        return f"{ranks} ranks on a CPU, gloo"
    device = about["device"].removeprefix("NVIDIA ")
    if ranks == 1:
        return f"1 {device}"
    if about.get("backend") == "emulated":
        return f"{ranks} emulated on 1 {device}"
    shared = "" if ranks == gpus else f"{ranks} ranks on "
    return f"{shared}{gpus} {device}, {about.get('backend', 'nccl')}"


def runs() -> str:
    """Say where, when and how the lab was run, a line a file."""
    lines = []
    for name in FILES:
        read = lab(name)
        every = read["commands"].values() if "commands" in read else [[read["command"]]]
        commands = dict.fromkeys(f"`{command}`" for each in every for command in each)
        lines.append(f"- {where(name)}, torch {read['about']['torch']}, {read['date']}: "
                     f"{', '.join(commands)}.")  # fmt: skip
    return "\n".join(lines)


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


def own_epochs() -> str:
    """Return epochs of the lab's own case, 50,000 images of 3 x 32 x 32, on one GPU and two.

    That of one GPU is its steps, timed on the host of the two: hosts launch at different speeds.
    """
    columns = (
        "images a GPU=int; one GPU, its steps on this host=s; two GPUs=s; T1 / T2=float.2; "
        "efficiency=percent; one GPU of another host=s"
    )
    alone = {r["batch"]: r["step_s"] for r in rows("2", "steps") if r["variant"] == "alone"}
    two, other = ({r["batch"]: r["epoch_s"] for r in rows(name, "epochs")} for name in ("2", "1"))
    published = {(run.batch_per_gpu, run.gpus): run.time_s for run in study().runs}
    values: dict[str, str] = {}
    table = []
    for batch in BATCHES:
        one = math.ceil(IMAGES / batch) * alone[batch]
        gain = one / two[batch]
        table.append((batch, one, two[batch], gain, gain / 2, other[batch]))
        values |= {
            f"gain{batch}": f"{gain:.2f}", f"step{batch}": si(alone[batch], "s"),
            f"published{batch}": f"{published[batch, 1] / published[batch, 2]:.2f}",
        }  # fmt: skip
    return f"{markdown(columns, table)}\n\n{written('own epochs', **values)}"


def variants() -> str:
    """Return what each message of DDP adds to a step on two GPUs (question 3)."""
    names = list(dict.fromkeys(row["variant"] for row in rows("2", "steps")))
    columns = ("images a GPU=int", *(f"{name}=s" for name in names))
    table = []
    for batch in BATCHES:
        found = {r["variant"]: r["step_s"] for r in rows("2", "steps") if r["batch"] == batch}
        table.append((batch, *(found[name] for name in names)))
    text = written("variants", **_messages_cost())
    return f"{markdown(columns, table)}\n\n{text}"


def _messages_cost() -> dict[str, str]:
    """Return what each message adds to a step on two GPUs, in words."""
    found = {(r["batch"], r["variant"]): r["step_s"] for r in rows("2", "steps")}
    large = {name: step_s for (batch, name), step_s in found.items() if batch == BATCHES[-1]}
    alone = {r["collective"]: r["seconds"] for r in rows("2", "collective")}
    added = [found[batch, "all"] - found[batch, "alone"] for batch in BATCHES[:-1]]
    others = [
        found[batch, name] / found[batch, "all"] - 1
        for batch in BATCHES for name in ("buckets of 1 MiB", "one bucket")
    ]  # fmt: skip
    gradients = large["gradients"] - large["no messages"]
    all_reduce = alone["all-reduce of gradients"]
    return {
        "more": si(large["all"] - large["alone"], "s"),
        "share": percent(large["all"] / large["alone"] - 1),
        "none": si(large["no messages"] - large["alone"], "s"), "gradients": si(gradients, "s"),
        "buffers": si(large["all"] - large["gradients"], "s"),
        "all_reduce": f"{si(all_reduce, 's')} (all-reduce)",
        "broadcast": f"{si(alone['broadcast of buffers'], 's')} (broadcast)",
        **{f"share{batch}": percent(found[batch, "all"] / found[batch, "alone"] - 1, 0)
           for batch in BATCHES[:-1]},
        "small": si(min(added), "s"), "large": si(max(added), "s"),
        "least": percent(min(others), signed=True), "most": percent(max(others), signed=True),
    }  # fmt: skip


def large_batch() -> str:
    """Return training by the size of the batch (question 4): after five epochs, and the last."""
    columns = (
        "batch; where; learning rate; runs=int; rate=float.2; training loss, epoch 5 (± s); "
        "training accuracy, epoch 5 (± s); epochs=int; training accuracy, last (± s); "
        "test accuracy, last (± s)"
    )
    names = [name for name in LARGE if rows(name, "large")]
    table = []
    for name in names:
        ranks = lab(name)["about"]["ranks"]
        for setting, mine in _by_setting(rows(name, "large")).items():
            if setting not in RATES:
                continue
            table.append(
                (f"{ranks} x {mine[0]['batch']}", where(name), RATES[setting], len(mine),
                 mine[0]["rate"], _spread(_curve(mine, "loss", ASKED)),
                 _spread(_curve(mine, "train_accuracy", ASKED)), len(mine[0]["curve"]),
                 _spread(_curve(mine, "train_accuracy")), _spread(_tests(mine)))
            )  # fmt: skip
    images = rows(names[0], "large")[0]["images"]
    text = written("large batch", **_large_batch_values())
    return f"An epoch has {images:,} images.\n\n{markdown(columns, table)}\n\n{text}"


def _curve(mine: list[Row], key: str, epoch: int = 0) -> list[float]:
    """Return a number of every run after an epoch; after the last by default."""
    return [row["curve"][epoch - 1][key] for row in mine]


def _large_batch_values() -> dict[str, str]:
    """Return the numbers of the text on large batches."""
    one, four = rows("1", "large"), rows("4x512", "large")
    rates = _by_setting(rows("emulated", "large"))
    real = [row for row in four if row["setting"] == "base"]
    small, large = (one[0]["images"] // size for size in (128, 2048))
    found = {
        "small_loss": _spread(_curve(one, "loss", ASKED)),
        "small_accuracy": _spread(_curve(one, "train_accuracy", ASKED)),
        "small_test": _spread(_tests(one)),
        "real_loss": _spread(_curve(real, "loss", ASKED)),
        "real_accuracy": _spread(_curve(real, "train_accuracy", ASKED)),
        "small_steps": str(small), "large_steps": str(large),
        "epochs": str(len(rates["base"][0]["curve"])), "seeds": str(len(rates["base"])),
    }  # fmt: skip
    gain = welch(*(_curve(rates[n], "train_accuracy") for n in ("base", "long warm-up")))
    if gain:
        found["gain"] = f"{gain.value:+.3f} ({gain.low:+.3f} to {gain.high:+.3f}, 95 %)"
    found["least"] = f"{min(_curve(rates['rule'], 'train_accuracy')):.3f}"
    pair = _by_setting(rows("2", "large"))
    found["real_batch"] = str(pair["base"][0]["batch"])
    for name in ("rule", "scaled", "base"):
        found[f"real_{name}"] = _spread(_curve(pair[name], "train_accuracy"))
    found["real_base_test"] = _spread(_tests(pair["base"]))
    for name, mine in rates.items():
        key = name.replace(" ", "_").replace("-", "_")
        found[f"{key}_accuracy"] = _spread(_curve(mine, "train_accuracy"))
        found[f"{key}_test"] = _spread(_tests(mine))
        found[f"{key}_five"] = _spread(_curve(mine, "train_accuracy", ASKED))
    return found


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
    table = _counted("4")
    same = (
        f"\n\nOn {where('2')}, these are the same numbers, row by row."
        if _counted("2") == table else ""
    )  # fmt: skip
    own = rows("4", "tensors")[0]
    return (
        f"{where('4')}: the calls of c10d on rank 0 by torch.profiler. ResNet-18 has "
        f"{own['parameters']:,} parameters in {own['parameter_tensors']} tensors and "
        f"{own['buffers_bytes']:,} bytes of buffers in {own['buffer_tensors']}.\n\n"
        f"{markdown(columns, table)}{same}"
    )


def _counted(name: str) -> list[tuple[Any, ...]]:
    """Return the collectives of every phase by kind: how many, of how many elements, largest."""
    found = []
    for row in rows(name, "messages"):
        counted: dict[str, list[int]] = {}
        for kind, size in collectives(row["events"]):
            counted.setdefault(kind, []).append(size)
        how = " ".join(WORDS[key] for key in row["how"]) or "as it is"
        found += [
            (how, row["phase"], kind, len(sizes), sum(sizes), max(sizes))
            for kind, sizes in sorted(counted.items())
        ]
    return found


def _by_setting(found: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    settings: dict[str, list[dict[str, Any]]] = {}
    for row in found:
        settings.setdefault(row["setting"], []).append(row)
    return settings


def _spread(values: list[float], form: str = ".3f") -> str:
    deviation = f" ± {statistics.stdev(values):{form}}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):{form}}{deviation}"


def replicas() -> str:
    """Return how far replicas are from each other after some epochs (questions 6 and 7)."""
    columns = (
        "where; images a rank=int; what is sent; runs=int; rate=float.2; "
        "parameters differ by up to; buffers differ by up to; training loss, last (± s); "
        "test accuracy, rank by rank, first run"
    )
    table = []
    names = [name for name in ("4x512", "2", "4") if rows(name, "large")]
    for name in names:
        found = _by_setting(rows(name, "large"))
        same = found["gradients only"][0]["rates"]
        for setting, title in {same: "DDP as it is", **{n: n for n in SENT}}.items():
            mine = found.get(setting, [])
            if not mine:
                continue
            ranks = ", ".join(f"{v:.4f}" for v in mine[0]["test_accuracy"])
            table.append(
                (where(name), mine[0]["batch"], title, len(mine), mine[0]["rate"],
                 f"{max(r['parameters_apart'] for r in mine):.3g}",
                 f"{max(r['buffers_apart'] for r in mine):.3g}",
                 _spread([r["curve"][-1]["loss"] for r in mine]), ranks)
            )  # fmt: skip
    steps_ = rows("4x512", "emulation")
    equal = written(
        "emulation", batch=str(steps_[0]["batch"]), first=f"{steps_[0]['parameters_apart']:.1g}",
        largest=f"{steps_[0]['parameters_largest']:.2g}", count=str(steps_[-1]["step"]),
        last=f"{steps_[-1]['parameters_apart']:.1g}",
    )  # fmt: skip
    return f"{markdown(columns, table)}\n\n{equal}"


def sampler() -> str:
    """Return training with and without the epoch given to the sampler (question 5)."""
    columns = (
        "where; images; epochs=int; setting; runs=int; images that rank 0 saw=int; of all=percent; "
        "training loss, last (± s); training accuracy, last (± s); test accuracy (± s)"
    )
    table, tested = [], []
    names = [name for name in ("4", "2", "emulated") if rows(name, "sampler")]
    for name in names:
        settings = _by_setting(rows(name, "sampler"))
        for setting, mine in settings.items():
            last = [row["curve"][-1] for row in mine]
            seen = statistics.fmean(row["distinct_images"] for row in mine)
            table.append(
                (where(name), f"{mine[0]['images']:,}, {mine[0]['batch']} a rank",
                 len(mine[0]["curve"]), setting, len(mine), round(seen), seen / mine[0]["images"],
                 _spread([one["loss"] for one in last]),
                 _spread([one["train_accuracy"] for one in last]), _spread(_tests(mine)))
            )  # fmt: skip
        apart = welch(_tests(settings["no set_epoch"]), _tests(settings["set_epoch"]))
        if apart:
            tested.append(
                f"{where(name)}: test accuracy with the epoch minus without: {apart.value:+.3f} "
                f"({apart.low:+.3f} to {apart.high:+.3f}, 95 %; p = {apart.p:.2g}, Welch)."
            )
    return "\n\n".join([markdown(columns, table), *tested])


def _tests(found: list[Row]) -> list[float]:
    """Return the test accuracy of every run, mean over its ranks."""
    return [statistics.fmean(row["test_accuracy"]) for row in found]


def main() -> None:
    report(__doc__)
    put_parts(PAGE, SCRIPT, parts())


if __name__ == "__main__":
    main()
