"""What does not go together, or is not here, is refused: once, by all ranks, with code 2."""

from __future__ import annotations

import ctypes
import itertools
import subprocess
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from support.trainer_runs import (
    environment,
    flags,
    mpirun_command,
    run_alone,
    run_ranks,
    session,
    small,
)
from trainer.backends.choice import choose
from trainer.backends.numpy import NumpyBackend
from trainer.config import DTYPES, GEMMS, MATHS, PARALLEL
from trainer.errors import ConfigError, DeviceError
from trainer.kernels import MATHS as KERNEL_MATHS
from trainer.transports import TRANSPORTS
from trainer.transports import device as transport_device
from trainer.transports.device import why_not_cuda_aware

# --- combinations of flags


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"math": "tf32", "dtype": "float64"}, "--math tf32: expected --dtype float32"),
        ({"math": "tf32x3", "gemm": "cublas"}, "(hierarchical, fused); got cublas"),
        ({"math": "tf32x3", "gemm": "thin"}, "(hierarchical, fused); got thin"),
        ({"math": "tf32", "gemm": "naive"}, "(cublas, hierarchical, thin, fused); got naive"),
        ({"math": "tf32", "gemm": "tiled"}, "got tiled"),
        ({"math": "tf32", "gemm": "register"}, "got register"),
        ({"parallel": "model", "gemm": "fused"}, "use --gemm hierarchical"),
        ({"parallel": "model", "transport": "peer"}, "use --transport nccl"),
        ({"parallel": "model", "overlap": True}, "leave out --overlap"),
        ({"math": "bf16"}, "--math: expected one of ieee, tf32, tf32x3"),
        ({"gemm": "cutlass"}, "--gemm: expected one of cublas, naive"),
        ({"data_on": "disk"}, "--data-on: expected one of host, pinned"),
        ({"parallel": "pipeline"}, "--parallel: expected one of data, model"),
        ({"transport": "pigeon"}, "--transport: expected one of chunked, cuda-aware"),
    ],
)
def test_what_does_not_go_together(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        small(**changes)
    assert words in str(caught.value)
    assert "got" in str(caught.value)
    assert caught.value.everywhere


def test_every_other_combination_is_a_config() -> None:
    able = {math: {name for name, maths in KERNEL_MATHS.items() if math in maths} for math in MATHS}
    assert able["ieee"] == set(GEMMS) - {"fused"}
    for gemm, math, dtype, transport, parallel in itertools.product(
        GEMMS, MATHS, DTYPES, TRANSPORTS, PARALLEL
    ):
        # fused is built of hierarchical (or cuBLAS), and thin of cuBLAS for what is not thin
        base = {"fused": "hierarchical", "thin": "cublas"}.get(gemm, gemm)
        wanted = math == "ieee" or (dtype == "float32" and base in able[math])
        wanted &= parallel == "data" or (gemm != "fused" and transport != "peer")
        try:
            small(gemm=gemm, math=math, dtype=dtype, transport=transport, parallel=parallel)
        except ConfigError:
            assert not wanted, (gemm, math, dtype, transport, parallel)
        else:
            assert wanted, (gemm, math, dtype, transport, parallel)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"gemm": "hierarchical"}, "--gemm hierarchical: expected a CUDA GPU"),
        ({"gemm": "fused"}, "--gemm fused: expected a CUDA GPU"),
        ({"math": "tf32"}, "--math tf32: expected a CUDA GPU"),
    ],
)
def test_numpy_multiplies_with_its_blas_alone(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        choose(small(**changes), 0)
    assert isinstance(choose(small(), 0), NumpyBackend)


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--math", "tf32", "--dtype", "float64"], "expected --dtype float32"),
        (["--gemm", "hierarchical"], "expected a CUDA GPU and --backend cupy; got the backend"),
        (["--transport", "nccl"], "expected gradients on a GPU; got the backend numpy"),
        (["--transport", "cuda-aware"], "expected an MPI that takes GPU pointers; got none"),
        (["--transport", "peer", "--overlap"], "got peer; leave out --overlap"),
        (["--transport", "none", "--parallel", "model"], "expected one rank; got 2"),
        (["--parallel", "model", "--hidden-size", "1"], "the nearest valid size is 2"),
        (["--parallel", "model", "--overlap"], "leave out --overlap"),
    ],
)
def test_ranks_refuse_together_and_say_it_once(arguments: list[str], words: str) -> None:
    done = run_ranks(2, *flags(small()), *arguments, timeout=60)
    assert done.returncode == 2, done.stderr
    assert words in done.stderr
    assert done.stderr.count("trainer:") == 1, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--hidden-size", "99999999999"], "expected parameters that fit into this host's"),
        (["--verify", "-1"], "--verify: expected a finite number > 0"),
        (["--verify", "0"], "--verify: expected a finite number > 0"),
    ],
)
def test_sizes_and_bounds_that_cannot_be(arguments: list[str], words: str) -> None:
    done = run_alone(*flags(small()), *arguments)
    assert done.returncode == 2, done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_a_lack_of_memory_says_what_to_lower(monkeypatch: pytest.MonkeyPatch) -> None:
    def zeros(*_: object) -> Any:
        raise MemoryError("Unable to allocate 9 TiB")

    made = session(small())
    monkeypatch.setattr(made.backend, "xp", SimpleNamespace(**{**vars(np), "zeros": zeros}))
    with pytest.raises(DeviceError, match=r"got Unable to allocate 9 TiB; lower --hidden-size"):
        made.prepare()


def test_a_lone_rank_refuses_alike() -> None:
    done = run_alone(*flags(small()), "--transport", "cuda-aware")
    assert done.returncode == 2
    assert "this is a lone process, without MPI (start it with mpirun)" in done.stderr


# --- whether MPI takes GPU pointers


@pytest.mark.mpi
def test_the_mpi_that_is_here_is_asked() -> None:
    """Its own `ompi_info`, where it has one, says the same; ranks agree."""
    code = (
        "from trainer.mpi import connect\n"
        "from trainer.transports.device import why_not_cuda_aware\n"
        "import os\n"
        "os.write(1, f'{why_not_cuda_aware(connect())};'.encode())\n"  # in one piece
    )
    done = subprocess.run(
        mpirun_command(2, "-c", code),
        capture_output=True, text=True, timeout=60, env=environment(), check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    first, second, rest = done.stdout.split(";")
    assert (first, rest) == (second, "")
    try:
        asked = subprocess.run(["ompi_info", "--parsable", "--all"], capture_output=True, text=True)
    except FileNotFoundError:
        return
    supports = "mpi_built_with_cuda_support:value:true" in asked.stdout
    assert (first == "None") == supports
    assert supports or "says it has no CUDA support" in first or "offers no way to ask" in first


class Library:
    """What ctypes finds: the functions given, and no others."""

    def __init__(self, **functions: Any) -> None:
        self.__dict__.update(functions)


def answer(value: int) -> Any:
    """MPIX_GPU_query_support, which writes its answer through a pointer."""

    def query(kind: int, pointer: Any) -> int:
        assert kind == 0
        ctypes.cast(pointer, ctypes.POINTER(ctypes.c_int))[0] = value
        return 0

    return query


@pytest.mark.parametrize(
    ("library", "says"),
    [
        (Library(MPIX_Query_cuda_support=lambda: 1), None),
        (Library(MPIX_Query_cuda_support=lambda: 0), "MPI 9 says it has no CUDA support"),
        (Library(MPIX_GPU_query_support=answer(1)), None),
        (Library(MPIX_GPU_query_support=answer(0)), "MPI 9 says it has no CUDA support"),
        (Library(), "MPI 9 offers no way to ask (MPIX_Query_cuda_support, MPIX_GPU_query_support)"),
    ],
)
def test_open_mpi_and_mpich_answer_in_their_own_ways(
    library: Library, says: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport_device.ctypes, "CDLL", lambda name: library)
    monkeypatch.setattr(transport_device, "library_version", lambda: "MPI 9")
    comm: Any = SimpleNamespace(raw="a communicator")
    assert why_not_cuda_aware(comm) == says
    comm.raw = None
    assert why_not_cuda_aware(comm) == "this is a lone process, without MPI (start it with mpirun)"
