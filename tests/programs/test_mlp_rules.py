"""What the trainer refuses, predictions and memory refuse, too, and in the same words."""

from __future__ import annotations

import json
import re
from itertools import product
from typing import Any

import pytest

from perfmodel.programs.mlp import rules
from perfmodel.programs.mlp.settings import SETTINGS
from perfmodel.studies.mlp.case import mlp_case, needed_bytes, too_large
from support.cli import fails, perfmodel, succeeds
from trainer import config
from trainer.config import Config
from trainer.errors import ConfigError
from trainer.networks import fused as network_fused
from trainer.transports import device as transport_device
from trainer.transports import host as transport_host
from trainer.transports import peer as transport_peer

BYTES = {"float32": 4, "float64": 8}


def test_the_tables_are_the_trainer_s() -> None:
    able = {
        math: tuple(name for name, gemm in rules.GEMMS.items() if math in gemm.maths)
        for math in config._ABLE
    }
    assert able == {math: tuple(names) for math, names in config._ABLE.items()}
    most = {BYTES[dtype]: count for dtype, count in network_fused.MOST_CLASSES.items()}
    assert dict(rules.MOST_CLASSES) == most
    for name in ("math", "gemm", "parallel", "transport"):
        known = {"math": config.MATHS, "gemm": config.GEMMS, "parallel": config.PARALLEL,
                 "transport": config.TRANSPORTS}[name]  # fmt: skip
        assert sorted(SETTINGS[name]) == sorted(known)
    words = transport_host.HostTransport.uncapturable
    assert words is not None
    graph = {"transport": "host", "graph": "yes", "data_on": "device"}
    assert words in next(rules.refusals(graph, 4, 10))
    for kind in (transport_device.NcclTransport, transport_peer.PeerTransport):
        assert kind.uncapturable is None


def trainer_says(settings: dict[str, str], dtype: str) -> str | None:
    chosen: dict[str, Any] = {**settings, "overlap": settings["overlap"] == "yes"}
    try:
        Config(dtype=dtype, **chosen)
    except ConfigError as error:
        return str(error)
    return None


@pytest.mark.parametrize("dtype", BYTES)
def test_every_combination_is_refused_by_both_or_none(dtype: str) -> None:
    names = ("math", "gemm", "parallel", "transport", "overlap")
    refused = 0
    for values in product(*(SETTINGS[name] for name in names)):
        settings = dict(zip(names, values, strict=True))
        said = trainer_says(settings, dtype)
        ours = list(rules.refusals(settings, BYTES[dtype], 10))
        if said is not None:
            assert ours[0] == said
            refused += 1
        elif ours:  # what the trainer says when it makes its transport
            assert "a transport with a non-blocking form" in ours[0]
    assert refused > 100


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--math", "tf32", "--gemm", "naive"), "expected a --gemm that multiplies so"),
        (("--parallel", "model", "--gemm", "fused"), "use --gemm hierarchical"),
        (("--gemm", "fused", "--num-classes", 40), "expected --num-classes of at most 32"),
    ],
)
def test_commands_refuse_in_the_trainer_s_words(flags: tuple[object, ...], said: str) -> None:
    sizes = ("-H", 512, "-B", 3000, "-p", 2, "--input-size", 784)
    classes = () if "--num-classes" in flags else ("--num-classes", 10)
    model = ("--model", "benchmarks/results/predict_model.json")
    assert said in fails(5, "memory", *sizes, *classes, *flags)
    assert said in fails(5, "study", "predict", *model, *sizes, *classes, *flags)


def test_a_graph_of_what_the_host_does_is_refused() -> None:
    common = ("study", "predict", "--model", "benchmarks/results/predict_model.json", "-H", 512,
              "-B", 3000, "-p", 2, "--graph")  # fmt: skip
    assert "use --data-on device" in fails(5, *common, "--transport", "nccl")
    said = fails(5, *common, "--transport", "host", "--data-on", "device")
    assert "not captured: MPI sums on the host" in said
    assert "Epoch" in succeeds(*common, "--transport", "nccl", "--data-on", "device")


def test_what_does_not_fit_the_gpu_is_warned_of() -> None:
    """H=4e6, B=12000: a1 and d1 alone are 2 x 4 x 4e6 x 6000 B = 192 GB on a GPU of 151 GB."""
    model = ("--model", "benchmarks/results/predict_model.json")
    flags = ("-p", 2, "--transport", "nccl", "--data-on", "device")
    said = perfmodel("study", "predict", *model, *flags, "-H", 4_000_000, "-B", 12000)
    assert said.exit_code == 0
    assert re.search(r"does not fit: the trainer allocates at least 2\d\d GB on each", said.stderr)
    swept = perfmodel("study", "predict", *model, *flags, "-H", 512, "-B", 12000,
                      "--sweep", "H=512,4000000,8000000")  # fmt: skip
    assert "2 of 3 points, from H=4000000" in swept.stderr
    small = perfmodel("study", "predict", *model, *flags, "-H", 512, "-B", 3000)
    assert "does not fit" not in small.stderr


def test_memory_needed_is_what_the_memory_command_says() -> None:
    sizes = {"D": 784, "H": 512, "C": 10, "B": 3000, "p": 2, "b": 4}
    need = needed_bytes(mlp_case(sizes, {"transport": "pinned"}), 60_000)
    said = json.loads(succeeds("memory", "-H", 512, "-B", 3000, "-p", 2, "--input-size", 784,
                               "--num-classes", 10, "--transport", "pinned", "--json"))  # fmt: skip
    assert need == said["sums"]["reserved_bytes"] + said["sums"]["apart_bytes"]
    assert too_large([mlp_case(sizes, {})], "some GPU", 60_000) is None
