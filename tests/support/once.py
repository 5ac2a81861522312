"""Reads, measures and analyzes each recording once in a run of the tests.

`share_recordings` puts a memory in front of the functions that do so, wherever they are used: a
test that asks for `perfmodel analyze` of a recording gets what an earlier test measured. A file
that was written since, or lies beside a journal of SQLite, is measured anew; so is every file while
a test has replaced an attribute of some module by `monkeypatch`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache, lru_cache, wraps
from pathlib import Path
from typing import Any, Final

import pytest

from perfmodel.analysis import analyze as analyses
from perfmodel.analysis import runs
from perfmodel.analysis.analyze import analyze_reports
from perfmodel.analysis.compare import series
from perfmodel.analysis.result import Analysis, RunAnalysis
from perfmodel.models import one_report
from perfmodel.models.one_report import Changes, HostRatio
from perfmodel.models.operators import PredictedStep
from perfmodel.models.recorded import RecordedCall
from perfmodel.programs.program import Options
from perfmodel.programs.pytorch.program import PyTorchOperators
from perfmodel.readers import read
from perfmodel.readers.trace import Trace
from perfmodel.timing import run_steps

KEPT: Final = 32
"""Results that are kept of each function: the recordings of a few test files."""

KEPT_CALLS: Final = 20_000
"""Operators at some sizes that are kept: those of some 50 predictions."""


@cache
def trace_of(path: Path) -> Trace:
    """Return what a recording holds, read whole."""
    return read(path)


@cache
def analysis_of(*paths: Path, **options: Any) -> Analysis:
    """Return the analysis of recordings; fields of `Options` are options, `whole` keeps events."""
    whole = options.pop("whole", False)
    return analyze_reports(paths, Options(**options), whole=whole)


def run_of(*paths: Path, **options: Any) -> RunAnalysis:
    """Return the one run, or the fitted one, of `analysis_of`."""
    return analysis_of(*paths, **options).fitted


@dataclass(frozen=True, slots=True)
class _Call:
    """A call that equals another one of the same key."""

    key: Hashable
    args: tuple[Any, ...] = field(compare=False)
    kwargs: dict[str, Any] = field(compare=False)


_BESIDE: Final = ("-wal", "-journal", ".sha256")
"""Ends of names of files that may change what a report beside them says."""
_PATCHING: Final[set[int]] = set()
"""Numbers of monkeypatches that have replaced attributes and not undone it, and of `anew`."""


class _Unknown(Exception):
    """An argument whose equality nobody knows."""


def _file(path: Path) -> Hashable:
    """Return what a file's content is known by; raise where it is not one plain file."""
    if not path.is_file():
        raise _Unknown
    file = path.resolve()
    if any(file.with_name(f"{file.name}{end}").exists() for end in _BESIDE):
        raise _Unknown
    status = path.stat()
    return path, Path.cwd(), status.st_ino, status.st_size, status.st_mtime_ns


def _chosen(options: Options) -> Hashable:
    values = {one.name: getattr(options, one.name) for one in fields(options)}
    given = tuple((name, _plain(value)) for name, value in sorted(values.pop("values").items()))
    return given, tuple((name, _plain(value)) for name, value in values.items())


def _plain(value: Any) -> Hashable:
    if not isinstance(value, str | int | float | bool | None):
        raise _Unknown
    return type(value), value


def _key(value: Any) -> Hashable:
    """Return what equal arguments share; raise `_Unknown` where that is not known.

    A record is known by its place in memory: a call that is kept keeps its arguments, too.
    """
    match value:
        case Path():
            return _file(value)
        case Options():
            return _chosen(value)
        case list() | tuple() | frozenset():
            return type(value), tuple(_key(one) for one in value)
        case PyTorchOperators():
            return PyTorchOperators  # it has no state
        case Changes(machine=None) | HostRatio():
            return value
        case Mapping():
            return tuple((_key(name), _key(one)) for name, one in value.items())
        case _ if is_dataclass(value) or isinstance(value, PredictedStep):
            return id(value)
        case _ if getattr(value, "__func__", None) is PyTorchOperators.call_at:
            return PyTorchOperators.call_at
        case _:
            return _plain(value)


def _kept(function: Callable[..., Any]) -> Callable[..., Any]:
    @lru_cache(maxsize=KEPT)
    def result(call: _Call) -> Any:
        return function(*call.args, **call.kwargs)

    @wraps(function)
    def kept(*args: Any, **kwargs: Any) -> Any:
        if _PATCHING or (args and isinstance(args[0], str)):  # a path whose folder may change
            return function(*args, **kwargs)
        args = tuple([*one] if isinstance(one, list) else one for one in args)  # which may change
        try:
            named = tuple((name, _key(value)) for name, value in sorted(kwargs.items()))
            key = _key(args), named
        except _Unknown:
            return function(*args, **kwargs)
        return result(_Call(key, args, kwargs))

    return kept


def _called(function: Callable[..., RecordedCall]) -> Callable[..., RecordedCall]:
    """Keep what calls of a report are at sizes: so many that `_key` would take as long."""
    made: dict[Hashable, tuple[RecordedCall, RecordedCall]] = {}

    @wraps(function)
    def kept(self: PyTorchOperators, call: RecordedCall, sizes: Any) -> RecordedCall:
        if _PATCHING:
            return function(self, call, sizes)
        key = id(call), sizes
        if key not in made:
            if len(made) >= KEPT_CALLS:
                made.clear()
            made[key] = call, function(self, call, sizes)  # while the call lives, its id is its own
        return made[key][1]

    return kept


def _told(function: Callable[..., Any]) -> Callable[..., Any]:
    """Keep a function of reports and options with what it tells of its progress."""

    def told(timed: Sequence[Any], options: Options, **others: Any) -> tuple[list[str], Any]:
        words: list[str] = []
        return words, function(timed, options, words.append, **others)

    shared = _kept(told)

    @wraps(function)
    def kept(
        timed: Sequence[Any],
        options: Options,
        progress: Callable[[str], object] = lambda _: None,
        **others: Any,
    ) -> Any:
        words, result = shared(timed, options, **others)
        for word in words:
            progress(word)
        return [*result] if isinstance(result, list) else result

    return kept


@contextmanager
def anew() -> Iterator[None]:
    """Read, measure and analyze anew within: what a test wants to see happen twice."""
    token = object()
    _PATCHING.add(id(token))
    try:
        yield
    finally:
        _PATCHING.discard(id(token))


def _watch_patches() -> None:
    """Know whether what is measured now depends on what a test has replaced."""
    replace, undo = pytest.MonkeyPatch.setattr, pytest.MonkeyPatch.undo

    def replacing(self: pytest.MonkeyPatch, target: Any, *args: Any, **kwargs: Any) -> None:
        replace(self, target, *args, **kwargs)
        name = target if isinstance(target, str) else getattr(target, "__module__", None) or ""
        if not name.startswith("_pytest"):  # which replaces its own for the whole run
            _PATCHING.add(id(self))

    def undoing(self: pytest.MonkeyPatch) -> None:
        undo(self)
        _PATCHING.discard(id(self))

    pytest.MonkeyPatch.setattr = replacing
    pytest.MonkeyPatch.undo = undoing


def share_recordings() -> None:
    """Put the memory in front of every use of the functions, in what is imported by now."""
    _watch_patches()
    for place, name, kept in (
        (sys.modules["perfmodel.readers"], "read", _kept),
        (runs, "measure_report", _kept),
        (runs, "time_one", _kept),
        (runs, "runs_of", _told),
        (analyses, "analyze_run", _kept),
        (analyses, "analyze_measured", _told),
        (series, "launch_of", _kept),
        (run_steps, "run_steps", _kept),
        (PyTorchOperators, "recorded_step", _kept),
        (PyTorchOperators, "roles", _kept),
        (PyTorchOperators, "call_at", _called),
        (one_report, "_structure", _kept),
        (one_report, "factors_of", _kept),
        (one_report, "_made", _kept),
        (one_report, "_predicted", _kept),
    ):
        original = getattr(place, name)
        shared = kept(original)
        setattr(place, name, shared)
        for user in [*sys.modules.values()]:
            if user and user.__name__.split(".")[0] in ("perfmodel", "support", "benchmarks"):
                for attribute, value in [*vars(user).items()]:
                    if value is original:
                        setattr(user, attribute, shared)
