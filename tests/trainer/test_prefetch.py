"""Where batches come from: copied, copied ahead into another buffer, or on the device for good."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from support.trainer_device import DelayedDevice, DelayedQueue
from support.trainer_runs import session, small
from trainer.config import DATA_ON
from trainer.data import one_hot, synthetic
from trainer.ranges import SILENT
from trainer.steps.batches import Batches, Split

CONFIG = small(dtype="float64")  # 100 images in batches of 30, 30, 30, 10
DATA = synthetic(CONFIG)


def batches(on: str, device: Any, split: Split | None = None, **more: Any) -> Batches:
    data = (DATA.images, DATA.labels)
    return Batches(device, split or Split(100, 30), data, CONFIG, on=on, **more)


def check(found: Any, split: Split, index: int) -> None:
    rows = slice(*split.bounds(index))
    assert np.array_equal(found.x, DATA.images[rows] / 255)
    assert np.array_equal(found.y, one_hot(DATA.labels[rows], CONFIG.num_classes, "float64"))


VISITS = {
    "epochs": [0, 1, 2, 3] * 3,
    "an evaluation after one": [0, 1, 2, 3, 0, 1, 2, 3, 0],
    "stopped, evaluated, resumed": [0, 1, 0, 1, 2, 3, 2, 3, 0],
    "the same again": [2, 2, 2],
    "backwards": [3, 2, 1, 0],
}


@pytest.mark.parametrize("on", DATA_ON)
@pytest.mark.parametrize("visits", VISITS.values(), ids=VISITS)
def test_a_batch_is_what_it_should_be(on: str, visits: list[int]) -> None:
    device = DelayedDevice()
    split = Split(100, 30)
    made = batches(on, device)
    for index in visits:
        found = made.load(index, SILENT)
        device.compute(reads=[found.x, found.y])
        check(found, split, index)


@pytest.mark.parametrize(
    "split", [Split(100, 30, 3, 1), Split(100, 33, 4, 3), Split(5, 30), Split(100, 1)]
)
@pytest.mark.parametrize("on", DATA_ON)
def test_a_rank_has_its_own_share_and_perhaps_nothing_of_the_last_batch(
    on: str, split: Split
) -> None:
    device = DelayedDevice()
    made = batches(on, device, split)
    for index in [*range(len(split)), 0]:
        found = made.load(index, SILENT)
        device.compute(reads=[found.x, found.y])
        check(found, split, index)


def test_a_batch_is_copied_once_and_ahead() -> None:
    device = DelayedDevice()
    made = batches("prefetch", device)
    sent: list[int] = []
    queue = device.queues[0]
    plain = queue.to_device
    queue.to_device = lambda source, target: (sent.append(len(target)), plain(source, target))  # type: ignore[method-assign]
    for index in [0, 1, 2, 3] * 2:
        made.load(index, SILENT)
    images = sent[::2]
    assert images == [30, 30, 30, 10] * 2 + [30]  # the last one is for the next epoch


def test_prefetched_batches_take_turns_in_two_buffers() -> None:
    device = DelayedDevice()
    made = batches("prefetch", device)
    found = [made.load(index, SILENT).x.ctypes.data for index in [0, 1, 2, 3, 0, 1]]
    assert len(set(found)) == 2
    assert all(a != b for a, b in itertools.pairwise(found))


@pytest.mark.parametrize("broken", ["follow", "join"])
def test_the_guard_sees_a_missing_wait(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DelayedQueue, broken, lambda self: None)
    device = DelayedDevice()
    made = batches("prefetch", device)

    def epoch() -> None:
        for index in range(4):
            found = made.load(index, SILENT)
            device.compute(reads=[found.x, found.y])

    with pytest.raises(AssertionError, match="still in use" if broken == "follow" else "joined"):
        epoch()


def test_images_by_pixels_are_the_same_numbers() -> None:
    made = batches("device", DelayedDevice(), by_pixels=True)
    for index in range(4):
        x, _, xt = made.load(index, SILENT)
        assert xt is not None
        assert xt.strides[0] % 16 == 0
        assert xt.strides[1] == xt.itemsize
        assert np.array_equal(xt, x.T)
    assert batches("device", DelayedDevice()).load(0, SILENT).xt is None


def test_only_what_stays_where_it_is_can_be_captured() -> None:
    reasons = {on: batches(on, DelayedDevice()).uncapturable for on in DATA_ON}
    assert reasons.pop("device") is None
    for on, reason in reasons.items():
        assert f"--data-on {on}); use --data-on device" in (reason or "")


@pytest.mark.parametrize("on", DATA_ON)
@pytest.mark.parametrize(
    ("transport", "overlap"),
    [("host", False), ("pinned", True), ("host-flat", True), ("chunked", False), ("chunked", True)],
)
def test_whole_runs_have_the_same_bits(on: str, transport: str, overlap: bool) -> None:
    """A device whose copies come late, with evaluations in between, against plain NumPy."""
    config = small(data_on=on, transport=transport, overlap=overlap, epochs=3, learning_rate=0.3)
    late = session(config)
    late.backend = DelayedDevice(2, 0, 5)
    found, wanted = late.run(), session(small(epochs=3, learning_rate=0.3)).run()
    assert np.array_equal(found.parameters, wanted.parameters)
    assert [e["loss"] for e in found.epochs] == [e["loss"] for e in wanted.epochs]
    assert found.epochs[-1]["precision_test"] == wanted.epochs[-1]["precision_test"]
