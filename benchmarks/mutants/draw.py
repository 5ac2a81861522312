"""Draws mutants: small faults at places that a seed chooses, the same number in each module.

A mutant changes one operator, constant or statement of a function. Which kinds there are follows
the sufficient set of Offutt et al., "An experimental determination of sufficient mutant operators"
(1996): relational, logical, arithmetic and unary operators, with constants and statements added.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

ROOMS: Final = ("base", "readers", "timing", "workloads", "machines", "models", "programs",
                "analysis", "render", "commands")  # fmt: skip
"""Rooms of perfmodel that a module is drawn from."""

LEAST_STATEMENTS: Final = 120
"""Statements of a module that may be drawn: fewer have too few places for 30 mutants."""

_COMPARED: Final[dict[type, type]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_COMPUTED: Final[dict[type, type]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Mutant:
    """One fault: the nth change of a kind at a node, counted as `ast.walk` meets them."""

    module: str
    function: str
    line: int
    number: int
    what: str

    def document(self) -> dict[str, Any]:
        """Return it as JSON."""
        return asdict(self)


def _changes(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Yield what could stand in place of a node, with its words."""
    match node:
        case ast.Compare(ops=[op]) if type(op) in _COMPARED:
            other = _COMPARED[type(op)]()
            yield (f"{type(op).__name__} -> {type(other).__name__}",
                   ast.Compare(node.left, [other], node.comparators))  # fmt: skip
        case ast.BoolOp():
            other_op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            yield f"-> {type(other_op).__name__}", ast.BoolOp(other_op, node.values)
        case ast.BinOp() if type(node.op) in _COMPUTED:
            made = _COMPUTED[type(node.op)]()
            yield (f"{type(node.op).__name__} -> {type(made).__name__}",
                   ast.BinOp(node.left, made, node.right))  # fmt: skip
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            yield f"without {type(node.op).__name__}", node.operand
        case ast.IfExp():
            yield "branches swapped", ast.IfExp(node.test, node.orelse, node.body)
        case ast.Constant(value=bool()):
            yield f"-> {not node.value}", ast.Constant(not node.value)
        case ast.Constant(value=int() | float()):
            yield f"{node.value} -> {node.value + 1}", ast.Constant(node.value + 1)
        case ast.Return(value=ast.expr()):
            yield "returns None", ast.Return(ast.Constant(None))
        case ast.Expr(value=ast.Call()) | ast.AugAssign():
            yield "statement left out", ast.Pass()
        case ast.If():
            yield "never", ast.If(ast.Constant(False), node.body, node.orelse)


def _inside(tree: ast.Module) -> Iterator[tuple[str, ast.AST, ast.AST, str, int | None]]:
    """Yield each node in a function: the function, the parent, and where it stands in it."""

    def walk(parent: ast.AST, name: str, inside: bool) -> Iterator[tuple[Any, ...]]:
        for field, value in ast.iter_fields(parent):
            for at, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
                if not isinstance(child, ast.AST):
                    continue
                if isinstance(parent, ast.FunctionDef) and field in ("args", "decorator_list",
                                                                     "returns"):  # fmt: skip
                    continue
                if field == "annotation":
                    continue
                defines = isinstance(child, ast.FunctionDef | ast.ClassDef)
                below = f"{name}.{child.name}".lstrip(".") if defines and not inside else name
                if inside and hasattr(child, "lineno"):
                    yield name, child, parent, field, at
                yield from walk(child, below, inside or isinstance(child, ast.FunctionDef))

    yield from walk(tree, "", inside=False)


def mutants_of(root: Path, module: str) -> Iterator[tuple[Mutant, str]]:
    """Yield every mutant of a module (a path below the root) with the module's changed text."""
    text = (root / module).read_text(encoding="utf-8")
    number = 0
    tree = ast.parse(text)
    for function, node, parent, field, at in list(_inside(tree)):
        for what, other in _changes(node):
            ast.copy_location(other, node)
            _put(parent, field, at, other)
            changed = ast.unparse(ast.fix_missing_locations(tree))
            _put(parent, field, at, node)
            yield Mutant(module, function, node.lineno, number, what), changed
            number += 1


def _put(parent: ast.AST, field: str, at: int | None, node: ast.AST) -> None:
    if at is None:
        setattr(parent, field, node)
    else:
        getattr(parent, field)[at] = node


def draw(root: Path, seed: int, each: int) -> list[tuple[Mutant, str]]:
    """Return `each` mutants of one module a room, in the order of the rooms."""
    chosen = random.Random(seed)
    found = []
    for room in ROOMS:
        modules = [
            path.relative_to(root).as_posix()
            for path in sorted((root / "perfmodel" / room).rglob("*.py"))
            if sum(isinstance(node, ast.stmt) for node in ast.walk(ast.parse(path.read_text())))
            >= LEAST_STATEMENTS
        ]
        everything = list(mutants_of(root, chosen.choice(modules)))
        found += sorted(
            chosen.sample(everything, min(each, len(everything))), key=lambda pair: pair[0].number
        )
    return found
