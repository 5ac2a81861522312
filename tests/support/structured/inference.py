"""Programs that use networks: generation of tokens, sampling by diffusion."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from . import names
from .parts import Maker, Network, setup, size, steps_of
from .program import Built, Drawing, build
from .tree import TO_GPU, TO_HOST, Node, Op, Seq, Sized, loop, renamed, seq


def tokens(d: Drawing) -> Built:
    """Answer requests: a prompt, then one token after the other."""
    maker = Maker(d, ("torch", "torch", "compiled", "own"))
    rng = d.rng
    network = Network(maker, (3, 12), every=rng.choice([1, 1, 2]), families=("transformer",))
    forward = network.forward()
    decode = {
        names.ATTENTION[maker.attention]: rng.choice(names.DECODE_ATTENTION),
        **{many: few for few, _, many in maker.products},
    }

    def as_token(op: Op) -> Op:
        if len(op.names) > 1:
            return op.but(names=(op.names[0],), us=op.us / 4)
        return op.but(names=(decode.get(op.names[0], op.names[0]),), us=op.us / 2)

    chooses: list[Node] = [maker.kernel(names.ARGMAX, 4)]
    if d.chance("samples", 0.4):
        chooses = [maker.kernel(name, 4) for name in (names.SOFTMAX, names.TOPK, names.UNIFORM)]
    reads = d.chance("reads_token", 0.7)
    sample = seq(chooses, maker.copy(TO_HOST, 8) if reads else None)
    token = seq(renamed(forward, as_token), sample)
    number = d.count("requests", 1, 8)
    each = d.count("tokens", 10, max(12, min(100, 10_000 // (number * size(token)))))
    requests: list[Node] = []
    for _ in range(number):
        prompt = seq(maker.copy(TO_GPU, 4096), Sized(seq(forward, sample), d.near(3, 0.5)))
        length = max(4, round(d.near(each, 0.4)))
        passes = loop("pass", [prompt, *[steps_of([token], "token")] * length])
        requests.append(passes)
    also = {"pass": "the pass over the prompt gives a token, too"}
    if number >= 2:
        also["request"] = "requests are what a server counts"
    return build(
        d, seq(setup(maker, network.parameters), loop("request", requests)), step="token", also=also
    )


def diffusion(d: Drawing) -> Built:
    """Sample images: encode a text, remove noise in some steps, decode."""
    maker = Maker(d, ("torch", "torch", "compiled"))
    encoder = Network(maker, (2, 6), "encoder_", families=("transformer",))
    denoiser = Network(maker, (3, 8), "denoiser_", families=("convolution", "transformer"))
    decoder = Network(maker, (2, 4), "decoder_", families=("convolution",))
    guided = d.chance("guided_twice", 0.4)
    update = seq([maker.pointwise() for _ in range(d.rng.randint(2, 6))])
    denoise = seq([denoiser.forward()] * (2 if guided else 1), update)
    number = d.count("images", 1, 6)
    each = d.count("denoising_steps", 10, max(12, min(50, 10_000 // (number * size(denoise)))))
    image: Seq = seq(
        maker.copy(TO_GPU, 4096), encoder.forward(), maker.kernel(names.NORMAL, 4),
        steps_of([denoise] * each), decoder.forward(), maker.copy(TO_HOST, 1 << 20),
    )  # fmt: skip
    also = {"image": "images are what a server counts"} if number >= 2 else {}
    parameters = denoiser.parameters
    return build(d, seq(setup(maker, parameters), loop("image", [image] * number)), also=also)


KINDS: Final[dict[str, Callable[[Drawing], Built]]] = {
    kind.__name__: kind for kind in (tokens, diffusion)
}
