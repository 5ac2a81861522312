"""Transports: every one sums what it should, in the right order, and reads nothing too early."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from support.trainer_device import DelayedComm, DelayedDevice
from support.trainer_runs import run_script, small
from trainer.backends.numpy import NumpyBackend
from trainer.errors import ConfigError
from trainer.parameters import Tensors
from trainer.ranges import SILENT
from trainer.transports import TRANSPORTS, make_transport
from trainer.transports.base import Message, Parties
from trainer.transports.host import CHUNKS, _cut

HOST = ("host", "pinned", "host-flat", "chunked")
SIZES = (37, 3, 5)  # D, H, C
MANY = (100, 400, 4)  # 40,000 weights: several chunks


def gradients(sizes: tuple[int, int, int] = SIZES, dtype: str = "float64") -> Tensors:
    inputs, hidden, classes = sizes
    count = hidden * inputs + hidden + classes * hidden + classes
    flat = np.random.default_rng(0).standard_normal(count).astype(dtype)
    return Tensors.split(flat, *sizes)


# --- on real ranks


@pytest.mark.mpi
@pytest.mark.parametrize("ranks", [2, *(pytest.param(n, marks=pytest.mark.slow) for n in (3, 4))])
def test_every_transport_trains_as_one_rank_does(ranks: int) -> None:
    """Batches of 31 of 100 images: no number of ranks divides them, and the last one has 7."""
    ways = [*itertools.product(HOST, (False, True)), ("ring", False)]
    small, large, single = ("float64", 12, 8), ("float64", 100, 200), ("float32", 12, 8)
    runs = [
        *((way, small) for way in ways),
        *((way, size) for way in (("chunked", True), ("ring", False)) for size in (large, single)),
    ]
    asked = [
        {"transport": transport, "overlap": overlap, "dtype": dtype, "batch_size": 31, "epochs": 1,
         "hidden_size": hidden, "input_size": inputs, "learning_rate": 0.1}
        for (transport, overlap), (dtype, inputs, hidden) in runs
    ]  # fmt: skip
    for found in run_script(ranks, asked):
        assert found["error"] < (3e-6 if found["dtype"] == "float32" else 1e-13), found
        assert found["loss_error"] < (1e-6 if found["dtype"] == "float32" else 1e-13), found
        assert found["precision"] == found["wanted"], found
        assert found["alike"], found


# --- what is sent


def test_the_last_gradients_in_memory_are_the_first_that_are_there() -> None:
    made = gradients()
    message = Message.of_gradients(made)
    early, late = message.pieces(flat=False)
    assert [piece.shape for piece in late] == [(3, 37), (3,)]
    assert [piece.shape for piece in early] == [(5, 3), (5,)]
    (early_flat,), (late_flat,) = message.pieces(flat=True)
    assert early_flat.size == 5 * 3 + 5
    assert late_flat.size == 3 * 37 + 3
    for pieces in ([*late, *early], [late_flat, early_flat]):
        assert np.array_equal(np.concatenate([np.ravel(p) for p in pieces]), made.flat)
        assert all(np.shares_memory(piece, made.flat) for piece in pieces)


def test_one_array_is_all_late() -> None:
    z2 = np.zeros((5, 4))
    message = Message.of_one(z2)
    assert message.pieces(flat=True)[0] == message.pieces(flat=False)[0] == []
    assert [p.shape for p in message.pieces(flat=False)[1]] == [(5, 4)]
    assert np.shares_memory(message.flat, z2)


@pytest.mark.parametrize(
    ("elements", "chunks"),
    [(0, 0), (1, 1), (8192, 1), (16383, 1), (16384, 2), (3 * 8192 + 1, 3), (10**6, CHUNKS)],
)
def test_chunks_are_64_kib_at_least_and_six_at_most(elements: int, chunks: int) -> None:
    device, host = np.arange(float(elements)), np.zeros(elements)
    pieces = _cut(device, host)
    assert len(pieces) == chunks
    sizes = [a.size for a, _ in pieces]
    assert not sizes or max(sizes) - min(sizes) <= 1
    for a, b in pieces:
        b[:] = a
    assert np.array_equal(device, host)


# --- with copies that are late and sums that take a while


@pytest.mark.parametrize("lag", [0, 1, 7])
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("name", HOST)
def test_nothing_is_read_before_it_is_there(name: str, overlap: bool, lag: int) -> None:
    device, comm = DelayedDevice(lag), DelayedComm(lag)
    made = gradients(MANY)
    rng = np.random.default_rng(1)
    parties = Parties(device, comm, SILENT, Message.of_gradients(made), overlap=overlap)
    transport = make_transport(name, parties)
    assert not transport.steps
    for _ in range(3):  # buffers are used again
        first = {name: rng.standard_normal(t.shape) for name, t in made.named().items()}
        device.compute(writes=[(made.W2, first["W2"]), (made.b2, first["b2"])])
        transport.start()
        device.compute(writes=[(made.W1, first["W1"]), (made.b1, first["b1"])])
        transport.all_reduce()
        device.compute(reads=[made.flat])
        for key, tensor in made.named().items():
            assert np.array_equal(tensor, comm.ranks * first[key])
    assert not comm.under_way


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("name", HOST)
def test_one_array_needs_no_start(name: str, overlap: bool) -> None:
    device, comm, z2 = DelayedDevice(3), DelayedComm(3), np.zeros((4, 9000))
    parties = Parties(device, comm, SILENT, Message.of_one(z2), overlap=overlap)
    transport = make_transport(name, parties)
    for value in (1.0, 2.0):
        device.compute(writes=[(z2, value)])
        transport.all_reduce()
        device.compute(reads=[z2])
        assert (z2 == comm.ranks * value).all()


@pytest.mark.parametrize("barrier", [False, True])
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("name", HOST)
def test_slow_and_fast_ranks_call_mpi_in_the_same_order(
    name: str, overlap: bool, barrier: bool
) -> None:
    """Collectives must: MPI 4.0, section 6.12, also where some do not block."""
    orders = []
    for copying, summing in itertools.product(((0,), (1,), (7,), (9, 0), (0, 9)), (0, 1, 5, 40)):
        device, comm = DelayedDevice(*copying), DelayedComm(summing)
        made = gradients(MANY)
        parties = Parties(
            device, comm, SILENT, Message.of_gradients(made), overlap=overlap, barrier=barrier
        )
        transport = make_transport(name, parties)
        for _ in range(2):
            device.compute(writes=[(made.W2, 1.0), (made.b2, 1.0)])
            transport.start()
            device.compute(writes=[(made.W1, 1.0), (made.b1, 1.0)])
            transport.all_reduce()
        orders.append(comm.calls)
    assert all(order == orders[0] for order in orders)
    assert orders[0].count(("Barrier", 0)) == 2 * barrier
    assert sum(size for _, size in orders[0]) == 2 * gradients(MANY).flat.size


def test_what_is_there_early_is_summed_early() -> None:
    for name, calls in (("host", 2), ("pinned", 2), ("host-flat", 1), ("chunked", 1)):
        device, comm, made = DelayedDevice(0), DelayedComm(9), gradients(MANY)
        parties = Parties(device, comm, SILENT, Message.of_gradients(made), overlap=True)
        transport = make_transport(name, parties)
        device.compute(writes=[(made.W2, 1.0), (made.b2, 1.0)])
        transport.start()
        assert [call for call, _ in comm.calls] == ["Iallreduce"] * calls
        assert sum(size for _, size in comm.calls) == made.W2.size + made.b2.size


def test_the_chunks_of_a_pipeline_are_under_way_together() -> None:
    device, comm, made = DelayedDevice(0), DelayedComm(5), gradients(MANY)
    parties = Parties(device, comm, SILENT, Message.of_gradients(made))
    make_transport("chunked", parties).all_reduce()
    assert len(comm.calls) == min(CHUNKS, made.flat.nbytes // (64 << 10))
    assert comm.most_under_way == len(comm.calls)


# --- the devices that guard these tests see what they should


def test_a_copy_is_late_and_a_misuse_is_seen() -> None:
    device = DelayedDevice(2)
    queue, on_device, host = device.queue(), np.ones(4), np.ones(4)
    queue.follow()
    queue.to_host(on_device, host)
    assert np.isnan(host).all()
    done = queue.record()
    assert [done() for _ in range(3)] == [False, False, True]
    assert (host == 1).all()
    device.compute(writes=[(on_device, 2.0)])
    with pytest.raises(AssertionError, match="not followed"):
        queue.to_host(on_device, host)
    queue.follow()
    queue.to_device(host, on_device)
    with pytest.raises(AssertionError, match="before its copy was joined"):
        device.compute(reads=[on_device])
    queue.join()
    device.compute(reads=[on_device])
    with pytest.raises(AssertionError, match="still in use"):
        queue.to_device(host, on_device)


# --- what cannot be


@pytest.mark.parametrize("name", ["none", "cuda-aware", "peer", "ring"])
def test_what_has_no_two_parts_cannot_overlap(name: str) -> None:
    parties = Parties(NumpyBackend(), DelayedComm(0), SILENT, Message.of_gradients(gradients()))
    overlapped = Parties(
        parties.backend, parties.comm, SILENT, parties.message, overlap=True, barrier=False
    )
    with pytest.raises(ConfigError, match=f"--overlap: .* got {name}; leave out") as caught:
        make_transport(name, overlapped)
    assert caught.value.everywhere


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("none", "expected one rank; got 2"),
        ("nccl", "expected gradients on a GPU; got the backend numpy"),
        ("peer", "expected gradients on a GPU; got the backend numpy"),
        ("cuda-aware", "expected an MPI that takes GPU pointers"),
        ("pigeon", "expected one of chunked, cuda-aware"),
    ],
)
def test_what_is_not_here_is_refused(name: str, words: str) -> None:
    parties = Parties(NumpyBackend(), DelayedComm(0), SILENT, Message.of_gradients(gradients()))
    with pytest.raises(ConfigError, match=words) as caught:
        make_transport(name, parties)
    assert caught.value.everywhere


def test_only_what_leaves_the_host_out_can_be_captured() -> None:
    from trainer.transports import device as transport_device
    from trainer.transports import host as transport_host
    from trainer.transports import peer as transport_peer
    from trainer.transports.none import NoTransport
    from trainer.transports.ring import RingTransport

    kinds = {
        "host": transport_host.HostTransport, "overlapped": transport_host.OverlappedTransport,
        "chunked": transport_host.ChunkedTransport,
        "cuda-aware": transport_device.CudaAwareTransport,
        "ring": RingTransport, "nccl": transport_device.NcclTransport,
        "peer": transport_peer.PeerTransport,
        "none": NoTransport,
    }  # fmt: skip
    reasons = {name: kind.uncapturable for name, kind in kinds.items()}
    assert {name for name, reason in reasons.items() if reason is None} == {"nccl", "peer", "none"}
    for name in reasons.keys() - {"nccl", "peer", "none"}:
        assert "which a CUDA graph can" in (reasons[name] or "")
    assert [name for name, kind in kinds.items() if kind.steps] == ["peer"]
    assert small(transport="chunked").transport in TRANSPORTS
