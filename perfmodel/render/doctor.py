"""What the checks say: a table, what to do, a JSON document."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from perfmodel.base.table import Column, Table
from perfmodel.machines.doctor.check import PURPOSES, Check


def table(checks: Sequence[Check]) -> Table:
    """Return the checks as a table."""
    columns = (
        Column("check", "Check", wrap=False),
        Column("status", "Status", wrap=False),
        Column("found", "Found"),
        Column("needed_for", "Needed to", wrap=False),
    )
    rows = [(c.name, c.status, c.found, ", ".join(c.needed_for) or None) for c in checks]
    return Table("What is here", columns, rows)


def sentences(checks: Sequence[Check], purposes: Sequence[str]) -> Iterator[str]:
    """Yield what to do, what failed first, and whether all is there for the purposes."""
    for status in ("failed", "warning"):
        for check in checks:
            if check.status == status and check.advice:
                yield f"{status}: {check.name}: {check.found}\n    -> {check.advice}"
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
        "purposes": list(purposes),
        "ready": not broken(checks),
        "checks": [asdict(check) for check in checks],
    }
