"""Machines: the ceilings of a GPU by data type and link, with sources; alpha and beta of links."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Final, Literal

from perfmodel.base.document import Entries
from perfmodel.base.errors import ModelError, PerfmodelError
from perfmodel.base.escape import printable
from perfmodel.base.gpu import Gpu

Collective = Literal["all-reduce", "reduce-scatter", "all-gather", "broadcast"]


@dataclass(frozen=True, slots=True)
class Link:
    """The alpha-beta-gamma model of a message: alpha + n beta, and n gamma to reduce n bytes.

    Attributes
    ----------
    alpha_s : float
        Latency of one message in seconds.
    beta_s_per_byte : float
        Transfer time per byte; one over the bandwidth of one direction.
    gamma_s_per_byte : float
        Time to reduce one byte; 0 where it is part of beta, as in a fit to measured times.
    """

    alpha_s: float
    beta_s_per_byte: float
    gamma_s_per_byte: float = 0.0

    def __post_init__(self) -> None:
        values = (self.alpha_s, self.beta_s_per_byte, self.gamma_s_per_byte)
        if not all(math.isfinite(v) and v >= 0 for v in values):
            raise ModelError(
                f"expected alpha, beta and gamma finite and at least 0; got {values}; give seconds "
                "and seconds per byte"
            )


def bus_bytes_per_s(collective: Collective, size_bytes: float, seconds: float, ranks: int) -> float:
    """Return the bus bandwidth: the rate of the busiest link if no byte is sent twice.

    Source: NVIDIA, nccl-tests, doc/PERFORMANCE.md. n/t times 2 (p-1)/p for all-reduce, (p-1)/p
    for reduce-scatter and all-gather, 1 for broadcast; comparable between numbers of ranks and
    with the hardware's rate.
    """
    if not seconds > 0:
        raise ModelError(f"expected a time above 0 s; got {seconds}; leave unmeasured ones out")
    share = (ranks - 1) / ranks
    scale = {
        "all-reduce": 2 * share, "reduce-scatter": share, "all-gather": share, "broadcast": 1.0,
    }  # fmt: skip
    if collective not in scale:
        raise ModelError(f"expected one of {', '.join(scale)}; got {collective!r}; take one")
    return size_bytes / seconds * scale[collective]


_CORES_PER_SM: Final = {
    (3, 7): 192, (5, 0): 128, (5, 2): 128, (6, 0): 64, (6, 1): 128, (7, 0): 64, (7, 5): 64,
    (8, 0): 64, (8, 6): 128, (8, 9): 128, (9, 0): 128, (10, 0): 128, (12, 0): 128,
}  # fmt: skip
"""FP32 cores per multiprocessor by compute capability (CUDA C++ Programming Guide)."""

_TF32_PRODUCTS: Final = (2, 3)
"""A float32 is two TF32 numbers; the product of their small parts is left out (H. Ootomo,
R. Yokota, Int. J. High Perform. Comput. Appl. 36, 475-491, 2022), and that of a small part with a
factor that TF32 holds exactly, which has none."""


SECTIONS: Final = {
    "peak_flops_per_s": "FLOP/s",
    "gemm_flops_per_s": "FLOP/s",
    "bandwidth_bytes_per_s": "B/s",
    "capacity_bytes": "B",
    "latency_s": "s",
}
"""The tables of figures in a machine's file, and their units."""

KEYS: Final = ("name", "gpus", "cpus", "source", *SECTIONS)
"""The keys of every machine's file."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of a machine with its source; where it was measured, with its spread.

    Attributes
    ----------
    value : float
        In the unit of its section.
    source : str
        A document, or how it was measured.
    q1, q3 : float, optional
        Quartiles of repeated measurements.
    repeats : int, optional
    """

    value: float
    source: str
    q1: float | None = None
    q3: float | None = None
    repeats: int | None = None


@dataclass(frozen=True, slots=True)
class Machine:
    """Ceilings of one GPU or CPU; a key that is absent is not known.

    Attributes
    ----------
    peak_flops_per_s : mapping
        By data type: 'float64', 'float32', 'float16', and on tensor cores 'float64_tensor',
        'tf32_tensor', 'float16_tensor', 'bfloat16_tensor', 'float8_tensor'; dense.
        'tf32x3_tensor' is a third of TF32's: three of its products for one of float32's accuracy;
        'tf32x2_tensor' a half, for two.
    bandwidth_bytes_per_s : mapping
        By link: 'hbm', 'l2_read', 'pcie' (per direction), 'nvlink' (both directions together); of
        a CPU 'dram'. What is measured adds its own (docs/machines.md).
    source : str
        Where the figures come from, where they do not say it themselves.
    gemm_flops_per_s : mapping
        By data type: what the best GEMM reaches; measured only.
    capacity_bytes : mapping
        'hbm' or 'dram', 'l2'.
    latency_s : mapping
        'launch' and others; measured only.
    figures : mapping
        Every number by section and key, with its own source and spread.
    note : str
        What a reader must know of all of them.
    """

    name: str
    source: str
    peak_flops_per_s: Mapping[str, float]
    bandwidth_bytes_per_s: Mapping[str, float]
    gemm_flops_per_s: Mapping[str, float] = field(default_factory=dict)
    capacity_bytes: Mapping[str, float] = field(default_factory=dict)
    latency_s: Mapping[str, float] = field(default_factory=dict)
    figures: Mapping[tuple[str, str], Figure] = field(default_factory=dict)
    note: str = ""

    @classmethod
    def of(
        cls, name: str, source: str, figures: Mapping[tuple[str, str], Figure], note: str = ""
    ) -> Machine:
        """Return the machine that has these figures, by section and key."""
        values: dict[str, dict[str, float]] = {section: {} for section in SECTIONS}
        for (section, key), figure in figures.items():
            values[section][key] = figure.value
        if tensor := values["peak_flops_per_s"].get("tf32_tensor"):
            split = {f"tf32x{n}_tensor": tensor / n for n in _TF32_PRODUCTS}
            values["peak_flops_per_s"] |= split
        links = values["bandwidth_bytes_per_s"]
        pinned = [links[key] for key in ("pcie_h2d", "pcie_d2h") if key in links]
        if pinned:  # measured each way; a datasheet has one figure for both
            links.setdefault("pcie", max(pinned))
        return cls(name, source, figures=figures, note=note, **values)


def find(gpu: Gpu) -> Machine:
    """Return the ceilings of a report's GPU.

    A known GPU has its datasheet's; for another, the FP32 peak follows from the report's own
    multiprocessors, clock and compute capability (2 FLOP per core and cycle) and its memory
    bandwidth is the report's.
    """
    machine = datasheet((gpu.name,))
    if machine is not None:
        return machine
    peaks: dict[str, float] = {}
    cores = _CORES_PER_SM.get(gpu.compute_capability) if gpu.compute_capability else None
    if cores and gpu.sm_count and gpu.clock_hz:
        peaks["float32"] = 2.0 * cores * gpu.sm_count * gpu.clock_hz
    links: dict[str, float] = {}
    if gpu.memory_bandwidth_bytes_per_s:
        links["hbm"] = float(gpu.memory_bandwidth_bytes_per_s)
    return Machine(gpu.name, "derived from the report's TARGET_INFO_GPU", peaks, links)


def known() -> tuple[Machine, ...]:
    """Return every machine perfmodel ships, by name."""
    return tuple(machine for _, machine in shipped())


def shipped() -> tuple[tuple[str, Machine], ...]:
    """Return every machine perfmodel ships with its short name, such as 'h200', by full name."""
    found = ((entry.stem, entry.machine) for entry in _table())
    return tuple(sorted(found, key=lambda pair: pair[1].name))


def datasheet(devices: Iterable[str]) -> Machine | None:
    """Return the shipped machine of a GPU or CPU that the system reports by one of these names."""
    wanted = set(devices)
    return next((entry.machine for entry in _table() if wanted & entry.devices), None)


def named(name: str) -> Machine:
    """Return the shipped machine of a name, such as 'h200' or 'NVIDIA H200 SXM', or a part of one.

    The system's own name of a GPU or CPU is one, too: 'NVIDIA A100-SXM4-40GB'.

    Raises
    ------
    PerfmodelError
        If there is none of that name, or several.
    """
    asked = name.strip().casefold()
    exact = [e for e in _table() if asked in e.names]
    found = exact or [e for e in _table() if asked and asked in e.machine.name.casefold()]
    if len(found) == 1:
        return found[0].machine
    choices = sorted(entry.stem for entry in found or _table())
    raise PerfmodelError(
        f"expected one of the machines {', '.join(choices)}, or a TOML file of one (perfmodel "
        f"machine measure writes it); got {printable(name)!r}; see perfmodel machine list"
    )


@dataclass(frozen=True, slots=True)
class _Entry:
    stem: str
    devices: frozenset[str]
    machine: Machine

    @property
    def names(self) -> frozenset[str]:
        return frozenset(n.casefold() for n in (self.stem, self.machine.name, *self.devices))


@cache
def _table() -> tuple[_Entry, ...]:
    table = []
    for file in Path(__file__).parent.iterdir():
        if file.name.endswith(".toml"):
            content = tomllib.loads(file.read_text(encoding="utf-8"))
            top = Entries(content, file.name, "install perfmodel again")
            devices = frozenset((*top.texts("gpus"), *(top.texts("cpus") if "cpus" in top else ())))
            table.append(_Entry(file.name.removesuffix(".toml"), devices, published(top)))
    return tuple(table)


def published(top: Entries) -> Machine:
    """Return the machine of a file that has figures and sources, and no measurement."""
    top.only((*KEYS, "note"))
    note = top.text("note") if "note" in top else ""
    return Machine.of(top.text("name"), top.text("source"), figures_of(top), note)


def figures_of(top: Entries) -> dict[tuple[str, str], Figure]:
    """Return the figures of every section that a file has, checked."""
    source = top.text("source")
    tables = [(section, top.table(section)) for section in SECTIONS if section in top]
    return {(section, key): _figure(table, key, source) for section, table in tables
            for key in table}  # fmt: skip


def _figure(section: Entries, key: str, source: str) -> Figure:
    """Return a figure: a number, or a table where it has a source or spread of its own."""
    if not isinstance(section.get(key), Mapping):
        return Figure(section.number(key), source)
    given = section.table(key)
    given.only([one.name for one in fields(Figure)])
    value = given.number("value")
    q1, q3 = (given.number(q) if q in given else None for q in ("q1", "q3"))
    if not (value if q1 is None else q1) <= value <= (value if q3 is None else q3):
        raise given.wrong("value", "a value between its quartiles q1 and q3")
    repeats = given.whole("repeats") if "repeats" in given else None
    return Figure(value, given.text("source") if "source" in given else source, q1, q3, repeats)
