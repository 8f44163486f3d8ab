"""The text of ids: what each kind of tokenizer file spells, against the tokenizer itself and hand-made files."""

import json
import struct
from pathlib import Path

import pytest

import samepolicy as sp
from samepolicy.demo import recorded
from samepolicy.errors import InputError
from samepolicy.report.pieces import pieces_in, pieces_of, shown, spell, with_pieces
from tests.report.runs import tokenizer_json


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def gguf(path: Path, model: str, tokens: list[str], kinds: list[int]) -> Path:
    """A .gguf file by hand, as its specification says: two values before the vocabulary, none of which may confuse."""
    entries = [
        text("general.name") + struct.pack("<I", 8) + text("tiny"),
        text("general.file_type") + struct.pack("<II", 4, 7),
        text("tokenizer.ggml.model") + struct.pack("<I", 8) + text(model),
        text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, len(tokens)) + b"".join(map(text, tokens)),
        text("tokenizer.ggml.token_type") + struct.pack(f"<IIQ{len(kinds)}i", 9, 5, len(kinds), *kinds),
    ]
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, len(entries)) + b"".join(entries))
    return path


def test_a_byte_level_tokenizer(tmp_path: Path):
    pieces = pieces_of(tokenizer_json(tmp_path))
    assert dict(pieces) == {0: b"a", 1: b" b", 2: b"\xe4\xbd", 3: b"\n", 4: b"<|im_end|>"}
    assert pieces_of(tmp_path / "tokenizer.json") == pieces


def test_a_sentencepiece_tokenizer(tmp_path: Path):
    vocabulary = [["<s>", 0.0], ["▁the", -1.0], ["<0x0A>", -2.0], ["é", -3.0]]
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"type": "Unigram", "vocab": vocabulary}}))
    assert dict(pieces_of(tmp_path)) == {0: b"<s>", 1: b" the", 2: b"\n", 3: "é".encode()}


def test_a_gguf_file_by_hand(tmp_path: Path):
    bytes_level = gguf(tmp_path / "a.gguf", "gpt2", ["Ġhi", "<|x|>", "Ġ"], [1, 3, 1])
    assert dict(pieces_of(bytes_level)) == {0: b" hi", 1: b"<|x|>", 2: b" "}
    words = gguf(tmp_path / "b.gguf", "llama", ["▁hi", "<0xE4>"], [1, 6])
    assert dict(pieces_of(words)) == {0: b" hi", 1: b"\xe4"}


@pytest.mark.full
def test_the_real_gguf_file_spells_what_the_engine_decoded():
    """The recorded text was decoded by vLLM with the model's own tokenizer."""
    from samepolicy.testing import smollm2_path

    pieces, run = pieces_of(smollm2_path()), recorded()
    assert len(pieces) == 49152
    for row, said in zip(run["response_ids"], run["text"], strict=True):
        assert b"".join(pieces[i] for i in row.tolist()).decode() == said


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer.json", b"{"),
        ("tokenizer.json", b'{"model": 3}'),
        ("x.gguf", b""),
        ("x.gguf", b"GGUF" + b"\xff" * 40),
        ("x.gguf", b"GGUF" + struct.pack("<IQQ", 3, 0, 0)),
    ],
)
def test_what_is_no_tokenizer_is_refused_in_a_sentence(tmp_path: Path, name: str, content: bytes):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError) as refused:
        pieces_of(tmp_path / name)
    assert name in str(refused.value)
    assert str(refused.value).endswith((".", "?"))


def test_a_place_without_a_tokenizer(tmp_path: Path):
    with pytest.raises(InputError, match=r"give a folder with tokenizer\.json"):
        pieces_of(tmp_path)


def test_a_run_can_carry_the_text_of_its_ids(tmp_path: Path):
    run = sp.Run.from_lists(response_ids=[[0, 2, 7]], rollout_logp=[[-1.0] * 3])
    held = with_pieces(run, tokenizer_json(tmp_path))
    sp.write(held, tmp_path / "run")
    assert pieces_in(sp.read(tmp_path / "run")) == {0: b"a", 2: b"\xe4\xbd"}


def test_the_recorded_run_carries_its_own_text():
    run = recorded()
    known = pieces_in(run)
    for row, text in enumerate(run["text"]):
        said = b"".join(known[i] for i in run["response_ids"][row].tolist()).decode("utf-8", "replace")
        assert said == text


def test_a_side_that_names_a_local_folder_is_asked(tmp_path: Path):
    side = sp.Side(model=str(tokenizer_json(tmp_path)))
    assert pieces_in(sp.Run(rollout=side))[1] == b" b"
    assert pieces_in(sp.Run(rollout=sp.Side(model="org/name"))) == {}
    assert pieces_in(sp.Run(rollout=sp.Side(model=str(tmp_path / "gone")))) == {}


def test_pieces_are_cut_and_bytes_are_kept():
    assert shown("\ud800".encode("utf-8", "surrogatepass")) == {"bytes": "eda080"}
    assert shown(b"\xff" * 700) == {"bytes": "ff" * 600, "length": 700}
    assert spell([1, 2, 9], {1: b"x", 2: b"\xff"}) == {"1": "x", "2": {"bytes": "ff"}}
