"""What the user types becomes a queue, or a message that says what to type instead."""

import pytest

import queueproof
from queueproof.errors import QueueproofError
from queueproof.queues.resolve import blame, resolve
from tests.fix_places import REFERENCE
from tests.fix_queues import SOUND, Write


def test_public_names() -> None:
    """The surface is a handful of names, frozen here; lazy ones do not make every name exist."""
    expected = {
        *("Claim", "JobRow", "Operation", "Parameter", "Queue", "Result", "Row", "State", "Step"),
        *("Value", "Values", "Source", "Exit", "QueueError", "QueueproofError", "ServerError"),
        *("Client", "load", "__version__", "check", "replay", "Card"),
    }
    assert expected == set(queueproof.__all__)
    assert all(getattr(queueproof, name) is not None for name in expected)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = queueproof.nothing


def test_a_queue_has_the_name_that_its_user_gave(write: Write) -> None:
    """A file by its path; a class by `package.module:Class`, which needs no installation."""
    assert resolve(str(REFERENCE)).name == str(REFERENCE)
    name = f"{write(SOUND)}:Mine"
    queue = resolve(name)
    assert name == queue.name
    assert {"install", "enqueue", "claim"} == queue.offers


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "no name"),
        ("nowhere.sql", "nowhere.sql: No such file or directory"),
        ("no_such_module:Queue", "no module no_such_module"),
        ("queueproof.no_such:Queue", "no module queueproof.no_such"),
        ("queueproof.queues.model:Queu", "model has no Queu; did you mean 'Queue'"),
        ("json:Decoder", "json has no Decoder; did you mean 'JSONDecoder'"),
        ("json:loads", "loads is not derived from queueproof.Queue or queueproof.Client"),
        ("queueproof:Queue", "Queue has no install, which is required"),
        ("queueproof:Client", "Client has no install, which is required"),
    ],
)
def test_what_is_not_there_is_named(name: str, message: str) -> None:
    """Every mistake has one message, without a traceback."""
    with pytest.raises(QueueproofError, match=message):
        resolve(name)


MADE = "    def __init__(self"


@pytest.mark.parametrize(
    ("change", "line", "message"),
    [
        (("import Claim", "import Klaim"), 2, "ImportError: cannot import name 'Klaim'"),
        (("class Mine(Queue):", "class Mine(Queue)"), 4, "SyntaxError"),
        (("class Mine", "1 / 0\n\nclass Mine"), 4, "ZeroDivisionError: division by zero"),
        (("class Mine", "import no_such_module\n\nclass Mine"), 4, "No module named"),
        (("def claim(", "def claims("), 4, "has no claim, which is required; is it 'claims'"),
        (("worker)", "wrker)"), 12, "claim cannot be given 'wrker'; did you mean 'worker'"),
        (("Queue):\n", "Queue):\n    lease = 30\n"), 4, "lease: 30 is no timedelta"),
        (("Queue):\n", "Queue):\n    breaks = {'ordr': 'x'}\n"), 4, "did you mean order"),
        (("Queue):\n", "Queue):\n    promises = {3}\n"), 4, "promises: .3. is not a list"),
        (("Queue):\n", "Queue):\n    max_attempt = 4\n"), 5, "did you mean 'max_attempts'"),
        (("Queue):\n", "Queue):\n    leases: object\n"), 5, "did you mean 'lease'"),
        (("Queue):\n", "Queue):\n    odrer = 'fifo'\n"), 5, "did you mean 'order'"),
        (("Queue):\n", "Queue):\n\n    def hartbeat(self): ...\n"), 6, "you mean 'heartbeat'"),
        (("Queue):\n", f"Queue):\n{MADE}): self.maxAttempts = 4\n"), 4, "you mean 'max_attempts'"),
        (("Queue):\n", f"Queue):\n{MADE}, dsn): ...\n"), 4, "cannot be made without arguments"),
    ],
)
def test_a_mistake_in_a_class_is_shown_with_its_line(
    write: Write, change: tuple[str, str], line: int, message: str
) -> None:
    """The user's own line, not one of Python's import machinery or of ours."""
    module = write(SOUND.replace(*change))
    with pytest.raises(QueueproofError, match=message) as caught:
        resolve(f"{module}:Mine")
    assert str(caught.value).startswith(f"{module}.py:{line}: ")


def test_a_class_may_be_written_in_its_own_way(write: Write) -> None:
    """A list is as good as a frozenset; of names only a slip of the pen is refused."""
    module = write(SOUND.replace("Queue):\n", "Queue):\n    retry_on = ['40001', '55P03']\n"))
    assert frozenset({"40001", "55P03"}) == resolve(f"{module}:Mine").retry_on
    own = (
        "    lease = timedelta(seconds=30)\n    leases = 'jobs_leases'\n    _order = 'fifo'\n"
        "    release = 3\n    isolation_level = 2\n\n    def mail(self): ...\n\n"
        "    def job(self): ...\n\n    def claims(self): ...\n\n"
    )
    text = SOUND.replace("Queue):\n", f"Queue):\n{own}")
    module = write(f"from datetime import timedelta\n{text}")
    assert resolve(f"{module}:Mine").lease is not None


def test_an_exception_of_the_queue_is_its_own(write: Write) -> None:
    """Only a frame of the queue's own file makes an error the user's, at the user's line."""
    module = write(SOUND.replace('str(row["id"])', 'str(row["no_id"])', 1))
    queue = resolve(f"{module}:Mine")
    steps = queue.begin("enqueue")
    next(steps)
    with pytest.raises(KeyError) as caught:
        steps.send(queueproof.Result(rows=[{"id": queueproof.Value(b"1", 20)}]))
    assert str(blame(caught.value, queue)) == f"{module}.py:10: KeyError: 'no_id'"
    queue = resolve(f"{write(SOUND)}:Mine")
    with pytest.raises(ValueError, match="invalid literal") as ours:
        int("x")
    assert blame(ours.value, queue) is None
