"""Measuring a GPU: rehearsed on a stand-in for CuPy, its kernels on the CPU, and on a real GPU."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.common.folders import SUPPORT
from perfmodel.machines.devices import datasheet
from perfmodel.machines.measure import device
from perfmodel.machines.measure.measurement import load
from support.cuda_on_cpu import Emulator, Module, device_array
from support.trainer_runs import environment, mpirun_command

STUB = SUPPORT / "cupy_stub"
CUBLAS = """
// as cuBLAS checks its arguments: column-major matrices, leading dimensions of at least a column
extern "C" int cublasCreate_v2(void** handle) { *handle = (void*)7; return 0; }
extern "C" int cublasSetStream_v2(void* handle, void*) { return handle != (void*)7; }
extern "C" int cublasSetWorkspace_v2(void* handle, void* memory, unsigned long size) {
    return !(handle == (void*)7 && memory && size == 32 << 20);
}
extern "C" int cublasGemmEx(
    void*, int ta, int tb, int m, int n, int k, void*, void*, int at, int lda, void*, int bt,
    int ldb, void*, void*, int ct, int ldc, int, int) {
    const bool fits = lda >= (ta ? k : m) && ldb >= (tb ? n : k) && ldc >= m;
    return at == bt && bt == ct && fits ? 0 : 7;
}
"""
MACROS = {"CHAINS": 8, "UNROLLED": 4, "STARTS": 1024}


def of_memory(emulator: Emulator) -> Module:
    """Compile what fills and copies, with what is PTX replaced by what g++ knows."""
    source = device.SOURCE.replace("clock64()", "0") + device.MEMORY_SOURCE
    source = re.sub(r"asm volatile\(.*?\);", "v = *p;", source, flags=re.DOTALL)
    return emulator.compile("#define __stcg(p, v) (*(p) = (v))\n" + source, "memory")


@pytest.fixture(scope="module")
def emulator(gxx: str, tmp_path_factory: pytest.TempPathFactory) -> Emulator:
    return Emulator(tmp_path_factory.mktemp("emulator"), order=5)


@pytest.mark.parametrize(("dtype", "macro"), [("float32", "SINGLE"), ("float64", "DOUBLE")])
def test_the_multiply_adds_are_all_done(emulator: Emulator, dtype: str, macro: str) -> None:
    """An odd number of steps takes x to b - x; rounds times 4 is even: x stays."""
    kernel = emulator.compile(device.ARITHMETIC_SOURCE, "fma", **MACROS, **{macro: 1})
    start = device_array(np.random.default_rng(1).integers(-9, 9, 1026).astype(dtype))
    start[0] = -1
    out = device_array(np.zeros(2 * 32, dtype))
    kernel.get_function("multiply_adds")((2,), (32,), (start, out, np.int32(3)))
    x = start[2:].reshape(-1, 8)[:32]  # of every thread
    # the last line keeps all: sum becomes x_c - sum, chain by chain
    wanted = x[:, 0]
    for c in range(1, 8):
        wanted = x[:, c] - wanted
    assert out.reshape(2, 32).tolist() == [wanted.tolist()] * 2


@pytest.mark.parametrize("count", [1, 63, 64, 300, 1000])
def test_the_copies_touch_every_element(emulator: Emulator, count: int) -> None:
    module = of_memory(emulator)
    random = np.random.default_rng(1)
    a, b = (device_array(random.random(4 * count).astype(np.float32)) for _ in range(2))
    out, size = device_array(np.zeros(4 * count, np.float32)), np.int64(count)
    module.get_function("copy_all")((2,), (32,), (a, out, size, np.int32(2)))
    assert (out == a).all()
    module.get_function("triad_all")((2,), (32,), (a, b, out, size, np.float32(0.5)))
    assert out == pytest.approx(a + np.float32(0.5) * b)
    before = out.copy()
    module.get_function("read_all")((2,), (32,), (a, out, size, np.int32(2)))
    assert (out == before).all()


def test_random_numbers_are_random(emulator: Emulator) -> None:
    fill = of_memory(emulator).get_function("fill")
    values = [device_array(np.zeros(5000, np.float32)) for _ in range(2)]
    for seed, one in enumerate(values):
        fill((2,), (32,), (one, np.int64(5000), np.uint32(977 * seed)))
        assert abs(one.mean()) < 0.05
        assert one.std() == pytest.approx(3**-0.5, rel=0.05)
        assert len(np.unique(one)) > 4990
    assert abs(np.corrcoef(values)[0, 1]) < 0.05


SOURCES = [
    ("fma float16", device.ARITHMETIC_SOURCE, ["-DHALF"]),
    ("fma float32", device.ARITHMETIC_SOURCE, ["-DSINGLE"]),
    ("fma float64", device.ARITHMETIC_SOURCE, ["-DDOUBLE"]),
    ("memory", device.MEMORY_SOURCE, []),
    ("device", device.SOURCE, []),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "source", "macros"), SOURCES, ids=[s[0] for s in SOURCES])
def test_the_kernels_compile_for_hopper_and_keep_to_registers(
    name: str, source: str, macros: list[str], tmp_path: Path
) -> None:
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("no nvcc to compile kernels for sm_90: install the CUDA toolkit")
    (tmp_path / "kernel.cu").write_text(source)
    macros = [*macros, "-DCHAINS=8", "-DUNROLLED=32", "-DSTARTS=1024"]
    done = subprocess.run(
        [nvcc, "-arch=sm_90", "-std=c++17", "-cubin", "-Xptxas", "-v", *macros,
         "kernel.cu", "-o", "kernel.cubin"],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    spilled = re.findall(r"(\d+) bytes spill", done.stderr)
    assert spilled
    assert set(spilled) == {"0"}


@pytest.fixture(scope="module")
def stub(gxx: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which CuPy is the stand-in."""
    folder = tmp_path_factory.mktemp("cublas")
    library = folder / "libcublas.so"
    (folder / "cublas.cpp").write_text(CUBLAS)
    subprocess.run(["g++", "-shared", "-fPIC", "-o", library, folder / "cublas.cpp"], check=True)
    env = environment(STUB_CUBLAS=str(library))
    return {**env, "PYTHONPATH": f"{STUB}:{env['PYTHONPATH']}"}


def measured(
    command: list[str], out: Path, env: dict[str, str], *more: str
) -> subprocess.CompletedProcess:
    command = [*command, "machine", "measure", "--quick", "--device", "gpu", "-o", str(out), *more]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)


def test_every_part_of_a_gpu_is_measured(stub: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / "stub.toml"
    done = measured([sys.executable, "-m", "perfmodel"], out, stub)
    assert done.returncode == 0, done.stderr
    assert "left out" not in done.stderr
    found = load(out)
    assert found.gpus == ("Stub 100",)
    assert not found.warnings
    machine = found.machine
    assert set(machine.gemm_flops_per_s) == {"float64", "float32", "tf32", "float16", "bfloat16"}
    assert {"float64", "float32", "float16", "tf32_tensor"} < set(machine.peak_flops_per_s)
    links = {"hbm", "l2", "pcie_h2d", "pcie_d2h", "pcie_h2d_pageable", "pcie_d2h_pageable"}
    assert links < set(machine.bandwidth_bytes_per_s)
    assert machine.capacity_bytes == {"hbm": 1 << 30, "l2": 1 << 20}
    assert set(machine.latency_s) == {
        "python", "launch", "launch_and_wait", "copy_call", "synchronize", "event_record",
        "empty_kernel", "driver_launch",
    }  # fmt: skip
    assert {(s.memory, s.direction, s.clock) for s in found.series} == {
        ("pinned", "h2d", "host"), ("pinned", "h2d", "device"), ("pageable", "h2d", "host"),
        ("pinned", "d2h", "host"), ("pinned", "d2h", "device"), ("pageable", "d2h", "host"),
    }  # fmt: skip
    names = {(p.name, p.dtype) for p in found.products}
    assert {("forward 1", "float32"), ("backward 3", "tf32"), ("square", "bfloat16")} < names


def test_a_part_that_fails_is_left_out_and_said(stub: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / "stub.toml"
    env = {**stub, "STUB_CUBLAS": str(tmp_path / "none.so")}
    done = measured([sys.executable, "-m", "perfmodel"], out, env)
    assert done.returncode == 0, done.stderr
    found = load(out)
    assert found.machine.gemm_flops_per_s == {}
    assert found.products == ()
    assert "hbm" in found.machine.bandwidth_bytes_per_s
    assert len(found.warnings) == 7  # five data types of squares, two of the trainer's products
    assert "warning: products float32: OSError" in done.stderr


OWN_KERNELS = """
def kernels(hidden, batches):
    for h in hidden:
        for b in batches:
            yield "fused forward 1", "tf32x3", "nt", (h, b, 784), lambda: None

def steps(mpi, hidden):
    for h in hidden:
        yield 4 * (795 * h + 10), lambda: None
"""


@pytest.mark.mpi
def test_a_program_s_own_kernels_are_measured(stub: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "own_kernels.py").write_text(OWN_KERNELS)
    env = {**stub, "PYTHONPATH": f"{tmp_path}:{stub['PYTHONPATH']}"}
    command, out = mpirun_command(2, "-m", "perfmodel"), tmp_path / "stub.toml"
    done = measured(command, out, env, "--kernels", "own_kernels", "--only", "own")
    assert done.returncode == 0, done.stderr
    found = load(out)
    assert [(p.name, p.dtype, p.m, p.n) for p in found.products] == [
        ("fused forward 1", "tf32x3", (64, 64), (750, 3000))
    ]
    assert [(s.kind, s.ranks, s.bytes) for s in found.series] == [
        ("step", 1, (203560,)), ("step", 2, (203560,))
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.mpi
@pytest.mark.parametrize("devices", [2, 1])
def test_ranks_measure_together(stub: dict[str, str], tmp_path: Path, devices: int) -> None:
    out = tmp_path / "stub.toml"
    env = {**stub, "STUB_DEVICES": str(devices)}
    done = measured(mpirun_command(2, "-m", "perfmodel"), out, env)
    assert done.returncode == 0, done.stderr
    found = load(out)
    assert found.ranks == 2
    together = {(s.kind, s.clock) for s in found.series if s.ranks == 2}
    nccl = {("nccl_allreduce", "device"), ("nccl_allreduce", "host")}
    assert together == {("copy", "host"), ("mpi_allreduce", "host")} | (
        nccl if devices > 1 else set()
    )
    assert ("nccl_bus" in found.machine.bandwidth_bytes_per_s) == (devices > 1)
    said = [w for w in found.warnings if "expected a GPU for each of 2 ranks" in w]
    assert len(said) == (devices == 1)


@pytest.mark.parametrize("devices", [0, -1])
def test_a_gpu_that_is_wanted_and_missing_is_said(
    stub: dict[str, str], tmp_path: Path, devices: int
) -> None:
    env = {**stub, "STUB_DEVICES": str(devices)}
    done = measured([sys.executable, "-m", "perfmodel"], tmp_path / "none.toml", env)
    assert done.returncode == 1
    assert "expected a CUDA GPU; got none" in done.stderr
    assert not (tmp_path / "none.toml").exists()


@pytest.mark.gpu
def test_a_real_gpu_is_within_its_datasheet(tmp_path: Path) -> None:
    pytest.importorskip("cupy", reason="no CuPy: pip install cupy-cuda13x")
    out = tmp_path / "gpu.toml"
    done = measured([sys.executable, "-m", "perfmodel"], out, environment())
    if "expected a CUDA GPU" in done.stderr:
        pytest.skip("no CUDA device")
    assert done.returncode == 0, done.stderr
    found = load(out)
    assert not found.warnings
    published = datasheet(found.gpus)
    if published is not None:
        for key, peak in published.peak_flops_per_s.items():
            assert found.machine.peak_flops_per_s.get(key, 0.5 * peak) <= 1.05 * peak
        ratio = found.machine.bandwidth_bytes_per_s["hbm"] / published.bandwidth_bytes_per_s["hbm"]
        assert 0.6 < ratio < 1.05
