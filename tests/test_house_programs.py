"""What is known of one kind of program stands in its room and nowhere else."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from benchmarks.common.folders import ROOT
from perfmodel.programs import programs
from perfmodel.programs.program import Program
from perfmodel.studies.registry import MODELS, calibrated_of

PACKAGE = ROOT / "perfmodel"
RECORDS: Final = PACKAGE / "readers" / "run_records.py"  # of python -m trainer --record
OUTSIDE: Final = sorted(
    path
    for path in PACKAGE.rglob("*.py")
    if not path.is_relative_to(PACKAGE / "programs" / "mlp")
    and not path.is_relative_to(PACKAGE / "studies")
    and path != RECORDS
)
MEMORY: Final = {"analysis/memory.py", "render/memory.py"}
"""What is about the tensors that the trainer allocates. No other program has them, so that an
interface would have one implementation."""

RANGES: Final = {
    "batch iteration", "copying images host -> device", "forward GEMM 1", "forward GEMM 2",
    "backward GEMM 1", "backward GEMM 2", "backward GEMM 3", "peer all-reduce and step",
    "cudaMemcpyDeviceToHost", "cudaMemcpyHostToDevice",
}  # fmt: skip
"""Ranges of the trainer whose names no library and no other program has."""

SETTINGS: Final = {
    "transport", "data_on", "overlap", "sync_ranges", "host-flat", "chunked", "cuda-aware",
}  # fmt: skip
"""Settings of the trainer and their values, but for words that mean something by themselves."""

FLAGS: Final = ("--transport", "--data-on", "--overlap", "--gemm", "--math", "--evaluate-every")


def texts(source: str) -> Iterator[str]:
    """All strings of a file that are no docstring."""
    tree = ast.parse(source)
    said = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in said:
            yield node.value


def imports(source: str) -> Iterator[str]:
    """Modules that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def offences(path: Path) -> set[str]:
    source = path.read_text(encoding="utf-8")
    if not any(word in source for word in (*RANGES, *SETTINGS, *FLAGS)):
        return set()
    return {
        text
        for text in texts(source)
        if text in RANGES | SETTINGS or any(re.search(rf"{f}(?![\w-])", text) for f in FLAGS)
    }


def test_only_the_trainer_s_room_names_its_ranges_settings_and_flags() -> None:
    found = {path.relative_to(PACKAGE).as_posix(): offences(path) for path in OUTSIDE}
    assert {path: sorted(words) for path, words in found.items() if words} == {}


def test_nobody_but_memory_and_studies_imports_the_trainer_s_room() -> None:
    above = [path for room in ("analysis", "render", "commands") for path in
             (PACKAGE / room).rglob("*.py")]  # fmt: skip
    found = {
        path.relative_to(PACKAGE).as_posix()
        for path in [*above, PACKAGE / "api.py"]
        if "perfmodel.programs.mlp" in (source := path.read_text(encoding="utf-8"))
        and any(name.startswith("perfmodel.programs.mlp") for name in imports(source))
    }
    assert found == MEMORY


def test_programs_have_names_of_their_own() -> None:
    names = [program.name for program in programs()]
    assert len(set(names)) == len(names)


def test_the_interface_of_a_program_has_ten_methods_or_fewer() -> None:
    methods = [name for name, value in vars(Program).items() if callable(value) and name[0] != "_"]
    assert len(methods) <= 10, methods
    known = {name for name in vars(Program) if name[0] != "_"}
    for program in programs():
        own = {name for name in dir(program) if name[0] != "_"}
        assert own == known, program.name


def test_only_the_trainer_and_the_user_s_formulas_have_a_model_of_steps() -> None:
    calibrated = {program.name for program in programs() if calibrated_of(program) is not None}
    assert calibrated == {"mlp", "own"} == set(MODELS)
    assert calibrated == {program.name for program in programs() if program.by_formulas}
