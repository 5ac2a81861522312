"""Reports of PyTorch and JAX: steps, busy time and NCCL against SQL written for this test alone."""

from __future__ import annotations

import json
import lzma
import os
import re
import sqlite3
import statistics
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner

from perfmodel.cli import main

FOLDER = Path(os.environ.get("PROGRAM_REPORTS", os.devnull))
REPORTS = {
    **dict.fromkeys(
        ("conv32", "gpt2_compiled", "gpt2_ddp", "gpt_small", "resnet50_ddp"), r"step \d+"
    ),
    "gpt_fsdp": r"iteration/\d+",
    "jax_gpt": r"XlaModule:#hlo_module=jit_train_step,program_id=\d+#",
    "vit_plain": r"Iteration \d+",
}
PLANTED = {
    **dict.fromkeys(
        (
            "fp32", "healthy", "item", "late_allreduce", "launch", "loop_optimizer",
            "naive_attention", "pageable",
        ),
        r"step \d+",
    ),
    "straggler": "train_step",
}  # fmt: skip
EVERY = [("programs", name, steps) for name, steps in REPORTS.items()] + [
    ("planted", name, steps) for name, steps in PLANTED.items()
]


class Truth(NamedTuple):
    step_s: float
    busy_s: float
    nccl_s: float


def truth(path: Path, steps: str) -> dict[int, Truth]:
    """Medians by GPU, of all steps but the first and the last, from the tables themselves."""
    with closing(sqlite3.connect(path)) as db:
        tables = {t for (t,) in db.execute("SELECT name FROM sqlite_master WHERE type='table'")}
        operations = " UNION ALL ".join(
            f"SELECT start, end, deviceId, correlationId, globalPid, {name} FROM {table}"
            for table, name in (
                ("CUPTI_ACTIVITY_KIND_KERNEL", "demangledName"),
                ("CUPTI_ACTIVITY_KIND_MEMCPY", "-1"),
                ("CUPTI_ACTIVITY_KIND_MEMSET", "-1"),
                ("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", "-1"),
            )
            if table in tables
        )
        rows = db.execute(
            f"SELECT o.*, r.start FROM ({operations}) o JOIN CUPTI_ACTIVITY_KIND_RUNTIME r ON "
            "r.correlationId = o.correlationId AND (r.globalTid & ~0xFFFFFF) = o.globalPid"
        ).fetchall()
        named = db.execute(
            "SELECT n.start, n.end, n.globalTid & ~0xFFFFFF, coalesce(n.text, s.value) "
            "FROM NVTX_EVENTS n LEFT JOIN StringIds s ON s.id = n.textId WHERE n.eventType = 59"
        ).fetchall()
        nccl = {
            i for i, text in db.execute("SELECT id, value FROM StringIds")
            if text.startswith("ncclDevKernel")
        }  # fmt: skip
    found: dict[int, Truth] = {}
    for pid in {row[4] for row in rows}:
        ranges = sorted(r[:2] for r in named if r[2] == pid and re.fullmatch(steps, r[3]))
        if "Xla" in steps:  # a module lasts until the next one starts
            ends = [start - 1 for start, _ in ranges[1:]] + [ranges[-1][1]]
            ranges = [(start, end) for (start, _), end in zip(ranges, ends, strict=True)]
        ops = [[r for r in rows if r[4] == pid and lo <= r[6] <= hi] for lo, hi in ranges]
        first = [min(r[0] for r in inside) for inside in ops]
        lengths = [b - a for a, b in pairwise(first)]
        found[ops[0][0][2]] = Truth(
            statistics.median(lengths[1:]) * 1e-9,
            statistics.median(union(inside) for inside in ops[1:-1]) * 1e-9,
            statistics.median(union([r for r in i if r[5] in nccl]) for i in ops[1:-1]) * 1e-9,
        )
    return found


def union(rows: list[Any]) -> int:
    total, reached = 0, 0
    for start, end, *_ in sorted(r[:2] for r in rows):
        total += max(end - max(start, reached), 0)
        reached = max(reached, end)
    return total


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("reports")


def analyze(path: Path, out: Path) -> dict[str, Any]:
    done = CliRunner().invoke(main, ["analyze", str(path), "-o", str(out), "--no-plots"])
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads((out / "analysis.json").read_text(encoding="utf-8"))
    return found


@pytest.mark.slow
@pytest.mark.skipif(not FOLDER.is_dir(), reason="PROGRAM_REPORTS names no folder of reports")
@pytest.mark.parametrize(("group", "name", "steps"), EVERY, ids=[n for _, n, _ in EVERY])
def test_reports_of_other_programs_need_no_flag(
    group: str, name: str, steps: str, unpacked: Path, tmp_path: Path
) -> None:
    path = unpacked / f"{name}.sqlite"
    path.write_bytes(lzma.decompress((FOLDER / group / f"{name}.sqlite.xz").read_bytes()))
    found = analyze(path, tmp_path / "out")
    expected = truth(path, steps)

    assert found["program"] == ("jax" if name.startswith("jax") else "pytorch")
    assert found["batch"]["found_by"] == "declared"
    assert {rank["gpu"] for rank in found["ranks"]} == set(expected)
    for rank in found["ranks"]:
        said = expected[rank["gpu"]]
        assert rank["recorded_step_s"] == pytest.approx(said.step_s, rel=0.01)
        assert rank["gpu_busy_s"] == pytest.approx(said.busy_s, rel=0.01)
        # the recorder's cost is taken off the idle time, then off waiting, which communicates
        added_s, idle_s = rank["recorded_step_s"] - rank["step_s"], said.step_s - said.busy_s
        waited_s = max(added_s - idle_s, 0.0)
        if rank["collectives_s"] is not None:
            assert rank["collectives_s"] == pytest.approx(said.nccl_s, rel=0.01, abs=1e-9)
        assert rank["idle_s"] == pytest.approx(idle_s + waited_s - added_s, abs=0.01 * said.step_s)
        exposed_s = rank["communication_s"] + rank["waiting_s"]
        assert exposed_s <= (said.nccl_s - waited_s) * 1.01 + 1e-9
    categories = found["kernels"]["categories"]
    busy = statistics.mean(rank["gpu_busy_s"] for rank in found["ranks"])
    assert sum(c["seconds"] for c in categories) == pytest.approx(busy, rel=1e-6)
    unknown = sum(c["share"] for c in categories if c["category"] == "unknown")
    assert unknown < 0.01
    for group_ in found["collectives"]:
        assert group_["library"] == "nccl"
        assert group_["transfer_s"] + group_["waiting_s"] == pytest.approx(group_["seconds"])


@pytest.mark.skipif(not FOLDER.is_dir(), reason="PROGRAM_REPORTS names no folder of reports")
def test_payloads_give_sizes_and_communicators(unpacked: Path, tmp_path: Path) -> None:
    path = unpacked / "late.sqlite"
    packed = FOLDER / "planted" / "late_allreduce.sqlite.xz"
    path.write_bytes(lzma.decompress(packed.read_bytes()))
    found = analyze(path, tmp_path / "out")["collectives"]
    assert {c["bytes"] for c in found} >= {2048, 1048576, 4194304, 16777216}
    assert len({c["communicator"] for c in found}) == 1
    largest = next(c for c in found if c["bytes"] == 16777216)
    assert largest["ranks"] == 2
    assert largest["algorithm"] == "RING_LL"
    assert 100e9 < largest["bus_bytes_per_s"] < 450e9
