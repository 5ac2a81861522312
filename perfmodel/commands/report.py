"""`perfmodel report`: everything about one run as one HTML file that loads nothing."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from perfmodel.commands import _options
from perfmodel.commands._output import STDOUT, is_quiet, report_written, write
from perfmodel.commands.analyze import analyzed, exit_of

_USUAL = Path("report.html")
_DRAWN = 16
"""Reports of which the page may draw what happens in a batch: it has room for eight ranks."""


@click.command(cls=_options.Grouped)
@_options.reports
@_options.analysis
@_options.operators
@_options.engine
@_options.CACHE
@_options.HOST_NAMES
@_options.MODEL
@_options.out(_options.Out(".html", ".htm", "-", result=False), f"Default: {_USUAL}.")
@_options.QUIET
def report(reports: tuple[Path, ...], path: Path | None, out: Path | None, **options: Any) -> None:
    """Write everything about a run into one HTML file.

    The page has the verdict, a timeline that zooms and searches, all tables, rooflines and findings
    with their evidence. It loads nothing from the network: mail it, print it, open it in any
    browser. REPORTS and options are those of perfmodel analyze.
    """
    from perfmodel.readers import is_sqlite
    from perfmodel.studies.models.model import load
    from perfmodel.studies.page import page

    if out is None and is_quiet():
        raise click.UsageError("expected -o FILE.html with --quiet, which does not name the file")
    out = out or _USUAL
    model = None if path is None else load(path)
    with ExitStack() as files:
        unpacked = None
        if not all(map(is_sqlite, reports)):
            unpacked = Path(files.enter_context(TemporaryDirectory(prefix="perfmodel-")))
        engine = _options.engine_of(options)
        analysis = analyzed(reports, options, engine, whole=_DRAWN, unpacked=unpacked)
        write(out, page(analysis, model))
    if out != STDOUT:
        report_written(out, err=False)
    exit_of(analysis)
