"""`python -m trainer` whose rank 1 fails in the middle of training; for the tests."""

import sys

from trainer.__main__ import main
from trainer.transports import host as transport_host

plain = transport_host.HostTransport.all_reduce
calls = 0


def failing(self):
    global calls
    calls += 1
    if calls == 3 and self._parties.comm.rank == 1:
        raise RuntimeError("the GPU fell off the bus")
    plain(self)


transport_host.HostTransport.all_reduce = failing
sys.exit(main())
