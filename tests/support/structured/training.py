"""Programs that train a network, one optimizer step after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from . import names
from .parts import (
    KNOWN,
    STYLES,
    Maker,
    Network,
    checkpoint,
    evaluation,
    feed,
    optimizer,
    report,
    setup,
    size,
    steps,
    steps_of,
    training,
)
from .program import Built, Drawing, build
from .tree import TO_HOST, Node, Op, Seq, Sized, loop, renamed, seq

_UNNAMED: Final = (
    "no name tells that only every k-th batch updates the parameters: it may be other work of "
    "every k-th batch"
)


def _begin(
    d: Drawing, layers: tuple[int, int] = (2, 12), *, styles: Sequence[str] = STYLES
) -> tuple[Maker, Network]:
    maker = Maker(d, styles)
    return maker, Network(maker, layers)


def plain(d: Drawing) -> Built:
    """Train on batches of one size, or infer from them."""
    maker, network = _begin(d)
    if d.chance("inference", 0.3):
        body: Node = evaluation(maker, network)
    else:
        (body,) = training(maker, network)
    number = steps(d, size(body))
    return build(d, seq(setup(maker, network.parameters), steps_of([body] * number)))


def epochs(d: Drawing) -> Built:
    """Train in epochs; after each come an evaluation and a checkpoint."""
    maker, network = _begin(d)
    (body,) = training(maker, network)
    test = evaluation(maker, network)
    count = d.count("epochs", 2, 5)
    number = steps(d, size(body) * count, 5, 40)
    tests = d.count("evaluation_batches", 2, max(2, number - 1))
    begin = [maker.kernel(names.SORT, 5)] * d.rng.randint(0, 4)
    end = checkpoint(maker, network.parameters) if d.chance("checkpoint", 0.7) else None
    epoch = seq(begin, steps_of([body] * number), loop("evaluation", [test] * tests), end)
    return build(d, seq(setup(maker, network.parameters), loop("epoch", [epoch] * count)))


def evaluations(d: Drawing) -> Built:
    """Train in epochs, each with more batches of an evaluation than steps."""
    maker, network = _begin(d)
    (body,) = training(maker, network)
    test = evaluation(maker, network)
    count = d.count("epochs", 1, 4)
    number = steps(d, size(body) * count, 5, 20)
    tests = d.count("evaluation_batches", number + number // 2, 4 * number)
    epoch = seq(steps_of([body] * number), loop("evaluation", [test] * tests))
    return build(d, seq(setup(maker, network.parameters), loop("epoch", [epoch] * count)))


def _accumulation(d: Drawing, how: Sequence[str], *, in_range: bool) -> Built:
    """Accumulate gradients of 2 to 8 micro-batches, whose input is copied at once or each."""
    styles = ("torch",) if in_range else ("torch", "torch", "compiled", "own")
    maker, network = _begin(d, (2, 8), styles=styles)
    named = in_range or how == KNOWN
    update = optimizer(maker, network.parameters, how, in_range=in_range)
    number = d.count("micro_batches", 2, 8)
    copied_each = d.chance("copied_each", 0.5)
    inputs = feed(maker)
    result = report(maker, 0.3)
    first = seq(inputs if copied_each else None, network.both(), result)
    later = first
    if d.chance("adds_gradients", 0.5):
        adds = [maker.kernel(names.ADD, 3)] * network.parameters
        later = seq(first, adds)
    body = seq(
        None if copied_each else inputs,
        loop("micro_batch", [first, *[later] * (number - 1)]),
        update,
    )
    also = {} if named or not copied_each else {"micro_batch": _UNNAMED}
    count = steps(d, size(body), 5, 60)
    tree = seq(setup(maker, network.parameters), steps_of([body] * count))
    return build(d, tree, also=also)


def accumulation_named(d: Drawing) -> Built:
    """Accumulate gradients; the optimizer's kernels have names that tell it."""
    return _accumulation(d, KNOWN, in_range=False)


def accumulation_unnamed(d: Drawing) -> Built:
    """Accumulate gradients; the optimizer's kernels have names that do not tell it."""
    return _accumulation(d, ("unknown", "looped"), in_range=False)


def accumulation_ranged(d: Drawing) -> Built:
    """Accumulate gradients; the optimizer is in a range."""
    return _accumulation(d, (*KNOWN, "unknown", "looped"), in_range=True)


def varying(d: Drawing) -> Built:
    """Train on batches of varying length, on which kernels' tiles and number depend."""
    maker, network = _begin(d, (2, 8))
    lengths = sorted(d.near(1.0, 0.6) for _ in range(d.count("lengths", 3, 12)))
    per_chunk = d.near(0.8, 0.3)
    chunks = [max(1, round(length / per_chunk)) for length in lengths]
    bodies = [
        Sized(body, length)
        for body, length in zip(training(maker, network, chunks=chunks), lengths, strict=True)
    ]
    number = steps(d, max(size(body) for body in bodies), 8)
    drawn = [d.rng.choice(bodies) for _ in range(number)]
    return build(d, seq(setup(maker, network.parameters), steps_of(drawn)))


def alternating(d: Drawing) -> Built:
    """Train on batches of two lengths in turn, such as three short ones and a long one."""
    maker, network = _begin(d, (2, 6))
    short, long = training(maker, network, chunks=[1, d.rng.randint(2, 4)])
    turn = [short] * d.count("short", 1, 4) + [long] * d.count("long", 1, 2)
    number = steps(d, max(size(short), size(long)), 12, 80)
    bodies = [turn[i % len(turn)] for i in range(number)]
    return build(d, seq(setup(maker, network.parameters), steps_of(bodies)))


def growing(d: Drawing) -> Built:
    """Train on inputs that grow from step to step."""
    maker, network = _begin(d, (2, 8))
    begin, end = d.near(0.5, 0.3), d.near(3.0, 0.3)
    number = steps(d, 2 * size(network.both()), 8, 80)
    lengths = [begin * (end / begin) ** (i / (number - 1)) for i in range(number)]
    chunks = [max(1, round(2 * length)) for length in lengths]
    bodies = training(maker, network, chunks=chunks)
    steps_ = [Sized(body, length) for body, length in zip(bodies, lengths, strict=True)]
    return build(d, seq(setup(maker, network.parameters), steps_of(steps_)))


def experts(d: Drawing) -> Built:
    """Train a mixture of experts: the data decide which experts' kernels run in each layer."""
    maker, network = _begin(d, (2, 5))
    rng = d.rng
    router = [
        maker.make("product"),
        maker.kernel(names.SOFTMAX, 4),
        maker.kernel(names.TOPK, 5),
    ]
    expert = seq(maker.pointwise(), maker.make("product"), maker.make("act"),
                 maker.make("product"), maker.kernel(names.SCATTER, 4))  # fmt: skip
    back = seq(maker.pointwise(), maker.back("product"), maker.back("act"), maker.back("product"))
    number = d.count("experts", 4, 12)
    active = d.count("active", 2, max(2, number * 2 // 3))
    counted = d.chance("counts_to_host", 0.5)
    counts = maker.copy(TO_HOST, 8 * number) if counted else None
    inputs, update, result = feed(maker), optimizer(maker, network.parameters), report(maker)

    def body() -> Seq:
        chosen = [
            min(number, max(1, active + rng.choice([-2, -1, -1, 0, 0, 0, 1, 1, 2])))
            for _ in range(network.layers)
        ]
        forward = [
            seq(one.forward, router, counts, loop("expert", [expert] * k))
            for one, k in zip(network.blocks, chosen, strict=True)
        ]
        backward = [
            seq(loop("expert_backward", [back] * k), one.backward)
            for one, k in zip(network.blocks[::-1], chosen[::-1], strict=True)
        ]
        return seq(
            inputs, network.stem, loop("layer", forward), network.head, network.loss,
            network.loss_back, network.head_back, loop("layer_backward", backward),
            network.stem_back, result, update,
        )  # fmt: skip

    bodies = [body() for _ in range(steps(d, size(body()), 6, 80))]
    return build(d, seq(setup(maker, network.parameters), steps_of(bodies)))


def extra(d: Drawing) -> Built:
    """Train with further work in every k-th step: logging, an average of weights, a checkpoint."""
    maker, network = _begin(d, (2, 8))
    work = d.choice("extra", ["log", "average", "checkpoint", "histograms"])
    rng, parameters = d.rng, network.parameters
    # an average of weights looks like an update unless the optimizer's own kernels are known
    update = optimizer(maker, parameters, KNOWN if work == "average" else None)
    (body,) = training(maker, network, update)
    if work == "log":
        more = seq([maker.kernel(names.MEAN, 4), maker.copy(TO_HOST, 4)] * rng.randint(1, 4))
    elif work == "average":
        lerp = rng.choice([names.FOREACH_OPTIMIZERS[0][1], names.LOOPED_OPTIMIZERS[0][0]])
        more = seq([maker.kernel(lerp, 5)] * rng.choice([1, parameters]))
    elif work == "checkpoint":
        more = checkpoint(maker, parameters)
    else:
        more = seq([maker.kernel(names.SORT, 6), maker.kernel(names.SUM, 4)] * parameters)
    every = d.count("every_steps", 2, 10)
    number = steps(d, size(body), 3 * every, 100)
    bodies = [seq(body, more) if i % every == every - 1 else body for i in range(number)]
    return build(d, seq(setup(maker, parameters), steps_of(bodies)))


def prefetch(d: Drawing) -> Built:
    """Train while another thread copies the next batches on a stream of its own."""
    maker, network = _begin(d)
    ahead = feed(maker, thread=2)
    depth = d.count("depth", 1, 3)
    first = maker.pointwise().but(joins=True)
    middle = d.chance("in_the_middle", 0.5)
    update = optimizer(maker, network.parameters)
    result = report(maker)
    body = seq(
        first, None if middle else ahead, network.forward(), network.loss, network.loss_back,
        ahead if middle else None, network.backward(), result, update,
    )  # fmt: skip
    last = seq(first, network.both(), result, update)
    number = steps(d, size(body), 6)
    bodies = [*[body] * (number - depth), *[last] * depth]
    return build(d, seq(setup(maker, network.parameters), [ahead] * depth, steps_of(bodies)))


def processes(d: Drawing) -> Built:
    """Train on 2 to 4 GPUs, one process each; NCCL adds gradients in the backward pass."""
    maker, network = _begin(d, (2, 8), styles=("torch", "torch", "compiled"))
    ranks = d.count("ranks", 2, 4)
    (body,) = training(maker, network, reduce=d.rng.randint(1, 3))
    number = steps(d, ranks * size(body), 5, 80)
    more = seq(maker.kernel(names.MEAN, 4), maker.copy(TO_HOST, 4))
    every = d.rng.randint(2, 10) if d.chance("first_rank_logs", 0.4) else 0
    logged = [seq(body, more) if every and i % every == 0 else body for i in range(number)]
    first = setup(maker, network.parameters)
    trees: list[Node] = [seq(first, steps_of(logged))]
    trees += [seq(first, steps_of([body] * number))] * (ranks - 1)
    return build(d, trees)


def one(d: Drawing) -> Built:
    """Run a single step, of layers that repeat in the forward and in the backward pass."""
    maker = Maker(d)
    network = Network(maker, (10, 40), families=("transformer", "convolution", "mixer"))
    if d.chance("inference", 0.3):
        body: Node = evaluation(maker, network)
    else:
        (body,) = training(maker, network)
    return build(d, seq(setup(maker, network.parameters, 0.2), steps_of([body])))


def _tried(maker: Maker, least: int, most: int) -> Seq:
    """Return trials of kernels, some times each."""
    rng = maker.d.rng
    trials: list[Node] = []
    for _ in range(maker.d.count("tuned", least, most)):
        variants = [maker.make("product") for _ in range(rng.randint(2, 8))]
        times = rng.choice([1, 1, 3, 10])
        trials += [maker.fill(1 << 20), *[op for op in variants for _ in range(times)]]
    return seq(trials)


def recompilation(d: Drawing) -> Built:
    """Train with a compiler that makes other kernels in the middle."""
    maker, network = _begin(d, (2, 8), styles=("compiled", "compiled", "xla"))
    (body,) = training(maker, network, optimizer(maker, network.parameters))
    before = steps(d, size(body), 5, 60)
    after = d.count("steps_after", 5, max(5, before))

    def rename(op: Op) -> Op:
        made = op.names[0].startswith(("triton", "loop", "input", "wrapped"))
        return op.but(names=(maker.generated(),)) if made else op

    second = renamed(body, rename)
    tree = seq(
        setup(maker, network.parameters), steps_of([body] * before), _tried(maker, 3, 20),
        steps_of([second] * after),
    )  # fmt: skip
    return build(d, tree)


def tuned(d: Drawing) -> Built:
    """Try many kernels before the first step."""
    maker, network = _begin(d, (2, 8))
    (body,) = training(maker, network)
    tried = _tried(maker, 10, 60)
    number = steps(d, size(body), 5, 60)
    return build(d, seq(setup(maker, network.parameters), tried, steps_of([body] * number)))


def cut(d: Drawing) -> Built:
    """Record from within a step, or until within one."""
    maker, network = _begin(d)
    (body,) = training(maker, network)
    number = steps(d, size(body), 8)
    begin = d.rng.uniform(0, 3) if d.chance("cut_begin", 0.7) else 0.0
    end = number - d.rng.uniform(0.05, 2)
    return build(d, steps_of([body] * number), cut=(begin, end))


def looped(d: Drawing) -> Built:
    """Train with an optimizer that loops over parameters with small kernels."""
    maker, network = _begin(d, styles=("torch",))
    (body,) = training(maker, network, optimizer(maker, network.parameters, "looped"))
    return build(d, seq(setup(maker, network.parameters), steps_of([body] * steps(d, size(body)))))


def attention(d: Drawing) -> Built:
    """Train layers, every 2nd or 4th of which has other kernels; or all are alike."""
    maker = Maker(d)
    network = Network(maker, (4, 24), every=d.rng.choice([1, 2, 4]), families=("transformer",))
    (body,) = training(maker, network)
    return build(d, seq(setup(maker, network.parameters), steps_of([body] * steps(d, size(body)))))


def early_exit(d: Drawing) -> Built:
    """Run as many layers as the data need in each step; train them, or infer."""
    maker, network = _begin(d, (5, 12))
    least = d.count("least_layers", 1, network.layers // 2)
    inputs, update, result = feed(maker), optimizer(maker, network.parameters), report(maker)
    checks = seq(maker.kernel(names.ARGMAX, 4), maker.copy(TO_HOST, 4))
    infers = d.chance("inference", 0.5)

    def body(layers: int) -> Seq:
        if infers:
            return seq(inputs, network.forward(1, layers), checks)
        return seq(inputs, network.both(1, layers), result, update)

    bodies = [body(layers) for layers in range(least, network.layers + 1)]
    number = steps(d, size(bodies[-1]), 8)
    drawn = [d.rng.choice(bodies) for _ in range(number)]
    return build(d, seq(setup(maker, network.parameters), steps_of(drawn)))


KINDS: Final[dict[str, Callable[[Drawing], Built]]] = {
    kind.__name__: kind
    for kind in (
        plain, epochs, evaluations, accumulation_named, accumulation_unnamed,
        accumulation_ranged, varying, alternating, growing, experts, extra, prefetch, processes,
        one, recompilation, tuned, cut, looped, attention, early_exit,
    )
}  # fmt: skip
