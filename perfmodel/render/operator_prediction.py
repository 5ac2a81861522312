"""Text, tables and JSON of a step that is predicted from a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

from perfmodel.base.document import pick, plain_view
from perfmodel.base.table import Column, Table
from perfmodel.base.units import percent, si, sizes_text
from perfmodel.models.one_report import ReportPrediction
from perfmodel.models.operators import OperatorPrediction
from perfmodel.models.recorded import RecordedCall
from perfmodel.models.two_lanes import Lanes
from perfmodel.render.result import Result

_MOST_ROWS: Final = 20
_DAY_S: Final = 86400
_TALKS: Final = "limited by communication"


def report_prediction(found: ReportPrediction, tokens: float | None = None) -> Result:
    """Return a predicted step of a report, and what the report's numbers were taken for.

    With `tokens` also how long so many take.
    """
    step, split, shown, every = found.step, *_tables(found.step)
    sizes = " ".join(f"{k}={v}" for k, v in step.sizes.items())
    bound = f"set by the {step.bound}" if step.bound in ("GPU", "host") else _TALKS
    line = (
        f"step of {sizes}: {si(step.step_s, 's')}, 90 % from {si(step.low_s, 's')} to "
        f"{si(step.high_s, 's')}; {bound}"
    )
    columns = (
        Column("name", "Role", of=lambda r: r.name),
        Column("value", "Recorded", "int", of=lambda r: r.value),
        Column("predicted", "Predicted", "int", of=lambda r: found.sizes[r.name]),
        Column("certainty", "Certainty", of=lambda r: r.certainty),
        Column("why", "From", of=lambda r: r.why),
    )
    roles = Table.of("Roles of the report's sizes", found.roles, columns)
    same = found.recorded
    before = (
        f"as recorded, without the profiler: {si(found.recorded_s, 's')}; the model says "
        f"{si(same.step_s, 's')}, 90 % from {si(same.low_s, 's')} to {si(same.high_s, 's')}"
    )
    host = found.host
    general = "what hosts take in general; --timed, a step's time without a profiler, narrows it"
    by = "; ".join(host.evidence) or general
    known = f"host: {host.factor:.2f} times as long as the report says, by {by}"
    said = [line, f"structure from {step.source}", *_speed(found, tokens), *_memory(found)]
    return Result(
        [said, [before, known], roles, split, shown],
        lambda: report_prediction_document(found, tokens),
        tables=(roles, split, every),
        warnings=step.warnings,
    )


def _tables(p: OperatorPrediction) -> tuple[Table, Table, Table]:
    """Lanes of a step, its operators with most time, and all of them."""
    parts = (
        Column("part", "Part", of=lambda r: r[0]),
        Column("seconds", "Time", "si", "s", of=lambda r: r[1]),
        Column("share", "Of the step", "percent", of=lambda r: r[1] / p.step_s),
    )
    lanes = p.lanes
    rows = [
        *((f"GPU, {kind}", seconds) for kind, seconds in p.by_kind.items()),
        ("GPU, all with gaps", lanes.gpu_s),
        ("communication", lanes.communication_s),
        ("communication, exposed", lanes.exposed_s),
        ("host", lanes.host_s),
    ]
    operators = (
        Column("name", "Operator", of=lambda r: r["name"], wrap=False),
        Column("phase", "Phase", of=lambda r: r["phase"]),
        Column("sizes", "Sizes", of=lambda r: r["sizes"]),
        Column("count", "Calls", "int", of=lambda r: r["count"]),
        Column("flops", "FLOPs", "si", "", of=lambda r: r["flops"]),
        Column("bytes", "Bytes", "si", "B", of=lambda r: r["bytes"]),
        Column("gpu_s", "GPU time", "si", "s", of=lambda r: r["gpu_s"]),
    )
    calls, note = _calls(p), "lanes overlap; shares do not add up"
    return (
        Table.of("Lanes of a predicted step", rows, parts, (note,)),
        Table.of("Operators of a predicted step", calls[:_MOST_ROWS], operators),
        Table.of("Operators of a predicted step", calls, operators),
    )


def _throughput(found: ReportPrediction) -> dict[str, float | None]:
    """Samples, tokens and FLOPs of operators' formulas per second, of all ranks together."""
    sizes, step = found.sizes, found.step
    each = sizes.get("batch", 0) * found.micro_batches * found.batches / step.step_s
    flops = sum(count * call.flops for count, call in step.calls) * sizes["p"] / step.step_s
    return {
        "samples_per_s": each or None,
        "tokens_per_s": each * sizes["seq"] if each and "vocab" in sizes else None,
        "flops_per_s": flops or None,
    }


def _speed(found: ReportPrediction, asked: float | None) -> list[str]:
    """Say how much a second, and how long tokens take."""
    samples, tokens, flops = _throughput(found).values()
    said = [f"{si(samples, '', 3)} samples/s"] if samples else []
    if tokens:
        count, named = (asked, si(asked, "", 3)) if asked else (1e9, "10⁹")
        said.append(f"{si(tokens, '', 3)} tokens/s, {named} tokens in {_long(count / tokens)}")
    if flops:
        share = f" (MFU {percent(found.mfu)})" if found.mfu else ""
        gpus = f"{found.sizes['p']} GPU{'s' * (found.sizes['p'] > 1)}"
        said.append(f"{si(flops, 'FLOP/s', 3)} on {gpus}{share}")
    return ["; ".join(said)] if said else []


def _long(seconds: float) -> str:
    return f"{seconds / _DAY_S:.3g} days" if seconds > 2 * _DAY_S else f"{seconds / 3600:.3g} h"


def _memory(found: ReportPrediction) -> list[str]:
    """Say the peak of memory, what is alive at it, and the largest batch that fits."""
    if found.peak is None:
        return []
    parts = ", ".join(f"{si(n, 'B')} {kind}" for kind, n in found.peak.by_kind.items() if n)
    lines = [f"peak memory {si(found.peak.bytes, 'B')}: {parts}"]
    if found.largest_batch is not None:
        lines.append(f"largest batch that fits the GPU: {found.largest_batch}")
    return lines


def report_prediction_document(
    found: ReportPrediction, tokens: float | None = None
) -> Annotated[
    dict[str, Any], OperatorPrediction, Lanes, ReportPrediction,
    {
        "peak_bytes": float | None,
        "peak_bytes_by_kind": Mapping[str, float] | None, "samples_per_s": float | None,
        "tokens_per_s": float | None, "flops_per_s": float | None, "tokens_s": float | None,
        "operators": Sequence[predicted_calls],
    },
]:  # fmt: skip
    """What `perfmodel predict REPORT --json` prints.

    Keys
    ----
    peak_bytes, peak_bytes_by_kind
        Most memory of PyTorch's allocator.
    samples_per_s, tokens_per_s, flops_per_s
        Of all ranks together.
    tokens_s
        Time of the tokens that were asked for.
    """
    speed, peak = _throughput(found), found.peak
    rate = speed["tokens_per_s"]
    return plain_view(
        found.step, found.step.lanes, found, speed,
        peak_bytes=peak and peak.bytes,
        peak_bytes_by_kind=peak and peak.by_kind,
        tokens_s=tokens / rate if tokens and rate else None,
        operators=_calls(found.step),
    )  # fmt: skip


def _calls(p: OperatorPrediction) -> list[dict[str, Any]]:
    return [predicted_calls(count, call) for count, call in p.calls]


def predicted_calls(
    count: int, call: RecordedCall
) -> Annotated[
    dict[str, Any],
    {
        "name": str, "phase": str, "kind": str, "sizes": str, "count": int, "flops": float,
        "bytes": float, "gpu_s": float,
    },
]:  # fmt: skip
    """Calls of an operator with the same sizes in a predicted step, all of them together."""
    return pick(call, "name phase kind") | {
        "sizes": sizes_text(call.sizes), "count": count, "flops": count * call.flops,
        "bytes": count * call.bytes, "gpu_s": count * call.gpu_s,
    }  # fmt: skip
