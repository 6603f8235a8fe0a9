"""Broken queues mended by a change of their own SQL, that was checked."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from queueproof.examine.check import check_queue, first_flaw
from queueproof.guarantees.catalogue import CATALOGUE, select
from queueproof.mend.search import mend
from queueproof.postgres import open_server
from queueproof.queues.sqlfile import load
from queueproof.run.open import open_lab

BROKEN = Path(__file__).parents[2] / "strategies" / "broken"
MENDED = {
    "fencing_id_only": ("fencing", "AND attempts = :attempt"),
}


@pytest.mark.parametrize("name", MENDED)
def test_a_broken_queue_is_mended_by_a_few_lines(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its diff makes the guarantee hold and breaks no other; the file is left as it was."""
    monkeypatch.chdir(tmp_path)
    guarantee, form = MENDED[name]
    path = Path(shutil.copy(BROKEN / f"{name}.sql", tmp_path / "queue.sql"))
    text = path.read_text(encoding="utf-8")
    queue, wanted = load("queue.sql"), select([guarantee])
    with open_server("embedded") as server, open_lab(queue, server) as lab:
        card = check_queue(lab, wanted, profile="mutants", named=[guarantee])
    mended = mend(queue, card, postgres=None, profile="glance")
    assert mended.mended == [guarantee]
    assert mended.lines <= 4
    assert any(form in line for line in mended.diff.splitlines() if line.startswith("+"))
    assert mended.card is not None
    assert len(mended.card.guarantees) == len(CATALOGUE)
    assert mended.card.verdict != "broken"
    assert path.read_text(encoding="utf-8") == text
    git = shutil.which("git")
    assert git
    subprocess.run([git, "apply"], input=mended.diff, text=True, check=True)  # noqa: S603 - git's own
    with open_server("embedded") as server, open_lab(load("queue.sql"), server) as lab:
        assert first_flaw(lab, wanted, profile="mutants") is None
