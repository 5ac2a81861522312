"""The optimization ladder as it was timed: benchmarks/results/ladder.json.xz as rows and steps."""

from __future__ import annotations

import json
import lzma
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from perfmodel.base.errors import ReportError
from perfmodel.base.escape import printable
from perfmodel.base.table import Column, Table
from perfmodel.models.launches import another, limits

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CHAIN: Final = (
    "document", "pinned", "host-flat", "prefetch", "resident", "nccl", "graph", "thin",
    "fused x3", "peer x3",
)  # fmt: skip
"""Versions of the trainer from the program of the CME 213 assignment to the fastest one."""


@dataclass(frozen=True, slots=True)
class Timed:
    """One implementation at one size on one number of GPUs, without a profiler.

    Attributes
    ----------
    name : str
        The version of the trainer, or the PyTorch program.
    ranks, hidden, batch : int
        p, H, B.
    dtype : str
        'fp32' or 'tf32'.
    own : bool
        A version of the trainer; else PyTorch.
    median_s : float or None
        Seconds of a batch, the median of its launches; None where it could not be timed.
    launches : dict
        Seconds of each launch, by its name.
    launch_sd : float
        Standard deviation of the logarithm between launches, as assumed of fewer than three.
    valid : bool
        Whether it trained as the reference does.
    floor_s : float or None
        Lower bound by the machine's measured ceilings.
    peer, peer_s : str or None, float or None
        The fastest whole-graph PyTorch beside it.
    warning : str
        Why it should be timed again; empty if it need not.
    """

    name: str
    ranks: int
    hidden: int
    batch: int
    dtype: str
    own: bool
    median_s: float | None
    launches: Mapping[str, float]
    launch_sd: float
    valid: bool
    floor_s: float | None
    peer: str | None
    peer_s: float | None
    warning: str

    @property
    def sound(self) -> bool:
        """Whether it was timed and computed the right thing."""
        return self.valid and bool(self.median_s)


@dataclass(frozen=True, slots=True)
class Gain:
    """One version after another at one size: times, their ratio, and its interval.

    The ratio is the median of those within launches that timed both; another launch's lies between
    `low` and `high` with 95 % (`perfmodel.models.launches.another`). None where none timed both.
    """

    before: Timed | None
    after: Timed | None
    ratio: float | None
    low: float | None
    high: float | None

    @property
    def verdict(self) -> str:
        """'faster', 'slower', or what else there is to say."""
        if self.low is None or self.high is None:
            return "not timed"
        return "faster" if self.low > 1 else "slower" if self.high < 1 else "within noise"


@dataclass(frozen=True, slots=True)
class Ladder:
    """All rows of the file."""

    rows: tuple[Timed, ...]

    def find(self, name: str, ranks: int, hidden: int, batch: int) -> Timed | None:
        """Return a sound row in fp32, or None."""
        wanted = (name, ranks, hidden, batch, "fp32")
        found = (r for r in self.rows if (r.name, r.ranks, r.hidden, r.batch, r.dtype) == wanted)
        return next((r for r in found if r.sound), None)

    def versions(self, ranks: int, hidden: int, batch: int) -> tuple[Timed, ...]:
        """Return the sound versions of one size in fp32, that of the assignment first."""
        wanted = (ranks, hidden, batch, "fp32")
        return tuple(
            r for r in self.rows
            if r.own and r.sound and (r.ranks, r.hidden, r.batch, r.dtype) == wanted
        )  # fmt: skip

    def best(self, ranks: int, hidden: int, batch: int) -> Timed:
        """Return the fastest sound version.

        Raises
        ------
        ReportError
            If none was timed.
        """
        found = self.versions(ranks, hidden, batch)
        if not found:
            raise ReportError(
                f"expected versions at p={ranks} H={hidden} B={batch} fp32; got none timed; run "
                f"mpirun -n {ranks} python -m benchmarks.ladder"
            )
        return min(found, key=lambda r: r.median_s or math.inf)

    def warnings(self, rows: Sequence[Timed | None]) -> tuple[str, ...]:
        """Return why some of the rows should be timed again, each reason once."""
        return tuple(dict.fromkeys(r.warning for r in rows if r is not None and r.warning))


def read_ladder(path: Path) -> Ladder:
    """Read what benchmarks.ladder wrote.

    Raises
    ------
    ReportError
        If the file cannot be read, or is something else.
    """
    try:
        packed = path.suffix == ".xz"
        text = lzma.decompress(path.read_bytes()).decode() if packed else path.read_text("utf-8")
        read = json.loads(text)
        rows = sorted(read["rows"], key=lambda r: (r["kind"] != "rung", r["place"]))
        return Ladder(tuple(_timed(row, read.get("notes", ())) for row in rows))
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        EOFError,
        lzma.LZMAError,
    ) as error:
        raise ReportError(
            f"{printable(path.name)}: expected the results of benchmarks.ladder; got a file "
            f"without them ({type(error).__name__}: {printable(str(error))[:80]}); run it again"
        ) from None


def gain(before: Timed | None, after: Timed | None) -> Gain:
    """Set one row against another of the same size."""
    if before is None or after is None:
        return Gain(before, after, None, None, None)
    ratios = [
        seconds / after.launches[name]
        for name, seconds in before.launches.items()
        if name in after.launches
    ]
    if not ratios:
        return Gain(before, after, None, None, None)
    sd = math.hypot(before.launch_sd, after.launch_sd)
    mean, width = another([math.log(ratio) for ratio in ratios], sd)
    low, high = limits(math.exp(mean), width)
    return Gain(before, after, statistics.median(ratios), low, high)


def gains_table(
    found: Ladder, hidden: int, batch: int, *, chain: Sequence[str] = CHAIN,
    ranks: Sequence[int] = (1, 2, 4),
) -> Table:  # fmt: skip
    """Return a row per step of the chain: the batch after it and its gain, by number of GPUs.

    A version that was not timed is left out; the next one is then compared with the version
    before it.
    """
    columns = [Column("version", "version")]
    for p in ranks:
        gpus = f"{p} GPU{'s' * (p > 1)}"
        columns += [
            Column(f"p{p}_s", gpus, "si", "s"),
            Column(f"p{p}_gain", f"gain, {gpus}", align="right"),
        ]
    last: dict[int, Timed] = {}
    rows: list[tuple[object, ...]] = []
    seen: list[Timed] = []
    for name in chain:
        cells: list[object] = [name]
        for p in ranks:
            row = found.find(name, p, hidden, batch)
            cells += [row and row.median_s, _said(gain(last.get(p), row))]
            if row is not None:
                last[p] = row
                seen.append(row)
        rows.append(tuple(cells))
    notes = (
        "gain: time of the version before over this one in the same launch, in brackets where "
        "another launch's lies with 95 %; = where these include 1",
        *(f"to be timed again: {said}" for said in found.warnings(seen)),
    )
    return Table(f"H={hidden} B={batch} fp32, without a profiler", tuple(columns), rows, notes)


def draw_ladder(
    found: Ladder, axes: Sequence[Axes], hidden: int, batch: int, *,
    names: Sequence[str] = (),
) -> tuple[Axes, ...]:  # fmt: skip
    """Draw the versions of one size, an axes for every number of GPUs; all of them by default."""
    from perfmodel.render.plot.bars import Dot, dots
    from perfmodel.render.plot.style import Measure, legend_over

    timed = {
        p: [r for r in found.versions(p, hidden, batch) if not names or r.name in names]
        for p in (1, 2, 4)
    }
    shown = list(dict.fromkeys(r.name for rows in timed.values() for r in rows))
    time, kind = Measure("Time of a batch", "s", "log"), "time of a batch"
    for i, (ax, (p, rows)) in enumerate(zip(axes, timed.items(), strict=True)):
        floors = {r.name: r.floor_s for r in rows if r.floor_s}
        peer_s = next((r.peer_s for r in rows if r.peer_s), None)
        dots([Dot(r.name, kind, r.median_s or 0.0) for r in rows], time, names=shown, written=kind,
             limits=("lower bound by measured ceilings", floors), named=i == 0,
             levels={"best whole-graph PyTorch": peer_s} if peer_s else {},
             legend=False, ax=ax, title=f"{p} GPU{'s' * (p > 1)}")  # fmt: skip
    ends = [end for ax in axes for end in ax.get_xlim()]
    for ax in axes:
        ax.set_xlim(min(ends), max(ends))
    legend_over(axes)
    return tuple(axes)


def _said(found: Gain) -> str | None:
    """Write a gain with its interval."""
    if found.ratio is None:
        return None
    same = " =" if found.verdict == "within noise" else ""
    return f"{found.ratio:.2f} [{found.low:.2f}, {found.high:.2f}]{same}"


def _timed(row: Mapping[str, Any], notes: Sequence[Mapping[str, Any]]) -> Timed:
    return Timed(
        name=row["rung"], ranks=row["p"], hidden=row["H"], batch=row["B"], dtype=row["dtype"],
        own=row["kind"] == "rung", median_s=row["median_s"],
        launches={each["run"]: each["median_s"] for each in row["launches"]},
        launch_sd=row["launch_sd"], valid=bool(row["valid"]),
        floor_s=row.get("floor_s"), peer=row.get("peer"), peer_s=row.get("peer_median_s"),
        warning="; ".join(n["text"] for n in notes if _about(n, row)),
    )  # fmt: skip


def _about(note: Mapping[str, Any], row: Mapping[str, Any]) -> bool:
    """Whether a note of the file is about a row."""
    return (
        row["rung"] in note["rungs"]
        and row.get("run") in note["runs"]
        and row["H"] in note.get("H", (row["H"],))
        and row["dtype"] in note.get("dtype", (row["dtype"],))
    )
