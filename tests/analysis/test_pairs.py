"""Kernels of two recordings paired by operator and place."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.common.folders import PROFILES
from perfmodel.analysis.compare import pairs
from perfmodel.analysis.compare.pairs import pairs_of
from perfmodel.readers import read
from support.public_recordings import larger


def call(name: str, *inside: Any, ops: tuple[int, ...] = ()) -> Any:
    return pairs._Call(name, 0, list(inside), list(ops))


def aligned(old: Any, new: Any) -> tuple[list[Any], tuple[list[int], list[int]]]:
    found: list[Any] = []
    return found, pairs._align(old, new, found.append)


def test_equal_calls_are_aligned_and_others_by_place() -> None:
    old = call("", call("linear", call("addmm", ops=(0, 1))),
               call("attention", call("flash", ops=(2,))), call("gelu", ops=(3,)))  # fmt: skip
    new = call("", call("linear", call("addmm", ops=(10,))), call("gelu", ops=(13,)),
               call("attention", call("flash", ops=(12,))), call("gelu", ops=(14,)))  # fmt: skip
    found, left = aligned(old, new)
    assert ("addmm", "operator", [0, 1], [10]) in found
    assert ("flash", "operator", [2], [12]) in found
    assert ("gelu", "operator", [3], [14]) in found
    assert left == ([], [13])


def test_another_function_inside_one_operator_is_paired_by_place() -> None:
    old = call("", call("sdpa", call("flash", ops=(1,)), ops=()))
    new = call(
        "", call("sdpa", call("efficient", call("bmm", ops=(2,)), call("softmax", ops=(3,))))
    )
    found, left = aligned(old, new)
    assert found == [("sdpa", "place", [1], [2, 3])]
    assert left == ([], [])


def test_what_the_step_alone_has_in_common_is_no_pair() -> None:
    found, left = aligned(call("", call("a", ops=(1,))), call("", call("b", ops=(2,))))
    assert found == []
    assert left == ([1], [2])


def test_a_recording_is_paired_with_itself() -> None:
    trace = read(PROFILES / "programs" / "gpt_shapes.sqlite.xz")
    found = pairs_of(trace, trace)
    assert found is not None
    assert found.before_s == found.after_s > 0
    assert all(row.before == row.after and row.before_s == row.after_s for row in found.rows)
    assert all(row.by == "operator" for row in found.rows)
    assert min(found.shares) > 0.99
    paired = sum(row.before_s for row in found.rows)
    assert paired + found.alone_before_s == pytest.approx(found.before_s)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "before_ms", "after_ms"),
    [
        ("Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz", 31.905, 29.744),
        ("facebook_timesformer-base-finetuned-k400__1016002.json.gz", 158.43, 119.85),
        ("google_owlv2-large-patch14-ensemble__1016001.json.gz", 566.76, 331.82),
    ],
)
def test_two_vendors(name: str, before_ms: float, after_ms: float) -> None:
    """One forward, H100 and MI300X; GPU time of its operations counted from the JSON alone."""
    model = name.partition("__")[0]
    found = pairs_of(
        *(
            read(larger(f"{vendor}_{model}.json.gz", f"traces/{vendor}/{name}"))
            for vendor in ("h100", "mi300")
        )
    )
    assert found is not None
    assert found.before_s * 1e3 == pytest.approx(before_ms, rel=1e-4)
    assert found.after_s * 1e3 == pytest.approx(after_ms, rel=1e-4)
    assert min(found.shares) >= 0.95
    assert sum(row.before_s for row in found.rows if row.by == "operator") > 0.95 * found.before_s
    assert any(row.before != row.after for row in found.rows)
