"""What perfmodel says the trainer allocates against what its code does, on a device that counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from perfmodel.programs.mlp.memory import SETTINGS, Allocation, allocations, device_block, training
from perfmodel.programs.mlp.settings import SETTINGS as CHOICES
from trainer import config
from trainer.backends.numpy import NumpyBackend
from trainer.config import Config
from trainer.data import synthetic
from trainer.mpi import Communicator
from trainer.ranges import SILENT
from trainer.steps.assembly import Assembly
from trainer.steps.batches import Batches, Split


class CountingModule:
    """NumPy whose new arrays are noted, as a device's."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def __getattr__(self, name: str) -> Any:
        made = getattr(np, name)
        if name not in ("zeros", "empty", "ones", "asarray"):
            return made

        def noted(*arguments: Any, **options: Any) -> Any:
            array = made(*arguments, **options)
            if name == "asarray":
                array = array.copy()
            self.sizes.append(array.nbytes)
            return array

        return noted


class CountingDevice(NumpyBackend):
    """A device that counts what it and its page-locked memory are asked for."""

    on_device = True

    def __init__(self) -> None:
        super().__init__()
        self.xp = CountingModule()
        self.pinned: list[int] = []

    def pinned_empty(self, shape: Any, dtype: Any) -> np.ndarray:
        array = np.empty(shape, dtype)
        self.pinned.append(array.nbytes)
        return array


@dataclass(eq=False)
class Ranks(Communicator):
    """Rank 0 of several, alone: enough to make buffers and to take a step."""

    count: int = 1

    def __post_init__(self) -> None:
        Communicator.__init__(self)
        self.size = self.count

    def __hash__(self) -> int:
        return id(self)


SIZES = {"input_size": 12, "hidden_size": 16, "num_classes": 4, "batch_size": 64}
IMAGES, TESTS = 200, 90


def counted(ranks: int, **settings: Any) -> tuple[list[int], list[int]]:
    """Sizes that the trainer asks device and page-locked memory for, up to the first step."""
    config = Config(
        **SIZES, **settings, data="synthetic", train_size=IMAGES, test_size=TESTS, backend="cupy"
    )
    device, comm = CountingDevice(), Ranks(count=ranks)
    made = Assembly(config, comm, device, synthetic(config), SILENT)
    made.initialize(1)
    work = made.network.forward(made.batches.load(0, SILENT).x)
    assert work.a1.nbytes
    return device.xp.sizes, device.pinned


def told(ranks: int, **settings: Any) -> list[Allocation]:
    """The same by the formulas, but for what only CuPy adds."""
    values = {"D": 12, "H": 16, "C": 4, "B": 64, "p": ranks}
    case = training(values, settings, images=IMAGES, test_images=TESTS)
    return [
        a for a in allocations(case)
        if a.bytes and "cuBLAS" not in a.name and "staging" not in a.name and "scores" not in a.name
    ]  # fmt: skip


def sizes(listed: list[Allocation], memory: str) -> list[int]:
    mine = [a for a in listed if a.memory == memory]
    return [(a.bytes or 0) // a.count for a in mine for _ in range(a.count)]


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"data_on": "pinned"},
        {"data_on": "prefetch"},
        {"data_on": "device"},
        {"transport": "pinned"},
        {"transport": "host-flat", "data_on": "device"},
        {"transport": "chunked"},
        {"parallel": "model"},
        {"parallel": "model", "transport": "host-flat"},
    ],
    ids=str,
)
def test_formulas_list_what_the_trainer_allocates(ranks: int, settings: dict[str, Any]) -> None:
    device, pinned = counted(ranks, **settings)
    listed = told(ranks, **settings)
    assert sorted(sizes(listed, "device")) == sorted(device)
    assert sorted(sizes(listed, "pinned")) == sorted(pinned)


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("parallel", ["data", "model"])
def test_the_ring_holds_one_piece(
    ranks: int, parallel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if this MPI took GPU pointers: only the buffers are made."""
    monkeypatch.setattr("trainer.transports.ring.why_not_cuda_aware", lambda comm: None)
    device, pinned = counted(ranks, transport="ring", parallel=parallel)
    listed = told(ranks, transport="ring", parallel=parallel)
    assert sorted(sizes(listed, "device")) == sorted(device)
    assert sizes(listed, "pinned") == pinned == []


@pytest.mark.parametrize("parallel", ["data", "model"])
def test_the_order_is_that_of_the_trainer(parallel: str) -> None:
    """Blocks are reused by order: what is freed early serves what is asked for late."""
    device, _ = counted(2, data_on="device", parallel=parallel)
    assert sizes(told(2, data_on="device", parallel=parallel), "device") == device


def test_a_block_is_what_cupy_holds() -> None:
    for one in told(2, data_on="prefetch"):
        assert one.held_bytes is not None
        assert one.held_bytes % 512 == 0
        if one.memory == "device":
            assert one.held_bytes == one.count * device_block((one.bytes or 0) // one.count)


def test_the_fused_network_holds_its_images_twice() -> None:
    """By images, and by pixels in rows that begin on 16 bytes."""
    config = Config(**SIZES, data="synthetic", train_size=IMAGES, test_size=TESTS, backend="cupy")
    device, data = CountingDevice(), synthetic(config)
    split = Split(IMAGES, config.batch_size, 2)
    Batches(device, split, (data.images, data.labels), config, on="device", by_pixels=True)
    values = {"D": 12, "H": 16, "C": 4, "B": 64, "p": 2}
    settings = {"data_on": "device", "transport": "nccl", "gemm": "fused"}
    case = training(values, settings, images=IMAGES, test_images=TESTS)
    inputs = [a for a in allocations(case) if a.use == "inputs" and "test" not in a.name]
    told = [a for a in inputs if a.memory == "device"]
    assert sorted(sizes(told, "device")) == sorted(device.xp.sizes)


def test_the_settings_are_those_of_the_trainer() -> None:
    assert sorted(CHOICES["transport"]) == list(config.TRANSPORTS)
    assert {name: CHOICES[name] for name in SETTINGS} == {
        "data_on": config.DATA_ON,
        "transport": CHOICES["transport"],
        "gemm": config.GEMMS,
        "math": config.MATHS,
        "parallel": config.PARALLEL,
    }
