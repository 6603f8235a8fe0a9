"""An examination lends a hostile queue's code no superuser's rights."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from queueproof.examine.check import first_flaw
from queueproof.guarantees.catalogue import select
from queueproof.postgres import Server
from queueproof.run.open import open_lab
from tests.fix_hostile import HOSTILE, hostile


@pytest.mark.parametrize("name", HOSTILE)
def test_no_part_of_an_examination_lends_its_rights(own: Server, seen: Path, name: str) -> None:
    """Filling, measuring, racing and dropping run as the queue's role."""
    with psycopg.connect(str(own._admin)) as connection:
        connection.execute("ALTER ROLE queueproof NOSUPERUSER")  # an attack before has succeeded
    with open_lab(hostile(name, seen), own) as lab:
        first_flaw(lab, select(["claim-limit", "steady-cost", "non-blocking"]), profile="glance")
    assert not seen.exists()
