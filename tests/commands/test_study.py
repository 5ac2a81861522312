"""`perfmodel study`: its commands, and what their earlier names say."""

from __future__ import annotations

import pytest

from perfmodel.commands.study import COMMANDS
from support.cli import perfmodel, succeeds


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "predict"])
def test_an_earlier_name_names_the_new_one(name: str) -> None:
    said = perfmodel(name, "--help")
    assert said.exit_code == 2
    assert said.stdout == ""
    last = said.stderr.splitlines()[-1]
    assert last == (
        f"Error: expected a command; got '{name}', which is now 'perfmodel study {name}'"
    )


def test_a_model_is_of_the_study_s_predict() -> None:
    said = perfmodel("predict", "--model", "model.json", "-H", 512)
    assert said.exit_code == 2
    assert said.stderr.splitlines()[-1] == (
        "Error: expected REPORTs or --decoder; got --model, which is now of "
        "'perfmodel study predict'"
    )


def test_help_lists_the_studies() -> None:
    text = succeeds("study", "--help")
    assert all(f"  {name} " in text for name in COMMANDS)
