"""Responses of an OpenAI-style server such as vLLM's: a .json file with one or a list, or .jsonl with one a line.

Completions, chat completions and vLLM's token-in token-out replies with log-probs are read. Token ids come from
`token_ids` (ask with return_token_ids) or from names such as "token_id:42" (return_tokens_as_token_ids); without either
the run has log-probs and the tokens' text. vLLM's -9999, which stands for minus infinity, becomes minus infinity.

Source: vLLM 0.32.0, vllm/entrypoints/openai/completion/protocol.py and chat_completion/protocol.py. Checked against
responses of the real server.
"""

import json
import math
import re
from pathlib import Path
from typing import Any

from samepolicy.errors import CorruptFileError, InputError
from samepolicy.records.dumps import USUAL, Options, each, gathered, json_lines, number, numbers
from samepolicy.records.run import Run
from samepolicy.records.side import Side

ABSENT = -9999.0
"""What vLLM's server writes for minus infinity, which JSON lacks."""
_ID = re.compile(r"token_id:(\d+)")


def detect(path: Path) -> bool:
    """Whether the path is a .json or .jsonl file whose first object is such a response."""
    return "choices" in first_object(path)


def first_object(path: Path) -> dict[str, Any]:
    """The first response of a .json or .jsonl file; empty where it is none. Never raises."""
    if path.suffix not in (".json", ".jsonl") or not path.is_file():
        return {}
    try:
        found = next(iter(json_lines(path)))[1] if path.suffix == ".jsonl" else replies(path)[0]
        return found if isinstance(found, dict) else {}
    except (CorruptFileError, OSError, StopIteration, IndexError):
        return {}


def replies(path: Path) -> list[Any]:
    """Every response of a file.

    Raises:
        CorruptFileError: it is no JSON.
    """
    if path.suffix == ".jsonl":
        return [line for _, line in json_lines(path)]
    try:
        found = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise CorruptFileError(f"{path} is no JSON ({error}); copy it again.") from error
    return found if isinstance(found, list) else [found]


def read(path: Path, options: Options = USUAL) -> Run:
    """All choices of all responses.

    Args:
        path: the file.
        options: who is told if it cannot be read.

    Raises:
        CorruptFileError: it is no JSON, or not as such a server answers.
        InputError: responses without log-probs.
    """
    return each([path], lambda file: _run(replies(file)), options)


def _run(found: list[dict[str, Any]]) -> Run:
    """All responses."""
    rows = [_row(reply, choice, group) for group, reply in enumerate(found) for choice in reply["choices"]]
    models = {str(reply["model"]) for reply in found if reply.get("model")}
    engines = {"vllm" for reply in found if str(reply.get("system_fingerprint") or "").startswith("vllm")}
    side = Side(model=models.pop() if len(models) == 1 else None, engine=engines.pop() if engines else None)
    return gathered(rows, source="vllm_response", rollout=side)


def _row(reply: dict[str, Any], choice: dict[str, Any], group: int) -> dict[str, Any]:
    """One choice as columns."""
    names, logp = _tokens(choice.get("logprobs"))
    ids = choice.get("token_ids") or _ids(names)
    message = choice.get("message") or {}
    return {
        "prompt_ids": choice.get("prompt_token_ids") or reply.get("prompt_token_ids"),
        "response_ids": ids,
        "rollout_logp": numbers(-math.inf if p == ABSENT else number(p) for p in logp),
        "token_text": names if names and _ids(names) is None else None,
        "text": choice.get("text", message.get("content")),
        "prompt_text": reply.get("prompt_text"),
        "finish_reason": choice.get("finish_reason"),
        "sample": int(choice["index"]),
        "group": group,
    }


def _tokens(logprobs: Any) -> tuple[list[str], list[Any]]:
    """Name and log-prob of each token, in either of the two forms."""
    if not logprobs:
        raise InputError("Its responses hold no log-probs; ask for them with logprobs=.")
    if logprobs.get("content") is not None:
        return [entry["token"] for entry in logprobs["content"]], [entry["logprob"] for entry in logprobs["content"]]
    return list(logprobs["tokens"]), list(logprobs["token_logprobs"])


def _ids(names: list[str]) -> list[int] | None:
    """Ids, where the tokens are named by them."""
    found = [_ID.fullmatch(name) for name in names]
    return [int(match[1]) for match in found if match] if names and all(found) else None
