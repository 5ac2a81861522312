"""Fuzz targets for what is read of PyTorch, JAX, NCCL and MPI, and for the options that go with it.

Each takes bytes; the same bytes are the same case. See `support.fuzz_targets`.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import lzma
import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.common import folders
from perfmodel.analysis.analyze import analyze
from perfmodel.base import escape
from perfmodel.base.kernels import kernel_types
from perfmodel.base.pattern import matching
from perfmodel.programs import jax
from perfmodel.programs.layers import LayeredStep
from perfmodel.programs.program import Options
from perfmodel.programs.pytorch.calls import Calls, Kernels, find_calls
from perfmodel.programs.pytorch.counters import counted_operators
from perfmodel.programs.pytorch.names import parse
from perfmodel.programs.pytorch.operators import FORMULAS
from perfmodel.programs.pytorch.ranges import name_of
from perfmodel.programs.pytorch.tree import Tree
from perfmodel.readers import nsys, nvtx
from perfmodel.readers.ncu import read_counters
from perfmodel.readers.trace import KERNEL, MEMCPY, GpuOps
from perfmodel.render import summary
from perfmodel.render.analysis_json import analysis_document
from perfmodel.timing.kernels import categorize
from perfmodel.timing.nccl import _ALGORITHM
from perfmodel.workloads.layers import total
from perfmodel.workloads.networks import network
from support.build_operators import (
    BACKWARD,
    FORWARD,
    OPTIMIZER,
    PAYLOAD,
    THUNKS,
    operators_report,
)
from support.build_training import training_report
from support.fuzz_draws import Draws, drawn
from support.fuzz_options import check_command

KERNELS: Final = tuple(kernel for _, kernel in (*FORWARD, *BACKWARD, *THUNKS, OPTIMIZER))
LABELS: Final = tuple(
    label.format(o=7 + i, p=6 + i, s=3 + i)
    for i, (label, _) in enumerate((*FORWARD, *BACKWARD, *THUNKS, OPTIMIZER))
)
NUMBERS: Final = (
    "0", "1", "2", "3", "8", "64", "1024", "999999999999999999", "1000000000000000000",
    "9999999999999999999", "10000000000000000000", "18446744073709551616", "-1", "-0", "007",
    "1e9", "1.5", "NaN", "Infinity", "٣", "²", "𝟙", "", " ", "()", "[", "]", "[]", "null", "true",
    "9" * 400,
)  # fmt: skip
BRACKETS: Final = (
    "[" * 100_000,
    "[" * 100_000 + "]" * 100_000,
    "[[1], " * 9000,
    "[[" + "1, " * 9000,
)
"""Sizes nested or repeated as no program writes them."""
TEXTS: Final = (
    "", "\0", "\x1b[2J", "\u202eevil", "\ud7ff", "é" * 99, "a" * 3000, "aten::", "aten::mm" * 99,
    "autograd::engine::evaluate_function: ", "nn.Module: ", "nn.Module: \x1b]0;x\a", "Optimizer.",
    "triton_", "triton_poi_fused_norm_embedding__to_copy_backward_1", "forward", "backward", "step",
    "optimizer", "$x_1$ \\input{x} [b]y[/b] <script>", "=1+1", ", sizes = ", ", op_id = , seq = ",
)  # fmt: skip


def operators(data: bytes) -> None:
    """Count operators whose names were drawn: odd sizes, ids, names and nesting."""
    draw = Draws(data)
    _counted([_label(draw) for _ in range(draw.choice((1, 2, 5, 20)))], draw)


def operator_names(data: bytes) -> None:
    """Count operators by the text of their names, one a line."""
    _counted(data.decode("utf-8", "replace").split("\n"), Draws(data[-64:]))


def _label(draw: Draws) -> str:
    if draw.random() < 0.15:
        label = draw.choice(LABELS)
        at = draw.randrange(len(label))
        return label[:at] + draw.choice((*NUMBERS, *TEXTS)) + label[at + draw.randrange(4) :]
    name = draw.choice(TEXTS) if draw.random() < 0.15 else draw.choice([*FORMULAS, "triton_poi_x"])
    if draw.random() < 0.02:
        return f"{name}, op_id = 1, sizes = {draw.choice(BRACKETS)}"
    often = draw.choice((NUMBERS[:6], NUMBERS[:9], NUMBERS))
    dimensions = draw.choice((None, 1, 2, 3, 4, 4))

    def size() -> str:
        return f"[{', '.join(draw.choice(often) for _ in range(dimensions or draw.randrange(6)))}]"

    sizes = ", ".join(size() for _ in range(draw.choice((0, 1, 2, 3, 4, 5, 12))))
    ids = ", ".join(
        f"({draw.choice((*NUMBERS, '1', '2', '3', '4'))},{draw.choice(('0', '0', '-1', '9', 'x'))})"
        for _ in range(draw.randrange(5))
    )
    parts = [
        name,
        f", seq = {draw.choice(NUMBERS)}" if draw.random() < 0.5 else "",
        f", op_id = {draw.randrange(9) if draw.random() < 0.8 else draw.choice(NUMBERS)}",
        f", sizes = [{sizes}]",
        f", input_op_ids = [{ids}]" if draw.random() < 0.6 else "",
    ]
    return "".join(parts)


def _counted(labels: list[str], draw: Draws) -> None:
    names = parse(labels)
    count = len(labels)
    if int(names.first[-1]) != len(names.input_op) or len(names.input_op) != len(
        names.input_output
    ):
        raise AssertionError("inputs are not in pairs")
    if any(n < 0 for sizes in names.sizes for size in sizes or () for n in size):
        raise AssertionError("a size below 0")
    parent = np.array([draw.randrange(-1, i) if i else -1 for i in range(count)], np.int64)
    tree = Tree(np.arange(count), parent, np.arange(count))
    many = draw.randrange(1, 9)
    kernels = Kernels(
        np.array([draw.randrange(-1, count) for _ in range(many)], np.int64),
        np.array([draw.randrange(-1, len(KERNELS)) for _ in range(many)], np.int32),
        np.array([draw.choice((KERNEL, KERNEL, MEMCPY)) for _ in range(many)], np.int8),
        np.array([draw.choice((0, 1000, 2**61)) for _ in range(many)], np.int64),
        np.array([draw.choice((0, 4096, 2**61, -1)) for _ in range(many)], np.int64),
        KERNELS,
    )
    for causal in (False, True):
        found = find_calls(names, tree, kernels, draw.choice((None, "bfloat16")), causal=causal)
        _sound(found, many)


def _sound(found: Calls, many: int) -> None:
    if len(found.owner) != many or found.owner.max(initial=-1) >= len(found.calls):
        raise AssertionError("an operation belongs to no call that is there")
    for call in found.calls:
        json.dumps(call.described)
        if call.work is None:
            continue
        counts = (*call.work[:3], call.fusible_bytes)
        if not all(isinstance(n, int) and n >= 0 for n in counts):
            raise AssertionError(f"{call.name} {call.sizes}: {counts}")


def nccl_payload(data: bytes) -> None:
    """Read the payload of an NCCL range."""
    found = nvtx.parse(data.decode("utf-8", "replace"))
    if found is not None:
        np.array(found, np.int64)


def kernel_names(data: bytes) -> None:
    """Read all that is read off the name of a kernel, or of a range of JAX."""
    text = data.decode("utf-8", "replace")
    for name in (text, (text * 3000)[:100_000]):
        kernel_types.__wrapped__(name)
        _ALGORITHM.search(name)
        name_of(name)
        found = jax.hlo_operation(name)
        if found:
            jax._hlo_key(*found)
        jax._MODULE.match(name)
        none = np.zeros(1, np.int64)
        codes = np.zeros(1, np.int32)
        named = {"kind": np.full(1, KERNEL, np.int8), "name": codes}
        columns = {f.name: named.get(f.name, none) for f in dataclasses.fields(GpuOps)}
        categorize(GpuOps(**columns), [name])


def batch_range(data: bytes) -> None:
    """Take the first line for --batch-range, and search it in the others."""
    asked, *names = data.decode("utf-8", "replace").split("\n")
    found = matching(asked, names, "--batch-range")
    if not found <= set(range(len(names))):
        raise AssertionError("a name that is not there")
    if not (len(asked) > 2 and asked[0] == asked[-1] == "/"):
        exact = {i for i, name in enumerate(names) if name == asked}
        if not exact <= found:
            raise AssertionError("a name does not match itself")


def config_json(data: bytes) -> None:
    """Count a network by a config.json."""
    path = _folder() / "config.json"
    path.write_bytes(data)
    net = network(str(path))
    for batch, item in ((1, 4), (2**31, 2)):
        cost = total(net, batch, item)
        if min(dataclasses.astuple(cost)) < 0:
            raise AssertionError("less than nothing")


def counter_tables(data: bytes) -> None:
    """Read the table of counters of a PyTorch program, and give its launches to operators."""
    path = _folder() / "counters.csv"
    path.write_bytes(data)
    for one in counted_operators(read_counters([path]).launches).items():
        json.dumps(one)


@functools.cache
def _folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="perfmodel-fuzz-"))


@functools.cache
def _two_reports() -> tuple[Path, Path]:
    one, other = _folder() / "one.sqlite", _folder() / "other.sqlite"
    operators_report(one)
    training_report(other)
    return one, other


def command_line(data: bytes) -> None:
    """Run `study layers`, `analyze` or `compare` with odd settings, one argument a line."""
    arguments = data.replace(b"\0", b"").decode("utf-8", "replace").split("\n")
    if arguments[0] not in ("study", "analyze", "compare") or len(arguments) > 40:
        return
    word = "".join(arguments[2:3] if arguments[0] == "study" else arguments[1:2])
    if ":" in word and not word.startswith("layers:"):  # a module that would be imported
        return
    places = {"ONE": str(_two_reports()[0]), "OTHER": str(_two_reports()[1])}
    if any(a.startswith(("-o", "--o", "--j", "--sch", "--sh=")) or "/" in a for a in arguments):
        return  # writes files, starts processes, opens connections
    given = [places.get(a, a) for a in arguments]
    check_command(given)


@functools.cache
def _loose(kind: str) -> tuple[bytes, tuple[tuple[str, str, int], ...]]:
    from support.fuzz_targets import loosened

    path = _folder() / f"{kind}.sqlite"
    operators_report(path, FORWARD if kind == "pytorch" else THUNKS)
    return loosened(path.read_bytes())


def program_cells(data: bytes) -> None:
    """Put odd values into a report with operators, payloads and messages, and analyze it."""
    from support.fuzz_targets import ODD

    draw = Draws(data)
    report, found = _loose(draw.choice(("pytorch", "pytorch", "jax")))
    path = _folder() / "cells.sqlite"
    path.write_bytes(report)
    with closing(sqlite3.connect(path)) as db:
        for _ in range(draw.choice((1, 1, 2, 4))):
            _put(db, found, draw, ODD)
        db.commit()
    options = draw.choice((
        {}, {}, {"batch_label": "step *"}, {"batch_label": "nn.Module*"}, {"dtype": "bfloat16"},
        {"causal": True}, {"warmup": 1}, {"shapes": _two_reports()[0]},
        {"layers": LayeredStep(network("gpt2", n_layer=1), 4)},
    ))  # fmt: skip
    swapped = "shapes" in options and draw.random() < 0.5
    if swapped:
        options = {"shapes": path}
    trace = nsys.read_sqlite(_two_reports()[0] if swapped else path)
    analysis = analyze([trace], Options(**options))
    json.dumps(analysis_document(analysis), allow_nan=False)
    shown = summary.result(analysis).render(width=120)
    if escape._UNSAFE.search(shown.replace("\n", "")):
        raise AssertionError("the summary holds what a terminal obeys")


def _put(
    db: sqlite3.Connection, found: tuple[tuple[str, str, int], ...], draw: Draws, odd: Any
) -> None:
    """Change text of ranges and payloads in half of the cases, else any cell."""
    what = draw.random()
    if what < 0.35:
        label = _label(draw)
        some = "SELECT rowid FROM StringIds ORDER BY substr(id * ?, -3) LIMIT 1"
        where = [label, draw.randrange(1, 999)]
        db.execute(f"UPDATE StringIds SET value = ? WHERE rowid = ({some})", where)
    elif what < 0.5:
        text = draw.choice((
            PAYLOAD.replace("16777216", draw.choice(NUMBERS)), draw.choice(TEXTS), "[" * 9000,
            PAYLOAD.replace("741632126823164949", draw.choice(NUMBERS)),
        ))  # fmt: skip
        some = draw.choice(("", " AND start % 3 = 0"))
        db.execute(f"UPDATE NVTX_EVENTS SET jsonText = ? WHERE jsonText IS NOT NULL{some}", [text])
    else:
        table, column, rows = draw.choice(found)
        where = draw.choice(("", f" WHERE rowid = {draw.randrange(rows) + 1}"))
        db.execute(f"UPDATE {table} SET {column} = ?{where}", [draw.choice(odd)])


COMMANDS: Final = (
    "study\nlayers\ngpt2\n--set\nn_layer=2\n--set\nseq=512\n-B\n4\n--json",
    "study\nlayers\nresnet50\n--set\nimage=160\n--machine\nh200\n--ppp\n0.5\n--dtype\nbfloat16",
    "study\nlayers\nllama-3-8b\n--set\nn_layer=1\n--machine\nh100\n--measured\n46.7ms\n-p\n8\n--link\n25GB",
    "study\nlayers\nvit_b_16\n--set\npatch=8\n--machine\nh200\n--forward\n--all\n--json",
    "analyze\nONE\n--workload\nlayers:gpt2\n--set\nn_layer=1\n--set\ntraining=0\n-B\n8\n--json",
    "analyze\nONE\n--batch-range\nstep *\n--warmup\n1\n--attention\ncausal\n--json",
    "analyze\nOTHER\n--shapes\nONE", "analyze\nONE\n--shapes\nOTHER",
    "compare\nONE\nONE\n--fail-if-slower\n5%\n--least\n1\n--json",
    "compare\nONE\n--to\nOTHER\n--fail-if-slower\n0", "compare\nONE\nOTHER\n--launch-noise\n900",
)  # fmt: skip


def _counters() -> list[bytes]:
    """The first lines of recorded tables."""
    found = []
    for path in sorted(folders.PROGRAMS.glob("*_ncu.csv.xz")):
        lines = lzma.decompress(path.read_bytes()).splitlines(keepends=True)
        found.append(b"".join(lines[:14]))
    return found


CONFIGS: Final = (
    {"model_type": "gpt2", "n_layer": 2, "n_embd": 64, "n_head": 4, "vocab_size": 99},
    {"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4,
     "num_key_value_heads": 2, "intermediate_size": 128, "tie_word_embeddings": True},
    {"model_type": "vit", "image_size": 32, "patch_size": 8, "num_channels": 3},
    {"model_type": "bert", "type_vocab_size": 2, "max_position_embeddings": 64},
)  # fmt: skip
SEEDS: Final[dict[str, list[bytes]]] = {
    "operators": drawn(9),
    "operator_names": ["\n".join(LABELS).encode(), *(label.encode() for label in LABELS)],
    "nccl_payload": [PAYLOAD.encode()],
    "kernel_names": [name.encode() for name in (*KERNELS, *LABELS)],
    "batch_range": [
        b"step *\nstep 1\nstep 2\nlog", b"/^step [0-9]+$/\nstep 1\nstep\n", b"s[tT]ep ?\nstep 1",
        b"*a*a*a*a*b\n" + b"a" * 5000, b"/(a|b)*c/\nababab",
    ],
    "config_json": [json.dumps(config).encode() for config in CONFIGS],
    "counter_tables": _counters(),
    "command_line": [line.encode() for line in COMMANDS],
    "program_cells": drawn(9),
}  # fmt: skip
PROGRAM_TARGETS: Final[tuple[Callable[[bytes], None], ...]] = (
    operators, operator_names, nccl_payload, kernel_names, batch_range, config_json,
    counter_tables, command_line, program_cells,
)  # fmt: skip
assert {t.__name__ for t in PROGRAM_TARGETS} == set(SEEDS)
