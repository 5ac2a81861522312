"""Transformers layer by layer: GPT-2, BERT, vision transformers and Llama."""

from __future__ import annotations

from perfmodel.base.errors import WorkloadError
from perfmodel.workloads.layers import (
    INPUT,
    Add,
    Attention,
    Chain,
    Conv,
    Embedding,
    FeatureNorm,
    Layer,
    Learned,
    Linear,
    Net,
    Pointwise,
    Shape,
    View,
)


class _Tokens(Chain):
    """Layers over tokens: parts of transformers."""

    def beside(self, at: str, before: bool, **parts: Layer) -> str:
        """Add layers parallel to a shortcut, and a normalization before them or after all."""
        x = self.last
        if before:
            self.add(at + "norm", FeatureNorm())
        for name, layer in parts.items():
            self.add(at + name, layer)
        self.add(at + "add", Add(), self.last, x)
        return self.last if before else self.add(at + "norm", FeatureNorm())

    def blocks(
        self, count: int, width: int, heads: int, inner: int | None, *,
        before: bool = True, causal: bool = False,
    ) -> str:  # fmt: skip
        """Add blocks of attention and of two layers with GELU, as GPT, BERT and ViT have them."""
        size = _share(width, heads)
        for i in range(count):
            self.beside(
                f"h.{i}.attn.", before, qkv=_each(3 * width),
                sdpa=Attention(heads, heads, size, causal), proj=_each(width),
            )  # fmt: skip
            self.beside(
                f"h.{i}.mlp.", before, up=_each(inner or 4 * width), gelu=Pointwise("gelu"),
                down=_each(width),
            )  # fmt: skip
        return self.last

    def embed(self, width: int, **rows: int) -> str:
        """Add the vectors of tokens, positions and the like."""
        return self.add(
            "embedding", Add(),
            *[self.add(name, Embedding(count, width), INPUT) for name, count in rows.items()],
        )  # fmt: skip


def _each(width: int, bias: bool = True) -> Linear:
    """A fully connected layer at every token."""
    return Linear(width, bias, each=True)


def _share(width: int, heads: int) -> int:
    """Return the features of a head."""
    if width % heads:
        raise WorkloadError(
            f"expected heads that divide the width; got n_head={heads}, d_model={width}: change one"
        )
    return width // heads


def _tokens(seq: int | None, positions: int) -> Shape:
    """Return the shape of a sample: as many tokens as there are positions by default."""
    if seq and seq > positions:
        raise WorkloadError(
            f"expected at most as many tokens as positions; got seq={seq}, positions={positions}: "
            f"lower seq or raise positions"
        )
    return Shape(seq or positions)


def gpt(
    name: str, *, n_layer: int = 12, d_model: int = 768, n_head: int = 12, d_ff: int | None = None,
    vocab: int = 50257, positions: int = 1024, seq: int | None = None, tied: bool = True,
    causal: bool = False,
) -> Net:  # fmt: skip
    """Return GPT-2, without dropout, with the logits of every token.

    Radford et al., "Language Models are Unsupervised Multitask Learners" (2019); the sizes are
    those of Hugging Face's `gpt2` to `gpt2-xl`.
    """
    chain = _Tokens()
    chain.embed(d_model, wte=vocab, wpe=positions)
    chain.blocks(n_layer, d_model, n_head, d_ff, causal=causal)
    chain.add("norm", FeatureNorm())
    chain.add("head", _each(vocab, False), parameters=0 if tied else None)
    return Net(name, _tokens(seq, positions), tuple(chain.nodes), states=2)


def bert(
    name: str, *, n_layer: int = 12, d_model: int = 768, n_head: int = 12, d_ff: int | None = None,
    vocab: int = 30522, positions: int = 512, types: int = 2, seq: int | None = None,
    pooled: bool = False,
) -> Net:  # fmt: skip
    """Return BERT with its pooler, without dropout; the loss reads the tokens, or what is `pooled`.

    Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers" (NAACL 2019).
    """
    chain = _Tokens()
    chain.embed(d_model, words=vocab, positions=positions, types=types)
    chain.add("norm", FeatureNorm())
    tokens = chain.blocks(n_layer, d_model, n_head, d_ff, before=False)
    chain.add("first", View(), shape=Shape(d_model))
    chain.add("pooler", Linear(d_model))
    chain.add("tanh", Pointwise("tanh"))
    loss = "" if pooled else tokens
    return Net(name, _tokens(seq, positions), tuple(chain.nodes), loss, states=2)


def vit(
    name: str, *, n_layer: int = 12, d_model: int = 768, n_head: int = 12, d_ff: int | None = None,
    image: int = 224, patch: int = 16, channels: int = 3, classes: int = 1000,
) -> Net:  # fmt: skip
    """Return a vision transformer, without dropout.

    Dosovitskiy et al., "An Image is Worth 16x16 Words" (ICLR 2021).
    """
    side = image // patch
    count = side * side
    chain = _Tokens()
    chain.add("patches", Conv(d_model, patch, patch, bias=True))
    chain.add("tokens", View(), shape=Shape(max(count, 1), d_model))
    chain.add("class", Learned(d_model), shape=Shape(count + 1, d_model))
    chain.add("positions", Learned((count + 1) * d_model))
    chain.blocks(n_layer, d_model, n_head, d_ff)
    chain.add("norm", FeatureNorm())
    chain.add("first", View(), shape=Shape(d_model))
    chain.add("head", Linear(classes))
    return Net(name, Shape(channels, image, image), tuple(chain.nodes), states=2)


def llama(
    name: str, *, n_layer: int = 32, d_model: int = 4096, n_head: int = 32,
    n_kv_head: int | None = None, head_dim: int | None = None, d_ff: int = 11008,
    vocab: int = 32000, positions: int = 4096, seq: int | None = None, tied: bool = False,
    bias: bool = False, causal: bool = False,
) -> Net:  # fmt: skip
    """Return Llama: RMSNorm, rotary positions, grouped queries and SwiGLU.

    Touvron et al., "Llama 2" (arXiv:2307.09288); "The Llama 3 Herd of Models" (arXiv:2407.21783).
    """
    heads = n_kv_head or n_head
    size = head_dim or _share(d_model, n_head)
    chain = _Tokens()
    x = chain.add("embedding", Embedding(vocab, d_model))
    for i in range(n_layer):
        at = f"h.{i}."
        y = chain.add(at + "attn.norm", FeatureNorm(bias=False))
        q, k, v = (
            chain.add(f"{at}attn.{part}", _each(count * size, bias), y)
            for part, count in (("q", n_head), ("k", heads), ("v", heads))
        )
        turned = [chain.add(f"{z}.rotary", Pointwise("rotary"), z) for z in (q, k)]
        chain.add(at + "attn.sdpa", Attention(n_head, heads, size, causal), *turned, v)
        y = chain.add(at + "attn.proj", _each(d_model, bias))
        x = chain.add(at + "attn.add", Add(), y, x)
        y = chain.add(at + "mlp.norm", FeatureNorm(bias=False))
        up = chain.add(at + "mlp.up", _each(d_ff, False), y)
        chain.add(at + "mlp.gate", _each(d_ff, False), y)
        gate = chain.add(at + "mlp.silu", Pointwise("silu"))
        chain.add(at + "mlp.times", Pointwise("multiply"), gate, up)
        y = chain.add(at + "mlp.down", _each(d_model, False))
        x = chain.add(at + "mlp.add", Add(), y, x)
    chain.add("norm", FeatureNorm(bias=False))
    chain.add("head", _each(vocab, False), parameters=0 if tied else None)
    return Net(name, _tokens(seq, positions), tuple(chain.nodes), states=2)
