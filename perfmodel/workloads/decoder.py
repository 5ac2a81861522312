"""Decoders of language models by their config.json: weights, FLOPs and KV cache of a forward pass.

A forward pass takes some tokens of some sequences: all tokens of a prompt (prefill), or one token
of every sequence (decode). It reads every weight that it needs once, and the keys and values of all
tokens before.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from perfmodel.base.document import parse_json
from perfmodel.base.errors import WorkloadError
from perfmodel.base.escape import printable
from perfmodel.base.files import read_whole

_FOLDER: Final = files("perfmodel.workloads").joinpath("decoders")
_BESIDE: Final = ("families", "formats")
"""Files of the folder that are no models."""
_LARGEST_CONFIG_BYTES: Final = 1 << 20
_MOST: Final = 2**31
"""Larger sizes no model has; a config.json with one is damaged."""
_METHODS: Final = {"mxfp4": "mxfp4", "nvfp4": "nvfp4", "awq": "awq", "gptq": "gptq", "fp8": "fp8"}
"""Formats of weights by `quant_method` of a config.json."""


@dataclass(frozen=True, slots=True)
class Format:
    """Storage of a weight.

    Attributes
    ----------
    name : str
    bits : float
        Of a number, with its share of the scales.
    unit : str
        Peak of products of this type; '' where weights are widened before they are multiplied.
    """

    name: str
    bits: float
    unit: str

    def bytes_of(self, numbers: float) -> float:
        """Bytes of so many numbers."""
        return numbers * self.bits / 8


@cache
def formats() -> Mapping[str, Format]:
    """Return the formats of weights by name."""
    found = _toml("formats")
    return {name: Format(name, float(row["bits"]), row["unit"]) for name, row in found.items()}


def _toml(name: str) -> dict[str, Any]:
    return tomllib.loads(_FOLDER.joinpath(f"{name}.toml").read_text(encoding="utf-8"))


@dataclass(frozen=True, slots=True)
class Part:
    """Matrices of one kind, of all layers together.

    Attributes
    ----------
    name : str
    weights : int
        Numbers.
    kind : {'product', 'expert', 'table', 'vector'}
        A `product` multiplies every token, an `expert` the tokens that are routed to it, a `table`
        is looked up by token; a `vector` is a normalization, a bias or the like.
    format : Format
    """

    name: str
    weights: int
    kind: str
    format: Format

    @property
    def bytes(self) -> float:
        """Bytes of all of it."""
        return self.format.bytes_of(self.weights)


@dataclass(frozen=True, slots=True)
class Batch:
    """Tokens of one forward pass, in sums over sequences.

    Attributes
    ----------
    sequences : int
    tokens : int
        That are computed: all of a prompt's, one of every sequence that generates.
    cached : int
        Tokens whose keys and values are read, the computed ones among them.
    pairs : int
        Queries times the keys that each one sees.
    """

    sequences: int
    tokens: int
    cached: int
    pairs: int

    @classmethod
    def prefill(cls, sequences: int, length: int) -> Batch:
        """Prompts of one length: every token sees itself and those before."""
        tokens = sequences * length
        return cls(sequences, tokens, tokens, sequences * length * (length + 1) // 2)

    @classmethod
    def decode(cls, sequences: int, length: int) -> Batch:
        """One token of every sequence, the last of so many."""
        return cls(sequences, sequences, sequences * length, sequences * length)


@dataclass(frozen=True, slots=True)
class Decoder:
    """Sizes of a model, by the names of its config.json.

    Attributes
    ----------
    name, family : str
    layers, hidden, vocab, heads, kv_heads, head_dim : int
    width : int
        Of the feed-forward part of layers without experts.
    dense_layers : int
        Layers at the beginning that have no experts.
    experts, experts_per_token, expert_width, shared_experts : int
        0 experts where there are none.
    window : int or None
        Tokens that a windowed layer sees, and `alternating` says that every second layer, from the
        first on, is one.
    tied : bool
        Whether the head is the embedding.
    qk_norm, qkv_bias, output_bias, router_bias, expert_bias, sinks : bool
        See `families.toml`.
    latent : (int, int, int, int, int) or None
        Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, 2.1): ranks of queries and of
        keys and values, and numbers of a head without and with positions, and of its values.
    plain, quantized : Format
        Of embedding, head, norms and router; and of what is `quantized_all` (all other matrices),
        or else of the experts alone.
    """

    name: str
    family: str
    layers: int
    hidden: int
    vocab: int
    heads: int
    kv_heads: int
    head_dim: int
    width: int
    dense_layers: int
    experts: int
    experts_per_token: int
    expert_width: int
    shared_experts: int
    window: int | None
    alternating: bool
    tied: bool
    qk_norm: bool
    qkv_bias: bool
    output_bias: bool
    router_bias: bool
    expert_bias: bool
    sinks: bool
    latent: tuple[int, int, int, int, int] | None
    plain: Format
    quantized: Format
    quantized_all: bool

    # --- weights

    def parts(self) -> tuple[Part, ...]:
        """Return the weights of the model by kind, of all layers together."""
        return tuple(part for part in self._parts() if part.weights)

    def _parts(self) -> Iterator[Part]:
        d, n = self.hidden, self.layers
        matrix = self.quantized if self.quantized_all else self.plain
        yield Part("embedding", self.vocab * d, "table", self.plain)
        if self.latent is None:
            q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
            yield Part("qkv", n * d * (q + 2 * kv), "product", matrix)
            yield Part("attention output", n * q * d, "product", matrix)
            biases = self.qkv_bias * (q + 2 * kv) + self.output_bias * d + self.sinks * self.heads
            norms = self.qk_norm * 2 * self.head_dim
        else:
            rank_q, rank, plain, turned, value = self.latent
            down = d * (rank_q + rank + turned)
            up = rank_q * self.heads * (plain + turned) + rank * self.heads * (plain + value)
            yield Part("latent down", n * down, "product", matrix)
            yield Part("latent up", n * up, "product", matrix)
            yield Part("attention output", n * self.heads * value * d, "product", matrix)
            biases, norms = 0, rank_q + rank
        dense = n if not self.experts else self.dense_layers
        routed = n - dense
        yield Part("feed-forward", dense * 3 * d * self.width, "product", matrix)
        each = 3 * d * self.expert_width
        yield Part("router", routed * d * self.experts, "product", self.plain)
        yield Part("shared experts", routed * self.shared_experts * each, "product", matrix)
        yield Part("experts", routed * self.experts * each, "expert", self.quantized)
        biases = n * biases + routed * self.router_bias * self.experts
        biases += routed * self.expert_bias * self.experts * (2 * self.expert_width + d)
        yield Part("norms", n * (2 * d + norms) + d, "vector", self.plain)
        yield Part("biases", biases, "vector", self.plain)
        yield Part("head", 0 if self.tied else self.vocab * d, "product", self.plain)

    @property
    def parameters(self) -> int:
        """Numbers of all weights, the tied head once."""
        return sum(part.weights for part in self.parts())

    @property
    def weight_bytes(self) -> float:
        """Bytes of all weights."""
        return sum(part.bytes for part in self.parts())

    def experts_read(self, tokens: int) -> float:
        """Expected number of experts of a layer that some tokens are routed to, if evenly.

        E (1 - (1 - k/E)^T): each token leaves an expert out with probability 1 - k/E.
        """
        if not self.experts:
            return 0.0
        return self.experts * (1 - (1 - self.experts_per_token / self.experts) ** tokens)

    def read_bytes(self, batch: Batch) -> float:
        """Bytes of weights that a pass reads, each once: rows of tables, experts that are used."""
        return sum(self.part_bytes(part, batch) for part in self.parts()) + self.tied_bytes

    @property
    def tied_bytes(self) -> float:
        """A tied head reads the whole table."""
        return self.plain.bytes_of(self.vocab * self.hidden) if self.tied else 0.0

    def part_bytes(self, part: Part, batch: Batch) -> float:
        """Bytes of a part that a pass reads; a tied head's are no part's."""
        if part.kind == "table":
            return part.format.bytes_of(min(batch.tokens, self.vocab) * self.hidden)
        if part.kind == "expert":
            return part.bytes * self.experts_read(batch.tokens) / self.experts
        return part.bytes

    # --- KV cache

    @property
    def kv_numbers(self) -> int:
        """Numbers of the KV cache a token and layer."""
        if self.latent is not None:
            return self.latent[1] + self.latent[3]
        return 2 * self.kv_heads * self.head_dim

    def kv_bytes_per_token(self, item_bytes: float = 2) -> float:
        """Bytes of the KV cache a token, of all layers."""
        return self.layers * self.kv_numbers * item_bytes

    def windowed(self, layer: int) -> bool:
        """Whether a layer attends within the window only."""
        return self.window is not None and (not self.alternating or layer % 2 == 0)

    def seen(self, layer: int, batch: Batch) -> Batch:
        """Return what a layer sees of the tokens: at most the window of each.

        Of sequences of several lengths an upper bound: sums do not say which are shorter.
        """
        if not self.windowed(layer) or self.window is None:
            return batch
        w = self.window
        cached = min(batch.cached, batch.sequences * (w - 1) + batch.tokens)
        return Batch(batch.sequences, batch.tokens, cached, min(batch.pairs, batch.tokens * w))

    def cache_bytes(self, batch: Batch, item_bytes: float = 2) -> float:
        """Bytes of the KV cache that a pass reads, and writes for its own tokens."""
        read = sum(self.seen(layer, batch).cached for layer in range(self.layers))
        return (read + self.layers * batch.tokens) * self.kv_numbers * item_bytes

    # --- FLOPs

    def attention_flops(self, batch: Batch, layer: int) -> int:
        """FLOPs of a layer's two products of attention: 2 a multiply-add, seen pairs alone.

        4 H D for every pair (flop_counter.sdpa_flop); of latent attention see `latent_flops`.
        """
        seen = self.seen(layer, batch)
        if self.latent is not None:
            return self.latent_flops(seen, self.heads)
        return 4 * self.heads * self.head_dim * seen.pairs

    def latent_flops(self, batch: Batch, heads: int) -> int:
        """FLOPs of some heads of latent attention, in the form that has fewer.

        Absorbed, as decodes are computed, 2 H (2 rank + positions) a pair. Expanded, as prompts
        are, 2 H (D + positions + values) a pair, and 2 rank H (D + values) for each token of
        the cache that was computed before (DeepSeek-V2, arXiv:2405.04434, 2.1.2 and appendix C).

        Raises
        ------
        WorkloadError
            If attention is not latent.
        """
        if self.latent is None:
            raise WorkloadError(f"expected latent attention in {self.name}; it has none")
        _, rank, plain, turned, value = self.latent
        absorbed = 2 * heads * (2 * rank + turned) * batch.pairs
        before = max(batch.cached - batch.tokens, 0)
        expanded = 2 * heads * (plain + turned + value) * batch.pairs
        return min(absorbed, expanded + 2 * rank * heads * (plain + value) * before)

    def part_flops(self, part: Part, batch: Batch) -> float:
        """FLOPs of a part: 2 a weight and token; the head only of each sequence's last token."""
        if part.kind == "product":
            rows = batch.sequences if part.name == "head" else batch.tokens
            return 2.0 * part.weights * rows
        if part.kind == "expert":
            return 2.0 * part.weights * batch.tokens * self.experts_per_token / self.experts
        return 0.0

    def flops(self, batch: Batch) -> float:
        """FLOPs of a pass."""
        head = 2.0 * self.vocab * self.hidden * batch.sequences if self.tied else 0.0
        products = sum(self.part_flops(part, batch) for part in self.parts())
        attention = sum(self.attention_flops(batch, layer) for layer in range(self.layers))
        return products + head + attention


def _models() -> dict[str, dict[str, Any]]:
    names = sorted(f.name.removesuffix(".toml") for f in _FOLDER.iterdir())
    return {name: _toml(name) for name in names if name not in _BESIDE}


@cache
def published() -> Mapping[str, Decoder]:
    """Return the decoders with a published configuration, by name."""
    return {name: of_config(name, found["config"]) for name, found in _models().items()}


def decoder(word: str) -> Decoder:
    """Return a decoder by name, or of a config.json.

    Raises
    ------
    WorkloadError
        If there is none of this name, or the file is no configuration of one.
    """
    if not word.endswith(".json"):
        if word not in published():
            raise WorkloadError(
                f"expected one of the models {', '.join(published())}; got {printable(word)!r}: "
                f"give its config.json"
            )
        return published()[word]
    try:
        found = parse_json(read_whole(Path(word), _LARGEST_CONFIG_BYTES).decode())
    except (OSError, ValueError, RecursionError) as problem:
        raise WorkloadError(
            f"expected a config.json of Hugging Face; got {printable(word)}: "
            f"{printable(str(problem))}"
        ) from problem
    if not isinstance(found, dict):
        raise WorkloadError(f"expected an object in {printable(word)}; got a {type(found)}")
    return of_config(Path(word).stem, found)


def of_config(name: str, config: Mapping[str, Any]) -> Decoder:
    """Return the decoder of a config.json.

    Raises
    ------
    WorkloadError
        If its `model_type` is not known, or a size is missing or impossible.
    """
    families, family = _toml("families"), config.get("model_type")
    if not isinstance(family, str) or family not in families:
        raise WorkloadError(
            f"expected a model_type among {', '.join(families)}; got {printable(repr(family))} in "
            f"{printable(name)}: add it to perfmodel/workloads/decoders/families.toml"
        )
    facts = families[family]

    def size(key: str, default: int | None = None) -> int:
        value = config.get(key)
        value = default if value is None else value
        if type(value) is not int or not 0 <= value < _MOST:
            raise WorkloadError(
                f"expected {key} from 0 to {_MOST} in {printable(name)}; got "
                f"{printable(repr(value)[:40])}: correct it"
            )
        return value

    hidden, heads = size("hidden_size"), size("num_attention_heads")
    experts = size(facts["experts"]) if "experts" in facts else 0
    latent = None
    if config.get("kv_lora_rank"):
        keys = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
        first, second, third, fourth, fifth = map(size, keys)
        latent = first, second, third, fourth, fifth
    known = formats()
    plain = known.get(str(config.get("torch_dtype", config.get("dtype"))), known["bfloat16"])
    quantized = _quantized(config.get("quantization_config"), plain)
    biased = bool(config.get("attention_bias", facts.get("qkv_bias", False)))
    uses_window = config.get("use_sliding_window", True) and config.get("sliding_window")
    return Decoder(
        name=name,
        family=family,
        layers=size("num_hidden_layers"),
        hidden=hidden,
        vocab=size("vocab_size"),
        heads=heads,
        kv_heads=size("num_key_value_heads", heads),
        head_dim=size("head_dim", hidden // max(heads, 1)),
        width=size("intermediate_size", 0),
        dense_layers=size("first_k_dense_replace", 0),
        experts=experts,
        experts_per_token=size("num_experts_per_tok") if experts else 0,
        expert_width=size(facts["expert_width"]) if experts else 0,
        shared_experts=size("n_shared_experts", 0),
        window=size("sliding_window") if uses_window else None,
        alternating=facts.get("alternating", False),
        tied=bool(config.get("tie_word_embeddings", False)),
        qk_norm=facts.get("qk_norm", False),
        qkv_bias=biased,
        output_bias=facts.get("output_bias", family == "llama" and biased),
        router_bias=facts.get("router_bias", False),
        expert_bias=facts.get("expert_bias", False),
        sinks=facts.get("sinks", False),
        latent=latent,
        plain=plain,
        quantized=quantized,
        quantized_all=quantized.name != "mxfp4" and quantized != plain,
    )


def _quantized(said: Any, plain: Format) -> Format:
    """Format that a `quantization_config` names; that of the other weights without one."""
    if not isinstance(said, dict):
        return plain
    method = _METHODS.get(str(said.get("quant_method")))
    if method is None:
        raise WorkloadError(
            f"expected a quant_method among {', '.join(_METHODS)}; got "
            f"{printable(repr(said.get('quant_method')))}: add its format to "
            f"perfmodel/workloads/decoders/formats.toml"
        )
    return formats()["fp8_block" if method == "fp8" and said.get("weight_block_size") else method]
