"""From ids to text and back with a reference's tokenizer, in the ways in which responses are encoded again."""

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import numpy as np

from samepolicy.causes.reference import Reference
from samepolicy.causes.unavailable import Unavailable
from samepolicy.engines.base import Engine

How: TypeAlias = Literal["alone", "with its prompt", "cleaned", "stripped", "special tokens as text"]
"""How a response is encoded again."""

WAYS: tuple[How, ...] = ("alone", "with its prompt", "cleaned", "stripped", "special tokens as text")


class Text:
    """Text and ids of a reference's tokenizer."""

    def __init__(self, reference: Reference) -> None:
        """Take the engine's tokenizer.

        Raises:
            Unavailable: there is none.
        """
        engine: Engine | None = reference.engine
        self.tokenizer: Any = getattr(engine, "tokenizer", None)
        if engine is None or (self.tokenizer is None and not engine.capabilities.generate):
            raise Unavailable("the trainer's tokenizer: a trainer engine that comes with one, such as hf:PATH")
        self._engine = engine

    def decode(self, ids: np.ndarray) -> str:
        """The text of ids, special tokens included, nothing tidied up."""
        if self.tokenizer is None:
            return self._engine.decode(ids)
        return str(self.tokenizer.decode(ids.tolist(), clean_up_tokenization_spaces=False))

    def encode(self, text: str, **options: Any) -> list[int]:
        """The ids of a text, nothing added."""
        if self.tokenizer is None:
            return self._engine.encode(text)[1:]
        return list(self.tokenizer(text, add_special_tokens=False, **options)["input_ids"])

    def again(self, prompt: np.ndarray, response: np.ndarray, how: How) -> tuple[np.ndarray, np.ndarray]:
        """Prompt and response as they come back from text."""
        if how == "with its prompt":
            whole = np.asarray(self._back(self.decode(np.concatenate([prompt, response])), prompt), dtype=np.int64)
            size = min(len(whole), len(prompt))
            differ = np.flatnonzero(whole[:size] != prompt[:size])
            cut = int(differ[0]) if len(differ) else size
            return whole[:cut], whole[cut:]
        changes: dict[How, Callable[[str], str]] = {"cleaned": self._clean, "stripped": str.strip}
        text = changes.get(how, str)(self.decode(response))
        options = {"split_special_tokens": True} if how == "special tokens as text" and self.tokenizer else {}
        return prompt, np.asarray(self.encode(text, **options), dtype=np.int64)

    def _back(self, text: str, prompt: np.ndarray) -> list[int]:
        """The ids of prompt and response, where an engine without a tokenizer adds its BOS again."""
        if self.tokenizer is not None:
            return self.encode(text)
        begin = self._engine.decode(prompt[:1])
        return self._engine.encode(text.removeprefix(begin))

    def _clean(self, text: str) -> str:
        """The text without spaces before punctuation, as `clean_up_tokenization_spaces` leaves it."""
        for mark in (".", "?", "!", ",", "n't", "'m", "'s", "'ve", "'re"):
            text = text.replace(f" {mark}", mark)
        return text
