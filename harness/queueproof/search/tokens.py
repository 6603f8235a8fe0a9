"""A story as one word that finds it again."""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from typing import Any

from queueproof.errors import QueueproofError


def encode_token(digest: str, guarantee: str, seed: int, **data: object) -> str:
    """A story as one word: queue, guarantee, seed, and program with schedule, or plan cell.

    Args:
        digest: Of the queue.
        guarantee: The id of the one that is broken.
        seed: Of the check.
        **data: What `replay` needs to see it again, as JSON has it.
    """
    packed = json.dumps([digest, guarantee, seed, data], separators=(",", ":"))
    return base64.urlsafe_b64encode(zlib.compress(packed.encode(), 9)).decode().rstrip("=")


def decode_token(token: str) -> tuple[str, str, int, dict[str, Any]]:
    """What `encode_token` packed.

    Raises:
        QueueproofError: It is not a token.
    """
    try:
        packed = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
        digest, guarantee, seed, data = json.loads(zlib.decompress(packed))
    except (ValueError, TypeError, binascii.Error, zlib.error) as error:
        raise QueueproofError("this is not a replay token: copy it whole from a story") from error
    if not isinstance(data, dict) or not data.keys() & {"program", "probe"}:
        raise QueueproofError("this is not a replay token: copy it whole from a story")
    if "program" in data and not data.keys() >= {"schedule", "under", "broken"}:
        raise QueueproofError("this token is of an older queueproof: check the queue anew")
    return digest, guarantee, seed, data
