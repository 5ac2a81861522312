"""Every real table of Nsight Compute in tests/golden/ncu is read, and says what can be."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfmodel.counters import by_kernel
from perfmodel.counters.against import place
from perfmodel.machine import named
from perfmodel.readers.ncu import read_counters

TABLES = sorted((Path(__file__).parent / "golden" / "ncu").glob("*.csv"))


def test_there_are_tables():
    assert TABLES


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.name)
def test_a_real_table_is_read(path: Path):
    read = read_counters([path])
    assert read.warnings == ()
    h200 = named("h200")
    for found in by_kernel(read.launches):
        assert found.name
        assert found.flops is not None
        assert found.flops >= 0
        above = place(found, h200).above
        assert not [word for word in above if "L1" not in word and "L2" not in word]
        values = [v for v in found.counts.values() if v is not None]
        assert values
        assert min(values) >= 0
