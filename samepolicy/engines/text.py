"""From text to ids and back with a tokenizer in hand."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from samepolicy.engines.base import Message
from samepolicy.errors import EngineError


def encode(tokenizer: Any, prompt: str | Sequence[Message]) -> list[int]:
    """Prompt ids; a text is the user's message where the tokenizer has a chat template, plain text elsewhere.

    Args:
        tokenizer: a transformers tokenizer.
        prompt: a user message, or a conversation.

    Raises:
        EngineError: a conversation, but no chat template.
    """
    if not getattr(tokenizer, "chat_template", None):
        if isinstance(prompt, str):
            return list(tokenizer(prompt)["input_ids"])
        raise EngineError("This model has no chat template, so a conversation cannot be encoded; give plain text.")
    return list(tokenizer.apply_chat_template(turns(prompt), add_generation_prompt=True, return_dict=False))


def turns(prompt: str | Sequence[Message]) -> list[Message]:
    """A conversation; a text is one user message.

    >>> turns("Hi")
    [{'role': 'user', 'content': 'Hi'}]
    """
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)


def decode(tokenizer: Any, ids: Sequence[int] | np.ndarray) -> str:
    """The text of the ids, special tokens included."""
    return str(tokenizer.decode(list(map(int, ids))))
