"""One answer of a server: its bytes, and how they are read or refused in a sentence."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from samepolicy.engines.server_journal import Json
from samepolicy.errors import EngineError, InputError

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
            f"The server's answer is built otherwise than expected ({type(error).__name__}: {error}), so it cannot be "
            "read; is this the right server?"
        ) from error


def read_json(reply: Reply, where: str) -> Any:
    """The JSON of a reply."""
    try:
        return json.loads(reply.content)
    except (ValueError, RecursionError) as error:
        raise EngineError(f"{where} did not answer with JSON ({error}); is this the right server?") from error


def error_text(reply: Reply) -> str:
    """What a server says about an error, in one short line."""
    try:
        found = json.loads(reply.content)
        error = found.get("error", found.get("detail", found))
        text = str(error.get("message", error) if isinstance(error, dict) else error)
    except (ValueError, AttributeError, RecursionError):
        text = reply.content[:2000].decode("utf-8", errors="replace")
    return " ".join(text.split())[:200].rstrip(".") or "nothing said"


def seconds(header: str | None) -> float:
    """The wait that a server asks for; 0 where it asks for none in seconds."""
    try:
        return float(header or 0)
    except ValueError:
        return 0.0
