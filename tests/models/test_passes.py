"""Least times of passes that GPUs share, worked by hand."""

from __future__ import annotations

import pytest

from perfmodel.base.errors import ModelError
from perfmodel.machines.machine import Machine
from perfmodel.models.serving import Layout, Recorded, forward_pass
from perfmodel.workloads.decoder import Batch, of_config, published

GPU = Machine(
    "GPU", "made up", {"bfloat16_tensor": 1e6, "float8_tensor": 2e6}, {"hbm": 1e3, "nvlink": 2e2}
)
DENSE = {
    "model_type": "llama", "hidden_size": 8, "num_attention_heads": 4, "num_key_value_heads": 2,
    "num_hidden_layers": 3, "intermediate_size": 16, "vocab_size": 10,
}  # fmt: skip
ROUTED = {
    "model_type": "mixtral", "hidden_size": 8, "num_attention_heads": 4, "num_key_value_heads": 2,
    "num_hidden_layers": 3, "intermediate_size": 16, "vocab_size": 10, "num_local_experts": 8,
    "num_experts_per_tok": 2,
}  # fmt: skip
BATCH = Batch.decode(5, 7)


def test_one_gpu_moves_and_computes_what_the_model_counts() -> None:
    model = of_config("dense", DENSE)
    found = forward_pass(model, BATCH, GPU, Layout())
    assert found.weight_bytes == model.read_bytes(BATCH)
    assert found.cache_bytes == model.cache_bytes(BATCH)
    assert found.memory_s == pytest.approx((found.weight_bytes + found.cache_bytes) / 1e3)
    assert found.compute_s == pytest.approx(model.flops(BATCH) / 1e6)
    assert found.exchange_s == 0
    assert found.held_bytes == 2 * model.parameters + 5 * 7 * 3 * 2 * 2 * 2 * 2
    assert (found.floor_by, found.floor_s) == ("memory", found.memory_s)


def test_gpus_that_share_layers() -> None:
    """Heads of keys are divided by 2, not by 4; 2 sums a layer of 5 tokens of 8 numbers."""
    model = of_config("dense", DENSE)
    alone, four = (forward_pass(model, BATCH, GPU, Layout(t)) for t in (1, 4))
    assert four.weight_bytes == pytest.approx(alone.weight_bytes / 4)
    assert four.cache_bytes == alone.cache_bytes / 2
    assert four.compute_s == pytest.approx(alone.compute_s / 4)
    assert four.exchange_s == pytest.approx(2 * 3 * 5 * 8 * 2 / 1e2)


def test_gpus_over_which_experts_are_distributed() -> None:
    """4 GPUs with 2 experts each, and a batch of 5 on each: an expert has 5 of 20 tokens."""
    model = of_config("routed", ROUTED)
    alone, four = (forward_pass(model, BATCH, GPU, Layout(1, e)) for e in (1, 4))
    each = 3 * 8 * 16 * 2
    rest = alone.weight_bytes - 3 * 8 * (1 - (6 / 8) ** 5) * each
    assert four.weight_bytes == pytest.approx(rest + 3 * 2 * (1 - (6 / 8) ** 20) * each)
    assert four.compute_s == pytest.approx(alone.compute_s)  # as many tokens a GPU
    # out and back, to the 3 (1 - (3/4)^2) other GPUs with one of a token's 2 experts
    assert four.exchange_s == pytest.approx(2 * 3 * 5 * 8 * 2 * 3 * (1 - (3 / 4) ** 2) / 1e2)


def test_products_of_quantized_weights_have_the_peak_of_their_type() -> None:
    model = of_config("fp8", {**DENSE, "quantization_config": {"quant_method": "fp8"}})
    head = 2 * 8 * 10 * 5
    pairs = 3 * 4 * 4 * 2 * 35
    products = model.flops(BATCH) - head - pairs
    found = forward_pass(model, BATCH, GPU, Layout())
    assert found.compute_s == pytest.approx(products / 2e6 + (head + pairs) / 1e6)


def test_a_latent_is_held_by_every_gpu() -> None:
    model, h200 = published()["deepseek-v3"], Machine(
        "GPU", "made up", {"bfloat16_tensor": 1e15}, {"hbm": 4.8e12}
    )  # fmt: skip
    alone, eight = (forward_pass(model, BATCH, h200, Layout(t)) for t in (1, 8))
    assert eight.cache_bytes == alone.cache_bytes
    assert eight.exchange_s is None  # no link is known


def test_a_recording_says_what_is_reached() -> None:
    found = forward_pass(of_config("dense", DENSE), BATCH, GPU, Layout())
    assert found.expected_s(None) is None
    assert found.expected_s(Recorded({"compute": 0.5})) is None
    expected = found.expected_s(Recorded({"memory": 0.5}, host_s=3.0))
    assert expected == pytest.approx(2 * found.floor_s + 3)


@pytest.mark.parametrize("layout", [Layout(3), Layout(1, 3), Layout(4, 2)])
def test_gpus_that_cannot_share_a_model(layout: Layout) -> None:
    with pytest.raises(ModelError, match="expected GPUs"):
        forward_pass(of_config("routed", ROUTED), BATCH, GPU, layout)


def test_a_machine_without_rates() -> None:
    with pytest.raises(ModelError, match="not known"):
        forward_pass(of_config("dense", DENSE), BATCH, Machine("GPU", "made up", {}, {}), Layout())
