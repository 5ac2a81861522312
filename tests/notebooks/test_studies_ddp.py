"""The published DDP study: its columns recomputed, and every error shown by arithmetic."""

from __future__ import annotations

import pytest
from studies.ddp import Run, against_smaller_batch, run, speedup, strong, study
from studies.ddp_errata import errata, gradient_bytes, steps

from perfmodel.base.errors import ModelError
from perfmodel.studies.models.collectives import cost

RUNS = study().runs
ROWS = study().communication


@pytest.mark.parametrize("found", RUNS, ids=lambda r: f"{r.gpus} GPUs, batch {r.batch_per_gpu}")
def test_printed_speedups_compare_with_the_smaller_batch(found: Run) -> None:
    """Eleven decimals are printed, cut off."""
    assert against_smaller_batch(found) == pytest.approx(found.speedup, abs=1e-11)


@pytest.mark.parametrize(
    ("batch", "two", "four"), [(32, 1.577, 1.577), (128, 1.301, 1.370), (512, 1.656, 1.715)]
)
def test_true_speedups(batch: int, two: float, four: float) -> None:
    assert speedup(run(batch, 1)) == 1.0
    assert speedup(run(batch, 2)) == pytest.approx(two, abs=5e-4)
    assert speedup(run(batch, 4)) == pytest.approx(four, abs=5e-4)


def test_strong_scaling_is_in_the_tables_after_all() -> None:
    """27.2237 s / 30.8219 s at 128 images in all, 25.9446 s / 19.8782 s at 512."""
    found = {b.batch: s for _, b, s in strong()}
    assert {a.batch_per_gpu: b.batch_per_gpu for a, b, _ in strong()} == {128: 32, 512: 128}
    assert found == {128: pytest.approx(0.8833, abs=5e-5), 512: pytest.approx(1.3052, abs=5e-5)}
    assert all(b.gpus == 4 for _, b, _ in strong())


def test_the_bandwidth_table_used_0_178_gb() -> None:
    for row in ROWS:
        assert row.data_bytes == pytest.approx(0.178e9, rel=2e-11)  # as far as it is printed
        said = study().dataset_gigabytes / row.communication_s
        assert abs(said / row.bandwidth_gigabytes_per_s - 1) > 0.03
    assert study().dataset_gigabytes == 0.1718


def test_bus_bandwidth_of_the_table_s_bytes() -> None:
    for row in ROWS:
        sent = cost("all-reduce", row.data_bytes, row.gpus, "ring").sent_bytes
        assert row.bus_bytes_per_s(row.data_bytes) == pytest.approx(sent / row.communication_s)
    assert ROWS[1].bus_bytes_per_s(ROWS[1].data_bytes) == pytest.approx(1.5 * 0.86685642749e9)


def test_most_of_a_run_is_neither_computing_nor_communication() -> None:
    left = [row.neither_s / row.run.time_s for row in ROWS]
    assert min(left) == pytest.approx(0.4066, abs=5e-5)  # 12.531 s of 30.822 s
    assert max(left) == pytest.approx(0.9143, abs=5e-5)  # 14.323 s of 15.664 s
    assert max(row.communication_s / row.run.time_s for row in ROWS) < 0.007


def test_gradients_and_steps_of_the_example() -> None:
    assert gradient_bytes() == 4 * 11_689_512
    assert [steps(row) for row in ROWS] == [782, 391, 196, 98, 49, 25]


def test_errata_say_the_numbers() -> None:
    said = {e.claim.split(",")[0].split("(")[0].strip(): e.finding for e in errata()}
    assert len(said) == len(errata()) == 8
    text = " ".join(said.values())
    for number in (
        "1.7857", "1.577, 1.577 (batch 32); 1.301, 1.370 (batch 128); 1.656, 1.715 (batch 512)",
        "faster by 0.54 s", "by 3.4 ms", "39 %, 34 %, 43 %", "0.883 on 4 (batch 128 in all)",
        "1.305 on 4 (batch 512 in all)", "of 0.178 GB", "1.1494 GB/s", "0.1536 GB", "41 to 91 %",
        "1.02, 1.05, 0.98 times", "782 steps", "1.300 GB/s",
    ):  # fmt: skip
        assert number in text, number


def test_a_run_that_was_not_made_is_refused() -> None:
    with pytest.raises(ModelError, match="got 64 on 2"):
        run(64, 2)
