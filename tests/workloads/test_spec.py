"""A user's TOML: the example, the same numbers as the built-in, and every error."""

from __future__ import annotations

import re
import tomllib
from importlib import resources
from pathlib import Path

import pytest

from benchmarks.common.folders import ROOT
from perfmodel.base.errors import WorkloadError
from perfmodel.programs.mlp.mlp import mlp
from perfmodel.workloads import Workload, load
from perfmodel.workloads.formulas import formulas
from perfmodel.workloads.spec import MOST_RANGES, MOST_SYMBOLS

EXAMPLE = resources.files("perfmodel.workloads").joinpath("examples", "pytorch_mlp.toml")
DOCS = ROOT / "docs" / "workloads.md"
HEAD = "[symbols]\nB = 'batch'\np = 'ranks'\n"


def written(folder: Path, text: str) -> Path:
    path = folder / "net.toml"
    path.write_text(text, encoding="utf-8")
    return path


def example() -> Workload:
    with resources.as_file(EXAMPLE) as path:
        return load(path)


# --- what is read ---------------------------------------------------------------------------


def test_example_by_hand() -> None:
    """B=3000, p=2 and defaults 784, 512, 10, 4: k=1500, n=407050."""
    workload = example()
    counts = workload.evaluate({"B": 3000, "p": 2})
    assert list(counts) == ["forward", "backward", "optimizer"] == list(workload.phases)
    assert counts["forward"].flops == 2 * 1500 * 512 * 794 + 2 * 1500 * 512 + 60 * 1500
    assert counts["backward"].peer_bytes == 1_628_200
    assert counts["backward"].mpi_bytes == counts["backward"].mpi_message_bytes == 0
    assert counts["optimizer"].dram_bytes == 3 * 407_050 * 4
    assert workload.counting == "spec"
    assert workload.batch_range == "batch iteration"
    with pytest.raises(WorkloadError, match="take B=3003"):
        workload.evaluate({"B": 3000, "p": 7})
    with pytest.raises(WorkloadError, match="batch size of all ranks together"):
        workload.evaluate({"p": 7})


def test_example_has_the_gemms_of_the_built_in() -> None:
    values = {"D": 784, "H": 512, "C": 10, "B": 3000, "p": 2, "b": 4}
    gemms = [name for name in mlp().ranges if "GEMM" in name]
    phases = ["forward", "backward"]
    ours = example().total(phases).subs(values).flops
    assert ours == pytest.approx(mlp().total(gemms).subs(values).flops, rel=5e-3)


def test_example_prints() -> None:
    for fmt in ("text", "json"):  # which has the LaTeX of every formula, too
        assert "optimizer" in formulas(example(), fmt, {"B": 3000, "p": 2})


def test_documentation_shows_a_file_that_loads(tmp_path: Path) -> None:
    block = re.findall(r"```toml\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)[0]
    assert load(written(tmp_path, block)) == load(written(tmp_path, EXAMPLE.read_text("utf-8")))


def test_the_built_in_can_be_written_as_a_file(tmp_path: Path) -> None:
    """Every formula of the built-in MLP, in a file, counts the same."""
    built_in = mlp("full")
    lines = ["[symbols]", *(f"{name} = ''" for name in built_in.symbols), "[derived]"]
    lines += [
        f"{s.name} = '{s.definition.text}'" for s in built_in.derived.values() if s.definition
    ]
    keys = {"flops": "flops", "pci": "pci_bytes", "mpi": "mpi_bytes", "dram": "dram_bytes"}
    keys |= {"mpi_message": "mpi_message_bytes", "pci_message": "pci_message_bytes"}
    for name, work in built_in.ranges.items():
        lines.append(f'[ranges."{name}"]')
        lines += [f"{key} = '{getattr(work, attribute).text}'" for key, attribute in keys.items()]
    values = {"D": 784, "H": 512, "C": 10, "B": 3000, "p": 2, "b": 4}
    read = load(written(tmp_path, "\n".join(lines)))
    assert read.ranges == built_in.ranges
    assert read.evaluate(values) == built_in.evaluate(values)


def test_defaults(tmp_path: Path) -> None:
    workload = load(
        written(tmp_path, HEAD + "[ranges.copy]\npci = 'B/p'\nflops = 12\ndram = 0.5\n")
    )
    assert workload.name == "net"
    assert workload.source.endswith("net.toml")
    assert (workload.batch_range, workload.phases) == ("", ())
    counts = workload.evaluate({"B": 6, "p": 2})["copy"]
    assert (counts.pci_bytes, counts.pci_message_bytes) == (3, 3)
    assert (counts.flops, counts.dram_bytes) == (12, 0.5)
    assert (counts.mpi_bytes, counts.mpi_message_bytes) == (0, 0)


def test_messages_may_differ_from_traffic(tmp_path: Path) -> None:
    text = HEAD + "[ranges.copy]\npci = '0'\npci_message = 'B'\n"
    counts = load(written(tmp_path, text)).evaluate({"B": 6, "p": 2})["copy"]
    assert (counts.pci_bytes, counts.pci_message_bytes) == (0, 6)


def test_a_byte_order_mark_and_a_string_path(tmp_path: Path) -> None:
    path = written(tmp_path, "\ufeff" + HEAD + "[ranges.r]\nflops = 'B'\n")
    assert load(str(path)).evaluate({"B": 6, "p": 2})["r"].flops == 6


def test_derived_symbols_build_on_those_above(tmp_path: Path) -> None:
    text = HEAD + "[derived]\nk = 'B/p'\nm = { formula = '2*k', meaning = 'm' }\n"
    workload = load(written(tmp_path, text + "[ranges.r]\nflops = 'm*k'\n"))
    assert workload.evaluate({"B": 6, "p": 2})["r"].flops == 18
    assert workload.derived["m"].meaning == "m"


# --- what is refused ------------------------------------------------------------------------

RANGE = "[ranges.r]\nflops = 'B'\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "expected at least one table [ranges.NAME]; got none; add it"),
        (HEAD, "expected at least one table [ranges.NAME]"),
        ("name = ", "expected a TOML file; got something else"),
        ("a = " + "[" * 5000, "expected a TOML file; got something else"),
        ("a = " + "9" * 5000, "expected a TOML file; got something else"),
        ("nam = 'x'\n" + HEAD + RANGE, "expected keys among name, source, batch_range, phases"),
        ("name = 3\n" + HEAD + RANGE, "key 'name': expected a text of at most 1000 characters"),
        (f"name = '{'x' * 1001}'\n" + HEAD + RANGE, "key 'name': expected a text of at most 1000"),
        ("symbols = 3\n" + RANGE, "expected a table [symbols] of at most 100 entries; got 3"),
        ("ranges = ['r']\n", "expected a table [ranges] of at most 1000 entries; got ['r']"),
        (HEAD + "[ranges]\nr = 'B'\n", "range 'r': expected a table with keys among flops, pci,"),
        (HEAD + "[ranges.'']\nflops = 'B'\n", "range names of 1 to 200 characters; got 0"),
        (HEAD + f"[ranges.{'r' * 201}]\n", "range names of 1 to 200 characters; got 201"),
        (
            HEAD + "[ranges.r]\nflop = 'B'\n",
            "range 'r': expected keys among flops, pci, mpi, dram, mpi_message, pci_message, peer, "
            "peer_message; got 'flop'; rename or remove it",
        ),
        (
            HEAD + "[ranges.r]\nflops = true\n",
            "range 'r', key 'flops': expected a formula in quotes",
        ),
        (HEAD + "[ranges.r]\nflops = ['B']\n", "key 'flops': expected a formula in quotes"),
        (HEAD + "[ranges.r]\nflops = inf\n", "expected declared symbols (B, p); got 'inf'"),
        (
            HEAD + "[ranges.'a b']\ndram = '2*Z'\n",
            "range 'a b', key 'dram': expected declared symbols (B, p); got 'Z' in '2*Z'; declare "
            "or respell it",
        ),
        (
            HEAD + "[ranges.r]\nflops = '''__import__(\"os\").system(\"x\")'''\n",
            "range 'r', key 'flops': expected only declared symbols, numbers, + - * / // **, "
            "parentheses and ceil, floor, log2, max, min, sqrt; got "
            "'__import__(\"os\").system(\"x\")'",
        ),
        (HEAD + "[ranges.r]\nflops = '9**9**9'\n", "got the exponent '9**9' in '9**9**9'"),
        (HEAD + "[derived]\nk = 'q'\n" + RANGE, "derived symbol 'k': expected declared symbols"),
        (HEAD + "[derived]\nk = 'k'\n" + RANGE, "derived symbol 'k': expected declared symbols"),
        (HEAD + "[derived]\nB = 'p'\n" + RANGE, "got it in [symbols], too; rename one"),
        (HEAD + "[derived]\nk = {}\n" + RANGE, "symbol 'k', key 'formula': expected a formula"),
        (HEAD + "[derived]\nk = { text = 'B' }\n" + RANGE, "expected keys among formula, meaning"),
        (HEAD + "[derived]\n'k-1' = 'B'\n" + RANGE, "got 'k-1'; rename it"),
        (HEAD + "lambda = ''\n" + RANGE, "neither a Python keyword nor one of ceil"),
        (HEAD + "max = ''\n" + RANGE, "got 'max'; rename it"),
        (HEAD + "'B\u0131' = ''\n" + RANGE, "expected symbols of ASCII letters"),
        (HEAD + "q = 3\n" + RANGE, "symbol 'q': expected a table with keys among meaning"),
        (HEAD + "q = { unit = 3 }\n" + RANGE, "symbol 'q': key 'unit': expected a text"),
        (HEAD + "q = { value = 3 }\n" + RANGE, "symbol 'q': expected keys among meaning, unit"),
        (HEAD + "q = { default = 0 }\n" + RANGE, "symbol 'q', key 'default': expected a whole"),
        (HEAD + "q = { default = 1.5 }\n" + RANGE, "for q; got 1.5"),
        ("divisible = 3\n" + HEAD + RANGE, 'expected pairs of symbols such as [["B", "p"]]'),
        ("divisible = ['B', 'p']\n" + HEAD + RANGE, "got 'B'; declare both in [symbols]"),
        ("divisible = [['B', 'q']]\n" + HEAD + RANGE, "got ['B', 'q']; declare both"),
        ("divisible = [['B', 3]]\n" + HEAD + RANGE, "got ['B', 3]; declare both"),
        ("phases = 'r'\n" + HEAD + RANGE, "key 'phases': expected names of the ranges directly"),
        ("phases = [3]\n" + HEAD + RANGE, "got [3]; put them in quotes"),
    ],
)  # fmt: skip
def test_wrong_files(tmp_path: Path, text: str, said: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(WorkloadError) as caught:
        load(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert said in message
    assert message.isprintable()


def test_unreadable_files(tmp_path: Path) -> None:
    for path in (tmp_path / "missing.toml", tmp_path, tmp_path / "a\0b"):
        with pytest.raises(WorkloadError, match="expected a workload's TOML file; got none"):
            load(path)
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe\x00SQLite format 3\x00")
    with pytest.raises(WorkloadError, match="expected a TOML file; got something else"):
        load(binary)
    large = tmp_path / "large.toml"
    large.write_bytes(b"#" * 1_000_001)
    with pytest.raises(WorkloadError, match="more than 1000000 bytes"):
        load(large)


def test_counts_are_limited(tmp_path: Path) -> None:
    many = HEAD + "".join(f"[ranges.r{i}]\nflops = 'B'\n" for i in range(MOST_RANGES + 1))
    with pytest.raises(WorkloadError, match="at most 1000 entries; got 1001 entries"):
        load(written(tmp_path, many))
    most = HEAD + "".join(f"[ranges.r{i}]\nflops = 'B/p'\n" for i in range(MOST_RANGES))
    workload = load(written(tmp_path, most))
    assert workload.total().subs({"B": 3, "p": 2}).flops == 1500
    symbols = "[symbols]\n" + "".join(f"s{i} = ''\n" for i in range(MOST_SYMBOLS + 1)) + RANGE
    with pytest.raises(WorkloadError, match=r"table \[symbols\] of at most 100 entries"):
        load(written(tmp_path, symbols))


def test_example_is_plain_toml() -> None:
    assert set(tomllib.loads(EXAMPLE.read_text("utf-8"))["ranges"]) == {
        "forward",
        "backward",
        "optimizer",
    }
