"""Run records: what `python -m trainer --record` wrote of one training, or of many in one file."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from perfmodel.base.document import parse_json
from perfmodel.base.errors import ReportError, SchemaError
from perfmodel.base.escape import printable
from perfmodel.base.files import read_whole

_MOST_BYTES: Final = 20_000_000
_MOST_SECONDS: Final = 1e12
_NOT_SETTINGS: Final = ("seed", "verify", "evaluate_every", "threads")
_HOW: Final = "give run records, as docs/tta.md describes them"


@dataclass(frozen=True, slots=True)
class RunRecord:
    """Times of the batches of one run, and its configuration.

    Attributes
    ----------
    label : str
    config : mapping
    ranks : int
    batch_median_s : float or None
        Host time of a batch; None where the record does not give it.
    epoch_batch_s : tuple of float
        Mean batch of every epoch but the first, which ends when the GPU is done.
    """

    label: str
    config: Mapping[str, Any]
    ranks: int
    batch_median_s: float | None
    epoch_batch_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Epoch:
    """Results of an epoch; `time_s` is training from the first batch to its end.

    Neither set-up nor evaluation counts. `precision` is on the test set, None where it was not
    evaluated; `precision_train` likewise.
    """

    epoch: int
    time_s: float
    precision: float | None
    precision_train: float | None


@dataclass(frozen=True, slots=True)
class Training:
    """One run.

    Attributes
    ----------
    label : str
        File, and number within it where it holds several.
    seed : int or None
    settings : dict
        Configuration, ranks and device: what repetitions share.
    epochs : tuple of Epoch
        At least one with an accuracy.
    finished : bool
        False where a signal ended it.
    """

    label: str
    seed: int | None
    settings: dict[str, Any]
    epochs: tuple[Epoch, ...]
    finished: bool

    @property
    def evaluated(self) -> tuple[Epoch, ...]:
        """Epochs whose accuracy is known."""
        return tuple(e for e in self.epochs if e.precision is not None)


def read_record(path: Path) -> RunRecord:
    """Read how long the batches of one run took.

    Raises
    ------
    ReportError
        If the file cannot be read, or is no record.
    """
    where = printable(path.name)
    try:
        read = parse_json(read_whole(path, _MOST_BYTES).decode())
    except (OSError, ValueError, RecursionError) as error:
        raise ReportError(
            f"{where}: expected a record of python -m trainer --record FILE; got none that can be "
            f"read ({printable(str(error))[:100]}); run it again"
        ) from None
    config, timings = (_part(read, name, where) for name in ("config", "timings"))
    epochs = [e for e in read.get("epochs") or [] if isinstance(e, dict)]
    spent = [e.get("seconds") for e in epochs[1:]]
    batches = timings.get("batches")
    per_epoch = batches / len(epochs) if isinstance(batches, int) and epochs else 0.0
    means = [
        s / per_epoch
        for s in spent
        if isinstance(s, (int, float)) and s <= _MOST_SECONDS and per_epoch > 0
    ]
    median = timings.get("batch_median")
    return RunRecord(
        label=path.stem,
        config=config,
        ranks=whole_number(read.get("ranks"), "ranks", where),
        batch_median_s=median if _is_time(median) else None,
        epoch_batch_s=tuple(s for s in means if _is_time(s)),
    )


def whole_number(value: Any, name: str, where: str) -> int:
    """Return a positive whole number of a record.

    Raises
    ------
    ReportError
        If it is none.
    """
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 2**63:
        raise ReportError(
            f"{where}: expected a positive whole number as {name!r}; got "
            f"{printable(repr(value)[:60])}; run the trainer again"
        )
    return value


def _part(read: Any, name: str, where: str) -> Mapping[str, Any]:
    found = read.get(name) if isinstance(read, dict) else None
    if not isinstance(found, dict):
        raise ReportError(
            f"{where}: expected a record of python -m trainer --record FILE; got no {name!r} in "
            "it; give a record or an Nsight Systems report"
        )
    return found


def _is_time(value: Any) -> bool:
    return isinstance(value, (int, float)) and 0 < value <= sys.float_info.max


def read_trainings(paths: Sequence[Path]) -> list[Training]:
    """Read all runs of one side.

    Raises
    ------
    ReportError
        If a file cannot be read, or is no JSON.
    SchemaError
        If it is no run record, or the runs are not repetitions of one configuration.
    """
    found = [training for path in paths for training in _of_file(path)]
    if not found:
        raise SchemaError(f"expected run records; got none in {_names(paths)}; {_HOW}")
    names = dict.fromkeys(name for t in found for name in t.settings)
    for name in names:
        values = list(dict.fromkeys(repr(t.settings.get(name)) for t in found))
        if len(values) > 1:
            raise SchemaError(
                f"expected repetitions of one configuration, which differ in their seed alone; got "
                f"{name} {' and '.join(values)}; give the others behind --against"
            )
    return found


def differences(a: Training, b: Training) -> dict[str, tuple[Any, Any]]:
    """Return the settings in which two sides differ."""
    names = dict.fromkeys([*a.settings, *b.settings])
    pairs = {name: (a.settings.get(name), b.settings.get(name)) for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _of_file(path: Path) -> Iterator[Training]:
    try:
        content = parse_json(read_whole(path, _MOST_BYTES).decode())
    except OSError as error:
        raise ReportError(
            f"expected a run record {path}; got: {error.strerror or error}; {_HOW}"
        ) from error
    except (ValueError, RecursionError) as error:
        raise ReportError(f"{path}: expected JSON; got: {error}; {_HOW}") from error
    records = content.get("runs") if isinstance(content, dict) and "runs" in content else [content]
    if not isinstance(records, list):
        raise SchemaError(f"{path}: expected a list of run records as 'runs'; got none; {_HOW}")
    for number, record in enumerate(records, 1):
        label = path.name if len(records) == 1 else f"{path.name}, run {number}"
        yield _training(record, label)


def _training(record: Any, label: str) -> Training:
    try:
        config = dict(record["config"])
        epochs = tuple(_epochs(record["epochs"]))
        ranks, status = record.get("ranks"), record.get("status")
        device = dict(record.get("versions") or {}).get("gpu")
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise SchemaError(
            f"{label}: expected a run record with config and epochs of seconds and precision_test; "
            f"got another thing ({type(error).__name__}: {error}); {_HOW}"
        ) from error
    if all(e.precision is None for e in epochs):
        raise SchemaError(
            f"{label}: expected a precision_test of some epoch; got none; train with "
            "--evaluate-every 1"
        )
    settings = {k: v for k, v in config.items() if k not in _NOT_SETTINGS}
    settings |= {"ranks": ranks, "gpu": device}
    return Training(label, config.get("seed"), settings, epochs, status != "stopped")


def _epochs(records: Sequence[Any]) -> Iterator[Epoch]:
    elapsed, before = 0.0, 0
    for record in records:
        number, seconds = int(record["epoch"]), float(record["seconds"])
        if not (math.isfinite(seconds) and seconds >= 0 and number == before + 1):
            raise ValueError(f"epoch {number} behind epoch {before} with {seconds:g} s")
        elapsed, before = elapsed + seconds, number
        test, train = _share(record["precision_test"]), _share(record.get("precision_train"))
        yield Epoch(number, elapsed, test, train)


def _share(value: Any) -> float | None:
    if value is None:
        return None
    if not 0 <= float(value) <= 1:
        raise ValueError(f"an accuracy of {value}")
    return float(value)


def _names(paths: Sequence[Path]) -> str:
    return ", ".join(path.name for path in paths)
