"""Operators of a framework in tables and JSON: work, time, achieved rate, and what bounds them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

from perfmodel.base.table import Column, Table
from perfmodel.base.units import percent, si
from perfmodel.machines.machine import TYPES

if TYPE_CHECKING:
    from perfmodel.analysis.modules import ModuleRow
    from perfmodel.analysis.operators import PhaseRow, StepWork, Utilization
    from perfmodel.analysis.result import RunAnalysis
    from perfmodel.programs.facts import OperatorRow

_Row = TypeVar("_Row", "OperatorRow", "ModuleRow", "PhaseRow")

SHOWN: Final = 15
"""Operators that the terminal lists; files and JSON have them all."""

SHOWN_MODULES: Final = 24
"""Modules that the terminal lists at most."""

_MOSTLY: Final = 0.95
"""FLOPs of a step whose formulas cover less of the computing time are a lower bound."""

_UNITS: Final = {
    "bfloat16_tensor": "bf16 TC", "float16_tensor": "fp16 TC", "tf32_tensor": "TF32 TC",
    "tf32x3_tensor": "3xTF32 TC", "float8_tensor": "FP8 TC", "float64_tensor": "FP64 TC",
    "float32_tensor": "FP32 MC", "float6_tensor": "FP6 TC", "float4_tensor": "FP4 TC",
    "int8_tensor": "INT8 TC", "float32": "FP32", "float64": "FP64", "float16": "FP16",
}  # fmt: skip
"""Units of a GPU as a table calls them; TC are tensor cores."""

_COUNTED: Final = (
    "FLOPs of products (2 a multiply-add) and compulsory bytes: by formula from the recorded "
    "sizes. Ceiling: least time by the unit's peak and HBM over the measured; more than 100 %: "
    "from the cache. If in L2: what is left of the bytes if the inputs are still there"
)
_LAYERED: Final = (
    "FLOPs and bytes of the network's layers, each reading its inputs and writing its output "
    "once. Ceiling: least time by the unit's peak and HBM over the measured"
)
_NAME: Final = Column("name", "Operator", wrap=False, of=lambda r: r.name.removeprefix("aten::"))
_PHASE: Final = Column("phase", "Phase")
_COUNT: Final = Column("count", "Calls", "float", digits=0)
_FLOPS: Final = Column("flops", "FLOPs", "si", of=lambda r: r.flops or None)
_BYTES: Final = Column("bytes", "Bytes", "si", "B", of=lambda r: r.bytes or None)
_CACHED: Final = Column("cached_bytes", "If in L2", "si", "B", of=lambda r: r.cached_bytes or None)
_TIME: Final = Column("gpu_s", "GPU time", "si", "s")
_SHARE: Final = Column("share", "Share", "percent", of=lambda r: r.share or None)
_BOUND: Final = Column("bound", "Bound by")
_OF_CEILING: Final = Column("of_ceiling", "Ceiling", "percent", digits=0)

OPERATORS_TEXT: Final = (
    _NAME, _PHASE, _COUNT, _TIME, _SHARE, _FLOPS, _BYTES, _CACHED,
    Column("unit", "Unit", of=lambda r: _UNITS.get(r.unit, r.unit) if r.flops else r.dtype),
    Column("rate", "Achieved", align="right",
           of=lambda r: si(r.flops_per_s, "FLOP/s") if r.flops_per_s else
           (si(r.bytes_per_s, "B/s") if r.bytes_per_s else None)),
    _BOUND, Column("of_ceiling", "Ceiling", align="right", of=lambda r: _ceilings(r)),
)  # fmt: skip

PHASES_TEXT: Final = (
    Column("name", "Phase"),
    *(c for c in OPERATORS_TEXT if c.key not in ("name", "phase", "count", "cached_bytes")),
)
OPERATORS: Final = (
    Column("name", "Operator"),
    _PHASE,
    Column("sizes", "Sizes"),
    Column("count", "Calls", "float"),
    Column("kernels", "Kernels", "float"),
    _TIME,
    Column("share", "Share", "percent"),
    Column("flops", "FLOPs", "si"),
    Column("read_bytes", "Read", "si", "B"),
    Column("write_bytes", "Written", "si", "B"),
    Column("bytes", "Bytes", "si", "B"),
    Column("cached_bytes", "Bytes with inputs in L2", "si", "B"),
    Column("fusible_bytes", "Read right after written", "si", "B"),
    Column("inputs_from", "Inputs from"),
    Column("intensity_flops_per_byte", "FLOP/byte", "float", of="intensity"),
    Column("flops_per_s", "FLOP/s", "si"),
    Column("bytes_per_s", "Byte/s", "si"),
    Column("dtype", "Type"),
    Column("dtype_from", "Type from"),
    Column("unit", "Unit"),
    _BOUND,
    _OF_CEILING,
    Column("of_tensor_ceiling", "Ceiling of tensor cores", "percent", digits=0),
    Column("dram_bytes", "DRAM, counted", "si", "B"),
    Column("l2_bytes", "L2, counted", "si", "B"),
    Column("l2_intensity_flops_per_byte", "FLOP/byte of L2", "float", of="l2_intensity"),
    Column("of_l2", "Of L2's bandwidth", "percent", digits=0),
)
COUNTED_TEXT: Final = (
    _NAME, _PHASE, _TIME, _BYTES,
    Column("dram_bytes", "DRAM", "si", "B"),
    Column("over", "DRAM/bytes", "float", digits=2,
           of=lambda r: r.dram_bytes / r.bytes if r.dram_bytes and r.bytes else None),
    Column("l2_bytes", "L2", "si", "B"),
    Column("l2_intensity", "FLOP/B of L2", "float", digits=1),
    Column("l2_rate", "L2 rate", "si", "B/s",
           of=lambda r: r.l2_bytes / r.gpu_s if r.l2_bytes and r.gpu_s else None),
    Column("of_l2", "Of L2", "percent", digits=0),
)  # fmt: skip


def _ceilings(row: OperatorRow) -> str | None:
    """Shares of the ceiling, and of that of the tensor cores where a product runs without."""
    if row.of_ceiling is None:
        return None
    own = percent(row.of_ceiling)
    return f"{own} (TC {percent(row.of_tensor_ceiling)})" if row.of_tensor_ceiling else own


def operators_text(work: StepWork, most: int = SHOWN) -> Table:
    """The operators with most GPU time, as many as the terminal has room for by default."""
    shown = [row for row in work.operators if not row.communicates][:most]
    left = sum(not row.communicates for row in work.operators) - len(shown)
    columns = OPERATORS_TEXT if work.modelled else OPERATORS_TEXT[:5]
    notes = _notes(left, counted=work.modelled > 0)
    if work.source == "layers":
        return Table.of("Phases of a median step (per rank)", shown, PHASES_TEXT, [_LAYERED])
    return Table.of("Operators of a median step (per rank)", shown, columns, notes)


def counted_text(work: StepWork) -> Table | None:
    """Return Nsight Compute's counts beside the formulas; None without its table."""
    shown = [row for row in work.operators if row.dram_bytes is not None][:SHOWN]
    if not shown:
        return None
    notes = ["counted with the caches emptied before every kernel; writes that stay in L2 are not"]
    if all(row.of_l2 is None for row in shown):
        notes.append(
            "no bandwidth of L2 is known of this machine: give --machine what perfmodel machine "
            "measure wrote on it"
        )
    return Table.of("Bytes that Nsight Compute counted of a step", shown, COUNTED_TEXT, notes)


def operators(run: RunAnalysis) -> Table:
    """All operators by name, phase, type and sizes."""
    found = run.work.by_sizes if run.work else ()
    return Table.of("Operators of a median step (per rank)", found, OPERATORS)


PHASES: Final = (
    _PHASE, _TIME, _SHARE, _FLOPS, _BYTES,
    Column("intensity", "FLOP/byte", "float", digits=1),
    Column("flops_per_s", "Achieved", "si", "FLOP/s"),
    Column("bytes_per_s", "Bandwidth", "si", "B/s"),
    _OF_CEILING,
)  # fmt: skip


def phases(work: StepWork) -> Table:
    """Forward, backward, optimizer and the step."""
    return Table.of("Operators by phase of a median step (per rank)", work.phases, PHASES)


MODULES: Final = (
    Column("module", "Module", wrap=False, of="name"),
    _TIME,
    _SHARE,
    Column("forward_s", "Forward", "si", "s"),
    Column("backward_s", "Backward", "si", "s"),
    Column("own_s", "Own", "si", "s"),
    _FLOPS,
    _BYTES,
    Column("flops_per_s", "Achieved", "si", "FLOP/s"),
    _OF_CEILING,
)
MODULES_TEXT: Final = (
    Column("module", "Module", wrap=False, of=lambda r: _own_name(r.name)[1] or "(in no module)"),
    *(column for column in MODULES[1:] if column.key != "own_s"),
)
_BY_MODULE: Final = "Operators by module of a median step (per rank)"


def modules_text(work: StepWork) -> Table:
    """The modules for the terminal, layers of one kind together, down to where they are few."""
    levels = [_own_name(row.name)[0] for row in work.module_groups]
    deepest = max(levels, default=0)
    while deepest and sum(level <= deepest for level in levels) > SHOWN_MODULES:
        deepest -= 1
    shown = [r for r, level in zip(work.module_groups, levels, strict=True) if level <= deepest]
    notes = ["*: all of these layers. A module's time, FLOPs and bytes hold those of modules in it"]
    if len(shown) < len(work.modules):
        notes.append("every module by itself with --out or --format json")
    levels = [level for level in levels if level <= deepest]
    return Table.of(_BY_MODULE, shown, MODULES_TEXT, notes, levels)


def modules(run: RunAnalysis) -> Table:
    """All modules, each with those in it."""
    return Table.of(_BY_MODULE, run.work.modules if run.work else (), MODULES)


def _own_name(name: str) -> tuple[int, str]:
    """Depth of a module and its own name, in which `*` stays with the name of its list.

    >>> _own_name("GPT.blocks.*.mlp.up")
    (3, 'up')
    >>> _own_name("GPT.blocks.*")
    (1, 'blocks.*')
    """
    outer, _, own = name.replace(".*", "*").rpartition(".")
    return outer.count(".") + bool(outer), own.replace("*", ".*")


def _notes(left: int, *, counted: bool) -> list[str]:
    notes = [_COUNTED] if counted else []
    if left > 0:
        notes.append(f"{left} more with --out or --format json")
    return notes


def work_lines(work: StepWork) -> Iterator[str]:
    """Say a step's work and utilization, a line each; nothing where no formula counts any."""
    if not work.modelled:
        return
    source = "the network's layers" if work.source == "layers" else "the operators' sizes"
    least = "at least " if work.modelled < _MOSTLY else ""
    masked = " (causal attention: half of the scores)" if work.attention == "causal" else ""
    moved = si(work.bytes, "B")
    counted = f"FLOPs unknown, {least}{moved}"
    if _flops(work) is not None:
        counted = f"{least}{si(work.flops, 'FLOP', 4)} and {moved}"
    yield (
        f"work       {counted} per step and rank, from {source}{masked}; formulas cover "
        f"{100 * work.modelled:.1f} % of the computing time"
    )
    if work.mfu:
        mfu = work.mfu
        yield (
            f"MFU        {100 * mfu.of_step:.1f} % of {peak_of(mfu)}; "
            f"{100 * mfu.without_exposed_communication:.1f} % without exposed communication, "
            f"{100 * mfu.of_busy:.1f} % of the time that the GPU computes{_as_it_ran(mfu)}"
        )


def peak_of(mfu: Utilization) -> str:
    """Say what utilization is of: '989 TFLOP/s, BF16 dense, data sheet'."""
    peak = si(mfu.peak_flops_per_s, "FLOP/s")
    return f"{peak}, {TYPES.get(mfu.unit, mfu.unit)} dense, {mfu.basis}"


def _as_it_ran(mfu: Utilization) -> str:
    """Say the share of the peak of the unit that ran, where the program could use a faster one."""
    peak = mfu.ran_peak_flops_per_s
    if mfu.ran_unit == mfu.unit or not peak:
        return ""
    share, unit = mfu.of_step * mfu.peak_flops_per_s / peak, _UNITS.get(mfu.ran_unit, mfu.ran_unit)
    return f"; it ran on {unit}: {100 * share:.1f} % of {si(peak, 'FLOP/s')}"


def _flops(work: StepWork) -> int | None:
    """FLOPs of a step; None if none are counted, and formulas leave much of the time out."""
    return _whole(work.flops) if work.flops or work.modelled >= _MOSTLY else None


def step_work(
    work: StepWork,
) -> Annotated[
    dict[str, Any],
    {
        "flops_per_step": float | None, "bytes_per_step": float, "from": str, "attention": str,
        "modelled_share": float,
    },
]:  # fmt: skip
    """Work of a step of a rank: sums over operators with a formula.

    Keys
    ----
    flops_per_step
        None where too little is known.
    from
        What counted it.
    modelled_share
        Time of operators with a formula over that of operations that do not communicate.
    """
    counted = {"flops_per_step": _flops(work), "bytes_per_step": _whole(work.bytes)}
    return counted | {
        "from": work.source, "attention": work.attention, "modelled_share": work.modelled,
    }  # fmt: skip


def work_document(
    run: RunAnalysis,
) -> Annotated[
    dict[str, Any],
    {
        "work": step_work | None, "operators": Sequence[OperatorRow],
        "operators_by_size": Sequence[OperatorRow], "phases": Sequence[PhaseRow],
        "modules": Sequence[ModuleRow], "mfu": Utilization | None,
    },
]:  # fmt: skip
    """Keys of `analysis.json` that say what a framework's operators do in a median step.

    Keys
    ----
    work
        Work of a step; None where nothing counts any.
    operators, operators_by_size
        By name, phase, type and unit; and by sizes, too.
    phases, modules
        The same by phase, and by module.
    mfu
        Model FLOPs utilization.
    """
    work = run.work
    counts = work is not None and bool(work.modelled)
    return {
        "work": step_work(work) if work and counts else None,
        "operators": [_row(row) for row in work.operators] if work else [],
        "operators_by_size": [_row(row) for row in work.by_sizes] if work else [],
        "phases": [_row(row) for row in work.phases] if work and counts else [],
        "modules": [_row(row) for row in work.modules] if work else [],
        "mfu": work.mfu if work else None,
    }


def _row(row: _Row) -> _Row:
    """Return a row with whole numbers as such: FLOPs are exact."""
    return replace(row, **{f.name: _whole(getattr(row, f.name)) for f in fields(row)})


def _whole(value: Any) -> Any:
    """A whole number as one: FLOPs are exact."""
    return int(value) if isinstance(value, float) and value.is_integer() else value
