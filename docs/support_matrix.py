"""Writes docs/support.md: which versions of recorders are supported, from the files of the tests.

python docs/support_matrix.py
"""

from __future__ import annotations

import csv
import io
import lzma
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from perfmodel.readers import read

ROOT: Final = Path(__file__).resolve().parents[1]
PAGE: Final = Path(__file__).resolve().parent / "support.md"
FILES: Final = (
    "tests/reports/*.sqlite", "tests/reports/public/*.xz", "profiles/*.sqlite*",
    "profiles/programs/*_rank*.json.xz", "profiles/programs/jax_gpt.sqlite.xz",
)  # fmt: skip
"""Recordings as their recorder wrote them, but for tables and texts that nobody reads."""
TABLES: Final = "tests/golden/ncu/*.csv*"
KNOWN: Final = ROOT / "tests" / "reports" / "versions.toml"
"""Versions that the files do not say."""

_INTRO: Final = """# Supported versions

<!-- written by docs/support_matrix.py -->

A version of a recorder is supported if a real file of it is among the tests, which read every file
listed here. Other versions may work: columns are selected by name, and unknown tables and columns
are left alone ([schema.md](schema.md)). Traces of torch.profiler, XPlane files and tables of Nsight
Compute do not hold the version; where it is known otherwise, it is given.

| recorder | version | schema | GPUs | files of the tests |
|---|---|---|---|---|
"""
_NONE: Final = """
Not in this table, since only files that were built test them: rocpd of rocprofv3, and folders of
`nsys export -t parquetdir` of other versions than 2024.2 and 2025.3.
"""


@dataclass(frozen=True, order=True)
class Row:
    """What the files of one version hold."""

    recorder: str
    version: str
    schema: str
    gpus: str
    files: tuple[str, ...]

    def __str__(self) -> str:
        shown = ", ".join(f"`{name}`" for name in self.files[:3])
        more = f" and {len(self.files) - 3} more" if len(self.files) > 3 else ""
        return f"| {self.recorder} | {self.version} | {self.schema} | {self.gpus} | {shown}{more} |"


def facts(path: Path, known: dict[str, str]) -> tuple[str, str, str, set[str]]:
    """Return recorder, version, schema and GPUs of one recording."""
    trace = read(path)
    name = trace.recorder.removesuffix(f" {trace.product_version}")
    gpus = {gpu.name.removeprefix("NVIDIA ") for gpu in trace.gpus} - {"unnamed GPU"}
    version = known.get(path.name, "–")
    if name != trace.product_version:
        version = ".".join(trace.product_version.split(".")[:3])
    return name, version, trace.schema_version, gpus


def of_counters(path: Path, known: dict[str, str]) -> tuple[str, str, str, set[str]]:
    """Return the same of a table of Nsight Compute, whose columns are counted as its schema."""
    data = path.read_bytes()
    text = (lzma.decompress(data) if path.suffix == ".xz" else data).decode()
    head = next(row for row in csv.reader(io.StringIO(text)) if row[:1] == ["ID"])
    return "Nsight Compute", known.get(path.name, "–"), f"{len(head)} columns", {"H200"}


def rows() -> Iterator[Row]:
    """Yield a row for every recorder and version."""
    known = tomllib.loads(KNOWN.read_text(encoding="utf-8"))
    found: dict[tuple[str, str, str], tuple[list[str], set[str]]] = {}
    for patterns, describe in ((FILES, facts), ((TABLES,), of_counters)):
        for path in sorted(path for pattern in patterns for path in ROOT.glob(pattern)):
            *key, gpus = describe(path, known)
            names, on = found.setdefault((key[0], key[1], key[2]), ([], set()))
            names.append(path.name)
            on.update(gpus)
    for key, (names, on) in sorted(found.items()):
        yield Row(*key, ", ".join(sorted(on)) or "–", tuple(names))


def page() -> str:
    """Return the page."""
    return _INTRO + "".join(f"{row}\n" for row in rows()) + _NONE


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
