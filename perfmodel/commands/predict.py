"""`perfmodel predict`: a step of other sizes, of a PyTorch program or of a served model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from perfmodel.commands import _options
from perfmodel.commands._output import emit


@click.command(cls=_options.Grouped)
@click.argument("reports", nargs=-1, metavar="[REPORT]...", type=_options.REPORT)
@click.option("--model", "path", hidden=True)
@click.option(
    "--name", "names", multiple=True, metavar="N[,N...]=ROLE",
    help="Role of a number among the report's sizes, such as 32=batch; of several reports one "
    "number, or one for each in order; repeatable.",
)  # fmt: skip
@click.option("--gpu", metavar="NAME", help="Another GPU than the report's, such as h100.")
@click.option(
    "--graphs", is_flag=True, help="Replay the report's step as a CUDA graph: one launch."
)
@click.option(
    "--fsdp", is_flag=True, help="The -p ranks share parameters by FullyShardedDataParallel."
)
@click.option(
    "--fsdp-float32", is_flag=True,
    help="With --fsdp: they are gathered in float32, without a MixedPrecisionPolicy.",
)  # fmt: skip
@click.option(
    "--accumulate", type=click.IntRange(1, 1 << 16), default=1, show_default=True,
    help="Micro-batches of the batch's size, of which the gradients are accumulated.",
)  # fmt: skip
@click.option(
    "--tokens", type=click.FloatRange(1, 1e30), metavar="N", help="Say how long N tokens take."
)
@click.option(
    "--decoder", metavar="NAME|config.json",
    help="Predict a language model as it is served, such as qwen3-8b; with --machine.",
)  # fmt: skip
@click.option(
    "--context", type=click.IntRange(1, 2**31), default=1024, show_default=True,
    help="Tokens of a sequence of --decoder.",
)  # fmt: skip
@click.option(
    "--expert-gpus", type=click.IntRange(1, 1 << 16), default=1, show_default=True,
    help="GPUs over which the experts of --decoder are distributed; -p share a layer.",
)  # fmt: skip
@click.option(
    "--shapes", type=_options.REPORT, help="Recording of the graphs' capture of a served REPORT."
)
@click.option(
    "--other-host", is_flag=True,
    help="The host to predict is not the report's, and nothing is known of it; so it is with "
    "--gpu and --machine.",
)  # fmt: skip
@click.option(
    "--compile", "compiled", is_flag=True, help="The report's program under torch.compile."
)
@click.option(
    "--timed", multiple=True, metavar="[NAME=N,...:]SECONDS",
    help="A step's time without a profiler on the host to predict, at the report's sizes or "
    "others; repeatable.",
)  # fmt: skip
@_options.symbols_of_operators
@click.option(
    "--anchor", "anchors", type=_options.REPORT, multiple=True,
    help="A report of the host to predict, of any configuration; repeatable.",
)  # fmt: skip
@_options.machine("File of perfmodel machine measure on the host to predict.")
@click.option(
    "--sweep", metavar="SYMBOL=FROM:TO",
    help="With --decoder: predict over a symbol that doubles, or at A,B,C.",
)  # fmt: skip
@_options.output(*_options.PICTURES)
def predict(
    reports: tuple[Path, ...], path: str | None, fmt: str, out: Path | None, **options: Any
) -> None:
    """Predict a step of other sizes from a REPORT.

    REPORT is of a PyTorch program whose operators' sizes were recorded. The roles of its numbers
    (batch, seq, d_model, n_layer, ...) are inferred and printed; --set changes them, --name
    corrects them, -p adds ranks by DistributedDataParallel. More reports of the program at other
    sizes, of the same host, make the answer surer; sizes that are not given are the first one's.
    The host is the reports'; --timed and --anchor describe another, --other-host says that it is.

    With --decoder:
    The least time of a prefill and a decode of a language model, by its weights, KV cache, FLOPs
    and exchanges: B sequences (--sweep B=1:256, or context=1024:65536), -p GPUs a layer. With a
    REPORT of an engine the time at the shares of bandwidth and peaks that it reaches.
    """
    from perfmodel.commands import _operators

    if path is not None:
        raise click.UsageError(
            "expected REPORTs or --decoder; got --model, which is now of 'perfmodel study predict'"
        )
    if options["decoder"] is not None:
        if len(reports) > 1:
            raise click.UsageError(f"--decoder: expected one REPORT or none; got {len(reports)}")
        emit(_served(next(iter(reports), None), options), fmt, out)
        return
    if not reports:
        raise click.UsageError(
            "expected REPORTs or --decoder; got none; a model of perfmodel study calibrate is of "
            "perfmodel study predict"
        )
    asked = _operators.Asked(**{key: options.pop(key) for key in _operators.Asked.__slots__})
    _operators.predict_report(reports, fmt, out, options, asked)


def _served(report: Path | None, options: dict[str, Any]) -> Any:
    """Predict the passes of a language model."""
    from perfmodel.analysis.analyze import analyze_reports
    from perfmodel.analysis.serving import recorded
    from perfmodel.models.serving import Layout, forward_pass
    from perfmodel.programs.program import Options
    from perfmodel.render.decoders import Predicted, prediction
    from perfmodel.workloads.decoder import Batch, decoder

    if options["machine"] is None:
        raise click.UsageError("--decoder: give --machine NAME")
    machine, _ = _options.machine_of(options["machine"])
    model, reached = decoder(options["decoder"]), {}
    if report is not None:
        asked = Options(shapes=options["shapes"], decoder=model)
        run = analyze_reports([report], asked).fitted
        reached = recorded(run.serving)
        if not reached:
            raise click.UsageError(f"{report}: expected steps of an engine; got none")
    layout = Layout(options["ranks"] or 1, options["expert_gpus"])
    fixed = {"B": options["batch_size"] or 1, "context": options["context"]}
    swept: list[dict[str, int]] = [{}]
    if options["sweep"]:
        symbol, values = _options.values_of_sweep(options["sweep"])
        if symbol not in fixed:
            raise click.BadParameter(f"expected B or context to sweep; got {symbol!r}")
        swept = [{symbol: value} for value in values]
    rows = []
    for phase, make in (("prefill", Batch.prefill), ("decode", Batch.decode)):
        for change in swept:
            sequences, context = (fixed | change).values()
            found = forward_pass(model, make(sequences, context), machine, layout)
            rows.append(Predicted(phase, sequences, context, layout, found, reached.get(phase),
                                  machine.capacity_bytes.get("hbm")))  # fmt: skip
    return prediction(model.name, machine.name, rows)
