"""The errors perfmodel raises on purpose, each with the exit code the command line returns."""

from __future__ import annotations

from dataclasses import dataclass


class PerfmodelError(Exception):
    """Base of all errors a user can act on: says what was expected, what it got, and what to do."""

    exit_code = 1


class ReportError(PerfmodelError):
    """The report cannot be read: not SQLite, truncated, still being written, not exported."""

    exit_code = 3


class SchemaError(PerfmodelError):
    """The report is readable but lacks the tables, columns or events the question needs."""

    exit_code = 4


class WorkloadError(PerfmodelError):
    """The workload (D, H, C, B, p or a user's TOML) is missing, malformed or impossible."""

    exit_code = 5


class ModelError(PerfmodelError):
    """A rate, roofline or model cannot be fitted from what was measured."""

    exit_code = 6


@dataclass(frozen=True)
class ErrorText:
    """An error: its kind, one line for a reader, the exit code of the command."""

    kind: str
    message: str
    exit_code: int


@dataclass(frozen=True)
class ErrorDocument:
    """The document that commands print with `--json` in place of a result."""

    error: ErrorText
