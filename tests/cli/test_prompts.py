"""Prompts from files: what is read, and that a bad line is named."""

from pathlib import Path

import pytest

from samepolicy.cli.prompts import read_prompts
from samepolicy.demo import PROMPTS
from samepolicy.errors import InputError
from tests.cli.conftest import Call

CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]


def test_text_is_a_prompt_a_line(tmp_path: Path):
    (tmp_path / "p.txt").write_bytes("\ufefffirst\r\n\n  \nsecond, é\n".encode())
    assert read_prompts(tmp_path / "p.txt") == ["first", "second, é"]


def test_json_lines_hold_texts_conversations_and_ids(tmp_path: Path):
    (tmp_path / "p.jsonl").write_text(
        '{"prompt": "first"}\n\n{"prompt": [{"role": "user", "content": "a"}], "id": 3}\n'
        '{"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]}\n'
        '{"prompt_ids": [1, 2, 3]}\n'
    )
    assert read_prompts(tmp_path / "p.jsonl") == ["first", [{"role": "user", "content": "a"}], CHAT, [1, 2, 3]]


def test_sixteen_prompts_come_with_the_package():
    assert read_prompts(None) == PROMPTS.read_text("utf-8").splitlines()
    assert len(read_prompts(None)) == 16


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("p.txt", b"", "holds no prompt"),
        ("p.txt", b"\n  \n", "holds no prompt"),
        ("p.txt", b"fine\n\xff\xfe\n", "Line 2 of {path} is not UTF-8"),
        ("p.csv", b"fine\n", "neither .txt nor .jsonl"),
        ("p.jsonl", b'{"prompt": "fine"}\n{"prompt": \n', "Line 2 of {path} is not JSON"),
        ("p.jsonl", b"\n[1, 2]\n", "Line 2 of {path} holds no prompt"),
        ("p.jsonl", b'{"prompt": 5}\n', "Line 1 of {path} holds no prompt"),
        ("p.jsonl", b'{"prompt": ""}\n', "Line 1 of {path} holds no prompt"),
        ("p.jsonl", b'{"messages": []}\n', "Line 1 of {path} holds no prompt"),
        ("p.jsonl", b'{"messages": [{"role": "user"}]}\n', "Line 1 of {path} holds no prompt"),
        ("p.jsonl", b'{"prompt_ids": [1, true]}\n', "Line 1 of {path} holds no prompt"),
        ("p.jsonl", b'{"prompt_ids": [-1]}\n', "Line 1 of {path} holds no prompt"),
        ("p.jsonl", b'{"prompt_ids": []}\n', "Line 1 of {path} holds no prompt"),
        ("p.jsonl", b'{"question": "?"}\n', "Line 1 of {path} holds no prompt"),
        ("p.jsonl", b"[" * 100_000, "Line 1 of {path} is not JSON"),
    ],
)
def test_a_bad_file_is_refused_with_the_line(tmp_path: Path, name: str, content: bytes, words: str):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InputError) as refused:
        read_prompts(path)
    assert words.format(path=path) in str(refused.value)


def test_a_folder_is_refused(tmp_path: Path):
    (tmp_path / "p.txt").mkdir()
    with pytest.raises(InputError, match="is a folder"):
        read_prompts(tmp_path / "p.txt")


def test_conversations_and_ids_reach_the_engine(call: Call, tmp_path: Path):
    (tmp_path / "p.jsonl").write_text('{"prompt": [{"role": "user", "content": "ab"}]}\n{"prompt_ids": [96, 66, 67]}\n')
    done = call("check", "toy:", "--prompts", tmp_path / "p.jsonl", "--max-tokens", 2, "--json")
    assert done.value["counts"]["sequences"] == 2
