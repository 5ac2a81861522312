"""docs/ladder.md and its picture, wholly made of benchmarks/results/ladder.json.

    python -m benchmarks.ladder.report

A test fails when docs/ladder.md is not what this makes of the committed results.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Final

from benchmarks.common import folders, results
from benchmarks.common.pages import Shown, microseconds, percent, short, shorten, table
from benchmarks.common.results import called
from benchmarks.ladder.configurations import RUNGS, Rung
from benchmarks.ladder.rows import coverage, launches
from benchmarks.ladder.sections import (
    cuda_aware,
    notes,
    products,
    profiles,
    ratio,
    sweep,
    targets,
    wide_loads,
    written,
)
from perfmodel.render.plot import save
from perfmodel.render.plot.bars import Dot, dots
from perfmodel.render.plot.style import DOUBLE_IN, Measure, legend_over, new_figure

Row = dict[str, Any]
Cells = dict[tuple[int, int, int, str], dict[str, Row]]
"""Rows by name, by (p, H, B, dtype)."""
SPLIT: Final = {rung.name for rung in RUNGS if rung.settings.get("math") == "tf32x3"}
"""Rungs of split products, which cuBLAS does not have."""
PEERS: Final = {
    "torch ddp_eager": "PyTorch DDP, eager",
    "torch ddp_compiled": "PyTorch DDP, compiled",
}
DRAWN: Final = (
    "document", "pinned", "resident", "nccl", "graph", "thin", "fused", "fused x3", "peer",
    "peer x3",
)  # fmt: skip
"""Of these the picture shows those that are the fastest of their kind: 7 or 8."""

SHOWN: Final = {
    "Result": Shown(r"^\| 2 ", "^(H|B|dtype|assignment|our best|PyTorch's best|ratio)$"),
    "Targets": Shown(r"^\| (2 GPUs|the same|never|hierarchical.*at 4096)"),
    "Method": Shown(),
    "Every step by number of GPUs": Shown(
        r"^\| 512 \| 3000 \| fp32 \| "
        r"(document|pinned|host-flat|prefetch|resident|nccl|graph|fused x3|peer x3|best.*) \|",
        "^(step|p = )",
    ),
    "Step by step, p = 2": Shown(),
    "register gemm": Shown(),
    "register gemm 2": Shown(),
    "CUDA-aware MPI beside the other transports": Shown("", "transport|512"),
    "The floor, term by term": Shown(r"^\| 2 \| 512 ", ".."),
    "Before and after, in profiles": Shown(r"^\| (document|resident \| nccl|nccl) ",
                                             "^(before|after|ratio|bottleneck addressed)$"),
    "The GEMMs alone": Shown("", "kernel|data type|1024|4096|8192"),
    "The GEMMs alone 2": Shown(r"^\| 512 \| 1500 \| fp32 \|", "^(GEMM|cuBLAS|our best|gain)"),
}  # fmt: skip
"""What the page shows of its long tables; docs/data/ladder has them whole."""
TIME, INVALID, BEST = "time of a batch", "invalid", "PyTorch, best whole graph"

TERMS: Final = {
    "gemm_s": "GEMMs", "elementwise_s": "element-wise", "allreduce_s": "all-reduce",
    "launch_s": "launches",
}  # fmt: skip


def cells(record: dict[str, Any]) -> Cells:
    """Group rows by p, H, B and dtype, in the order of the file."""
    found: Cells = {}
    for row in record["rows"]:
        found.setdefault((row["p"], row["H"], row["B"], row["dtype"]), {})[row["rung"]] = row
    return found


def main_ranks(found: Cells) -> int:
    """Return the p that text and picture are about: 2, or else the fewest of several, or 1."""
    several = sorted({p for p, *_ in found if p > 1})
    return 2 if 2 in several else several[0] if several else 1


def over_floor(row: Row) -> float | None:
    """Return the measured time in floors."""
    if row["median_s"] is None or not row["floor_s"]:
        return None
    return row["median_s"] / row["floor_s"]


def signed(seconds: float | None) -> str:
    """Write microseconds with their sign."""
    return "" if seconds is None else f"{seconds * 1e6:+.1f}"


def name_of(key: tuple[int, int, int, str]) -> tuple[str, str, str]:
    """Return H, B and dtype as table fields."""
    return str(key[1]), str(key[2]), key[3]


def sound(row: Row | None) -> bool:
    """Whether a row was timed and computed the right thing."""
    return row is not None and row["median_s"] is not None and row["valid"]


def best(rows: dict[str, Row]) -> Row | None:
    """Return the fastest sound rung of ours."""
    ours = [r for r in rows.values() if r["kind"] == "rung" and sound(r)]
    return min(ours, key=lambda r: r["median_s"], default=None)


def verdict(row: Row) -> str:
    """Say what the interval of the ratio allows to say."""
    if row["ratio"] is None:
        return "not compared"
    if row["ratio_high"] < 1:
        return "faster"
    return "slower" if row["ratio_low"] > 1 else "no difference seen"


def count(row: Row) -> int:
    """Return how many launches timed a row."""
    return len(row.get("launches") or [row])


def of_each(row: Row) -> str:
    """Write the ratio to PyTorch of every launch, the first one first."""
    ratios = [launch.get("ratio") for launch in launches(row)]
    return ", ".join(f"{found:.2f}" for found in ratios if found is not None)


def headline(found: Cells) -> str:
    """Return the best rung of every cell beside the document's program, PyTorch and the floor."""
    lines, verdicts = [], []
    for key, rows in found.items():
        ours = best(rows)
        if ours is None:
            continue
        document = rows.get("document")
        verdicts.append(verdict(ours))
        lines.append((
            str(key[0]), *name_of(key), microseconds(document["median_s"] if document else None),
            f"{ours['rung']} {microseconds(ours['median_s'])}",
            f"{(ours['peer'] or '').removeprefix('torch ')} {microseconds(ours['peer_median_s'])}",
            ratio(ours), of_each(ours), verdicts[-1], microseconds(ours["floor_s"]),
            short(over_floor(ours)), str(count(ours)),
        ))  # fmt: skip
    counts = ", ".join(
        f"{verdicts.count(v)} {v}"
        for v in ("faster", "no difference seen", "slower", "not compared")
        if v in verdicts
    )
    head = ("p", "H", "B", "dtype", "assignment", "our best", "PyTorch's best", "ratio",
            "of each launch", "our best is", "floor", "/ floor", "launches")  # fmt: skip
    return written("headline", counts=counts, table=table(head, lines))


def earlier(rung: Rung, rows: dict[str, Row]) -> Row | None:
    """Return the row of the rung that this one changes, or of the nearest one below it."""
    below = {r.name: r.after for r in RUNGS}
    name = rung.after
    while name is not None and not sound(rows.get(name)):
        name = below[name]
    return None if name is None else rows[name]


def rung_section(
    rung: Rung, found: Cells, ranks: int, steps: dict[str, Any] | None = None,
    gemm: dict[str, Any] | None = None,
) -> str:  # fmt: skip
    """Return what a rung changes and removes, and why it was not timed where it was not.

    `steps` and `gemm` are what benchmarks.gemm.steps and benchmarks.gemm measured.
    """
    rows = {key: of[rung.name] for key, of in found.items() if key[0] == ranks and rung.name in of}
    if not rows:
        return ""
    reasons = dict[str, list[str]]()
    for key, row in rows.items():
        if not sound(row):
            state = "not timed" if row["median_s"] is None else "invalid"
            reasons.setdefault(f"{state}: `{row['reason']}`", []).append(
                f"H = {key[1]}, B = {key[2]}, {key[3]}"
            )
    first = rung.change[0] if rung.change.startswith("z2") else rung.change[0].upper()
    text = f"### {rung.name}\n\n{first}{rung.change[1:]}."
    text += f" Removes {rung.removes}." if rung.removes else ""
    parts = [f"{text}\n"]
    if reasons:
        parts.append("".join(f"- {why} ({'; '.join(at)})\n" for why, at in reasons.items()))
    if steps and gemm and rung.settings.get("gemm") == "register":
        parts.append(wide_loads(steps, gemm))
    return "\n".join(parts) + "\n"


def step_table(found: Cells, ranks: int) -> str:
    """Return every rung's batch, its gain, and its ratios to PyTorch and to the floor."""
    lines = []
    for rung in RUNGS:
        settings = ", ".join(f"{k} = {v}" for k, v in rung.settings.items())
        for key, rows in found.items():
            row = rows.get(rung.name)
            if key[0] != ranks or row is None or not sound(row):
                continue
            before = earlier(rung, rows)
            gain, shown = None, ""
            if before is not None:
                gain = before["median_s"] / row["median_s"]
                other = "" if before["rung"] == rung.after else f"{before['rung']} "
                shown = other + microseconds(before["median_s"])
            lines.append((
                rung.name, rung.after or "", settings, *name_of(key), shown,
                microseconds(row["median_s"]), short(gain), ratio(row), short(over_floor(row)),
                signed(row["median_s"] - row["floor_s"] if row["floor_s"] else None),
            ))  # fmt: skip
    head = ("step", "changes", "settings", "H", "B", "dtype", "before, µs", "after, µs", "gain",
            "/ PyTorch", "/ floor", "above it, µs")  # fmt: skip
    return table(head, lines)


def steps_by_ranks(found: Cells) -> str:
    """Return every step's batch by number of GPUs, and its gain over the step that it changes."""
    ranks = sorted({key[0] for key in found})
    lines = []
    for size in dict.fromkeys(key[1:] for key in found):
        by_ranks = [found.get((p, *size), {}) for p in ranks]
        for rung in RUNGS:
            cells = [_with_gain(rung, rows) for rows in by_ranks]
            if any(cells):
                lines.append((*map(str, size), rung.name, rung.after or "", *cells))
        peers = [next((r["peer_median_s"] for r in rows.values() if r["peer_median_s"]), None)
                 for rows in by_ranks]  # fmt: skip
        lines.append((*map(str, size), "best whole-graph PyTorch", "", *map(microseconds, peers)))
    head = ("H", "B", "dtype", "step", "changes", *(f"p = {p}" for p in ranks))
    return written("steps", table=table(head, lines))


def _with_gain(rung: Rung, rows: dict[str, Row]) -> str:
    row = rows.get(rung.name)
    if row is None or not sound(row):
        return ""
    before = earlier(rung, rows)
    gain = "" if before is None else f" ({short(before['median_s'] / row['median_s'])})"
    return microseconds(row["median_s"]) + gain


def floors(found: Cells) -> str:
    """Return the floor of every cell by terms, and what our best rung takes above it."""
    lines = []
    for key, rows in found.items():
        ours = best(rows)
        if ours is None or not ours["floor"]:
            continue
        products = None if ours["rung"] in SPLIT else ours.get("gemms_at_shapes_s")
        shapes = sum(products.values()) - ours["floor"]["gemm_s"] if products else None
        above = ours["median_s"] - ours["floor_s"]
        lines.append((
            str(key[0]), *name_of(key), *(microseconds(ours["floor"][t]) for t in TERMS),
            microseconds(ours["floor_s"]), f"{ours['rung']} {microseconds(ours['median_s'])}",
            signed(above), signed(shapes), signed(None if shapes is None else above - shapes),
        ))  # fmt: skip
    head = ("p", "H", "B", "dtype", *TERMS.values(), "floor", "our best", "above the floor",
            "of that: cuBLAS at these shapes", "the rest")  # fmt: skip
    return written("floors", table=table(head, lines))


def runs(record: dict[str, Any]) -> str:
    """Return where and with what the rows were measured."""
    lines = []
    for name, run in record["runs"].items():
        versions = ", ".join(f"{k} {v}" for k, v in run["versions"].items() if v is not None)
        ceilings, rates = run.get("ceilings"), ""
        if ceilings:
            each = (f"{m} {r / 1e12:.1f} TFLOP/s" for m, r in ceilings["gemm_flops"].items())
            rates = f"{', '.join(each)}, copy {ceilings['copy_bytes_per_s'] / 1e12:.2f} TB/s"
        lines.append((name, f"`{called(run['command'])}`", versions, rates))
    return "\n" + table(("run", "command", "machine and versions", "ceilings"), lines)


def method(record: dict[str, Any]) -> str:
    """Say how it was measured, how often intervals hold, and what is without rounds."""
    held, among = coverage(record["rows"])
    said = f": {held} of {among} do ({percent(held / among, 0)})" if among else ""
    timed = [row for r in record["rows"] for row in launches(r) if row["median_s"] is not None]
    old = sorted({row["p"] for row in timed if not row.get("round_s")})
    without = f"; launches of p = {', '.join(map(str, old))} are without" if old else ""
    return written("method", held=said, without=without)


def markdown(
    record: dict[str, Any], gemm: dict[str, Any] | None = None, compared: str = "",
    tiles: dict[str, Any] | None = None, aware: dict[str, Any] | None = None,
    steps: dict[str, Any] | None = None,
) -> str:  # fmt: skip
    """Return the whole document.

    `gemm`, `tiles`, `aware` and `steps` are what benchmarks.gemm, a sweep of tiles,
    benchmarks.cuda_aware and benchmarks.gemm.steps measured, if they did; `compared` the section
    on profiles.
    """
    found = cells(record)
    ours = {key: row for key, rows in found.items() if (row := best(rows))}
    ranks = main_ranks(found)
    sections = [rung_section(rung, found, ranks, steps, gemm) for rung in RUNGS]
    return "\n".join([
        written("introduction"),
        f"![Microseconds per batch by optimization step, {ranks} ranks](images/ladder.png)\n",
        headline(found),
        *filter(None, [targets(ours, gemm)]),
        method(record) + runs(record) + notes(record),
        steps_by_ranks(found),
        written("step by step", ranks=ranks, table=step_table(found, ranks))
        + "".join(sections).rstrip() + "\n",
        *filter(None, [cuda_aware(aware)]),
        floors(found),
        *filter(None, [compared, products(gemm), sweep(tiles)]),
    ])  # fmt: skip


# --- the picture


def draw(found: dict[Any, dict[str, Any]], ranks: int, path: Path) -> None:
    """Write one panel per size and dtype for p = `ranks`: the main steps, the first at the top."""
    keys = [key for key in found if key[0] == ranks]
    maths = sorted({key[3] for key in keys})
    sizes = list(dict.fromkeys(key[1:3] for key in keys))
    timed = {(k[3], name) for k in keys for name, row in found[k].items() if _time(row)}
    names = {math: [n for n in DRAWN if (math, n) in timed] for math in maths}
    for math in maths:  # with x3 the kernel without it is no step of its own
        names[math] = [n for n in names[math] if f"{n} x3" not in names[math]]
    heights = [0.9 + 0.2 * len(names[math]) for math in maths]
    figure = new_figure(DOUBLE_IN, 0.4 + sum(heights))
    grid = figure.subplots(len(maths), len(sizes), squeeze=False, height_ratios=heights)
    for math, row in zip(maths, grid, strict=True):
        for column, (size, ax) in enumerate(zip(sizes, row, strict=True)):
            rows = found.get((ranks, *size, math))
            if rows is None:
                ax.set_axis_off()
                continue
            title = f"H{size[0]} B{size[1]} {math}"
            _panel(ax, rows, names[math], title, column == 0)
    legend_over([ax for ax in grid.flat if ax.lines])
    save(figure, path.parent, path.stem, ("png",))


def _panel(ax: Any, rows: dict[str, Any], names: list[str], title: str, named: bool) -> None:
    """Draw one size."""
    timed = {n: row for n in names if (row := rows.get(n)) is not None and _time(row)}
    peers = {label: t for name, label in PEERS.items() if (t := _time(rows.get(name)))}
    best = next((r["peer_median_s"] for r in rows.values() if r["peer_median_s"]), None)
    dots(
        [Dot(n, TIME, row["median_s"], hollow=not row["valid"]) for n, row in timed.items()],
        Measure("Time of a batch", "s", "log"),
        names=names,
        limits=("lower bound by measured ceilings",
                {n: row["floor_s"] for n, row in timed.items() if row["floor_s"]}),
        levels=peers | ({BEST: best} if best else {}),
        written=TIME, hollow=INVALID, named=named, legend=False, ax=ax, title=title,
    )  # fmt: skip


def _time(row: Any) -> float | None:
    return None if row is None else row["median_s"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--results", type=Path, default=folders.RESULTS / "ladder.json")
    add("--out", type=Path, default=folders.DOCS / "ladder.md")
    add("--picture", type=Path, default=folders.IMAGES / "ladder.png")
    args = parser.parse_args()
    record, beside = results.read(args.results), args.results.parent
    gemm, tiles, aware, steps = (
        results.read(beside / f) or None
        for f in ("gemm.json", "thin_sweep.json", "cuda_aware.json", "gemm_steps.json")
    )
    compared = profiles(folders.PROFILES / "ladder")
    made = shorten(markdown(record, gemm, compared, tiles, aware, steps), args.out, SHOWN)
    args.out.write_text(made.text, encoding="utf-8")
    made.write()
    found = cells(record)
    draw(found, main_ranks(found), args.picture)
    print(f"{args.out}\n{args.picture}")


if __name__ == "__main__":
    main()
