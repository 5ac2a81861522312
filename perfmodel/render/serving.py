"""Serving in tables and JSON: phases, tokens, and the least time of a step beside the measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

from perfmodel.analysis.serving import usual_rows
from perfmodel.base.document import view
from perfmodel.base.table import Column, Table
from perfmodel.programs.facts import ServingRow

if TYPE_CHECKING:
    from perfmodel.analysis.result import RunAnalysis

_NOTE: Final = (
    "Floor: weights and KV cache moved once at the memory's bandwidth, FLOPs at the peaks of their "
    "types, or exchanged tensors over the link, whichever takes longest. Host: time in which the "
    "GPU does nothing"
)
_EXPERTS: Final = "Weights of experts: of as many as the tokens reach, if evenly"
_HIDDEN: Final = (
    "No floor: CUDA graphs hide the operators; give the recording of their capture by --shapes, or "
    "the model by --decoder"
)
_MOST: Final = 0.5
_MANY: Final = 12
"""Rows of the tables in print; files have all."""
_AT_LEAST: Final = (
    "KV tokens are a lower bound: the engine's ranges do not name the cached tokens; vLLM does "
    "with detailed_trace_annotation, SGLang with roofline_annotations"
)

_COLUMNS: Final = (
    Column("phase", "Phase"),
    Column("steps", "Steps", "int"),
    Column("sequences", "Sequences", "float", digits=0),
    Column("context_tokens", "Prompt tokens", "float", digits=0,
           of=lambda r: r.context_tokens or None),
    Column("generation_tokens", "Generated", "float", digits=0,
           of=lambda r: r.generation_tokens or None),
    Column("cached_tokens", "KV tokens", "float", digits=0),
    Column("step_s", "Step", "si", "s"),
    Column("busy_s", "GPU busy", "si", "s"),
    Column("host_s", "Host", "si", "s"),
    Column("floor_s", "Floor", "si", "s"),
    Column("floor_by", "Floor by"),
    Column("of_floor", "Floor/step", "percent", digits=0),
)  # fmt: skip
_FLOORS: Final = (
    Column("phase", "Phase"),
    Column("model", "Model", of=lambda r: r.model or None),
    Column("shards", "GPUs a layer", "int"),
    Column("weight_bytes", "Weights", "si", "B"),
    Column("cache_bytes", "KV cache", "si", "B"),
    Column("memory_s", "Memory", "si", "s"),
    Column("compute_s", "Compute", "si", "s"),
    Column("exchange_s", "Exchange", "si", "s"),
    Column("tokens_per_s", "Tokens/s", "si"),
    Column("compute_bound_sequences", "Compute-bound from", "float", digits=0),
)
_TOKENS: Final = (
    Column("phase", "Phase"),
    Column("sequences", "Sequences", "float", digits=0),
    Column("ttft_s", "TTFT", "si", "s"),
    Column("ttft_gpu_s", "GPU alone", "si", "s"),
    Column("tpot_s", "TPOT", "si", "s"),
    Column("tpot_gpu_s", "GPU alone", "si", "s"),
    Column("tpot_floor_s", "Floor", "si", "s"),
    Column("gap_s", "Gap between steps", "si", "s"),
)
_TOKENS_NOTE: Final = (
    "TTFT: time of the step that finishes a prompt, without its queueing and earlier chunks. TPOT: "
    "time of a step over the output tokens of a sequence in it. GPU alone: the same if the GPU "
    "never idled"
)


def tables(rows: Sequence[ServingRow]) -> list[Table]:
    """Return phases with their floors, and what the floors are made of."""
    notes = [_NOTE, *([] if all(row.exact for row in rows) else [_AT_LEAST])]
    if any(row.floor_s is None and row.hidden > _MOST for row in rows):
        notes.append(_HIDDEN)
    if len(rows) > _MANY:
        notes.append(f"{len(rows) - _MANY} more rows with less time: serving.csv")
        rows = rows[:_MANY]
    engine = rows[0].engine
    return [
        Table.of(f"Serving: steps of {engine} (median step)", rows, _COLUMNS, notes),
        Table.of(
            "Serving: time to first token and per output token", rows, _TOKENS, [_TOKENS_NOTE]
        ),
        Table.of(
            "Serving: least time of a step",
            rows,
            _FLOORS,
            [_EXPERTS],
        ),
    ]


def serving_table(run: RunAnalysis) -> Table:
    """All of it, for files."""
    columns = (Column("engine", "Engine"), *_COLUMNS, *_TOKENS[2:], *_FLOORS[1:])
    return Table.of("Serving", run.serving, columns)


def served(
    rows: Sequence[ServingRow],
) -> Annotated[dict[str, Any], ServingRow, {"phases": Sequence[ServingRow]}]:
    """The median step of the engine's phase with most time.

    Keys
    ----
    phases
        All phases, decodes by their number of sequences, those with most time first.
    """
    return view(usual_rows(rows)[0], phases=rows)
