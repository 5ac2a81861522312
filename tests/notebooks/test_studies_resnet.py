"""The published ResNet study: its columns recomputed, and every error shown by arithmetic."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from studies.resnet import (
    Trial,
    flops_in_1x1,
    least_flops,
    machine_of,
    point,
    pthflops,
    roof,
    roof_share,
    study,
    training,
)
from studies.resnet_errata import errata, grepped

from perfmodel.base.errors import ModelError

V18, V50, A18, A50 = study().trials
trials = pytest.mark.parametrize("trial", study().trials, ids=lambda t: t.label)


@trials
@pytest.mark.parametrize(
    "column",
    ["throughput_bytes_per_s", "flops_per_byte", "gflops_per_s", "actual_over_theoretical"],
)
def test_columns_agree_to_the_last_printed_digit(trial: Trial, column: str) -> None:
    """Ten digits are printed: within half a unit of the tenth."""
    printed, found = getattr(trial, column), trial.recomputed()[column]
    tenth = 10.0 ** (len(str(int(printed))) - 10) if printed >= 1 else 1e-10
    assert abs(found - printed) <= 0.5001 * tenth
    assert found == pytest.approx(printed, rel=5e-10)


def test_memory_ratios_agree_to_the_last_printed_digit() -> None:
    for run in study().memory:
        found = run.used_megabytes / run.parameter_megabytes
        assert found == pytest.approx(run.used_over_parameters, rel=5e-10)
        assert run.parameters == run.gpus * training(trial_of(run.net)).parameters


def trial_of(net: str) -> Trial:
    return next(t for t in study().trials if t.net == net)


def test_ridges() -> None:
    v100, a100 = roof(machine_of(V18)), roof(machine_of(A18))
    assert v100.ridge_flops_per_byte == pytest.approx(17.44, abs=5e-3)
    assert a100.ridge_flops_per_byte == pytest.approx(12.540, abs=5e-4)
    assert (v100.flops_per_s, a100.flops_per_s) == (15.7e12, 19.5e12)
    with pytest.raises(ModelError, match=r"expected the tf32_tensor peak .* of NVIDIA V100"):
        roof(machine_of(V18), "tf32_tensor")


# --- errors


def test_theoretical_flops_are_macs_of_two_images_forward() -> None:
    """To the last digit what the study's tool counts; 98.7 and 99.3 % of it are MACs."""
    for t in (V18, V50):
        assert t.theoretical_flops == pthflops(t.net, 2)
        macs = training(t, 2).macs
        assert 0.985 < macs / t.theoretical_flops < 1
        assert training(t).flops / t.theoretical_flops == pytest.approx(29.2, abs=0.2)
    assert pthflops("resnet18", 1) == 1_826_793_960  # the bias is counted once a batch


def test_no_algorithm_needs_as_few_flops_as_the_a100_s_counters_saw() -> None:
    """1x1 convolutions of ResNet-50, one image, forward: 2 (4,087,136,256 - 118,013,952 (7x7)
    - 16 x 115,605,504 (3x3)) = 4,238,868,480."""
    by_hand = 2 * (4_087_136_256 - 118_013_952 - 16 * 115_605_504)
    assert flops_in_1x1("resnet50") == by_hand == 4_238_868_480 > A50.flops
    assert least_flops("resnet18", study().images) > 9 * A18.flops
    assert A18.flops / training(A18).flops == pytest.approx(0.0267, abs=1e-4)
    assert A50.flops / training(A50).flops == pytest.approx(0.0165, abs=1e-4)


def test_the_v100_counted_too_few_as_well() -> None:
    assert V18.flops / training(V18).flops == pytest.approx(0.224, abs=1e-3)
    assert V50.flops / training(V50).flops == pytest.approx(0.296, abs=1e-3)
    assert 3 * flops_in_1x1("resnet50", 10) == 127_166_054_400 > V50.flops


def test_the_drawn_peak_is_ten_times_too_high() -> None:
    v100 = roof(machine_of(V18))
    at_ridge = v100.ridge_flops_per_byte * v100.bandwidth_bytes_per_s / 1e9
    assert 15.7e4 / at_ridge == pytest.approx(10.0)


def test_the_v100_s_points_lie_right_of_the_ridge_and_far_below_the_roof() -> None:
    v100, a100 = roof(machine_of(V18)), roof(machine_of(A18))
    for t in (V18, V50):
        assert point(t).intensity_flops_per_byte > v100.ridge_flops_per_byte
    for t in (A18, A50):
        assert point(t).intensity_flops_per_byte < a100.ridge_flops_per_byte
        assert training(t).flops / t.bytes > a100.ridge_flops_per_byte
    shares = [roof_share(t) for t in study().trials]
    assert shares == pytest.approx([0.00749, 0.02159, 0.00184, 0.00779], abs=1e-5)
    # by hand: 23,851,649,316 FLOP at 15.7e12 FLOP/s take 1.519 ms of 202.9 ms
    assert shares[0] == pytest.approx(1.5192e-3 / 0.202907231, rel=1e-4)


def test_what_is_said_of_times_and_flops() -> None:
    assert V50.time_s / V18.time_s - 1 == pytest.approx(0.045, abs=5e-4)
    assert A50.time_s / A18.time_s - 1 == pytest.approx(0.027, abs=5e-4)
    assert A18.time_s > V18.time_s
    assert A50.time_s > V50.time_s
    assert 1 - A18.flops / V18.flops == pytest.approx(0.881, abs=5e-4)
    assert 1 - A50.flops / V50.flops == pytest.approx(0.944, abs=5e-4)


def test_the_parameters_size_is_neither_mib_nor_mb() -> None:
    for run in study().memory[:2]:
        for unit in (2**20, 1e6):
            assert abs(4 * run.parameters / unit - run.parameter_megabytes) > 0.15


def test_parameters_twice_would_not_be_seen_in_the_memory_in_use() -> None:
    for run in study().memory[:2]:
        assert 3 * 4 * run.parameters / 1e6 / run.used_megabytes < 0.012


LINES = (
    "dram__bytes_read.sum  Kbyte  1,208.97",
    "dram__bytes_read.sum  Mbyte  11.06",
    "dram__bytes_read.sum  byte  640",
    "dram__bytes_write.sum  Kbyte  5",
)


def test_the_study_s_grep_splits_numbers_and_drops_units() -> None:
    """1 + 208 + 97, not 1,208.97 + 11,060 + 0.64 kB."""
    assert grepped(LINES) == 306
    assert V18.bytes % 32  # no whole number of sectors
    assert all(t.bytes % 10_000 == 0 for t in study().trials)


@pytest.mark.skipif(not (shutil.which("grep") and shutil.which("awk")), reason="no grep, no awk")
def test_grep_and_awk_say_the_same() -> None:
    script = (
        "grep sum | grep dram__bytes_read | grep Kbyte | grep -Eo '[-+]?([0-9]*[0-9]+|[-+])' | "
        "awk '{ SUM += $1 } END { print SUM }'"
    )
    done = subprocess.run(
        ["sh", "-c", script], input="\n".join(LINES) + "\n", capture_output=True, text=True
    )
    assert float(done.stdout) == grepped(LINES)


def test_every_error_carries_its_numbers() -> None:
    found = {e.claim: e.finding for e in errata()}
    assert len(found) >= 12
    peak = next(f for c, f in found.items() if "15.7x10^4" in c)
    assert "15,700 GFLOP/s" in peak
    fewer = next(f for c, f in found.items() if "A100 finishes with fewer" in c)
    assert "4.24 GFLOP forward for one image" in fewer
    assert "4.01 GFLOP" in fewer
