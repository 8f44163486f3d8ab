"""Servers that lie, die, dawdle or send elsewhere, and a key that must stay where it is."""

import json
import os
import socket
import ssl
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from samepolicy.arrays import Ragged
from samepolicy.engines import server_client
from samepolicy.engines.base import Engine, engine
from samepolicy.engines.server_client import KEY, Client, Patience
from samepolicy.engines.server_journal import Call
from samepolicy.errors import EngineError, InputError
from tests.fake_server import KINDS, Toy, moved, raw, serving

pytestmark = pytest.mark.full
TOY = Toy()
PROMPTS = Ragged.from_lists([TOY.engine.encode("one"), TOY.engine.encode("three four")])
RESPONSES = Ragged.from_lists([[5, 6, 7], [40]])
ONCE = Patience(retries=0, timeout=5)
SECRET = "very-secret"


def connected(url: str, **options: Any) -> Engine:
    return engine(f"server:{url}", **{"retries": 0, "timeout": 5.0, **options})


def changed(change: Callable[[dict[str, Any]], Any], kind: str = "vllm") -> Any:
    """A stand-in whose answers with tokens are changed before they are sent."""

    def answer(path: str, body: dict[str, Any], _: dict[str, str]) -> Any:
        code, value = KINDS[kind](TOY, path, body)
        if path in ("/v1/completions", "/generate", "/completion"):
            change(value)
        return code, value

    return answer


@pytest.fixture
def secret(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv(KEY, SECRET)
    return SECRET


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_a_redirect_is_refused_and_the_key_does_not_follow_it(secret: str, code: int):
    seen: list[str] = []
    answer = lambda path, *_: seen.append(path) or (200, {"version": "0.32.0"})  # noqa: E731
    with serving(answer) as other, moved(code, other) as url:
        client = Client(url, ONCE)
        for ask in (lambda: client.get("/version"), lambda: client.post(Call("/x", {}))):
            with pytest.raises(EngineError, match="sends requests on to http.*nor the key") as caught:
                ask()
            assert secret not in str(caught.value)
    assert seen == []


def test_a_certificate_that_nobody_vouches_for_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pair = [tmp_path / name for name in ("key.pem", "cert.pem")]
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    made += ["-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*made, "-keyout", pair[0], "-out", pair[1]], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair[1], pair[0])
    reply = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"
    refused = pytest.raises(EngineError, match=r"certificate of .* cannot be trusted.*SSL_CERT_FILE")
    begin = time.monotonic()
    with raw(lambda c: c.sendall(reply), context) as url:
        with refused:
            Client(url, Patience()).get("/version")
        assert time.monotonic() - begin < 5  # no retries
        monkeypatch.setenv("SSL_CERT_FILE", str(pair[1]))
        assert Client(url, Patience()).get("/version") == {}


def test_no_proxy_stands_between_two_processes_of_one_machine(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    with serving(lambda *_: (200, {"a": 1})) as url:
        assert Client(url, ONCE).get("/version") == {"a": 1}


def test_https_to_a_plain_server_is_one_sentence():
    with serving(lambda *_: (200, {})) as url, pytest.raises(EngineError, match="gave no answer in 1 tries"):
        Client(url.replace("http:", "https:"), ONCE).get("/version")


@pytest.mark.parametrize("key", ["two\nlines", "schlüssel", "a\x00b"])
def test_a_key_that_no_header_can_carry_is_refused_unseen(monkeypatch: pytest.MonkeyPatch, key: str):
    if "\x00" in key:
        monkeypatch.setattr(os, "environ", {KEY: key})
    else:
        monkeypatch.setenv(KEY, key)
    with pytest.raises(InputError, match=KEY) as caught:
        Client("localhost:1", ONCE)
    assert key not in str(caught.value)


def test_a_key_that_a_server_repeats_is_shown_and_kept_nowhere(secret: str, tmp_path: Path):
    journal = tmp_path / "journal"
    for code, kind in ((400, InputError), (500, EngineError), (418, EngineError)):
        answer = lambda *_, code=code: (code, {"error": f"no such key: {secret}"})  # noqa: E731
        with serving(answer) as url, pytest.raises(kind, match=r"no such key: \*\*\*"):
            Client(url, ONCE).post(Call("/x", {}))
    with serving(lambda *_: (200, {"echo": secret})) as url:
        Client(url, ONCE, str(journal)).post_all([Call("/x", {})], [len])
    assert secret not in journal.read_text()
    assert json.loads(journal.read_text())["answer"] == {"echo": "***"}


@pytest.mark.parametrize("code", [401, 403])
def test_a_key_that_is_wanted_is_asked_for(code: int):
    with serving(lambda *_: (code, {"error": "no"})) as url, pytest.raises(EngineError, match=f"set {KEY}"):
        connected(url)


@pytest.mark.parametrize("url", ["http://localhost:99999", "http://[::1", "http://a b", "http://host:x", "host\x00"])
def test_an_address_that_cannot_be_is_refused(url: str):
    with pytest.raises(InputError, match="not the address of a server"):
        Client(url, ONCE)


def test_a_password_in_an_address_is_not_repeated():
    for url in ("ftp://me:hunter2@host", "http://me:hunter2@host", "http://host?key=hunter2"):
        with pytest.raises(InputError) as caught:
            Client(url, ONCE)
        assert "hunter2" not in str(caught.value)


def test_an_answer_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(server_client, "LARGEST", 10_000)
    with serving(lambda *_: (200, {"x": "y" * 100_000})) as url, pytest.raises(EngineError, match="more than 10,000"):
        Client(url, Patience()).get("/version")


def test_an_answer_that_trickles_in_ends_with_the_time_for_it():
    def trickle(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        for _ in range(100):
            connection.sendall(b" ")
            time.sleep(0.05)

    begin = time.monotonic()
    with raw(trickle) as url, pytest.raises(EngineError, match=r"no whole answer within 0\.3 s"):
        Client(url, Patience(retries=0, timeout=0.3)).get("/version")
    assert time.monotonic() - begin < 3


def test_an_answer_that_is_cut_off_is_asked_for_again():
    asked: list[int] = []

    def cut(connection: socket.socket) -> None:
        asked.append(1)
        whole = b'HTTP/1.1 200 OK\r\nContent-Length: 9\r\nConnection: close\r\n\r\n{"a": 12}'
        connection.sendall(whole if len(asked) > 2 else whole[:-4])

    with raw(cut) as url:
        assert Client(url, Patience(retries=2, pause=0.0)).get("/version") == {"a": 12}


def test_deeply_nested_json_is_one_sentence():
    with serving(lambda *_: (200, "[" * 200_000)) as url, pytest.raises(EngineError, match="did not answer with JSON"):
        Client(url, ONCE).get("/version")
