"""Devices: every file is consistent in itself; reports' names and properties find them."""

from __future__ import annotations

import re
import shutil
import statistics
import tomllib
from dataclasses import replace
from pathlib import Path

import device_list
import pytest

from perfmodel.base.document import Entries
from perfmodel.base.errors import ModelError
from perfmodel.base.gpu import Gpu
from perfmodel.machines import devices as module
from perfmodel.machines.devices import (
    Device,
    architectures,
    datasheet,
    devices,
    find,
    identify,
    known,
    named,
    published,
)
from perfmodel.machines.machine import Chip, Machine, capability

FOLDER = Path(module.__file__).parent / "devices"
DEVICES = {device.stem: device for device in devices()}
GPUS = [device for device in DEVICES.values() if device.machine.chip]
UNKNOWN = Gpu(0, "NVIDIA Imaginary", 100, 1_500_000_000, 10**12, None, None, (8, 0), None)

AT_THE_BOOST_CLOCK = (
    "float64", "float32", "float16", "bfloat16", "float64_tensor", "float32_tensor",
)  # fmt: skip
"""Other matrix units of Hopper and Blackwell run at a lower clock than the boost clock."""


def rates_of(device: Device) -> tuple[Chip, dict[str, float]]:
    chip = device.machine.chip
    assert chip is not None
    (one,) = [a for a in architectures() if chip.target in a.targets]
    assert one.name == chip.architecture
    rates = one.rates(device.machine.name)
    return chip, {key: rate for key, rate in rates.items() if key not in chip.limited}


def test_every_file_is_a_device() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == DEVICES.keys()
    for stem, device in DEVICES.items():
        assert named(stem) is device.machine
        assert device.machine.source, stem
        url = device.machine.url
        assert not url or re.fullmatch(r"https://[\w./()%-]+", url), stem
        assert device.machine.peak_flops_per_s, stem
        assert {"hbm", "dram"} & device.machine.bandwidth_bytes_per_s.keys(), stem
        for name in device.names:
            found = datasheet((name,))
            assert found is not None, name
            assert device.machine.name in found.name


def test_vector_peaks_are_multiprocessors_times_clock() -> None:
    for device in GPUS:
        chip, rates = rates_of(device)
        if chip.multiprocessors is None or chip.boost_clock_hz is None:
            continue
        clocks = chip.multiprocessors * chip.boost_clock_hz
        checked = 0
        for key, peak in device.machine.peak_flops_per_s.items():
            if key in AT_THE_BOOST_CLOCK and key in rates:
                assert peak == pytest.approx(rates[key] * clocks, rel=0.03), (device.stem, key)
                checked += 1
            elif key in rates:
                assert peak < 1.03 * rates[key] * clocks, (device.stem, key)
        assert checked, device.stem


def test_matrix_peaks_have_the_ratios_of_the_architecture() -> None:
    for device in GPUS:
        _, rates = rates_of(device)
        clocks = {
            key: peak / rates[key]
            for key, peak in device.machine.peak_flops_per_s.items()
            if key in rates and key.endswith("_tensor") and key not in AT_THE_BOOST_CLOCK
        }
        for key, clock in clocks.items():
            usual = statistics.median(clocks.values())
            assert clock == pytest.approx(usual, rel=0.03), (device.stem, key)


def test_memory_and_links_are_plausible() -> None:
    """No device of these has less than 4 GB or a second of reading its own memory."""
    for device in GPUS:
        machine = device.machine
        size, rate = machine.capacity_bytes["hbm"], machine.bandwidth_bytes_per_s["hbm"]
        assert 4 * 2**30 <= size <= 300 * 2**30, device.stem
        assert 0.01 < size / rate < 0.1, device.stem
        assert machine.capacity_bytes.get("l2", 2**22) <= 2**27, device.stem
        pcie = machine.bandwidth_bytes_per_s.get("pcie", 64e9)
        assert pcie in (15.75e9, 31.5e9, 32e9, 64e9, 128e9), device.stem


def test_there_are_at_least_forty_gpus() -> None:
    assert len(GPUS) >= 40


# Names and properties of real reports: deviceProperties of torch.profiler, TARGET_INFO_GPU of nsys
SEEN = [
    ("Tesla V100-DGXS-32GB", 80, (7, 0), 34084028416, "v100-32"),
    ("Tesla V100-SXM2-16GB", 80, (7, 0), 16945512448, "v100"),
    ("Tesla V100-SXM2-32GB", 80, (7, 0), 34079899648, "v100-32"),
    ("NVIDIA A100-PG509-200", 108, (8, 0), 42505273344, "a100-40"),
    ("NVIDIA A100-SXM4-80GB", 108, (8, 0), 85100000000, "a100-80"),
    ("NVIDIA GeForce RTX 2080 Ti", 68, (7, 5), 11554586624, "rtx2080ti"),
    ("NVIDIA H100 80GB HBM3", 132, (9, 0), 85018279936, "h100"),
    ("NVIDIA H800", 132, (9, 0), 84943110144, "h800"),
    ("NVIDIA B200", 148, (10, 0), 191503138816, "b200"),
    ("AMD Instinct MI210", 104, (9, 0), 68702699520, "mi210"),
    ("AMD Instinct MI300X", 304, (9, 4), 206141652992, "mi300x"),
    ("AMD Instinct MI300X VF", 304, (9, 4), 205571227648, "mi300x"),
    ("NVIDIA GeForce RTX 3080", 68, (8, 6), 10500000000, "rtx3080"),
    ("NVIDIA GeForce RTX 3080", 70, (8, 6), 12600000000, "rtx3080-12"),
    ("NVIDIA GeForce RTX 4060 Ti", 34, (8, 9), 8400000000, "rtx4060ti"),
    ("NVIDIA GeForce RTX 4060 Ti", 34, (8, 9), 16900000000, "rtx4060ti-16"),
    ("AMD Instinct MI250X / MI250", 110, (9, 0), 68702699520, "mi250x"),
]


def a_gpu(name: str, units: int, version: tuple[int, int], memory: int) -> Gpu:
    return Gpu(0, name, units, None, None, None, memory, version, None)


@pytest.mark.parametrize(("name", "units", "version", "memory", "stem"), SEEN)
def test_names_of_reports(
    name: str, units: int, version: tuple[int, int], memory: int, stem: str
) -> None:
    found = identify(a_gpu(name, units, version, memory))
    assert found.machine is named(stem)
    assert found.said == ""


@pytest.mark.parametrize("name", ["", "AMD Radeon Graphics", "gfx942", "gfx942:sramecc+:xnack-",
                                  "AMD Radeon Graphics (gfx942)",
                                  "unnamed GPU"])  # fmt: skip
def test_properties_decide_where_the_name_does_not(name: str) -> None:
    """An empty name is that of vLLM's traces of an MI300X."""
    found = identify(a_gpu(name, 304, (9, 4), 206141652992))
    assert found.machine is named("mi300x")
    assert "304 multiprocessors, compute capability 9.4, 206 GB" in found.said
    assert "AMD Instinct MI300X" in found.said


def test_a_gpu_that_may_be_either_has_what_both_data_sheets_say() -> None:
    """An MI210 and half an MI250 differ in their links only."""
    found = identify(a_gpu("AMD Radeon Graphics", 104, (9, 0), 68702699520))
    assert "MI210 or AMD Instinct MI250" in found.machine.name
    assert found.machine.peak_flops_per_s["float16_tensor"] == pytest.approx(181e12)
    assert found.machine.bandwidth_bytes_per_s["hbm"] == pytest.approx(1638.4e9)
    assert "infinity_fabric" not in found.machine.bandwidth_bytes_per_s
    assert "MI250" in found.said


def test_an_empty_name_alone_says_nothing() -> None:
    bare = Gpu(0, "", None, None, None, None, None, None, None)
    assert identify(bare).machine.peak_flops_per_s == {}
    assert identify(replace(bare, sm_count=304)).machine.peak_flops_per_s == {}


def test_another_gpu_is_estimated_from_the_report() -> None:
    """100 multiprocessors of compute capability 8.0 at 1.5 GHz: 128 FP32 operations a clock."""
    found = identify(UNKNOWN)
    machine = found.machine
    assert (machine.name, machine.basis) == ("NVIDIA Imaginary", "estimate")
    assert machine.peak_flops_per_s["float32"] == pytest.approx(19.2e12)
    assert machine.peak_flops_per_s["bfloat16_tensor"] == pytest.approx(307.2e12)
    assert machine.bandwidth_bytes_per_s == {"hbm": 1e12}
    figure = machine.figures["peak_flops_per_s", "float32"]
    assert figure.source == (
        "estimate: 100 multiprocessors x 128 operations per clock (Ampere) x 1.50 GHz"
    )
    assert "estimate" in found.said
    assert "NVIDIA Imaginary" in found.said


def test_without_a_clock_that_of_its_architecture_is_taken() -> None:
    found = identify(replace(UNKNOWN, clock_hz=None))
    assert found.machine.peak_flops_per_s["float32"] == pytest.approx(100 * 128 * 1.41e9)
    assert "the median boost clock of the listed devices" in found.said


def test_what_the_report_does_not_say_is_missing() -> None:
    for change in ({"sm_count": None}, {"compute_capability": None},
                   {"compute_capability": (99, 9)}):  # fmt: skip
        assert find(replace(UNKNOWN, **change)).peak_flops_per_s == {}
        assert identify(replace(UNKNOWN, **change)).said == ""
    assert find(replace(UNKNOWN, memory_bandwidth_bytes_per_s=None)).bandwidth_bytes_per_s == {}


def test_estimates_agree_with_data_sheets() -> None:
    """Of vector units within 3 %; of matrix units, whose clock may be lower, within 20 %."""
    for device in GPUS:
        chip, rates = rates_of(device)
        if chip.multiprocessors is None or chip.boost_clock_hz is None:
            continue
        name = f"{device.machine.name} that is not listed"
        name += "" if chip.target.startswith("sm_") else f" {chip.target}"
        gpu = Gpu(0, name, chip.multiprocessors, int(chip.boost_clock_hz), None, None, None,
                  capability(chip.target), None)  # fmt: skip
        found = find(gpu)
        assert found.basis == "estimate", device.stem
        for key in rates.keys() & device.machine.peak_flops_per_s.keys():
            rel = 0.03 if key in AT_THE_BOOST_CLOCK else 0.20
            peak = device.machine.peak_flops_per_s[key]
            assert found.peak_flops_per_s[key] == pytest.approx(peak, rel=rel), (device.stem, key)


def test_a_part_of_a_device_is_estimated() -> None:
    """An MI300X of eight partitions reports 38 of 304 compute units; a MIG slice of an A100 42."""
    found = identify(a_gpu("AMD Instinct MI300X", 38, (9, 4), 25 * 2**30))
    whole = named("mi300x").peak_flops_per_s["bfloat16_tensor"]
    assert found.machine.peak_flops_per_s["bfloat16_tensor"] == pytest.approx(whole / 8, rel=0.01)
    assert "as a part of a device does" in found.said
    slice_ = identify(a_gpu("NVIDIA A100-SXM4-40GB MIG 3g.20gb", 42, (8, 0), 20 * 2**30)).machine
    share = slice_.peak_flops_per_s["float16_tensor"] / 312e12
    assert share == pytest.approx(42 / 108, rel=0.01)


def test_a_gpu_without_tensor_cores_has_none_in_its_estimate() -> None:
    found = find(replace(UNKNOWN, name="NVIDIA GeForce GTX 1650", compute_capability=(7, 5)))
    assert set(found.peak_flops_per_s) == {"float32", "float16"}


H100_PCIE = (FOLDER / "h100-pcie.toml").read_text(encoding="utf-8")


def parsed(text: str) -> Machine:
    return published(Entries(tomllib.loads(text), "mine.toml", "correct it"))


@pytest.mark.parametrize(("old", "new", "said"), [
    ("bfloat16_tensor =", "bf16 =", "key 'bf16': expected only the keys float64, float32"),
    ('"sm_90"', '"sm_91"', "key 'target': expected one of sm_37"),
    ("multiprocessors = 114", "multiprocessors = 11.4",
     "chip: key 'multiprocessors': expected a whole number above 0; got 11.4"),
    ("boost_clock_hz = 1.755e9", "boost_clock_hz = -1", "a finite number above 0; got -1"),
    ("multiprocessors = 114", 'limited = ["int3"]', "key 'limited'.*keys of peak_flops_per_s"),
    ("multiprocessors", "cores", "key 'cores': expected only the keys architecture"),
    ('source = "', 'sauce = "', "key 'sauce': expected only the keys name"),
    ("tf32_tensor = 378e12", 'tf32_tensor = "378"', "peak_flops_per_s: key 'tf32_tensor'"),
])  # fmt: skip
def test_a_file_that_is_wrong_is_refused_by_key(old: str, new: str, said: str) -> None:
    assert parsed(H100_PCIE).name == "NVIDIA H100 PCIe"
    assert old in H100_PCIE
    with pytest.raises(ModelError, match=rf"mine\.toml.*{said}"):
        parsed(H100_PCIE.replace(old, new, 1))


LISTED = [
    line for line in device_list.PAGE.read_text(encoding="utf-8").splitlines()
    if line.startswith("| `")
]  # fmt: skip


def test_the_page_says_what_the_files_say() -> None:
    """`make docs` writes the page of the site anew, with devices that are not on it yet."""
    assert LISTED
    for line in LISTED:
        stem = line.split("`")[1]
        assert device_list.row(DEVICES[stem]) == f"{line}\n", "run: python docs/device_list.py"


def test_names_of_files_and_machines_are_unique() -> None:
    assert len({machine.name for machine in known()}) == len(DEVICES)
    for device in DEVICES.values():
        others = [d for d in DEVICES.values() if d is not device]
        assert not any(device.stem in d.calls() for d in others)


def test_without_a_file_all_other_devices_are_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of any two devices one is left out while the other stays, and the reverse."""
    stems = sorted(DEVICES)
    for bit in range(len(stems).bit_length()):
        for value in (0, 1):
            kept = {stem for i, stem in enumerate(stems) if i >> bit & 1 == value}
            folder = tmp_path / f"{bit}_{value}"
            (folder / "devices").mkdir(parents=True)
            shutil.copy(FOLDER.parent / "architectures.toml", folder)
            for stem in kept:
                shutil.copy(FOLDER / f"{stem}.toml", folder / "devices")
            monkeypatch.setattr(module, "files", lambda _, folder=folder: folder)
            forget()
            try:
                found = {device.stem: device for device in devices()}
            finally:
                forget()  # what the smaller folder says
            assert found == {stem: DEVICES[stem] for stem in kept}


def forget() -> None:
    """Forget all that was read of the data files."""
    for kept in vars(module).values():
        if hasattr(kept, "cache_clear"):
            kept.cache_clear()
