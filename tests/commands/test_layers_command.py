"""`perfmodel study layers`: what it prints, its JSON, its refusals; and its page and benchmark."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks.common import pages as made
from benchmarks.layers import __main__ as benchmark
from benchmarks.layers import report as layers_report
from perfmodel.cli import main
from perfmodel.workloads.layers import MULTIPLIES, place, total
from perfmodel.workloads.networks import NETWORKS, network


def run(*words: str, code: int = 0) -> str:
    done = CliRunner().invoke(main, ["study", "layers", *words])
    assert done.exit_code == code, done.output
    return done.output if code else done.stdout


@pytest.mark.parametrize("name", NETWORKS)
def test_json_of_every_network(name: str) -> None:
    found = json.loads(run(name, "--batch-size", "4", "--json"))
    totals, layers = found["totals"], found["layers"]
    cost = total(network(name), 4)
    assert totals["params"] == cost.parameters == sum(x["params"] for x in layers)
    assert totals["forward_flops"] == cost.forward_flops == sum(x["forward_flops"] for x in layers)
    assert totals["training_flops"] == cost.flops
    assert totals["training_flops"] == totals["forward_flops"] + totals["backward_flops"]
    assert sum(totals[f"{kind}_macs"] for kind in MULTIPLIES) == cost.macs
    assert totals["conv_share"] == totals["conv_macs"] / cost.macs
    assert [x["name"] for x in layers] == [x.name for x in place(network(name))]
    assert found["convention"]["flops"].startswith("2 per MAC; backward is twice forward")
    assert (found["paleo"], found["exchange"]) == (None, [])


def test_the_text_names_its_convention_and_the_share_of_convolutions() -> None:
    said = run("vgg19")
    assert "Convolutions are 99.37 % of the multiply-accumulates." in said
    assert "without bias" in said
    assert "143,667,240  19,632,062,464" in said
    assert "18 layers  relu" in said
    assert "conv1_1.relu" not in said
    assert "conv1_1.relu" in run("vgg19", "--all")


def test_a_measured_step_gives_the_percent_of_peak() -> None:
    words = ("resnet50", "--batch-size", "128", "--machine", "h200", "--json")
    at_peak = json.loads(run(*words))["paleo"]
    fitted = json.loads(run(*words, "--measured", "145.16ms"))["paleo"]
    assert fitted["ppp"] == pytest.approx(at_peak["training_s"] / 0.14516)
    assert fitted["training_s"] == pytest.approx(0.14516)
    forward = json.loads(run(*words, "--measured", "39.61ms", "--forward"))["paleo"]
    assert forward["forward_s"] == pytest.approx(0.03961)
    assert "PPP = 0.495" in " ".join(run(*words[:-1], "--measured", "145.16ms").split())


def test_the_exchange_of_gradients() -> None:
    words = ("vgg16", "--machine", "v100", "--ranks", "4", "--link", "10GB/s")
    found = json.loads(run(*words, "--json"))["exchange"]
    size = 4 * 138_357_544
    assert {x["scheme"]: x["sent_bytes"] for x in found} == {
        "OneToAll": 6 * size, "tree": 4 * size, "butterfly": 2 * size, "ring": 1.5 * size,
    }  # fmt: skip
    assert found[-1]["seconds"] == pytest.approx(1.5 * size / 10e9)
    assert "Gradients over 4 ranks" in run(*words)


def test_warnings_say_what_was_assumed() -> None:
    said = CliRunner().invoke(
        main, ["study", "layers", "alexnet", "--machine", "h200", "--ranks", "2"]
    )
    assert "nvlink at its peak; --link gives another rate" in said.stderr
    said = CliRunner().invoke(main, ["study", "layers", "alexnet", "--machine", "k80"])
    assert "board figures cover two GPUs" in said.stderr
    words = ["study", "layers", "alexnet", "--machine", "k80", "--measured", "1us"]
    assert "below that at the peaks" in CliRunner().invoke(main, words).stderr
    words = ["study", "layers", "alexnet", "--machine", "h100", "--ppp", "50"]
    assert "(PPP 50): --ppp is a fraction" in CliRunner().invoke(main, words).stderr


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("lenet",), 5, "mistral-7b; got 'lenet'"),
        (("vgg16", "--set", "image=64"), 5, "expected settings among none; got image"),
        (("model.onnx",), 5, "which cannot be read"),
        (("vgg16", "--ppp", "0.5"), 2, "give --machine NAME"),
        (("vgg16", "--machine", "h200", "--ppp", "0.5", "--measured", "1s"), 2, "got both"),
        (("vgg16", "--machine", "h200", "--link", "1GB/s"), 2, "give --ranks"),
        (("vgg16", "--machine", "h200", "--measured", "fast"), 2, "expected a number in s"),
        (("vgg16", "--machine", "h200", "--measured", "0s"), 2, "more than 0 s"),
        (("vgg16", "--machine", "h200", "--ppp", "-1"), 6, "above 0; got -1.0"),
        (("vgg16", "--machine", "k80", "--dtype", "float16"), 6, "peak of float16"),
        (("vgg16", "--machine", "k81"), 1, "got 'k81'"),
    ],
)
def test_refusals(words: tuple[str, ...], code: int, says: str) -> None:
    assert says in run(*words, code=code)


# --- the page and the benchmark


def test_the_page_shows_what_is_made() -> None:
    for page, parts in layers_report.pages(benchmark.RESULTS).items():
        for name, part in parts.items():
            wanted = made.shorten(part, page, layers_report.SHOWN, name)
            shown = made.section(page, layers_report.SCRIPT, name)
            assert shown == wanted.text.strip(), "run: python -m benchmarks.layers --document"
            assert wanted.differing() == []


def test_paleo_on_measured_steps() -> None:
    """Near the fitted batch it holds; a few images take the host's time, which it does not know."""
    result = json.loads(layers_report.RESNETS.read_text(encoding="utf-8"))["time"]
    errors = layers_report.paleo_errors(result)
    assert {(e["net"], e["math"]) for e in errors} >= {("resnet18", "fp32"), ("resnet50", "tf32")}
    for e in errors:
        assert 0 < e["ppp"] < 1
        if e["batch"] == layers_report.FITTED:
            assert e["error"] == pytest.approx(0, abs=1e-12)
        if e["batch"] == 256:
            assert abs(e["error"]) < 0.1
        if e["batch"] == 2:
            assert e["error"] < -0.5


def test_measured_layers_become_tables() -> None:
    """Two layers' worth of time on one network, made up; a problem is named."""
    net = "alexnet"
    count = len(place(network(net)))
    cell: dict[str, Any] = {"net": net, "batch": 32, "math": "fp32"}
    layers = [1e-3, *[1e-4] * (count - 1)]
    rows = [
        {**cell, "mode": "whole", "total_s": 2e-3, "host_s": 1e-3},
        {**cell, "mode": "synchronized", "total_s": 5e-3, "layers_s": layers},
        {**cell, "mode": "alone", "total_s": sum(layers), "layers_s": layers},
        *(
            {**cell, "batch": b, "mode": "training", "total_s": b * 1e-3, "forward_s": 1e-3,
             "backward_s": 2e-3, "update_s": 1e-4, "host_s": 1e-3}
            for b in (32, 128)
        ),
    ]  # fmt: skip
    about = {"device": "NVIDIA H200", "torch": "2", "cudnn": 9}
    read = {
        "time": {"rows": rows, "about": about, "date": "2026-11-21T", "command": "c",
                 "problems": ["vgg19 1 fp32: not begun"]}
    }  # fmt: skip
    said = layers_report.measured(read)
    assert "| alexnet | 32 | fp32 | – | 2.90 ms | 2.00 ms | – | 5.00 ms | 2.50 |" in said
    assert "Not measured: vgg19 1 fp32: not begun." in said
    assert f"conv1 | {100 * 1e-3 / sum(layers):.1f} %" in said
    assert "| alexnet | fp32 | 32 | 32.0 ms |" in said


@pytest.mark.parametrize("tiny", [True, False])
def test_cells_of_the_benchmark_are_known_networks(tiny: bool) -> None:
    cells = list(benchmark.cells(tiny))
    assert {c[0] for c in cells} <= set(NETWORKS)
    assert {mode for c in cells for mode in c[3]} == {*benchmark.FORWARD, "training"}
    assert len(set(cells)) == len(cells)


def test_a_part_keeps_what_it_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cell that fails is named, the others stay, an error of the part ends it only."""
    pytest.importorskip("torch")

    def part(args: Any, keep: Any) -> None:
        keep({"net": "a", "total_s": 1.0})
        keep({"net": "b", "problem": "out of memory"})
        raise RuntimeError("lost")

    monkeypatch.setitem(benchmark.PARTS, "time", part)
    found = benchmark.part_of("time", None)
    assert found["rows"] == [{"net": "a", "total_s": 1.0}]
    assert found["problems"] == ["b: out of memory", "ended by RuntimeError('lost')"]


def test_torch_modules_have_the_layers_shapes() -> None:
    torch = pytest.importorskip("torch")
    from benchmarks.common.torch_nets import Network

    with torch.device("meta"):
        made = Network(network("googlenet"))
        shapes: list[tuple[int, ...]] = []

        def see(_: int, layer: Any, inputs: Any) -> Any:
            output = layer(*inputs)
            shapes.append(tuple(output.shape[1:]))
            return output

        made(torch.empty(2, 3, 224, 224), see)
    for x, shape in zip(place(network("googlenet")), shapes, strict=True):
        padded = (*shape, 1, 1)[:3]
        assert padded == (x.shape.channels, x.shape.height, x.shape.width)
