"""The header of a .gguf file: named values, read without its tensors and without a library (a vocabulary in 0.1 s)."""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from samepolicy.errors import InputError

NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""Kinds of numbers by their code, as struct spells them."""

TEXT, LIST = 8, 9
MOST = 1 << 26
"""More entries or bytes than this are no header but damage."""


def fields(file: Path, prefix: str) -> dict[str, Any]:
    """The values whose name begins with a prefix.

    Args:
        file: the .gguf file, version 2 or 3, little-endian.
        prefix: such as "tokenizer.ggml.".

    Returns:
        Texts, numbers and lists of them by name.

    Raises:
        InputError: the file is no such file, or is cut off.

    Reference: the GGUF specification (ggml-org/ggml, docs/gguf.md).
    """
    try:
        with file.open("rb") as stream:
            return {name: value for name, value in _entries(stream) if name.startswith(prefix)}
    except (struct.error, ValueError, KeyError, UnicodeDecodeError) as error:
        raise InputError(f"{file} is no .gguf file that can be read ({error or type(error).__name__}).") from error


def _entries(stream: BinaryIO) -> Iterator[tuple[str, Any]]:
    """Every named value in turn."""
    magic, version, _, count = struct.unpack("<4sIQQ", stream.read(24))
    if magic != b"GGUF" or version not in (2, 3):
        raise ValueError("it does not begin like one")
    for _ in range(_small(count)):
        name = _text(stream)
        yield name, _value(stream, _number(stream, "I"))


def _value(stream: BinaryIO, kind: int) -> Any:
    """One value of a kind."""
    if kind == TEXT:
        return _text(stream)
    if kind != LIST:
        return _number(stream, NUMBERS[kind])
    inner, count = _number(stream, "I"), _small(_number(stream, "Q"))
    if inner in NUMBERS:
        size = struct.calcsize(f"<{NUMBERS[inner]}")
        return list(struct.unpack(f"<{count}{NUMBERS[inner]}", stream.read(size * count)))
    return [_value(stream, inner) for _ in range(count)]


def _text(stream: BinaryIO) -> str:
    """A text behind its length; what is no UTF-8 is replaced."""
    size = _small(_number(stream, "Q"))
    return stream.read(size).decode("utf-8", "replace")


def _number(stream: BinaryIO, kind: str) -> Any:
    """One number."""
    return struct.unpack(f"<{kind}", stream.read(struct.calcsize(f"<{kind}")))[0]


def _small(count: int) -> int:
    """A count that a header can have."""
    if count > MOST:
        raise ValueError(f"it announces {count} entries")
    return count
