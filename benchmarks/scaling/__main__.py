"""Makes the tables and pictures of docs/scaling.md from the published study and committed results.

    python -m benchmarks.scaling

Needs no GPU: it reads profiles/campaign, profiles/launches, profiles/scale, and of
benchmarks/results/ the files all_reduce.json, ladder.json, machine_h200x4.toml, predict_scale.json,
resnet.json and scaling_P.json of the host with the most GPUs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from studies import ddp
from studies.ddp_errata import errata

from benchmarks.common import folders, results
from benchmarks.common.arguments import report
from benchmarks.common.pages import Shown, markdown, put_parts
from benchmarks.scaling import communication, programs, steps, sums
from perfmodel.base.table import render
from perfmodel.machines.measure.measurement import load
from perfmodel.models.scaling_laws import fit, karp_flatt, weak_fraction
from perfmodel.readers import read
from perfmodel.render.plot import save
from perfmodel.render.plot.studies import Scaling
from perfmodel.render.plot.studies import scaling as draw
from perfmodel.studies.analysis.measure import Launch, launches_of
from perfmodel.studies.analysis.scaling import (
    Bandwidth,
    ScalingSeries,
    Study,
    of_launches,
    of_machine,
    study,
)
from perfmodel.studies.mlp.model import MLP_MODEL
from perfmodel.studies.render.scaling import bandwidth_table, picture, split_table

PAGE: Final = folders.DOCS / "scaling.md"
IMAGES: Final = folders.IMAGES
RESULTS: Final = folders.RESULTS
SUMS: Final = RESULTS / "all_reduce.json"
LAUNCHES: Final = folders.PROFILES / "launches"
SCRIPT: Final = "benchmarks.scaling"
RUNGS: Final = (
    "document", "pinned", "resident", "chunked", "nccl", "graph", "fused x3", "peer x3",
    "model graph", "torch ddp_eager", "torch graph_branches",
)  # fmt: skip
SIZES: Final = ((64, 3200), (512, 3000), (2048, 12000))
NET: Final = "resnet18"
MATH: Final = "fp32"
GPUS: Final = (2, 4)
COLUMNS: Final = (
    "batch per GPU=int; GPUs=int; step of one GPU=s; step of all=s; T1 / Tp=float.3; "
    "efficiency=percent; longer by=s; the all-reduce alone=s; longer by, in forward=s; "
    "in backward=s"
)
SHOWN: Final = {
    "published": Shown(r"\| [24] \|", r"batch|^GPUs|T1|efficiency"),
    "published 3": Shown(),
    "published 4": Shown(r"^\| bandwidth"),
    "campaign": Shown("H=2048", "strong|^p=|efficiency|Amdahl"),
    "campaign 2": Shown(),
    "split": Shown("B=12000 H=2048", "Ranks|Batch|Kernels|Exposed|Copies"),
    "launches": Shown(),
    "launches 2": Shown(),
    "eight": Shown(r"B=12000 H=2048 (nccl on device graph|peer.*|host) \|", "strong|^p=|^8"),
    "ladder": Shown(r"^\| (document|graph|fused x3|peer x3|torch ddp_eager) ", "step|H=2048"),
    "steps": Shown(),
    "steps 2": Shown(),
    "bandwidth": Shown(r"[NM]\w+ \| 4 \| (65.5 kB|1.63 MB|4.10 kB)", "Meas|Through|Size|Time|Bus"),
    "sums": Shown(r"\| (4.10 kB|1.05 MB|268 MB)", "size|step"),
    "programs": Shown("", "report|^step|computing|exposed|waiting|last"),
    "programs 2": Shown(),
    "communication": Shown(r"\| 8 \|", "communication|mean"),
    "communication 2": Shown(),
    "resnet": Shown(r"\| 4 \|", "batch|step|T1|efficiency|longer by$"),
}  # fmt: skip
"""What the page shows of its long tables; docs/data/scaling has them whole."""
_NCCL: Final = (
    "p2_nccl_device_H128_B3000", "p2_nccl_device_graph_H512_B3000",
    "p2_nccl_device_H4096_B12000", "p4_nccl_device_H512_B3000",
    "p4_nccl_device_fused_tf32x3_graph_H2048_B3000",
)  # fmt: skip


def main() -> None:
    report(__doc__)
    campaign = of_campaign()
    rungs = ladder(2048, 12000)
    save(picture(campaign, all_reduces(campaign)), IMAGES, "scaling_campaign", ("png",))
    save(draw(list(_rung_curves(rungs))), IMAGES, "scaling_ladder", ("png",))
    save(sums.picture(results.read(SUMS)), IMAGES, "scaling_sums", ("png",))
    put_parts(PAGE, SCRIPT, parts(campaign), SHOWN)


def parts(campaign: Study) -> dict[str, str]:
    """Return the generated parts of the page by name."""
    launches = of_visits()
    reduced = all_reduces(campaign)
    found = {
        "published": published(),
        "resnet": resnets(reduced),
        "campaign": f"{summary(campaign, 'strong')}\n\n{summary(campaign, 'weak')}",
        "split": render(replace(split_table(campaign), notes=()), "markdown"),
        "launches": f"{summary(launches, 'strong')}\n\n{summary(launches, 'weak')}",
        "eight": on_eight(of_visits(folders.PROFILES / "scale" / "launches.json")),
        "ladder": ladder_table(),
        "bandwidth": render(replace(bandwidth_table(reduced), notes=()), "markdown"),
        "sums": sums.table(results.read(SUMS)),
        "programs": programs.text(),
        "communication": communication.text(
            results.read(RESULTS / "predict_scale.json"),
            results.read(folders.PROFILES / "scale" / "launches.json"),
        ),
    }
    if files := folders.each(RESULTS, "scaling_[248].json"):
        found["steps"] = steps.tables(results.read(files[-1]))
    return found


def of_campaign() -> Study:
    """Read the campaign's reports of 1, 2 and 4 ranks on one host."""
    paths = sorted((folders.PROFILES / "campaign").glob("h200x4_p[124]_host_float32_*.sqlite.xz"))
    return study(launches_of([read(path) for path in paths]))


def of_visits(file: Path = LAUNCHES / "launches.json") -> Study:
    """Take the recorded launches of configurations that more than one number of ranks has."""
    found = []
    for row in results.read(file)["launches"]:
        if row["recorded"] and "settings" in row:
            sizes = {k: v for k, v in row["sizes"].items() if k != "p"}
            found.append(Launch(
                label=f"{row['name']}, launch {row['launch']}", source="report",
                ranks=row["sizes"]["p"], sizes=sizes, settings=row["settings"],
                seconds=np.array([[row["batch_s"]]]), calibrated=MLP_MODEL,
            ))  # fmt: skip
    return study(found)


def ladder(hidden: int, batch: int) -> dict[str, dict[int, float]]:
    """Return the float32 seconds of a batch by rung and number of GPUs at one size."""
    rows = results.read(RESULTS / "ladder.json")["rows"]
    found: dict[str, dict[int, float]] = {name: {} for name in RUNGS}
    for row in rows:
        if (row["H"], row["B"], row["dtype"]) != (hidden, batch, "fp32"):
            continue
        if row["rung"] in found and row["valid"] and row["median_s"]:
            found[row["rung"]][row["p"]] = row["median_s"]
    for name, other in steps.ALONE.items():
        found[name] = {1: found[other][1], **found[name]}
    return found


def resnets(all_reduces: tuple[Bandwidth, ...]) -> str:
    """Return the DDP study once more on H200s, by benchmarks.resnet, and Gustafson's law."""
    record = results.read(RESULTS / "resnet.json")
    size = 4 * next(r["parameters"] for r in record["theory"]["rows"] if r["net"] == NET)
    rows = sorted(row for p in GPUS for row in _resnet_rows(record, p, all_reduces, size))
    said = []
    for batch in sorted({row[0] for row in rows}):
        mine = [row for row in rows if row[0] == batch]
        law = fit("Gustafson", [row[1] for row in mine], [row[4] for row in mine], None)
        said.append(f"{law.serial:.3f} (batch {batch})")
    table = markdown(COLUMNS, rows)
    return (
        f"Gradients of {size / 1e6:.1f} MB are summed in each step. Gustafson's law fitted to 2 "
        f"and 4 GPUs: s = {', '.join(said)}.\n\n{table}"
    )


def _resnet_rows(
    record: dict[str, Any], gpus: int, all_reduces: tuple[Bandwidth, ...], size: int
) -> list[tuple[Any, ...]]:
    """Return a row per batch on some GPUs."""
    times = {
        (r["batch"], r["mode"]): r
        for r in record[f"ddp{gpus}"]["rows"]
        if (r["net"], r["math"]) == (NET, MATH)
    }
    ring_s = all_reduce_s(all_reduces, gpus, size)
    found = []
    for batch in sorted({batch for batch, _ in times}):
        one, all_of_them = times[batch, "alone"], times[batch, "ddp"]
        alone, together = one["total_s"], all_of_them["total_s"]
        longer = [all_of_them[k] - one[k] for k in ("total_s", "forward_s", "backward_s")]
        found.append(
            (batch, gpus, alone, together, gpus * alone / together, alone / together, longer[0],
             ring_s, *longer[1:])
        )  # fmt: skip
    return found


def all_reduce_s(all_reduces: tuple[Bandwidth, ...], gpus: int, size: int) -> float:
    """Return NCCL's seconds for `size` bytes at the bus bandwidth of the largest one measured."""
    mine = [b for b in all_reduces if b.through == "NCCL" and b.source != "training"]
    largest = max(mine, key=lambda b: b.bytes)
    return 2 * (gpus - 1) / gpus * size / largest.bus_bytes_per_s


def published() -> str:
    """Return the study's tables recomputed, and its errors."""
    runs = markdown(
        "batch per GPU=int; GPUs=int; time (s)=float.2; speed-up as printed=float.3; "
        "time at the smaller batch / this=float.3; T1 / Tp=float.3; efficiency=percent; "
        "serial fraction=float.3",
        [
            (r.batch_per_gpu, r.gpus, r.time_s, r.speedup, ddp.against_smaller_batch(r),
             ddp.speedup(r), ddp.speedup(r) / r.gpus,
             weak_fraction(ddp.speedup(r), r.gpus) if r.gpus > 1 else None)
            for r in ddp.study().runs
        ],
    )  # fmt: skip
    strong = markdown(
        "batch of all GPUs=int; GPUs=int; one GPU (s)=float.2; these (s)=float.2; "
        "strong speed-up=float.3; Karp-Flatt=float.3",
        [(b.batch, b.gpus, a.time_s, b.time_s, s, karp_flatt(s, b.gpus))
         for a, b, s in ddp.strong()],
    )  # fmt: skip
    wrong = markdown("the study says; its numbers say", [(e.claim, e.finding) for e in errata()])
    return "\n\n".join([runs, strong_text(), strong, _bandwidth_cells(), wrong])


def strong_text() -> str:
    """Say what Gustafson's law makes of each batch."""
    said = []
    for size in ddp.study().batches_per_gpu:
        found = fit("Gustafson", [2, 4], [ddp.speedup(ddp.run(size, p)) for p in (2, 4)], None)
        assert found.misfit is not None
        said.append(
            f"{found.serial:.3f} (batch {size}; misses by up to {100 * found.misfit:.0f} %)"
        )
    return f"Gustafson's law: s = {', '.join(said)}. Strong scaling:"


def _bandwidth_cells() -> str:
    gigabytes = ddp.study().dataset_gigabytes
    columns = (
        "batch per GPU=int", "GPUs=int", "compute (s)=float.3", '"communication" (s)=float.4',
        "neither, of the run=percent", "GB/s as printed=float.4", "which are (GB)=float.4",
        f"GB/s of {gigabytes} GB=float.4", "bus GB/s of that=float.4",
    )  # fmt: skip
    return markdown(columns, [
        (c.batch_per_gpu, c.gpus, c.compute_s, c.communication_s, c.neither_s / c.run.time_s,
         c.bandwidth_gigabytes_per_s, c.data_bytes / 1e9, gigabytes / c.communication_s,
         c.bus_bytes_per_s(gigabytes * 1e9) / 1e9)
        for c in ddp.study().communication
    ])  # fmt: skip


def summary(found: Study, kind: str) -> str:
    """Return a line for every series that has a run of one rank, by settings and sizes."""
    mine = [s for s in found.series if s.kind == kind and s.fit is not None]
    mine.sort(key=lambda s: (sorted(s.settings.items()), sorted(s.sizes.items())))
    law, share = ("Amdahl", "Karp-Flatt") if kind == "strong" else ("Gustafson", "serial share")
    columns = (
        f"{kind} scaling", *(f"p={p}=s" for p in (1, 2, 4)), "speed-up, 2", "speed-up, 4",
        "efficiency, most=percent.0", f"{share}, 2=float.2", f"{share}, 4=float.2",
        f"{law}'s s, 95 %", "misses by=percent.0",
    )  # fmt: skip
    return markdown(columns, map(_row, mine))


def _row(series: ScalingSeries) -> tuple[object, ...]:
    at = {p.ranks: p for p in series.points}
    law = series.fit
    assert law is not None
    return (
        series.label, *(at[p].batch_s if p in at else None for p in (1, 2, 4)),
        *(steps.speedup(at[p]) if p in at else None for p in (2, 4)),
        series.points[-1].efficiency, *(at[p].serial_fraction if p in at else None for p in (2, 4)),
        f"{law.serial:.2f} ({law.low:.2f} to {law.high:.2f})", law.misfit,
    )  # fmt: skip


def on_eight(found: Study) -> str:
    """Return strong scaling from 2 to 8 GPUs of one host, where no launch has one GPU."""
    mine = sorted(
        (s for s in found.series if s.kind == "strong"),
        key=lambda s: (sorted(s.sizes.items()), sorted(s.settings.items())),
    )
    ranks = (2, 4, 8)
    columns = (
        "strong scaling", *(f"p={p}=s" for p in ranks), *(f"{p} GPUs over 2" for p in ranks[1:]),
        "efficiency, 8 against 2=percent.0",
    )  # fmt: skip
    rows = []
    for series in mine:
        at = {p.ranks: p for p in series.points}
        rows.append(
            (series.label, *(at[p].batch_s for p in ranks),
             *(steps.speedup(at[p]) for p in ranks[1:]), at[8].efficiency)
        )  # fmt: skip
    return markdown(columns, rows)


def ladder_table() -> str:
    """Return speed-ups of the steps at three sizes on 2, 4 and 8 GPUs, and Amdahl's s at one."""
    by_size = {size: ladder(*size) for size in SIZES}
    timed = {
        size: sorted({p for at in found.values() for p in at if p > 1})
        for size, found in by_size.items()
    }
    last = timed[SIZES[-1]]
    columns = [
        "optimization step",
        *(f"H={h} B={b}, {p} GPUs=float.2" for (h, b), ranks in timed.items() for p in ranks),
        "Amdahl's s, last size=float.3", *(f"Karp-Flatt, {p}=float.3" for p in last),
    ]  # fmt: skip
    rows = []
    for name in RUNGS:
        speedups = {
            size: [found[name][1] / found[name][p] for p in timed[size]]
            for size, found in by_size.items()
        }
        at_last = speedups[SIZES[-1]]
        law = fit("Amdahl", last, at_last, None)
        said = [karp_flatt(s, p) for s, p in zip(at_last, last, strict=True)]
        rows.append((name, *(s for each in speedups.values() for s in each), law.serial, *said))
    return markdown(columns, rows)


def all_reduces(campaign: Study) -> tuple[Bandwidth, ...]:
    """Return all-reduces by size, in training and by the machine's measurement."""
    reports = launches_of([read(LAUNCHES / f"{name}.sqlite.xz") for name in _NCCL])
    in_training = of_launches([*campaign.launches, *reports])
    return in_training + of_machine(load(RESULTS / "machine_h200x4.toml"))


def _rung_curves(rungs: dict[str, dict[int, float]]) -> Iterator[Scaling]:
    for name in ("document", "pinned", "graph", "fused x3", "model graph", "torch ddp_eager"):
        ranks = tuple(sorted(rungs[name]))
        speedups = tuple(rungs[name][1] / rungs[name][p] for p in ranks)
        efficiency = tuple(s / p for s, p in zip(speedups, ranks, strict=True))
        yield Scaling(name, "strong", ranks, speedups, efficiency)


if __name__ == "__main__":
    main()
