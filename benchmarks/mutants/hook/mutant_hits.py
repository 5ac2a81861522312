"""A plugin of pytest: which functions each test calls, and how long it takes."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sitecustomize import HITS

os.environ["MUTANT_MAIN"] = str(os.getpid())
_OF_FIXTURES: dict[Any, set[str]] = {}
_OF_FILES: dict[str, set[str]] = {}
_FOUND: dict[str, list[Any]] = {}


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: Any) -> Iterator[None]:
    HITS.push()
    try:
        return (yield)
    finally:
        found = HITS.pop()
        if isinstance(collector, pytest.Module):
            _OF_FILES[collector.nodeid] = found


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: Any, request: Any) -> Iterator[None]:
    HITS.push()
    try:
        return (yield)
    finally:
        _OF_FIXTURES[fixturedef] = HITS.pop()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: Any, nextitem: Any) -> Iterator[None]:
    os.environ["MUTANT_TEST"] = item.nodeid
    HITS.stack[:] = [set()]
    HITS.push()
    begin = time.perf_counter()
    try:
        return (yield)
    finally:
        took = time.perf_counter() - begin
        found = HITS.pop()
        for definitions in item._fixtureinfo.name2fixturedefs.values():
            for definition in definitions:
                found |= _OF_FIXTURES.get(definition, set())
        found |= _OF_FILES.get(item.nodeid.split("::")[0], set())
        _FOUND[item.nodeid] = [round(took, 3), sorted(found)]


def pytest_sessionfinish(session: Any) -> None:
    name = os.environ.get("PYTEST_XDIST_WORKER", "main")
    Path(HITS.folder, f"{name}.json").write_text(json.dumps(_FOUND), encoding="utf-8")
