"""What the doctor says of a machine, whatever is missing or broken on it."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

from queueproof.doctor import EXTRAS
from tests.fix_places import ROOT
from tests.fix_programs import finished


def doctor(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """Ask it in a process of its own."""
    return finished(sys.executable, "-m", "queueproof", "doctor", *arguments, env=environment)


def test_what_is_here_missing_or_broken_is_told(tmp_path: Path) -> None:
    """Each thing is here, missing or unusable, in its own words, with code 0; --json - is alone."""
    told = doctor({"PATH": str(tmp_path)}, "--json", "-")
    assert told.returncode == 0
    found = {one["name"]: one for one in json.loads(told.stdout)}
    assert found["embedded server"]["state"] == "here"
    assert found["embedded server"]["found"].startswith("PostgreSQL 18")
    assert "here     embedded server" in told.stderr
    _, _, rest = told.stderr.partition("missing  node")
    assert "worker.mjs" in rest.splitlines()[1]
    assert "get it: https://nodejs.org" in rest.splitlines()[2]
    node = tmp_path / "node"
    node.write_text("#!/bin/sh\necho no such library >&2; exit 1\n")
    node.chmod(0o755)
    told = doctor({"PATH": str(tmp_path), "QUEUEPROOF_POSTGRES": "a mistake"})
    assert told.returncode == 0
    assert "unusable node                 no such library\n" in told.stdout
    assert "unusable QUEUEPROOF_POSTGRES  unknown PostgreSQL source" in told.stdout
    assert told.stderr == ""


def test_its_extras_are_those_of_the_package() -> None:
    """Each extra that a user can install is looked for, by every distribution that it brings."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = {
        extra: tuple(one.partition(">")[0] for one in requirements)
        for extra, requirements in project["optional-dependencies"].items()
        if extra not in {"dev", "docs", "peers", "release", "test"}  # of this repository
    }
    assert wanted == {extra: distributions for extra, (distributions, _) in EXTRAS.items()}
