"""Numbers that several commands show of one report: how many of them have two values."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from benchmarks import contradictions
from benchmarks.common.folders import BASE, PROFILES, PROGRAMS
from benchmarks.contradictions import RECORDED, WITHOUT, Reading, Readings, UnreadableError

OPERATORS = PROGRAMS / "gpt_shapes.sqlite.xz"
RANKS = PROGRAMS / "halo.sqlite.xz"
OF_ALL_KINDS = (
    OPERATORS,
    RANKS,
    BASE,
    PROGRAMS / "gpt_fp32_shapes.sqlite.xz",
    PROGRAMS / "gpt_both_rank0.json.xz",
    PROGRAMS / "gpt_ddp.sqlite.xz",
    PROGRAMS / "dataloader_b32.sqlite.xz",
    PROGRAMS / "jax_gpt.sqlite.xz",
    PROGRAMS / "cupy_streams.sqlite.xz",
    PROGRAMS / "pipeline.sqlite.xz",
    PROFILES / "ladder/model-nccl_1.sqlite.xz",
    PROFILES / "diagnosis/farm_healthy_4.sqlite.xz",
)
"""Of the trainer, PyTorch, JAX, CuPy and MPI; with sizes, ranks, graphs, a recorder that costs."""


@cache
def readings(report: Path) -> Readings:
    return contradictions.readings_of(report)


@pytest.mark.parametrize("report", OF_ALL_KINDS, ids=lambda report: report.name.partition(".")[0])
def test_no_number_has_two_values(report: Path) -> None:
    found = readings(report)
    assert len(found.shared) >= 8
    shown = {name: [*map(str, values)] for name, values in found.contradictions.items()}
    assert shown == {}


def test_every_place_is_read() -> None:
    found = readings(OPERATORS)
    assert found.refused == ()
    shown = {name: {one.place for one in values} for name, values in found.shared.items()}
    assert shown[RECORDED] == {
        "analyze: batch", "analyze: summary.recorded_s", "analyze: recorder.step_s",
        "first screen", "page: first line", "page: tile", "compare: before", "compare: after",
        "timeline: step 0",
    }  # fmt: skip
    assert shown[WITHOUT] == {
        "analyze: summary.step_s", "analyze: recorder.without_s", "analyze: longest bar",
        "first screen", "whatif", "page: What if", "page: first line", "page: verdict",
        "compare: NOW", "predict as recorded",
    }  # fmt: skip
    assert shown["step after fixes 1 to 2"] == {
        "analyze: summary.fixes", "first screen", "whatif --apply", "page: card",
    }  # fmt: skip
    assert "whatif --apply" in shown["step after fixes 1 to 3"]
    assert {"first screen", "whatif", "page: What if", "page: card", "compare: NEXT"} <= shown[
        "launch-bound alone saves"
    ]
    assert shown["MFU"] >= {"analyze: summary.mfu", "analyze: mfu.of_step", "first screen"}
    assert shown["GPU idle of rank 0"] == {
        "analyze: ranks", "analyze: causes", "utilization: causes",
    }  # fmt: skip


def test_commands_that_refuse_a_report_are_named() -> None:
    assert [reason.partition(":")[0] for reason in readings(RANKS).refused] == [
        "utilization", "predict",
    ]  # fmt: skip


def test_values_differ_beyond_their_last_digits() -> None:
    exact = Reading("step", "a", 1.2345, 0.0)
    assert not exact.contradicts(Reading("step", "b", 1.23, 0.005))
    assert exact.contradicts(Reading("step", "b", 1.22, 0.005))
    assert exact.contradicts(Reading("step", "b", None, 0.0))
    assert not Reading("step", "a", None, 0.0).contradicts(Reading("step", "b", None, 0.0))


def test_printed_times_have_the_error_of_their_digits() -> None:
    for text, value, error in (("about 140 µs.", 140e-6, 5.1e-6), ("0 s (0 %)", 0.0, 0.0)):
        read = contradictions._printed("step", "screen", text, digits=2)
        assert (read.value, read.error) == (pytest.approx(value), pytest.approx(error))


def test_a_number_that_cannot_be_read_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UnreadableError, match="expected a time"):
        contradictions._printed("step", "screen", "step soon")
    cases = {"whole": Readings({"step": [Reading("step", "a", 1.0, 0.0)] * 2}, ())}

    def read(report: Path) -> Readings:
        if report.name not in cases:
            raise UnreadableError("screen: expected a time")
        return cases[report.name]

    monkeypatch.setattr(contradictions, "readings_of", read)
    assert contradictions.main(["whole"]) == 0
    assert contradictions.main(["whole", "broken"]) == 1
    assert "broken: screen: expected a time" in capsys.readouterr().out
