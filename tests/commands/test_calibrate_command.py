"""`perfmodel study calibrate --workload`: sizes of --set and --index, defaults that are refused."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from benchmarks.common.folders import PROFILES
from perfmodel.cli import main

REPORTS = [str(PROFILES / "ddp" / f"ddp_p2_{n}.sqlite.xz") for n in ("H256_B3000", "H512_B12000")]
FORMULAS = """
name = "mine"
source = "made up"
batch_range = "batch iteration"
[symbols]
N = { meaning = "rows", unit = "rows", default = 100 }
[ranges.forward]
flops = "2*N**2"
dram = "4*N"
"""


@pytest.fixture
def formulas(tmp_path: Path) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(FORMULAS)
    return path


def calibrate(formulas: Path, *arguments: str) -> Result:
    out = ["-o", str(formulas.with_suffix(".json")), "--workload", str(formulas)]
    return CliRunner().invoke(main, ["study", "calibrate", *REPORTS, *out, *arguments])


def sizes_of(formulas: Path, *arguments: str) -> list[int]:
    done = calibrate(formulas, *arguments)
    assert done.exit_code == 0, done.output
    model = formulas.with_suffix(".json")
    return [run["sizes"]["N"] for run in json.loads(model.read_text())["runs"]]


def test_sizes_come_from_a_list_or_an_index(formulas: Path, tmp_path: Path) -> None:
    assert sizes_of(formulas, "--set", "N=256,512") == [256, 512]
    index = tmp_path / "index.json"
    rows = [
        {"file": Path(r).name, "sizes": {"N": n}} for r, n in zip(REPORTS, (256, 512), strict=True)
    ]
    index.write_text(json.dumps(rows))
    assert sizes_of(formulas, "--index", str(index)) == [256, 512]
    assert sizes_of(formulas, "--index", str(index), "--set", "N=7,8") == [7, 8]


def test_two_reports_do_not_get_one_default(formulas: Path) -> None:
    done = calibrate(formulas)
    assert done.exit_code != 0
    assert "N = 100 for both; give --set N=V1,V2,..." in done.output
    assert sizes_of(formulas, "--set", "N=100") == [100, 100]  # it is said


def test_a_list_has_a_value_for_each_report(formulas: Path) -> None:
    done = calibrate(formulas, "--set", "N=1,2,3")
    assert done.exit_code == 2
    assert "one for each of the 2 reports" in done.output
