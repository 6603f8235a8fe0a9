"""Pages whose commands are run, and print what the page says."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from tests.fix_places import ROOT
from tests.fix_programs import finished

_BLOCK = re.compile(
    r'^```(?P<kind>\w+)(?: title="(?P<title>[^"]+)")?\n(?P<text>.*?)^```$', re.MULTILINE | re.DOTALL
)


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
    """Its files, commands, outputs and exit codes are so, from the first to the last.

    The tutorial takes most of a minute: its reader has a queue checked and mended, and so it is.
    """
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path}
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
                    typed = ("sh", "-c", command.replace("$?", str(code)))
                    ran = finished(*typed, cwd=tmp_path, env=environment, timeout=1200)
                    code, seen = ran.returncode, seen + 1
                    shown = f"$ {command}\n{ran.stdout}{ran.stderr}"
                    assert said(output).fullmatch(ran.stdout), shown
    assert seen == commands
