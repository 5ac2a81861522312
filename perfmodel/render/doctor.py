"""What the checks of a machine say: a table, what to do, a JSON document."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from perfmodel.base.table import Column, Table
from perfmodel.machines.doctor.check import PURPOSES, Check
from perfmodel.render.result import Result

CHECKS: Final = (
    Column("check", "Check", wrap=False, of="name"),
    Column("status", "Status", wrap=False),
    Column("found", "Found"),
    Column("needed_for", "Needed to", wrap=False, of=lambda c: ", ".join(c.needed_for) or None),
)


def result(checks: Sequence[Check], purposes: Sequence[str]) -> Result:
    """Return the checks in every format."""
    found = Table.of("What is here", checks, CHECKS)
    return Result([found, list(sentences(checks, purposes))], lambda: document(checks, purposes))


def sentences(checks: Sequence[Check], purposes: Sequence[str]) -> Iterator[str]:
    """Yield what to do, what failed first, and whether all is there for the purposes."""
    for status in ("failed", "warning"):
        for check in checks:
            if check.status == status and check.advice:
                yield f"{status}: {check.name}: {check.found}"
                yield f"    -> {check.advice}"
    wanted = "; ".join(f"{name}: {PURPOSES[name]}" for name in purposes)
    failed = len(broken(checks))
    yield f"{f'Not ready, {failed} failed' if failed else 'Ready'} ({wanted})."


def broken(checks: Sequence[Check]) -> list[Check]:
    """Return what failed that the purposes need."""
    return [check for check in checks if check.status == "failed"]


def document(checks: Sequence[Check], purposes: Sequence[str]) -> dict[str, Any]:
    """Return the checks as what JSON holds."""
    return {
        "schema_version": 1,
        "purposes": purposes,
        "ready": not broken(checks),
        "checks": checks,
    }
