"""What if: what changes of the graph of any program's steps would save."""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.analysis.analyze import analyze_run
from perfmodel.analysis.changes import GraphChanges, changes_of
from perfmodel.analysis.runs import runs_of
from perfmodel.base.errors import ModelError
from perfmodel.programs.program import Options
from perfmodel.timing.run import Run, TimedReport


def graph_changes(
    timed: Sequence[TimedReport], options: Options, together: Sequence[str] = ()
) -> GraphChanges:
    """Replay the steps of a run with changes: those of its findings, and what else takes time.

    Of the steps without the profiler, where that makes them longer. A change that a finding is
    about has the saving that the finding says.

    Parameters
    ----------
    timed : sequence of TimedReport
        The reports of one run.
    options : Options
    together : sequence of str
        Names of changes that are replayed at once.

    Raises
    ------
    ModelError
        If there are several runs, no steps, or no change of such a name.
    """
    return changes_of(analyze_run(one_run(timed, options), options), together)


def one_run(timed: Sequence[TimedReport], options: Options) -> Run:
    """Return the run of some reports; several runs are refused."""
    runs = runs_of(timed, options)
    if len(runs) != 1:
        raise ModelError(
            f"expected the report of one run (or those of its ranks); got {len(runs)} runs: "
            f"{', '.join(run.label for run in runs)}; give one of them"
        )
    return runs[0]
