"""The trainer's batches and the workload that their mark chooses: the same ranges, for real."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest

from perfmodel.programs.mlp.mlp import as_it_ran, mlp
from support.trainer_runs import small
from trainer.backends.numpy import NumpyBackend
from trainer.data import synthetic
from trainer.mpi import Communicator
from trainer.ranges import PARENT
from trainer.steps.assembly import Assembly


class Recorded(Mapping[str, AbstractContextManager[Any]]):
    """Ranges that note their names, and the range that each was opened in."""

    def __init__(self) -> None:
        self.inside: dict[str, str | None] = {}
        self._open: list[str] = []

    @contextmanager
    def _range(self, name: str) -> Iterator[None]:
        self.inside[name] = self._open[-1] if self._open else None
        self._open.append(name)
        yield
        self._open.pop()

    def __getitem__(self, name: str) -> AbstractContextManager[Any]:
        return self._range(name)

    def __iter__(self) -> Iterator[str]:
        return iter(PARENT)

    def __len__(self) -> int:
        return len(PARENT)


@pytest.mark.parametrize(
    ("transport", "overlap", "parallel"),
    [
        ("host", False, "data"),
        ("pinned", False, "data"),
        ("host-flat", False, "data"),
        ("host", True, "data"),
        ("host-flat", True, "data"),
        ("chunked", False, "data"),
        ("chunked", True, "data"),
        ("none", False, "data"),
        ("host", False, "model"),
        ("chunked", False, "model"),
    ],
)
def test_a_batch_has_the_ranges_of_its_workload(
    transport: str, overlap: bool, parallel: str
) -> None:
    config = small(transport=transport, overlap=overlap, parallel=parallel)
    backend, ranges = NumpyBackend(), Recorded()
    batch = Assembly(config, Communicator(), backend, synthetic(config), ranges)
    batch.initialize(1)
    batch.step(0)
    mark = {
        "transport": transport, "overlap": overlap, "parallel": parallel, "backend": backend.name,
        "gemm": backend.gemm_name, "graph": False, "data_on": config.images_on,
    }  # fmt: skip
    load = as_it_ran(mlp("full", parallel), mark)  # type: ignore[arg-type]
    # chunks of host memory leave no device: the range is there and holds nothing
    empty = {"cudaMemcpyDeviceToHost"} if transport == "chunked" else set()
    assert set(ranges.inside) - empty == set(load.ranges)
    outer = "forward" if parallel == "model" else "backward"
    if transport != "none":
        assert ranges.inside["MPI_Allreduce"] == outer
