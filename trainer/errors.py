"""The errors the trainer raises on purpose, each with the exit code of `python -m trainer`."""

from __future__ import annotations


class TrainerError(Exception):
    """Base of all errors a user can act on: says what was expected, what it got, and what to do.

    Attributes
    ----------
    everywhere : bool
        True when every rank raises this same error at the same place, so that one rank can speak
        for all and nobody needs to be aborted.
    """

    exit_code = 1
    everywhere = False

    def on_all_ranks(self) -> TrainerError:
        """Mark the error as raised by every rank and return it."""
        self.everywhere = True
        return self


class ConfigError(TrainerError):
    """A flag, or a combination of flags, makes no sense; the same on every rank."""

    exit_code = 2
    everywhere = True


class OperandError(ConfigError):
    """Matrices do not fit a kernel: a mistake of the caller's, perhaps on this rank alone."""

    everywhere = False


class DataError(TrainerError):
    """The images or labels are missing, truncated, altered, or of another size."""

    exit_code = 3


class CheckpointError(TrainerError):
    """There is no checkpoint, it is damaged, or it belongs to another run."""

    exit_code = 4


class NonFiniteLossError(TrainerError):
    """The loss of a batch is NaN or infinite."""

    exit_code = 5


class DeviceError(TrainerError):
    """The chosen backend, GPU or MPI library is not there."""

    exit_code = 6


def out_of_memory(error: MemoryError) -> str:
    """Return what to do about a host or a GPU without enough memory."""
    return (
        f"out of memory: expected the network, the images and a batch to fit; got {error}; lower "
        "--hidden-size, --batch-size or --train-size, or use more ranks"
    )


EXIT_VERIFY = 7
EXIT_STOPPED = 143  # 128 + SIGTERM, what a batch system expects of a job it has preempted
