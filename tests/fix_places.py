"""Where things are in the repository, and the queues that stand there."""

from pathlib import Path

from queueproof.queues.sqlfile import load

ROOT = Path(__file__).parents[1]
STRATEGIES = ROOT / "strategies"
BROKEN = STRATEGIES / "broken"
TEMPLATES = ROOT / "harness" / "queueproof" / "queues" / "templates"
WORKER = TEMPLATES / "worker.py"  # that `queueproof init` writes
REFERENCE = STRATEGIES / "skip_locked.sql"
DOUBLE_CLAIM = BROKEN / "single_claim_select_then_update.sql"


def text_of(name: str) -> str:
    """The text of a queue file in strategies/, with what it extends."""
    return load(STRATEGIES / f"{name}.sql").whole


SKIP_LOCKED = text_of("skip_locked")


def reference(*changes: str) -> str:
    """The reference's text with other words: what stands there once, and what instead, in turn."""
    text = SKIP_LOCKED
    for old, new in zip(changes[::2], changes[1::2], strict=True):
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text
