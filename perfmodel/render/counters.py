"""What `perfmodel counters` says of counters: two tables and a JSON document."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from perfmodel.analysis.counters import CAUSES, LEVELS, TENSOR, Compared, Counted, Placed, explain
from perfmodel.base.table import Column, Table
from perfmodel.machines.machine import Machine

LEVEL_NAMES: Final = {"l1": "L1", "l2": "L2", "dram": "DRAM"}
BOUNDS: Final = {"compute": "compute", **LEVEL_NAMES}


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
    total = sum(p.counted.time_s or 0.0 for p in placed)
    columns = (
        Column("name", _kind(placed).capitalize()),
        Column("launches", "Launches", "int"),
        Column("time_s", "Time", "si", "s"),
        Column("time_share", "Share", "percent"),
        Column("flops", "FLOPs", "si", "FLOP", digits=4),
        Column("unit", "Mostly by"),
        Column("flops_per_s", "Achieved", "si", "FLOP/s"),
        *(Column(f"{v}_bytes", name, "si", "B") for v, name in LEVEL_NAMES.items()),
    )
    rows = [
        (
            p.counted.label,
            p.counted.launches,
            p.counted.time_s,
            _share(p, total),
            p.counted.flops,
            _unit(p),
            p.counted.flops_per_s,
            *(p.counted.bytes_of(level) for level in LEVEL_NAMES),
        )
        for p in placed
    ]
    return Table(f"What Nsight Compute counted, by {_kind(placed)}", columns, rows)


def roof_table(placed: Sequence[Placed], machine: Machine | None) -> Table:
    """Arithmetic intensity at every level, and the roof of the unit that computes."""
    columns: tuple[Column, ...] = (
        Column("name", _kind(placed).capitalize()),
        *(
            Column(f"{v}_flops_per_byte", f"AI {name}", "float", digits=2)
            for v, name in LEVEL_NAMES.items()
        ),
    )
    if machine is not None:
        columns += (
            Column("roof_flops_per_s", "Roof", "si", "FLOP/s"),
            Column("bound", "Bound by"),
            Column("share_of_roof", "Of roof", "percent"),
            Column("above", "Above"),
        )
    rows = []
    for p in placed:
        row = [p.counted.label, *(p.counted.intensity(level) for level in LEVEL_NAMES)]
        if machine is not None:
            row += [p.roof_flops_per_s, _bound(p), p.share_of_roof, "; ".join(p.above) or None]
        rows.append(row)
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
    return Table(title, columns, rows, tuple(notes))


def document(
    placed: Sequence[Placed],
    machine: Machine | None,
    said: Iterable[str],
    compared: Sequence[Compared] = (),
) -> dict[str, Any]:
    """Return all of it as JSON types; bytes, seconds, operations; None is missing."""
    total = sum(p.counted.time_s or 0.0 for p in placed)
    found: dict[str, Any] = {"by": _kind(placed), "warnings": list(said)}
    if machine is not None:
        found["machine"] = {
            "name": machine.name,
            "source": machine.source,
            "peak_flops_per_s": dict(machine.peak_flops_per_s),
            "bandwidth_bytes_per_s": dict(machine.bandwidth_bytes_per_s),
        }
    found[f"{_kind(placed)}s"] = [_entry(p, total) for p in placed]
    if compared:
        found["formulas"] = [_beside(one) for one in compared]
    return found


def _beside(one: Compared) -> dict[str, Any]:
    return {
        "name": one.counted.name,
        "source": one.counted.source or None,
        "batches": one.batches,
        "flops": {"formulas": one.model_flops, "counted": one.flops, "ratio": one.flops_ratio},
        "dram_bytes": {
            "formulas": one.model_dram_bytes,
            "counted": one.bytes_of("dram"),
            "ratio": one.dram_ratio,
        },
        "l2_bytes": one.bytes_of("l2"),
        "because": list(explain(one)),
    }


def _entry(p: Placed, total: float) -> dict[str, Any]:
    one = p.counted
    return {
        "name": one.name,
        "source": one.source or None,
        "launches": one.launches,
        "kernels": list(one.kernels),
        "time_s": one.time_s,
        "time_share": _share(p, total),
        "flops": one.flops,
        "flops_by_type": one.flops_by_unit,
        "flops_per_s": one.flops_per_s,
        "bytes": {level: one.bytes_of(level) for level in LEVELS},
        "dram_read_bytes": one.counts.get(LEVELS["dram"][0]),
        "dram_write_bytes": one.counts.get(LEVELS["dram"][1]),
        "bytes_per_s": {level: one.bytes_per_s(level) for level in LEVELS},
        "intensity_flops_per_byte": {level: one.intensity(level) for level in LEVELS},
        "l2_hit_share": one.l2_hit_share,
        "unit": p.unit,
        "unit_share": p.unit_share,
        "mixed": p.mixed,
        "peak_flops_per_s": p.peak_flops_per_s,
        "ceilings_flops_per_s": p.ceilings_flops_per_s,
        "roof_flops_per_s": p.roof_flops_per_s,
        "bound": p.bound,
        "share_of_roof": p.share_of_roof,
        "above": list(p.above),
        "uncounted": list(one.uncounted),
    }


def _kind(placed: Sequence[Placed]) -> str:
    return placed[0].counted.kind if placed else "kernel"


def _share(p: Placed, total: float) -> float | None:
    return p.counted.time_s / total if p.counted.time_s is not None and total else None


def _unit(p: Placed) -> str | None:
    if p.unit is None or p.unit_share is None:
        return None
    return f"{p.unit} {p.unit_share:.0%}" if p.unit_share < 0.995 else p.unit


def _bound(p: Placed) -> str | None:
    return BOUNDS[p.bound] if p.bound else None


def _mix(one: Counted) -> str:
    found = {unit: n for unit, n in one.flops_by_unit.items() if n}
    total = sum(found.values())
    parts = sorted(found.items(), key=lambda item: -item[1])
    return ", ".join(f"{n / total:.0%} {unit}" for unit, n in parts)
