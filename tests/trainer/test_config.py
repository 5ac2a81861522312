import subprocess
import sys

import pytest

from support.trainer_runs import ROOT, flags, small
from trainer.config import DATA_ON, GEMMS, MATHS, Config
from trainer.errors import ConfigError
from trainer.flags import configure, parser
from trainer.transports import TRANSPORTS


def test_defaults_are_the_documents_profiled_run():
    # hyperparameters{60000, 10000, 784, 512, 3000, 1, 10, 1e-4, 1e-2, 0}
    c = Config()
    assert (c.input_size, c.hidden_size, c.batch_size, c.epochs) == (784, 512, 3000, 1)
    assert (c.num_classes, c.regularization, c.learning_rate) == (10, 1e-4, 1e-2)
    assert c.pixels == "raw"
    assert c.transport == "host"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"input_size": 0}, ["--input-size", "expected a whole number >= 1", "pixels", "0"]),
        ({"hidden_size": -3}, ["--hidden-size", "hidden neurons", "-3"]),
        ({"hidden_size": 2.5}, ["--hidden-size", "2.5"]),
        ({"num_classes": 1}, ["--num-classes", ">= 2"]),
        ({"num_classes": 257}, ["--num-classes", "256", "257"]),
        ({"batch_size": 0}, ["--batch-size", "images per step"]),
        ({"epochs": 0}, ["--epochs", "passes"]),
        ({"learning_rate": 0.0}, ["--learning-rate", "> 0"]),
        ({"learning_rate": float("nan")}, ["--learning-rate", "finite", "nan"]),
        ({"regularization": -1e-4}, ["--regularization", ">= 0"]),
        ({"regularization": 10.0, "learning_rate": 0.1}, ["times", "shrinks"]),
        ({"dtype": "float16"}, ["--dtype", "float32, float64", "float16"]),
        ({"backend": "torch"}, ["--backend", "torch"]),
        ({"train_size": 0}, ["--train-size", "images"]),
        ({"seed": -1}, ["--seed", "-1"]),
        ({"verify": 0.0}, ["--verify", "relative error"]),
    ],
)
def test_a_bad_value_is_refused_with_what_was_wanted_and_found(changes, words):
    with pytest.raises(ConfigError) as caught:
        small(**changes)
    for word in words:
        assert word in str(caught.value)
    assert caught.value.everywhere


def test_every_rank_needs_an_image():
    with pytest.raises(ConfigError, match=r"4 ranks; got 3 images; the nearest valid size is 4"):
        small(batch_size=3).check_ranks(4)
    small(batch_size=4).check_ranks(4)


def test_every_rank_needs_a_hidden_neuron():
    with pytest.raises(ConfigError, match=r"--hidden-size: .* 3 ranks; got 2 hidden neurons"):
        small(parallel="model", hidden_size=2).check_ranks(3)
    small(parallel="model", hidden_size=3, batch_size=1).check_ranks(3)


def test_flags_make_the_config_they_say():
    wanted = small(verify=1e-3, sync_ranges=True, checksum=False, dtype="float64", threads=1)
    assert configure(parser().parse_args(flags(wanted))) == wanted


def test_verify_without_a_number_takes_the_bound_of_the_dtype():
    assert configure(parser().parse_args(["--verify"])).verify == 1e-5
    assert configure(parser().parse_args(["--verify", "--dtype", "float64"])).verify == 1e-13
    assert configure(parser().parse_args([])).verify is None


def test_every_flag_is_documented():
    page = (ROOT / "docs" / "trainer.md").read_text(encoding="utf-8")
    made = [text for action in parser()._actions for text in action.option_strings]
    assert len(made) > 30
    assert [flag for flag in made if f"`{flag}" not in page and flag not in ("-h", "--help")] == []
    for name in (*TRANSPORTS, *GEMMS, *MATHS, *DATA_ON):
        assert f"`{name}`" in page, name


def test_resume_needs_a_directory():
    with pytest.raises(ConfigError, match="--checkpoint"):
        configure(parser().parse_args(["--resume"]))


def test_unknown_transport_lists_the_known():
    with pytest.raises(ConfigError, match="host"):
        parser().parse_args(["--transport", "pigeon"])


def test_importing_the_trainer_needs_no_gpu_mpi_or_profiler():
    code = (
        "import sys\n"
        "for name in ('cupy', 'cupyx', 'mpi4py', 'nvtx', 'rich', 'pooch', 'perfmodel'):\n"
        "    sys.modules[name] = None\n"
        "import trainer.__main__, benchmarks.convergence.sweeps\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
