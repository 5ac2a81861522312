"""A machine's measurement: figures with spread, series by size and shape, and its TOML file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from perfmodel.base.document import Entries, parse_toml, read_table
from perfmodel.base.errors import ModelError
from perfmodel.base.escape import printable
from perfmodel.base.files import write_text
from perfmodel.machines.devices import datasheet, named, published
from perfmodel.machines.machine import (
    KEYS,
    SECTIONS,
    Figure,
    Link,
    Machine,
    figures_of,
)

KINDS: Final = ("copy", "mpi_allreduce", "nccl_allreduce", "step")
MEMORIES: Final = ("pinned", "pageable", "host", "device")
DIRECTIONS: Final = ("h2d", "d2h", "all")
CLOCKS: Final = ("host", "device")
LAYOUTS: Final = ("nn", "nt", "tn")
DTYPES: Final = ("float64", "float32", "tf32", "float16", "bfloat16")
OWN_DTYPES: Final = (*DTYPES, "tf32x3")
"""Those of a program's own kernels, too: three products of TF32 halves for one of float32."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and quartiles of repeats.

    Attributes
    ----------
    median, q1, q3 : float
        In the unit of what was repeated; seconds where nothing else is said.
    repeats : int
    """

    median: float
    q1: float
    q3: float
    repeats: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Return the spread of at least one value."""
        q1, median, q3 = np.quantile(np.asarray(values, float), (0.25, 0.5, 0.75)).tolist()
        return cls(median, q1, q3, len(values))

    def rate(self, amount: float, how: str) -> Figure:
        """Return `amount` per second of these seconds as a figure; the quartiles change places."""
        return Figure(amount / self.median, how, amount / self.q3, amount / self.q1, self.repeats)

    def figure(self, how: str) -> Figure:
        """Return the value itself as a figure."""
        return Figure(self.median, how, self.q1, self.q3, self.repeats)


def _seconds(spreads: Sequence[Spread]) -> tuple[Any, Any, Any, int]:
    """Return medians, first and third quartiles, and the least number of repeats."""
    medians, q1, q3 = zip(*((s.median, s.q1, s.q3) for s in spreads), strict=True)
    return medians, q1, q3, min(s.repeats for s in spreads)


@dataclass(frozen=True, slots=True)
class Series:
    """Seconds by size of one kind of transfer.

    Attributes
    ----------
    kind : {'copy', 'mpi_allreduce', 'nccl_allreduce', 'step'}
        'step': the update of all parameters in one kernel, with the sum over the ranks in it.
    memory : {'pinned', 'pageable', 'host', 'device'}
        Kind of host memory of a copy; where an all-reduce's buffers are.
    direction : {'h2d', 'd2h', 'all'}
        'all' for an all-reduce, in which everyone sends and receives.
    clock : {'host', 'device'}
        'host': one call, until it is done, as the host sees it. 'device': CUDA events around calls
        that were queued together, per call.
    ranks : int
        Ranks that did the same at the same time; the slowest of them counts in every repeat.
    bytes : tuple of int
        Sizes, rising.
    median_s, q1_s, q3_s : tuple of float
        Seconds by size.
    repeats : int
    """

    kind: str
    memory: str
    direction: str
    clock: str
    ranks: int
    bytes: tuple[int, ...]
    median_s: tuple[float, ...]
    q1_s: tuple[float, ...]
    q3_s: tuple[float, ...]
    repeats: int

    @classmethod
    def of(
        cls, kind: str, memory: str, direction: str, clock: str, ranks: int,
        found: Mapping[int, Spread],
    ) -> Series:  # fmt: skip
        """Return a series from the spread at every size."""
        sizes = sorted(found)
        seconds = _seconds([found[size] for size in sizes])
        return cls(kind, memory, direction, clock, ranks, tuple(sizes), *seconds)

    @property
    def best_bytes_per_s(self) -> float:
        """The highest rate at any size."""
        return max(n / t for n, t in zip(self.bytes, self.median_s, strict=True))

    def at(self, i: int) -> Spread:
        """Return the seconds of the i-th size."""
        return Spread(self.median_s[i], self.q1_s[i], self.q3_s[i], self.repeats)

    def line(self) -> Link | None:
        """Fit t = alpha + n beta; the relative errors are made small, so every size counts alike.

        None for less than three sizes, and where the line would have a negative time in it.
        """
        if len(self.bytes) < 3:
            return None
        seconds = np.array(self.median_s)
        rows = np.stack([np.ones(len(seconds)), np.array(self.bytes, float)], axis=1)
        (alpha, beta), *_ = np.linalg.lstsq(rows / seconds[:, None], np.ones(len(seconds)))
        return Link(float(alpha), float(beta)) if alpha >= 0 and beta > 0 else None


@dataclass(frozen=True, slots=True)
class Products:
    """Seconds of GEMMs (m, k) x (k, n) -> (m, n) by shape.

    Attributes
    ----------
    name : str
        What the shapes are: 'square', or a product of the trainer such as 'forward 1'.
    dtype : {'float64', 'float32', 'tf32', 'tf32x3', 'float16', 'bfloat16'}
        'tf32': float32 matrices whose factors are rounded for the tensor cores; 'float32' is IEEE.
    layout : {'nn', 'nt', 'tn'}
        Which factor, the first or the second, is a transposed view of a row-major matrix.
    m, n, k : tuple of int
    median_s, q1_s, q3_s : tuple of float
    repeats : int
    """

    name: str
    dtype: str
    layout: str
    m: tuple[int, ...]
    n: tuple[int, ...]
    k: tuple[int, ...]
    median_s: tuple[float, ...]
    q1_s: tuple[float, ...]
    q3_s: tuple[float, ...]
    repeats: int

    @classmethod
    def of(
        cls, name: str, dtype: str, layout: str, found: Mapping[tuple[int, int, int], Spread]
    ) -> Products:
        """Return products from the spread at every shape (m, n, k)."""
        m, n, k = (tuple(shape[i] for shape in found) for i in range(3))
        return cls(name, dtype, layout, m, n, k, *_seconds(list(found.values())))

    @property
    def flops_per_s(self) -> tuple[float, ...]:
        """2 m n k FLOPs over the seconds, by shape."""
        shapes = zip(self.m, self.n, self.k, self.median_s, strict=True)
        return tuple(2 * m * n * k / t for m, n, k, t in shapes)


@dataclass(frozen=True, slots=True)
class Attention:
    """Seconds of scaled dot product attention under a causal mask by size.

    Attributes
    ----------
    phase : {'forward', 'backward'}
    dtype : {'float64', 'float32', 'tf32', 'float16', 'bfloat16'}
    heads : tuple of int
        Batch times heads.
    length, size : tuple of int
        Queries, as many keys; numbers of a head.
    median_s, q1_s, q3_s : tuple of float
    repeats : int
    """

    phase: str
    dtype: str
    heads: tuple[int, ...]
    length: tuple[int, ...]
    size: tuple[int, ...]
    median_s: tuple[float, ...]
    q1_s: tuple[float, ...]
    q3_s: tuple[float, ...]
    repeats: int

    @classmethod
    def of(cls, phase: str, dtype: str, found: Mapping[tuple[int, int, int], Spread]) -> Attention:
        """Return attention from the spread at every (heads, length, size)."""
        heads, length, size = (tuple(sizes[i] for sizes in found) for i in range(3))
        return cls(phase, dtype, heads, length, size, *_seconds(list(found.values())))


@dataclass(frozen=True, slots=True)
class Found:
    """The result of one part of a measurement.

    Attributes
    ----------
    figures : mapping
        By section of the file and key: ('bandwidth_bytes_per_s', 'hbm').
    """

    figures: Mapping[tuple[str, str], Figure] = field(default_factory=dict)
    series: tuple[Series, ...] = ()
    products: tuple[Products, ...] = ()
    attention: tuple[Attention, ...] = ()


@dataclass(frozen=True, slots=True)
class MachineMeasurement:
    """The empirical ceilings of one machine, and how they were measured.

    Attributes
    ----------
    machine : Machine
        The same as of a datasheet: what is not measured is absent. Its data sheet is beside it.
    gpus, cpus : tuple of str
        Names as the system reports them; without a GPU the ceilings are the CPU's.
    date, command : str
        When (ISO 8601, UTC) and how.
    ranks, cores : int
        MPI ranks, and cores that the first of them may use.
    versions : mapping
        Of Python, the driver, CUDA, CuPy, MPI, NCCL: those there were.
    series, products, attention : tuple
    elapsed_s : mapping
        Seconds by part.
    warnings : tuple of str
        Parts that are missing and why.
    """

    machine: Machine
    gpus: tuple[str, ...]
    cpus: tuple[str, ...]
    date: str
    command: str
    ranks: int
    cores: int
    versions: Mapping[str, str]
    series: tuple[Series, ...] = ()
    products: tuple[Products, ...] = ()
    attention: tuple[Attention, ...] = ()
    elapsed_s: Mapping[str, float] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        sheet = datasheet(self.gpus or self.cpus)
        machine = replace(self.machine, basis="measured", sheet=sheet)
        object.__setattr__(self, "machine", machine)  # frozen


Shape = tuple[int, int, int]
"""m, n, k"""
_INPUTS, _CLASSES = 784, 10
PEAK_OF_PRODUCT: Final = {
    "float64": "float64_tensor", "tf32": "tf32_tensor", "float16": "float16_tensor",
    "bfloat16": "bfloat16_tensor",
}  # fmt: skip
"""Products of these data types run on the tensor cores of a GPU that has them for it."""


@dataclass(frozen=True, slots=True)
class Effort:
    """The extent of a measurement.

    Attributes
    ----------
    repeats : int
    squares, host_squares : tuple of int
        Sizes n of products (n, n) x (n, n), of a GPU and of a CPU.
    hidden, batches, host_hidden, host_batches : tuple of int
        H and B' of the trainer's products, of a GPU and of a CPU: two cores would take minutes for
        a GPU's.
    dram_bytes, host_bytes : int
        One array of the copies in a GPU's memory and in a CPU's.
    copy_bytes, reduce_bytes : tuple of int
        Sizes of copies between host and device, and of all-reduces.
    """

    repeats: int
    squares: tuple[int, ...]
    host_squares: tuple[int, ...]
    hidden: tuple[int, ...]
    batches: tuple[int, ...]
    host_hidden: tuple[int, ...]
    host_batches: tuple[int, ...]
    dram_bytes: int
    host_bytes: int
    copy_bytes: tuple[int, ...]
    reduce_bytes: tuple[int, ...]


FULL: Final = Effort(
    repeats=11,
    squares=(4096, 8192),
    host_squares=(1024, 2048),
    hidden=(64, 100, 128, 200, 256, 300, 500, 512, 700, 1000, 1024, 1300, 1500, 2000, 2048, 2500,
            3000, 3500, 4000, 4096),
    batches=(300, 450, 750, 1000, 1500, 2100, 3000, 4500, 6000, 9000, 12000),
    host_hidden=(64, 256, 1024),
    host_batches=(750, 3000),
    dram_bytes=1 << 30,
    host_bytes=256 << 20,
    copy_bytes=tuple(4**i for i in range(6, 14)),
    reduce_bytes=(40, 256, *(4**i for i in range(5, 14))),
)  # fmt: skip
QUICK: Final = Effort(
    repeats=3,
    squares=(1024,),
    host_squares=(256,),
    hidden=(64,),
    batches=(750, 3000),
    host_hidden=(64,),
    host_batches=(750,),
    dram_bytes=256 << 20,
    host_bytes=32 << 20,
    copy_bytes=(4096, 65536, 1 << 20),
    reduce_bytes=(40, 4096, 65536, 1 << 20),
)


def products_of_the_trainer(
    hidden: Sequence[int], batches: Sequence[int]
) -> Iterator[tuple[str, str, list[Shape]]]:
    """Yield name, layout and shapes of the five products of a step of the MLP.

    With x (B', D), W1 (H, D) and W2 (C, H): z1 = W1 x^T, z2 = W2 a1, d1 = W2^T dz, dW2 = dz a1^T,
    dW1 = d1 x (docs/trainer.md).
    """
    sizes = [(h, b) for h in hidden for b in batches]
    yield "forward 1", "nt", [(h, b, _INPUTS) for h, b in sizes]
    yield "forward 2", "nn", [(_CLASSES, b, h) for h, b in sizes]
    yield "backward 1", "tn", [(h, b, _CLASSES) for h, b in sizes]
    yield "backward 2", "nt", [(_CLASSES, h, b) for h, b in sizes]
    yield "backward 3", "nn", [(h, _INPUTS, b) for h, b in sizes]


def best_product(found: Products, library: str, *, tensor: bool = True) -> Found:
    """Return products with the rate of the best of them as the data type's ceiling."""
    rates = found.flops_per_s
    i = rates.index(max(rates))
    m, n, k = found.m[i], found.n[i], found.k[i]
    seconds = Spread(found.median_s[i], found.q1_s[i], found.q3_s[i], found.repeats)
    best = seconds.rate(2 * m * n * k, f"{library}, {m} x {n} x {k}")
    figures = {("gemm_flops_per_s", found.dtype): best}
    if tensor and found.dtype in PEAK_OF_PRODUCT:
        figures["peak_flops_per_s", PEAK_OF_PRODUCT[found.dtype]] = best
    return Found(figures, products=(found,))


FORMAT: Final = "perfmodel machine"
VERSION: Final = 1
_AGAIN: Final = "measure again"
_CHOICES: Final[Mapping[str, Sequence[str]]] = {
    "kind": KINDS, "memory": MEMORIES, "direction": DIRECTIONS, "clock": CLOCKS,
    "dtype": OWN_DTYPES, "layout": LAYOUTS, "phase": ("forward", "backward"),
}  # fmt: skip


def choose(word: str) -> tuple[Machine, MachineMeasurement | None]:
    """Return the machine of a short name or of a file; with its measurement, if it is one.

    Parameters
    ----------
    word : str
        A name that `perfmodel.machines.devices.named` knows; or the path of a TOML file, of
        `perfmodel machine measure` or of the form of the shipped ones.

    Raises
    ------
    PerfmodelError
        If no machine has this name.
    ModelError
        If the file is none; see `load`.
    """
    path = Path(word)
    if path.suffix != ".toml" and not path.is_file():
        return named(word), None
    where, data = _content(path)
    if {"format", "measured"} & data.keys():
        measurement = parse(data, where)
        return measurement.machine, measurement
    return published(Entries(data, where, _AGAIN)), None


def load(path: Path | str) -> MachineMeasurement:
    """Read a machine that `perfmodel machine measure` wrote.

    Raises
    ------
    ModelError
        If the file cannot be read, is of another version, or a number in it makes no sense: names
        the key, what was expected and what it got.
    """
    where, data = _content(path)
    return parse(data, where)


def _content(path: Path | str) -> tuple[str, dict[str, Any]]:
    """Return the file's name as it is shown, and what it holds."""
    what = "a TOML file that perfmodel machine measure wrote"
    return printable(str(path)), read_table(Path(path), parse_toml, what, _AGAIN)


def parse(data: Mapping[str, Any], where: str) -> MachineMeasurement:
    """Return the measurement that a file's content is, checked; see `load`."""
    top = Entries(data, where, _AGAIN)
    if not {"format", "measured"} & set(data) and any(section in data for section in SECTIONS):
        raise ModelError(
            f"{where}: expected what perfmodel machine measure wrote; got a datasheet, which "
            f"measured nothing; run perfmodel machine measure on such a machine"
        )
    if top.get("format") != FORMAT:
        raise top.wrong("format", repr(FORMAT))
    if top.get("version") != VERSION:
        raise top.wrong("version", VERSION)
    top.only(("format", "version", *KEYS, "measured", "series", "products", "attention"))
    measured = top.table("measured")
    versions = measured.table("versions")
    elapsed = measured.table("elapsed_s")
    return MachineMeasurement(
        machine=Machine.of(top.text("name"), top.text("source"), figures_of(top)),
        gpus=top.texts("gpus"),
        cpus=top.texts("cpus"),
        date=measured.text("date"),
        command=measured.text("command"),
        ranks=measured.whole("ranks"),
        cores=measured.whole("cores"),
        versions={key: versions.text(key) for key in versions},
        series=tuple(_row(Series, entry) for entry in top.tables("series")),
        products=tuple(_row(Products, entry) for entry in top.tables("products")),
        attention=tuple(
            _row(Attention, entry)
            for entry in (top.tables("attention") if "attention" in top else ())
        ),
        elapsed_s={key: elapsed.number(key, least=0.0) for key in elapsed},
        warnings=measured.texts("warnings"),
    )


def _row(kind: type, entry: Entries) -> Any:
    """Return a series or products: every key of its data class, columns of one length."""
    entry.only([one.name for one in fields(kind)])
    values: dict[str, Any] = {}
    count = None
    for one in fields(kind):
        if one.name in _CHOICES:
            values[one.name] = entry.choice(one.name, _CHOICES[one.name])
        elif one.type in ("str", "int"):
            read = entry.text if one.type == "str" else entry.whole
            values[one.name] = read(one.name)
        elif one.type == "tuple[int, ...]":
            values[one.name] = entry.wholes(one.name, count)
            count = len(values[one.name])
        else:
            values[one.name] = entry.numbers(one.name, count)
    sizes = values.get("bytes", ())
    if sorted(set(sizes)) != list(sizes):
        raise entry.wrong("bytes", "sizes that rise")
    quartiles = zip(values["q1_s"], values["median_s"], values["q3_s"], strict=True)
    if not all(low <= t <= high for low, t, high in quartiles):
        raise entry.wrong("median_s", "medians between the quartiles q1_s and q3_s")
    return kind(**values)


def as_text(measurement: MachineMeasurement) -> str:
    """Return what a measurement's file holds; the same one gives the same bytes."""
    return "\n".join(_lines(measurement)) + "\n"


def save(measurement: MachineMeasurement, path: Path) -> None:
    """Write a measurement."""
    write_text(path, as_text(measurement))


def _lines(found: MachineMeasurement) -> Iterator[str]:
    top = {
        "format": FORMAT, "version": VERSION, "name": found.machine.name, "gpus": found.gpus,
        "cpus": found.cpus, "source": found.machine.source,
    }  # fmt: skip
    yield from _pairs(top)
    yield from _table("measured", {
        "date": found.date, "command": found.command, "ranks": found.ranks,
        "cores": found.cores, "warnings": found.warnings,
    })  # fmt: skip
    yield from _table("measured.versions", found.versions)
    yield from _table("measured.elapsed_s", found.elapsed_s)
    for section in SECTIONS:
        kept = {key: f for (of, key), f in found.machine.figures.items() if of == section}
        if kept:
            yield from _table(section, kept)
    for name, entries in (
        ("series", found.series), ("products", found.products), ("attention", found.attention),
    ):  # fmt: skip
        for entry in entries:
            yield f"\n[[{name}]]"
            yield from _pairs({one.name: getattr(entry, one.name) for one in fields(entry)})


def _table(name: str, values: Mapping[str, Any]) -> Iterator[str]:
    yield f"\n[{name}]"
    yield from _pairs(values)


def _pairs(values: Mapping[str, Any]) -> Iterator[str]:
    return (f"{_key(key)} = {_value(value)}" for key, value in values.items())


def _key(key: str) -> str:
    bare = key and key.isascii() and key.replace("_", "").replace("-", "").isalnum()
    return key if bare else _value(key)


def _value(value: Any) -> str:
    if isinstance(value, str):
        # JSON's strings are TOML's, but for DEL; surrogates cannot be written
        text = value.encode("utf-8", "replace").decode()
        return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Figure):
        given = {f.name: getattr(value, f.name) for f in fields(value)}
        kept = ", ".join(f"{k} = {_value(v)}" for k, v in given.items() if v is not None)
        return f"{{ {kept} }}"
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(map(_value, value))}]"
    return repr(value)
