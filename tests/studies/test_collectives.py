"""Collectives: costs by hand, against messages counted in simulations, bus bandwidth, fits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.base.errors import ModelError
from perfmodel.machines.machine import Link, bus_bytes_per_s
from perfmodel.studies.models.collectives import ALGORITHMS, Cost, cost, fit_link

Arrays = list[npt.NDArray[np.int64]]

# --- by hand


@pytest.mark.parametrize(
    ("collective", "algorithm", "expected"),
    [
        # n = 1000 B, p = 4: L = 2 rounds
        ("all-reduce", "recursive doubling", Cost(2, 2000, 2000)),
        ("all-reduce", "rabenseifner", Cost(4, 1500, 750)),
        ("all-reduce", "ring", Cost(6, 1500, 750)),
        ("reduce-scatter", "recursive halving", Cost(2, 750, 750)),
        ("reduce-scatter", "ring", Cost(3, 750, 750)),
        ("all-gather", "recursive doubling", Cost(2, 750, 0)),
        ("all-gather", "ring", Cost(3, 750, 0)),
        ("broadcast", "binomial tree", Cost(2, 2000, 0)),
        ("broadcast", "scatter and all-gather", Cost(5, 1500, 0)),
    ],
)
def test_costs_by_hand(collective: Any, algorithm: str, expected: Cost) -> None:
    assert cost(collective, 1000, 4, algorithm) == expected


def test_seconds_by_hand() -> None:
    """Ring, p = 4, n = 1000 B: 6 µs + 1500 B at 1 GB/s + 750 B at 3 GB/s = 7.75 µs."""
    link = Link(1e-6, 1e-9, 1e-9 / 3)
    assert cost("all-reduce", 1000, 4).seconds(link) == pytest.approx(7.75e-6)


def test_two_ranks_exchange_everything_once() -> None:
    """The document's rule at p = 2: n b bytes each way (Question 2.3 counts both directions)."""
    for name in tuple(ALGORITHMS["all-reduce"]):
        assert cost("all-reduce", 1_628_200, 2, name).sent_bytes == 1_628_200


def test_rounds_of_ranks_that_are_no_power_of_two() -> None:
    found = [cost("all-reduce", 8, p, "recursive doubling").messages for p in range(1, 10)]
    assert found == [0, 1, 2, 2, 3, 3, 3, 3, 4]


def test_short_messages_take_few_rounds_and_long_ones_few_bytes() -> None:
    def fastest(collective: Any, size: float) -> str:
        times = {n: cost(collective, size, 8, n).seconds(link) for n in ALGORITHMS[collective]}
        return min(times, key=times.__getitem__)

    link = Link(1e-6, 1e-9)
    assert fastest("all-reduce", 40) == "recursive doubling"
    assert fastest("all-reduce", 1e8) == "rabenseifner"
    assert fastest("broadcast", 1e8) == "scatter and all-gather"


# --- against simulations, message by message


def start(ranks: int, length: int = 24) -> Arrays:
    return [np.arange(length) * (r + 1) for r in range(ranks)]


def simulate_recursive_doubling(data: Arrays) -> tuple[Arrays, Cost]:
    rounds, sent, distance = 0, 0, 1
    while distance < len(data):
        data = [data[r] + data[r ^ distance] for r in range(len(data))]
        rounds, sent, distance = rounds + 1, sent + len(data[0]), 2 * distance
    return data, Cost(rounds, sent, sent)


def simulate_ring(data: Arrays) -> tuple[Arrays, Cost]:
    """Reduce-scatter around the ring, then all-gather around it; rank r's messages are counted."""
    p = len(data)
    parts = [list(np.array_split(d, p)) for d in data]
    messages = sent = reduced = 0
    for step in range(2 * (p - 1)):
        moving = [(r, (r - step) % p) for r in range(p)]
        arriving = [((r + 1) % p, part, parts[r][part].copy()) for r, part in moving]
        for r, part, values in arriving:
            parts[r][part] = parts[r][part] + values if step < p - 1 else values
        messages, sent = messages + 1, sent + len(arriving[0][2])
        reduced += len(arriving[0][2]) if step < p - 1 else 0
    return [np.concatenate(part) for part in parts], Cost(messages, sent, reduced)


def simulate_rabenseifner(data: Arrays) -> tuple[Arrays, Cost]:
    p, data = len(data), [d.copy() for d in data]
    mine = [(0, len(data[0]))] * p
    messages = sent = reduced = 0
    distance = p // 2
    trail: list[tuple[int, list[tuple[int, int]]]] = []
    while distance:
        trail.append((distance, mine))
        halves = []
        for r, (low, high) in enumerate(mine):
            middle = (low + high) // 2
            halves.append((low, middle) if not r & distance else (middle, high))
        before = [d.copy() for d in data]
        for r, (low, high) in enumerate(halves):
            data[r][low:high] += before[r ^ distance][low:high]
        size = halves[0][1] - halves[0][0]
        messages, sent, reduced = messages + 1, sent + size, reduced + size
        mine, distance = halves, distance // 2
    for distance, whole in reversed(trail):
        before = [d.copy() for d in data]
        for r in range(p):
            low, high = mine[r ^ distance]
            data[r][low:high] = before[r ^ distance][low:high]
        messages, sent = messages + 1, sent + mine[0][1] - mine[0][0]
        mine = whole
    return data, Cost(messages, sent, reduced)


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize(
    ("algorithm", "simulate"),
    [
        ("recursive doubling", simulate_recursive_doubling),
        ("ring", simulate_ring),
        ("rabenseifner", simulate_rabenseifner),
    ],
)
def test_algorithms_do_what_they_cost(
    algorithm: str, simulate: Callable[[Arrays], tuple[Arrays, Cost]], ranks: int
) -> None:
    found, counted = simulate(start(ranks))
    for values in found:
        np.testing.assert_array_equal(values, np.sum(start(ranks), axis=0))
    assert counted == cost("all-reduce", 24, ranks, algorithm)


def test_a_ring_of_three() -> None:
    found, counted = simulate_ring(start(3))
    np.testing.assert_array_equal(found[1], np.sum(start(3), axis=0))
    assert counted == cost("all-reduce", 24, 3)


# --- properties


@given(n=st.integers(0, 10**12), p=st.integers(1, 4096))
def test_no_all_reduce_sends_less_than_a_ring_or_in_fewer_messages_than_doubling(
    n: int, p: int
) -> None:
    costs = {name: cost("all-reduce", n, p, name) for name in tuple(ALGORITHMS["all-reduce"])}
    assert costs["ring"].sent_bytes == min(c.sent_bytes for c in costs.values())
    assert costs["recursive doubling"].messages == min(c.messages for c in costs.values())


@given(n=st.integers(0, 10**12), p=st.integers(1, 4096))
def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather(n: int, p: int) -> None:
    whole = cost("all-reduce", n, p)
    parts = [cost("reduce-scatter", n, p), cost("all-gather", n, p)]
    assert whole.messages == sum(c.messages for c in parts)
    assert whole.sent_bytes == pytest.approx(sum(c.sent_bytes for c in parts))
    assert whole.reduced_bytes == sum(c.reduced_bytes for c in parts)


# --- bus bandwidth


def test_bus_bandwidth_of_a_report() -> None:
    """profiles/h200x2_2ranks_base: 1,605,632 B in 352 µs between two ranks: 4.56 GB/s."""
    assert bus_bytes_per_s("all-reduce", 1_605_632, 352e-6, 2) == pytest.approx(4.56e9, rel=1e-3)


def test_bus_bandwidth_by_hand() -> None:
    """8 ranks, 1 GB in 10 ms, 100 GB/s: times 14/8, 7/8, 7/8 and 1 (nccl-tests)."""
    found = [
        bus_bytes_per_s(c, 1e9, 1e-2, 8)  # type: ignore[arg-type]
        for c in ("all-reduce", "reduce-scatter", "all-gather", "broadcast")
    ]
    assert found == pytest.approx([175e9, 87.5e9, 87.5e9, 100e9])


@given(n=st.integers(1, 10**12), p=st.integers(2, 512), beta=st.floats(1e-12, 1e-6))
def test_bus_bandwidth_of_a_ring_without_latency_is_the_link_s(n: int, p: int, beta: float) -> None:
    seconds = cost("all-reduce", n, p).seconds(Link(0.0, beta))
    assert bus_bytes_per_s("all-reduce", n, seconds, p) == pytest.approx(1 / beta)


# --- fits


@settings(deadline=None)
@given(
    alpha=st.floats(1e-7, 1e-4),
    beta=st.floats(1e-11, 1e-8),
    p=st.integers(2, 64),
)
def test_a_fit_finds_what_made_the_times(alpha: float, beta: float, p: int) -> None:
    sizes = [40, 2048, 20_480, 1_605_632]
    made = [cost("all-reduce", n, p).seconds(Link(alpha, beta)) for n in sizes]
    link = fit_link(sizes, made, p)
    assert link.alpha_s == pytest.approx(alpha, rel=1e-3, abs=1e-10)
    assert link.beta_s_per_byte == pytest.approx(beta, rel=1e-6)


def test_a_fit_has_no_negative_latency() -> None:
    """Times 1 and 12 µs of 1 and 10 kB: a line through them would start below zero."""
    link = fit_link([1000, 10_000], [1e-6, 12e-6], 2)
    assert link.alpha_s == 0
    assert link.beta_s_per_byte == pytest.approx((1e3 * 1e-6 + 1e4 * 12e-6) / (1e6 + 1e8))


# --- what is refused


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda: cost("all-to-all", 1, 2), "expected a collective among all-reduce"),  # type: ignore[arg-type]
        (lambda: cost("all-reduce", 1, 2, "tree"), "of all-reduce among ring, .*got 'tree'"),
        (lambda: cost("all-reduce", -1, 2), "got 2 ranks and -1 bytes"),
        (lambda: cost("all-reduce", 1, 0), "got 0 ranks"),
        (lambda: bus_bytes_per_s("all-reduce", 1, 0.0, 2), "expected a time above 0 s"),
        (lambda: Link(-1e-6, 1e-9), "expected alpha, beta and gamma"),
        (lambda: Link(0, float("nan")), "expected alpha, beta and gamma"),
        (lambda: fit_link([8], [1e-6], 2), "got 1 sizes"),
        (lambda: fit_link([8, 16], [1e-6, 2e-6], 1), "1 ranks"),
        (lambda: fit_link([8, 16], [2e-6, 1e-6], 2), "expected times that grow with the size"),
    ],
)
def test_what_is_refused(call: Callable[[], object], problem: str) -> None:
    with pytest.raises(ModelError, match=problem):
        call()
