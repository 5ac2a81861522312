"""Writes docs/support.md: which versions of recorders are supported, from the files of the tests.

python docs/support_matrix.py

The table of other projects' recordings is written anew where PERFMODEL_PUBLIC names their folder,
and stays as it is elsewhere.
"""

from __future__ import annotations

import csv
import io
import lzma
import os
import tomllib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from perfmodel.readers import read

ROOT: Final = Path(__file__).resolve().parents[1]
PAGE: Final = Path(__file__).resolve().parent / "support.md"
FILES: Final = (
    "tests/reports/*.sqlite", "profiles/*.sqlite*",
    "profiles/programs/*_rank*.json.xz", "profiles/programs/jax_gpt.sqlite.xz",
)  # fmt: skip
"""Recordings as their recorder wrote them, but for tables and texts that nobody reads."""
TABLES: Final = "tests/golden/ncu/*.csv*"
KNOWN: Final = ROOT / "tests" / "reports" / "versions.toml"
"""Versions that the files do not say."""
LISTED: Final = ROOT / "tests" / "reports" / "public.toml"
"""Recordings of other projects, and their versions."""
PUBLIC: Final = Path(os.environ.get("PERFMODEL_PUBLIC", os.devnull)) / "small"

_HEAD: Final = """| recorder | version | schema | GPUs | files |
|---|---|---|---|---|
"""
_INTRO: Final = """# Supported versions

<!-- written by docs/support_matrix.py -->

A version of a recorder is supported if the tests read a real file of it, as they read every file
listed here. Other versions may work: columns are selected by name, and unknown tables and columns
are left alone ([schema.md](schema.md)). Traces of torch.profiler, XPlane files and tables of Nsight
Compute do not hold the version; where it is known otherwise, it is given.

## Recordings of this project

"""
_OTHERS: Final = """
## Recordings of other projects

They were published on GitHub (`tests/reports/public.toml` has the address of each), and tests read
them where `PERFMODEL_PUBLIC` names their folder ([CONTRIBUTING.md](../CONTRIBUTING.md)).

"""
_NONE: Final = """
Not in these tables, since only files that were built test them: rocpd of rocprofv3, and folders of
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


Describe = Callable[[Path, dict[str, str]], tuple[str, str, str, set[str]]]


def rows_of(files: Iterable[tuple[Path, Describe]], known: dict[str, str]) -> Iterator[Row]:
    """Yield a row for every recorder and version of these files."""
    found: dict[tuple[str, str, str], tuple[list[str], set[str]]] = {}
    for path, describe in files:
        *key, gpus = describe(path, known)
        names, on = found.setdefault((key[0], key[1], key[2]), ([], set()))
        names.append(path.name)
        on.update(gpus)
    for key, (names, on) in sorted(found.items()):
        yield Row(*key, ", ".join(sorted(on)) or "–", tuple(names))


def rows() -> Iterator[Row]:
    """Yield a row for every recorder and version that a clone has a file of."""
    files: list[tuple[Path, Describe]] = []
    for patterns, describe in ((FILES, facts), ((TABLES,), of_counters)):
        paths = sorted(path for pattern in patterns for path in ROOT.glob(pattern))
        files += [(path, describe) for path in paths]
    return rows_of(files, tomllib.loads(KNOWN.read_text(encoding="utf-8")))


def others() -> Iterator[Row]:
    """Yield those of other projects' recordings, whose folder PERFMODEL_PUBLIC names."""
    listed = tomllib.loads(LISTED.read_text(encoding="utf-8"))["recording"]
    known = {one["file"]: one["version"] for one in listed if "version" in one}
    return rows_of(((PUBLIC / name, facts) for name in sorted(o["file"] for o in listed)), known)


def table(found: Iterable[Row]) -> str:
    """Return rows below their head."""
    return _HEAD + "".join(f"{row}\n" for row in found)


def page() -> str:
    """Return the page."""
    if PUBLIC.exists():
        of_others = table(others())
    else:
        of_others = PAGE.read_text(encoding="utf-8").partition(_OTHERS)[2].partition(_NONE)[0]
    return _INTRO + table(rows()) + _OTHERS + of_others + _NONE


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
