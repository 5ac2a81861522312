"""Transformers: published parameters, torch's counts to the last FLOP, and hand-worked layers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.common.folders import PROGRAMS
from perfmodel.base.errors import WorkloadError
from perfmodel.workloads.layers import (
    INPUT,
    Attention,
    Cost,
    Embedding,
    FeatureNorm,
    Linear,
    Net,
    Node,
    Pointwise,
    Product,
    Shape,
    costs,
    place,
    total,
    training_bytes,
)
from perfmodel.workloads.networks import CNNS, NETWORKS, network

PUBLISHED = {
    "gpt2": 124_439_808, "gpt2-medium": 354_823_168, "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "bert-base": 109_482_240, "bert-large": 335_141_888,
    "vit_b_16": 86_567_656, "vit_b_32": 88_224_232, "vit_l_16": 304_326_632,
    "vit_l_32": 306_535_400, "vit_h_14": 632_045_800,
    "llama-2-7b": 6_738_415_616, "llama-2-13b": 13_015_864_320, "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248, "llama-3-70b": 70_553_706_496, "llama-3.2-1b": 1_235_814_400,
    "mistral-7b": 7_241_732_096,
}  # fmt: skip
"""Parameters as the models' authors, torchvision (ViT) and Hugging Face (BertModel) give them."""


@pytest.mark.parametrize("name", [n for n in NETWORKS if n not in CNNS])
def test_parameters_are_the_published_ones(name: str) -> None:
    assert total(network(name)).parameters == PUBLISHED[name]


COUNTED: dict[str, tuple[str, int, dict[str, int], int]] = {
    "gpt2": ("gpt2", 8, {"vocab": 50304}, 7_155_952_386_048),
    "gpt_small": (
        "gpt2", 32,
        {"n_layer": 6, "d_model": 384, "n_head": 6, "vocab": 8192, "positions": 256},
        744_103_084_032,
    ),
    "vit": ("vit_b_16", 128, {}, 13_550_986_985_472),
    "resnet50": ("resnet50", 64, {}, 1_555_140_968_448),
}  # fmt: skip
"""Network, batch, settings, and FlopCounterMode's count of a training step on an H200."""


@pytest.mark.parametrize("name", COUNTED)
def test_flops_are_flop_counter_mode_s(name: str) -> None:
    word, batch, settings, flops = COUNTED[name]
    assert total(network(word, **settings), batch).flops == flops


def described(truth: dict[str, Any]) -> tuple[str, dict[str, int]]:
    """The network that a program of profiles/programs/train.py trained."""
    width, length = truth["width"], truth["length"]
    if truth["model"].startswith("resnet"):
        return truth["model"], {"image": length}
    sizes = {
        "n_layer": truth["layers"], "d_model": width, "n_head": truth["heads"],
        "vocab": truth["vocabulary"], "positions": length,
    }  # fmt: skip
    if truth["model"] == "llama":
        inner = (8 * width // 3 + 63) // 64 * 64
        return "llama-2-7b", {**sizes, "n_kv_head": truth["heads"], "d_ff": inner}
    if truth["model"] == "bert":
        return "bert-base", sizes
    return "gpt2", {**sizes, "tied": 0}


@pytest.mark.parametrize("name", ["gpt", "llama_heads", "bert", "resnet34"])
def test_flops_are_those_of_recorded_programs(name: str) -> None:
    truth = json.loads((PROGRAMS / f"{name}_shapes.truth.json").read_text(encoding="utf-8"))
    word, settings = described(truth)
    found = total(network(word, **settings), truth["batch"])
    assert found.flops == truth["flop_counter_total"]
    if truth["model"] != "llama":  # the recorded one has biases and positions that Llama has not
        assert found.parameters == truth["parameters"]


@pytest.mark.parametrize("name", ["gpt_ddp", "gpt_unnamed", "healthy_b32"])
def test_parameters_are_those_of_recorded_programs(name: str) -> None:
    truth = json.loads((PROGRAMS / f"{name}.truth.json").read_text(encoding="utf-8"))
    word, settings = described(truth)
    assert total(network(word, **settings)).parameters == truth["parameters"]


# --- by hand


def alone(layer: Any, *shapes: Shape, trained: bool = True, own: int | None = None) -> Cost:
    """The cost of a layer whose inputs depend on parameters, of one sample, 1 byte a number."""
    before = [
        Node(f"x{i}", FeatureNorm(False) if trained else Pointwise("x"), (INPUT,), shape)
        for i, shape in enumerate(shapes)
    ]
    nodes = (*before, Node("y", layer, tuple(x.name for x in before), parameters=own))
    return costs(Net("n", shapes[0], nodes), 1, 1)[-1][1]


def test_attention_by_hand() -> None:
    """5 tokens, 4 heads of 3 features, keys of 2 heads: 2 x 4 x 25 x 3 MACs; 5/2 backward."""
    q, kv = Shape(5, 12), Shape(5, 6)
    cost = alone(Attention(4, 2, 3), q, kv, kv)
    assert cost.macs == 2 * 4 * 25 * 3
    assert cost.backward_flops == 5 * cost.forward_flops // 2
    assert cost.forward_bytes == 60 + 2 * 30 + 60
    assert cost.backward_bytes == 60 + 2 * 30 + 2 * 60 + 60 + 2 * 30
    assert alone(Attention(4, 2, 3), Shape(5, 24)).macs == cost.macs
    assert alone(Attention(4, 2, 3, causal=True), q, kv, kv).macs == 2 * 4 * 15 * 3
    with pytest.raises(WorkloadError, match="4 heads, keys and values of 2, 3 features"):
        Attention(4, 2, 3).shape(Shape(5, 25))


def test_a_projection_of_every_token_by_hand() -> None:
    """5 tokens of 4 features to 3: 12 weights and 3 biases, 60 MACs; tied: none of its own."""
    cost = alone(Linear(3, each=True), Shape(5, 4))
    assert (cost.parameters, cost.macs, cost.backward_flops) == (15, 60, 4 * 60)
    tied = alone(Linear(3, False, each=True), Shape(5, 4), own=0)
    assert (tied.parameters, tied.macs, tied.update_bytes) == (0, 60, 0)
    assert tied.forward_bytes == 20 + 12 + 15


def test_an_embedding_by_hand() -> None:
    """5 of 7 rows of 4: reads indices and rows, writes them; its gradient is the whole table."""
    cost = alone(Embedding(7, 4), Shape(5), trained=False)
    assert cost == Cost(
        parameters=28, forward_bytes=5 + 2 * 20, backward_bytes=20 + 28, update_bytes=5 * 28
    )


def test_a_product_of_activations_by_hand() -> None:
    """2 x 3 times 3 x 4: 24 MACs, twice that for both gradients."""
    cost = alone(Product(3, Shape(2, 4)), Shape(2, 3), Shape(3, 4))
    assert (cost.macs, cost.backward_flops) == (24, 2 * 48)
    assert cost.backward_bytes == 2 * 8 + 2 * (6 + 12)


def test_what_the_loss_does_not_read_has_no_backward_pass() -> None:
    """BERT's pooler runs forward; pooled, its weights' and its input's gradients are 4 d^2."""
    one, both = total(network("bert-base")), total(network("bert-base", pooled=1))
    assert both.forward_flops == one.forward_flops
    assert both.backward_flops - one.backward_flops == 4 * 768 * 768


@given(
    layers=st.integers(1, 3), heads=st.integers(1, 4), size=st.integers(1, 16),
    seq=st.integers(1, 32), batch=st.integers(1, 4),
)  # fmt: skip
def test_gpt_costs_what_its_formula_says(
    layers: int, heads: int, size: int, seq: int, batch: int
) -> None:
    """Forward 2 T (12 L d^2 + 2 L T d + V d) a sequence; backward twice, of attention 5/2."""
    d, v = heads * size, 100
    settings = {"n_layer": layers, "d_model": d, "n_head": heads, "vocab": v, "positions": 64}
    found = total(network("gpt2", seq=seq, **settings), batch)
    dense = seq * (12 * layers * d * d + v * d)
    scores = 2 * layers * seq * seq * d
    assert found.forward_flops == 2 * batch * (dense + scores)
    assert found.backward_flops == batch * (4 * dense + 5 * scores)
    assert found.parameters == v * d + 64 * d + layers * (12 * d * d + 13 * d) + 2 * d


def test_a_causal_mask_leaves_half_of_the_scores() -> None:
    whole = total(network("gpt2"), only="attention").macs
    half = total(network("gpt2", causal=1), only="attention").macs
    assert half / whole == 1025 / 2048


def test_settings_of_a_named_network_may_be_off() -> None:
    tied = total(network("llama-3.2-1b")).parameters
    assert total(network("llama-3.2-1b", tied=0)).parameters == tied + 128256 * 2048
    assert total(network("llama-2-7b", tied=1)).parameters == 6_738_415_616 - 32000 * 4096


def test_memory_of_a_step_holds_adam_s_states() -> None:
    """Four copies of the parameters; a view is not held twice."""
    net = network("bert-base")
    at_one, at_two = training_bytes(net, 1), training_bytes(net, 2)
    assert 2 * at_one - at_two == 4 * 4 * total(net).parameters


def test_shapes_of_llama_3() -> None:
    shapes = {x.name: x.shape for x in place(network("llama-3-8b", seq=10))}
    assert shapes["h.31.attn.q"] == (10, 4096)
    assert shapes["h.31.attn.k"] == (10, 1024)
    assert shapes["h.31.mlp.gate"] == (10, 14336)
    assert shapes["head"] == (10, 128256)


# --- configurations

LLAMA_3_8B = {
    "architectures": ["LlamaForCausalLM"], "attention_bias": False, "hidden_act": "silu",
    "hidden_size": 4096, "intermediate_size": 14336, "max_position_embeddings": 8192,
    "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 32,
    "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_scaling": None,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16", "vocab_size": 128256,
}  # fmt: skip
GPT2 = {
    "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_inner": None,
    "n_layer": 12, "n_positions": 1024, "vocab_size": 50257, "resid_pdrop": 0.1,
}  # fmt: skip


@pytest.mark.parametrize(("config", "name"), [(LLAMA_3_8B, "llama-3-8b"), (GPT2, "gpt2")])
def test_a_config_is_the_network_of_that_name(
    config: dict[str, Any], name: str, tmp_path: Path
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    assert network(str(path)).nodes == network(name).nodes
    assert network(str(path), num_hidden_layers=2).nodes == network(name, n_layer=2).nodes


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"n_layers": 3}, "settings among n_layer, d_model"),
        ({"n_layer": 10**9}, "n_layer from 1 to 1,000; got 1000000000"),
        ({"d_model": 0}, "d_model from 1"),
        ({"tied": 2}, "tied from 0 to 1; got 2"),
        ({"n_head": 5}, "heads that divide the width; got n_head=5, d_model=768"),
        ({"seq": 2000}, "got seq=2000, positions=1024"),
        ({"d_model": 2**62, "n_head": 1}, "at most 2^63 - 1 elements"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, int], says: str) -> None:
    with pytest.raises(WorkloadError) as refused:
        total(network("gpt2", **settings))
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "expected a config.json with a model_type"),
        ("[" * 100_000, "expected a config.json with a model_type"),
        ('{"hidden_size": 3}', "model_type"),
        ('{"model_type": "mixtral"}', "gpt2, bert, vit, llama, mistral; got 'mixtral'"),
        ('{"model_type": ["gpt2"]}', "got ['gpt2']"),
        ('{"model_type": "gpt2", "n_embd": 1.5}', "d_model from 1"),
        ('{"model_type": "gpt2", "n_embd": -1}', "got -1"),
        ('{"model_type": "llama", "num_key_value_heads": 3}', "keys and values of 3"),
        ("3", "model_type"),
    ],
)
def test_configs_that_cannot_be(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(WorkloadError) as refused:
        total(network(str(path)))
    assert says in str(refused.value)
