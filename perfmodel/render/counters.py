"""Renders Nsight Compute's counters: two tables, the formulas, and a JSON document."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from perfmodel.analysis.counters import CAUSES, LEVELS, TENSOR, Compared, Counted, Placed, explain
from perfmodel.base.document import pick
from perfmodel.base.table import Column, Table
from perfmodel.base.units import percent
from perfmodel.machines.machine import Machine
from perfmodel.render.result import Result

LEVEL_NAMES: Final = {"l1": "L1", "l2": "L2", "dram": "DRAM"}
BOUNDS: Final = {"compute": "compute", **LEVEL_NAMES}


def result(
    placed: Sequence[Placed],
    machine: Machine | None,
    said: Sequence[str],
    compared: Sequence[Compared] = (),
) -> Result:
    """Return counters in every format, with what is to be said of them as warnings."""
    tables = [work_table(placed), roof_table(placed, machine)]
    if compared:
        tables.append(formulas_table(compared))
    return Result(tables, lambda: document(placed, machine, said, compared), warnings=said)


def warnings(counted: Sequence[Counted]) -> tuple[str, ...]:
    """Say what was not counted, and how to count it."""
    missing = dict.fromkeys(m for one in counted for m in one.uncounted)
    said = []
    tensor = [m for names in TENSOR.values() for m in names if m in missing]
    if len(tensor) == sum(map(len, TENSOR.values())):
        said.append(
            "operations of tensor cores were not counted, and instructions of scalar units do not "
            "hold them: FLOPs are at least those shown; collect sm__ops_path_tensor_src_*"
        )
    others = [m for m in missing if m not in tensor]
    if others:
        said.append(
            f"not counted: {', '.join(_short(others))}; what needs them is missing, and FLOPs are "
            f"at least those shown; run the command that perfmodel counters --command prints"
        )
    return tuple(said)


def _short(names: Sequence[str]) -> list[str]:
    """Names of metrics, those of instructions in one word as a shell would write it."""
    before, behind = "smsp__sass_thread_inst_executed_op_", "_pred_on.sum"
    ops = [n.removeprefix(before).removesuffix(behind) for n in names if n.startswith(before)]
    rest = [n for n in names if not n.startswith(before)]
    return rest + ([f"{before}{{{','.join(ops)}}}{behind}"] if ops else [])


def work_table(placed: Sequence[Placed]) -> Table:
    """Time, operations and bytes of every kernel or range."""
    total = _total_s(placed)
    columns = (
        Column("name", _kind(placed).capitalize(), of="counted.label"),
        Column("launches", "Launches", "int", of="counted.launches"),
        Column("time_s", "Time", "si", "s", of="counted.time_s"),
        Column("time_share", "Share", "percent", of=lambda p: _share(p, total)),
        Column("flops", "FLOPs", "si", "FLOP", digits=4, of="counted.flops"),
        Column("unit", "Mostly by", of=_unit),
        Column("flops_per_s", "Achieved", "si", "FLOP/s", of="counted.flops_per_s"),
        *(
            Column(f"{v}_bytes", name, "si", "B", of=_at("bytes_of", v))
            for v, name in LEVEL_NAMES.items()
        ),
    )
    return Table.of(f"What Nsight Compute counted, by {_kind(placed)}", placed, columns)


def _at(quantity: str, level: str) -> Callable[[Placed], object]:
    return lambda p: getattr(p.counted, quantity)(level)


_ROOF: Final = (
    Column("roof_flops_per_s", "Roof", "si", "FLOP/s"),
    Column("bound", "Bound by", of=lambda p: BOUNDS[p.bound] if p.bound else None),
    Column("share_of_roof", "Of roof", "percent"),
    Column("above", "Above", of=lambda p: "; ".join(p.above) or None),
)


def roof_table(placed: Sequence[Placed], machine: Machine | None) -> Table:
    """Arithmetic intensity at every level, and the roof of the unit that computes."""
    columns = (
        Column("name", _kind(placed).capitalize(), of="counted.label"),
        *(
            Column(f"{v}_flops_per_byte", f"AI {name}", "float", digits=2, of=_at("intensity", v))
            for v, name in LEVEL_NAMES.items()
        ),
        *(_ROOF if machine is not None else ()),
    )
    title = "Arithmetic intensity, FLOP/byte"
    if machine is not None:
        title += f", and roofs of {machine.name} ({machine.source})"
    notes = [f"{p.counted.label} is mixed: {_mix(p.counted)}" for p in placed if p.mixed]
    past = [p.counted.label for p in placed if p.counted.past_l1]
    if past:
        notes.append(
            f"L1 counted less than DRAM moved: {', '.join(past)}: copies of the tensor memory "
            f"accelerator pass its counter by; not drawn at L1"
        )
    if any(p.above for p in placed):
        notes.append(f"what is above a ceiling cannot be; causes: {CAUSES}")
    return Table.of(title, placed, columns, notes)


FORMULAS: Final = (
    Column("name", "Range", of="counted.label"),
    Column("model_flops", "FLOPs, formulas", "si", "FLOP", digits=4),
    Column("flops", "counted", "si", "FLOP", digits=4),
    Column("flops_ratio", "ratio", "float", digits=4),
    Column("model_dram_bytes", "DRAM, formulas", "si", "B"),
    Column("dram_bytes", "counted", "si", "B", of=lambda c: c.bytes_of("dram")),
    Column("dram_ratio", "ratio", "float", digits=2),
    Column("l2_bytes", "L2, counted", "si", "B", of=lambda c: c.bytes_of("l2")),
)


def formulas_table(compared: Sequence[Compared]) -> Table:
    """Formulas and counters, per batch."""
    batches = {c.counted.source: c.batches for c in compared}
    said = ", ".join(f"{n} of {file}" if file else str(n) for file, n in batches.items())
    notes = (f"{c.counted.label}: {word}" for c in compared for word in explain(c))
    title = f"Formulas and counters, per step (counted: {said})"
    return Table.of(title, compared, FORMULAS, notes)


def document(
    placed: Sequence[Placed],
    machine: Machine | None,
    said: Iterable[str],
    compared: Sequence[Compared] = (),
) -> dict[str, Any]:
    """Return all of it as JSON types; bytes, seconds, operations; None is missing."""
    total = _total_s(placed)
    found: dict[str, Any] = {"by": _kind(placed), "warnings": list(said)}
    if machine is not None:
        found["machine"] = pick(machine, "name source peak_flops_per_s bandwidth_bytes_per_s")
    found[f"{_kind(placed)}s"] = [_entry(p, total) for p in placed]
    if compared:
        found["formulas"] = [_beside(one) for one in compared]
    return found


def _beside(one: Compared) -> dict[str, Any]:
    return {
        "name": one.counted.name,
        "source": one.counted.source or None,
        "batches": one.batches,
        "flops": pick(one, "", formulas="model_flops", counted="flops", ratio="flops_ratio"),
        "dram_bytes": {
            "formulas": one.model_dram_bytes,
            "counted": one.bytes_of("dram"),
            "ratio": one.dram_ratio,
        },
        "l2_bytes": one.bytes_of("l2"),
        "because": explain(one),
    }


def _entry(p: Placed, total: float) -> dict[str, Any]:
    one = p.counted
    read, write = (one.counts.get(metric) for metric in LEVELS["dram"][:2])
    return {
        **pick(
            one, "name launches kernels time_s flops flops_per_s", flops_by_type="flops_by_unit"
        ),
        "source": one.source or None,
        "time_share": _share(p, total),
        "bytes": {level: one.bytes_of(level) for level in LEVELS},
        "dram_read_bytes": read,
        "dram_write_bytes": write,
        "bytes_per_s": {level: one.bytes_per_s(level) for level in LEVELS},
        "intensity_flops_per_byte": {level: one.intensity(level) for level in LEVELS},
        **pick(one, "l2_hit_share uncounted"),
        **pick(p, "unit unit_share mixed peak_flops_per_s ceilings_flops_per_s roof_flops_per_s"),
        **pick(p, "bound share_of_roof above"),
    }


def _total_s(placed: Sequence[Placed]) -> float:
    return sum(p.counted.time_s or 0.0 for p in placed)


def _kind(placed: Sequence[Placed]) -> str:
    return placed[0].counted.kind if placed else "kernel"


def _share(p: Placed, total: float) -> float | None:
    return p.counted.time_s / total if p.counted.time_s is not None and total else None


def _unit(p: Placed) -> str | None:
    if p.unit is None or p.unit_share is None:
        return None
    return f"{p.unit} {percent(p.unit_share)}" if p.unit_share < 0.995 else p.unit


def _mix(one: Counted) -> str:
    found = {unit: n for unit, n in one.flops_by_unit.items() if n}
    total = sum(found.values())
    parts = sorted(found.items(), key=lambda item: -item[1])
    return ", ".join(f"{percent(n / total)} {unit}" for unit, n in parts)
