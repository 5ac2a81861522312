import json
import math

import numpy as np
import pytest

from support.trainer_runs import StopAt, flags, run_alone, session, small
from trainer import checkpoint
from trainer.checkpoint import State
from trainer.data import synthetic
from trainer.errors import CheckpointError, NonFiniteLossError
from trainer.stop import StopRequest
from trainer.train import sequential
from trainer.verify import verify


def test_learns_the_synthetic_set():
    config = small(epochs=60, learning_rate=1.0, seed=3)
    result = session(config).run()
    losses = [e["loss"] for e in result.epochs]
    assert losses[-1] < 0.3 * losses[0]
    assert result.epochs[-1]["precision_test"] > 0.9
    assert not result.stopped


def test_loss_and_accuracy_are_those_of_the_formulas():
    """One batch, one epoch: the loss is J (eq. 1) at the initial weights, penalty afterwards."""
    config = small(batch_size=100, epochs=1, dtype="float64", learning_rate=1e-9)
    data = synthetic(config)
    result = sequential(config, data)
    rng = np.random.default_rng(config.seed)
    w1, w2 = 0.01 * rng.standard_normal((8, 12)), 0.01 * rng.standard_normal((4, 8))
    z2 = (1 / (1 + np.exp(-(data.images / 255) @ w1.T))) @ w2.T
    log_p = z2 - np.log(np.exp(z2).sum(1, keepdims=True))
    j = -log_p[np.arange(100), data.labels].mean()
    j += 0.5 * config.regularization * ((w1**2).sum() + (w2**2).sum())
    assert result.epochs[0]["loss"] == pytest.approx(j, rel=1e-9)
    assert result.epochs[0]["precision_train"] == (z2.argmax(1) == data.labels).mean()


def test_seeds_make_runs_repeatable():
    a, b, c = (session(small(seed=s)).run().parameters for s in (1, 1, 2))
    np.testing.assert_array_equal(a, b)
    assert (a != c).any()


def test_evaluation_does_not_touch_training():
    a = session(small(evaluate_every=1)).run()
    b = session(small(evaluate_every=0)).run()
    np.testing.assert_array_equal(a.parameters, b.parameters)
    assert b.epochs[0]["precision_test"] is None
    assert b.epochs[-1]["precision_test"] == a.epochs[-1]["precision_test"]


def test_not_a_number_stops_with_epoch_and_batch():
    config = small(learning_rate=1e38, regularization=0.0)
    with pytest.raises(NonFiniteLossError, match=r"epoch 1, batch \d of 4") as caught:
        session(config).run()
    assert caught.value.everywhere
    assert "--learning-rate" in str(caught.value)


@pytest.mark.parametrize("rate", [1e300, 1e307])
def test_an_update_that_overflows_in_the_last_batch_is_found(rate):
    """No batch's loss holds it: the epoch's does, and a bias that is not finite is looked at."""
    config = small(
        dtype="float64", learning_rate=rate, regularization=0.0, batch_size=100, epochs=1,
        pixels="raw", evaluate_every=0,
    )  # fmt: skip
    with pytest.raises(NonFiniteLossError, match="after epoch 1: expected a finite one"):
        session(config).run()


@pytest.mark.parametrize("parallel", ["data", "model"])
def test_scores_that_overflow_in_the_evaluation_are_found(parallel):
    config = small(epochs=1, parallel=parallel)
    made = session(config)
    made.prepare()
    weights = made.parameters()
    weights[:] = np.finfo(np.float32).max / 2
    made._parts.set_parameters(weights)
    assert all(math.isnan(accuracy) for accuracy in made._parts.accuracies())
    made._history.append({})
    with pytest.raises(NonFiniteLossError, match="in the evaluation"):
        made._evaluate()


def test_a_record_is_valid_json_or_is_not_written(tmp_path):
    record = tmp_path / "record.json"
    config = small(dtype="float64", learning_rate=1e300, regularization=0.0, batch_size=100)
    done = run_alone(*flags(config), "--record", str(record))
    assert done.returncode == 5, done.stderr
    assert not record.exists()


@pytest.mark.parametrize("after", [1, 3, 4, 6])  # 4 batches an epoch
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_stopping_anywhere_and_resuming_is_bit_identical(after, dtype):
    config = small(epochs=3, dtype=dtype, learning_rate=0.3)
    whole = session(config).run()
    saved: list[State] = []
    stop = StopRequest()
    first = session(config, stop=stop, observer=StopAt(stop, after), save=saved.append).run()
    assert first.stopped
    assert stop.signal_name == "SIGTERM"
    packed = checkpoint.pack(saved[-1])
    assert (saved[-1].epoch, saved[-1].batch) == divmod(after, 4)
    second = session(config, state=checkpoint.unpack(packed)).run()
    np.testing.assert_array_equal(second.parameters, whole.parameters)
    kept = ("loss", "precision_train", "precision_test")
    assert [[e[k] for k in kept] for e in second.epochs] == [
        [e[k] for k in kept] for e in whole.epochs
    ]


def saved_state(directory, **changes) -> State:
    config = small(**changes)
    states: list[State] = []
    session(config, save=states.append).run()
    checkpoint.save(directory, states[-1])
    return states[-1]


def test_checkpoints_are_replaced_whole(tmp_path, monkeypatch):
    state = saved_state(tmp_path)
    before = (tmp_path / checkpoint.FILE).read_bytes()

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("trainer.checkpoint.os.fsync", full)
    with pytest.raises(CheckpointError, match="No space left"):
        checkpoint.save(tmp_path, state)
    assert (tmp_path / checkpoint.FILE).read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == [checkpoint.FILE]


@pytest.mark.parametrize(
    "damage", [lambda b: b[:50], lambda b: b"", lambda b: b[:-300] + b"x" * 300]
)
def test_a_damaged_checkpoint_is_refused(tmp_path, damage):
    saved_state(tmp_path)
    path = tmp_path / checkpoint.FILE
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(CheckpointError, match="damaged or foreign"):
        checkpoint.load(tmp_path)


def test_a_checkpoint_that_would_unpickle_is_refused(tmp_path):
    np.savez(tmp_path / checkpoint.FILE, about=np.array([{}], object))
    with pytest.raises(CheckpointError, match="damaged or foreign"):
        checkpoint.load(tmp_path)


def test_another_runs_checkpoint_is_refused(tmp_path):
    state = saved_state(tmp_path)
    with pytest.raises(CheckpointError, match=r"--learning-rate was 0\.01, is 0\.5"):
        state.check(small(learning_rate=0.5), state.data, 4)
    with pytest.raises(CheckpointError, match="images and labels had SHA-256"):
        state.check(small(), "00000000", 4)
    with pytest.raises(CheckpointError, match="an epoch had 4 batches, has 5"):
        state.check(small(), state.data, 5)
    state.check(small(epochs=9), state.data, 4)
    assert state.why_not_identical(small(epochs=9), 1, "numpy") is None
    assert "was 1 rank with numpy, is 2 ranks with numpy: sums" in (
        state.why_not_identical(small(), 2, "numpy") or ""
    )


def test_another_way_to_sum_continues_and_says_that_bits_will_differ(tmp_path):
    state = saved_state(tmp_path)
    changed = small(parallel="model", transport="chunked")
    state.check(changed, state.data, 4)
    said = state.why_not_identical(changed, 1, "numpy") or ""
    assert "--parallel was 'data', is 'model'; --transport was 'host', is 'chunked': sums" in said
    assert "with numpy" not in said
    del state.config["math"]  # an older checkpoint, from before there was a choice
    assert state.why_not_identical(small(), 1, "numpy") is None


def test_verify_reports_every_parameter():
    config = small(verify=1e-6)
    report = verify(config, synthetic(config), session(config).run())
    assert report["passed"]
    assert report["max_relative_error"] == {"W1": 0.0, "b1": 0.0, "W2": 0.0, "b2": 0.0}


def test_verify_tells_an_error_from_chaos():
    config = small(verify=1e-6)
    result = session(config).run()
    result.parameters[:] *= 1.01
    report = verify(config, synthetic(config), result)
    assert not report["passed"]
    assert "suspect the parallel run" in report["explanation"]
    result.parameters[0] = np.nan
    assert not verify(config, synthetic(config), result)["passed"]


def test_the_record_holds_what_was_promised(tmp_path):
    path = tmp_path / "deep" / "run.json"
    config = small(verify=1e-6)
    done = run_alone(*flags(config), "--record", str(path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("epoch ") == 2
    assert done.stderr == ""
    record = json.loads(path.read_text())
    assert record["config"] == config.as_dict()
    assert {"config", "versions", "epochs", "verify", "timings"} <= set(record)
    assert [set(e) >= {"loss", "precision_train", "precision_test"} for e in record["epochs"]]
    assert record["status"] == "finished"
    assert record["timings"]["batches"] == 8
    assert record["timings"]["batch_median"] > 0
    assert record["versions"]["numpy"] == np.__version__


def test_resuming_from_nothing_says_what_to_do(tmp_path):
    done = run_alone(*flags(small()), "--checkpoint", str(tmp_path), "--resume")
    assert done.returncode == 4
    assert "got none; check --checkpoint, or start without --resume" in done.stderr


def test_cupy_without_a_gpu_says_what_to_do():
    done = run_alone(*flags(small(backend="cupy")))
    if done.returncode == 0:
        pytest.skip("there is a GPU here")
    assert done.returncode == 6
    assert "--backend numpy" in done.stderr
