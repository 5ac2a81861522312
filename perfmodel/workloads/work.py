"""Work: FLOPs and bytes of every range, as formulas and as numbers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields
from numbers import Integral
from typing import Any, Final

from perfmodel.base.errors import WorkloadError
from perfmodel.workloads.expression import Expression, Number, sympy_symbol

LARGEST: Final = 2**63 - 1
KEYS: Final = {
    "flops": "flops",
    "pci": "pci_bytes",
    "mpi": "mpi_bytes",
    "dram": "dram_bytes",
    "mpi_message": "mpi_message_bytes",
    "pci_message": "pci_message_bytes",
    "peer": "peer_bytes",
    "peer_message": "peer_message_bytes",
}
"""Names of the fields of `Work` and `Counts` in a table of formulas."""
_ZERO: Final = Expression()


@dataclass(frozen=True, slots=True)
class Counts:
    """Work by the workload's formulas, in numbers, per rank and step.

    Attributes
    ----------
    flops : number
        Floating-point operations; a multiply-add is two.
    pci_bytes, mpi_bytes : number
        Bytes the counting says cross PCIe and the network: they make the arithmetic intensity.
    dram_bytes : number
        Compulsory memory traffic: every operand read once, every result written once.
    mpi_message_bytes : number
        Bytes handed to MPI in the rank's calls: what a report's MPI sizes record.
    pci_message_bytes : number
        Bytes handed to host-device copies: what a report's copies record, whatever the counting
        makes of them.
    peer_bytes, peer_message_bytes : number
        Bytes that cross between GPUs without the host (NVLink where there is one), and bytes
        handed to such a call, NCCL's or a kernel's own.
    """

    flops: Number = 0
    pci_bytes: Number = 0
    mpi_bytes: Number = 0
    dram_bytes: Number = 0
    mpi_message_bytes: Number = 0
    pci_message_bytes: Number = 0
    peer_bytes: Number = 0
    peer_message_bytes: Number = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    @property
    def moved_bytes(self) -> Number:
        """Bytes over all links: PCIe, MPI and from GPU to GPU."""
        return self.pci_bytes + self.mpi_bytes + self.peer_bytes

    @property
    def arithmetic_intensity(self) -> float | None:
        """FLOPs over the links' bytes (document, Question 2.5); None if nothing is moved."""
        return self.flops / self.moved_bytes if self.moved_bytes > 0 else None


@dataclass(frozen=True, slots=True)
class Work:
    """Work of one range (or several added up) per rank and step, as formulas; see `Counts`."""

    flops: Expression = _ZERO
    pci_bytes: Expression = _ZERO
    mpi_bytes: Expression = _ZERO
    dram_bytes: Expression = _ZERO
    mpi_message_bytes: Expression = _ZERO
    pci_message_bytes: Expression = _ZERO
    peer_bytes: Expression = _ZERO
    peer_message_bytes: Expression = _ZERO

    @classmethod
    def parse(
        cls,
        formulas: Mapping[str, str],
        symbols: Collection[str],
        derived: Mapping[str, Expression],
        where: str = "",
    ) -> Work:
        """Parse a range's formulas by key (`KEYS`); keys left out are 0."""
        return cls(
            **{
                KEYS[key]: Expression.parse(text, symbols, derived, f"{where}key '{key}'")
                for key, text in formulas.items()
            }
        )

    def __add__(self, other: Work) -> Work:
        return Work(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def subs(self, values: Mapping[str, Number]) -> Counts:
        """Put numbers for the symbols: exact ints where a count is whole, else floats."""
        return Counts(*(getattr(self, f.name).evaluate(values) for f in fields(self)))

    def moved_bytes(self) -> Expression:
        """Bytes over all links: PCIe, MPI and from GPU to GPU."""
        return self.pci_bytes + self.mpi_bytes + self.peer_bytes

    def arithmetic_intensity(self) -> Expression:
        """FLOPs over the links' bytes (document, Question 2.5), in FLOP/byte.

        Raises
        ------
        WorkloadError
            If the formulas move no bytes at all.
        """
        moved = self.moved_bytes()
        if not moved:
            raise WorkloadError(
                "expected an arithmetic intensity, FLOPs over PCIe and MPI bytes; got no such "
                "bytes in this work; include the ranges that copy or communicate"
            )
        return self.flops / moved


@dataclass(frozen=True, slots=True)
class Symbol:
    """A symbol of the formulas: a positive integer, or one derived from others.

    Attributes
    ----------
    name : str
        As formulas spell it.
    meaning, unit : str
        For people.
    default : int or None
        Taken where no value is given.
    label : str
        As the paper writes it; the name by default.
    definition : Expression or None
        What a derived symbol stands for.
    """

    name: str
    meaning: str = ""
    unit: str = ""
    default: int | None = None
    label: str = ""
    definition: Expression | None = None

    def sympy(self) -> Any:
        """Return the symbol to differentiate by, or a derived symbol's definition."""
        return self.definition.sympy() if self.definition else sympy_symbol(self.name)

    def check(self, value: object) -> int:
        """Return a valid value as an int.

        Raises
        ------
        WorkloadError
            If it is missing, or no whole number from 1 to 2^63 - 1.
        """
        described = f"{self.name} ({self.meaning})" if self.meaning else self.name
        if value is None:
            raise WorkloadError(f"expected a value of {described}; got none; give {self.name}")
        whole = isinstance(value, Integral) and not isinstance(value, bool)
        number = int(value) if isinstance(value, Integral) else 0
        if not whole or not 1 <= number <= LARGEST:
            raise WorkloadError(
                f"expected a whole number from 1 to 2^63 - 1 for {described}; got {value!r}; "
                f"give {self.name} as a positive integer"
            )
        return number


@dataclass(frozen=True, slots=True)
class Workload:
    """The work of one rank in one batch, range by range.

    Attributes
    ----------
    name : str
    counting : {'document', 'full', 'spec'}
        Which rules count the work.
    source : str
        Where the formulas come from.
    batch_range : str
        Name of the NVTX range that is one batch; empty for the trainer's.
    symbols : mapping of str to Symbol
        What the formulas need values for.
    ranges : mapping of str to Work
        Own work of every NVTX range, without that of ranges nested in it.
    derived : mapping of str to Symbol
        Symbols that stand for formulas in `symbols`.
    divisible : tuple of (str, str)
        Pairs (whole, parts): `whole` must be a multiple of `parts`.
    shared : tuple of (str, str)
        Pairs (whole, parts): every part gets some of `whole`, not all as much.
    phases : tuple of str
        Ranges directly inside a batch that together hold all the counted work.
    replay : str
        Range that replays a whole batch as one CUDA graph, empty if there is none.
    """

    name: str
    counting: str
    source: str
    batch_range: str
    symbols: Mapping[str, Symbol]
    ranges: Mapping[str, Work]
    derived: Mapping[str, Symbol] = field(default_factory=dict)
    divisible: tuple[tuple[str, str], ...] = ()
    shared: tuple[tuple[str, str], ...] = ()
    phases: tuple[str, ...] = ()
    replay: str = ""

    def total(self, names: Iterable[str] | None = None) -> Work:
        """Add up the work of the named ranges, of all by default."""
        work = Work()
        for name in self.ranges if names is None else names:
            if name not in self.ranges:
                raise WorkloadError(
                    f"expected ranges of workload '{self.name}'; got '{name}'; take some of: "
                    f"{', '.join(self.ranges)}"
                )
            work += self.ranges[name]
        return work

    def check(self, values: Mapping[str, int]) -> dict[str, int]:
        """Return a valid value for every symbol, defaults filled in.

        Raises
        ------
        WorkloadError
            If a value is missing, unknown, no positive integer, or not divisible as needed.
        """
        unknown = [name for name in values if name not in self.symbols]
        if unknown:
            raise WorkloadError(
                f"expected values of {', '.join(self.symbols)} for workload '{self.name}'; got "
                f"'{unknown[0]}'; leave it out"
            )
        complete = {
            name: symbol.check(values.get(name, symbol.default))
            for name, symbol in self.symbols.items()
        }
        for whole, parts in (*self.divisible, *self.shared):
            value, count = complete[whole], complete[parts]
            if count > value:
                raise WorkloadError(
                    f"expected {parts} of at most {whole}: every rank needs a share; got "
                    f"{whole}={value}, {parts}={count}; take {whole}={count} or more, or a smaller "
                    f"{parts}"
                )
        for whole, parts in self.divisible:
            value, count = complete[whole], complete[parts]
            below = value - value % count
            if below != value:
                nearest = below if value - below <= below + count - value else below + count
                raise WorkloadError(
                    f"expected {whole} divisible by {parts}: every rank takes an equal share; got "
                    f"{whole}={value}, {parts}={count}; take {whole}={nearest}, the nearest"
                )
        return complete

    def evaluate(self, values: Mapping[str, int]) -> dict[str, Counts]:
        """Count every range's own work at these values, per rank and batch.

        Raises
        ------
        WorkloadError
            If a value is wrong (see `check`), or a formula gives no number or a negative one.
        """
        complete = self.check(values)
        counts = {}
        for name, work in self.ranges.items():
            try:
                counts[name] = work.subs(complete)
            except WorkloadError as error:
                raise WorkloadError(f"workload '{self.name}', range '{name}': {error}") from None
            for key, attribute in KEYS.items():
                if getattr(counts[name], attribute) < 0:
                    raise WorkloadError(
                        f"workload '{self.name}', range '{name}', key '{key}': expected a count of "
                        f"at least 0; got {getattr(counts[name], attribute)} from "
                        f"'{getattr(work, attribute).text}'; change the formula or the values"
                    )
        return counts
