"""What the fields of a server's answer hold, or a refusal in a sentence."""

from collections.abc import Sequence
from typing import Any, Literal

from samepolicy.engines.rollout import Response
from samepolicy.engines.server_journal import Json
from samepolicy.engines.server_reply import brief
from samepolicy.errors import EngineError

LARGEST_ID = 2**31 - 1
"""Ids are checked against this where the server's vocabulary is not known; the server refuses the rest."""

ABSENT = -9999.0
"""What vLLM's server writes for minus infinity, which JSON lacks."""


def as_response(ids: Sequence[Any], logp: Sequence[Any], stopped: bool, text: Any) -> Response:
    """A response whose ids and log-probs line up."""
    same_length(logp, ids, "log-probs")
    finish: Literal["stop", "length"] = "stop" if stopped else "length"
    values = [number_of(value) for value in logp]
    wrong = [i for i in ids if not is_id(i)]
    if wrong:
        raise EngineError(
            f"The server says that it sampled {brief(repr(wrong[0]))}, which is no token id; see its log."
        )
    return Response(ids=list(ids), logp=values, finish=finish, text=no_halves(text) if isinstance(text, str) else None)


def encoded(reply: Json) -> list[int]:
    """The ids that a server encodes a prompt to."""
    wrong = [token for token in reply["tokens"] if not is_id(token)]
    if wrong:
        raise EngineError(f"The server encodes a prompt to {brief(repr(wrong[0]))}, which is no token id; see its log.")
    return list(reply["tokens"])


def is_id(value: Any) -> bool:
    """Whether a value from JSON can be a token id."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST_ID


def no_halves(text: str) -> str:
    r"""A text from JSON, with a replacement character for each half of a character, which no file can hold.

    >>> no_halves("a\ud83d"), no_halves("\ud83d\ude00") == "\N{GRINNING FACE}"
    ('a�', True)
    """
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def first_in(reply: Json, name: str) -> Json:
    """The only entry of a list in a reply."""
    listed = list_in(reply, name, "see that this is the right server")
    if not listed or not isinstance(listed[0], dict):
        raise EngineError(f"The server's answer has an empty {name}; see its log.")
    if len(listed) > 1:
        raise EngineError(
            f"The server gave {len(listed)} {name} where one was asked for, so nothing says which is meant; see its "
            "log."
        )
    found: Json = listed[0]
    return found


def list_in(reply: Json, name: str, fix: str) -> list[Any]:
    """A list in a reply."""
    found = reply.get(name)
    if not isinstance(found, list):
        raise EngineError(f"The server's answer has no {name}, so there is no log-prob to compare; {fix}.")
    return found


def same_length(found: Sequence[Any], expected: Sequence[Any], what: str) -> None:
    """Refuse another number of values than of ids: nothing says which one is missing."""
    if len(found) != len(expected):
        raise EngineError(
            f"The server gave {len(found)} {what} for {len(expected)} tokens, so nothing says which belong together; "
            "this is a fault of the server."
        )


def same_ids(found: Any, expected: Sequence[int]) -> None:
    """Refuse an answer about other ids than were sent."""
    if found is not None and list(found) != list(expected):
        raise EngineError("The server answered about other ids than it was sent; send ids to the server directly.")


def number_of(value: Any) -> float:
    """A log-prob from JSON: null is NaN, and the stand-ins of vLLM and llama.cpp are minus infinity."""
    if value is None:
        return float("nan")
    if isinstance(value, bool | str):
        raise EngineError(f"The server gave the log-prob {brief(repr(value))}, which is no number; see its log.")
    number = float(value)
    return float("-inf") if number <= ABSENT else number
