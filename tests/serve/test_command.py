"""The command: where it answers, what it refuses, and how it ends."""

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.cli import conftest as cli
from tests.serve.conftest import record

pytestmark = pytest.mark.full
call = cli.call


def test_it_answers_and_ends_cleanly_on_ctrl_c_with_a_page_listening(folder: Path):
    record(folder, {1: 0.01})
    command = [sys.executable, "-m", "samepolicy", "serve", str(folder), "--port", "0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ
    ) as process:
        try:
            said = process.stdout.readline()
            url = re.search(r"http://127\.0\.0\.1:\d+/", said)[0]
            with httpx.Client(base_url=url, timeout=30) as client, client.stream("GET", "/events") as events:
                lines = events.iter_lines()
                assert next(lines) == "retry: 1500"
                assert next(line for line in lines if line.startswith("data: "))
                process.send_signal(signal.SIGINT)
                rest = list(lines)
            out, err = process.communicate(timeout=30)
        finally:
            process.kill()
    assert (process.returncode, out, err) == (0, "", "The live page has ended.\n")
    assert isinstance(rest, list)


def test_a_port_in_use_is_one_sentence(call: cli.Call, folder: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refusal = call("serve", folder, "--port", port).refusal
    assert refusal == f"Port {port} of 127.0.0.1 is in use; give another --port, or 0 for any free one."


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--token", "short"), "A token needs 16 to 256"),
        (("--token", "sixteen letters and <b>"), "A token needs 16 to 256"),
        (("--host", "no.such.host.invalid"), "is no address of this machine"),
        (("--host", "192.0.2.1"), "cannot be opened"),
        (("--tokenizer", "nowhere"), "There is no tokenizer at nowhere"),
    ],
)
def test_wrong_options_are_refused(call: cli.Call, folder: Path, arguments: tuple[str, str], sentence: str):
    assert sentence in call("serve", folder, *arguments).refusal


def test_wrong_folders_are_refused(call: cli.Call, folder: Path):
    assert "is no folder" in call("serve", folder / "nothing").refusal
    (folder / "notes.txt").write_text("mine")
    assert "holds other files (notes.txt) and no run" in call("serve", folder).refusal
    assert "is not on this machine" in call("serve", "s3://bucket/run").refusal
    assert [p.name for p in folder.iterdir()] == ["notes.txt"]
