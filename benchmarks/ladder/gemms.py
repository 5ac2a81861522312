"""The sections of docs/ladder.md on the products alone: squares, and the network's own shapes."""

from __future__ import annotations

from typing import Any

from benchmarks.common.pages import microseconds, short, table

Row = dict[str, Any]
WAYS = {"float32": "fp32", "tf32": "TF32", "tf32x3": "fp32 as three TF32"}
"""Data types of gemm.json that are shown; three TF32 products are compared with cuBLAS's fp32."""


def products(gemm: dict[str, Any] | None) -> str:
    """Return our kernels beside cuBLAS on squares and on the network's products."""
    if gemm is None:
        return ""
    rows = [row for row in gemm["rows"] if row["dtype"] in WAYS]
    return (
        "## The products alone\n\nFrom benchmarks/results/gemm.json (`python -m benchmarks.gemm`): "
        "each kernel in a graph of its own,\nrandom factors, in turns with cuBLAS. Share of "
        "cuBLAS: its time over the kernel's; *fp32 as three TF32* is\nbeside cuBLAS's fp32, and "
        "its error beside it too.\n" + _note(gemm) + "\n" + _squares(rows) + "\n" + _network(rows)
    )


def _note(gemm: dict[str, Any]) -> str:
    return f"Note: {gemm['note']}.\n" if gemm.get("note") else ""


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
    head = ("kernel", "products", *map(str, sizes), "error / cuBLAS's, largest")
    return "Share of cuBLAS by size of a square product:\n\n" + table(head, lines)


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
            f"{own['kernel']} {microseconds(own['median_s'])}", short(gain),
            short(own["median_s"] / own["floor_s"] if own["floor_s"] else None),
        ))  # fmt: skip
    head = ("H", "B'", "products", "product", "cuBLAS, µs", "our best, µs", "gain", "/ its floor")
    return "The network's products, our fastest kernel for each:\n\n" + table(head, lines)
