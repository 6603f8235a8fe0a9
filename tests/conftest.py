"""What holds for all tests; the fixtures stand in fix_*.py, by what they are of."""

import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

pytest_plugins = [
    f"tests.fix_{what}"
    for what in ("programs", "server", "labs", "queues", "commands", "hostile", "wire", "loads")
]

# The same examples every time, so that a red run says something of its change; new ones by
# `--hypothesis-profile=search`. How long an example takes on a busy machine says nothing.
settings.register_profile("same", deadline=None, derandomize=True)
settings.register_profile("search", deadline=None, max_examples=5_000, print_blob=True)
settings.load_profile("same")


@pytest.fixture(scope="session", autouse=True)
def _no_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the stories of the tests' checks apart from those of whoever runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


def pytest_configure() -> None:
    """Begin with signals as a terminal has them: a background job or nohup would ignore some."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Fixtures end what they began.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.hookimpl(tryfirst=True)  # before `-m` is asked
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave to `make test-all` what is slow, but for one test of each kind, and cases alike."""
    here = Path(__file__).parent
    cases = Counter[str]()
    for item in items:
        folder = item.path.relative_to(here).parts[0]
        sample = item.get_closest_marker("sample")
        test = item.nodeid.partition("[")[0]
        cases[test] += 1
        if sample.args and cases[test] > sample.args[0] if sample else folder in {"slow", "extras"}:
            item.add_marker("slow")
