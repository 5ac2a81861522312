"""Runs the recipes of Nsight Systems that work on a grown report, from Parquet files made before.

Recipes read a report's tables from Parquet; `nsys export` makes these from `.nsys-rep` files only,
which nobody can grow, so that they are written here, and the time for it is not counted. Debian's
package lacks an empty folder and SQLite with a function `median`: without that, `cuda_api_sum`
and `cuda_gpu_kern_sum` do not run.
"""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

RECIPES = {"nvtx_sum": "nvtx_pushpop_sum", "nvtx_gpu_proj_sum": "nvtx_gpu_proj_sum"}
"""Recipes, and the summary reports that answer the same question."""

CUPTI = "CUPTI_ACTIVITY_KIND_"
KINDS = ("RUNTIME", "KERNEL", "MEMCPY", "MEMSET")
TABLES = ("StringIds", "NVTX_EVENTS", *(CUPTI + kind for kind in KINDS))
EMPTY = {
    f"{CUPTI}GRAPH_TRACE": "correlationId globalPid start end graphId",
    "CUDA_GRAPH_NODE_EVENTS": "graphNodeId originalGraphNodeId globalTid start end",
    "CUDA_GRAPH_EVENTS": "graphId originalGraphId graphExecId globalTid start end",
}
ROWS = 500_000


def prepare(report: Path, folder: Path, nsys: Path) -> tuple[Path, dict[str, str]]:
    """Make Parquet files of a report and a home for recipes; return its name and environment."""
    target, host = (nsys.resolve().parent.parent / f"{d}-linux-x64" for d in ("target", "host"))
    home = folder / "recipes"
    shutil.rmtree(home, ignore_errors=True)
    for name, tree in (("target", target), ("host", host)):
        (home / f"{name}-linux-x64").mkdir(parents=True)
        for item in tree.iterdir():
            (home / f"{name}-linux-x64" / item.name).symlink_to(item)
    library = Path("/usr/lib/x86_64-linux-gnu/libsqlite3.so.0")
    (home / "host-linux-x64" / library.name).symlink_to(library)
    shutil.copytree(target / "python" / "packages", home / "packages")
    (home / "packages" / "nsys_recipe" / "third_party").mkdir(exist_ok=True)
    stem = folder / "recipe"
    stem.with_suffix(".nsys-rep").touch()  # older than what follows: recipes look
    write_parquet(report, folder / "recipe_pqtdir")
    packages = str(home / "packages")
    return stem.with_suffix(".nsys-rep"), {"PYTHONPATH": packages, "NSYS_DIR": str(home)}


def write_parquet(report: Path, folder: Path) -> None:
    """Write the tables that the recipes read as Parquet files."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    kinds: dict[str, Any] = {"TEXT": pa.string(), "BLOB": pa.binary(), "REAL": pa.float64()}
    with closing(sqlite3.connect(f"file:{report}?immutable=1", uri=True)) as db:
        for table in TABLES:
            info = db.execute(f"PRAGMA table_info({table})").fetchall()
            schema = pa.schema([(r[1], kinds.get(r[2], pa.int64())) for r in info])
            rows = db.execute(f"SELECT * FROM {table}")
            with pq.ParquetWriter(folder / f"{table}.parquet", schema) as writer:
                while part := rows.fetchmany(ROWS):
                    columns = [
                        pa.array(c, f.type)
                        for c, f in zip(zip(*part, strict=True), schema, strict=True)
                    ]
                    writer.write_table(pa.table(columns, schema=schema))
    for table, names in EMPTY.items():
        none = pa.table({name: pa.array([], pa.int64()) for name in names.split()})
        pq.write_table(none, folder / f"{table}.parquet")


if __name__ == "__main__":
    import sys

    prepare(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]))
