"""The text of token ids, read from a tokenizer's own file: tokenizer.json or a .gguf; no model library is needed."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from samepolicy.errors import InputError
from samepolicy.records.run import Run
from samepolicy.report import gguf

Pieces = Mapping[int, bytes]
"""The bytes that each id stands for; a token may hold a part of a character."""

BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True)
class Vocabulary(Mapping[int, bytes]):
    """The bytes of ids, read when they are asked for.

    Attributes:
        texts: how the tokenizer's file spells each id.
        read: from a spelling to bytes.
        special: ids whose spelling is their text.
    """

    texts: Mapping[int, str]
    read: Callable[[str], bytes]
    special: frozenset[int]

    def __getitem__(self, number: int) -> bytes:
        """The bytes of one id."""
        text = self.texts[number]
        return text.encode("utf-8", "replace") if number in self.special else self.read(text)

    def __iter__(self) -> Iterator[int]:
        """Every id."""
        return iter(self.texts)

    def __len__(self) -> int:
        """How many ids there are."""
        return len(self.texts)


def pieces_of(path: str | Path) -> Pieces:
    """The bytes of every id of a tokenizer.

    Args:
        path: a folder with tokenizer.json, such a file, or a .gguf file.

    Returns:
        Bytes by id.

    Raises:
        InputError: nothing is there, or no vocabulary can be read from it.
    """
    place = Path(path)
    file = place / "tokenizer.json" if place.is_dir() else place
    if not file.is_file():
        raise InputError(f"There is no tokenizer at {place}; give a folder with tokenizer.json, or a .gguf file.")
    return _from_gguf(file) if file.suffix == ".gguf" else _from_json(file)


def pieces_in(run: Run) -> Pieces:
    """The bytes of the ids of a run, as far as it holds them or says where they are.

    They are taken from `info["pieces"]`, else from the local folder or .gguf file that a side declares as its model;
    a run that says neither has none, and nothing is looked up on a network.
    """
    if isinstance(held := run.info.get("pieces"), Mapping):
        return {int(key): _stored(value) for key, value in held.items()}
    for side in (run.rollout, run.trainer):
        place = Path(side.model) if side.model else None
        if place is not None and place.is_absolute() and (place.suffix == ".gguf" or place.is_dir()):
            try:
                return pieces_of(place)
            except InputError:
                continue
    return {}


def shown(piece: bytes, longest: int = 600) -> Any:
    r"""A piece for a JSON value: its text, or {"bytes": hex} where it is no UTF-8, cut where it is long.

    >>> shown(b" caf"), shown(b"\xe4\xbd"), shown(b"x" * 700, longest=3)
    (' caf', {'bytes': 'e4bd'}, {'text': 'xxx', 'length': 700})
    """
    try:
        text = piece.decode("utf-8")
    except UnicodeDecodeError:
        cut = {"bytes": piece[:longest].hex()}
        return cut if len(piece) <= longest else cut | {"length": len(piece)}
    return text if len(text) <= longest else {"text": text[:longest], "length": len(text)}


def _stored(value: Any) -> bytes:
    """The inverse of `shown`, for pieces that were not cut."""
    if isinstance(value, Mapping):
        return bytes.fromhex(value["bytes"]) if "bytes" in value else str(value["text"]).encode("utf-8", "replace")
    return str(value).encode("utf-8", "surrogatepass")


def with_pieces(run: Run, path: str | Path) -> Run:
    """The run with the text of its own ids in `info["pieces"]`, so that a report shows text wherever it is read.

    Args:
        run: the run.
        path: as for `pieces_of`.
    """
    known = pieces_of(path)
    names = ("prompt_ids", "response_ids", "rollout_top_ids", "trainer_top_ids")
    ids = {int(i) for name in names if name in run for i in run[name].values.ravel().tolist()}
    found = {str(i): shown(known[i], 10_000) for i in sorted(ids & known.keys())}
    return replace(run, info={**run.info, "pieces": found})


def _from_json(file: Path) -> Pieces:
    """The vocabulary of a tokenizer.json, of every kind of model that holds one."""
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
        vocabulary = value["model"]["vocab"]
        pairs = vocabulary.items() if isinstance(vocabulary, dict) else ((p[0], i) for i, p in enumerate(vocabulary))
        spelled = json.dumps([value.get("decoder"), value.get("pre_tokenizer")])
        read = _of_bytes if "ByteLevel" in spelled else _of_words
        texts = {int(i): str(text) for text, i in pairs}
        added = {int(t["id"]): str(t["content"]) for t in value.get("added_tokens") or ()}
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise InputError(
            f"No vocabulary can be read from {file} ({type(error).__name__}); is it a tokenizer?"
        ) from error
    return Vocabulary(texts | added, read, frozenset(added))


def _from_gguf(file: Path) -> Pieces:
    """The vocabulary of a .gguf file."""
    fields = gguf.fields(file, "tokenizer.ggml.")
    if "tokenizer.ggml.tokens" not in fields:
        raise InputError(f"{file} holds no tokenizer; give a folder with tokenizer.json.")
    read = _of_bytes if fields.get("tokenizer.ggml.model") == "gpt2" else _of_words
    kinds = fields.get("tokenizer.ggml.token_type", [])
    special = {i for i, kind in enumerate(kinds) if kind in (3, 4)}
    return Vocabulary(dict(enumerate(fields["tokenizer.ggml.tokens"])), read, frozenset(special))


def _of_bytes(text: str) -> bytes:
    """A piece of a byte-level vocabulary, where every character stands for a byte."""
    table = _byte_table()
    return bytes(table[c] for c in text) if all(c in table for c in text) else text.encode("utf-8", "replace")


def _of_words(text: str) -> bytes:
    """A piece of a SentencePiece or WordPiece vocabulary."""
    if found := BYTE.fullmatch(text):
        return bytes([int(found[1], 16)])
    return text.replace("▁", " ").encode("utf-8", "replace")


@cache
def _byte_table() -> Mapping[str, int]:
    """The character that a byte-level vocabulary writes for each byte: itself where it can be seen."""
    seen = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [b for b in range(256) if b not in seen]
    return {chr(b): b for b in seen} | {chr(256 + i): b for i, b in enumerate(rest)}


def spell(ids: Iterable[int], known: Pieces) -> dict[str, Any]:
    """A JSON mapping from each id to its text, of those that are known.

    >>> spell([3, 4], {3: b"a"})
    {'3': 'a'}
    """
    return {str(int(i)): shown(known[int(i)]) for i in ids if int(i) in known}
