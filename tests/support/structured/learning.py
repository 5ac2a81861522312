"""Programs that train in other ways: two networks, tasks within steps, rollouts and updates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from . import names
from .parts import (
    KNOWN,
    Maker,
    Network,
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
from .tree import TO_GPU, TO_HOST, Node, Seq, loop, seq

_TORCH: Final = ("torch", "torch", "compiled")


def gan(d: Drawing) -> Built:
    """Train a discriminator once or some times, then a generator."""
    maker = Maker(d, _TORCH)
    makes = Network(maker, (2, 5), "generator_")
    judges = Network(maker, (2, 5), "discriminator_")
    times = d.rng.randint(2, 5) if d.chance("critic", 0.3) else 1
    d.draws["critic_updates"] = times
    noise = maker.kernel(names.NORMAL, 4)
    reading = report(maker)
    first = seq(
        feed(maker), judges.both(), noise, makes.forward(), judges.both(), reading,
        optimizer(maker, judges.parameters, label="discriminator_"),
    )  # fmt: skip
    second = seq(
        noise, makes.forward(), judges.both(), makes.backward(), reading,
        optimizer(maker, makes.parameters, label="generator_"),
    )  # fmt: skip
    body = seq(loop("critic_update", [first] * times), second)
    also = {}
    if times > 1:
        also["critic_update"] = (
            "the program loops over batches, each of which updates the discriminator; every k-th "
            "one also updates the generator"
        )
    number = steps(d, size(body), 5, 60)
    parameters = makes.parameters + judges.parameters
    return build(d, seq(setup(maker, parameters), steps_of([body] * number)), also=also)


def distillation(d: Drawing) -> Built:
    """Train a student on the outputs of a larger teacher."""
    maker = Maker(d)
    teacher = Network(maker, (4, 12), "teacher_")
    student = Network(maker, (2, 6), "student_")
    mixes = [maker.kernel(names.SOFTMAX, 4), maker.pointwise()]
    body = seq(
        feed(maker), teacher.forward(), student.forward(), mixes, student.loss,
        student.loss_back, student.backward(), report(maker), optimizer(maker, student.parameters),
    )  # fmt: skip
    number = steps(d, size(body))
    return build(d, seq(setup(maker, student.parameters), steps_of([body] * number)))


def meta(d: Drawing) -> Built:
    """Adapt to some tasks with inner steps, then update what all tasks begin with."""
    maker = Maker(d, _TORCH)
    network = Network(maker, (2, 4))
    tasks, inner = d.count("tasks", 1, 4), d.count("inner_steps", 2, 5)
    sgd = seq([maker.kernel(names.ADD, 3)] * network.parameters)
    adapts = seq(network.both(), sgd)
    task = seq(feed(maker), loop("inner_step", [adapts] * inner), network.both())
    outer = optimizer(maker, network.parameters, KNOWN)
    body = seq(loop("task", [task] * tasks), report(maker), outer)
    number = steps(d, size(body), 5, 60)
    return build(d, seq(setup(maker, network.parameters), steps_of([body] * number)))


def ppo(d: Drawing) -> Built:
    """Roll a policy out, for varying numbers of actions, then update it some times."""
    maker = Maker(d, _TORCH)
    network = Network(maker, (2, 4), every=1, families=("perceptron", "recurrent"))
    sample = [maker.kernel(names.SOFTMAX, 3), maker.kernel(names.UNIFORM, 3)]
    action = seq(
        maker.copy(TO_GPU, 4096, pause_us=d.near(60, 0.5)), network.forward(), sample,
        maker.copy(TO_HOST, 64),
    )  # fmt: skip
    (update,) = training(maker, network, inputs=seq([maker.pointwise() for _ in range(4)]))
    passes, batches = d.count("passes", 1, 4), d.count("batches", 2, 8)
    each = d.count("actions", 8, 40)
    number = d.count("iterations", 3, 12)
    varies = d.chance("varies", 0.7)
    advantage = [maker.pointwise(), maker.pointwise()]
    if passes * batches * size(update) + each * size(action) > 3000:
        number = min(number, 5)

    def body() -> Seq:
        actions = round(d.near(each, 0.3)) if varies else each
        shuffled: Node = seq(maker.kernel(names.SORT, 5), loop("update", [update] * batches))
        return seq(
            loop("action", [action] * max(actions, 2)), loop("advantage", [seq(advantage)] * each),
            loop("pass", [shuffled] * passes), report(maker),
        )  # fmt: skip

    return build(
        d, seq(setup(maker, network.parameters), steps_of([body() for _ in range(number)])),
        also={"update": "each of the updates within an iteration is an optimizer step"},
    )  # fmt: skip


def rollouts(d: Drawing) -> Built:
    """Let a policy act in episodes of varying length; a step is one action."""
    maker = Maker(d)
    network = Network(maker, (2, 5), families=("perceptron", "recurrent", "transformer"))
    body = seq(
        maker.copy(TO_GPU, 4096, pause_us=d.near(80, 0.6)), network.forward(),
        maker.kernel(names.ARGMAX, 3), maker.copy(TO_HOST, 64),
    )  # fmt: skip
    reset = seq(maker.copy(TO_GPU, 1 << 16), maker.fill(1 << 16), maker.pointwise())
    budget = steps(d, size(body), 40, 400)
    episodes: list[Node] = []
    left = budget
    while left > 0:
        length = min(left, max(3, round(d.near(budget / 6, 0.5))))
        episodes.append(seq(reset, steps_of([body] * length)))
        left -= length
    return build(d, seq(setup(maker, network.parameters), loop("episode", episodes)))


KINDS: Final[dict[str, Callable[[Drawing], Built]]] = {
    kind.__name__: kind for kind in (gan, distillation, meta, ppo, rollouts)
}
