"""Every key of a command's JSON document is on its page."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.common.folders import BASE, MACHINE, PROFILES, ROOT
from support.cli import succeeds

COUNTED = ROOT / "tests" / "golden" / "ncu" / "h200_cublas.csv.xz"
SIZES = ("-D", 784, "-H", 512, "-C", 10, "-B", 3000)
OPEN = {"copied", "versions", "elapsed_s", "flops_by_type", "peak_flops_per_s",
        "bandwidth_bytes_per_s",
        "ceilings_flops_per_s", "bytes", "intensity_flops_per_byte", "case", "causes", "means",
        "sizes", "grid", "parts", "products_flops", "convention", "settings",
        "asked_bytes", "peaks_by_memory_bytes", "gone", "new"}  # fmt: skip
"""What is inside these is named by parts, types, levels, symbols, kinds of memory."""
MEMORY = PROFILES / "memory" / "document.sqlite.xz"
PINNED = PROFILES / "h200x2_2ranks_pinned_nsys2025.3.1.sqlite.xz"


def keys(document: Any) -> Iterator[str]:
    if isinstance(document, dict):
        for key, value in document.items():
            yield key
            if key not in OPEN:
                yield from keys(value)
    elif isinstance(document, list):
        for value in document:
            yield from keys(value)


@pytest.mark.parametrize(
    ("page", "words"),
    [
        ("machines", ("machine", "show", "h200", "--json")),
        ("machines", ("machine", "show", MACHINE, "--json")),
        ("counters", ("counters", COUNTED, *SIZES, "--json")),
        ("counters", ("counters", COUNTED, "--by", "kernel", "--json")),
        ("splits", ("study", "splits", *SIZES, "-p", 2, "--json")),
        ("layers", ("study", "layers", "alexnet", "--machine", "h200", "--ranks", 4, "--json")),
        ("compare", ("compare", BASE, PINNED, "--json")),
        ("memory", ("memory", *SIZES, "-p", 2, "--json")),
        ("memory", ("memory", MEMORY, "--json")),
        ("utilization", ("utilization", "series.csv", "--report", BASE, "--json")),
    ],
)
def test_every_key_is_documented(
    page: str, words: tuple[Any, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("series.csv").write_text("time_s,gpu,gpu_percent\n0,0,10\n1,0,20\n")
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    found = set(keys(json.loads(succeeds(*words)))) - {"l1", "l2", "dram", "device", "pinned"}
    assert len(found) > 10
    assert {key for key in found if f"`{key}`" not in text} == set()
