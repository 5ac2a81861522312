"""Text, tables and JSON of a step that is predicted from a report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from perfmodel.base.document import pick, plain
from perfmodel.base.table import Column, Table
from perfmodel.base.units import percent, si, sizes_text
from perfmodel.models.one_report import ReportPrediction
from perfmodel.models.operators import OperatorPrediction
from perfmodel.models.roles import Role
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
        lambda: report_document(found, tokens),
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
        "mfu": found.mfu,
    }


def _speed(found: ReportPrediction, asked: float | None) -> list[str]:
    """Say how much a second, and how long tokens take."""
    speed = _throughput(found)
    samples, tokens, flops, mfu = speed.values()
    said = [f"{si(samples, '', 3)} samples/s"] if samples else []
    if tokens:
        count, named = (asked, si(asked, "", 3)) if asked else (1e9, "10⁹")
        said.append(f"{si(tokens, '', 3)} tokens/s, {named} tokens in {_long(count / tokens)}")
    if flops:
        share = f" (MFU {percent(mfu)})" if mfu else ""
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


@dataclass(frozen=True)
class PredictedCall:
    """Calls of an operator with the same sizes in a predicted step, all of them together."""

    name: str
    phase: str
    kind: str
    sizes: str
    count: int
    flops: float
    bytes: float
    gpu_s: float


@dataclass(frozen=True)
class RecordedStep:
    """What the model says of the sizes as recorded."""

    sizes: Mapping[str, int]
    step_s: float
    low_s: float
    high_s: float
    bound: str


@dataclass(frozen=True)
class PredictedHostRatio:
    """The host to predict over the report's, and by what that is known."""

    factor: float
    evidence: tuple[str, ...]


@dataclass(frozen=True)
class ReportPredictionDocument:
    """What `perfmodel predict REPORT --json` prints.

    Attributes
    ----------
    sizes : mapping of str to int
        By symbol, and the ranks 'p'.
    step_s, low_s, high_s : float
        A step, and its interval of 90 %.
    recorded_s : float
        The step at the sizes as recorded, as `perfmodel analyze` says: without the profiler.
    bound : str
        GPU, host or communication.
    source : str
        The report whose structure was taken.
    gpu_s_by_kind : mapping of str to float
    roles : tuple of Role
        What the report's sizes were taken for.
    peak_bytes, peak_bytes_by_kind : float or None
        Most memory of PyTorch's allocator.
    largest_batch : int or None
        That fits the GPU.
    samples_per_s, tokens_per_s, flops_per_s : float or None
        Of all ranks together.
    tokens_s : float or None
        Time of the tokens that were asked for.
    """

    sizes: Mapping[str, int]
    step_s: float
    low_s: float
    high_s: float
    recorded_s: float
    bound: str
    source: str
    warnings: tuple[str, ...]
    gpu_s: float
    host_s: float
    communication_s: float
    exposed_communication_s: float
    gpu_s_by_kind: Mapping[str, float]
    operators: tuple[PredictedCall, ...]
    roles: tuple[Role, ...]
    recorded: RecordedStep
    host: PredictedHostRatio
    peak_bytes: float | None
    peak_bytes_by_kind: Mapping[str, float] | None
    largest_batch: int | None
    samples_per_s: float | None
    tokens_per_s: float | None
    flops_per_s: float | None
    mfu: float | None
    tokens_s: float | None


def report_document(found: ReportPrediction, tokens: float | None = None) -> dict[str, Any]:
    """Return a predicted step of a report as plain data; `tokens_s` is the time of `tokens`."""
    speed: dict[str, Any] = dict(_throughput(found))
    rate = speed["tokens_per_s"]
    made: dict[str, Any] = plain(
        ReportPredictionDocument(
            **_of_step(found.step),
            recorded_s=found.recorded_s,
            roles=tuple(found.roles),
            recorded=RecordedStep(**pick(found.recorded, "sizes step_s low_s high_s bound")),
            host=PredictedHostRatio(**pick(found.host, "factor evidence")),
            peak_bytes=None if found.peak is None else found.peak.bytes,
            peak_bytes_by_kind=None if found.peak is None else dict(found.peak.by_kind),
            largest_batch=found.largest_batch,
            **speed,
            tokens_s=tokens / rate if tokens and rate else None,
        )
    )
    return made


def _of_step(p: OperatorPrediction) -> dict[str, Any]:
    """What the document of a step has."""
    return {
        **pick(p, "sizes step_s low_s high_s bound source warnings"),
        "gpu_s": p.lanes.gpu_s,
        "host_s": p.lanes.host_s,
        "communication_s": p.lanes.communication_s,
        "exposed_communication_s": p.lanes.exposed_s,
        "gpu_s_by_kind": p.by_kind,
        "operators": tuple(PredictedCall(**one) for one in _calls(p)),
    }


def _calls(p: OperatorPrediction) -> list[dict[str, Any]]:
    """Calls with the same sizes, all of them together."""
    return [
        {
            "name": call.name, "phase": call.phase, "kind": call.kind,
            "sizes": sizes_text(call.sizes), "count": count, "flops": count * call.flops,
            "bytes": count * call.bytes, "gpu_s": count * call.gpu_s,
        }
        for count, call in p.calls
    ]  # fmt: skip
