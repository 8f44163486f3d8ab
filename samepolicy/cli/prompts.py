"""Prompts from a file: one a line as text, or one JSON object a line."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from samepolicy.errors import InputError

SHAPES = '{"prompt": "…"}, {"messages": [{"role": "user", "content": "…"}]} or {"prompt_ids": [1, 2]}'


def read_prompts(path: Path | None) -> list[Any]:
    """The prompts of a file.

    Args:
        path: a .txt file with a user message a line, or a .jsonl file with an object a line; blank lines are left out.
            None gives the prompts that come with the package.

    Returns:
        Texts, conversations (lists of messages) or lists of token ids.

    Raises:
        InputError: no such file, another kind of file, no prompt in it, or a line that is none; the message has its
            number.
    """
    from samepolicy.demo import PROMPTS

    path = PROMPTS if path is None else path
    if path.suffix not in (".txt", ".jsonl"):
        raise InputError(f"{path} is neither .txt nor .jsonl; give one prompt a line, as text or as {SHAPES}.")
    lines = _lines(path)
    if path.suffix == ".txt":
        prompts: list[Any] = [line for _, line in lines]
    else:
        prompts = [_from_json(line, f"Line {number} of {path}") for number, line in lines]
    if not prompts:
        raise InputError(f"{path} holds no prompt; write at least one line, better twelve.")
    return prompts


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Each line that is not blank, with its number."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError as error:
        raise InputError(f"There is no file {path}; give a .txt or .jsonl file with prompts.") from error
    except IsADirectoryError as error:
        raise InputError(f"{path} is a folder; give a .txt or .jsonl file with prompts.") from error
    except UnicodeDecodeError as error:
        number = error.object[: error.start].count(b"\n") + 1
        raise InputError(f"Line {number} of {path} is not UTF-8; save the file in UTF-8.") from error
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield number, line.strip()


def _from_json(line: str, where: str) -> Any:
    """The prompt of a JSON object."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where} is not JSON ({error}); write {SHAPES}.") from error
    if isinstance(value, dict):
        for key, right in (("prompt", _is_text), ("prompt", _is_chat), ("messages", _is_chat), ("prompt_ids", _is_ids)):
            if right(value.get(key)):
                return value[key]
    raise InputError(f"{where} holds no prompt; write {SHAPES}.")


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_chat(value: Any) -> bool:
    """Whether it is a conversation: a list of turns, each with a role and a content in text."""
    return (
        isinstance(value, list)
        and bool(value)
        and all(
            isinstance(turn, dict) and isinstance(turn.get("role"), str) and isinstance(turn.get("content"), str)
            for turn in value
        )
    )


def _is_ids(value: Any) -> bool:
    """Whether it is a list of token ids."""
    return isinstance(value, list) and bool(value) and all(type(number) is int and number >= 0 for number in value)
