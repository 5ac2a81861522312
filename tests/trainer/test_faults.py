"""The trainer under fire: ranks killed or stopped, damaged checkpoints, full disks, other data."""

from __future__ import annotations

import io
import json
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.common.folders import RESULTS
from benchmarks.robustness import soak
from support.trainer_runs import environment, flags, need_mpi, run_alone, run_ranks, session, small
from trainer import checkpoint
from trainer.checkpoint import State
from trainer.data import FILES
from trainer.errors import CheckpointError


@pytest.fixture(scope="module")
def state() -> State:
    """A real state, in the middle of a run."""
    saved: list[bytes] = []
    session(small(), save=lambda state: saved.append(checkpoint.pack(state))).run()
    return checkpoint.unpack(saved[0])


@pytest.fixture(scope="module")
def packed(state: State) -> bytes:
    return checkpoint.pack(state)


def same(a: State, b: State) -> bool:
    return checkpoint.pack(a) == checkpoint.pack(b)


# --- a damaged checkpoint


def read_or_refuse(content: bytes, folder: Path, wanted: State) -> bool:
    """Whether the content was refused; if not, it must be read as what was written."""
    (folder / checkpoint.FILE).write_bytes(content)
    try:
        found = checkpoint.load(folder)
    except CheckpointError as error:
        return "delete it and start anew, or restore a copy" in str(error)
    assert same(found, wanted)
    return False


def test_cut_at_any_byte_it_is_refused(packed: bytes, state: State, tmp_path: Path) -> None:
    for length in range(0, len(packed), 7):
        assert read_or_refuse(packed[:length], tmp_path, state), length


@given(st.data())
def test_a_flipped_bit_is_refused_or_harmless(packed: bytes, state: State, data: Any) -> None:
    """Harmless are bits that hold no content, such as a time stamp of the archive."""
    at = data.draw(st.integers(0, 8 * len(packed) - 1))
    content = bytearray(packed)
    content[at // 8] ^= 1 << (at % 8)
    try:
        found = checkpoint.unpack(bytes(content))
    except Exception:
        return
    assert same(found, state)


def test_a_flipped_bit_in_the_numbers_is_refused(
    packed: bytes, state: State, tmp_path: Path
) -> None:
    """Also where the archive's own checksums were made to agree with it."""
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        parts = {entry.filename: bytearray(archive.read(entry)) for entry in archive.infolist()}
    for name in parts:
        changed = {n: bytes(part) for n, part in parts.items()}
        flipped = bytearray(parts[name])
        flipped[-1] ^= 1
        changed[name] = bytes(flipped)
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            for filename, part in changed.items():
                archive.writestr(filename, part)
        assert read_or_refuse(buffer.getvalue(), tmp_path, state), name


@pytest.mark.parametrize(
    "changes",
    [
        {"epoch": -1}, {"epoch": "1"}, {"epoch": True}, {"batch": 1.5}, {"ranks": 0},
        {"config": []}, {"history": {}}, {"history": []}, {"history": [{}]}, {"data": None},
        {"parameters": np.full(3, np.nan)}, {"parameters": np.zeros((2, 2))},
        {"parameters": np.zeros(3, "S4")}, {"losses": np.array(["x"])},
    ],
)  # fmt: skip
def test_a_crafted_checkpoint_is_refused(
    changes: dict[str, Any], state: State, tmp_path: Path
) -> None:
    fields = {name: getattr(state, name) for name in State.__slots__}
    (tmp_path / checkpoint.FILE).write_bytes(checkpoint.pack(State(**{**fields, **changes})))
    with pytest.raises(CheckpointError, match="damaged or foreign"):
        checkpoint.load(tmp_path)


def test_a_checkpoint_of_another_size_is_refused(state: State) -> None:
    fields = {name: getattr(state, name) for name in State.__slots__}
    short = State(**{**fields, "parameters": state.parameters[:-1]})
    with pytest.raises(CheckpointError, match="139 parameters for 140"):
        short.check(small(), state.data, 4)


def test_a_compressed_one_is_not_unpacked(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / checkpoint.FILE, about=np.zeros(10_000_000, np.uint8))
    with pytest.raises(CheckpointError, match="it is compressed"):
        checkpoint.load(tmp_path)


def test_what_a_killed_run_left_is_cleared_away(state: State, tmp_path: Path) -> None:
    checkpoint.save(tmp_path, state)
    (tmp_path / f".{checkpoint.FILE}.4711").write_bytes(b"half a checkp")
    assert same(checkpoint.load(tmp_path), state)
    assert [path.name for path in tmp_path.iterdir()] == [checkpoint.FILE]


# --- a full disk


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB; only root may make one."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(place)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("no tmpfs of 64 KiB to fill: mounting one needs root and CAP_SYS_ADMIN")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


@pytest.mark.slow
@pytest.mark.mpi
def test_a_full_disk_keeps_the_checkpoint_before(small_disk: Path) -> None:
    need_mpi()
    one = small(hidden_size=400)  # 28 kB a checkpoint: a second one fits beside it, once
    done = run_ranks(2, *flags(one.with_(epochs=1)), "--checkpoint", str(small_disk))
    assert done.returncode == 0, done.stderr
    before = (small_disk / checkpoint.FILE).read_bytes()
    (small_disk / "others").write_bytes(bytes(25_000))
    done = run_ranks(2, *flags(one), "--checkpoint", str(small_disk), "--resume")
    assert done.returncode == 4, done.stderr
    assert "No space left on device; the one before it is whole: free some space" in done.stderr
    assert done.stderr.count("trainer:") == 1
    assert "Traceback" not in done.stderr
    assert (small_disk / checkpoint.FILE).read_bytes() == before
    assert sorted(p.name for p in small_disk.iterdir()) == [checkpoint.FILE, "others"]
    (small_disk / "others").unlink()
    done = run_ranks(2, *flags(one), "--checkpoint", str(small_disk), "--resume")
    assert done.returncode == 0, done.stderr


def test_a_limit_of_file_sizes_is_a_full_disk(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "trainer", *flags(small(hidden_size=200))]
    limited = ["bash", "-c", 'ulimit -f 8; "$@"', "bash", *words, "--checkpoint", str(tmp_path)]
    whole = environment(PYTHONDONTWRITEBYTECODE="1")  # or Python leaves half of a module behind
    done = subprocess.run(
        limited, capture_output=True, text=True, timeout=120, env=whole, check=False
    )
    assert done.returncode == 4, done.stderr
    assert "File too large; there is none before it: free some space" in done.stderr
    assert list(tmp_path.iterdir()) == []


# --- other data


def idx(array: np.ndarray) -> bytes:
    head = bytes((0, 0, 8, array.ndim)) + np.array(array.shape, ">u4").tobytes()
    return head + array.astype(np.uint8).tobytes()


@pytest.mark.parametrize("swapped", [1, 2])
def test_files_swapped_between_runs_are_noticed(swapped: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    data, place = tmp_path / "data", tmp_path / "checkpoint"
    data.mkdir()
    arrays = [rng.integers(0, 256, (60, 3, 4)), rng.integers(0, 4, 60),
              rng.integers(0, 256, (20, 3, 4)), rng.integers(0, 4, 20)]  # fmt: skip
    for name, array in zip(FILES, arrays, strict=True):
        (data / name).write_bytes(idx(array))
    config = small(data=str(data), train_size=None, test_size=None)
    arguments = ("--checkpoint", str(place))
    done = run_alone(*flags(config.with_(epochs=1)), *arguments)
    assert done.returncode == 0, done.stderr
    changed = arrays[swapped].copy()
    changed.flat[7] = (changed.flat[7] + 1) % 4
    (data / FILES[swapped]).write_bytes(idx(changed))
    done = run_alone(*flags(config), *arguments, "--resume")
    assert done.returncode == 4, done.stderr
    assert "the images and labels had SHA-256" in done.stderr
    (data / FILES[swapped]).write_bytes(idx(arrays[swapped]))
    done = run_alone(*flags(config), *arguments, "--resume")
    assert done.returncode == 0, done.stderr


# --- ranks that die, stop, or are too many


@pytest.mark.slow
@pytest.mark.mpi
def test_a_killed_rank_ends_the_job_and_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    need_mpi()
    words = soak.command(2, 1_000_000, tmp_path)
    with soak.Run(words) as run:
        wait_for(tmp_path / checkpoint.FILE, run)
        ranks = [pid for pid in run.note() if b"trainer" in cmdline(pid)]
        soak.send(ranks[-1], signal.SIGKILL)
        assert run.wait(30)
        assert run.process.returncode != 0
        assert run.left(10) == 0
        said = run.errors()
    assert "exited on signal 9 (Killed)" in said or "KILLED BY SIGNAL: 9" in said
    assert "Traceback" not in said
    assert checkpoint.load(tmp_path).epoch > 0


def cmdline(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def wait_for(path: Path, run: soak.Run) -> None:
    until = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < until, "no checkpoint after a minute"
        assert run.process.poll() is None, run.errors()
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.mpi
def test_more_ranks_than_images_are_refused_on_resume(tmp_path: Path) -> None:
    config = small(batch_size=2, train_size=8)
    place = ("--checkpoint", str(tmp_path))
    assert run_ranks(2, *flags(config.with_(epochs=1)), *place).returncode == 0
    done = run_ranks(3, *flags(config), *place, "--resume")
    assert done.returncode == 2
    assert "the nearest valid size is 3" in done.stderr
    done = run_alone(*flags(config), *place, "--resume")
    assert done.returncode == 0, done.stderr
    assert "was 2 ranks with numpy, is 1 rank with numpy: sums are rounded differently" in (
        done.stderr
    )


@pytest.mark.slow
@pytest.mark.mpi
def test_killed_and_resumed_again_and_again_the_weights_are_the_same(tmp_path: Path) -> None:
    """Every fault of the soak once; benchmarks/results/soak.json has hundreds."""
    need_mpi()
    found = soak.soak(60, tmp_path, epochs=600, seed=3, most_s=1.5, cycles=len(soak.FAULTS))
    assert sum(found.faults.values()) > 0
    assert (found.finished, found.same_weights, found.same_losses) == (True, True, True)
    assert (found.hung, found.tracebacks, found.left_behind) == (0, 0, 0)
    assert (found.lost_epochs_at_most, found.damaged_and_accepted) == (0, 0)


def test_the_long_soak_was_clean() -> None:
    found = json.loads((RESULTS / "soak.json").read_text())
    assert (found["finished"], found["same_weights"], found["same_losses"]) == (True, True, True)
    assert set(found["faults"]) == set(soak.FAULTS)
    assert found["hung"] == found["tracebacks"] == found["left_behind"] == 0
    assert found["damaged_and_accepted"] == found["lost_epochs_at_most"] == 0
