import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.convergence.sweeps import (
    convergence,
    discrepancy,
    parallel,
    virtual_ranks,
    write_csv,
)
from support.trainer_runs import small
from trainer.backends.numpy import NumpyBackend
from trainer.data import synthetic
from trainer.mpi import Communicator
from trainer.steps.batches import Split
from trainer.train import sequential
from trainer.verify import relative_errors


@given(images=st.integers(1, 500), batch=st.integers(1, 120), ranks=st.integers(1, 9))
def test_every_image_belongs_to_one_rank_of_one_batch(images, batch, ranks):
    splits = [Split(images, batch, ranks, rank) for rank in range(ranks)]
    owned = [i for b in range(len(splits[0])) for s in splits for i in range(*s.bounds(b))]
    assert owned == list(range(images))
    for index in range(len(splits[0])):
        shares = [s.share(index) for s in splits]
        assert sum(shares) == splits[0].size(index)
        assert max(shares) - min(shares) <= 1


def test_the_documents_batches():
    assert len(Split(60000, 3000)) == 20
    split = Split(60000, 3200, 2, 1)
    assert (len(split), split.size(18), split.share(18)) == (19, 2400, 1200)


@pytest.mark.parametrize("ranks", [2, 3, 7])
@pytest.mark.parametrize("batch", [30, 31])
def test_parts_sum_to_the_whole(ranks, batch):
    config = small(dtype="float64", batch_size=batch, epochs=3, learning_rate=0.1)
    dataset = synthetic(config)
    wanted = sequential(config, dataset).parameters
    found = virtual_ranks(config, dataset, ranks)[-1].parameters
    assert max(relative_errors(found, wanted, config).values()) < 1e-13


def test_discrepancy_study_is_tidy(tmp_path):
    config = small(epochs=2)
    rows = list(discrepancy(config, synthetic(config), [0.01], ranks=(2,)))
    assert len(rows) == 3 * 2 * 4  # variants, epochs, parameters
    assert {row["variant"] for row in rows} == {"2 ranks", "float64", "one ulp"}
    assert all(0 <= row["max_relative_error"] < 1e-4 for row in rows)
    write_csv(tmp_path / "d.csv", rows)
    assert len((tmp_path / "d.csv").read_text().splitlines()) == 1 + len(rows)


def test_convergence_study_is_tidy():
    config = small(epochs=2)
    rows = list(convergence(config, synthetic(config), [0.1, 0.5], [4, 8]))
    assert [(r["hidden_size"], r["learning_rate"], r["epoch"]) for r in rows] == [
        (h, rate, e) for h in (4, 8) for rate in (0.1, 0.5) for e in (1, 2)
    ]
    assert all(np.isfinite(r["loss"]) for r in rows)


def test_one_rank_is_the_sequential_run():
    config = small(epochs=2)
    rows = list(
        parallel(config, synthetic(config), Communicator(), NumpyBackend(), [0.1, 0.01], [8, 4])
    )
    tried = [(row["learning_rate"], row["hidden_size"], row["epoch"]) for row in rows]
    assert tried == [(0.1, 8, 1), (0.1, 8, 2), (0.01, 8, 1), (0.01, 8, 2), (0.1, 4, 1), (0.1, 4, 2)]
    for row in rows:
        assert [row[name] for name in ("W1", "b1", "W2", "b2")] == [0, 0, 0, 0]
        assert row["loss"] == row["sequential_loss"]
        assert row["precision_test"] == row["sequential_precision_test"]


def test_a_long_study_is_thinned():
    config = small(epochs=150)
    rows = list(convergence(config, synthetic(config), [0.001], [2], thin=True))
    epochs = [row["epoch"] for row in rows]
    assert epochs[:20] == list(range(1, 21))
    assert epochs[-1] == 150
    assert 30 < len(epochs) < 45
