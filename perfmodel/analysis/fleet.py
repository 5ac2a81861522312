"""Many reports analyzed at once: what a worker does with one, and what their results make."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from perfmodel.analysis.result import Analysis
from perfmodel.analysis.runs import Options, analyze_observed
from perfmodel.base.parallel import Engine, over_reports
from perfmodel.readers import opened
from perfmodel.readers.nsys import read_sqlite
from perfmodel.timing.run import TimedReport, time_report
from perfmodel.timing.trim import trim


def analyze_reports(
    paths: Sequence[Path],
    options: Options,
    engine: Engine | None = None,
    progress: Callable[[str], object] = lambda _: None,
    *,
    whole: bool = False,
) -> Analysis:
    """Read and analyze reports; of each one is kept what the analysis looks at.

    Parameters
    ----------
    paths : sequence of Path
    options : Options
    engine : Engine, optional
        Where the reports are read: in this process by default. The analysis does not depend on it.
    progress : callable, optional
        Called with a line about what is done, once per report and once per run.
    whole : bool
        Keep all of every report, for who will look further into `RunAnalysis.traces`.

    Raises
    ------
    PerfmodelError
        As `perfmodel.analysis.runs.analyze_traces` and `perfmodel.base.parallel.over_reports`.
    """
    look = partial(
        _observe,
        batch_range=options.batch_range,
        by_time=options.by_time,
        replays=bool(options.workload and options.workload.replay),
        whole=whole,
    )
    observed = over_reports(
        look, paths, engine or Engine(1), lambda path: progress(f"read {path.name}")
    )
    return analyze_observed(observed, options, lambda label: progress(f"analyzing {label}"))


def _observe(
    path: Path, source: Path, *, batch_range: str, by_time: bool, replays: bool, whole: bool
) -> TimedReport:
    with opened(path) as file:
        trace = read_sqlite(file, source=source)
    observed = time_report(trace, batch_range, by_time=by_time)
    return observed if whole else trim(observed, replays=replays)
