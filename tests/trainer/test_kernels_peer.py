"""The all-reduce and step of peer.cu on the CPU: alone, and between processes that share memory."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support import peer_on_cpu
from support.cuda_on_cpu import Emulator, _build
from support.trainer_runs import environment
from trainer.kernels import peer as stepper
from trainer.kernels.peer import (
    MOST_BLOCKS,
    MOST_PACKET_BYTES,
    THREADS,
    SumAndStep,
    blocks_of,
    inbox_bytes,
    sends_packets,
)
from trainer.parameters import Tensors

pytestmark = pytest.mark.slow

REAL = {"float32": "float", "float64": "double"}
Build = Callable[[str, int], Path]


@pytest.fixture(scope="session")
def folder(gxx: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("peer")


@pytest.fixture(scope="session")
def build(folder: Path) -> Build:
    """Compile peer.cu for processes that share memory, each kind once."""
    made: dict[tuple[str, int], Path] = {}

    def library(dtype: str, ranks: int) -> Path:
        if (dtype, ranks) not in made:
            macros: dict[str, Any] = {"REAL": REAL[dtype], "RANKS": ranks}
            stem = f"peer_{dtype}_{ranks}"
            made[dtype, ranks] = _build(folder, stem, peer_on_cpu.source(), macros)
        return made[dtype, ranks]

    return library


def step(p: np.ndarray, total: np.ndarray, sizes: tuple[int, int, int]) -> np.ndarray:
    """Return p - 0.5 (total + 0.25 p), biases without the second term."""
    decay = np.full_like(p, 0.25)
    parts = Tensors.split(decay, *sizes)
    parts.b1[:] = parts.b2[:] = 0
    return p - p.dtype.type(0.5) * (total + decay * p)


# --- alone


@pytest.fixture(scope="session")
def emulator(folder: Path) -> Emulator:
    return Emulator(folder)


@pytest.mark.parametrize("dtype", REAL)
@pytest.mark.parametrize("sizes", [(1, 1, 2), (5, 3, 2), (50, 10, 4), (97, 33, 10), (300, 460, 3)])
def test_one_rank_steps(
    sizes: tuple[int, int, int], dtype: str, emulator: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fewer elements than threads; a last block of any size; more than a block owns at first."""
    inputs, hidden, classes = sizes
    count = hidden * inputs + hidden + classes * hidden + classes
    monkeypatch.setattr(stepper, "load", emulator.load)
    before = np.linspace(-1, 1, count).astype(dtype)
    parameters = Tensors.split(peer_on_cpu.aligned(before), *sizes)
    gradient = peer_on_cpu.gradient(0, 0, count, dtype)
    SumAndStep(parameters)(peer_on_cpu.aligned(gradient), 0.5, 0.25)
    np.testing.assert_allclose(
        parameters.flat, step(before, gradient, sizes), rtol=0, atol=2 * np.finfo(dtype).eps
    )


# --- together


@pytest.mark.parametrize("packets", [True, False], ids=["packets", "flags"])
@pytest.mark.parametrize(
    ("ranks", "dtype", "sizes", "order"),
    [
        (2, "float32", (50, 10, 4), 0),
        (2, "float32", (20, 10, 4), 0),  # one block: the other rank may be a launch ahead of it
        (2, "float32", (97, 33, 10), 1),  # 3553 = 3 x 1184 + 1 elements
        (2, "float64", (50, 10, 4), 0),
        (3, "float32", (50, 10, 4), 2),
    ],
)
def test_ranks_get_the_same_bits_of_the_sum(
    ranks: int, dtype: str, sizes: tuple[int, int, int], order: int, packets: bool,
    build: Build, tmp_path: Path,
) -> None:  # fmt: skip
    """Seven launches, so that every inbox is used again; ranks are early and late in turns.

    One rank naps while it reads, so that the others have begun the next launch: what they write
    then must not be what it still reads.
    """
    inputs, hidden, classes = sizes
    count, launches = hidden * inputs + hidden + classes * hidden + classes, 7
    flat = np.zeros(count, dtype)
    size = 2 * ranks * 16 * count  # enough for either form
    assert inbox_bytes(flat, ranks) <= size
    for rank in range(ranks):
        np.zeros(size, np.uint8).tofile(tmp_path / f"inbox{rank}")
        np.zeros(blocks_of(count)[1] * ranks, np.uint32).tofile(tmp_path / f"flags{rank}")
    asked = {
        "folder": str(tmp_path), "library": str(build(dtype, ranks)), "ranks": ranks,
        "sizes": sizes, "dtype": dtype, "launches": launches, "order": order, "packets": packets,
    }  # fmt: skip
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "support.peer_on_cpu", json.dumps({**asked, "rank": rank})],
            stderr=subprocess.PIPE, text=True,
            env=environment(**({"DROWSY": "1"} if rank == 0 else {})),
        )
        for rank in range(ranks)
    ]  # fmt: skip
    try:
        for process in started:
            _, errors = process.communicate(timeout=90)
            assert process.returncode == 0, errors
    finally:
        for process in started:
            process.kill()
    found = [np.load(tmp_path / f"found{rank}.npy") for rank in range(ranks)]
    assert all(np.array_equal(found[0], other) for other in found[1:])
    wanted = np.linspace(-1, 1, count).astype(dtype)
    for launch in range(launches):
        total = np.zeros(count, dtype)
        for rank in range(ranks):  # in the order of the ranks, as everywhere
            total += peer_on_cpu.gradient(rank, launch, count, dtype)
        wanted = step(wanted, total, sizes)
    np.testing.assert_allclose(found[0], wanted, rtol=0, atol=40 * np.finfo(dtype).eps)


# --- sizes


@given(count=st.integers(1, 10**7))
def test_blocks_own_everything_once(count: int) -> None:
    each, blocks = blocks_of(count)
    assert each % 32 == 0  # a block's range begins on 16 bytes, and on a whole number of quads
    assert (blocks - 1) * each < count <= blocks * each
    assert blocks <= MOST_BLOCKS
    assert each >= THREADS


@given(count=st.integers(1, 10**6), ranks=st.integers(1, 8), double=st.booleans())
def test_an_inbox_holds_two_turns_of_every_sender(count: int, ranks: int, double: bool) -> None:
    flat = np.zeros(1, np.float64 if double else np.float32)
    flat = np.lib.stride_tricks.as_strided(flat, (count,), (0,))
    carried = 1 if double else 3
    if sends_packets(flat, ranks):
        assert (ranks - 1) * flat.nbytes <= MOST_PACKET_BYTES
        assert inbox_bytes(flat, ranks) == 2 * ranks * -(-count // carried) * 16
    else:
        assert inbox_bytes(flat, ranks) >= 2 * ranks * flat.nbytes
        assert inbox_bytes(flat, ranks) % (16 * 2 * ranks) == 0  # slots begin on 16 bytes


def test_the_documents_gradients_travel_in_packets_to_three_ranks_at_most() -> None:
    """n = 784 x 512 + 512 + 512 x 10 + 10 = 407,050 elements of 4 bytes: 1.63 MB."""
    flat = np.zeros(407_050, np.float32)
    assert [sends_packets(flat, ranks) for ranks in (1, 2, 3, 4)] == [False, True, True, False]
    assert not sends_packets(flat.astype(np.float64), 3)
    assert blocks_of(flat.size) == (1568, 260)
