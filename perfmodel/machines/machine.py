"""Machines: the ceilings of a GPU by data type and link, with sources; alpha and beta of links."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import ClassVar, Final, Literal

from perfmodel.base.document import Entries
from perfmodel.base.errors import ModelError

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

TYPES: Final = {
    "float64": "FP64 vector", "float32": "FP32 vector", "float16": "FP16 vector",
    "bfloat16": "BF16 vector", "float64_tensor": "FP64", "float32_tensor": "FP32",
    "tf32_tensor": "TF32", "float16_tensor": "FP16",
    "float16_tensor_float16": "FP16, accumulated in FP16", "bfloat16_tensor": "BF16",
    "float8_tensor": "FP8", "float8_tensor_float16": "FP8, accumulated in FP16",
    "float6_tensor": "FP6", "float4_tensor": "FP4", "int8_tensor": "INT8", "int4_tensor": "INT4",
}  # fmt: skip
"""The keys of peaks, and what a reader calls them: '_tensor' are matrix units, NVIDIA's tensor
cores and AMD's matrix cores, which accumulate in float32 if nothing else is said."""

TENSOR_UNITS: Final = {"float32": "tf32_tensor", "float64": "float64_tensor"}
"""Tensor cores that multiply what a unit without does; TF32 rounds the factors to 10 bits."""

Basis = Literal["data sheet", "measured", "estimate"]


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
class Chip:
    """The parts of a GPU's peaks.

    Attributes
    ----------
    architecture : str
    target : str
        Of compilers: 'sm_90', 'gfx942'.
    multiprocessors : int or None
        NVIDIA's streaming multiprocessors, AMD's compute units.
    boost_clock_hz : float or None
    limited : tuple of str
        Peaks that are below what the architecture does at this clock, as of export versions.
    """

    architecture: str
    target: str
    multiprocessors: int | None = None
    boost_clock_hz: float | None = None
    limited: tuple[str, ...] = ()


def capability(target: str) -> tuple[int, int]:
    """Return the compute capability that reports say of a compiler's target.

    >>> capability("sm_103"), capability("gfx90a")
    ((10, 3), (9, 0))
    """
    if target.startswith("gfx"):
        return int(target[3:-2]), int(target[-2], 16)
    digits = target.removeprefix("sm_")
    return int(digits[:-1]), int(digits[-1])


@dataclass(frozen=True, slots=True)
class Machine:
    """Ceilings of one GPU or CPU; a key that is absent is not known.

    Attributes
    ----------
    peak_flops_per_s : mapping
        By data type and unit, a key of `TYPES`; dense. 'tf32x3_tensor' is a third of TF32's: three
        of its products for one of float32's accuracy; 'tf32x2_tensor' a half, for two.
    bandwidth_bytes_per_s : mapping
        By link: 'hbm', 'l2_read', 'pcie' (per direction), 'nvlink', 'nvlink_c2c' and
        'infinity_fabric' (both directions together); of a CPU 'dram'. What is measured adds its own
        (docs/machines.md).
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
    url : str
        Of the source.
    chip : Chip or None
    basis : {'data sheet', 'measured', 'estimate'}
        Kind of the figures.
    sheet : Machine or None
        The data sheet of a measured machine's device.
    """

    JSON_KEYS: ClassVar[Mapping[str, str]] = {"sheet": "", "sheet_name": "sheet"}

    name: str
    source: str
    peak_flops_per_s: Mapping[str, float]
    bandwidth_bytes_per_s: Mapping[str, float]
    gemm_flops_per_s: Mapping[str, float] = field(default_factory=dict)
    capacity_bytes: Mapping[str, float] = field(default_factory=dict)
    latency_s: Mapping[str, float] = field(default_factory=dict)
    figures: Mapping[tuple[str, str], Figure] = field(default_factory=dict)
    note: str = ""
    url: str = ""
    chip: Chip | None = None
    basis: Basis = "data sheet"
    sheet: Machine | None = None

    @property
    def sheet_name(self) -> str | None:
        """Name of the data sheet of a measured machine's device."""
        return self.sheet.name if self.sheet else None

    @property
    def published(self) -> Machine | None:
        """Return the base of utilization: the data sheet or an estimate, never a measured GEMM."""
        return self.sheet if self.basis == "measured" else self

    def usable_unit(self, dtype: str) -> str | None:
        """Unit whose published peak is that of a data type: matrix units first.

        MFU is of the peak that a program could use, not of the unit that it ran on.

        Parameters
        ----------
        dtype : str
            Of the operands, such as 'bfloat16'.

        Returns
        -------
        str or None
            A key of `published.peak_flops_per_s`; None if none is known.
        """
        peaks = self.published.peak_flops_per_s if self.published else {}
        tensor = f"{dtype}_tensor"
        units = (TENSOR_UNITS.get(dtype, tensor), tensor, dtype)
        return next((unit for unit in units if unit in peaks), None)

    @property
    def peers_bytes_per_s(self) -> float | None:
        """Rate of the links to other GPUs, both directions together."""
        links = self.bandwidth_bytes_per_s
        return links.get("nvlink", links.get("infinity_fabric"))

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
        return cls(
            name,
            source,
            values["peak_flops_per_s"],
            links,
            values["gemm_flops_per_s"],
            values["capacity_bytes"],
            values["latency_s"],
            figures,
            note,
        )


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
