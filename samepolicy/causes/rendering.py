"""What a chat template puts around messages, taken apart by rendering marks, and prompts rendered otherwise."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from samepolicy.arrays import Ragged
from samepolicy.causes.base import Rung
from samepolicy.causes.reference import Reference
from samepolicy.causes.settings import Ids, IdStep
from samepolicy.causes.text import Text

MARK, OTHER = "USERMARK", "SYSTEMMARK"
"""Contents that no template changes."""

THOUGHT = re.compile(r"<think>.*?</think>\s*", re.DOTALL)


@dataclass(frozen=True)
class Rendered(IdStep):
    """Prompts under another rendering of the tokenizer's chat template; the content stays.

    Attributes:
        opening: text before the user's first message; None leaves it.
        closing: text after the last message; None leaves it.
        thoughtless: earlier turns lose what stands between <think> and </think>.
    """

    order: ClassVar[int] = Rung.TEMPLATE.order
    opening: str | None = None
    closing: str | None = None
    thoughtless: bool = False

    def apply(self, ids: Ids, reference: Reference) -> Ids:
        """The prompts rendered so."""
        pieces = Pieces.of(reference)
        rows = [pieces.changed(row, self) for row in ids.prompts]
        return replace(ids, prompts=Ragged.from_lists(rows, dtype=np.int64))


@dataclass(frozen=True)
class Pieces:
    """What a chat template puts around messages.

    Attributes:
        text: the tokenizer.
        system: text before and behind a system message.
        openings: texts before the user's first message, by what they are.
        closings: texts behind the last message.
    """

    text: Text
    system: tuple[str, str] | None
    openings: Mapping[str, str]
    closings: Mapping[str, str]

    @staticmethod
    def has(reference: Reference) -> bool:
        """Whether the reference's tokenizer has a chat template."""
        return bool(getattr(getattr(reference.engine, "tokenizer", None), "chat_template", None))

    @classmethod
    def of(cls, reference: Reference) -> "Pieces":
        """Take a tokenizer's template apart by rendering marks."""
        text = Text(reference)
        render = _renderer(text.tokenizer)
        user, system = {"role": "user", "content": MARK}, {"role": "system", "content": OTHER}
        default = render([user])
        named = render([system, user])
        around = None
        if OTHER in named and MARK in named:
            before, rest = named.split(OTHER, 1)
            around = (before, rest.split(MARK, 1)[0])
        openings = {"the template's default": default.split(MARK, 1)[0]}
        if around:
            openings |= {"an empty system prompt": "".join(around), "no system prompt": _bare(*around)}
        openings["no template"] = _begun(text)
        closings = {
            "with the generation prompt": default.split(MARK, 1)[1],
            "without the generation prompt": render([user], add_generation_prompt=False).split(MARK, 1)[1],
            "thinking off": render([user], enable_thinking=False).split(MARK, 1)[1],
            "thinking on": render([user], enable_thinking=True).split(MARK, 1)[1],
            "no template": "",
        }
        return cls(text, around, _distinct(openings), _distinct(closings))

    def changed(self, prompt: np.ndarray, step: Rendered) -> np.ndarray:
        """A prompt under another rendering; as it is where it is not of this template."""
        whole = self.text.decode(prompt)
        opening, closing = self._opening(whole), self._closing(whole)
        if opening is None or closing is None or len(opening) + len(closing) > len(whole):
            return prompt
        content = whole[len(opening) : len(whole) - len(closing)]
        inner = THOUGHT.sub("", content) if step.thoughtless else content
        begin = opening if step.opening is None else step.opening
        end = closing if step.closing is None else step.closing
        if begin == opening and end == closing and inner == content:
            return prompt
        return self._spliced(prompt, (opening, content, closing), (begin, inner, end))

    def _opening(self, whole: str) -> str | None:
        """The text of a prompt before its first user message."""
        if self.system and whole.startswith(self.system[0]) and self.system[1] in whole:
            return whole[: whole.index(self.system[1]) + len(self.system[1])]
        fitting = [o for n, o in self.openings.items() if n != "no template" and o and whole.startswith(o)]
        return max(fitting, key=len, default=None)

    def _closing(self, whole: str) -> str | None:
        """The text of a prompt behind its last message."""
        fitting = [c for n, c in self.closings.items() if n != "no template" and c and whole.endswith(c)]
        return max(fitting, key=len, default=None)

    def _spliced(self, prompt: np.ndarray, old: tuple[str, str, str], new: tuple[str, str, str]) -> np.ndarray:
        """Other ids around the very ids of the content; all from text where the ids do not part there."""
        head, tail = (self.text.encode(old[i]) for i in (0, 2))
        inner = prompt[len(head) : len(prompt) - len(tail)]
        fits = prompt[: len(head)].tolist() == head and prompt[len(prompt) - len(tail) :].tolist() == tail
        if not fits or old[1] != new[1]:
            return np.asarray(self.text.encode("".join(new)), dtype=np.int64)
        ends = (np.asarray(self.text.encode(new[i]), dtype=np.int64) for i in (0, 2))
        before, behind = ends
        return np.concatenate([before, inner, behind])


def _renderer(tokenizer: Any) -> Any:
    """Render a conversation as text; a role that the template refuses gives none."""

    def render(messages: list[dict[str, str]], **options: Any) -> str:
        try:
            made = tokenizer.apply_chat_template(
                messages, tokenize=False, **({"add_generation_prompt": True} | options)
            )
        except Exception:  # a template is somebody's program and may raise anything
            return MARK
        return str(made) if MARK in str(made) else MARK

    return render


def _bare(before: str, behind: str) -> str:
    """The opening without a system message, where the user's header is the system's with another name."""
    at = before.rfind("system")
    header = before[:at] + "user" + before[at + len("system") :] if at >= 0 else ""
    begin = next((i for i in range(len(header)) if behind.endswith(header[i:])), len(header))
    return header if header and begin < len(header) else behind


def _begun(text: Text) -> str:
    """What the tokenizer puts before a plain text by itself."""
    ids = list(text.tokenizer("")["input_ids"])
    bos = getattr(text.tokenizer, "bos_token_id", None)
    return str(text.decode(np.asarray(ids[:1]))) if ids and ids[0] == bos else ""


def _distinct(texts: dict[str, str]) -> dict[str, str]:
    """Texts by name, each once."""
    seen: dict[str, str] = {}
    for name, text in texts.items():
        seen.setdefault(text, name)
    return {name: text for text, name in seen.items()}
