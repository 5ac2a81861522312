"""Networks by name and settings, by configuration, of ONNX files, and made by functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Final

from perfmodel.base.document import parse_json
from perfmodel.base.errors import WorkloadError
from perfmodel.base.escape import printable
from perfmodel.base.files import read_whole
from perfmodel.workloads.cnns import (
    RESNET_NAMES,
    VGG_NAMES,
    alexnet,
    alexnet_caffe,
    googlenet,
    resnet,
    vgg,
)
from perfmodel.workloads.layers import Net
from perfmodel.workloads.transformers import bert, gpt, llama, vit

Maker = Callable[..., Net]
"""Makes a network; its keyword arguments are the settings."""


def _sizes(maker: Maker, names: Mapping[str, tuple[int, ...]], *keys: str) -> dict[str, Maker]:
    """Return a maker a name, of a table of settings."""
    return {
        name: partial(maker, name, **dict(zip(keys, values, strict=True)))
        for name, values in names.items()
    }


_GROUPED: Final = (
    "n_layer", "d_model", "n_head", "n_kv_head", "d_ff", "vocab", "positions", "tied",
)  # fmt: skip
_IMAGES: Final[Mapping[str, Maker]] = {
    "alexnet": alexnet,
    "alexnet-caffe": alexnet_caffe,
    **{name: partial(vgg, name) for name in VGG_NAMES},
    "googlenet": googlenet,
    **{name: partial(resnet, name) for name in RESNET_NAMES},
}
_MAKERS: Final[Mapping[str, Maker]] = {
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
            "llama-2-7b": (32, 4096, 32, 32, 11008, 32000, 4096, False),
            "llama-2-13b": (40, 5120, 40, 40, 13824, 32000, 4096, False),
            "llama-2-70b": (80, 8192, 64, 8, 28672, 32000, 4096, False),
            "llama-3-8b": (32, 4096, 32, 8, 14336, 128256, 8192, False),
            "llama-3-70b": (80, 8192, 64, 8, 28672, 128256, 8192, False),
            "llama-3.2-1b": (16, 2048, 32, 8, 8192, 128256, 131072, True),
            "mistral-7b": (32, 4096, 32, 8, 14336, 32000, 32768, False),
        },
        *_GROUPED,
    ),
}  # fmt: skip
CNNS: Final = tuple(_IMAGES)
NETWORKS: Final = tuple(_MAKERS)

_FAMILIES: Final[Mapping[str, Maker]] = {
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
"""Names of settings in a config.json of Hugging Face."""
_LARGEST_CONFIG_BYTES: Final = 1 << 20
_MOST_LAYERS: Final = 1_000


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
            f"layers in perfmodel/workloads"
        )
    return _made(_MAKERS[word], settings)


def _of_config(path: Path, settings: Mapping[str, int]) -> Net:
    """Return the model of a configuration of Hugging Face's, with settings changed."""
    try:
        found = parse_json(read_whole(path, _LARGEST_CONFIG_BYTES).decode())
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


def _made(maker: Maker, settings: Mapping[str, object]) -> Net:
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
