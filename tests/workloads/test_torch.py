"""A torch model becomes the layers that perfmodel writes down; what is not known is named."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from click.testing import CliRunner

from perfmodel.base.errors import WorkloadError
from perfmodel.cli import main
from perfmodel.workloads.foreign import from_torch
from perfmodel.workloads.layers import total
from perfmodel.workloads.networks import network

HAS_TORCH = importlib.util.find_spec("torch") is not None
with_torch = pytest.mark.skipif(not HAS_TORCH, reason="needs torch")

Put = Callable[[Callable[[], Any]], str]


@pytest.fixture
def put(monkeypatch: pytest.MonkeyPatch) -> Put:
    """Put a function into a module; return its MODULE:FUNCTION."""

    def put(make: Callable[[], Any]) -> str:
        module = ModuleType("made_models")
        vars(module)["make"] = make
        monkeypatch.setitem(sys.modules, "made_models", module)
        return "made_models:make"

    return put


@with_torch
@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_a_traced_model_costs_what_the_layers_by_hand_cost(name: str, put: Put) -> None:
    from support import torchvision_resnet

    found = from_torch(put(lambda: torchvision_resnet.make(name)))
    assert len(found.nodes) == len(network(name).nodes)
    assert total(found, 8) == total(network(name), 8)


@with_torch
def test_functions_of_torch_are_layers_too(put: Put) -> None:
    """A sum, a concatenation, functional ReLU and pools in a model of one's own."""
    import torch
    from torch import nn

    class Made(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = nn.Conv2d(3, 4, 3, 2, 1, bias=False)
            self.two = nn.Conv2d(4, 4, 1, groups=2)
            self.pool = nn.MaxPool2d(3, 2, ceil_mode=True)
            self.adapt = nn.AdaptiveAvgPool2d(4)
            self.out = nn.Linear(8 * 16, 10)

        def forward(self, x: Any) -> Any:
            x = torch.relu(self.one(x))
            x = torch.cat([self.two(x) + x, x], 1)
            return self.out(torch.flatten(self.adapt(self.pool(x)), 1))

    found = from_torch(put(Made), 33)
    kinds = [type(node.layer).__name__ for node in found.nodes]
    assert kinds == ["Conv", "Relu", "Conv", "Add", "Concat", "Pool", "Pool", "Linear"]
    # 33 -> 17 -> pool of 3 by 2 -> 8 -> 4: 17^2 4 27 + 17^2 4 2 + 128 10
    assert total(found).macs == 289 * 108 + 289 * 8 + 1280


@with_torch
def test_the_command_takes_a_model(put: Put) -> None:
    from support import torchvision_resnet

    word = put(lambda: torchvision_resnet.make("resnet18"))
    done = CliRunner().invoke(main, ["study", "layers", word, "--set", "image=64", "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["totals"]["params"] == 11_689_512
    assert found["input"] == [3, 64, 64]


@with_torch
def test_what_is_not_known_is_named(put: Put) -> None:
    from torch import nn

    for model, says in (
        (nn.Conv2d(3, 4, 3, dilation=2), "a dilation of"),
        (nn.Conv2d(3, 4, (1, 3)), "a size of"),
        (nn.Sequential(nn.Conv2d(3, 4, 3), nn.GELU()), "got GELU in"),
        (nn.ConvTranspose2d(3, 4, 3), "got ConvTranspose2d in"),
    ):
        wrapped = nn.Sequential(model)
        with pytest.raises(WorkloadError, match=says):
            from_torch(put(lambda made=wrapped: made))
    shared = nn.Conv2d(3, 3, 1)
    with pytest.raises(WorkloadError, match="layers used twice"):
        from_torch(put(lambda: nn.Sequential(shared, shared)))
    with pytest.raises(WorkloadError, match="got int"):
        from_torch(put(lambda: 3))
    with pytest.raises(WorkloadError, match="it raised ZeroDivisionError"):
        from_torch(put(lambda: 1 // 0))


@pytest.mark.skipif(HAS_TORCH, reason="torch is installed")
def test_without_torch_it_is_asked_for() -> None:
    with pytest.raises(WorkloadError, match="install torch"):
        from_torch("anything:make")


@with_torch
def test_a_module_or_function_that_is_not_there() -> None:
    with pytest.raises(WorkloadError, match="No module named"):
        from_torch("no_such_module:make")
    with pytest.raises(WorkloadError, match="got no 'none' to call"):
        from_torch("json:none")
