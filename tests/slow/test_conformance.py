"""The matrix is made by processes, each of which a queue may kill; what they found is kept."""

import os
import signal
from pathlib import Path

from queueproof.report.card import Card, Judgement
from scenarios.matrix import REMARKS
from workshop.conformance import Failure, Row, _examine_all, _put, _state, examine


def test_a_queue_that_cannot_be_judged_takes_no_other_with_it(tmp_path: Path) -> None:
    """A queue's error is told beside the others, also where it has killed its process."""
    (tmp_path / "peers").mkdir()
    (tmp_path / REMARKS).touch()
    for name in ("one", "two"):
        (tmp_path / f"{name}.sql").write_text(f"-- name: schema\nnonsense {name};\n")
    told = {found.name: found for found in examine(["one", "two"], tmp_path)}
    for name in ("one", "two"):
        found = told[name]
        assert isinstance(found, Failure)
        assert f"{name}.sql:" in found.message
    judged = {one.name: one for one in _examine_all(["one", "deadly", "two"], _dies, None)}
    deadly = judged.pop("deadly")
    assert judged == {name: Failure(name, "judged") for name in ("one", "two")}
    assert isinstance(deadly, Failure)
    assert "its process ended" in deadly.message


def test_a_card_is_made_once_from_the_same(tmp_path: Path) -> None:
    """What was interrupted goes on where it ended; an edited queue is judged anew."""
    (tmp_path / "peers").mkdir()
    (tmp_path / REMARKS).touch()
    path, kept = tmp_path / "one.sql", tmp_path / "cards"
    path.write_text("-- breaks: order\nnonsense", encoding="utf-8")
    found = (Judgement("order", "broken", "because", "a story", "token", {"pairs": 3}),)
    made = Row("one", Card("one.sql", "PostgreSQL", 0, 1.0, found), "order")
    _put(kept, _state(tmp_path, None), made, tmp_path)
    assert [made] == list(examine(["one"], tmp_path, kept=kept))
    path.write_text("-- breaks: order\nother nonsense", encoding="utf-8")
    assert isinstance(next(examine(["one"], tmp_path, kept=kept)), Failure)


def _dies(name: str) -> Failure:
    """Judge a queue, or kill the process that does."""
    if name == "deadly":
        os.kill(os.getpid(), signal.SIGKILL)
    return Failure(name, "judged")
