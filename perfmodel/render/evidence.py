"""Evidence: the formula, the inputs and the events behind a finding or a number of analysis.json.

A finding's key is its kind, with `-2` behind the second one of a kind. A number's key is its path
in the document, such as `ranks[rank=0].idle_s` or `collectives[2].seconds`. What is behind which is
data: `evidence.toml`. A number without a formula there is defined by the docstring of its field.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from perfmodel.analysis.events import EventTable, events
from perfmodel.base.errors import ModelError
from perfmodel.base.table import Column, Table
from perfmodel.base.units import si
from perfmodel.findings import kinds
from perfmodel.render.result import Result

if TYPE_CHECKING:
    from perfmodel.analysis.result import RunAnalysis

SHOWN: Final = 10
"""Events behind a number that are listed, unless more are asked for."""
_PART: Final = re.compile(r"(?P<name>[^.\[\]]+)?(?:\[(?P<chosen>[^\]]*)\])?(?:\.|$|(?=\[))")
_LONGEST_KEY: Final = 500
_MOST_PARTS: Final = 20
_UNITS: Final = {"_bytes_per_s": "B/s", "_flops_per_s": "FLOP/s", "_bytes": "B", "_s": "s"}
_SECONDS: Final = ("seconds",)

Found = tuple[str, Any, Mapping[str, Any]]
"""Path of a value with positions in lists, the value, and the item of a list that holds it."""


@dataclass(frozen=True, slots=True)
class Input:
    """A number of the document by its path."""

    path: str
    value: float | str | None


@dataclass(frozen=True, slots=True)
class Evidence:
    """The evidence of a finding or a number.

    Attributes
    ----------
    key : str
    said : str
        The sentence, or the path of the number with its place in lists.
    value : float or None
        The number; of a finding its saving in seconds.
    formula : str
        In words, or the definition of the number; docs/findings.md and docs/analysis.md say more.
    inputs : tuple of Input
    table : str
        Table of events that the rows are of; '' without any.
    where : mapping
        Values of the rows' columns.
    count : int
        Rows that have them.
    again : float or None
        The number made again of all of these rows, where that is a sum or a median.
    complete : bool
        Whether the table has all events of the reports.
    rows : tuple of mapping
        The first rows.
    """

    key: str
    said: str
    value: float | None
    formula: str
    inputs: tuple[Input, ...]
    table: str
    where: Mapping[str, Any]
    count: int
    again: float | None
    complete: bool
    rows: tuple[Mapping[str, Any], ...]


@cache
def _rules() -> tuple[tuple[re.Pattern[str], dict[str, Any]], ...]:
    """Return the rules with the patterns of what they are of, in their order."""
    text = files("perfmodel.render").joinpath("evidence.toml").read_text(encoding="utf-8")
    return tuple(
        (re.compile("|".join(re.escape(one).replace(r"\*", ".+") for one in rule["of"])), rule)
        for rule in tomllib.loads(text)["rule"]
    )


@cache
def rule_of(what: str) -> Mapping[str, Any]:
    """Return the rule of a path with `[]` for places in lists.

    >>> rule_of("ranks[].idle_s")["table"]
    'gaps'
    """
    return next((rule for pattern, rule in _rules() if pattern.fullmatch(what)), {})


def evidence(
    analysis: RunAnalysis | None, document: Mapping[str, Any], key: str, most: int = SHOWN
) -> Evidence:
    """Return what is behind a finding or a number.

    Parameters
    ----------
    analysis : RunAnalysis or None
        The run at the top level of the document; None without events.
    document : mapping
        As `analysis_document` returns it.
    key : str
        A finding's key, or a path.
    most : int
        Rows at most.

    Raises
    ------
    ModelError
        If there is no such finding, path or single number.
    """
    findings = {one["key"]: one for one in document["findings"]}
    if key in findings:
        one = findings[key]
        rule: Mapping[str, Any] = kinds()[one["kind"]].grounds
        said, value, item = f"{one['title']}: {one['evidence']}", one["saving_s"], one
        at = f"findings[{[*findings].index(key)}]"
    else:
        said, value, item = _number(document, key, [*findings])
        rule, at = rule_of(re.sub(r"\[[^\]]*\]", "[]", said)), said.rpartition(".")[0]
    inputs = [
        Input(path, given)
        for wanted in rule.get("inputs", ())
        for path, given, _ in find(document, _filled(wanted, at, item))
        if given is None or isinstance(given, (int, float, str))
    ]
    if not (formula := rule.get("formula", "")):
        from perfmodel.render.documents import definition  # makes the schema of all documents

        formula = definition(said)
    again = rule.get("again", "")
    where = {name: _value(document, item, v) for name, v in rule.get("where", {}).items()}
    if "table" not in rule or analysis is None:
        made = _quotient(inputs) if again == "quotient" else None
        return Evidence(key, said, value, formula, tuple(inputs), "", {}, 0, made, True, ())
    table = events(analysis, rule["table"])
    found = table.where(where)
    if not len(found):  # events of NCCL may lack what a formula says of them
        where = {name: v for name, v in where.items() if name not in rule.get("loosely", ())}
        found = table.where(where)
    ordered = found.sorted_by(rule["by"], descending=not rule.get("least"))
    return Evidence(
        key=key,
        said=said,
        value=value,
        formula=formula,
        inputs=tuple(inputs),
        table=table.name,
        where=where,
        count=len(found),
        again=_quotient(inputs)
        if again == "quotient"
        else _again(again, found, analysis, where)
        if table.complete
        else None,
        complete=table.complete,
        rows=tuple(ordered.records(0, most)),
    )


def find(document: Any, path: str) -> Iterator[Found]:
    """Yield the values at a path, `[]` for every item of a list, `[key=value]` for some.

    Raises
    ------
    ModelError
        If it is no path.
    """
    parts = [match for match in _PART.finditer(path) if match[0]]
    whole = "".join(match[0] for match in parts) == path and not path.endswith(".")
    empty = any(match["name"] is None and match["chosen"] is None for match in parts)
    if not whole or empty or not 0 < len(parts) <= _MOST_PARTS:
        raise ModelError(
            f"expected a path such as batch.median_s or ranks[rank=0].idle_s; got {path[:80]!r}; "
            f"see the keys of analysis.json"
        )
    yield from _inside(("", document, {}), [(match["name"], match["chosen"]) for match in parts])


def _inside(held: Found, parts: Sequence[tuple[str | None, str | None]]) -> Iterator[Found]:
    """Yield the values at the rest of a path; a key that holds dots is as many parts."""
    if not parts:
        yield held
        return
    path, value, item = held
    (name, chosen), rest = parts[0], parts[1:]
    if name is not None:
        if not isinstance(value, Mapping):
            return
        while name not in value and chosen is None and rest and rest[0][0] is not None:
            (more, chosen), rest = rest[0], rest[1:]
            name = f"{name}.{more}"
        if name not in value:
            return
        path, value = f"{path}.{name}" if path else name, value[name]
    for one in _chosen((path, value, item), chosen):
        yield from _inside(one, rest)


def _chosen(held: Found, chosen: str | None) -> Iterator[Found]:
    """Yield some items of a list, or the value where none is chosen."""
    path, value, item = held
    if chosen is None:
        yield held if not isinstance(value, Mapping) else (path, value, value)
        return
    for i, one in enumerate(value if isinstance(value, list) else ()):
        if _is_chosen(i, one, chosen):
            yield f"{path}[{i}]", one, one if isinstance(one, Mapping) else item


def _is_chosen(number: int, item: Any, chosen: str) -> bool:
    if chosen == "" or chosen == str(number):
        return True
    pairs = [pair.partition("=") for pair in chosen.split(",")]
    return isinstance(item, Mapping) and all(
        equals and str(item.get(key.strip())) == value.strip() for key, equals, value in pairs
    )


def _number(document: Mapping[str, Any], key: str, findings: Sequence[str]) -> Found:
    """Return the one number at a path."""
    found = [*find(document, key[:_LONGEST_KEY])]
    numbers = [one for one in found if isinstance(one[1], (int, float))]
    if len(numbers) == 1:
        return numbers[0]
    several = ", ".join(path for path, _, _ in numbers[:5])
    raise ModelError(
        f"expected a finding ({', '.join(findings) or 'there is none'}) or the path of one number "
        f"of analysis.json; got {key[:80]!r}"
        + (f", which are several: {several}, ..." if numbers else ", which is none")
        + "; take one"
    )


def _filled(path: str, at: str, item: Mapping[str, Any]) -> str:
    """Return a path of an input: `$.KEY` is a key beside the number, in `[]` that key's value."""
    if path.startswith("$."):
        return f"{at}{path[1:]}" if at else path[2:]
    return re.sub(r"\$\.(\w+)", lambda match: str(item.get(match[1])), path)


def _value(document: Mapping[str, Any], item: Mapping[str, Any], said: Any) -> Any:
    """Return a value of `where`: as it stands, a key of the item, or what is at a path.

    `$.KEY/` is the last part of a path of ranges. None is what is missing in a column.
    """
    if not isinstance(said, str) or not said.startswith("$"):
        return said
    if said.startswith("$."):
        given = item.get(said[2:].rstrip("/"))
        return given.rpartition("/")[2] if said.endswith("/") and given is not None else given
    return next((value for _, value, _ in find(document, said[1:])), None)


def _again(
    how: str, found: EventTable, analysis: RunAnalysis, where: Mapping[str, Any]
) -> float | None:
    """Make a number of rows again.

    `median` and `mean COLUMN` are of all rows, `rows` is their number; `sum COLUMN` and
    `count` are per rank and step that counts; `step COLUMN` is the median over ranks and steps of
    the sum in each.
    """
    if not how or not len(found):
        return None
    kind, _, name = how.partition(" ")
    values = np.ones(len(found)) if not name else found.column(name).astype(np.float64)
    if not np.isfinite(values).any():
        return None
    if kind == "step":
        _, place = np.unique(
            np.stack([found.column("rank"), found.column("step")]), axis=1, return_inverse=True
        )
        return float(np.median(np.bincount(place.ravel(), np.nan_to_num(values))))
    if kind in ("sum", "count"):
        steps = events(analysis, "steps").where({"counted": True})
        steps = steps.where({"rank": where["rank"]}) if "rank" in where else steps
        return float(np.nansum(values)) / max(len(steps), 1)
    if kind == "rows":
        return float(np.nansum(values))
    return float(np.nanmean(values) if kind == "mean" else np.nanmedian(values))


def _quotient(inputs: Sequence[Input]) -> float | None:
    """Return the first input over all others; None where one is unknown, or a divisor 0."""
    numbers = [float(one.value) for one in inputs if isinstance(one.value, (int, float))]
    if not 0 < len(numbers) == len(inputs) or 0 in numbers[1:]:
        return None
    return numbers[0] / math.prod(numbers[1:])


def result(found: Evidence) -> Result:
    """Return evidence in every format."""
    return Result(text=_blocks(found), document=lambda: found)


def _blocks(found: Evidence) -> Iterator[str | Table | list[str]]:
    value = "" if found.value is None else f" = {_shown(found.key, found.value)}"
    yield [f"{found.key}{value}", found.said]
    yield f"Definition: {found.formula}"
    inputs, rows = inputs_table(found), events_table(found)
    if inputs.rows:
        yield inputs
    if not found.table:
        if found.again is not None:
            yield f"Made again of these inputs: {_shown(found.key, found.again)}"
        return
    yield f"Events: {events_said(found)}"
    if found.again is not None:
        yield f"Made again of these events: {_shown(found.key, found.again)}"
    if not found.complete:
        yield "Not all events of the report are kept: it is large."
    if rows is not None:
        yield rows


def inputs_table(found: Evidence) -> Table:
    """Return the numbers that go into a formula."""
    columns = (Column("path", "Input", wrap=False), Column("value", "Value", align="right"))
    return Table(
        "Inputs", columns, [(one.path, _shown(one.path, one.value)) for one in found.inputs]
    )


def events_said(found: Evidence) -> str:
    """Say which events are behind a number, and how many."""
    said = ", ".join(f"{name} = {value}" for name, value in found.where.items())
    return f"{found.count} of {found.table} where {said}"


def events_table(found: Evidence) -> Table | None:
    """Return the largest events behind a number, without columns that are empty; None of none."""
    names = [*found.rows[0]] if found.rows else []
    filled = [name for name in names if any(row[name] is not None for row in found.rows)]
    if not filled:
        return None
    shown = [tuple(_cell(row[name]) for name in filled) for row in found.rows]
    columns = tuple(Column(n, n, wrap=False) for n in filled)
    return Table("Events, the largest first", columns, shown)


def _shown(path: str, value: Any) -> str:
    """Return a number with its unit, which its name ends in; a finding's is seconds."""
    if not isinstance(value, (int, float)):
        return "unknown" if value is None else str(value)
    name = path.rpartition(".")[2]
    for suffix, unit in _UNITS.items():
        if name.endswith(suffix):
            return si(float(value), unit)
    return si(float(value), "s") if name in _SECONDS or "." not in path else f"{value:.6g}"


def _cell(value: Any) -> str | None:
    return None if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
