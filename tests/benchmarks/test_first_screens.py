"""`benchmarks.first_screens`: the answers are complete, and screens have room on a terminal."""

from __future__ import annotations

import pytest
from rich.cells import cell_len

from benchmarks.first_screens import cases, located, score, screen


def test_every_recording_has_an_answer_and_a_score() -> None:
    found = cases()
    assert len(found) == 32
    for case in found:
        assert case["wrong"]
        assert case["where"]
        assert case["do"]
        assert case.get("kept", False) == ("before" not in case)
    assert score(found) == {"before": "13 of 22", "after": "19 of 22", "kept": "9 of 10"}


@pytest.mark.slow
def test_screens_of_shipped_recordings_have_room() -> None:
    shipped = [paths for case in cases() if (paths := located(case["reports"], [])) is not None]
    assert len(shipped) > 12
    for paths in shipped:
        lines = screen(paths).splitlines()
        assert len(lines) <= 24
        assert max(map(cell_len, lines)) <= 80
