"""Loaded by every Python process of a run: puts a mutant in, and notes which functions ran.

`MUTANT` is "module:file": the module gets the file's text. `MUTANT_HITS` is a folder: each process
writes there which functions of `MUTANT_MODULES` each test called, whose name is in `MUTANT_TEST`.
What a test takes from a cache counts as called by it: sets of a cached call are kept with its key.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from typing import Any


class _Loader(importlib.machinery.SourceFileLoader):
    """Reads a module from another file, and leaves no bytecode of it."""

    def __init__(self, fullname: str, path: str, other: str) -> None:
        super().__init__(fullname, path)
        self.other = other

    def get_data(self, path: str) -> bytes:
        if path.endswith(".pyc"):
            raise OSError
        return super().get_data(self.other if path == self.path else path)

    def set_data(self, path: str, data: bytes, *, _mode: int = 0o666) -> None:
        pass


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, name: str, other: str) -> None:
        self.name, self.other = name, other

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        if fullname != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        assert spec is not None
        spec.loader = _Loader(fullname, str(spec.origin), self.other)
        return spec


if mutant := os.environ.get("MUTANT"):
    sys.meta_path.insert(0, _Finder(*mutant.split(":", 1)))

FEW = 30
"""Misses of a cache of perfmodel that are followed: one with more is no table that is read once."""


class Hits:
    """Functions that ran, by what they ran for."""

    def __init__(self, folder: str, modules: str) -> None:
        self.folder = folder
        self.modules = {name: i for i, name in enumerate(modules.split(","))}
        self.stack: list[set[str]] = [set()]
        self.tool = sys.monitoring.PROFILER_ID
        sys.monitoring.use_tool_id(self.tool, "mutants")
        events = sys.monitoring.events.PY_START
        sys.monitoring.register_callback(self.tool, events, self.started)
        sys.monitoring.set_events(self.tool, events)
        self.known: dict[Any, str | None] = {}

    def started(self, code: Any, offset: int) -> Any:
        name = self.known.get(code, "")
        if name == "":
            found = next((m for m in self.modules if code.co_filename.endswith(m)), None)
            qual = code.co_qualname.replace(".<locals>", "").split(".<")[0]
            name = self.known[code] = f"{found}:{qual}" if found else None
        if name is not None:
            self.stack[-1].add(name)
            if os.environ.get("MUTANT_MAIN") != str(os.getpid()):
                self.tell(name)
        return sys.monitoring.DISABLE

    def tell(self, name: str) -> None:
        """Say at once what a process calls that may end without a word."""
        line = f"{os.environ.get('MUTANT_TEST', '')}\t{name}\n".encode()
        at = os.open(f"{self.folder}/children.tsv", os.O_APPEND | os.O_CREAT | os.O_WRONLY)
        os.write(at, line)
        os.close(at)

    def push(self) -> None:
        self.stack.append(set())
        sys.monitoring.restart_events()

    def pop(self) -> set[str]:
        found = self.stack.pop()
        self.stack[-1] |= found
        return found


HITS: Hits | None = None
if "MUTANT_HITS" in os.environ:
    HITS = Hits(os.environ["MUTANT_HITS"], os.environ["MUTANT_MODULES"])
    _lru_cache = functools.lru_cache

    def _following(function: Any, cached: Any) -> Any:
        sets: dict[Any, set[str]] = {}
        ours = (function.__module__ or "").startswith("perfmodel")

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            assert HITS is not None
            key = functools._make_key(args, kwargs, False)
            if key in sets:
                HITS.stack[-1] |= sets[key]
                return cached(*args, **kwargs)
            if ours and len(sets) >= FEW:
                return cached(*args, **kwargs)
            HITS.push()
            try:
                return cached(*args, **kwargs)
            finally:
                sets[key] = HITS.pop()

        call.cache_info, call.cache_clear = cached.cache_info, cached.cache_clear
        call.cache_parameters = cached.cache_parameters
        return call

    def lru_cache(maxsize: Any = 128, typed: bool = False) -> Any:
        if callable(maxsize):
            return _following(maxsize, _lru_cache(maxsize))
        return lambda function: _following(function, _lru_cache(maxsize, typed)(function))

    def cache(function: Any) -> Any:
        return lru_cache(maxsize=None)(function)

    functools.lru_cache, functools.cache = lru_cache, cache
