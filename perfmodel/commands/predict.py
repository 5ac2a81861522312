"""`perfmodel predict`: what a batch of another configuration takes, by a calibrated model."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from perfmodel.commands import _options
from perfmodel.commands._output import Progress, distinct, emit, read_reports, warn
from perfmodel.programs import model_of_sizes, program_of_sizes


@click.command(cls=_options.Grouped)
@click.argument("reports", nargs=-1, metavar="[REPORT]...", type=_options.REPORT)
@click.option("--model", "path", type=_options.JSON, help="A model of perfmodel calibrate.")
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
@_options.trainer
@_options.switches
@_options.WORKLOAD
@click.option(
    "--anchor", "anchors", type=_options.REPORT, multiple=True,
    help="A report of the host to predict, of any configuration; repeatable.",
)  # fmt: skip
@_options.machine("File of perfmodel machine measure on the host to predict.")
@click.option(
    "--sweep", metavar="SYMBOL=FROM:TO", help="Predict over a symbol that doubles, or at A,B,C."
)
@click.option(
    "--scaling",
    type=click.Choice(["strong", "weak"]),
    help="Predict over ranks, with constant B or B/p.",
)
@click.option(
    "--ranks-to", type=click.IntRange(1, 1 << 20), default=4096, show_default=True,
    help="Most ranks of --scaling.",
)  # fmt: skip
@click.option(
    "--images", type=click.IntRange(1), default=60_000, show_default=True,
    help="Images of an epoch.",
)  # fmt: skip
@_options.output(*_options.PICTURES, said="Curves are of --sweep and --scaling.")
def predict(
    reports: tuple[Path, ...], path: Path | None, fmt: str, out: Path | None, **options: Any
) -> None:
    """Predict a step of other sizes from a REPORT or a model.

    REPORT is of a PyTorch program whose operators' sizes were recorded. The roles of its numbers
    (batch, seq, d_model, n_layer, ...) are inferred and printed; --set changes them, --name
    corrects them, -p adds ranks by DistributedDataParallel. More reports of the program at other
    sizes, of the same host, make the answer surer; sizes that are not given are the first one's.
    The host is the reports'; --timed and --anchor describe another, --other-host says that it is.

    With --decoder:
    The least time of a prefill and a decode of a language model, by its weights, KV cache, FLOPs
    and exchanges: B sequences (--sweep B=1:256, or context=1024:65536), -p GPUs a layer. With a
    REPORT of an engine the time at the shares of bandwidth and peaks that it reaches.

    With --model:
    Time per batch and per phase, with 90 % intervals and what bounds each phase. Without --sweep
    and --scaling one configuration is predicted. Settings without a run in the calibration are
    refused, with the run that is needed; sizes beyond its runs are marked as extrapolated.
    Intervals hold for any host like the calibration's; --anchor and --machine correct for one host,
    and narrow them.
    """
    from perfmodel.commands import _operators
    from perfmodel.models.model import load
    from perfmodel.models.predict import predict as predict_case
    from perfmodel.render import predict as shown

    if options["decoder"] is not None:
        if len(reports) > 1:
            raise click.UsageError(f"--decoder: expected one REPORT or none; got {len(reports)}")
        emit(_served(next(iter(reports), None), path, options), fmt, out)
        return
    asked = _operators.Asked(**{key: options.pop(key) for key in _operators.Asked.__slots__})
    if path is None and reports:
        _operators.predict_report(reports, fmt, out, options, asked)
        return
    if path is None or reports:
        raise click.UsageError(
            "expected REPORTs, or a model by --model; got both or none; give one of them"
        )
    if asked != _operators.Asked():
        raise click.UsageError(
            "--name, --gpu, --graphs, --compile, --timed, --other-host, --fsdp, "
            "--fsdp-float32, --accumulate and --tokens: of a REPORT; got a model"
        )
    if options["dtype"] not in (None, *_options.DTYPES.choices):
        raise click.UsageError(f"--dtype {options['dtype']}: of a PyTorch REPORT; got a model")
    model = load(path)
    case = _case(model, options)
    images, host = options["images"], _host(model, options)
    if options["sweep"] or options["scaling"]:
        found, table, symbol = _over(model, case, host, options)
        result = shown.several(found, table, images, host)
        picture = partial(shown.picture, model, found, symbol)
    elif out is not None and _options.kind_of(out) in _options.PICTURES:
        raise click.UsageError(f"{out.suffix} is of curves: give --sweep or --scaling, too")
    else:
        found, picture = [predict_case(model, case, host)], None
        result = shown.one(found[0], images, host)
    said = model_of_sizes().too_large([p.case for p in found], model.machine, images)
    if said is not None:
        warn(said)
    emit(result, fmt, out, picture=picture)


def _served(report: Path | None, path: Path | None, options: dict[str, Any]) -> Any:
    """Predict the passes of a language model."""
    from perfmodel.analysis.analyze import analyze_reports
    from perfmodel.analysis.serving import recorded
    from perfmodel.models.serving import Layout, forward_pass
    from perfmodel.programs.program import Options
    from perfmodel.render.decoders import Predicted, prediction
    from perfmodel.workloads.decoder import Batch, decoder

    if path is not None or options["machine"] is None:
        raise click.UsageError("--decoder: give --machine NAME, and no --model")
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
        symbol, values = _values(options["sweep"])
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


def _case(model: Any, options: dict[str, Any]) -> Any:
    """Return the configuration that the flags describe."""
    from perfmodel.base.errors import WorkloadError

    chosen = _options.chosen(options)
    sizes, settings = model_of_sizes(chosen), _options.trainer_settings(options)
    given = program_of_sizes().name if chosen.workload is None else chosen.workload.name
    if given != model.workload:
        raise WorkloadError(
            f"expected the workload that the model was calibrated with, {model.workload!r}; got "
            f"{given!r}; give that one's --workload FILE.toml, and none for the trainer's MLP"
        )
    if chosen.workload is None:
        return sizes.case({"D": 784, "C": 10, "b": 4, **chosen.values}, settings, chosen)
    if settings:
        flags = ", ".join(map(_options.flag, settings))
        warn(f"{flags}: settings of the trainer's say nothing of {model.workload}")
    return sizes.case(chosen.values, {}, chosen)


def _host(model: Any, options: dict[str, Any]) -> Any:
    """Return what is known of the host that is predicted: by its machine file, and by reports."""
    from perfmodel.base.errors import ModelError
    from perfmodel.models import hosts

    host, file = hosts.unknown(), options["machine"]
    if file is not None:
        _, found = _options.machine_of(file)
        if found is None or not model.host_calls:
            what = "a datasheet" if found is None else "a model without host times"
            raise ModelError(
                f"{file}: expected what perfmodel machine measure wrote on the host to predict, "
                f"and a model that was calibrated with --machine; got {what}; measure, or give "
                "--anchor REPORT of that host"
            )
        if model.machine and found.gpus and model.machine not in found.gpus:
            raise ModelError(
                f"{file}: expected the model's GPU, {model.machine}; got {', '.join(found.gpus)}; "
                "a host is corrected, not another GPU: measure a host with that one"
            )
        host = hosts.by_calls(host, model.host_calls, hosts.calls_of(found), Path(file).name)
    for observation in _anchors(model, options):
        host = hosts.by_report(host, model, observation)
    return host


def _anchors(model: Any, options: dict[str, Any]) -> list[Any]:
    """Observe the reports of the host that is predicted."""
    from perfmodel.analysis.runs import time_runs
    from perfmodel.base.errors import ModelError
    from perfmodel.programs.calibrated import UnknownPartsError

    reports = distinct(options["anchors"])
    if not reports:
        return []
    chosen = _options.chosen({"workload": options["workload"]})  # sizes are the reports' own
    with Progress(len(reports)) as advance:
        traces = read_reports(reports, advance)
    gpus = ", ".join(sorted({gpu.name for trace in traces for gpu in trace.gpus}))
    if model.machine and gpus != model.machine:
        raise ModelError(
            f"expected anchors on the model's GPU, {model.machine}; got {gpus or 'none'}; a host "
            "is corrected, not another GPU: calibrate there"
        )
    observed = model_of_sizes(chosen)
    try:
        return [observed.observe(run, chosen) for run in time_runs(traces, chosen)]
    except UnknownPartsError as error:
        raise ModelError(
            f"{error.found}; give --anchor reports of the program that the model is of, on the "
            f"host to predict"
        ) from error


def _over(model: Any, case: Any, host: Any, options: dict[str, Any]) -> tuple[list[Any], Any, str]:
    """Predictions over a symbol, their table, and the symbol."""
    from perfmodel.models import predict as scaling
    from perfmodel.models.predict import predict as one
    from perfmodel.render import predict as report

    def predicted(at: Any) -> Any:
        return one(model, at, host)

    if options["sweep"] and options["scaling"]:
        raise click.UsageError("expected --sweep or --scaling; got both; leave one out")
    if options["scaling"]:
        first = min(case.sizes.get("p", 1), options["ranks_to"])
        last = options["ranks_to"]
        if options["scaling"] == "strong":
            last = min(last, case.sizes["B"])
        points = scaling.scale(predicted, case, scaling.doublings(first, last), options["scaling"])
        return [s.prediction for s in points], report.scaling_table(points, options["scaling"]), "p"
    symbol, values = _values(options["sweep"])
    found = scaling.sweep(predicted, case, symbol, values)
    return list(found), report.sweep_table(found, symbol), symbol


def _values(text: str) -> tuple[str, tuple[int, ...]]:
    """Read SYMBOL=FROM:TO or SYMBOL=A,B,C."""
    from perfmodel.models import predict as scaling

    symbol, _, said = text.partition("=")
    words = said.split(":" if ":" in said else ",")
    if not symbol or not all(w.isascii() and w.isdigit() and 0 < len(w) < 10 for w in words):
        raise click.BadParameter(f"expected SYMBOL=FROM:TO or SYMBOL=A,B,C; got {text!r}")
    numbers = tuple(int(w) for w in words)
    if min(numbers) < 1 or (":" in said and (len(numbers) != 2 or numbers[0] > numbers[1])):
        raise click.BadParameter(f"expected positive numbers, FROM at most TO; got {text!r}")
    return symbol, scaling.doublings(*numbers) if ":" in said else numbers
