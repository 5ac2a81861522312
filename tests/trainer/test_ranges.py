import json
import sys
import time
import types

import pytest

from support.trainer_runs import Recorder, session, small
from trainer import ranges as names
from trainer.backends.numpy import NumpyBackend
from trainer.mpi import Communicator
from trainer.ranges import (
    PARENT,
    SILENT,
    make_ranges,
    mark_config,
    profiler_warning,
)
from trainer.record import Run, config_mark

DOCUMENT = {
    "GPU parallel train", "train setup", "batch iteration", "copying images host -> device",
    "forward", "forward GEMM 1", "forward GEMM 2", "backward", "backward GEMM 1",
    "backward GEMM 2", "backward GEMM 3", "cudaMemcpyDeviceToHost", "MPI_Allreduce",
    "cudaMemcpyHostToDevice", "step",
}  # fmt: skip


class FakeGpu(NumpyBackend):
    """NumPy that claims to be a device, so that copies and their ranges happen."""

    on_device = True


OURS = {names.SYNCHRONIZE, names.NCCL_ALLREDUCE, names.PEER_ALLREDUCE, names.GRAPH}


def test_names_are_the_documents_and_those_of_what_it_lacks():
    assert set(PARENT) == DOCUMENT | OURS


@pytest.mark.parametrize("transport", ["host", "pinned"])
def test_ranges_nest_as_in_the_document(transport):
    config = small(transport=transport, evaluate_every=0)
    recorder = Recorder()
    made = session(config, ranges=recorder)
    made.backend = FakeGpu()
    made.run()
    assert recorder.seen == {(name, PARENT[name]) for name in DOCUMENT}
    assert not recorder.stack
    assert recorder.order.count(names.BATCH) == 2 * 4


def test_numpy_copies_nothing():
    recorder = Recorder()
    session(small(), ranges=recorder).run()
    seen = {name for name, _ in recorder.seen}
    copies = {names.COPY_IMAGES, names.DEVICE_TO_HOST, names.HOST_TO_DEVICE}
    assert seen == DOCUMENT - copies


def test_a_device_and_the_host_compute_the_same_bits():
    results = []
    for backend in (NumpyBackend(), FakeGpu()):
        made = session(small())
        made.backend = backend
        results.append(made.run().parameters.tobytes())
    assert results[0] == results[1]


def test_without_nvtx_nothing_happens(monkeypatch):
    monkeypatch.setitem(sys.modules, "nvtx", None)
    assert make_ranges() is SILENT
    with SILENT[names.STEP]:
        pass
    waits = []
    ranges = make_ranges(lambda: waits.append(1))
    for name in PARENT:
        with ranges[name]:
            pass
    assert len(waits) == len(names.SYNCHRONIZED)
    assert json.loads(mark_config({"a": 1})) == {"perfmodel_config": 1, "a": 1}


def test_ranges_wait_before_they_end_when_told_to():
    pytest.importorskip("nvtx")
    waits = []
    ranges = make_ranges(lambda: waits.append(1))
    with ranges[names.FORWARD]:
        with ranges[names.FORWARD_GEMM_1]:
            pass
        assert not waits
    assert waits == [1]


def test_a_range_costs_less_than_a_microsecond():
    pytest.importorskip("nvtx")
    ranges, best = make_ranges(), float("inf")
    for _ in range(20):
        start = time.process_time_ns()
        for _ in range(1000):
            with ranges[names.STEP]:
                pass
        best = min(best, (time.process_time_ns() - start) / 1000)
    assert best < 1000, f"{best} ns"  # docs/trainer.md states what was measured


def test_the_mark_says_everything_the_model_needs():
    config = small()
    mark = config_mark(Run(config, Communicator(), NumpyBackend(), 1, "abc"))
    text = mark_config(mark)
    assert text.startswith("{")
    read = json.loads(text)
    assert read["perfmodel_config"] == 1
    assert {k: read[k] for k in ("workload", "ranks", "rank", "run_id", "overlap", "gemm")} == {
        "workload": "mlp", "ranks": 1, "rank": 0, "run_id": "abc", "overlap": False, "gemm": "blas",
    }  # fmt: skip
    for key in ("input_size", "hidden_size", "num_classes", "batch_size", "dtype", "transport",
                "parallel", "seed", "epochs"):  # fmt: skip
        assert read[key] == getattr(config, key)
    assert read["backend"] == "numpy"
    assert "numpy" in read["versions"]


def test_a_deaf_profiler_is_noticed(monkeypatch):
    class DummyDomain:
        pass

    fake = types.SimpleNamespace(get_domain=lambda _: DummyDomain())
    monkeypatch.setitem(sys.modules, "nvtx", fake)
    under = {"NSYS_PROFILING_SESSION_ID": "1"}
    assert profiler_warning({}) is None
    monkeypatch.setattr("importlib.metadata.version", lambda _: "0.2.16")
    warning = profiler_warning(under)
    assert warning is not None
    assert "nvtx 0.2.16" in warning
    assert "nvtx==0.2.11" in warning
    monkeypatch.setitem(sys.modules, "nvtx", None)
    assert "pip install nvtx" in (profiler_warning(under) or "")
