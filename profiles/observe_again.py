"""Observes the kept reports of a collection again: python -m profiles.observe_again launches.json.

Rows of launches.json hold what perfmodel observed when they were collected. Where the report is
kept, a newer perfmodel may tell more of it, such as the kernels of a CUDA graph.
"""

from __future__ import annotations

import argparse
import json
import lzma
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.common import folders
from profiles.collect_launches import observed


def again(file: Path) -> int:
    """Replace what was observed in the rows whose reports are there; return how many."""
    collection = json.loads(folders.content(file))
    kept = [row for row in collection["launches"] if row.get("file")]
    kept = [row for row in kept if (file.parent / row["file"]).exists()]
    for row in kept:
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder) / row["file"].removesuffix(".xz")
            report.write_bytes(lzma.decompress((file.parent / row["file"]).read_bytes()))
            row.update(rounded(observed(report)))
    rows = ",\n".join(json.dumps(row, separators=(",", ":")) for row in collection.pop("launches"))
    about = json.dumps(collection, separators=(",", ":"))
    folders.put(file, f'{about[:-1]},"launches":[\n{rows}\n]}}\n')
    return len(kept)


def rounded(found: Any) -> Any:
    """Return the same with six digits of every number, as collections are kept."""
    if isinstance(found, dict):
        return {key: rounded(value) for key, value in found.items()}
    return float(f"{found:.6g}") if isinstance(found, float) else found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    print(f"{again(parser.parse_args().file)} rows observed again")
