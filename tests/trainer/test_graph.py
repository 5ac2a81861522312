"""CUDA graphs: what is captured when, what is replayed, and what keeps a step from it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from support.trainer_device import Capturing, DelayedComm
from support.trainer_runs import Recorder, session, small
from trainer import ranges as names
from trainer.backends.numpy import NumpyBackend
from trainer.data import synthetic
from trainer.ranges import SILENT
from trainer.steps import assembly
from trainer.steps.graph import MOST_GRAPHS, GraphStep, why_not_captured
from trainer.transports.none import NoTransport


class Steps:
    """A step that says what ran, and a backend that captures without running."""

    def __init__(self, sizes: list[int]) -> None:
        self.sizes, self.log = sizes, []
        self._capturing: list[int] | None = None

    def __call__(self, index: int) -> None:
        if self._capturing is None:
            self.log.append(f"ran {index}")
        else:
            self._capturing.append(index)

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        self._capturing = held = []
        work()
        self._capturing = None
        self.log.append(f"captured {held}")
        return lambda: self.log.append(f"replayed {held}")

    def epoch(self, step: GraphStep) -> list[str]:
        self.log.clear()
        for index in range(len(self.sizes)):
            step(index)
        return list(self.log)


def test_a_size_runs_once_then_every_batch_has_a_graph() -> None:
    steps = Steps([30, 30, 30, 10])
    step = GraphStep(steps, steps, lambda index: steps.sizes[index], SILENT)  # type: ignore[arg-type]
    assert steps.epoch(step) == [
        "ran 0", "captured [1]", "replayed [1]", "captured [2]", "replayed [2]", "ran 3",
    ]  # fmt: skip
    assert steps.epoch(step) == [
        "captured [0]", "replayed [0]", "replayed [1]", "replayed [2]", "captured [3]",
        "replayed [3]",
    ]  # fmt: skip
    assert steps.epoch(step) == [f"replayed [{index}]" for index in range(4)]


def test_a_capture_that_fails_leaves_no_graph_behind() -> None:
    class Failing(Steps):
        def capture(self, work: Callable[[], None]) -> Callable[[], None]:
            raise RuntimeError("operation not permitted when stream is capturing")

    steps = Failing([5, 5])
    step = GraphStep(steps, steps, lambda index: 5, SILENT)  # type: ignore[arg-type]
    step(0)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="not permitted"):
            step(1)


@pytest.mark.parametrize(("images", "batch"), [(9, 5), (100, 31), (100, 33)])
def test_all_ranks_capture_the_same_batches(
    images: int, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As NCCL demands: also where the second rank has two images of five and two of four."""
    monkeypatch.setattr(assembly, "make_transport", lambda *_: NoTransport.__new__(NoTransport))
    config = small(data_on="device", graph=True, batch_size=batch, train_size=images)
    captured = []
    for rank in range(2):
        comm: Any = DelayedComm(ranks=2)
        comm.rank, comm.agreed = rank, contextlib.nullcontext
        device = Capturing()
        parts = assembly.Assembly(config, comm, device, synthetic(config), SILENT)
        parts.initialize(1)
        counts = []
        for index in [*range(-(-images // batch))] * 2:
            parts.step(index)
            counts.append(device.captured)
        captured.append(counts)
    assert captured[0] == captured[1]


@pytest.mark.parametrize("changes", [{}, {"parallel": "model"}, {"batch_size": 100}])
def test_a_run_of_graphs_has_the_bits_of_a_plain_one(changes: dict[str, Any]) -> None:
    config = small(transport="none", data_on="device", graph=True, epochs=3, **changes)
    graphs = session(config)
    graphs.backend = backend = Capturing()
    found = graphs.run()
    wanted = session(small(epochs=3, **changes)).run()
    assert found.why_no_graph is None
    assert backend.captured == graphs.batches
    assert np.array_equal(found.parameters, wanted.parameters)
    assert [e["loss"] for e in found.epochs] == [e["loss"] for e in wanted.epochs]


def test_a_replay_is_one_range_of_a_batch() -> None:
    recorder = Recorder()
    config = small(transport="none", data_on="device", graph=True, epochs=3, evaluate_every=0)
    graphs = session(config, ranges=recorder)
    graphs.backend = Capturing()
    graphs.run()
    assert (names.GRAPH, names.BATCH) in recorder.seen
    assert recorder.order.count(names.GRAPH) == 3 * 4 - 2  # but the first of each size


# --- why not


def test_reasons() -> None:
    device = Capturing()
    assert why_not_captured(device, MOST_GRAPHS, None) is None
    assert why_not_captured(NumpyBackend(), 1, None) == "the backend numpy has no CUDA graphs"
    assert why_not_captured(device, 1, "MPI sums on the host") == "MPI sums on the host"
    assert f"at most {MOST_GRAPHS}); use a larger --batch-size" in (
        why_not_captured(device, MOST_GRAPHS + 1, None) or ""
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"transport": "host"}, "MPI sums on the host"),
        ({"transport": "pinned", "overlap": True}, "MPI sums on the host"),
        ({"transport": "host-flat"}, "MPI sums on the host"),
        ({"transport": "chunked"}, "MPI sums on the host"),
        ({"transport": "host", "parallel": "model"}, "MPI sums on the host"),
        ({"data_on": None}, "--data-on host); use --data-on device"),
        ({"data_on": "pinned"}, "--data-on pinned)"),
        ({"data_on": "prefetch"}, "--data-on prefetch)"),
        ({"data_on": "prefetch", "parallel": "model"}, "--data-on prefetch)"),
        ({"sync_ranges": True}, "--sync-ranges waits inside the step"),
        ({"batch_size": 1, "train_size": 600}, "600 batches"),
    ],
)
def test_a_step_that_cannot_be_captured_runs_as_it_is(changes: dict[str, Any], words: str) -> None:
    wanted = {"transport": "none", "data_on": "device", "graph": True, "epochs": 1, **changes}
    graphs = session(small(**wanted))
    graphs.backend = backend = Capturing()
    found = graphs.run()
    assert words in (found.why_no_graph or "")
    assert not backend.captured
    plain = small(**{**wanted, "graph": False, "data_on": None, "sync_ranges": False})
    assert np.array_equal(found.parameters, session(plain).run().parameters)
