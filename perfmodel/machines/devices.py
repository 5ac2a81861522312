"""Devices: published figures of GPUs and CPUs, a file each; which of them a report ran on.

`devices/` has the files, of one form that `published` checks; `architectures.toml` has what a
multiprocessor does per clock, by which a GPU that no file describes is estimated.
"""

from __future__ import annotations

import re
import statistics
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any, Final

from perfmodel.base.document import Entries
from perfmodel.base.errors import PerfmodelError
from perfmodel.base.escape import printable
from perfmodel.base.gpu import Gpu
from perfmodel.base.units import si
from perfmodel.machines.machine import KEYS, TYPES, Chip, Figure, Machine, capability, figures_of

_AGAIN: Final = "install perfmodel again"

_RESERVED: Final = 0.10
"""Share of a memory that a report may lack: ECC on GDDR6 takes 1/16, the driver 1 to 2 %."""

_EQUAL: Final = 0.01
"""Figures of two data sheets that differ by less are equal but for rounding."""

_AMD: Final = re.compile(r"\b(?:amd|radeon|instinct)\b|gfx", re.IGNORECASE)
_GFX: Final = re.compile(r"gfx[0-9a-f]{3,4}", re.IGNORECASE)
_GFX_ON: Final = re.compile(r"[\s(]*gfx[0-9a-f].*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Device:
    """A machine of a file, with the names that reports call it by.

    Attributes
    ----------
    stem : str
        The file's name: 'h200'.
    names : tuple of str
        As reports write them; several devices may share one.
    machine : Machine
    """

    stem: str
    names: tuple[str, ...]
    machine: Machine

    def calls(self) -> frozenset[str]:
        """Return all that a user or a report may call it, as `_plain` writes names."""
        return frozenset(map(_plain, (self.stem, self.machine.name, *self.names)))

    def whole(self, gpu: Gpu) -> bool:
        """Whether the GPU has as many multiprocessors: a part of a device has fewer."""
        chip = self.machine.chip
        return not (chip and chip.multiprocessors and gpu.sm_count) or (
            chip.multiprocessors == gpu.sm_count
        )

    def like(self, gpu: Gpu) -> bool:
        """Whether all that the report says of the GPU is so of this device."""
        chip, memory = self.machine.chip, self.machine.capacity_bytes.get("hbm")
        if chip is None or not self.whole(gpu):
            return False
        gfx = _GFX.search(gpu.name)
        if gfx and gfx[0].casefold() != chip.target:
            return False
        if gpu.compute_capability and gpu.compute_capability != capability(chip.target):
            return False
        size = gpu.memory_bytes
        return not (memory and size) or 1 - _RESERVED <= size / memory <= 1 + _EQUAL


@dataclass(frozen=True, slots=True)
class Identified:
    """The machine that a report's GPU is.

    Attributes
    ----------
    machine : Machine
    said : str
        What a reader must know of it where the name alone does not say it; otherwise ''.
    """

    machine: Machine
    said: str = ""


@dataclass(frozen=True, slots=True)
class Architecture:
    """Operations per clock of a multiprocessor of GPUs of some targets.

    Attributes
    ----------
    name : str
    targets : tuple of str
        Of compilers: 'sm_90', 'gfx942'.
    source : str
    operations_per_clock : mapping
        By key of a machine's peaks; a multiply-add is two.
    named : mapping
        What devices do otherwise whose names have a word.
    """

    name: str
    targets: tuple[str, ...]
    source: str
    operations_per_clock: Mapping[str, float]
    named: Mapping[str, Mapping[str, float]]

    def rates(self, name: str) -> dict[str, float]:
        """Return the operations per clock of a device of a name; what it has no unit for is not."""
        words = set(re.findall(r"\w+", name.casefold()))
        found = dict(self.operations_per_clock)
        for word, other in self.named.items():
            if word.casefold() in words:
                found |= other
        return {key: rate for key, rate in found.items() if rate}


def find(gpu: Gpu) -> Machine:
    """Return the ceilings of a report's GPU; see `identify`."""
    return identify(gpu).machine


def identify(gpu: Gpu) -> Identified:
    """Return the device that a report's GPU is, or an estimate of its ceilings.

    The name decides. Where several devices have it, or it is none, such as '' or 'AMD Radeon
    Graphics', the number of multiprocessors, the compute capability and the memory do. Devices
    that are left give the figures on which their data sheets agree.
    """
    called = [device for device in _of_names((gpu.name,)) if device.whole(gpu)]
    if len(called) == 1:
        return Identified(called[0].machine)
    generic = _plain(_GFX_ON.sub("", gpu.name)) in _generic()
    described = bool(gpu.sm_count and (gpu.memory_bytes or gpu.compute_capability))
    asked = called or (devices() if generic and described else ())
    fitting = [device.machine for device in asked if device.like(gpu)]
    if fitting:
        machine = _common(fitting)
        said = "" if called and len(fitting) == 1 else (
            f"{_said_name(gpu)}; {_properties(gpu)} are those of {machine.name}, whose data sheet "
            f"is taken"
        )  # fmt: skip
        return Identified(machine, said)
    return _estimated(gpu)


def _said_name(gpu: Gpu) -> str:
    if _plain(gpu.name) in ("", "unnamed gpu"):
        return "the report does not name its GPU"
    return f"the report calls its GPU {printable(gpu.name)!r}"


def _properties(gpu: Gpu) -> str:
    """Say what is known of a GPU besides its name."""
    said = []
    if gpu.sm_count:
        said.append(f"{gpu.sm_count} multiprocessors")
    if gpu.compute_capability:
        said.append(f"compute capability {'.'.join(map(str, gpu.compute_capability))}")
    if gpu.memory_bytes:
        said.append(f"{si(gpu.memory_bytes, 'B')} of memory")
    return ", ".join(said)


def _common(machines: Sequence[Machine]) -> Machine:
    """Return one of several machines that a GPU may be: with the figures that all have alike."""
    first, *others = machines
    if not others:
        return first
    figures = {
        where: figure for where, figure in first.figures.items()
        if all(where in m.figures
               and abs(m.figures[where].value / figure.value - 1) < _EQUAL for m in others)
    }  # fmt: skip
    common = Machine.of(
        " or ".join(m.name for m in machines), "; ".join(m.source for m in machines), figures
    )
    return replace(common, chip=first.chip)


def _estimated(gpu: Gpu) -> Identified:
    """Return a GPU's peaks by its architecture: multiprocessors x operations per clock x clock."""
    figures: dict[tuple[str, str], Figure] = {}
    found = _architecture(gpu)
    clock, of_clock = gpu.clock_hz, ""
    if found and not clock:
        chips = [m.chip for m in known() if m.chip and m.chip.target in found.targets]
        usual = [chip.boost_clock_hz for chip in chips if chip.boost_clock_hz]
        clock = int(statistics.median(usual)) if usual else None
        of_clock = ", the median boost clock of the listed devices of this architecture"
    if found and clock and gpu.sm_count:
        for key, rate in found.rates(gpu.name).items():
            figures["peak_flops_per_s", key] = Figure(
                gpu.sm_count * rate * clock,
                f"estimate: {gpu.sm_count} multiprocessors x {rate:g} operations per clock "
                f"({found.name}) x {si(clock, 'Hz')}{of_clock}",
            )
    said = "the report"
    if gpu.memory_bandwidth_bytes_per_s:
        figures["bandwidth_bytes_per_s", "hbm"] = Figure(gpu.memory_bandwidth_bytes_per_s, said)
    for key, size in (("hbm", gpu.memory_bytes), ("l2", gpu.l2_bytes)):
        if size:
            figures["capacity_bytes", key] = Figure(size, said)
    name = gpu.name or "unnamed GPU"
    machine = Machine.of(name, "estimate from what the report says of its GPU", figures)
    if not machine.peak_flops_per_s:
        return Identified(replace(machine, basis="estimate"))
    why = "is not among the devices of perfmodel machine list"
    if _of_names((gpu.name,)):
        why = "has other multiprocessors here than its data sheet says, as a part of a device does"
    return Identified(
        replace(machine, basis="estimate"),
        f"{printable(name)} {why}: its peaks are an estimate from {_properties(gpu)} and a clock "
        f"of {si(clock or 0, 'Hz')}{of_clock}; --machine FILE.toml gives others",
    )


def _architecture(gpu: Gpu) -> Architecture | None:
    """Return the architecture of a GPU by its gfx number or compute capability, if that is one's.

    gfx908 and gfx90a have the same compute capability.
    """
    gfx = _GFX.search(gpu.name)
    vendor = "gfx" if _AMD.search(gpu.name) else "sm_"
    targets = {t: one for one in architectures() for t in one.targets if t.startswith(vendor)}
    if gfx:
        return targets.get(gfx[0].casefold())
    found = [one for t, one in targets.items() if capability(t) == gpu.compute_capability]
    return found[0] if len(found) == 1 else None


def known() -> tuple[Machine, ...]:
    """Return every machine perfmodel ships, by name."""
    return tuple(machine for _, machine in shipped())


def shipped() -> tuple[tuple[str, Machine], ...]:
    """Return every machine perfmodel ships with its short name, such as 'h200', by full name."""
    found = ((device.stem, device.machine) for device in devices())
    return tuple(sorted(found, key=lambda pair: pair[1].name))


def datasheet(names: Iterable[str]) -> Machine | None:
    """Return the shipped machine of a GPU or CPU that the system reports by one of these names.

    Of a name that several devices have: the figures on which they agree.
    """
    found = [device.machine for device in _of_names(names)]
    return _common(found) if found else None


def named(name: str) -> Machine:
    """Return the shipped machine of a name, such as 'h200' or 'NVIDIA H200 SXM', or a part of one.

    The system's own name of a GPU or CPU is one, too: 'NVIDIA A100-SXM4-40GB'.

    Raises
    ------
    PerfmodelError
        If there is none of that name, or several.
    """
    asked = _plain(name)
    found = [d for d in devices() if asked and asked in d.calls()]
    found = [d for d in found if d.stem == asked] or found
    found = found or [d for d in devices() if asked and asked in d.machine.name.casefold()]
    if len(found) == 1:
        return found[0].machine
    choices = sorted(device.stem for device in found or devices())
    raise PerfmodelError(
        f"expected one of the machines {', '.join(choices)}, or a TOML file of one (perfmodel "
        f"machine measure writes it); got {printable(name)!r}; see perfmodel machine list"
    )


def published(top: Entries) -> Machine:
    """Return the machine of a file that has figures and sources, and no measurement.

    Raises
    ------
    ModelError
        If a key is unknown or missing, or a value is not as it must be: names the file and key.
    """
    top.only((*KEYS, "url", "note", "chip"))
    if "peak_flops_per_s" in top:
        top.table("peak_flops_per_s").only(TYPES)
    note, url = (top.text(key) if key in top else "" for key in ("note", "url"))
    machine = Machine.of(top.text("name"), top.text("source"), figures_of(top), note)
    chip = _chip(top.table("chip"), machine) if "chip" in top else None
    return replace(machine, url=url, chip=chip)


def _chip(table: Entries, machine: Machine) -> Chip:
    table.only(("architecture", "target", "multiprocessors", "boost_clock_hz", "limited"))
    target = table.choice("target", [t for one in architectures() for t in one.targets])
    limited = table.texts("limited") if "limited" in table else ()
    if not set(limited) <= machine.peak_flops_per_s.keys():
        raise table.wrong("limited", "keys of peak_flops_per_s")
    return Chip(
        table.text("architecture"),
        target,
        table.whole("multiprocessors") if "multiprocessors" in table else None,
        table.number("boost_clock_hz") if "boost_clock_hz" in table else None,
        limited,
    )


def _plain(name: str) -> str:
    """Return a name without case and NVIDIA's own: 'A100-SXM4-40GB' is 'NVIDIA A100-SXM4-40GB'."""
    return " ".join(name.casefold().split()).removeprefix("nvidia ")


def _of_names(names: Iterable[str]) -> list[Device]:
    """Return the devices that reports call by one of these names; only their files are parsed."""
    wanted = {plain for name in names if (plain := _plain(name))}
    stems = [stem for stem, text in _texts().items() if any(f'{name}"' in text for name in wanted)]
    found = (_device(stem) for stem in stems)
    return [device for device in found if wanted & set(map(_plain, device.names))]


def devices() -> tuple[Device, ...]:
    """Return the devices of all files, by file name."""
    return tuple(_device(stem) for stem in _texts())


@cache
def _texts() -> dict[str, str]:
    """Return the files' content by their short names, without case."""
    return {stem: text.casefold() for stem, text in sorted(_read().items())}


@cache
def _read() -> dict[str, str]:
    folder = files("perfmodel.machines").joinpath("devices")
    found = (file for file in folder.iterdir() if file.name.endswith(".toml"))
    return {file.name.removesuffix(".toml"): file.read_text(encoding="utf-8") for file in found}


@cache
def _device(stem: str) -> Device:
    top = Entries(tomllib.loads(_read()[stem]), f"{stem}.toml", _AGAIN)
    cpus = top.texts("cpus") if "cpus" in top else ()
    return Device(stem, (*top.texts("gpus"), *cpus), published(top))


@cache
def _content() -> Mapping[str, Any]:
    text = files("perfmodel.machines").joinpath("architectures.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def _generic() -> frozenset[str]:
    return frozenset(Entries(_content(), "architectures.toml", _AGAIN).texts("generic"))


@cache
def architectures() -> tuple[Architecture, ...]:
    """Return what multiprocessors do per clock."""
    top = Entries(_content(), "architectures.toml", _AGAIN)
    top.only(("generic", "architecture"))
    return tuple(map(_parsed, top.tables("architecture")))


def _parsed(table: Entries) -> Architecture:
    table.only(("name", "targets", "source", "operations_per_clock", "named"))
    words = table.table("named") if "named" in table else ()
    return Architecture(
        table.text("name"),
        table.texts("targets"),
        table.text("source"),
        _rates(table.table("operations_per_clock")),
        {word: _rates(table.table("named").table(word)) for word in words},
    )


def _rates(table: Entries) -> dict[str, float]:
    table.only(TYPES)
    return {key: table.number(key, least=0) for key in table}
