"""cupy.cuda.nccl: refuses two ranks on one GPU, as NCCL does."""

from cupy import cuda

NCCL_FLOAT32, NCCL_SUM = 7, 0


def get_version():
    return 22700


def get_unique_id():
    return b"\0stub"


class NcclCommunicator:
    def __init__(self, size, identity, rank):
        if size > cuda.DEVICES:
            raise RuntimeError("Duplicate GPU detected")
        assert identity == b"\0stub"

    def allReduce(self, source, target, count, kind, operation, stream):
        assert (kind, operation) == (NCCL_FLOAT32, NCCL_SUM)
