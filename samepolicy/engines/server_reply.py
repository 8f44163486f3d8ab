"""One answer of a server: its bytes, and how they are read or refused in a sentence."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from samepolicy.engines.server_journal import Json
from samepolicy.errors import EngineError, InputError

SHORTEST = 8
"""Letters of a secret that cannot be a word of the answer by chance."""

T = TypeVar("T")


@dataclass(frozen=True)
class Reply:
    """One answer: its status, its bytes, the wait it asks for in seconds, and where it sends to."""

    status: int
    content: bytes
    wait: float
    location: str


def read_answer(read: Callable[[Json], T], answer: Json) -> T:
    """Read an answer; one that is built otherwise is refused in a sentence."""
    try:
        return read(answer)
    except (EngineError, InputError):
        raise
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError) as error:
        raise EngineError(
            f"The server's answer is built otherwise than expected ({type(error).__name__}: {brief(str(error))}), so "
            "it cannot be read; is this the right server?"
        ) from error


def read_json(reply: Reply, where: str, secret: str | None = None) -> Any:
    """The JSON of a reply, without the secret that a server may have repeated in it."""
    try:
        text = reply.content.decode("utf-8-sig")
        found = json.loads(text)
        escaped = bool(secret) and (str(secret) in text or "\\" in text)
        return _blanked(found, str(secret)) if escaped and len(str(secret)) >= SHORTEST else found
    except (ValueError, RecursionError) as error:
        raise EngineError(f"{where} did not answer with JSON ({error}); is this the right server?") from error


def brief(text: str, most: int = 200) -> str:
    r"""A text of a server as a message shows it: one line, nothing that moves a terminal's cursor, and short.

    >>> brief("two\n lines \x1b[2J")
    'two lines ?[2J'
    """
    line = "".join(sign if sign.isprintable() else "?" for sign in " ".join(text[: 10 * most].split()))
    return line if len(line) <= most else line[:most] + "…"


def error_text(reply: Reply, secret: str | None = None) -> str:
    """What a server says about an error, in one short line, without the secret."""
    try:
        found = json.loads(reply.content)
        error = found.get("error", found.get("detail", found))
        text = str(error.get("message", error) if isinstance(error, dict) else error)
    except (ValueError, AttributeError, RecursionError):
        text = reply.content[:2000].decode("utf-8", errors="replace")
    return brief(text.replace(secret, "***") if secret else text).rstrip(".") or "nothing said"


def seconds(header: str | None) -> float:
    """The wait that a server asks for; 0 where it asks for none in seconds."""
    try:
        return float(header or 0)
    except ValueError:
        return 0.0


def _blanked(value: Any, secret: str) -> Any:
    """A JSON value with stars for the secret in every text."""
    if isinstance(value, str):
        return value.replace(secret, "***")
    if isinstance(value, list):
        return [_blanked(part, secret) for part in value]
    if isinstance(value, dict):
        return {name.replace(secret, "***"): _blanked(part, secret) for name, part in value.items()}
    return value
