"""Vector addition: its kernels on the CPU's emulator, its parts, its page; unified memory read."""

from __future__ import annotations

import ctypes
import json
import math
import sqlite3
import subprocess
import sys
from contextlib import closing
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.common import pages as made
from benchmarks.common import results
from benchmarks.vecadd import __main__ as vecadd
from benchmarks.vecadd import report as vecadd_report
from benchmarks.vecadd import unified as vecadd_profile
from benchmarks.vecadd import ways as vecadd_ways
from benchmarks.vecadd.unified import (
    CPU_FAULTS,
    GPU_FAULTS,
    read_unified,
)
from perfmodel.base.errors import SchemaError
from perfmodel.machines.devices import named
from perfmodel.machines.machine import Machine
from perfmodel.readers.trace import UNIFIED_TO_GPU, UNIFIED_TO_HOST
from support.build_report import ReportBuilder
from support.cuda_on_cpu import Emulator, KernelError, device_array
from support.foreign_reports import SHARED


class EmulatedGpu:
    """A device whose memory is the host's and whose kernels the emulator runs."""

    def __init__(self, module: Any, free_bytes: int = 1 << 40) -> None:
        self._kernels = {name: module.get_function(name) for name in ("add", "chase")}
        self._free_bytes = free_bytes
        self.launched: list[tuple[str, int, int]] = []

    def allocate(self, size_bytes: int) -> Any:
        array = device_array(np.zeros(size_bytes, np.uint8))
        return SimpleNamespace(ptr=array.data.ptr, array=array)

    managed = allocate

    def copy_in(self, target: int, source: np.ndarray) -> None:
        ctypes.memmove(target, source.ctypes.data, source.nbytes)

    def copy_out(self, target: np.ndarray, source: int) -> None:
        ctypes.memmove(target.ctypes.data, source, target.nbytes)

    def view(self, address: int, count: int) -> Any:
        return np.frombuffer((ctypes.c_float * count).from_address(address), np.float32)

    def run(self, kernel: str, grid: int, block: int, args: tuple[Any, ...]) -> float:
        self.launched.append((kernel, grid, block))
        self._kernels[kernel]((grid,), (block,), args)
        return 1e-6

    def free_bytes(self) -> int:
        return self._free_bytes


@pytest.fixture(scope="module")
def folder(gxx: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("vecadd")


@pytest.fixture(scope="module")
def kernels(folder: Path) -> Any:
    return Emulator(folder, order=5).compile(vecadd_ways.SOURCE.read_text(encoding="utf-8"))


@pytest.fixture
def gpu(kernels: Any) -> EmulatedGpu:
    return EmulatedGpu(kernels)


# --- the programs


@pytest.mark.parametrize("way", vecadd.GRIDS)
@pytest.mark.parametrize("memory", ["explicit", "unified"])
@pytest.mark.parametrize("n", [1, 255, 256, 1000])
def test_every_way_adds_all_and_no_more(gpu: EmulatedGpu, memory: str, way: str, n: int) -> None:
    x, y = vecadd.numbers(n)
    program = {"explicit": vecadd_ways.explicit, "unified": vecadd_ways.managed}[memory]
    found = vecadd.measured(vecadd.using(gpu, program, way), x, y, 2)
    assert found["correct"]
    assert set(vecadd_report.PARTS[memory]) | {"total_s"} == set(found["seconds"])
    times = 2 if memory == "unified" else 1
    blocks = {"grid": math.ceil(n / 256), "block": 1, "thread": 1}[way]
    threads = 1 if way == "thread" else 256
    assert gpu.launched == [("add", blocks, threads)] * times * found["repeats"]


def test_a_kernel_that_adds_too_much_is_stopped(gpu: EmulatedGpu) -> None:
    memory = [gpu.allocate(400) for _ in range(3)]
    args = (*(np.uint64(m.ptr) for m in memory), np.int64(101))
    with pytest.raises(KernelError, match="memory that is not there"):
        gpu.run("add", 1, 256, args)


def test_unified_memory_takes_at_most_half_of_what_is_free(kernels: Any) -> None:
    x, y = vecadd.numbers(100)
    for free_bytes, fits in ((2400, True), (2399, False)):
        way = vecadd.using(EmulatedGpu(kernels, free_bytes), vecadd_ways.managed, "grid")
        if fits:
            assert vecadd.measured(way, x, y, 1)["correct"]
        else:
            with pytest.raises(vecadd.Skip, match="more than half of the 2399 B"):
                way(x, y, np.empty_like(x))


def test_a_wrong_sum_is_told() -> None:
    x, y = vecadd.numbers(100)

    def forgets_one(x: Any, y: Any, out: Any) -> dict[str, float]:
        np.add(x[:-1], y[:-1], out=out[:-1])
        return {"total_s": 1.0}

    assert not vecadd.measured(forgets_one, x, y)["correct"]


def test_every_hop_of_the_chase_depends_on_the_last(gpu: EmulatedGpu) -> None:
    chain = np.array([3, 0, 1, 2], np.uint32)
    at, out = gpu.allocate(chain.nbytes), gpu.allocate(4)
    gpu.copy_in(at.ptr, chain)
    gpu.run("chase", 1, 1, (np.uint64(at.ptr), np.uint64(out.ptr), np.int64(6)))
    assert out.array.view(np.uint32).tolist() == [2]  # 0 3 2 1 0 3 2
    assert vecadd_ways.latencies(gpu, hops=300, span=4096) == {"l1_s": 0.0, "memory_s": 0.0}


def test_loops_of_the_host_add(folder: Path) -> None:
    x, y = vecadd.numbers(1000)
    for add in vecadd_ways.on_hosts(folder).values():
        assert vecadd.measured(add(), x, y, 1)["correct"]


# --- the benchmark


@pytest.fixture(scope="module")
def rehearsal(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("rehearsal") / "vecadd.json"
    words = ["--part", "time", "profile", "--device", "cpu", "--millions", "0.02", "0.01"]
    command = [sys.executable, "-m", "benchmarks.vecadd", *words, "--out", str(out)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    read: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    return read


def test_without_a_gpu_the_host_is_timed_and_the_rest_named(rehearsal: dict[str, Any]) -> None:
    part = rehearsal["time"]
    ran = {(row["way"], row["millions"]) for row in part["rows"]}
    assert {("numpy", 0.01), ("numpy", 0.02), ("python", 0.01), ("python", 0.02)} <= ran
    assert all(row["correct"] and row["seconds"]["total_s"] > 0 for row in part["rows"])
    skipped = [problem for problem in part["problems"] if "no GPU was asked for" in problem]
    assert len(skipped) == 12
    assert not rehearsal["profile"]["rows"]
    assert rehearsal["profile"]["problems"]


def test_what_would_take_too_long_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vecadd, "ways", lambda *_: [("host", "python", slow)])

    def slow(x: Any, y: Any, out: Any) -> dict[str, float]:
        np.add(x, y, out=out)
        return {"total_s": 1.0}

    monkeypatch.setattr(vecadd, "MOST_PYTHON_S", 1e-7)
    kept: list[dict[str, Any]] = []
    args = SimpleNamespace(device="cpu", seconds=5.0, millions=[0.001, 0.01])
    vecadd.timed(args, kept.append, {})
    assert [("skipped" in row) for row in kept] == [False, True]


def test_the_whole_part_on_the_emulator(
    kernels: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Described(EmulatedGpu):
        def about(self) -> dict[str, Any]:
            return {"device": "emulator"}

    monkeypatch.setattr(vecadd, "Gpu", lambda: Described(kernels))
    short = partial(vecadd_ways.latencies, hops=10, span=1024)
    monkeypatch.setattr(vecadd, "latencies", short)
    out = tmp_path / "new" / "vecadd.json"
    args = SimpleNamespace(device="cuda", seconds=60.0, millions=[0.001, 0.002], out=out)
    part = vecadd.part_of("time", args)
    written = json.loads(out.read_text(encoding="utf-8"))["time"]
    assert {**written, "seconds": part["seconds"]} == part  # the clock goes on while it is written
    results.store(out, "time", {**part, "rows": []})
    assert json.loads(out.read_text(encoding="utf-8"))["time"]["rows"] == part["rows"]
    assert part["problems"] == []
    assert len(part["rows"]) == 2 * 9
    assert all(row["correct"] for row in part["rows"])
    assert vecadd_report._verdict(part["rows"]) == "Every sum equals NumPy's to the bit."


# --- the model


TOY = Machine("toy", "by hand", {}, {"hbm": 12e9, "pcie": 1e9}, latency_s={"launch": 0.5})
WAITS = {"memory_s": 9e-7, "l1_s": 1e-7}


def test_predictions_by_hand() -> None:
    n = 1024**2
    assert vecadd_report.kernel_s(TOY, "grid", n, None) == pytest.approx(n * 1e-9 + 0.5)
    assert vecadd_report.kernel_s(TOY, "thread", n, WAITS) == pytest.approx(n * 2e-7)
    assert vecadd_report.kernel_s(TOY, "block", n, WAITS) == pytest.approx(4096 * 9e-7)
    assert vecadd_report.kernel_s(TOY, "thread", n, None) is None
    found = vecadd_report.predicted(TOY, "explicit", "thread", n, WAITS)
    assert found["copy_in_s"] == pytest.approx(8e-9 * n)
    assert found["copy_out_s"] == pytest.approx(4e-9 * n)
    found = vecadd_report.predicted(TOY, "unified", "block", n, WAITS)
    assert found["kernel_s"] == pytest.approx(8e-9 * n)  # pages come later than the loads could ask
    assert found["second_kernel_s"] == pytest.approx(4096 * 9e-7)


def test_a_machine_without_a_link_is_not_predicted() -> None:
    bare = Machine("bare", "by hand", {}, {})
    assert set(vecadd_report.predicted(bare, "explicit", "grid", 10, None).values()) == {None}
    assert set(vecadd_report.predicted(bare, "unified", "grid", 10, None).values()) == {None}


def test_measured_ceilings_go_before_the_datasheet() -> None:
    sheet, found = vecadd_report.ceilings("NVIDIA H200")
    assert sheet == named("h200")
    assert found is not None
    assert vecadd_report.bandwidth(sheet, "copy_in") == 64e9
    assert vecadd_report.bandwidth(found, "copy_in") == pytest.approx(11.2e9, rel=0.01)
    assert vecadd_report.ceilings("Tesla T4")[1] is None


# --- the report of a profile


def um_report(path: Path, *, faults: bool = True) -> Path:
    """Three kernels; pages of the second arrive while it runs, and go back to the host behind."""
    report = ReportBuilder("2025.3.2")
    report.gpu(0)
    thread = report.thread(pid=1000, rank=0)
    process = thread.tid & ~0xFFFFFF
    kernels = ((100, 200), (1_000, 5_000), (6_000, 6_100))
    for start, end in kernels:
        report.insert("CUPTI_ACTIVITY_KIND_KERNEL", start=start, end=end, globalPid=process)
    copies = ((11, 1_100, 1_300, 4096, 2), (11, 2_000, 2_600, 65536, 3), (12, 7_000, 7_500, 100, 2),
              (1, 10, 60, 777, None))  # fmt: skip
    for kind, start, end, size, cause in copies:
        report.insert(
            "CUPTI_ACTIVITY_KIND_MEMCPY", start=start, end=end, bytes=size, copyKind=kind,
            globalPid=process, **({} if cause is None else {"migrationCause": cause}),
        )  # fmt: skip
    report.write(path)
    if faults:
        with closing(sqlite3.connect(path)) as db:
            db.execute(f"CREATE TABLE {CPU_FAULTS} (start INTEGER, address INTEGER)")
            db.executemany(f"INSERT INTO {CPU_FAULTS} VALUES (?, ?)", [(900, 1), (7_000, 2)])
            db.execute(f"CREATE TABLE {GPU_FAULTS} (start INTEGER, numberOfPageFaults INTEGER)")
            db.executemany(f"INSERT INTO {GPU_FAULTS} VALUES (?, ?)", [(2_000, 30), (1_050, 12)])
            db.commit()
    return path


def test_migrations_and_faults_are_read(tmp_path: Path) -> None:
    found = read_unified(um_report(tmp_path / "um.sqlite"))
    assert found.migrations.kind.tolist() == [UNIFIED_TO_GPU, UNIFIED_TO_GPU, UNIFIED_TO_HOST]
    assert found.migrations.bytes.tolist() == [4096, 65536, 100]
    assert found.migrations.cause.tolist() == [2, 3, 2]
    assert found.cpu_faults is not None
    assert found.gpu_faults is not None
    assert found.cpu_faults.count.tolist() == [1, 1]
    assert found.gpu_faults.start_ns.tolist() == [1_050, 2_000]
    assert found.gpu_faults.count.tolist() == [12, 30]


def test_what_was_not_recorded_is_none(tmp_path: Path) -> None:
    found = read_unified(um_report(tmp_path / "um.sqlite", faults=False))
    assert (found.cpu_faults, found.gpu_faults) == (None, None)
    assert len(found.migrations.bytes) == 3
    assert not read_unified(SHARED).migrations.bytes.size


def test_a_table_of_faults_without_its_column_is_refused(tmp_path: Path) -> None:
    path = um_report(tmp_path / "um.sqlite", faults=False)
    with closing(sqlite3.connect(path)) as db:
        db.execute(f"CREATE TABLE {GPU_FAULTS} (start INTEGER)")
        db.commit()
    with pytest.raises(SchemaError, match="no column numberOfPageFaults"):
        read_unified(path)
    with closing(sqlite3.connect(path)) as db:
        db.execute(f"ALTER TABLE {GPU_FAULTS} ADD COLUMN numberOfPageFaults INTEGER")
        db.execute(f"INSERT INTO {GPU_FAULTS} VALUES (5, NULL)")
        db.commit()
    with pytest.raises(SchemaError, match="numberOfPageFaults: expected numbers; got NULL"):
        read_unified(path)


def test_pages_are_told_by_kernel(tmp_path: Path) -> None:
    found = vecadd_profile.evidence(um_report(tmp_path / "um.sqlite"))
    told = {k["kernel"]: (k["gpu_faults"], k["migrations"], k["bytes"]) for k in found["kernels"]}
    assert told == {
        "explicit": (0, 0, 0), "unified first": (42, 2, 69632), "unified second": (0, 0, 0)
    }  # fmt: skip
    assert found["to_host"] == {"migrations": 1, "bytes": 100, "migration_s": 5e-7}
    assert found["causes"] == {"coherence": 4196, "prefetch by the driver": 65536}
    assert (found["cpu_faults"], found["gpu_faults"], found["absent_tables"]) == (2, 42, [])
    assert found["copies"]["Host-to-Device"] == {"count": 1, "bytes": 777, "seconds": 5e-8}
    bare = vecadd_profile.evidence(um_report(tmp_path / "bare.sqlite", faults=False))
    assert bare["absent_tables"] == [CPU_FAULTS, GPU_FAULTS]
    assert bare["kernels"][1]["gpu_faults"] is None


# --- the page and its charts


def made_up(tmp_path: Path) -> dict[str, Any]:
    """Results as a GPU would write them, of round numbers."""
    rows = []
    for memory, ways in (("host", ("python", "loop", "numpy")), ("explicit", vecadd.GRIDS),
                         ("unified", vecadd.GRIDS)):  # fmt: skip
        for i, way in enumerate(ways):
            for k in vecadd.MILLIONS[: 2 if way == "python" else 5]:
                names = vecadd_report.PARTS.get(memory, ())
                seconds = dict.fromkeys(names, 0.0001 * k * 10**i)
                seconds["total_s"] = 1e-4 * k * 10**i * max(1, len(names))
                rows.append({"memory": memory, "way": way, "millions": k, "repeats": 3,
                             "correct": True, "seconds": seconds})  # fmt: skip
    time = {"date": "2026-01-01", "command": "python -m benchmarks.vecadd --part time",
            "seconds": 1.0, "problems": [], "rows": rows,
            "about": {"device": "NVIDIA H200", "latency_s": WAITS}}  # fmt: skip
    evidence = vecadd_profile.evidence(um_report(tmp_path / "um.sqlite"))
    row = {"way": "profile", "command": "nsys profile", "nsys": "2025.3", "millions": 10.0}
    return {"time": time, "profile": {"rows": [{**row, **evidence}], "problems": []}}


def test_the_page_of_results(tmp_path: Path) -> None:
    result = made_up(tmp_path)
    said = vecadd_report.made(result)
    assert "Every sum equals NumPy's to the bit." in said
    assert "| unified first" in said
    assert "At K = 100 the full grid's kernel moves 120 GB/s; 33 % of its program copies." in said
    assert "The kernel alone is 10 times as fast as the loop in C++, the program 1.7 times." in said
    assert "In unified memory the first kernel takes 1 times as long as the second" in said
    assert "42 page faults of the GPU." in said
    assert "images/vecadd_explicit.png" in said
    lines = [" ".join(line.split()) for line in said.splitlines()]
    assert "| explicit | full grid | 1 | copy in | 125 µs | 714 µs | 100 µs | 0.14 |" in lines
    assert (
        "| unified | one block | 100 | second kernel | 352 ms | 352 ms | 100 ms | 0.28 |" in lines
    )
    result["time"]["rows"][0]["correct"] = False
    assert "**Wrong sums: host python K = 1.**" in vecadd_report.made(result)


@pytest.mark.slow
def test_the_charts(tmp_path: Path) -> None:
    vecadd_report.draw(made_up(tmp_path)["time"]["rows"], tmp_path)
    assert sorted(p.name for p in tmp_path.glob("*.png")) == [
        "vecadd_explicit.png", "vecadd_unified.png"
    ]  # fmt: skip


def test_the_page_is_what_the_results_say() -> None:
    results = vecadd.RESULTS
    read = json.loads(results.read_text(encoding="utf-8")) if results.exists() else {}
    page = made.section(vecadd_report.PAGE, vecadd_report.SCRIPT)
    assert page == vecadd_report.made(read).strip()
