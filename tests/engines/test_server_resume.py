"""Runs through a server that are killed and go on, the journal that they go on from, and what is told beforehand."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from samepolicy.cli.main import status
from samepolicy.engines.server_client import Client
from samepolicy.errors import InputError
from tests.fake_server import KINDS, ONCE, PROMPTS, RESPONSES, TOY, connected, serving

pytestmark = pytest.mark.full


@pytest.mark.parametrize("text", ["my notes\n", "PAR1\x00\xff", '{"asked'[:4] + "!", '{"schema": 1}\n'])
def test_a_file_that_is_no_journal_is_left_alone(tmp_path: Path, text: str):
    file = tmp_path / "notes"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError, match="no journal"):
        Client("localhost:1", ONCE, str(file))
    assert file.read_bytes() == text.encode("latin-1")


def test_a_journal_that_cannot_be_written_is_refused_before_anything_is_asked(tmp_path: Path):
    asked: list[str] = []
    with serving(lambda path, *_: asked.append(path) or (200, {})) as url:
        for place in (tmp_path, tmp_path / "no" / "where"):
            with pytest.raises(InputError, match="cannot be written"):
                connected(url, journal=str(place))
    assert asked == []


def test_another_servers_answers_are_not_taken(tmp_path: Path):
    versions, asked = ["0.32.0", "0.33.0", "0.33.0"], []

    def answer(path: str, body: dict[str, Any], _: dict[str, str]) -> Any:
        if path == "/version":
            return 200, {"version": versions.pop(0)}
        asked.append(path)
        return KINDS["vllm"](TOY, path, body)

    with serving(answer) as url:
        for new in (2, 2, 0):
            asked.clear()
            connected(url, journal=str(tmp_path / "j")).score(PROMPTS, RESPONSES)
            assert asked.count("/v1/completions") == new


COMMAND = [
    sys.executable,
    "-m",
    "samepolicy",
    "check",
    "--rollout-concurrency",
    "2",
    "--trainer",
    "toy:",
    "--max-tokens",
    "6",
]


@pytest.fixture
def halting() -> Iterator[tuple[str, list[int], Event]]:
    """A vLLM stand-in that halts after six responses until it is told; its address, and what it was asked."""
    asked: list[int] = []
    go_on = Event()

    def answer(path: str, body: dict[str, Any], _: dict[str, str]) -> Any:
        if path == "/v1/completions" and body["max_tokens"] == 6:
            asked.append(1)
            if len(asked) > 6:
                go_on.wait(60)
        return KINDS["vllm"](TOY, path, body)

    with serving(answer) as url:
        yield url, asked, go_on
        go_on.set()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_run_that_was_killed_goes_on_where_it_stopped(
    halting: tuple[str, list[int], Event], tmp_path: Path, how: signal.Signals
):
    url, asked, go_on = halting
    out = tmp_path / "new" / "run"
    (tmp_path / "prompts.txt").write_text("".join(f"{i}\n" for i in range(16)))
    command = [*COMMAND, "--rollout", url, "--out", str(out), "--prompts", str(tmp_path / "prompts.txt")]
    with (tmp_path / "told").open("w") as told:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=told)
    for _ in range(600):
        if len(asked) >= 8:
            break
        time.sleep(0.05)
    process.send_signal(how)
    go_on.set()
    process.wait(20)
    assert ("the same command goes on from there" in (tmp_path / "told").read_text()) == (how == signal.SIGINT)
    before = len(asked)
    assert before < 14, "what waited was sent all the same"
    kept = (tmp_path / "new" / "run.journal").read_text().count('{"asked": ')
    assert 4 <= kept <= before
    asked.clear()
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr + done.stdout
    assert "Answers of an earlier call are in" in done.stderr
    assert len(asked) == 16 - kept
    assert not (tmp_path / "new" / "run.journal").exists()
    assert (out / "run.json").is_file()


def test_a_server_that_is_down_is_told_before_the_trainer_loads(capsys: pytest.CaptureFixture[str]):
    with serving(lambda *_: (200, {})) as url:
        pass
    asked = ["--rollout", url, "--rollout-retries", "0", "--trainer", "hf:/nowhere", "--trainer-dtype", "float32"]
    assert status(["check", *asked]) == 2
    assert "gave no answer" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["check", "paths"])
def test_a_missing_package_is_told_before_any_model_loads(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setitem(sys.modules, "httpx", None)
    assert status([command, "--rollout", "hf:/nowhere", "--trainer", "http://localhost:1"]) == 2
    assert "pip install 'samepolicy[server]'" in capsys.readouterr().err


def test_another_model_behind_the_server_is_noticed(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "prompts.txt").write_text("".join(f"{i}\n" for i in range(16)))
    with serving(lambda path, body, _: KINDS["vllm"](TOY, path, body)) as url:
        sides = ["--rollout", url, "--trainer", "toy:", "--trainer-seed", "9", "--dtype", "float32"]
        code = status(["check", *sides, "--prompts", str(tmp_path / "prompts.txt"), "--max-tokens", "6", "--json"])
    assert (code, json.loads(capsys.readouterr().out)["verdict"]) == (1, "different")
