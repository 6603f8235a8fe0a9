"""A story as one word that finds it again."""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from typing import Any, NoReturn

from queueproof.errors import QueueproofError
from queueproof.queues.ids import IDS
from queueproof.schedule.conditions import Conditions
from queueproof.schedule.programs import Program, Schedule
from queueproof.schedule.reading import read, refuse

LONGEST = 100_000  # characters of a token
MOST = 1_000_000  # bytes of what it holds
_STORY = frozenset({"program", "schedule", "under", "broken"})


def encode_token(digest: str, guarantee: str, seed: int, **data: object) -> str:
    """A story as one word: queue, guarantee, seed, and program with schedule, or plan cell.

    Args:
        guarantee: The id of the one that is broken.
        **data: What `replay` needs to see it again, as JSON has it.
    """
    packed = json.dumps([digest, guarantee, seed, data], separators=(",", ":"))
    return base64.urlsafe_b64encode(zlib.compress(packed.encode(), 9)).decode().rstrip("=")


def decode_token(token: str) -> tuple[str, str, int, dict[str, Any]]:
    """The parts that `encode_token` packed; a probe's are bounded here, and read by the probe.

    Raises:
        QueueproofError: It is not a token; the message has the field.
    """
    try:
        digest, guarantee, seed, data = json.loads(_unpacked(token), parse_constant=_refused)
    except (ValueError, TypeError, RecursionError, binascii.Error, zlib.error) as error:
        raise QueueproofError("this is not a replay token: copy it whole from a story") from error
    if not isinstance(data, dict) or not data.keys() & {"program", "probe"}:
        raise QueueproofError("this is not a replay token: copy it whole from a story")
    if "program" in data and not data.keys() >= _STORY:
        raise QueueproofError("this token is of an older queueproof: check the queue anew")
    read(str, digest, "queue")
    read(int, seed, "seed")
    if guarantee not in [*IDS]:
        refuse("guarantee", guarantee, "one of `queueproof guarantees`")
    if "program" not in data:
        return digest, guarantee, seed, data
    if unknown := data.keys() - _STORY:
        refuse("story", sorted(unknown), f"of {', '.join(sorted(_STORY))}")
    Program.from_data(data["program"])
    read(Schedule, data["schedule"], "schedule")
    read(Conditions, data["under"], "under")
    read(str, data["broken"], "broken")
    return digest, guarantee, seed, data


def _unpacked(token: str) -> bytes:
    """The bytes of a token, as many as any story has.

    Raises:
        ValueError: They are more, or not all of them are there.
        zlib.error: They are no token's.
    """
    if len(token) > LONGEST:
        raise ValueError("a token has fewer characters")
    reader = zlib.decompressobj()
    packed = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
    found = reader.decompress(packed, MOST)
    if not reader.eof:
        raise ValueError("a token holds less, and is whole")
    return found


def _refused(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")
