"""A step as host, GPU and collectives side by side."""

from __future__ import annotations

import pytest

from perfmodel.models.two_lanes import Operation, lanes

MS = 1e-3


def test_slower_lane_sets_the_step() -> None:
    computing = [Operation(1 * MS, 3 * MS), Operation(1 * MS, 4 * MS)]
    assert lanes(computing, 0.0).step_s == pytest.approx(7 * MS)
    launching = [Operation(5 * MS, 3 * MS), Operation(5 * MS, 4 * MS)]
    assert lanes(launching, 0.0).step_s == pytest.approx(10 * MS)


def test_gap_counts_once_an_operation() -> None:
    assert lanes([Operation(0.0, 1 * MS, 3)], 0.1 * MS).step_s == pytest.approx(1.3 * MS)


def test_collective_is_exposed_by_what_the_backward_does_not_cover() -> None:
    # gradients are ready after the first of two kernels: 2 ms of 5 run beside the second
    step = [
        Operation(0.0, 4 * MS),
        Operation(0.0, 5 * MS, 1, "reduce"),
        Operation(0.0, 2 * MS),
        Operation(0.0, 1 * MS, 1, "", joins=True),
    ]
    found = lanes(step, 0.0)
    assert found.step_s == pytest.approx(10 * MS)
    assert found.exposed_s == pytest.approx(3 * MS)
    assert found.communication_s == pytest.approx(5 * MS)


def test_contention_lengthens_what_runs_beside_a_collective() -> None:
    step = [
        Operation(0.0, 4 * MS),
        Operation(0.0, 1 * MS, 1, "reduce"),
        Operation(0.0, 2 * MS),
        Operation(0.0, 1 * MS, 1, "", joins=True),
    ]
    slower = lanes(step, 0.0, 0.5).step_s - lanes(step, 0.0).step_s
    assert slower == pytest.approx(0.5 * MS)
