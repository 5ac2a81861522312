"""Allocations of a step that are counted by hand."""

from __future__ import annotations

from perfmodel.models.lifetimes import HELD, Tensor, peak_of, saved_by_fusion

# calls: 0 and 1 forward, 2 and 3 backward, 4 the optimizer's
TENSORS = (
    Tensor(HELD, (0,), 0, 0, 4),  # the input
    Tensor(0, (1, 3), 1, 0, 2),  # saved for the backward pass
    Tensor(1, (2,), 2, 0, 4),
    Tensor(2, (3,), 3, 0, 4),
    Tensor(3, (), 3, 1, 4, gradient=True),
)
EACH = (5, 100, 40, 60, 30)


def test_what_is_alive_at_the_peak_is_counted_once() -> None:
    found = peak_of(TENSORS, EACH, range(5), (3, 4), 30, 2, {"workspace": 7})
    # at call 2: the input, 100 saved, 40 read and 60 written; no gradient of a parameter yet
    assert found.by_kind == {
        "parameters": 30, "optimizer": 60, "gradients": 0, "activations": 205, "workspace": 7,
    }  # fmt: skip
    assert found.bytes == 302


def test_layers_repeat_what_their_calls_made() -> None:
    found = peak_of(TENSORS, EACH, (0, 0, 0, 1, 2, 3, 3, 3, 4), (3, 4), 90, 2, {})
    # at call 3, which writes the gradients of three layers
    assert found.by_kind["activations"] == 5 + 3 * 100 + 60
    assert found.by_kind["gradients"] == 3 * 30


def test_gradients_stay_until_the_optimizer_has_read_them() -> None:
    each = (5, 100, 40, 60, 400)
    found = peak_of(TENSORS, each, range(5), (3, 4), 1000, 2, {})
    # those of which no call was seen are there at the end of the backward pass
    assert found.by_kind["gradients"] == 1000
    assert found.by_kind["activations"] == 5 + 100 + 60


def test_what_a_function_is_given_is_held_until_it_returns() -> None:
    held = (*TENSORS[:2], Tensor(1, (2,), 2, 0, 4, until=3), *TENSORS[3:])
    found = peak_of(held, EACH, range(5), (3, 4), 30, 2, {})
    # at call 3: the input, 100 saved, 40 that the function was given, 60 made in it, its gradient
    assert found.by_kind["activations"] == 205
    assert found.by_kind["gradients"] == 30


def test_a_fused_group_reads_once_and_keeps_its_own_in_registers() -> None:
    saved = saved_by_fusion(TENSORS, EACH, (0, 0, 1, 1, -1))
    # group 0: call 1 reads from a register what call 0 wrote, which group 1 reads, too: 100.
    # group 1: the 60 of call 2 are neither written nor read.
    assert saved == {0: 100, 1: 120}
    alone = saved_by_fusion(TENSORS, EACH, (-1, -1, -1, -1, -1))
    assert alone == {}
