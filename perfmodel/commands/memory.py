"""`perfmodel memory`: what a program should allocate, and what a recording says it did."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from perfmodel.base.errors import ModelError, WorkloadError
from perfmodel.commands import _options
from perfmodel.commands._output import emit


@click.command(cls=_options.Grouped)
@click.argument("report", required=False, type=_options.MEMORY)
@_options.symbols
@_options.trainer
@click.option(
    "--images", type=click.IntRange(1), default=60_000, show_default=True,
    help="Images of the training set, if the report does not have them.",
)  # fmt: skip
@click.option(
    "--test-images", type=click.IntRange(1), default=10_000, show_default=True,
    help="Images of the test set, if the report does not have them.",
)  # fmt: skip
@_options.output(*_options.PICTURES)
def memory(report: Path | None, fmt: str, out: Path | None, **options: Any) -> None:
    """List what is allocated, and the recorded peaks.

    For PyTorch, give a trace of torch.profiler with profile_memory=True or a .pickle of
    torch.cuda.memory._dump_snapshot(): the peak of every GPU, and the live memory at the peak by
    kind, operator, module and line. Nothing of the file is executed. Where no memory was recorded,
    a report with operators' sizes gives an estimate.

    For the trainer, give a report or the sizes: every tensor is listed. A report of Nsight Systems
    holds memory if it was recorded with --cuda-memory-usage=true.
    """
    if report is not None and _of_allocator(report, fmt, out):
        return
    from perfmodel.analysis.memory import answer
    from perfmodel.render.memory import picture, result

    try:
        found = answer(
            report, _options.symbol_values(options), _options.trainer_settings(options),
            images=options["images"], test_images=options["test_images"],
        )  # fmt: skip
    except WorkloadError as error:
        if report is not None and _estimated(report, fmt, out):
            return
        if report is None or ".json" not in report.suffixes:
            raise
        raise WorkloadError(
            f"{report.name}: expected a trace with memory, or with sizes of whole training steps, "
            f"of which it is estimated; got neither; record with profile_memory=True"
        ) from error
    emit(result(found), fmt, out, picture=lambda: picture(found))


def _of_allocator(report: Path, fmt: str, out: Path | None) -> bool:
    """Whether a file is a recording of PyTorch's allocator, and then its peaks are printed."""
    from perfmodel.analysis.allocations import peaks
    from perfmodel.readers.allocator_snapshot import read_snapshot
    from perfmodel.readers.profiler_memory import read_profiler
    from perfmodel.render import allocations

    if ".pickle" in report.suffixes:
        found = peaks(read_snapshot(report))
    elif ".json" in report.suffixes:
        found = peaks(read_profiler(report))
    else:
        return False
    if not found:
        return False
    emit(allocations.result(found), fmt, out, picture=lambda: allocations.picture(found))
    return True


def _estimated(report: Path, fmt: str, out: Path | None) -> bool:
    """Whether a report's operators say what memory they need, and then it is printed."""
    from perfmodel.commands._operators import peak_of_report
    from perfmodel.render import allocations

    try:
        found = peak_of_report(report)
    except ModelError:
        return False
    if found.peak is None:
        raise ModelError(
            f"{report.name}: expected recorded memory, or operators that say what they need; got "
            f"neither: {found.no_peak}"
        )
    emit(allocations.estimate(found.peak, report.name), fmt, out)
    return True
