"""Specs: a user's own workload from a TOML file; see docs/workloads.md."""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from perfmodel.base.document import parse_toml
from perfmodel.base.errors import WorkloadError
from perfmodel.base.escape import printable
from perfmodel.base.files import read_whole
from perfmodel.workloads.expression import FUNCTIONS, Expression
from perfmodel.workloads.work import KEYS, Symbol, Work, Workload

MOST_RANGES: Final = 1000
MOST_SYMBOLS: Final = 100
_MOST_BYTES: Final = 1_000_000
_LONGEST_NAME: Final = 200
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,30}")
_TOP: Final = (
    *("name", "source", "batch_range", "phases", "divisible"),
    *("symbols", "derived", "ranges"),
)


def load(path: str | Path) -> Workload:
    """Load a workload from a TOML file; its formulas are parsed, never executed.

    Parameters
    ----------
    path : str or Path
        Tables `symbols`, `derived` (optional) and `ranges`; the latter gives, by NVTX range,
        formulas for 'flops', 'pci', 'mpi', 'peer' (from GPU to GPU), 'dram', and 'pci_message',
        'mpi_message' and 'peer_message', per rank and batch. What is left out is 0, but for
        'pci_message', which is then 'pci'.

    Raises
    ------
    WorkloadError
        If the file cannot be read, or anything in it is not as documented: names the file, the
        range, the key, the formula, what was found and what is allowed.
    """
    where = printable(str(path))
    spec = _read(Path(path), where)
    _check_keys(spec, _TOP, where)
    symbols = _symbols(_table(spec, "symbols", where, MOST_SYMBOLS), where)
    derived = _derived(_table(spec, "derived", where, MOST_SYMBOLS), symbols, where)
    definitions = {s.name: s.definition for s in derived.values() if s.definition}
    rows = _table(spec, "ranges", where, MOST_RANGES)
    if not rows:
        raise WorkloadError(f"{where}: expected at least one table [ranges.NAME]; got none; add it")
    return Workload(
        name=_string(spec, "name", where, Path(path).stem),
        counting="spec",
        source=_string(spec, "source", where, where),
        batch_range=_string(spec, "batch_range", where),
        symbols=symbols,
        ranges={name: _range(name, row, symbols, definitions, where) for name, row in rows.items()},
        derived=derived,
        divisible=_divisible(spec.get("divisible", []), symbols, where),
        phases=_phases(spec.get("phases", []), where),
    )


def _read(path: Path, where: str) -> dict[str, Any]:
    try:
        content = read_whole(path, _MOST_BYTES)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise WorkloadError(
            f"{where}: expected a workload's TOML file; got none that can be read ({reason}); "
            "check the path"
        ) from None
    try:
        return parse_toml(content.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise WorkloadError(
            f"{where}: expected a TOML file; got something else ({printable(str(error))}); compare "
            "with the example in docs/workloads.md"
        ) from None


def _symbols(table: Mapping[str, Any], where: str) -> dict[str, Symbol]:
    symbols = {}
    for name, given in table.items():
        at = f"{where}: symbol '{_check_name(name, where)}'"
        entry = {"meaning": given} if isinstance(given, str) else given
        _check_keys(entry, ("meaning", "unit", "default"), at)
        symbol = Symbol(name, _string(entry, "meaning", at), _string(entry, "unit", at))
        try:
            default = symbol.check(entry["default"]) if "default" in entry else None
        except WorkloadError as error:
            raise WorkloadError(f"{at}, key 'default': {error}") from None
        symbols[name] = replace(symbol, default=default)
    return symbols


def _derived(
    table: Mapping[str, Any], symbols: Mapping[str, Symbol], where: str
) -> dict[str, Symbol]:
    """Read derived symbols, each in terms of symbols and of those above it."""
    derived: dict[str, Symbol] = {}
    definitions: dict[str, Expression] = {}
    for name, given in table.items():
        at = f"{where}: derived symbol '{_check_name(name, where)}'"
        if name in symbols:
            raise WorkloadError(f"{at}: expected a new name; got it in [symbols], too; rename one")
        entry = given if isinstance(given, dict) else {"formula": given}
        _check_keys(entry, ("formula", "meaning", "unit"), at)
        text = _formula(entry.get("formula"), f"{at}, key 'formula'")
        definitions[name] = Expression.parse(text, symbols, definitions, at)
        meaning, unit = _string(entry, "meaning", at), _string(entry, "unit", at)
        derived[name] = Symbol(name, meaning, unit, definition=definitions[name])
    return derived


def _range(
    name: str,
    row: object,
    symbols: Mapping[str, Symbol],
    definitions: Mapping[str, Expression],
    where: str,
) -> Work:
    if not 0 < len(name) <= _LONGEST_NAME:
        raise WorkloadError(
            f"{where}: expected NVTX range names of 1 to {_LONGEST_NAME} characters; got "
            f"{len(name)} in '{printable(name[:60])}'; shorten it"
        )
    at = f"{where}: range '{printable(name)}'"
    formulas = {
        key: _formula(text, f"{at}, key '{key}'")
        for key, text in _check_keys(row, tuple(KEYS), at).items()
    }
    if "pci" in formulas:
        formulas.setdefault("pci_message", formulas["pci"])
    return Work.parse(formulas, symbols, definitions, f"{at}, ")


def _divisible(
    pairs: object, symbols: Mapping[str, Symbol], where: str
) -> tuple[tuple[str, str], ...]:
    found = []
    for pair in pairs if isinstance(pairs, list) else [pairs]:
        match pair:
            case [str(whole), str(parts)] if whole in symbols and parts in symbols:
                found.append((whole, parts))
            case _:
                raise WorkloadError(
                    f'{where}: key \'divisible\': expected pairs of symbols such as [["B", "p"]], '
                    f"B a multiple of p; got {printable(repr(pair)[:60])}; declare both in "
                    "[symbols]"
                )
    return tuple(found)


def _phases(names: object, where: str) -> tuple[str, ...]:
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise WorkloadError(
            f"{where}: key 'phases': expected names of the ranges directly inside a batch, such as "
            f'["forward", "backward"]; got {printable(repr(names)[:60])}; put them in quotes'
        )
    return tuple(names)


def _table(spec: Mapping[str, Any], key: str, where: str, most: int) -> dict[str, Any]:
    table = spec.get(key, {})
    if not isinstance(table, dict) or len(table) > most:
        found = f"{len(table)} entries" if isinstance(table, dict) else printable(repr(table)[:60])
        raise WorkloadError(
            f"{where}: expected a table [{key}] of at most {most} entries; got {found}; see "
            "docs/workloads.md"
        )
    return table


def _check_keys(table: object, allowed: tuple[str, ...], where: str) -> dict[str, Any]:
    if not isinstance(table, dict):
        raise WorkloadError(
            f"{where}: expected a table with keys among {', '.join(allowed)}; got "
            f"{printable(repr(table)[:60])}; see docs/workloads.md"
        )
    for key in table:
        if key not in allowed:
            raise WorkloadError(
                f"{where}: expected keys among {', '.join(allowed)}; got "
                f"'{printable(key[:60])}'; rename or remove it"
            )
    return table


def _check_name(name: str, where: str) -> str:
    if not _NAME.fullmatch(name) or keyword.iskeyword(name) or name in FUNCTIONS:
        raise WorkloadError(
            f"{where}: expected symbols of ASCII letters, digits and _, a letter first, at most "
            f"31, neither a Python keyword nor one of {', '.join(FUNCTIONS)}; got "
            f"'{printable(name[:60])}'; rename it"
        )
    return name


def _string(table: Mapping[str, Any], key: str, where: str, default: str = "") -> str:
    value = table.get(key, default)
    if not isinstance(value, str) or len(value) > _LONGEST_NAME * 5:
        raise WorkloadError(
            f"{where}: key '{key}': expected a text of at most {_LONGEST_NAME * 5} characters; got "
            f"{printable(repr(value)[:60])}; put a short text in quotes"
        )
    return value


def _formula(value: object, where: str) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    raise WorkloadError(
        f"{where}: expected a formula in quotes, such as '2*D*H*B/p'; got "
        f"{printable(repr(value)[:60])}; see docs/workloads.md"
    )
