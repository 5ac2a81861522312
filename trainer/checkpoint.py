"""Checkpoints: the state of a run in one file, written whole or not at all."""

from __future__ import annotations

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
_FORMAT: Final = 1
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

    def check(self, config: Config, data: str) -> None:
        """Refuse to continue a run with other hyperparameters or other images."""
        differences = config.differences(self.config)
        if self.data != data:
            differences.append(f"the training images had CRC {self.data}, have {data}")
        if self.epoch > config.epochs:
            differences.append(
                f"--epochs {config.epochs} is less than the {self.epoch} that are done"
            )
        if differences:
            raise CheckpointError(
                f"--resume: wanted the run of the checkpoint, found another: "
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


def pack(state: State) -> bytes:
    """Return the state as an npz archive: arrays and JSON, nothing to unpickle."""
    about = {name: getattr(state, name) for name in _ABOUT}
    buffer = io.BytesIO()
    np.savez(
        buffer,
        allow_pickle=False,
        about=np.frombuffer(json.dumps({"format": _FORMAT, **about}).encode(), np.uint8),
        parameters=state.parameters,
        losses=state.losses,
    )
    return buffer.getvalue()


def unpack(content: bytes) -> State:
    """Return the state that `pack` packed; raises ValueError or KeyError for anything else."""
    with np.load(io.BytesIO(content), allow_pickle=False) as file:
        about = json.loads(file["about"].tobytes())
        parameters, losses = file["parameters"], file["losses"]
    if about.pop("format") != _FORMAT:
        raise ValueError("written by another version of the trainer")
    return State(parameters=parameters, losses=losses, **about)


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
        raise CheckpointError(
            f"{path}: cannot be written: {error}; the run needs another --checkpoint directory"
        ) from error
    return path


def load(directory: Path) -> State:
    """Read ``directory/checkpoint.npz``.

    Raises
    ------
    CheckpointError
        If there is none, or it is damaged.
    """
    path = directory / FILE
    if not path.is_file():
        raise CheckpointError(
            f"--resume: wanted {path}, found none; check --checkpoint, or start without --resume"
        )
    try:
        return unpack(path.read_bytes())
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise CheckpointError(
            f"{path}: wanted a checkpoint of this trainer, found a damaged or foreign file "
            f"({error}); delete it and start anew, or restore a copy"
        ) from error
