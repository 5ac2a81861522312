"""The HPML labs' benchmarks: their images, programs and products, and the pages made of results."""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.common import digits, pages, results
from benchmarks.common.processes import visible_gpus
from benchmarks.layers.gemms import gemms, total
from benchmarks.memory import two_gpus_report
from benchmarks.scaling import ddp_report
from benchmarks.tta import cifar10, resnet_report
from benchmarks.utilization import resnet_report as utilization_report
from benchmarks.vecadd import lab, lab_report
from perfmodel.workloads.cnns import resnet
from perfmodel.workloads.layers import total as total_of
from perfmodel.workloads.networks import CNNS, network


def strokes(count: int) -> digits.Bytes:
    """Return images with a bar each."""
    found = np.zeros((count, 28, 28), np.uint8)
    found[:, 4:24, 12:16] = 255
    return found


def test_images_are_the_same_ones_each_time_and_others_by_another_seed() -> None:
    first, again, other = (digits.cluttered(strokes(30), seed) for seed in (1, 1, 2))
    assert first.shape == (30, 3, 32, 32)
    assert first.dtype == np.uint8
    assert (first == again).all()
    assert (first != other).mean() > 0.5


def test_contrast_and_fragments_set_how_far_a_digit_stands_out() -> None:
    def variance(**how: Any) -> float:
        made = digits.cluttered(strokes(200), 3, noise=0.0, **how)
        return float(made.astype(float).var(axis=(2, 3)).mean())

    assert variance(contrast=0.4, fragments=0) > 1.3 * variance(contrast=0.1, fragments=0)
    assert variance(contrast=0.4, fragments=3) > 1.05 * variance(contrast=0.4, fragments=0)


def test_the_other_source_has_five_images_of_each_class() -> None:
    found = digits.others()
    assert found.images.shape == (50, 3, 32, 32)
    assert np.bincount(found.labels).tolist() == [5] * 10


def archive(rows: int) -> bytes:
    """Return an archive as CIFAR-10's, with so many images in each of six files."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for number, name in enumerate(
            [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]
        ):
            content = bytes([number, *[10 * number] * 3072]) * rows
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return out.getvalue()


def test_cifar10_is_read_from_its_archive() -> None:
    train, test = cifar10.read_archive(archive(2))
    assert train.images.shape == (10, 3, 32, 32)
    assert train.labels.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert set(train.images[4].ravel().tolist()) == {20}
    assert (test.labels.tolist(), int(test.images[0, 0, 0, 0])) == ([5, 5], 50)


def test_an_archive_with_other_bytes_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cifar.tar.gz").write_bytes(archive(1))
    monkeypatch.setenv("CIFAR10", str(tmp_path / "cifar.tar.gz"))
    with pytest.raises(SystemExit, match="got other bytes"):
        cifar10.cifar10()


@pytest.mark.skipif(not shutil.which("g++"), reason="needs g++")
def test_the_program_of_the_cpu_is_built_and_run(tmp_path: Path) -> None:
    built = lab.build(tmp_path, ["host"])["host"]
    found = lab.ran(built["path"], 0.1, ())
    assert found["wrong"] == 0
    assert 0 < found["add_s"] <= found["total_s"] < found["process_s"]


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("nvcc"), reason="needs nvcc")
@pytest.mark.parametrize("name", ["explicit", "unified"])
def test_the_programs_of_the_gpu_are_built(name: str, tmp_path: Path) -> None:
    source, out = lab.PROGRAMS / f"{name}.cu", tmp_path / name
    words = [*lab.COMPILERS[".cu"][:-1], "-arch=sm_90", "-o", str(out), str(source)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert out.exists()


@pytest.mark.parametrize("name", CNNS)
def test_gemms_have_the_multiply_accumulates_of_the_layers(name: str) -> None:
    for batch in (1, 32):
        assert total(gemms(network(name), batch))["macs"] == total_of(network(name), batch).macs


@pytest.mark.parametrize(
    ("name", "parameters", "macs"),
    [("resnet18", 11_173_962, 555_422_720), ("resnet50", 23_520_842, 1_297_829_888)],
)
def test_networks_for_small_images(name: str, parameters: int, macs: int) -> None:
    """As commonly given: ResNet-18 for CIFAR-10 has 11.17 M parameters and 0.56 G MACs."""
    found = total_of(resnet(name, 32, 10, small=True))
    assert (found.parameters, found.macs) == (parameters, macs)


def test_caffes_resnet50_has_fewer_multiply_accumulates() -> None:
    """3.86 G, as the paper says 3.8 billion; as many parameters."""
    found, ours = total_of(resnet("resnet50", first=True)), total_of(resnet("resnet50"))
    assert (found.macs, found.parameters) == (3_857_973_248, ours.parameters)


def test_collectives_are_counted_by_their_tensors() -> None:
    """A bucket, a pair of tensors gathered into two, and what is no collective."""
    events = [
        {"name": "c10d::allreduce_", "args": {"Input Dims": [[[256, 2]], []]}},
        {"name": "c10d::allgather_", "args": {"Input Dims": [[[[3]], [[3]]], [[3]]]}},
        {"name": "nccl:all_reduce", "args": None},
    ]
    assert list(ddp_report.collectives(events)) == [("allreduce", 512), ("allgather", 9)]


@pytest.mark.parametrize(
    ("said", "found"), [("2,5", [2, 5]), ("3", [3]), ("", [0, 1]), ("GPU-1a2b", [0, 1])]
)
def test_gpus_are_nvmls_numbers(
    said: str, found: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", said)
    assert visible_gpus(2) == found


def test_emulated_ranks_have_the_mean_gradient_and_buffers_of_their_own() -> None:
    """Each rank alone on its share, gradients averaged: what an all-reduce of DDP leaves."""
    torch = pytest.importorskip("torch")
    from benchmarks.common.torch_nets import Network
    from benchmarks.scaling.ddp_lab import Emulated, tiny

    torch.manual_seed(1)
    ranks, share = 4, 8
    alone = [Network(tiny()) for _ in range(ranks)]
    for one in alone[1:]:
        one.load_state_dict(alone[0].state_dict())
    together = Emulated(Network(tiny()), ranks)
    together.replicas[0].load_state_dict(alone[0].state_dict())
    x, y = torch.randn(ranks * share, 3, 32, 32), torch.arange(ranks * share) % 10
    loss = torch.nn.functional.cross_entropy
    loss(together(x), y).backward()
    for rank, one in enumerate(alone):
        own = slice(rank * share, (rank + 1) * share)
        loss(one(x[own]), y[own]).backward()
        for mine, expected in zip(together.replicas[rank].buffers(), one.buffers(), strict=True):
            torch.testing.assert_close(mine, expected)
    each = zip(*(one.parameters() for one in alone), strict=True)
    for found, parameters in zip(together.parameters(), each, strict=True):
        mean = torch.stack([p.grad for p in parameters]).mean(0)
        torch.testing.assert_close(found.grad, mean)


PAGES = {
    "tta": (resnet_report, lambda: resnet_report.page(resnet_report.machines())),
    "utilization": (
        utilization_report,
        lambda: utilization_report.page(utilization_report.measured()),
    ),
    "vecadd": (lab_report, lambda: lab_report.page(results.read(lab_report.RESULTS))),
    "memory": (
        two_gpus_report,
        lambda: two_gpus_report.page(results.read(two_gpus_report.RESULTS)),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGES)
def test_a_page_shows_what_is_committed(name: str) -> None:
    module, made = PAGES[name]
    assert pages.section(module.PAGE, module.SCRIPT) == made().strip()


def test_the_page_of_the_ddp_lab_shows_what_is_committed() -> None:
    for name, made in ddp_report.parts().items():
        assert pages.section(ddp_report.PAGE, ddp_report.SCRIPT, name) == made.strip(), name


def test_every_cell_of_the_vector_programs_ran_five_times() -> None:
    found = lab_report.cells(results.read(lab_report.RESULTS))
    assert set(found) == {(way, k) for way in lab.WAYS for k in lab.MILLIONS}
    assert min(len(runs) for runs in found.values()) >= lab.LEAST_RUNS
    assert sum(run["wrong"] for runs in found.values() for run in runs) == 0


def test_the_kinds_of_memory_are_compared_by_the_same_work() -> None:
    """Whole processes make, add and check the numbers with both; the clocks inside do not."""
    found = lab_report.cells(results.read(lab_report.RESULTS))
    ratio = {
        k: lab_report.median(found["unified grid", k], "process_s")
        / lab_report.median(found["explicit grid", k], "process_s")
        for k in lab.MILLIONS
    }
    assert [k for k in ratio if ratio[k] > 1] == [1.0]
    page = lab_report.PAGE.read_text(encoding="utf-8")
    assert f"with copies 1.40 s, {ratio[100.0]:.2f} times as long" in " ".join(page.split())
    assert "6 times as long as with copies" not in page


def test_the_studys_and_our_ratio_are_over_all_copies_of_the_weights() -> None:
    table = two_gpus_report.runs(results.read(two_gpus_report.RESULTS)["rows"])
    cells = [[c.strip() for c in line.strip("|").split("|")] for line in table.splitlines()]
    column = {title: i for i, title in enumerate(cells[0])}
    parallel = [c for c in cells if c[1] == "DataParallel"]
    ratios = [(c[column["over all copies"]], c[column["over all its copies"]]) for c in parallel]
    assert ratios == [("191", "125"), ("208", "142")]


def test_every_setting_of_the_large_batch_is_on_the_page() -> None:
    page = ddp_report.PAGE.read_text(encoding="utf-8")
    for name in ddp_report.LARGE:
        for row in ddp_report.rows(name, "large"):
            setting = row["setting"]
            assert f"| {ddp_report.RATES.get(setting, setting)} |" in page, (name, setting)


def test_both_kinds_of_gpu_trained_the_same_seeds() -> None:
    seeds = [
        [run["config"]["seed"] for run in read["runs"]]
        for read, _ in resnet_report.machines().values()
    ]
    assert len(seeds) == len(resnet_report.MACHINES)
    assert seeds[0] == seeds[1]
    assert len(seeds[0]) >= 5
