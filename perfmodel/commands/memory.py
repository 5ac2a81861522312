"""`perfmodel memory`: what the trainer should allocate, and what a report says it did."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from perfmodel.commands.options import TABLES, symbol_options, symbol_values
from perfmodel.commands.paths import REPORT
from perfmodel.commands.pictures import PICTURE, write_picture
from perfmodel.commands.terminal import show, warn

_SETTINGS = ("data_on", "transport", "gemm", "math", "parallel")


@click.command()
@click.argument("report", required=False, type=REPORT)
@symbol_options
@click.option("--data-on", metavar="WHERE", help="host, pinned, prefetch or device.")
@click.option("--transport", metavar="NAME", help="host, pinned, host-flat, nccl, peer ...")
@click.option("--gemm", metavar="KERNEL", help="cublas, thin, fused, ...")
@click.option("--math", metavar="HOW", help="ieee, tf32 or tf32x3.")
@click.option("--parallel", metavar="WHAT", help="data or model.")
@click.option(
    "--images", type=click.IntRange(1), default=60_000, show_default=True,
    help="Images of the training set, where the report does not say.",
)  # fmt: skip
@click.option(
    "--test-images", type=click.IntRange(1), default=10_000, show_default=True,
    help="Images of the test set, where the report does not say.",
)  # fmt: skip
@PICTURE
@TABLES
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def memory(report: Path | None, **options: Any) -> None:
    """List what the trainer allocates, tensor by tensor, beside the peaks that a report recorded.

    Without a report the sizes must be given. A report holds memory if it was collected with nsys
    profile --cuda-memory-usage=true.
    """
    import json

    from perfmodel.base.escape import escape_json
    from perfmodel.render import memory as saying

    settings = {name: options[name] for name in _SETTINGS if options[name] is not None}
    found = saying.answer(
        report, symbol_values(options), settings,
        images=options["images"], test_images=options["test_images"],
    )  # fmt: skip
    for warning in found.warnings:
        warn(warning)
    if options["out"]:
        _draw(found, options["out"])
    if options["as_json"]:
        said = json.dumps(saying.document(found), indent=1, allow_nan=False)
        click.echo(escape_json(said))
        return
    tables = [saying.theory_table(found)] if found.listed else []
    tables += [saying.measured_table(found)] if found.measured else []
    show(tables, saying.sentences(found), options["fmt"])


def _draw(found: Any, out: Path) -> None:
    from perfmodel.render.plot.studies import LiveBytes, memory

    parts: dict[str, int] = {}
    for one in found.listed:
        if one.memory == "device" and one.stays and one.held_bytes:
            parts[one.use] = parts.get(one.use, 0) + one.held_bytes
    curves = [
        LiveBytes(
            t.kind if t.rank is None else f"rank {t.rank}, {t.kind}",
            t.time_ns * 1e-9,
            t.live_bytes,
        )
        for t in (found.measured or ())[:6]
    ]
    write_picture(memory(parts, curves, total_bytes=found.theory_bytes("device")), out)
