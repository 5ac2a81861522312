"""`perfmodel memory`: what the trainer should allocate, and what a report says it did."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

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
    """List what the trainer allocates, and the recorded peaks.

    Tensor by tensor. Without a report, give the sizes. A report holds memory if it was collected
    with nsys profile --cuda-memory-usage=true.

    Of any PyTorch program: a .pickle of torch.cuda.memory._dump_snapshot() gives the peak of every
    GPU, and what is alive at it by the line that allocated it. Nothing of the file is executed.
    """
    if report is not None and ".pickle" in report.suffixes:
        from perfmodel.analysis.allocations import peaks
        from perfmodel.readers.allocator_snapshot import read_snapshot
        from perfmodel.render import allocations

        emit(allocations.result(peaks(read_snapshot(report))), fmt, out)
        return
    from perfmodel.analysis.memory import answer
    from perfmodel.render.memory import picture, result

    found = answer(
        report, _options.symbol_values(options), _options.trainer_settings(options),
        images=options["images"], test_images=options["test_images"],
    )  # fmt: skip
    emit(result(found), fmt, out, picture=lambda: picture(found))
