"""Programs without networks: solvers, stencils, and programs of MPI without a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from .parts import Maker, checkpoint, size, steps, steps_of
from .program import Built, Drawing, build
from .tree import MPI, ON_GPU, TO_GPU, TO_HOST, Node, Op, loop, seq

_P2P, _WAIT, _OTHER, _COLLECTIVE = range(4)
_ITERATES: Final = 0.8
"""Share of the operations from which an expert may take the iterations for the steps."""


def _own(maker: Maker, name: str, us: float = 8.0) -> Op:
    kind = maker.d.rng.choice(["double", "float"])
    return maker.kernel(f"void {name}<{kind}, (int)256>({kind} *, {kind} const *, int)", us)


def solver(d: Drawing) -> Built:
    """Solve a system in every time step, in varying numbers of iterations."""
    maker = Maker(d, ("own",))
    rng = d.rng
    assembles = seq([maker.pointwise(10) for _ in range(rng.randint(2, 12))])
    updates = seq([maker.pointwise() for _ in range(rng.randint(1, 6))])
    dot = seq(_own(maker, "dot_kernel", 4), maker.copy(TO_HOST, 8))
    iteration = seq(
        _own(maker, "csr_spmv", 15), dot, _own(maker, "axpy", 4), _own(maker, "axpy", 4),
        [_own(maker, "precondition", 8)] * rng.randint(0, 2), dot if rng.random() < 0.6 else None,
        _own(maker, "xpay", 4),
    )  # fmt: skip
    each = d.count("iterations", 3, 40)
    sigma = rng.choice([0.1, 0.3, 0.5])
    number = steps(d, each * size(iteration) + size(assembles) + size(updates), 6)
    every = d.rng.randint(2, 8) if d.chance("writes", 0.4) else 0
    result = maker.copy(TO_HOST, 1 << 22)
    bodies = []
    for i in range(number):
        times = max(1, round(d.near(each, sigma)))
        written = result if every and i % every == every - 1 else None
        bodies.append(seq(assembles, loop("iteration", [iteration] * times), updates, written))
    share = each * size(iteration) / (each * size(iteration) + size(assembles) + size(updates))
    also = {"iteration": "most of the work is in the iterations"} if share > _ITERATES else {}
    begin = seq([maker.copy(TO_GPU, 1 << 22)] * rng.randint(1, 6), maker.pointwise())
    return build(d, seq(begin, steps_of(bodies)), also=also)


def stencil(d: Drawing) -> Built:
    """Sweep over a grid; now and then a norm is copied to the host."""
    maker = Maker(d, ("own",))
    rng = d.rng
    sweep = [_own(maker, name, 15) for name in ("stencil_x", "stencil_y", "stencil_z")]
    sweep = sweep[: rng.randint(1, 3)]
    sweep += [_own(maker, "boundary", 3)] * rng.randint(0, 4)
    if rng.random() < 0.4:
        sweep.append(maker.copy(ON_GPU, 1 << 22))
    if len(sweep) == 1:
        sweep.append(_own(maker, "swap_halo", 3))
    check = seq(_own(maker, "residual_norm", 6), _own(maker, "reduce_final", 3),
                maker.copy(TO_HOST, 8))  # fmt: skip
    every = d.count("check_every", 2, 50)
    number = steps(d, len(sweep), max(120, 6 * every), 1500)
    bodies = [seq(sweep, check) if i % every == every - 1 else seq(sweep) for i in range(number)]
    begin = seq([maker.copy(TO_GPU, 1 << 22)] * rng.randint(1, 4))
    return build(d, seq(begin, steps_of(bodies), checkpoint(maker, rng.randint(1, 3))))


def _call(maker: Maker, name: str, source: int, peer: int = -1, **more: object) -> Op:
    d = maker.d
    fields: dict[str, object] = {
        "kind": MPI, "copy_kind": source, "stream": peer, "us": d.near(6, 0.4), "sigma": 0.3,
        "bytes": d.rng.choice([8, 1 << 12, 1 << 18]) if source in (_P2P, _COLLECTIVE) else 0,
        "host_us": 0.5, "pause_us": 1.0, "meets": source == _COLLECTIVE,
    }  # fmt: skip
    return Op((name,), **{**fields, **more})  # type: ignore[arg-type]


def mpi(d: Drawing) -> Built:
    """Compute on CPUs only, in 2 to 4 ranks that exchange data in every step."""
    maker = Maker(d, ("own",))
    rng = d.rng
    ranks = d.count("ranks", 2, 4)
    pattern = d.choice("pattern", ["halo", "gradients", "transpose", "ring"])
    work = d.near(200, 0.8)
    layers = d.rng.randint(2, 8)
    reduces = rng.random() < 0.6
    every = rng.randint(2, 12) if d.chance("writes", 0.5) else 0
    number = steps(d, 12 * ranks, 20, 300)
    known: dict[tuple[object, ...], Op] = {}
    rounds = d.rng.randint(1, 3) if reduces else 1  # equal exchanges alone would all be steps
    sizes = [rng.choice([1 << 10, 1 << 14, 1 << 18, 1 << 20]) + 8 * i for i in range(layers)]

    def call(name: str, source: int, peer: int = -1, **more: object) -> Op:
        key = (name, peer, *more.items())
        if key not in known:
            known[key] = _call(maker, name, source, peer, **more)
        return known[key]

    def step(rank: int) -> Node:
        neighbours = sorted({(rank - 1) % ranks, (rank + 1) % ranks})
        computes: dict[str, object] = {"pause_us": work}
        if pattern == "halo":
            exchange = seq(
                [call("MPI_Irecv", _P2P, peer) for peer in neighbours],
                [call("MPI_Isend", _P2P, peer) for peer in neighbours],
                call("MPI_Waitall", _WAIT, **computes),
            )
            return seq([exchange] * rounds, call("MPI_Allreduce", _COLLECTIVE) if reduces else None)
        if pattern == "gradients":
            sums = [
                call("MPI_Allreduce", _COLLECTIVE, bytes=one, pause_us=work * (1 + 2 * (i == 0)))
                for i, one in enumerate(sizes)
            ]
            return seq(sums, call("MPI_Barrier", _COLLECTIVE, bytes=0) if reduces else None)
        if pattern == "transpose":
            swap = call("MPI_Alltoall", _COLLECTIVE, **computes)
            return seq([swap] * rounds, call("MPI_Allreduce", _COLLECTIVE) if reduces else None)
        pairs = [call("MPI_Sendrecv", _P2P, neighbours[-1], **computes)] * (ranks - 1)
        return seq(pairs, call("MPI_Allreduce", _COLLECTIVE))

    begins = [call("MPI_Bcast", _COLLECTIVE)] * rng.randint(1, 5)
    writes = call("MPI_Gather", _COLLECTIVE, us=300.0)
    trees: list[Node] = []
    for rank in range(ranks):
        body = step(rank)
        written = seq(body, writes)
        bodies = [written if every and i % every == every - 1 else body for i in range(number)]
        trees.append(seq(begins, steps_of(bodies)))
    return build(d, trees)


def few(d: Drawing) -> Built:
    """Repeat a step of few kernels, some of which occur several times in it, without any copy."""
    maker = Maker(d, ("own",))
    rng = d.rng
    kernels = [_own(maker, f"kernel_{name}") for name in "abcdefgh"[: rng.randint(2, 8)]]
    body: list[Op] = []
    while len(body) < 2 or _repeats(body):
        body = [rng.choice(kernels) for _ in range(rng.randint(2, 12))]
    begin = [_own(maker, f"set_up_{i}") for i in range(rng.randint(0, 6))]
    number = steps(d, len(body), 5, 150)
    return build(d, seq(begin, steps_of([seq(body)] * number)))


def _repeats(body: list[Op]) -> bool:
    """Whether a sequence, without end, is a shorter one several times."""
    return (
        any(body[k:] + body[:k] == body for k in range(1, len(body)) if len(body) % k == 0)
        or len(set(map(id, body))) == 1
    )


KINDS: Final[dict[str, Callable[[Drawing], Built]]] = {
    kind.__name__: kind for kind in (solver, stencil, mpi, few)
}
