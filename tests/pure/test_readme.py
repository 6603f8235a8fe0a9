"""What the README says is so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from queueproof.cli import run
from queueproof.errors import Exit
from queueproof.guarantees.catalogue import CATALOGUE

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


def test_every_exit_code_has_a_line() -> None:
    """Those of the command line, and two more for the signals that end it."""
    told = re.findall(r"^\| ([\d, ]+) \|", README, re.MULTILINE)
    assert {*Exit, 129, 143} == {int(code) for line in told for code in line.split(",")}


def test_guarantees_and_options_are_spelt_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    """Each option that it names is one, and so is each guarantee that an option is given."""
    run(["check", "--help"])
    known = set(re.findall(r"--[a-z-]+", capsys.readouterr().out))
    lines = [line for line in re.findall(r"`([^`\n]+)`", README) if line.startswith("--")]
    named = {line.split()[0] for line in lines if not line.startswith("--queueproof")}
    assert named
    assert named <= known
    ids = ",".join(re.findall(r"--(?:only|skip|require) ([\w,-]+)", README)).split(",")
    assert set(ids) <= set(CATALOGUE)
