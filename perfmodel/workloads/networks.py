"""The networks that are known layer by layer, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from perfmodel.base.errors import WorkloadError
from perfmodel.base.escape import printable
from perfmodel.workloads import resnets, vgg
from perfmodel.workloads.alexnet import alexnet, alexnet_caffe
from perfmodel.workloads.googlenet import googlenet
from perfmodel.workloads.layers import Net

_MAKERS: Final[Mapping[str, Callable[[], Net]]] = {
    "alexnet": alexnet,
    "alexnet-caffe": alexnet_caffe,
    **{name: partial(vgg.vgg, name) for name in vgg.NAMES},
    "googlenet": googlenet,
    **{name: partial(resnets.resnet, name) for name in resnets.NAMES},
}
NETWORKS: Final = tuple(_MAKERS)


def network(name: str) -> Net:
    """Return a network by name, for images of the size it was published with.

    Raises
    ------
    WorkloadError
        If there is no such network.
    """
    if name not in _MAKERS:
        raise WorkloadError(
            f"wanted one of the networks {', '.join(NETWORKS)}; found {printable(name)!r}: name "
            f"a torch model as MODULE:FUNCTION or an ONNX file, or write its layers beside "
            f"perfmodel/workloads/vgg.py"
        )
    return _MAKERS[name]()
