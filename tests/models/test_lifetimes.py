"""Allocations of a step that are counted by hand."""

from __future__ import annotations

from perfmodel.models.lifetimes import (
    HELD,
    Tensor,
    fused,
    in_halves,
    of_one_type,
    peak_of,
    saved_by_fusion,
)

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


# calls: 0 a norm, 1 a product, 2 an activation, 3 a product, then 4 to 7 their backward pass
KINDS = ("wide", "product", "", "product", "product", "", "product", "wide")
FULL = (
    Tensor(HELD, (0,), 0, 0, 4),
    Tensor(0, (1, 6), 1, 0, 4),  # the norm's result, which product 1 reads in both passes
    Tensor(1, (2, 5), 2, 0, 4),
    Tensor(2, (3, 4), 3, 0, 4),
    Tensor(4, (5,), 5, 0, 4),
    Tensor(5, (6,), 6, 0, 4),
    Tensor(6, (7,), 7, 0, 4),
    Tensor(6, (), 6, 1, 4, gradient=True),
)


def test_autocast_adds_casts_for_products_and_halves_what_they_make() -> None:
    parameter = Tensor(HELD, (1, 6), 1, 1, 4)
    found = in_halves(FULL, KINDS, [parameter], 4)
    kept = {(t.made, t.readers, t.item_bytes, t.gradient) for t in found}
    assert kept == {
        (HELD, (0,), 4, False),
        (0, (1,), 4, False),  # until it is cast
        (1, (1, 6), 2, False),  # the cast, which the backward pass reads again
        (1, (2, 5), 2, False), (2, (3, 4), 2, False),
        (4, (5,), 2, False), (5, (6,), 2, False),  # an activation's gradients follow it
        (6, (7,), 2, False), (7, (7,), 4, False),  # a norm's are cast
        (6, (6,), 2, False), (6, (), 4, True),  # so is a parameter's gradient
        (1, (1, 6), 2, False),  # and the parameter for its product
    }  # fmt: skip
    assert len(found) == 12


def test_without_autocast_there_are_no_casts() -> None:
    """Calls: 0 makes 4 bytes, 1 casts them, 2 is a product of the backward pass, 3 casts back."""
    halves = (
        Tensor(0, (1,), 1, 0, 4),
        Tensor(1, (2,), 2, 0, 2),
        Tensor(2, (3,), 3, 0, 2),
        Tensor(3, (), 3, 0, 4, gradient=True),
    )
    (made, gradient) = of_one_type(halves, {1, 3}, 4)
    assert (made.made, made.readers, made.item_bytes) == (0, (2,), 4)
    assert gradient == halves[3]
    (made, gradient) = of_one_type(halves, {1, 3}, 2)
    assert made.item_bytes == 2
    assert gradient.item_bytes == 4  # a shard's gradient is as its parameter


def test_a_kernel_keeps_what_products_read_and_makes_the_rest_again() -> None:
    """Calls: 0 a product, 1 and 2 element-wise, 3 a product; 4 to 6 their backward pass."""
    tensors = (
        Tensor(0, (1,), 1, 0, 2),
        Tensor(1, (2, 5), 2, 0, 4, until=6),  # made again from the product's result, half as large
        Tensor(2, (3, 4), 3, 0, 2),  # an operand of a product
        Tensor(4, (5,), 5, 0, 2),
        Tensor(5, (6,), 6, 0, 2),
    )
    products = (True, False, False, True, True, False, True)
    found, sizes = fused(tensors, (20, 40, 20, 20, 20), products, set(), 4)
    assert [(t.made, t.readers) for t in found] == [
        (0, (1, 5)), (2, (3, 4)), (4, (5,)), (5, (6,)),
    ]  # fmt: skip
    assert sizes == [20, 20, 20, 20]


def test_a_kernel_casts_one_tensor_once() -> None:
    """Calls: 0 element-wise, 1 and 3 cast for products 2 and 4; 5 and 6 are backward."""
    tensors = (
        Tensor(0, (1, 3), 1, 0, 4),
        Tensor(1, (2, 6), 2, 0, 2),
        Tensor(3, (4, 5), 4, 0, 2),
    )
    products = (False, False, True, False, True, True, True)
    found, _ = fused(tensors, (40, 20, 20), products, {1, 3}, 5)
    assert [(t.made, t.readers) for t in found] == [(1, (2, 4, 5, 6))]
