"""Operators by module: ranges of `perfmodel.annotate`, and backward operators tied by number."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import perfmodel
from benchmarks.common.folders import PROGRAMS
from perfmodel.analysis.modules import ModulePart, module_rows
from perfmodel.cli import main
from perfmodel.programs.pytorch.annotate import MODULE
from perfmodel.programs.pytorch.names import parse
from perfmodel.programs.pytorch.tree import EVALUATE, Tree, find_modules


def modules_of(ranges: list[tuple[str, int]]) -> list[str]:
    """Modules of ranges, each a label and its parent, in the order of their start."""
    names = parse([label for label, _ in ranges])
    count = len(ranges)
    tree = Tree(
        np.arange(count),
        np.array([parent for _, parent in ranges], np.int64),
        np.arange(count),
    )
    found = find_modules(names, tree)
    return [found.paths[code] for code in found.of_node.tolist()]


FORWARD = [
    ("step 0", -1),
    (MODULE + "Net", 0),
    (MODULE + "Net.up", 1),
    ("aten::linear, seq = 7, op_id = 1", 2),
    ("aten::addmm, seq = 7, op_id = 2", 3),
    ("aten::detach, seq = 8, op_id = 3", 2),  # makes no function: the next operator has its number
    (MODULE + "Net.down", 1),
    ("aten::addmm, seq = 8, op_id = 4", 6),
]
IN_FORWARD = ["", "Net", "Net.up", "Net.up", "Net.up", "Net.up", "Net.down", "Net.down"]


def backward(number: int, parent: int) -> list[tuple[str, int]]:
    return [
        (f"{EVALUATE}: AddmmBackward0, op_id = 9", -1),
        (f"AddmmBackward0, seq = {number}, op_id = 10", parent),
        ("aten::mm, op_id = 11", parent + 1),
    ]


def test_a_backward_operator_belongs_to_the_module_of_its_forward() -> None:
    found = modules_of([*FORWARD, *backward(8, 8), *backward(7, 11)])
    assert found == [*IN_FORWARD, *["Net.down"] * 3, *["Net.up"] * 3]


def test_what_the_engine_does_after_a_function_belongs_to_its_module() -> None:
    """It sums the gradient of a bias up over the rows outside of the function's own range."""
    after = ("aten::sum, op_id = 12, sizes = [[8, 4], []]", 8)
    assert modules_of([*FORWARD, *backward(8, 8), after])[-1] == "Net.down"


def test_a_number_of_no_forward_ties_nothing() -> None:
    assert modules_of([*FORWARD, *backward(6, 8)]) == [*IN_FORWARD, "", "", ""]


def test_what_the_backward_pass_recomputes_belongs_to_the_module_around_it() -> None:
    again = [
        (f"{EVALUATE}: CheckpointFunctionBackward, op_id = 20", -1),
        ("CheckpointFunctionBackward, seq = 8, op_id = 21", 8),
        (MODULE + "Net.up", 9),
        ("aten::addmm, seq = 30, op_id = 22", 10),
    ]
    assert modules_of([*FORWARD, *again])[8:] == ["Net.down", "Net.down", "Net.up", "Net.up"]


def test_a_later_step_with_numbers_of_its_own_is_tied_to_its_own_forward() -> None:
    later = [(MODULE + "Net.other", -1), ("aten::mm, seq = 8, op_id = 31", 11)]
    found = modules_of([*FORWARD, *backward(8, 8), *later, *backward(8, 13)])
    assert found[8:11] == ["Net.down"] * 3
    assert found[13:] == ["Net.other"] * 3


def test_a_hostile_number_and_depth_of_modules_ends() -> None:
    deep = "Net" + ".0" * 100_000
    many = [*(f"Net.{i}" for i in range(20_000)), deep]
    parts = [ModulePart(name, "forward", 1.0, 1.0, 1.0, 0.0, 0.0) for name in many]
    start = time.process_time()
    rows = module_rows(parts, lambda name: name)
    assert rows[0].flops == len(many)
    assert max(row.name.count(".") for row in rows[:-1]) < 100_001
    assert time.process_time() - start < 10


@pytest.mark.slow
def test_a_recorded_model_is_shown_by_module(tmp_path: Path) -> None:
    """4 layers of width 512, 8 x 256 tokens, 10000 words: forward 2 FLOPs a weight and token."""
    results = perfmodel.analyze(PROGRAMS / "gpt_modules.sqlite.xz")
    work = results.run.work
    assert work is not None
    rows = {row.name: row for row in work.modules}
    blocks = [f"Transformer.blocks.{i}" for i in range(4)]
    assert set(rows) == {
        "", "Transformer", "Transformer.blocks",
        *(f"Transformer.{n}" for n in ("tokens", "places", "norm", "head")),
        *blocks,
        *(f"{b}.{n}" for b in blocks for n in ("first", "second", "attention", "mlp")),
        *(f"{b}.attention.{n}" for b in blocks for n in ("query", "key_value", "out")),
        *(f"{b}.mlp.{n}" for b in blocks for n in ("up", "down")),
    }  # fmt: skip
    tokens, width = 8 * 256, 512
    scores = 14 * 8 * 8 * 256 * 256 * 64
    for block in blocks:
        assert rows[f"{block}.mlp.up"].flops == 3 * 2 * tokens * width * 4 * width
        assert rows[f"{block}.mlp"].flops == 3 * 2 * tokens * width * 8 * width
        assert rows[f"{block}.attention"].flops == 3 * 2 * tokens * 4 * width * width + scores
    assert rows["Transformer.head"].flops == 3 * 2 * tokens * width * 10000
    root = rows["Transformer"]
    assert root.flops == work.flops
    parts = [r for n, r in rows.items() if n.count(".") == 1]
    assert root.gpu_s == pytest.approx(sum(r.gpu_s for r in parts) + root.own_s)
    assert root.gpu_s == pytest.approx(root.forward_s + root.backward_s)
    assert root.share + rows[""].share == pytest.approx(1)
    assert root.bytes + rows[""].bytes == pytest.approx(work.bytes)
    # outside: AdamW; of the scores a cast and back, a fill, log-softmax and its backward
    assert rows[""].bytes == pytest.approx(28 * 22_981_632 + 36 * tokens * 10000, rel=1e-3)
    frame = results.modules
    assert frame["flops"].max() == work.flops
    (group,) = (r for r in work.module_groups if r.name == "Transformer.blocks.*.mlp")
    assert group.flops == 4 * rows["Transformer.blocks.0.mlp"].flops
    done = CliRunner().invoke(
        main, ["analyze", "--section", "all", str(PROGRAMS / "gpt_modules.sqlite.xz")]
    )
    assert "\n  blocks.* " in done.output
    assert "\n    mlp " in done.output
    page = tmp_path / "report.html"
    words = ["report", str(PROGRAMS / "gpt_modules.sqlite.xz"), "-o", str(page)]
    assert CliRunner().invoke(main, words).exit_code == 0
    text = page.read_text(encoding="utf-8")
    assert "Operators by module of a median step" in text
    assert "Operators by phase of a median step" in text
    assert "Of the operators&#39; ceilings" in text
    assert "Operators without FLOPs by formula stand on the left" in text
    assert "No roofline can be drawn" not in text
    assert "D, H, C and B" not in text


def test_a_model_is_annotated_and_is_what_it_was_before() -> None:
    torch = pytest.importorskip("torch")
    pushed: list[str] = []
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ModuleList([torch.nn.ReLU()]))
    net.forward = lambda x: net[1][0](net[0](x))
    expected = net(x := torch.ones(2, 3))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda.nvtx, "range_push", pushed.append)
        patch.setattr(torch.cuda.nvtx, "range_pop", lambda: pushed.append("pop"))
        remove = perfmodel.annotate(net)
        assert torch.equal(net(x), expected)
        root = MODULE + "Sequential"
        assert pushed == [root, f"{root}.0", "pop", f"{root}.1.0", "pop", "pop"]
        remove()
        net(x)
    assert len(pushed) == 6
