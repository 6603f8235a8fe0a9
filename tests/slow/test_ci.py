"""What is published for CI: it is YAML, and its commands do what they say."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from queueproof.queues.sqlfile import load
from tests.fix_places import DOUBLE_CLAIM, ROOT
from tests.fix_programs import finished

SNIPPETS = ROOT / "docs" / "ci"


def read(path: Path) -> Any:  # noqa: ANN401 - whatever the YAML holds
    """A file's YAML."""
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def run(command: str, directory: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a step as a CI runner does, with this queueproof ahead on PATH."""
    scripts = Path(sys.executable).parent
    path = f"{scripts}{os.pathsep}{os.environ['PATH']}"
    step = ("bash", "-eo", "pipefail", "-c", command)
    found = {**os.environ, "PATH": path, **environment}
    return finished(*step, cwd=directory, env=found, timeout=300)


@pytest.mark.sample
def test_the_action_checks_a_queue_and_leaves_its_reports(tmp_path: Path) -> None:
    """Its check step, as it stands, exits 1 on a broken queue, annotates the line and reports."""
    steps = {step.get("name"): step for step in read(ROOT / "action.yml")["runs"]["steps"]}
    step = steps["Check the queue"]
    (tmp_path / "queueproof").symlink_to(Path(sys.executable).parents[1])
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    (checkout / "q.sql").write_text(load(DOUBLE_CLAIM).whole)
    ran = run(
        step["run"],
        checkout,
        QUEUE="q.sql",
        PROFILE="quick",
        REPORTS="reports",
        ARGUMENTS="--only single-claim",
        QUEUEPROOF_POSTGRES="embedded",
        RUNNER_TEMP=str(tmp_path),
        GITHUB_ACTIONS="true",
        GITHUB_WORKSPACE=str(checkout),
        GITHUB_STEP_SUMMARY=str(tmp_path / "summary"),
    )
    # A slow machine is told now and then what is being done.
    told = re.sub(r"^queueproof: after [\d.]+ s: .*\n", "", ran.stderr, flags=re.MULTILINE)
    assert (ran.returncode, told) == (1, "")
    place = json.loads((checkout / "reports" / "card.json").read_text())["guarantees"][0]["place"]
    title = "title=queueproof%3A single-claim"
    assert f"::error file=q.sql,line={place['line']},{title}::" in ran.stdout
    assert "❌ broken: q.sql" in (tmp_path / "summary").read_text()
    reports = sorted(path.name for path in (checkout / "reports").iterdir())
    assert reports == ["card.html", "card.json", "junit.xml"]


@pytest.mark.parametrize("name", ["github.yml", "github-services.yml"])
def test_a_snippet_gives_the_action_what_it_takes(name: str) -> None:
    """Each workflow is YAML, and every input that it sets is one of the action's."""
    inputs = read(ROOT / "action.yml")["inputs"]
    used = read(SNIPPETS / name)["jobs"]["queue"]["steps"][-1]
    assert used["uses"].partition("@")[0].endswith("/queueproof")
    assert set(used["with"]) <= set(inputs)
    assert {n for n, one in inputs.items() if one.get("required")} <= set(used["with"])


def test_the_gitlab_job_s_command_writes_what_the_job_keeps(tmp_path: Path) -> None:
    """The job's check, as it stands, passes the template and leaves every file of `artifacts`."""
    job = read(SNIPPETS / "gitlab-ci.yml")["queue"]
    command = f"queueproof init jobs.sql && {job['script'][-1]} --only backoff --profile quick"
    ran = run(command, tmp_path, QUEUEPROOF_POSTGRES="embedded")
    assert ran.returncode == 0, ran.stderr
    kept = {*job["artifacts"]["paths"], job["artifacts"]["reports"]["junit"]}
    assert kept <= {path.name for path in tmp_path.iterdir()}
