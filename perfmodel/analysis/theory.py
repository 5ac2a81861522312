"""What a workload's formulas say of every range beside what was counted, and why they differ."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from statistics import multimode
from typing import Final

from perfmodel.analysis.counted import Counted
from perfmodel.analysis.metrics import SCALAR, TENSOR
from perfmodel.base.errors import WorkloadError
from perfmodel.base.table import Column, Table
from perfmodel.programs.mlp.mlp import mlp
from perfmodel.readers.ncu import Launch
from perfmodel.workloads import Workload

_CLOSE: Final = 0.03
"""Counts that differ by less are called equal."""

_PADDING: Final = 0.25
"""Tiles of 128 by 128 stick out of a product of the trainer by less than this."""

_SMALL: Final = 0.05
_FAR: Final = 1.75
"""The largest product of other sizes than were given: tiles add less, but to narrow matrices."""
_CHECK: Final = (
    "formulas and counters of the largest product are far apart: check that the sizes, --ranks, "
    "--dtype and --batches are those of the run that was counted"
)
_COLLECT: Final = "collect sm__ops_path_tensor_src_*"
_SPLITS: Final = (3, 2)
"""Products of TF32 for one of float32; two where one factor is TF32 already."""

_OWN: Final = "gemm"
"""The trainer's kernel that multiplies, adds the bias and applies the sigmoid."""


@dataclass(frozen=True, slots=True)
class Compared:
    """One range and batch: formulas beside counters; None was not counted.

    Attributes
    ----------
    counted : Counted
        Of all `batches` together.
    batches : int
    model_flops, model_dram_bytes : float
        What the formulas say of one batch: every operand read once, every result written once.
    split : bool
        Whether the run multiplies float32 as products of TF32 numbers (tf32x3).
    """

    counted: Counted
    batches: int
    model_flops: float
    model_dram_bytes: float
    split: bool = False

    @property
    def flops(self) -> float | None:
        """Operations per batch that were counted."""
        return self._per_batch(self.counted.flops)

    def bytes_of(self, level: str) -> float | None:
        """Bytes of a level per batch that were counted."""
        return self._per_batch(self.counted.bytes_of(level))

    @property
    def flops_ratio(self) -> float | None:
        """Counted operations over the formulas'."""
        return _over(self.flops, self.model_flops)

    @property
    def dram_ratio(self) -> float | None:
        """Counted bytes of DRAM over the formulas'."""
        return _over(self.bytes_of("dram"), self.model_dram_bytes)

    def _per_batch(self, value: float | None) -> float | None:
        return None if value is None else value / self.batches


def batches_of(launches: Sequence[Launch], batch_range: str) -> int:
    """Infer how many batches were counted.

    Where a batch has several phases (the ranges right inside it), it is how often most of them
    began anew. Else it is the greatest common divisor of how often every kernel ran in every range,
    which is too large if no kernel runs once per batch.
    """
    inside = [one for one in launches if batch_range in one.ranges]
    phases = [one.ranges[one.ranges.index(batch_range) + 1 :][:1] for one in inside]
    begun = Counter(phase for phase, _ in groupby(phases) if phase)
    if len(begun) > 1:
        return min(multimode(begun.values()))
    counted = inside or list(launches)
    return math.gcd(*Counter((one.ranges, one.kernel) for one in counted).values())


def as_counted(workload: Workload | None, ranges: Sequence[Counted]) -> Workload:
    """Return the workload, by default the MLP with the ranges that were counted.

    The counters bring no configuration: where 'forward GEMM 2' is missing the trainer ran
    ``--gemm fused``, in which cuBLAS multiplies TF32 and has no sigmoid inside (docs/trainer.md).
    """
    if workload is not None:
        return workload
    found = {one.name: one for one in ranges}
    first = found.get("forward GEMM 1")
    if first is None or "forward GEMM 2" in found or "forward" not in found:
        return mlp()
    return mlp(fused="all" if _OWN in first.kernels else "products")


def compare(
    ranges: Sequence[Counted], workload: Workload, values: Mapping[str, int], batches: int
) -> tuple[Compared, ...]:
    """Set the ranges that have formulas beside these.

    Parameters
    ----------
    ranges : sequence of Counted
        Of one run, by innermost range, in every one its own kernels only.
    values : mapping of str to int
        The workload's symbols; the counters are of one rank.

    Raises
    ------
    WorkloadError
        If a value is missing or wrong, or no range has a formula.
    """
    counts = workload.evaluate(values)
    found = tuple(
        Compared(one, batches, float(counts[one.name].flops), float(counts[one.name].dram_bytes))
        for one in ranges
        if one.name in counts
    )
    if not found:
        raise WorkloadError(
            f"wanted ranges of workload '{workload.name}' ({', '.join(counts)}); found "
            f"{', '.join(one.name for one in ranges)}; collect with ncu --nvtx, or give --workload"
        )
    # the largest product has tiles to spare: what is twice or three times its work is split TF32
    largest = max(found, key=lambda one: one.model_flops)
    split = bool(_tensor(largest)) and (largest.flops_ratio or 0.0) > _SPLITS[-1] - _SMALL
    return tuple(replace(one, split=split) for one in found)


def explain(one: Compared) -> tuple[str, ...]:
    """Say in words why counters and formulas differ."""
    return tuple(filter(None, (*_of_flops(one), *_of_bytes(one))))


def warnings(compared: Sequence[Compared]) -> tuple[str, ...]:
    """Say where tensor cores were not counted, and which files were given sizes that do not fit."""
    blind = [
        f"{one.counted.label}: {said}"
        for one in compared
        for said in explain(one)
        if said.endswith(_COLLECT)
    ]
    return (*blind, *(f"{one.counted.label}: {_CHECK}" for one in _unlike(compared)))


def _unlike(compared: Sequence[Compared]) -> Iterator[Compared]:
    """The largest product of every file whose operations are not those of the sizes given."""
    files: dict[str, list[Compared]] = {}
    for one in compared:
        files.setdefault(one.counted.source, []).append(one)
    for ranges in files.values():
        one = max(ranges, key=lambda each: each.model_flops)
        ratio = one.flops_ratio
        blind = _tensor(one) is None or one.split
        if ratio and not blind and not 1 - _CLOSE <= ratio <= _FAR:
            yield one


def table(compared: Sequence[Compared]) -> Table:
    """Formulas beside counters, per batch."""
    columns = (
        Column("name", "Range"),
        Column("model_flops", "FLOPs, formulas", "si", "FLOP", digits=4),
        Column("flops", "counted", "si", "FLOP", digits=4),
        Column("flops_ratio", "ratio", "float", digits=4),
        Column("model_dram_bytes", "DRAM, formulas", "si", "B"),
        Column("dram_bytes", "counted", "si", "B"),
        Column("dram_ratio", "ratio", "float", digits=2),
        Column("l2_bytes", "L2, counted", "si", "B"),
    )
    rows = [
        (c.counted.label, c.model_flops, c.flops, c.flops_ratio, c.model_dram_bytes,
         c.bytes_of("dram"), c.dram_ratio, c.bytes_of("l2"))
        for c in compared
    ]  # fmt: skip
    batches = {c.counted.source: c.batches for c in compared}
    said = ", ".join(f"{n} of {file}" if file else str(n) for file, n in batches.items())
    notes = tuple(f"{c.counted.label}: {word}" for c in compared for word in explain(c))
    return Table(f"Formulas and counters, per batch (counted: {said})", columns, rows, notes)


def _of_flops(one: Compared) -> tuple[str, ...]:
    ratio, units = one.flops_ratio, one.counted.flops_by_unit
    tensor, scalar = _tensor(one), _sum(units[unit] for unit in SCALAR)
    if ratio is None:
        return ("",)
    if tensor is None and ratio < 1 - _CLOSE:
        return (
            f"scalar units did {ratio:.1%} of the operations, and those of tensor cores were not "
            f"counted: {_COLLECT}",
        )
    said = []
    if tensor and scalar is not None and scalar < _SMALL * tensor:
        alone = scalar / one.batches / one.model_flops
        said.append(
            f"tensor cores did {tensor / (tensor + scalar):.1%} of the operations; instructions of "
            f"scalar units alone would say {alone:.1%} of the formulas'"
        )
    products = next((n for n in _SPLITS if ratio >= n), 1) if tensor and one.split else 1
    if products > 1:
        said.append(
            f"{products} products of TF32 numbers stand for one of float32 (tf32x3); of a run "
            f"without tf32x3 the sizes given are too small"
        )
    extra = ratio / products - 1
    if abs(extra) < 1e-6:
        said.append("as many operations as the formulas count")
    elif 0 < extra <= _PADDING:
        said.append(
            f"{extra:.2%} more operations than needed: tiles that stick out of the matrices are "
            f"computed whole"
        )
    elif extra > _PADDING and (tensor or any("gemm" in name for name in one.counted.kernels)):
        said.append(
            f"{ratio / products:.2f} times the operations needed: a matrix is narrower than the "
            f"tiles, or than a cluster of them, and these are computed whole"
        )
    elif extra > _PADDING:
        said.append(
            f"{ratio:.2f} times the formulas' operations: exp and division are several "
            f"instructions each, which the formulas count as one operation"
        )
    elif extra < -_CLOSE:
        said.append(
            f"{-extra:.1%} fewer operations than the formulas count: other sizes, or kernels "
            f"outside this range"
        )
    return tuple(said)


def _of_bytes(one: Compared) -> tuple[str, ...]:
    said = []
    ratio, dram, l2 = one.dram_ratio, one.bytes_of("dram"), one.bytes_of("l2")
    if ratio is not None and ratio < 1 - _SMALL:
        said.append(
            f"DRAM moved {1 - ratio:.0%} less than operands and results are: results stay in L2 "
            f"until they are pushed out"
        )
    if ratio is not None and ratio > 1 + _SMALL:
        said.append(
            f"DRAM moved {ratio:.2f} times the bytes of operands and results: some are read again"
        )
    if dram and l2 and l2 > (1 + _PADDING) * dram:
        said.append(f"L2 moved {l2 / dram:.1f} times DRAM's bytes: blocks read operands again")
    return tuple(said)


def _tensor(one: Compared) -> float | None:
    return _sum(one.counted.flops_of(unit) for unit in TENSOR)


def _sum(values: Iterable[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) if known else None


def _over(counted: float | None, model: float) -> float | None:
    return counted / model if counted is not None and model else None
