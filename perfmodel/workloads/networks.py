"""The networks that are known layer by layer: CNNs and transformers, by name and settings."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any, Final

from perfmodel.base.errors import WorkloadError
from perfmodel.base.escape import printable
from perfmodel.workloads.layers import (
    INPUT,
    Add,
    Attention,
    Concat,
    Conv,
    Dropout,
    Embedding,
    FeatureNorm,
    Layer,
    Learned,
    Linear,
    LocalNorm,
    Net,
    Node,
    Norm,
    Pointwise,
    Pool,
    Relu,
    Shape,
    View,
)


class Chain:
    """Layers in the order they were added; every method returns the name of its output."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []

    @property
    def last(self) -> str:
        """Name of what was added last; of the network's input before that."""
        return self.nodes[-1].name if self.nodes else INPUT

    def add(self, name: str, layer: Layer, *inputs: str, **given: Any) -> str:
        """Add a layer that reads `inputs`, or what was added last; `given` are the `Node`'s."""
        self.nodes.append(Node(name, layer, inputs or (self.last,), **given))
        return name

    def activate(self, name: str, layer: Layer, *inputs: str) -> str:
        """Add a layer and the activation behind it, called `NAME.relu`."""
        return self.add(f"{name}.relu", Relu(), self.add(name, layer, *inputs))

    def convolve(self, name: str, channels: int, kernel: int, *inputs: str) -> str:
        """Add a convolution that keeps height and width, with bias and activation."""
        layer = Conv(channels, kernel, padding=kernel // 2, bias=True)
        return self.activate(name, layer, *inputs)


def alexnet() -> Net:
    """Return torchvision's AlexNet for images of 3 x 224 x 224 and 1000 classes.

    One tower, no local normalization: Krizhevsky, "One weird trick for parallelizing convolutional
    neural networks" (arXiv:1404.5997, 2014). torchvision's adaptive pool is none at this size.
    """
    chain = Chain()
    chain.activate("conv1", Conv(64, 11, 4, 2, bias=True))
    chain.add("pool1", Pool("max", 3, 2))
    chain.convolve("conv2", 192, 5)
    chain.add("pool2", Pool("max", 3, 2))
    for place, channels in enumerate((384, 256, 256), 3):
        chain.convolve(f"conv{place}", channels, 3)
    chain.add("pool5", Pool("max", 3, 2))
    for name in ("fc6", "fc7"):
        chain.add(f"{name}.dropout", Dropout())
        chain.activate(name, Linear(4096))
    chain.add("fc8", Linear(1000))
    return Net("alexnet", Shape(3, 224, 224), tuple(chain.nodes))


def alexnet_caffe() -> Net:
    """Return Caffe's bvlc_alexnet for images of 3 x 227 x 227 and 1000 classes.

    Krizhevsky, Sutskever, Hinton, "ImageNet Classification with Deep Convolutional Neural Networks"
    (NIPS 2012): conv2, conv4 and conv5 read half of the channels each, as two GPUs did.
    """
    chain = Chain()
    chain.activate("conv1", Conv(96, 11, 4, bias=True))
    chain.add("norm1", LocalNorm())
    chain.add("pool1", Pool("max", 3, 2, ceil=True))
    chain.activate("conv2", Conv(256, 5, padding=2, groups=2, bias=True))
    chain.add("norm2", LocalNorm())
    chain.add("pool2", Pool("max", 3, 2, ceil=True))
    for place, (channels, groups) in enumerate(((384, 1), (384, 2), (256, 2)), 3):
        chain.activate(f"conv{place}", Conv(channels, 3, padding=1, groups=groups, bias=True))
    chain.add("pool5", Pool("max", 3, 2, ceil=True))
    for name in ("fc6", "fc7"):
        chain.activate(name, Linear(4096))
        chain.add(f"{name}.dropout", Dropout())
    chain.add("fc8", Linear(1000))
    return Net("alexnet-caffe", Shape(3, 227, 227), tuple(chain.nodes))


_CONVOLUTIONS: Final = {"vgg16": (2, 2, 3, 3, 3), "vgg19": (2, 2, 4, 4, 4)}
_CHANNELS: Final = (64, 128, 256, 512, 512)
VGG_NAMES: Final = tuple(_CONVOLUTIONS)


def vgg(name: str) -> Net:
    """Return a VGG network for images of 3 x 224 x 224 and 1000 classes, without batch norm.

    Simonyan, Zisserman, "Very Deep Convolutional Networks for Large-Scale Image Recognition" (ICLR
    2015), table 1, columns D and E.

    Raises
    ------
    WorkloadError
        If there is no such network.
    """
    if name not in _CONVOLUTIONS:
        raise WorkloadError(f"expected one of {', '.join(VGG_NAMES)}; got {name!r}")
    chain = Chain()
    stages = zip(_CONVOLUTIONS[name], _CHANNELS, strict=True)
    for stage, (count, channels) in enumerate(stages, 1):
        for place in range(1, count + 1):
            chain.convolve(f"conv{stage}_{place}", channels, 3)
        chain.add(f"pool{stage}", Pool("max", 2, 2))
    for fc in ("fc6", "fc7"):
        chain.activate(fc, Linear(4096))
        chain.add(f"{fc}.dropout", Dropout())
    chain.add("fc8", Linear(1000))
    return Net(name, Shape(3, 224, 224), tuple(chain.nodes))


_MODULES: Final = {
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}
"""Channels of 1x1, 3x3's reduction, 3x3, 5x5's reduction, 5x5 and the pool's projection."""


def googlenet() -> Net:
    """Return the original GoogLeNet for images of 3 x 224 x 224 and 1000 classes.

    Szegedy et al., "Going Deeper with Convolutions" (CVPR 2015), table 1: biases, local
    normalization, real 5x5 convolutions, without the two auxiliary classifiers. torchvision's
    differs: batch normalization, and 3x3 where the paper has 5x5.
    """
    chain = Chain()
    chain.activate("conv1/7x7_s2", Conv(64, 7, 2, 3, bias=True))
    chain.add("pool1/3x3_s2", Pool("max", 3, 2, ceil=True))
    chain.add("pool1/norm1", LocalNorm())
    chain.convolve("conv2/3x3_reduce", 64, 1)
    chain.convolve("conv2/3x3", 192, 3)
    chain.add("conv2/norm2", LocalNorm())
    chain.add("pool2/3x3_s2", Pool("max", 3, 2, ceil=True))
    for module, channels in _MODULES.items():
        if module in ("4a", "5a"):
            stage = int(module[0]) - 1
            chain.add(f"pool{stage}/3x3_s2", Pool("max", 3, 2, ceil=True))
        _inception(chain, f"inception_{module}", *channels)
    chain.add("pool5/7x7_s1", Pool("mean"))
    chain.add("pool5/drop_7x7_s1", Dropout(0.4))
    chain.add("loss3/classifier", Linear(1000))
    return Net("googlenet", Shape(3, 224, 224), tuple(chain.nodes))


def _inception(
    chain: Chain, at: str, one: int, reduce3: int, three: int, reduce5: int, five: int, project: int
) -> None:
    """Four branches over one input, joined."""
    x = chain.last
    branches = [
        chain.convolve(f"{at}/1x1", one, 1, x),
        chain.convolve(f"{at}/3x3", three, 3, chain.convolve(f"{at}/3x3_reduce", reduce3, 1, x)),
        chain.convolve(f"{at}/5x5", five, 5, chain.convolve(f"{at}/5x5_reduce", reduce5, 1, x)),
        chain.convolve(
            f"{at}/pool_proj", project, 1, chain.add(f"{at}/pool", Pool("max", 3, 1, 1), x)
        ),
    ]
    chain.add(f"{at}/output", Concat(), *branches)


_BLOCKS: Final = {
    "resnet18": (2, 2, 2, 2),
    "resnet34": (3, 4, 6, 3),
    "resnet50": (3, 4, 6, 3),
    "resnet101": (3, 4, 23, 3),
    "resnet152": (3, 8, 36, 3),
}
_BASIC: Final = ("resnet18", "resnet34")
RESNET_NAMES: Final = tuple(_BLOCKS)


def resnet(name: str, image: int = 224) -> Net:
    """Return a residual network for images of (3, image, image) and 1000 classes.

    He, Zhang, Ren, Sun, "Deep Residual Learning for Image Recognition" (CVPR 2016), table 1.
    From ResNet-50 on they are v1.5: the stride of a bottleneck is in its 3x3 convolution.

    Raises
    ------
    WorkloadError
        If there is no such network.
    """
    if name not in _BLOCKS:
        raise WorkloadError(f"expected one of {', '.join(_BLOCKS)}; got {name!r}")
    chain = _Blocks()
    x = chain.normalize("conv1", "bn1", Conv(64, 7, 2, 3), INPUT)
    x = chain.add("maxpool", Pool("max", 3, 2, 1), chain.add("relu", Relu(), x))
    block = chain.basic if name in _BASIC else chain.bottleneck
    for stage, count in enumerate(_BLOCKS[name]):
        for place in range(count):
            x = block(f"layer{stage + 1}.{place}.", x, 64 << stage, place == 0, stage > 0)
    x = chain.add("fc", Linear(1000), chain.add("avgpool", Pool("mean"), x))
    return Net(name, Shape(3, image, image), tuple(chain.nodes))


class _Blocks(Chain):
    """The blocks of residual networks; every method returns the name of its output."""

    def normalize(self, name: str, norm: str, layer: Conv, x: str) -> str:
        return self.add(norm, Norm(), self.add(name, layer, x))

    def basic(self, at: str, x: str, width: int, first: bool, halve: bool) -> str:
        """Two 3x3 convolutions beside a shortcut."""
        stride = 2 if first and halve else 1
        y = self.normalize(at + "conv1", at + "bn1", Conv(width, 3, stride, 1), x)
        y = self.add(at + "relu1", Relu(), y)
        y = self.normalize(at + "conv2", at + "bn2", Conv(width, 3, 1, 1), y)
        return self._join(at, x, y, Conv(width, 1, stride) if first and halve else None)

    def bottleneck(self, at: str, x: str, width: int, first: bool, halve: bool) -> str:
        """1x1, 3x3 and 1x1 convolutions beside a shortcut; the output has 4 width channels."""
        stride = 2 if first and halve else 1
        y = self.normalize(at + "conv1", at + "bn1", Conv(width, 1), x)
        y = self.add(at + "relu1", Relu(), y)
        y = self.normalize(at + "conv2", at + "bn2", Conv(width, 3, stride, 1), y)
        y = self.add(at + "relu2", Relu(), y)
        y = self.normalize(at + "conv3", at + "bn3", Conv(4 * width, 1), y)
        return self._join(at, x, y, Conv(4 * width, 1, stride) if first else None)

    def _join(self, at: str, x: str, y: str, projection: Conv | None) -> str:
        if projection is not None:
            x = self.normalize(at + "downsample.0", at + "downsample.1", projection, x)
        return self.add(at + "relu", Relu(), self.add(at + "add", Add(), y, x))


class _Tokens(Chain):
    """Layers over tokens: parts of transformers."""

    def beside(self, at: str, before: bool, **parts: Layer) -> str:
        """Add layers beside a shortcut, and a normalization before them or behind all."""
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


def _sizes(maker: Callable[..., Net], names: Mapping[str, tuple[int, ...]], *keys: str) -> Any:
    """Return a maker a name, of a table of settings."""
    return {
        name: partial(maker, name, **dict(zip(keys, values, strict=True)))
        for name, values in names.items()
    }


_GROUPED: Final = (
    "n_layer", "d_model", "n_head", "n_kv_head", "d_ff", "vocab", "positions", "tied",
)  # fmt: skip
_IMAGES: Final[Mapping[str, Callable[..., Net]]] = {
    "alexnet": alexnet,
    "alexnet-caffe": alexnet_caffe,
    **{name: partial(vgg, name) for name in VGG_NAMES},
    "googlenet": googlenet,
    **{name: partial(resnet, name) for name in RESNET_NAMES},
}
_MAKERS: Final[Mapping[str, Callable[..., Net]]] = {
    **_IMAGES,
    **_sizes(
        gpt,
        {
            "gpt2": (12, 768, 12), "gpt2-medium": (24, 1024, 16), "gpt2-large": (36, 1280, 20),
            "gpt2-xl": (48, 1600, 25),
        },
        "n_layer", "d_model", "n_head",
    ),
    **_sizes(
        bert, {"bert-base": (12, 768, 12), "bert-large": (24, 1024, 16)},
        "n_layer", "d_model", "n_head",
    ),
    **_sizes(
        vit,
        {
            "vit_b_16": (12, 768, 12, 16), "vit_b_32": (12, 768, 12, 32),
            "vit_l_16": (24, 1024, 16, 16), "vit_l_32": (24, 1024, 16, 32),
            "vit_h_14": (32, 1280, 16, 14),
        },
        "n_layer", "d_model", "n_head", "patch",
    ),
    **_sizes(
        llama,
        {
            "llama-2-7b": (32, 4096, 32, 32, 11008, 32000, 4096, 0),
            "llama-2-13b": (40, 5120, 40, 40, 13824, 32000, 4096, 0),
            "llama-2-70b": (80, 8192, 64, 8, 28672, 32000, 4096, 0),
            "llama-3-8b": (32, 4096, 32, 8, 14336, 128256, 8192, 0),
            "llama-3-70b": (80, 8192, 64, 8, 28672, 128256, 8192, 0),
            "llama-3.2-1b": (16, 2048, 32, 8, 8192, 128256, 131072, 1),
            "mistral-7b": (32, 4096, 32, 8, 14336, 32000, 32768, 0),
        },
        *_GROUPED,
    ),
}  # fmt: skip
CNNS: Final = tuple(_IMAGES)
NETWORKS: Final = tuple(_MAKERS)

_FAMILIES: Final[Mapping[str, Callable[..., Net]]] = {
    "gpt2": gpt,
    "bert": bert,
    "vit": vit,
    "llama": llama,
    "mistral": llama,
}
"""Models of a config.json, by its `model_type`."""
_ALIASES: Final = {
    "n_embd": "d_model", "hidden_size": "d_model", "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head", "num_key_value_heads": "n_kv_head", "n_inner": "d_ff",
    "intermediate_size": "d_ff", "vocab_size": "vocab", "n_positions": "positions",
    "max_position_embeddings": "positions", "type_vocab_size": "types", "image_size": "image",
    "patch_size": "patch", "num_channels": "channels", "attention_bias": "bias",
    "tie_word_embeddings": "tied",
}  # fmt: skip
"""What a config.json of Hugging Face calls a setting."""
_LARGEST_CONFIG_BYTES: Final = 1 << 20
_MOST_LAYERS: Final = 10_000


def network(word: str, /, **settings: int) -> Net:
    """Return a network: by name, of a configuration, of an ONNX file, or made by a function.

    Parameters
    ----------
    word : str
        One of `NETWORKS`, a config.json of Hugging Face, an ONNX file, or MODULE:FUNCTION.
    **settings : int
        Keyword arguments of the network's maker, under their own names or Hugging Face's; of a
        function `image`, the height and width; of an ONNX file its sizes that have names.

    Raises
    ------
    WorkloadError
        If there is no such network or setting, or sizes do not fit.
    """
    if word.endswith(".onnx"):
        from perfmodel.workloads.onnx_file import from_onnx

        return from_onnx(Path(word), settings)
    if ":" in word:
        from perfmodel.workloads.foreign import from_torch

        return _made(partial(from_torch, word), settings)
    if word.endswith(".json"):
        return _of_config(Path(word), settings)
    if word not in _MAKERS:
        raise WorkloadError(
            f"expected one of the networks {', '.join(NETWORKS)}; got {printable(word)!r}: name "
            f"a torch model as MODULE:FUNCTION, an ONNX file or a config.json, or write its "
            f"layers beside perfmodel/workloads/networks.py"
        )
    return _made(_MAKERS[word], settings)


def _of_config(path: Path, settings: Mapping[str, int]) -> Net:
    """Return the model of a configuration of Hugging Face's, with settings changed."""
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(_LARGEST_CONFIG_BYTES))
        family = found["model_type"] if isinstance(found, dict) else None
    except (OSError, ValueError, KeyError, RecursionError) as problem:
        raise WorkloadError(
            f"expected a config.json with a model_type; got {printable(str(path))}: "
            f"{printable(str(problem))}"
        ) from problem
    if not isinstance(family, str) or family not in _FAMILIES:
        raise WorkloadError(
            f"expected a model_type among {', '.join(_FAMILIES)}; got {printable(repr(family))} in "
            f"{printable(str(path))}: give an ONNX file of the model"
        )
    maker = partial(_FAMILIES[family], path.stem)
    known = signature(maker).parameters
    own = {key: v for key, v in found.items() if _ALIASES.get(key, key) in known and v is not None}
    return _made(maker, {**{_ALIASES.get(k, k): v for k, v in own.items()}, **settings})


def _made(maker: Callable[..., Net], settings: Mapping[str, object]) -> Net:
    """Call a maker with settings, under whatever names, that are of the right kind."""
    known = {
        key: p.default for key, p in signature(maker).parameters.items() if p.default is not p.empty
    }
    given = {_ALIASES.get(key, key): value for key, value in settings.items()}
    for key, value in given.items():
        if key not in known:
            raise WorkloadError(
                f"expected settings among {', '.join(known) or 'none'}; got {printable(key)}: "
                f"leave it out"
            )
        least, most = (0, 1) if isinstance(known[key], bool) else (1, 2**63 - 1)
        most = _MOST_LAYERS if key == "n_layer" else most
        if not isinstance(value, int) or not least <= value <= most:
            raise WorkloadError(
                f"expected {key} from {least} to {most:,}; got {printable(repr(value)[:40])}: "
                f"correct it"
            )
    return maker(**given)
