"""Comparisons of sides whose steps do not do the same work."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.common.folders import PROFILES
from perfmodel.analysis.compare.compare import CompareOptions, Side, compare_sides, compare_traces
from perfmodel.analysis.compare.series import KERNELS, TOKENS, Launch, Series
from perfmodel.api import Compared
from perfmodel.readers import read
from perfmodel.render.compare import compare_document

PROGRAMS = PROFILES / "programs"
STEP = ("range", ("step",))


def made(step_s: float, **known: dict[str, float]) -> list[Launch]:
    """Three launches of 20 steps that take as long as given, with one kernel."""
    series = {
        STEP: Series(np.full(20, step_s), "kernel"),
        ("kernel", (KERNELS,)): Series(np.full(20, step_s / 2), "kernel"),
        ("kernel", (KERNELS, "add")): Series(np.full(20, step_s / 2), "kernel"),
    }
    one = Launch("made", 0, 1, frozenset(), frozenset({"gpu", "nodes"}), series, **known)
    return [replace(one, label=str(i)) for i in range(3)]


def side(launches: list[Launch], **settings: str) -> Side:
    return Side(tuple(launches), (settings,) * len(launches))


def test_sizes_are_read_off_operators_where_flops_differ() -> None:
    """12 sequences of 384 tokens and 8 of 256: as the programs' truth has it."""
    names = ("gpt_shapes", "gpt_fp32_shapes")
    found = compare_traces(
        *([read(PROGRAMS / f"{name}.sqlite.xz")] for name in names), CompareOptions(limit=0.05)
    )
    changed = {d.name: (d.before, d.after) for d in found.differences if d.workload}
    assert changed["batch"] == (("12",), ("8",))
    assert changed["seq"] == (("384",), ("256",))
    assert found.unit is not None
    assert (found.unit.name, found.unit.before, found.unit.after) == ("token", 4608, 2048)
    assert found.gate is not None
    assert (found.gate.per, found.gate.slower) == ("token", True)  # 0.80 times the time for 0.44
    work = {w["name"]: (w["before"], w["after"]) for w in compare_document(found)["work"]}
    assert work["FLOPs"] == pytest.approx((971.0862336e9, 232.565768192e9))
    assert "FLOPs" in set(Compared(found).work["name"])
    assert found.addressed == ()


def test_half_the_batch_in_equal_time_is_twice_as_slow_a_sample() -> None:
    sides = (
        side(made(1e-3), **{"batch_size (B)": "64"}),
        side(made(1e-3), **{"batch_size (B)": "32"}),
    )
    found = compare_sides(*sides, CompareOptions(limit=0.05))
    assert found.gate is not None
    assert (found.gate.per, found.gate.slower) == ("sample", True)
    assert found.unit is not None
    assert found.unit.ratio == 0.5


def test_tokens_of_an_engines_steps_count() -> None:
    sides = side(made(1e-3, work={TOKENS: 4096.0})), side(made(2e-3, work={TOKENS: 8192.0}))
    found = compare_sides(*sides, CompareOptions(limit=0.05))
    assert found.gate is not None
    assert (found.gate.per, found.gate.slower) == ("token", False)
    assert found.batch.verdict == "slower"  # the step


@pytest.mark.parametrize(("threads", "slower"), [(1e6, False), (5e5, None), (2e6, False)])
def test_the_same_kernels_on_fewer_threads_are_no_pass(threads: float, slower: bool | None) -> None:
    sides = side(made(1e-3, threads={"add": 1e6})), side(made(1e-3, threads={"add": threads}))
    found = compare_sides(*sides, CompareOptions(limit=0.05))
    assert found.gate is not None
    assert found.gate.slower is slower
    said = [w for w in found.warnings if "other work" in w]
    assert len(said) == (threads != 1e6)


def test_no_bottleneck_is_addressed_by_a_smaller_batch() -> None:
    """Copies take half as long, of half the samples."""
    copies = ("link", ("Host-to-Device copies",))
    before, after = (
        [
            replace(x, series={**x.series, copies: Series(np.full(20, 0.5 * s), "kernel")})
            for x in made(s)
        ]
        for s in (1e-3, 5e-4)
    )
    found = compare_sides(side(before), side(after), CompareOptions())
    assert [row.name for row in found.addressed] == ["Host-to-Device copies"]
    sizes = ({"batch_size (B)": n} for n in ("64", "32"))
    sides = (side(x, **given) for x, given in zip((before, after), sizes, strict=True))
    assert compare_sides(*sides, CompareOptions()).addressed == ()
