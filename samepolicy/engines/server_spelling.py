"""From ids to text and back, token by token: what a server that takes and gives text alone leaves to its client.

Such a server gives the text of each token that it sampled. Where one id alone has that text, it is the id. Where
several have it, or the text is a piece of a character, an encoding of the whole text decides, and the token counts as
guessed. Where that does not decide, nothing does: the response ends before the token.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any

PIECE = "\N{REPLACEMENT CHARACTER}"
"""What stands for a token that is a piece of a character; other servers leave its text empty."""


@dataclass(frozen=True, kw_only=True)
class Made:
    """Ids that were made again from text.

    Attributes:
        ids: those of the first tokens, up to one whose id is not certain in any way.
        guessed: how many of them an encoding of the text had to decide.
    """

    ids: list[int]
    guessed: int


class Spelling:
    """How a tokenizer spells its ids."""

    def __init__(self, tokenizer: Any) -> None:
        """Take a transformers tokenizer."""
        self.tokenizer = tokenizer
        self._before = self._encode("a")[-1:]
        self._skipped = len(self._decode(self._before))
        self.special = frozenset(tokenizer.all_special_ids)

    def text(self, ids: Sequence[int]) -> str:
        """The text that a server should encode to these ids; it adds a BOS by itself where the tokenizer does."""
        whole = self._decode(ids)
        rest = self._decode(ids[1:])
        return rest if self.encode(rest) == list(ids) else whole

    def encode(self, text: str) -> list[int]:
        """The ids that a server makes of a prompt, with the BOS that the tokenizer adds."""
        return list(self.tokenizer(text)["input_ids"])

    def spell(self, ids: Sequence[int]) -> str:
        """The text of ids that do not stand at the beginning, where some tokenizers leave a space out."""
        return self._decode([*self._before, *ids])[self._skipped :]

    def ids(self, pieces: Sequence[str], text: str | None = None) -> Made:
        """Make ids again.

        Args:
            pieces: the text of each token, in order.
            text: the text of all of them, for characters that lie in pieces; it may lack the end token.

        Returns:
            One id per piece, up to the first that nothing decides.
        """
        found: list[int | None] = [self._certain(pieces, at) for at in range(len(pieces))]
        unsure = [at for at, token in enumerate(found) if token is None]
        if unsure and getattr(self.tokenizer, "is_fast", False):
            self._guess(pieces, found, _whole_text(pieces, text))
        known = next((at for at, token in enumerate(found) if token is None), len(found))
        return Made(ids=[t for t in found[:known] if t is not None], guessed=sum(at < known for at in unsure))

    def fitting(self, pieces: Sequence[str], ids: Sequence[int]) -> int:
        """How many ids at the beginning may have these texts; white space around them, and byte codes, tell nothing."""
        pairs = enumerate(zip(pieces, ids, strict=False))
        return next((at for at, (_, token) in pairs if not self._may(pieces, at, token)), min(len(pieces), len(ids)))

    def _certain(self, pieces: Sequence[str], at: int) -> int | None:
        """The only id with a piece's text; None where there are several or none, or where a character is in pieces."""
        ids = self._spelt.get(pieces[at], []) if _complete(pieces, at) else []
        return ids[0] if len(ids) == 1 else None

    def _guess(self, pieces: Sequence[str], found: list[int | None], text: str) -> None:
        """Fill each stretch of unknown ids from an encoding of the text, where as many ids lie in its span."""
        coded = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        spans = list(zip(coded["input_ids"], coded["offset_mapping"], strict=True))
        for places, low, high in _stretches(pieces, found, text):
            inside = [token for token, (a, b) in spans if low <= a < b <= high]
            if len(inside) == len(places) and all(
                self._fits(pieces, *pair) for pair in zip(places, inside, strict=True)
            ):
                found[places[0] : places[-1] + 1] = inside

    def _fits(self, pieces: Sequence[str], at: int, token: int) -> bool:
        """Whether an id may have a piece's text."""
        return not _complete(pieces, at) or token in self._spelt.get(pieces[at], [])

    def _may(self, pieces: Sequence[str], at: int, token: int) -> bool:
        """Whether a server may have meant an id by a piece's text."""
        same = self._fits(pieces, at, token) or pieces[at].strip() == self.spell([token]).strip()
        return same or pieces[at].startswith("bytes:")

    @cached_property
    def _spelt(self) -> dict[str, list[int]]:
        """The ids that have a text."""
        found: dict[str, list[int]] = {}
        for token in range(len(self.tokenizer)):
            found.setdefault(self.spell([token]), []).append(token)
        return found

    def _encode(self, text: str) -> list[int]:
        """The ids of a text, nothing added."""
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def _decode(self, ids: Sequence[int]) -> str:
        """The text of ids, special tokens included, nothing tidied up."""
        return str(self.tokenizer.decode(list(ids), clean_up_tokenization_spaces=False))


def _complete(pieces: Sequence[str], at: int) -> bool:
    """Whether a piece is all of its token's text: neither a part of a character, nor one that closes such parts."""
    return bool(pieces[at]) and PIECE not in pieces[at] and not (at and not pieces[at - 1])


def _whole_text(pieces: Sequence[str], text: str | None) -> str:
    """The text of all pieces, with the characters that lie in several of them."""
    joined = "".join(pieces)
    if text is None or PIECE not in joined:
        return joined
    return text if text.endswith(pieces[-1]) or PIECE in pieces[-1] else text + pieces[-1]


def _stretches(pieces: Sequence[str], found: Sequence[int | None], text: str) -> Iterator[tuple[list[int], int, int]]:
    """Neighbouring pieces without an id, and where their characters begin and end in the text."""
    groups = [(unknown, list(g)) for unknown, g in groupby(range(len(pieces)), key=lambda at: found[at] is None)]
    at = 0
    for i, (unknown, places) in enumerate(groups):
        known = "".join(pieces[place] for place in (groups[i + 1][1] if unknown and i + 1 < len(groups) else []))
        if unknown:
            end = text.find(known, at + any(pieces[place] for place in places)) if known else len(text)
            if end < 0:
                return
            yield places, at, end
            at = end
        else:
            at += sum(len(pieces[place]) for place in places)
