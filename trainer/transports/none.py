"""No transport: one rank, whose gradients are the sums already."""

from __future__ import annotations

from trainer.errors import ConfigError
from trainer.transports.base import Kind, Parties, register


class NoTransport:
    """Nothing to sum: one rank, whose gradients stay where they are.

    Raises
    ------
    ConfigError
        If there are more ranks.
    """

    steps: bool = False
    uncapturable: str | None = None

    def __init__(self, parties: Parties) -> None:
        if parties.comm.size > 1:
            raise ConfigError(
                f"--transport none: expected one rank; got {parties.comm.size}, whose gradients "
                "must be summed; use --transport host"
            ).on_all_ranks()

    def start(self) -> None:
        """Leave them alone."""

    def all_reduce(self) -> None:
        """Leave them alone."""


register(Kind("none", NoTransport))
