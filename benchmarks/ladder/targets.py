"""The section of docs/ladder.md on the targets set before anything was measured: met or missed."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Final

from benchmarks.common.pages import short, table

Row = dict[str, Any]
Cells = dict[tuple[int, int, int, str], Row]
"""Our fastest sound rung by (p, H, B, dtype)."""
THIN: Final = ("forward GEMM 2", "backward GEMM 1", "backward GEMM 2")
READER: Final = "and a reader"
WIDE: Final = ("forward GEMM 1", "backward GEMM 3")
RATIOS: Final = (
    ("2 GPUs, H = 512, B = 3000, fp32", (2, 512, 3000, "fp32"), 0.60),
    ("the same, TF32", (2, 512, 3000, "tf32"), 0.50),
    ("2 GPUs, H = 64, B = 3200, fp32", (2, 64, 3200, "fp32"), 0.45),
    ("the same, TF32", (2, 64, 3200, "tf32"), 0.45),
)
"""Time over that of whole-graph PyTorch: at most."""


def targets(best: Cells, gemm: dict[str, Any] | None) -> str:
    """Return every target with what was found; nothing without its rows."""
    lines = [*_ladder(best), *([] if gemm is None else _products(gemm["rows"]))]
    if not lines:
        return ""
    head = ("time or speed", "target", "found", "met")
    return (
        "## Targets\n\nSet before these runs. Ratios to whole-graph PyTorch are times, below 1 is "
        "faster; those to cuBLAS\nare speeds, above 1 is faster. A ratio counts as met if its "
        f"whole interval does.\n\n{table(head, lines)}"
    )


def _ladder(best: Cells) -> Iterable[tuple[str, ...]]:
    for name, key, most in RATIOS:
        row = best.get(key)
        if row is not None and row["ratio"] is not None:
            found = f"{row['ratio']:.2f} [{row['ratio_low']:.2f}, {row['ratio_high']:.2f}]"
            met = _met(row["ratio_high"] <= most)
            yield f"{name}, over PyTorch", f"≤ {most:.2f}", found, met
    compared = [row for row in best.values() if row["ratio"] is not None]
    if compared:
        worst = max(row["ratio_high"] for row in compared)
        found = f"{worst:.2f} at most, in {len(compared)} cases"
        yield "never slower than PyTorch", "≤ 1", found, _met(worst <= 1)


def _products(rows: list[Row]) -> Iterable[tuple[str, ...]]:
    own = [r for r in rows if r["kernel"] == "hierarchical"]
    for name, dtype in (("ordinary units", "float32"), ("three TF32 products", "tf32x3")):
        square = [r for r in own if (r["what"], r["n"], r["dtype"]) == ("square", 4096, dtype)]
        for row in square:
            share = row["share_of_cublas"]
            what = f"hierarchical, fp32 by {name}, at 4096, over cuBLAS's fp32"
            yield what, "≥ 0.90", short(share), _met(share >= 0.9)
    for name, dtype in (("ordinary units", "float32"), ("three TF32 products", "tf32x3")):
        wide = [r for r in own if r["what"] in WIDE and r["dtype"] == dtype]
        what = f"hierarchical, fp32 by {name}, on products with D"
        yield from _each(what, wide, 1.0)
    for key in sorted({(r["H"], r["B_per_rank"]) for r in rows if r["what"] in THIN}):
        thin = [
            r for r in rows
            if r["kernel"] == "thin" and r["dtype"] == "float32" and r["what"] in THIN
            and (r["H"], r["B_per_rank"]) == key
        ]  # fmt: skip
        yield from _each(f"thin on products with C, H = {key[0]}, B' = {key[1]}", thin, 2.0)


def _each(what: str, rows: list[Row], least: float) -> Iterable[tuple[str, ...]]:
    """Count the products that reach a speed over cuBLAS, and give that of all together."""
    if rows:
        shares = [row["share_of_cublas"] for row in rows]
        fast = sum(share >= least for share in shares)
        together = math.fsum(r["peer_median_s"] for r in rows) / math.fsum(
            r["median_s"] for r in rows
        )
        listed = f"{short(min(shares))} to {short(max(shares))}, together {short(together)}"
        met = "yes" if fast == len(rows) else f"{fast} of {len(rows)}"
        yield f"{what}, over cuBLAS", f"≥ {least:.2f}", listed, met


def _met(is_met: bool) -> str:
    return "yes" if is_met else "**no**"


def sweep(found: dict[str, Any] | None, hidden: int = 2048, batch: int = 6000) -> str:
    """Say what thin_sweep.py found at one size: thin, other tiles, and stores past the caches."""
    if found is None:
        return ""
    rows = [r for r in found["rows"] if (r["H"], r["B_per_rank"]) == (hidden, batch)]
    seconds = {
        what: {r["kernel"]: r["median_s"] for r in rows if r["what"] == what} for what in THIN
    }
    parts, gains, others = [], [], 0
    for what, by_kernel in seconds.items():
        thin, cublas = by_kernel["thin"], by_kernel["cublas"]
        parts.append(f"{short(cublas / thin)} on {what} ({short(1e6 * thin)} µs)")
        own = [s for name, s in by_kernel.items() if name.startswith("thin") and READER not in name]
        gains.append(1 - min(own) / thin)
        others += len(own) - 1
    outer, moved = seconds[THIN[1]], 4 * hidden * batch
    streamed, stored = (_fastest(outer, f"STREAM={s}", reader=False) for s in (1, 0))
    streamed_read, stored_read = (_fastest(outer, f"STREAM={s}", reader=True) for s in (1, 0))
    return (
        "`python -m benchmarks.gemm.thin_sweep` times the tiles that `thin` could take in turns "
        f"with cuBLAS. At H = {hidden},\nB' = {batch} `thin`'s speed is cuBLAS's times "
        f"{', '.join(parts)}; the best of\n{others} other tiles would save "
        f"{100 * max(gains):.0f} % of a product's time at most. The outer product, {THIN[1]}, "
        f"writes {moved / 1e6:.0f} MB: {short(moved / 4.8e6)} µs at the\nmemory's peak of 4.8 "
        f"TB/s, where twice cuBLAS's speed would be {short(5e5 * outer['cublas'])} µs. Stores past "
        f"the caches make it\n{short(1e6 * (stored - streamed))} µs faster alone, but with a "
        "kernel that reads the result, as in the trainer,\n"
        f"{short(1e6 * (streamed_read - stored_read))} µs slower: `thin` does not use them.\n"
    )


def _fastest(seconds: dict[str, float], flag: str, *, reader: bool) -> float:
    return min(s for name, s in seconds.items() if flag in name and (READER in name) is reader)
