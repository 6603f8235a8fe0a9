"""What is published, for CI and as pages: its commands are run, and do what it says."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.fix_commands import without_progress
from tests.fix_places import ROOT
from tests.fix_programs import finished
from tests.fix_queues import RACES, queue_file

SNIPPETS = ROOT / "docs" / "ci"
STEP = ("bash", "-eo", "pipefail", "-c")  # as a CI runner does
_BLOCK = re.compile(
    r'^```(?P<kind>\w+)(?: title="(?P<title>[^"]+)")?\n(?P<text>.*?)^```$', re.MULTILINE | re.DOTALL
)


def read(path: Path) -> Any:  # noqa: ANN401 - whatever the YAML holds
    """A file's YAML."""
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def run(
    command: str, directory: Path, shell: Sequence[str] = STEP, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a command with this queueproof ahead on PATH."""
    scripts = Path(sys.executable).parent
    path = f"{scripts}{os.pathsep}{os.environ['PATH']}"
    found = {**os.environ, "PATH": path, **environment}
    return finished(*shell, command, cwd=directory, env=found, timeout=1200)


def test_the_action_checks_a_queue_and_leaves_its_reports(tmp_path: Path) -> None:
    """Its check step, as it stands, exits 1 on a broken queue, annotates the line and reports."""
    steps = {step.get("name"): step for step in read(ROOT / "action.yml")["runs"]["steps"]}
    step = steps["Check the queue"]
    (tmp_path / "queueproof").symlink_to(Path(sys.executable).parents[1])
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    (checkout / "q.sql").write_text(queue_file(claim=RACES))
    ran = run(
        step["run"],
        checkout,
        QUEUE="q.sql",
        PROFILE="quick",
        REPORTS="reports",
        ARGUMENTS="--only single-claim --fail-fast",
        QUEUEPROOF_POSTGRES="embedded",
        RUNNER_TEMP=str(tmp_path),
        GITHUB_ACTIONS="true",
        GITHUB_WORKSPACE=str(checkout),
        GITHUB_STEP_SUMMARY=str(tmp_path / "summary"),
    )
    assert (ran.returncode, without_progress(ran.stderr)) == (1, "")
    place = json.loads((checkout / "reports" / "card.json").read_text())["guarantees"][0]["place"]
    title = "title=queueproof%3A single-claim"
    assert f"::error file=q.sql,line={place['line']},{title}::" in ran.stdout
    assert "❌ broken: q.sql" in (tmp_path / "summary").read_text()
    reports = sorted(path.name for path in (checkout / "reports").iterdir())
    assert reports == ["card.html", "card.json", "junit.xml"]


@pytest.mark.sample
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
    command = f"queueproof init jobs.sql && {job['script'][-1]} --only server-clock --profile quick"
    ran = run(command, tmp_path, QUEUEPROOF_POSTGRES="embedded")
    assert ran.returncode == 0, ran.stderr
    kept = {*job["artifacts"]["paths"], job["artifacts"]["reports"]["junit"]}
    assert kept <= {path.name for path in tmp_path.iterdir()}


def said(output: str) -> re.Pattern[str]:
    """What fits the output of a page, where `...` is anything, of a line or of whole lines."""
    return re.compile(
        "".join(
            "(?:.*\n)*?" if line == "...\n" else ".*".join(map(re.escape, line.split("...")))
            for line in output.splitlines(keepends=True)
        )
    )


@pytest.mark.parametrize(("page", "commands"), [("tutorial.md", 9), ("howto/python.md", 1)])
def test_a_page_does_what_it_says(page: str, commands: int, tmp_path: Path) -> None:
    """Its files, commands, outputs and exit codes are so, from the first to the last."""
    code, seen = 0, 0
    for block in _BLOCK.finditer((ROOT / "docs" / page).read_text(encoding="utf-8")):
        match block["kind"]:
            case "sql" | "python":
                (tmp_path / block["title"]).write_text(block["text"], encoding="utf-8")
            case "text":
                assert block["text"] in (tmp_path / block["title"]).read_text(encoding="utf-8")
            case "console":
                for command, output in re.findall(
                    r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block["text"], re.MULTILINE
                ):
                    ran = run(command.replace("$?", str(code)), tmp_path, ("sh", "-c"))
                    code, seen = ran.returncode, seen + 1
                    shown = f"$ {command}\n{ran.stdout}{ran.stderr}"
                    assert said(output).fullmatch(ran.stdout), shown
    assert seen == commands
