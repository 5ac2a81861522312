"""Checkpoints: the state of a run in one file, written whole or not at all, and checked."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from trainer.config import Config
from trainer.errors import CheckpointError

FILE: Final = "checkpoint.npz"
_FORMAT: Final = 2
_ABOUT: Final = ("epoch", "batch", "config", "data", "ranks", "backend", "history")


@dataclass(frozen=True, slots=True)
class State:
    """Everything that the rest of a run depends on: there is no shuffling and no momentum.

    Attributes
    ----------
    parameters : ndarray, shape (n,)
        W1, b1, W2, b2 in the training dtype.
    epoch, batch : int
        The next batch to train on, both from 0.
    losses : float64, shape (batches,)
        Summed cross-entropy of the batches already done in that epoch; 0 for the others.
    history : list of dict
        The records of the finished epochs.
    config : dict
        `Config.as_dict` of the run that wrote it.
    data : str
        `Dataset.fingerprint`.
    ranks : int
    backend : str
        With `ranks`, what a bit-identical continuation must share.
    """

    parameters: np.ndarray
    epoch: int
    batch: int
    losses: np.ndarray
    config: dict[str, Any]
    data: str
    ranks: int
    backend: str
    history: list[dict[str, Any]] = field(default_factory=list)

    def check(self, config: Config, data: str, batches: int) -> None:
        """Refuse to continue a run with other hyperparameters or other images.

        Parameters
        ----------
        config : Config
        data : str
            `Dataset.fingerprint` of the images and labels at hand.
        batches : int
            Of an epoch.
        """
        differences = config.differences(self.config)
        if self.data != data:
            differences.append(
                f"the images and labels had SHA-256 {self.data[:12]}..., have {data[:12]}..."
            )
        elif len(self.losses) != batches or self.batch >= batches:
            differences.append(f"an epoch had {len(self.losses)} batches, has {batches}")
        if not differences and self.parameters.size != config.parameters:
            differences.append(f"{self.parameters.size} parameters for {config.parameters}")
        if self.epoch > config.epochs:
            differences.append(
                f"--epochs {config.epochs} is less than the {self.epoch} that are done"
            )
        if differences:
            raise CheckpointError(
                f"--resume: expected the run of the checkpoint; got another: "
                f"{'; '.join(differences)}; repeat its flags, or start anew without --resume"
            )

    def why_not_identical(self, config: Config, ranks: int, backend: str) -> str | None:
        """Say why the continuation will differ in the last bits; None if it will not."""
        changes = config.roundings(self.config)
        if (ranks, backend) != (self.ranks, self.backend):
            was, now = (f"{n} rank{'s' * (n > 1)}" for n in (self.ranks, ranks))
            changes.insert(0, f"was {was} with {self.backend}, is {now} with {backend}")
        if not changes:
            return None
        return (
            f"--resume: {'; '.join(changes)}: sums are rounded differently, so the continuation is "
            "not bit-identical"
        )


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that a reader, or a crash, sees the old content or all of the new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # not every file system has folders to synchronize
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def pack(state: State) -> bytes:
    """Return the state as an npz archive: arrays, JSON and their SHA-256; nothing to unpickle."""
    named = {name: getattr(state, name) for name in _ABOUT}
    about = np.frombuffer(json.dumps({"format": _FORMAT, **named}).encode(), np.uint8)
    arrays = {"about": about, "parameters": state.parameters, "losses": state.losses}
    digest, buffer = _digest(arrays), io.BytesIO()
    # without allow_pickle=False, which older NumPy keeps as one more array; none is of objects
    np.savez(buffer, about=about, parameters=state.parameters, losses=state.losses, digest=digest)
    return buffer.getvalue()


def _digest(arrays: dict[str, np.ndarray]) -> np.ndarray:
    found = hashlib.sha256()
    for name in ("about", "parameters", "losses"):
        array = arrays[name]
        found.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        found.update(np.ascontiguousarray(array).data)
    return np.frombuffer(found.digest(), np.uint8)


def unpack(content: bytes) -> State:
    """Return the state that `pack` packed.

    Raises
    ------
    Exception
        For anything else, of whatever kind NumPy and zipfile raise: a ValueError where the content
        is not what its SHA-256 says, or makes no sense.
    """
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
            raise ValueError("it is compressed")
    with np.load(io.BytesIO(content), allow_pickle=False) as file:
        about = json.loads(file["about"].tobytes())
        if about.pop("format") != _FORMAT:
            raise ValueError("written by another version of the trainer")
        arrays = {name: file[name] for name in ("about", "parameters", "losses")}
        if not np.array_equal(file["digest"], _digest(arrays)):
            raise ValueError("its content is not what was written")
    state = State(parameters=arrays["parameters"], losses=arrays["losses"], **about)
    if not _makes_sense(state):
        raise ValueError("its numbers make no sense")
    return state


def _makes_sense(state: State) -> bool:
    arrays = (state.parameters, state.losses)
    counts = (state.epoch, state.batch, state.ranks - 1)
    return (
        all(a.ndim == 1 and a.dtype.kind == "f" and np.isfinite(a).all() for a in arrays)
        and all(type(n) is int and n >= 0 for n in counts)
        and isinstance(state.config, dict)
        and isinstance(state.data, str)
        and isinstance(state.history, list)
        and len(state.history) == state.epoch
        and all(isinstance(record, dict) and "loss" in record for record in state.history)
    )


def save(directory: Path, state: State) -> Path:
    """Write the state to ``directory/checkpoint.npz``, replacing the one before; return its path.

    Raises
    ------
    CheckpointError
        If the directory cannot be written.
    """
    path = directory / FILE
    try:
        write_atomically(path, pack(state))
    except OSError as error:
        kept = "the one before it is whole" if path.is_file() else "there is none before it"
        raise CheckpointError(
            f"{path}: cannot be written: {error}; {kept}: free some space and --resume, or name "
            "another --checkpoint directory"
        ) from error
    return path


def load(directory: Path) -> State:
    """Read ``directory/checkpoint.npz``, and clear away what a killed run began to write.

    Raises
    ------
    CheckpointError
        If there is none, or it is damaged.
    """
    path = directory / FILE
    if not path.is_file():
        raise CheckpointError(
            f"--resume: expected {path}; got none; check --checkpoint, or start without --resume"
        )
    for rest in directory.glob(f".{FILE}.*"):  # of a run that was killed while it wrote
        with contextlib.suppress(OSError):
            rest.unlink()
    try:
        return unpack(path.read_bytes())
    except Exception as error:  # NumPy's and zipfile's are many: any bit may be wrong
        raise CheckpointError(
            f"{path}: expected a checkpoint of this trainer; got a damaged or foreign file "
            f"({error}); delete it and start anew, or restore a copy"
        ) from error
