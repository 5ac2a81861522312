"""Sections of docs/ladder.md: GEMMs alone, targets set before, profiles compared, notes."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.common.launches import LAUNCH_SD
from benchmarks.common.pages import microseconds, short, table, written_in
from benchmarks.cuda_aware.report import batches
from benchmarks.ladder.configurations import RUNGS
from benchmarks.ladder.rows import noted
from perfmodel.programs.mlp.settings import LAYER_1, LAYER_2

Row = dict[str, Any]
WAYS = {"float32": "fp32", "tf32": "TF32", "tf32x3": "fp32 as three TF32"}
"""Data types of gemm.json that are shown; three TF32 products are compared with cuBLAS's fp32."""


def products(gemm: dict[str, Any] | None) -> str:
    """Return our kernels beside cuBLAS on squares and on the network's products."""
    if gemm is None:
        return ""
    rows = [row for row in gemm["rows"] if row["dtype"] in WAYS]
    launches = len(gemm.get("launches", [gemm]))
    return written(
        "products", launches=launches, device=gemm["device"], sd=100 * LAUNCH_SD["GEMMs"],
        squares=_squares(rows), network=_network(rows),
    )  # fmt: skip


def wide_loads(steps: dict[str, Any], gemm: dict[str, Any]) -> str:
    """Return what loads of 16 bytes gain the register kernel, and which GEMMs it still loses."""
    timed = {
        (r["kernel"], r["what"], r["m"], r["n"], r["k"], r["transposes"]): r["median_s"]
        for r in steps["time"]["rows"]
    }
    largest = max(r["m"] for r in steps["counters"]["rows"])
    sectors = {
        r["kernel"]: short(r["global_sectors"] / r["global_loads"])
        for r in steps["counters"]["rows"] if (r["m"], r["transposes"]) == (largest, "NN")
    }  # fmt: skip
    lines = [
        (f"{key[1]}, {key[2]} x {key[3]} x {key[4]}, {key[5]}",
         *(microseconds(timed[name, *key[1:]]) for name in ("tiled", "register", "wide loads")))
        for key in timed if key[0] == "wide loads"
    ]  # fmt: skip
    head = ("GEMM, m x n x k", "tiled, µs", "4 bytes a load, µs", "16 bytes a load, µs")
    hidden, columns = 512, 1500
    batch = {
        (r["kernel"], f"{r['what']}, {r['m']} x {r['n']} x {r['k']}"): r["median_s"]
        for r in gemm["rows"]
        if (r["H"], r["B_per_rank"], r["dtype"]) == (hidden, columns, "float32")
    }
    of_batch = [
        (name, *(microseconds(batch[kernel, name]) for kernel in ("tiled", "register")))
        for kernel, name in batch if kernel == "register"
    ]  # fmt: skip
    return written(
        "wide loads", register=sectors["register"], tiled=sectors["tiled"],
        date=steps["time"]["date"][:10], device=steps["time"]["device"],
        table=table(head, lines).strip(), H=hidden, columns=columns,
        batch=table(("GEMM, m x n x k", "tiled, µs", "register, µs"), of_batch).strip(),
    )  # fmt: skip


def _squares(rows: list[Row]) -> str:
    squares = [row for row in rows if row["what"] == "square" and row["kernel"] != "cublas"]
    sizes = sorted({row["n"] for row in squares})
    shares = {(row["kernel"], row["dtype"], row["n"]): row for row in squares}
    of_cublas = [r for r in rows if r["what"] == "square" and r["kernel"] == "cublas"]
    peers = {(row["dtype"], row["n"]): row for row in of_cublas}
    lines = []
    for kernel, dtype in dict.fromkeys((row["kernel"], row["dtype"]) for row in squares):
        found = [shares.get((kernel, dtype, n)) for n in sizes]
        largest = next((row for row in reversed(found) if row), None)
        peer = peers.get((dtype, largest["n"])) if largest else None
        lines.append((
            kernel, WAYS[dtype], *("" if row is None else _percent(row) for row in found),
            f"{largest['error']:.1e} / {peer['error']:.1e}" if largest and peer else "",
        ))  # fmt: skip
    head = ("kernel", "data type", *map(str, sizes), "error / cuBLAS's, largest")
    return "Share of cuBLAS by size of a square GEMM:\n\n" + table(head, lines)


def _percent(row: Row) -> str:
    return f"{100 * row['share_of_cublas']:.0f} %"


def _network(rows: list[Row]) -> str:
    """Return the fastest of our kernels for each product of the network, beside cuBLAS."""
    shapes: dict[tuple[Any, ...], dict[str, Row]] = {}
    for row in rows:
        if row["what"] != "square":
            key = (row["H"], row["B_per_rank"], WAYS[row["dtype"]], row["what"])
            shapes.setdefault(key, {})[row["kernel"]] = row
    lines = []
    for key, kernels in shapes.items():
        cublas = kernels.get("cublas")
        own = min(
            (r for name, r in kernels.items() if name != "cublas"),
            key=lambda r: r["median_s"], default=None,
        )  # fmt: skip
        if cublas is None or own is None:
            continue
        gain = cublas["median_s"] / own["median_s"]
        lines.append((
            *(str(part) for part in key), microseconds(cublas["median_s"]),
            f"{own['kernel']} {microseconds(own['median_s'])}",
            _share(own) if "share_low" in own else short(gain),
            short(own["median_s"] / own["floor_s"] if own["floor_s"] else None),
        ))  # fmt: skip
    head = ("H", "B'", "data type", "GEMM", "cuBLAS, µs", "our best, µs", "gain", "/ its floor")
    return "The network's GEMMs, our fastest kernel for each:\n\n" + table(head, lines)


Best = dict[tuple[int, int, int, str], Row]
"""Our fastest sound rung by (p, H, B, dtype)."""
written: Final = written_in(Path(__file__).with_name("text.md"))
READER: Final = "and a reader"
RATIOS: Final = (
    ("2 GPUs, H = 512, B = 3000, fp32", (2, 512, 3000, "fp32"), 0.60),
    ("the same, TF32", (2, 512, 3000, "tf32"), 0.50),
    ("2 GPUs, H = 64, B = 3200, fp32", (2, 64, 3200, "fp32"), 0.45),
    ("the same, TF32", (2, 64, 3200, "tf32"), 0.45),
)
"""Time over that of whole-graph PyTorch: at most."""


def ratio(row: Row) -> str:
    """Write the ratio to PyTorch with its interval."""
    if row["ratio"] is None:
        return ""
    return f"{row['ratio']:.2f} [{row['ratio_low']:.2f}, {row['ratio_high']:.2f}]"


def targets(best: Best, gemm: dict[str, Any] | None) -> str:
    """Return every target with what was found; nothing without its rows."""
    lines = [*_ladder(best), *([] if gemm is None else _products(gemm["rows"]))]
    if not lines:
        return ""
    head = ("time or speed", "target", "found", "met")
    return written("targets", table=table(head, lines))


def _ladder(best: Best) -> Iterable[tuple[str, ...]]:
    for name, key, most in RATIOS:
        row = best.get(key)
        if row is not None and row["ratio"] is not None:
            met = _met(row["ratio_high"] <= most)
            yield f"{name}, over PyTorch", f"≤ {most:.2f}", ratio(row), met
    compared = [row for row in best.values() if row["ratio"] is not None]
    if compared:
        worst = max(row["ratio_high"] for row in compared)
        found = f"{worst:.2f} at most, in {len(compared)} cases"
        yield "never slower than PyTorch", "≤ 1", found, _met(worst <= 1)


def _products(rows: list[Row]) -> Iterable[tuple[str, ...]]:
    own = [r for r in rows if r["kernel"] == "hierarchical"]
    for name, dtype in (("ordinary units", "float32"), ("three TF32 GEMMs", "tf32x3")):
        square = [r for r in own if (r["what"], r["n"], r["dtype"]) == ("square", 4096, dtype)]
        for row in square:
            what = f"hierarchical, fp32 by {name}, at 4096, over cuBLAS's fp32"
            yield what, "≥ 0.90", _share(row), _met(_least(row) >= 0.9)
    for name, dtype in (("ordinary units", "float32"), ("three TF32 GEMMs", "tf32x3")):
        wide = [r for r in own if r["what"] in LAYER_1 and r["dtype"] == dtype]
        what = f"hierarchical, fp32 by {name}, on GEMMs with D"
        yield from _each(what, wide, 1.0)
    for key in sorted({(r["H"], r["B_per_rank"]) for r in rows if r["what"] in LAYER_2}):
        thin = [
            r for r in rows
            if r["kernel"] == "thin" and r["dtype"] == "float32" and r["what"] in LAYER_2
            and (r["H"], r["B_per_rank"]) == key
        ]  # fmt: skip
        yield from _each(f"thin on GEMMs with C, H = {key[0]}, B' = {key[1]}", thin, 2.0)


def _each(what: str, rows: list[Row], least: float) -> Iterable[tuple[str, ...]]:
    """Count the products that reach a speed over cuBLAS, and give that of all together."""
    if rows:
        shares = [row["share_of_cublas"] for row in rows]
        fast = sum(_least(row) >= least for row in rows)
        together = math.fsum(r["peer_median_s"] for r in rows) / math.fsum(
            r["median_s"] for r in rows
        )
        listed = f"{short(min(shares))} to {short(max(shares))}, together {short(together)}"
        met = "yes" if fast == len(rows) else f"{fast} of {len(rows)}"
        yield f"{what}, over cuBLAS", f"≥ {least:.2f}", listed, met


def _share(row: Row) -> str:
    """Write the speed over cuBLAS's, with the interval of another launch where it is known."""
    if "share_low" not in row:
        return short(row["share_of_cublas"])
    return f"{row['share_of_cublas']:.2f} [{row['share_low']:.2f}, {row['share_high']:.2f}]"


def _least(row: Row) -> float:
    return float(row.get("share_low", row["share_of_cublas"]))


def _met(is_met: bool) -> str:
    return "yes" if is_met else "**no**"


def sweep(found: dict[str, Any] | None, hidden: int = 2048, batch: int = 6000) -> str:
    """Say what a sweep of tiles found at one size: thin, other tiles, stores past the caches."""
    if found is None:
        return ""
    rows = [r for r in found["rows"] if (r["H"], r["B_per_rank"]) == (hidden, batch)]
    seconds = {
        what: {r["kernel"]: r["median_s"] for r in rows if r["what"] == what} for what in LAYER_2
    }
    parts, gains, others = [], [], 0
    for what, by_kernel in seconds.items():
        thin, cublas = by_kernel["thin"], by_kernel["cublas"]
        parts.append(f"{short(cublas / thin)} on {what} ({short(1e6 * thin)} µs)")
        own = [s for name, s in by_kernel.items() if name.startswith("thin") and READER not in name]
        gains.append(1 - min(own) / thin)
        others += len(own) - 1
    outer, moved = seconds[LAYER_2[1]], 4 * hidden * batch
    streamed, stored = (_fastest(outer, f"STREAM={s}", reader=False) for s in (1, 0))
    streamed_read, stored_read = (_fastest(outer, f"STREAM={s}", reader=True) for s in (1, 0))
    return written(
        "sweep", hidden=hidden, batch=batch, parts=", ".join(parts), others=others,
        gain=100 * max(gains), outer=LAYER_2[1], megabytes=moved / 1e6, peak=short(moved / 4.8e6),
        twice=short(5e5 * outer["cublas"]), alone=short(1e6 * (stored - streamed)),
        read=short(1e6 * (streamed_read - stored_read)),
    )  # fmt: skip


def _fastest(seconds: dict[str, float], flag: str, *, reader: bool) -> float:
    return min(s for name, s in seconds.items() if flag in name and (READER in name) is reader)


def pairs(index: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Return (before, after) of every profiled rung and the nearest profiled one it stands on."""
    profiled = {entry["rung"] for entry in index}
    stands_on = {rung.name: rung.after for rung in RUNGS}
    found = []
    for rung in RUNGS:
        below = rung.after
        while below is not None and below not in profiled:
            below = stands_on[below]
        if rung.name in profiled and below is not None:
            found.append((below, rung.name))
    last = found[-1][1] if found else None
    best = next((name for name in ("peer x3", "fused x3", last) if name in profiled), None)
    return [*found, ("document", str(best))] if "document" in profiled and best else found


def profiles(folder: Path) -> str:
    """Return what perfmodel says of every pair of profiles in a folder; nothing without any."""
    if not (folder / "index.json").exists():
        return ""
    index = json.loads((folder / "index.json").read_text(encoding="utf-8"))
    machines: dict[str, list[dict[str, Any]]] = {}
    for entry in index:
        machines.setdefault(entry["machine"], []).append(entry)
    config = index[0]["command"].split("-m trainer ")[-1].split(" --epochs")[0]
    tables = "".join(_machine(name, entries, folder) for name, entries in machines.items())
    return written(
        "profiles", config=config, nsys=index[0]["versions"]["nsys"], machines=tables
    )  # fmt: skip


def _machine(name: str, index: list[dict[str, Any]], folder: Path) -> str:
    """Return the comparisons of one machine's reports."""
    from perfmodel import compare

    files: dict[str, list[Path]] = {}
    for entry in index:
        files.setdefault(entry["rung"], []).append(folder / entry["file"])
    lines = []
    for before, after in pairs(index):
        found = compare(files[before], files[after]).comparison
        batch = found.batch
        interval = (
            "" if batch.low is None else f"{batch.ratio:.2f} [{batch.low:.2f}, {batch.high:.2f}]"
        )
        lines.append((
            before, after, microseconds(batch.before_s), microseconds(batch.after_s), interval,
            batch.verdict,
            "; ".join(_addressed(row, batch) for row in found.addressed) or "none for certain",
        ))  # fmt: skip
    head = (
        "before", "after", "before, µs", "after, µs", "ratio", "verdict", "bottleneck addressed",
    )  # fmt: skip
    launches = max(len(found) for found in files.values())
    return f"\n{name}, {launches} launches a side:\n\n{table(head, lines)}"


def _addressed(row: Any, batch: Any) -> str:
    share = 100 * row.before_s / batch.before_s
    after = "gone" if row.after_s is None else f"{microseconds(row.after_s)} µs"
    return f"{row.name} {microseconds(row.before_s)} µs ({share:.0f} %) to {after}"


def notes(record: dict[str, Any]) -> str:
    """Return the notes as a list, each with the rows that it is about; nothing without any."""
    lines = []
    for note in record.get("notes", []):
        rungs: dict[tuple[Any, ...], list[str]] = {}
        for row in noted(note, record["rows"]):
            rungs.setdefault((row["p"], row["H"], row["dtype"]), []).append(row["rung"])
        cells: dict[str, list[tuple[Any, ...]]] = {}
        for cell, names in rungs.items():
            cells.setdefault(", ".join(names), []).append(cell)
        lines += [f"- {n} ({_places(at)}): {note['text']}.\n" for n, at in cells.items()]
    return "\nTo be measured again:\n\n" + "".join(lines) if lines else ""


def _places(cells: Sequence[tuple[Any, ...]]) -> str:
    """Write p, H and dtype of cells, together if they are all combinations of theirs."""
    p, hidden, dtype = (list(dict.fromkeys(values)) for values in zip(*cells, strict=True))
    if math.prod(map(len, (p, hidden, dtype))) > len(cells):
        return "; ".join(f"p = {p}, H = {h}, {d}" for p, h, d in cells)
    listed = [" and ".join(map(str, values)) for values in (p, hidden, dtype)]
    return f"p = {listed[0]}, H = {listed[1]}, {listed[2]}"


def cuda_aware(record: dict[str, Any] | None) -> str:
    """Return transports on one host under an MPI that takes GPU pointers; nothing without it."""
    if not record:
        return ""
    ranks = min(row["p"] for row in record["rows"])
    return written(
        "cuda_aware", command=record["command"], mpi=record["versions"]["mpi"],
        ranks=ranks, batches=batches(record["rows"], ranks),
    )  # fmt: skip
