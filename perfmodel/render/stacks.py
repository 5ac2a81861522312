"""The stacks of a run as a folded file, which speedscope and flamegraph.pl read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from perfmodel.base.errors import ReportError
from perfmodel.timing.stack_times import folded

if TYPE_CHECKING:
    from perfmodel.analysis.result import Analysis


def folded_stacks(analysis: Analysis) -> Iterator[str]:
    """Return the lines of a file: frames joined by ``;``, a blank, and µs of the steps that count.

    They are the GPU's, or the host's where there is no GPU, of all ranks and runs together. What
    takes less than half a µs is left out: speedscope reads whole numbers.

    Raises
    ------
    ReportError
        If no report has stacks.
    """
    measured = [
        (report.stacks, run.steps.window)
        for run in analysis.runs if run.steps is not None
        for report in run.measured.steps
    ]  # fmt: skip
    found = folded(measured)
    if not found:
        names = ", ".join(trace.source.name for run in analysis.runs for trace in run.traces)
        raise ReportError(
            f"{names}: expected stacks; got none; record them with "
            f"torch.profiler.profile(with_stack=True), or with nsys profile "
            f"--python-backtrace=cuda (docs/schema.md)"
        )
    return (f"{stack} {us}\n" for stack, us in _whole(found))


def _whole(found: dict[str, float]) -> Iterator[tuple[str, int]]:
    for stack in sorted(found):
        if us := round(found[stack]):
            yield stack, us
