"""Decoders by configuration: weights, KV cache and FLOPs as published, and worked by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perfmodel.base.errors import WorkloadError
from perfmodel.workloads.decoder import Batch, decoder, formats, of_config, published

PARAMETERS = {
    # counts of the safetensors indices and model cards on huggingface.co
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "qwen3-0.6b": 596_049_920,
    "qwen3-8b": 8_190_735_360,
    "qwen3-32b": 32_762_123_264,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "mixtral-8x7b": 46_702_792_704,
    "mixtral-8x22b": 140_620_634_112,
    "gpt-oss-20b": 20_914_757_184,
    "gpt-oss-120b": 116_829_156_672,
    "deepseek-v3": 671_026_419_200,
}
TINY = {
    "model_type": "llama", "torch_dtype": "bfloat16", "hidden_size": 4, "intermediate_size": 6,
    "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 10,
}  # fmt: skip


def test_parameters_are_those_that_the_models_publish() -> None:
    assert {name: model.parameters for name, model in published().items()} == PARAMETERS


@pytest.mark.parametrize(
    ("name", "each"),
    [
        ("llama-3.1-8b", 32 * 2 * 8 * 128 * 2),
        ("qwen3-8b", 36 * 2 * 8 * 128 * 2),
        ("gpt-oss-120b", 36 * 2 * 8 * 64 * 2),
        ("deepseek-v3", 61 * (512 + 64) * 2),  # the latent and the positions, not heads
    ],
)
def test_kv_bytes_per_token(name: str, each: int) -> None:
    assert published()[name].kv_bytes_per_token() == each


def test_weight_bytes_of_gpt_oss_are_those_of_its_checkpoint() -> None:
    # total_size of model.safetensors.index.json of openai/gpt-oss-20b
    assert published()["gpt-oss-20b"].weight_bytes == 13_761_264_768


def test_a_tiny_decoder_by_hand() -> None:
    model = of_config("tiny", TINY)
    layer = 4 * (4 + 2 * 2) + 4 * 4 + 3 * 4 * 6 + 2 * 4  # qkv, output, feed-forward, norms
    assert model.parameters == 10 * 4 + 2 * layer + 4 + 10 * 4
    # decode of 3 sequences of 5 tokens: 2 a weight and token, 4 H D a pair
    products = 2 * 3 * (2 * (layer - 8) + 40)
    assert model.flops(Batch.decode(3, 5)) == products + 2 * 4 * 2 * 2 * 15
    # prefill of one prompt of 3: the head of the last token alone, 1 + 2 + 3 pairs
    assert model.flops(Batch.prefill(1, 3)) == 2 * 3 * 2 * (layer - 8) + 2 * 40 + 2 * 4 * 4 * 6
    assert model.read_bytes(Batch.decode(3, 5)) == 2 * (model.parameters - 40 + 3 * 4)
    assert model.cache_bytes(Batch.decode(3, 5)) == 2 * (15 + 3) * 4 * 2


def test_a_window_bounds_what_every_second_layer_reads() -> None:
    model = published()["gpt-oss-20b"]
    batch = Batch.decode(32, 1000)
    assert [model.seen(layer, batch).cached for layer in range(2)] == [32 * 128, 32_000]
    short = Batch.decode(2, 10)
    assert model.seen(0, short) == short


def test_latent_attention_in_the_form_with_fewer_operations() -> None:
    """DeepSeek-V3: 128 heads of 128 + 64 and 128 numbers, a latent of 512 + 64."""
    model = published()["deepseek-v3"]
    decode, prompt = Batch.decode(4, 1000), Batch.prefill(1, 1000)
    assert model.attention_flops(decode, 0) == 2 * 128 * (2 * 512 + 64) * 4000
    assert model.attention_flops(prompt, 0) == 2 * 128 * (128 + 64 + 128) * 1000 * 1001 // 2
    # a chunk of 10 tokens behind 990: these would be expanded again
    chunk = Batch(1, 10, 1000, 10 * 990 + 55)
    expanded = 2 * 128 * 320 * chunk.pairs + 2 * 512 * 128 * 256 * 990
    assert model.attention_flops(chunk, 0) == min(expanded, 2 * 128 * 1088 * chunk.pairs)


def test_experts_that_are_read_are_between_one_tokens_and_all() -> None:
    model = published()["gpt-oss-20b"]
    assert model.experts_read(1) == pytest.approx(4)
    assert 31 < model.experts_read(32) < 32
    assert published()["llama-3.1-8b"].experts_read(5) == 0


def test_formats_count_their_scales() -> None:
    known = formats()
    assert known["mxfp4"].bytes_of(32) == 17
    assert known["nvfp4"].bytes_of(16) == 9
    assert known["awq"].bytes_of(128) == 128 * 4 / 8 + 2 + 0.5


def test_a_configuration_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(TINY))
    assert decoder(str(file)).parameters == of_config("config", TINY).parameters


@pytest.mark.parametrize(
    "change",
    [{"model_type": "none"}, {"hidden_size": -1}, {"quantization_config": {"quant_method": "x"}}],
)
def test_what_is_no_configuration_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(WorkloadError, match="expected"):
        of_config("tiny", {**TINY, **change})
