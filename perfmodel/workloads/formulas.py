"""Formulas in print, totals and what raises arithmetic intensity: as text, LaTeX or JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, Final, Literal

from perfmodel.base.document import plain
from perfmodel.base.errors import WorkloadError
from perfmodel.base.escape import escape_json, escape_latex, printable
from perfmodel.base.table import Column, Table
from perfmodel.workloads.expression import Expression, Number, sympy_derived, sympy_symbol
from perfmodel.workloads.polynomial import text_of
from perfmodel.workloads.work import KEYS, Work, Workload

_MOST_TERMS: Final = 2000
_HIGHEST_POWER: Final = 8


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """Arithmetic intensity along one symbol, the others held.

    Attributes
    ----------
    elasticity : sympy expression or None
        (s/AI) dAI/ds: per cent of AI per per cent of s. None where ceil, floor, max or min make
        AI jump or bend.
    sign : {1, -1, 0} or None
        Sign of dAI/ds for all positive integers; None if it depends on the values.
    value : float or None
        The elasticity at the values given; None without values, or where no bytes are moved.
    """

    elasticity: Any
    sign: int | None
    value: float | None


def sensitivities(
    workload: Workload, values: Mapping[str, int] | None = None
) -> dict[str, Sensitivity]:
    """Differentiate the arithmetic intensity of all ranges together by every symbol.

    Source: CME 213 assignment, Question 2.6, "what is required to increase the
    arithmetic intensity".

    Parameters
    ----------
    workload : Workload
    values : mapping of str to int, optional
        Where to evaluate the elasticities.

    Raises
    ------
    WorkloadError
        If the workload has no FLOPs or moves no bytes, or a value is wrong.

    Examples
    --------
    >>> from perfmodel.programs.mlp.mlp import mlp
    >>> found = sensitivities(mlp("document"))
    >>> found["B"].elasticity, found["p"].elasticity, found["H"].sign
    (1, -3*p/(3*p - 2), 1)
    """
    total = workload.total()
    total.arithmetic_intensity()  # refuses a workload without bytes
    at = workload.check(values) if values is not None else None
    flops = tidy(total.flops.sympy())
    moved = tidy(total.moved_bytes().sympy())
    if not total.flops or flops == 0:
        raise WorkloadError(
            f"expected FLOPs in workload '{workload.name}'; got none; add 'flops' to its ranges"
        )
    return {
        name: _sensitivity(flops, moved, symbol.sympy(), at)
        for name, symbol in workload.symbols.items()
    }


def tidy(expression: Any) -> Any:
    """Factor a SymPy expression where that is quick and makes it shorter."""
    import sympy

    if not _is_small(expression):
        return expression
    factored = sympy.factor(expression)
    return min((factored, expression), key=lambda e: (e.count_ops(), len(str(e))))


def _sensitivity(flops: Any, moved: Any, symbol: Any, at: Mapping[str, int] | None) -> Sensitivity:
    import sympy

    elasticity = symbol * (sympy.diff(flops, symbol) / flops - sympy.diff(moved, symbol) / moved)
    if elasticity.has(sympy.Derivative, sympy.Heaviside, sympy.DiracDelta):
        return Sensitivity(None, None, None)
    if _is_small(elasticity):
        elasticity = tidy(sympy.together(elasticity))
    value = None
    if at is not None:
        exact = {s: sympy.Integer(at[s.name]) for s in elasticity.free_symbols}
        result = elasticity.xreplace(exact)
        value = float(result) if result.is_real and result.is_finite else None
    return Sensitivity(elasticity, _sign(elasticity), value)


def _sign(expression: Any) -> int | None:
    """Sign for all positive integers: with s = 1 + t, a polynomial in t of one sign keeps it."""
    import sympy

    if not _is_small(expression):
        return None
    sign = 1
    for part in sympy.fraction(sympy.together(expression)):
        shift = {s: 1 + sympy.Symbol(s.name, nonnegative=True) for s in part.free_symbols}
        shifted = sympy.expand(part.xreplace(shift))
        terms = sympy.Add.make_args(shifted)
        if shifted == 0:
            sign = 0
        elif all(term.is_nonpositive for term in terms):
            sign = -sign
        elif not all(term.is_nonnegative for term in terms):
            return None
    return sign


def _is_small(expression: Any) -> bool:
    numerator, denominator = _count_terms(expression)
    return numerator <= _MOST_TERMS and denominator <= _MOST_TERMS


def _count_terms(expression: Any) -> tuple[int, int]:
    """Bound the terms of the numerator and denominator once expanded over one denominator."""
    if expression.is_Add:
        parts = [_count_terms(part) for part in expression.args]
        below = [d for _, d in parts]
        if max(below) == 1:
            return sum(n for n, _ in parts), 1
        return sum(n * prod(below) // d for n, d in parts), prod(below)
    if expression.is_Mul:
        parts = [_count_terms(part) for part in expression.args]
        return prod(n for n, _ in parts), prod(d for _, d in parts)
    if expression.is_Pow and expression.exp.is_Integer:
        n, d = _count_terms(expression.base)
        power = int(expression.exp)
        if abs(power) > _HIGHEST_POWER:
            return _MOST_TERMS + 1, 1
        return (n**power, d**power) if power > 0 else (d**-power, n**-power)
    return 1, 1


def formula_text(expression: Expression, workload: Workload, *, expand: bool = False) -> str:
    """Return a formula as `formulas` prints it, without SymPy where `polynomial` can.

    Parameters
    ----------
    expression : Expression
    workload : Workload
        Of which it is one.
    expand : bool
        Replace derived symbols by what they stand for; else keep them.
    """
    symbols = (*workload.symbols.values(), *workload.derived.values())
    labels = {symbol.name: symbol.label or symbol.name for symbol in symbols}
    simple = text_of(expression.node, labels, expand=expand)
    if simple is not None:
        return simple
    import sympy

    shown = {s: sympy.Symbol(label) for s, label in _labels(workload).items()}
    return str(tidy(expression.sympy(expand=expand)).xreplace(shown))


def _labels(workload: Workload) -> dict[Any, str]:
    """Return the printed names of SymPy's symbols."""
    labels = {sympy_symbol(s.name): s.label or s.name for s in workload.symbols.values()}
    return labels | {sympy_derived(s.name): s.label or s.name for s in workload.derived.values()}


Format = Literal["text", "csv", "json", "jsonl", "markdown", "latex"]

_QUANTITIES: Final = {
    "flops": ("FLOPs", "F"),
    "pci_bytes": ("PCIe bytes", r"Q_{\mathrm{pci}}"),
    "mpi_bytes": ("MPI bytes", r"Q_{\mathrm{mpi}}"),
    "dram_bytes": ("DRAM bytes", r"Q_{\mathrm{dram}}"),
    "mpi_message_bytes": ("bytes handed to MPI", r"M_{\mathrm{mpi}}"),
    "pci_message_bytes": ("bytes handed to copies", r"M_{\mathrm{pci}}"),
    "peer_bytes": ("GPU-to-GPU bytes", r"Q_{\mathrm{peer}}"),
    "peer_message_bytes": ("handed to such a call", r"M_{\mathrm{peer}}"),
}
_FLAT: Final = 0.01
_LONGEST_ELASTICITY: Final = 60


def formulas(
    workload: Workload, fmt: Format = "text", values: Mapping[str, int] | None = None
) -> str:
    """Print a workload: every range's formulas, the totals and what raises arithmetic intensity.

    Parameters
    ----------
    workload : Workload
    fmt : {'text', 'csv', 'json', 'jsonl', 'markdown', 'latex'}
        LaTeX needs amsmath. CSV, JSON lines and Markdown hold a formula a row.
    values : mapping of str to int, optional
        Print the numbers at these values, too.

    Raises
    ------
    WorkloadError
        If a value is wrong or the format is unknown.
    """
    writers: dict[str, Callable[[_Sheet], str]] = {
        "text": _write_text, "latex": _write_latex, "json": _write_json,
        **{form: partial(_write_table, fmt=form) for form in ("csv", "jsonl", "markdown")},
    }  # fmt: skip
    if fmt not in writers:
        raise WorkloadError(f"expected one of {', '.join(writers)}; got '{fmt}'; take one")
    if values is not None:
        workload.evaluate(values)  # refuses wrong values and formulas without a number
        values = workload.check(values)
    return writers[fmt](_Sheet.of(workload, values))


@dataclass(frozen=True, slots=True)
class _Line:
    """One formula, ready to print."""

    text: str
    latex: str
    value: Number | None


@dataclass(frozen=True, slots=True)
class _Sheet:
    """Everything that is printed, independent of the format."""

    workload: Workload
    values: Mapping[str, int] | None
    derived: Mapping[str, _Line]
    ranges: Mapping[str, Mapping[str, _Line]]
    total: Mapping[str, _Line]
    intensity: _Line | None
    sensitivities: Mapping[str, tuple[Sensitivity, _Line | None]]

    @classmethod
    def of(cls, workload: Workload, values: Mapping[str, int] | None) -> _Sheet:
        labels = _labels(workload)

        def line(formula: Any, value: Number | None = None) -> _Line:
            import sympy

            shown = {symbol: sympy.Symbol(label) for symbol, label in labels.items()}
            names = {shown[symbol]: _latex_label(label) for symbol, label in labels.items()}
            printed = formula.xreplace(shown)
            return _Line(str(printed), sympy.latex(printed, symbol_names=names), value)

        def write(expression: Expression, *, expand: bool = False) -> _Line:
            value = expression.evaluate(values) if values is not None else None
            return line(tidy(expression.sympy(expand=expand)), value)

        def rows(work: Work) -> dict[str, _Line]:
            found = {name: getattr(work, name) for name in KEYS.values()}
            return {name: write(formula) for name, formula in found.items() if formula}

        total = workload.total()
        intensity, sensitivity = None, {}
        moved = total.moved_bytes()
        if total.flops and moved and (values is None or moved.evaluate(values) > 0):
            intensity = write(total.arithmetic_intensity())
            sensitivity = {
                name: (s, None if s.elasticity is None else line(s.elasticity, s.value))
                for name, s in sensitivities(workload, values).items()
            }
        derived = {s.name: s.definition for s in workload.derived.values() if s.definition}
        return cls(
            workload=workload,
            values=values,
            derived={name: write(formula, expand=True) for name, formula in derived.items()},
            ranges={name: rows(work) for name, work in workload.ranges.items()},
            total=rows(total),
            intensity=intensity,
            sensitivities=sensitivity,
        )


def _latex_label(label: str) -> str:
    import sympy

    plain = len(label.rstrip("'")) == 1
    return label if plain else str(sympy.latex(sympy.Symbol(label)))


def _effect(sensitivity: Sensitivity) -> str:
    """Say what a larger symbol does to the arithmetic intensity."""
    sign, value = sensitivity.sign, sensitivity.value
    if sensitivity.elasticity is None:
        return "not smooth (ceil, floor, max or min)"
    if value is not None and abs(value) < _FLAT and sign != 0:
        return "nearly flat, rises" if value > 0 else "nearly flat, falls"
    if sign is None and value is None:
        return "depends on the values"
    known = sign if sign is not None else (value or 0)
    always = " for all values" if sign is not None else " here"
    return ("rises" if known > 0 else "falls" if known < 0 else "stays") + always


def _write_text(sheet: _Sheet) -> str:
    load = sheet.workload
    lines = [
        f"{printable(load.name)}, counting '{load.counting}', per rank and "
        + (f"'{printable(load.batch_range)}'" if load.batch_range else "batch"),
        f"Source: {printable(load.source)}",
        "",
        "Symbols",
    ]
    for symbol in load.symbols.values():
        value = "" if sheet.values is None else f" = {sheet.values[symbol.name]}"
        unit = f" [{printable(symbol.unit)}]" if symbol.unit else ""
        lines.append(f"  {symbol.label or symbol.name}{value}: {printable(symbol.meaning)}{unit}")
    for name, line in sheet.derived.items():
        symbol = load.derived[name]
        meaning = f": {printable(symbol.meaning)}" if symbol.meaning else ""
        lines.append(f"  {symbol.label or name} = {_with_value(line)}{meaning}")
    for title, rows in [*sheet.ranges.items(), ("Total", sheet.total)]:
        if rows:
            lines += ["", printable(title)]
            lines += [f"  {_QUANTITIES[q][0]:<23}{_with_value(r)}" for q, r in rows.items()]
    peers = " + GPU-to-GPU bytes" if "peer_bytes" in sheet.total else ""
    moved = f"PCIe bytes + MPI bytes{peers}"
    lines += ["", f"Arithmetic intensity AI = FLOPs / ({moved}), in FLOP/byte"]
    if sheet.intensity is None:
        return "\n".join([*lines, "  not defined: no FLOPs, or no bytes moved"]) + "\n"
    lines.append(f"  AI = {_with_value(sheet.intensity)}")
    lines += ["", "What raises arithmetic intensity: elasticity (s/AI) dAI/ds, the others held"]
    for name, (sensitivity, found) in sheet.sensitivities.items():
        label = load.symbols[name].label or name
        lines.append(f"  {label}: AI {_effect(sensitivity)}{_elasticity(found)}")
    return "\n".join(lines) + "\n"


def _with_value(line: _Line) -> str:
    if line.value is None or line.text == str(line.value):
        return line.text
    value = f"{line.value:.6g}" if isinstance(line.value, float) else f"{line.value:,}"
    return f"{line.text} = {value}"


def _elasticity(line: _Line | None) -> str:
    if line is None:
        return ""
    shown = [line.text] if len(line.text) <= _LONGEST_ELASTICITY else []
    value = "" if line.value is None else f"{line.value:.3g}"
    if value and value != line.text:
        shown.append(value)
    return f"; elasticity {' = '.join(shown)}" if shown else ""


_FORMULAS: Final = (
    Column("range", "Range", wrap=False),
    Column("quantity", "Quantity", wrap=False),
    Column("formula", "Formula"),
    Column("value", "Value", "float"),
)


def _write_table(sheet: _Sheet, fmt: str) -> str:
    from perfmodel.base.table import render

    rows: list[tuple[str, str, str, Number | None]] = [
        (title, quantity, line.text, line.value)
        for title, lines in [*sheet.ranges.items(), ("Total", sheet.total)]
        for quantity, line in lines.items()
    ]
    if sheet.intensity is not None:
        rows.append(("Total", "flops_per_byte", sheet.intensity.text, sheet.intensity.value))
    return render(Table("Formulas per rank and batch", _FORMULAS, rows), fmt)


def _write_latex(sheet: _Sheet) -> str:
    load = sheet.workload
    derived = [
        (_latex_label(load.derived[name].label or name), line)
        for name, line in sheet.derived.items()
    ]
    blocks = [
        f"% {printable(load.name)}, counting {load.counting}; needs \\usepackage{{amsmath}}",
        *_align("Derived symbols", derived),
    ]
    for title, rows in [*sheet.ranges.items(), ("Total", sheet.total)]:
        blocks += _align(title, [(_QUANTITIES[q][1], line) for q, line in rows.items()])
    if sheet.intensity is not None:
        blocks += _align("Arithmetic intensity", [(r"\mathrm{AI}", sheet.intensity)])
        partial = [
            (
                rf"\frac{{\partial \ln \mathrm{{AI}}}}"
                rf"{{\partial \ln {_latex_label(load.symbols[name].label or name)}}}",
                line,
            )
            for name, (_, line) in sheet.sensitivities.items()
            if line and len(line.text) <= _LONGEST_ELASTICITY
        ]
        blocks += _align("Elasticities of arithmetic intensity", partial)
    return "\n".join(blocks) + "\n"


def _align(title: str, rows: list[tuple[str, _Line]]) -> Iterator[str]:
    if not rows:
        return
    yield rf"\paragraph{{{escape_latex(title)}}}"
    yield r"\begin{align*}"
    yield " \\\\\n".join(f"  {left} &= {line.latex}" for left, line in rows)
    yield r"\end{align*}"


def _write_json(sheet: _Sheet) -> str:
    load = sheet.workload

    content = {
        "name": load.name,
        "counting": load.counting,
        "source": load.source,
        "batch_range": load.batch_range or None,
        "symbols": {
            s.name: {"label": s.label or s.name, "meaning": s.meaning, "unit": s.unit}
            for s in [*load.symbols.values(), *load.derived.values()]
        },
        "values": sheet.values,
        "derived": sheet.derived,
        "ranges": sheet.ranges,
        "total": sheet.total,
        "arithmetic_intensity": sheet.intensity,
        "elasticities": {
            name: {"sign": s.sign, "effect": _effect(s), "formula": line}
            for name, (s, line) in sheet.sensitivities.items()
        },
    }
    return escape_json(json.dumps(plain(content), indent=2, ensure_ascii=False)) + "\n"
