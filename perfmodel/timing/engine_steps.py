"""Steps of an engine that serves a language model: sequences and tokens of prompts and answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Stage = Literal["prefill", "decode", "mixed"]


@dataclass(frozen=True, slots=True)
class EngineStep:
    """The computation of one step of an engine, by the name of its range.

    Attributes
    ----------
    engine : str
        Such as 'vllm' or 'sglang'.
    contexts, context_tokens : int
        Sequences of which a part of the prompt is computed, and its tokens.
    generations, generation_tokens : int
        Sequences that get a token, and tokens computed for them.
    cached : int
        Tokens whose keys and values are read, the step's own among them.
    pairs : int
        Queries times the keys that each sees, under a causal mask.
    exact : bool
        Whether the name says `cached` and `pairs`; else they are lower bounds.
    guesses : bool
        Whether it checks guessed tokens, too, whose number the name does not say.
    """

    engine: str
    contexts: int
    context_tokens: int
    generations: int
    generation_tokens: int
    cached: int
    pairs: int
    exact: bool
    guesses: bool = False

    @property
    def stage(self) -> Stage:
        """Return the kind: prompts alone, answers alone, or both."""
        if not self.contexts:
            return "decode"
        return "mixed" if self.generations else "prefill"

    @property
    def sequences(self) -> int:
        """All sequences."""
        return self.contexts + self.generations

    @property
    def tokens(self) -> int:
        """All tokens that are computed."""
        return self.context_tokens + self.generation_tokens


@dataclass(frozen=True, slots=True)
class EngineTimes:
    """What one GPU did in a step of an engine.

    Attributes
    ----------
    span_ns : int
        From its first operation to the end of its last.
    exchanges, exchange_ns : int
        Kernels that exchange, and their time.
    experts_ns : int
        Time in kernels of experts.
    read_bytes, read_ns : int
        Largest copy to the host; its time, and that until the GPU has work again.
    kernels_ns, replayed_ns, hidden_ns : int
        Time of all kernels, of those that CUDA graphs replay, and of those of them whose operators
        no recording of the capture names.
    """

    span_ns: int = 0
    exchanges: int = 0
    exchange_ns: int = 0
    experts_ns: int = 0
    read_bytes: int = 0
    read_ns: int = 0
    kernels_ns: int = 0
    replayed_ns: int = 0
    hidden_ns: int = 0


@dataclass(frozen=True, slots=True)
class EngineWork:
    """The work of a step of an engine, of one GPU.

    Attributes
    ----------
    step : EngineStep
    model : str
        The model whose sizes the operators have; '' where none is recognized.
    shards : int
        GPUs that share each layer.
    weight_bytes, cache_bytes : float or None
        Read of weights, and read and written of the KV cache, each once; None if unknown.
    flops : tuple of (str, float)
        By unit of the machine.
    exchange_bytes : float
        Of tensors that GPUs exchange.
    wide_bytes : float
        Of `weight_bytes` matrices of 16 bits other than the head, by the model's configuration; 0
        where operators say what is read.
    times : EngineTimes
    """

    step: EngineStep
    model: str
    shards: int
    weight_bytes: float | None
    cache_bytes: float | None
    flops: tuple[tuple[str, float], ...]
    exchange_bytes: float
    wide_bytes: float = 0.0
    times: EngineTimes = EngineTimes()
