"""Servers that lie, die, dawdle or send elsewhere, and a key that must stay where it is."""

import gzip
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

from samepolicy.engines import server_client
from samepolicy.engines.server_address import KEY
from samepolicy.engines.server_client import Client, Patience
from samepolicy.engines.server_journal import Call
from samepolicy.errors import EngineError, InputError, MissingDependencyError
from samepolicy.records.side import Sampling
from samepolicy.records.store import write
from tests.fake_server import KINDS, ONCE, PROMPTS, RESPONSES, SECRET, TOY, changed, connected, moved, raw, serving

pytestmark = pytest.mark.full


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


IMPOSSIBLE = ["http://localhost:99999", "http://[::1", "http://a b", "http://host:x", "host\x00", "http://a..b"]
IMPOSSIBLE += ["http://" + 64 * "a", "http://[v1.x]", "unix:///tmp/socket", "/tmp/socket"]


@pytest.mark.parametrize("url", IMPOSSIBLE)
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


def answering(body: bytes, *headers: bytes) -> Any:
    """A server that gives these bytes under these headers."""
    lines = [b"HTTP/1.1 200 OK", b"Content-Length: %d" % len(body), b"Connection: close", *headers, b"", body]
    return raw(lambda connection: connection.sendall(b"\r\n".join(lines)))


def test_an_answer_is_unpacked_in_no_way_that_was_not_asked_for():
    with answering(gzip.compress(b'{"a": 1}'), b"Content-Encoding: gzip") as url:
        assert Client(url, ONCE).get("/version") == {"a": 1}
    bomb = gzip.compress(gzip.compress(b" " * 2**24))
    for body, encoding in ((bomb, b"gzip, gzip"), (b"{}", b"br"), (b"{}", b"zstd"), (b"{}", b"zork")):
        refused = pytest.raises(EngineError, match="packs its answer as .*not asked for")
        with answering(body, b"Content-Encoding: " + encoding) as url, refused:
            Client(url, ONCE).get("/version")
    with answering(b"no gzip", b"Content-Encoding: gzip") as url, pytest.raises(EngineError, match="unpacked"):
        Client(url, ONCE).get("/version")


@pytest.mark.parametrize("body", [b'{"a": "\xff"}', '{"a": 1}'.encode("utf-16"), b"", b"<html>", b"9" * 5000])
def test_a_body_that_is_no_json_in_utf8_is_one_sentence(body: bytes):
    with answering(body) as url, pytest.raises(EngineError, match="did not answer with JSON"):
        Client(url, ONCE).get("/version")


@pytest.mark.parametrize(
    "proxy", ["foo://me:hunter2@host", "http://me:hunter2@[::1", "socks5://me:hunter2@host", ":::"]
)
def test_a_proxy_that_cannot_be_is_refused_without_its_password(monkeypatch: pytest.MonkeyPatch, proxy: str):
    monkeypatch.setenv("HTTP_PROXY", proxy)
    with pytest.raises((InputError, MissingDependencyError), match="HTTP_PROXY") as caught:
        Client("http://host.invalid", ONCE)
    assert "hunter2" not in str(caught.value)
    assert Client("http://LOCALHOST:1", ONCE).url == "http://LOCALHOST:1"  # no proxy, whatever the letters' case


def test_where_a_proxy_is_set_it_is_named_as_a_place_to_look_at(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HTTP_PROXY", "http://me:hunter2@127.0.0.1:9")
    with pytest.raises(EngineError, match="the proxy of the environment reaches it") as caught:
        Client("http://host.invalid", ONCE).get("/version")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("file", ["missing", "no certificate"])
def test_certificates_that_cannot_be_read_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, file: str):
    (tmp_path / "no certificate").write_text("x")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / file))
    with pytest.raises(InputError, match="SSL_CERT_FILE"):
        Client("https://host.invalid", ONCE)


def test_a_key_is_blanked_out_wherever_a_server_puts_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    key = 'sk-a/b"c\\d1'
    monkeypatch.setenv(KEY, key)

    def answer(path: str, body: dict[str, Any], _: dict[str, str]) -> Any:
        code, value = KINDS["vllm"](TOY, path, body)
        if path == "/v1/models":
            value["data"][0]["root"] = f"/models/{key}"
        elif path == "/v1/completions":
            value["choices"][0]["text"] = value[key] = f"it is {key}"
        return code, json.dumps(value).replace("/", "\\/")  # as some servers write a slash

    journal = tmp_path / "journal"
    with serving(answer) as url:
        run = connected(url, journal=str(journal)).generate(PROMPTS, Sampling(max_tokens=3))
    write(run, tmp_path / "run")
    assert (run["text"][0], run.rollout.model) == ("it is ***", "/models/***")
    assert not any(b"sk-a" in file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())


def test_no_part_of_a_key_is_left_at_the_end_of_a_long_message_or_in_a_redirect(secret: str):
    with serving(lambda *_: (400, {"error": "x" * 194 + secret})) as url, pytest.raises(InputError) as caught:
        Client(url, ONCE).post(Call("/x", {}))
    assert secret[:4] not in str(caught.value)
    with moved(302, f"http://host/{secret}") as url, pytest.raises(EngineError, match=r"host/\*\*\*/x") as told:
        Client(url, ONCE).get("/version")
    assert secret not in str(told.value)


def test_a_message_of_a_server_moves_no_cursor():
    with serving(lambda *_: (400, {"error": "a\x1b[2J\nb\x00"})) as url, pytest.raises(InputError) as caught:
        Client(url, ONCE).post(Call("/x", {}))
    assert "(a?[2J b?)" in str(caught.value)


def test_the_failure_that_stopped_the_others_is_the_one_that_is_told():
    def answer(path: str, body: dict[str, Any], _: dict[str, str]) -> Any:
        if body["at"] == 0:
            return 429, {}
        time.sleep(0.2)  # the first one waits for its next try by now
        return 400, {"error": "too long"}

    calls = [Call("/x", {"at": at}) for at in range(2)]
    with serving(answer) as url, pytest.raises(InputError, match="too long"):
        Client(url, Patience(retries=3, pause=5.0)).post_all(calls, [len, len])


WRONG = {
    "2 choices where one": lambda value: value.update(choices=value["choices"] * 2),
    "sampled True, which is no token id": lambda value: value["choices"][0]["token_ids"].__setitem__(0, True),
    "log-prob 'xxx.*…, which is no number": lambda value: value["choices"][0]["logprobs"]["token_logprobs"].__setitem__(
        0, "x" * 5000
    ),
    "empty choices": lambda value: value.update(choices=[]),
}


@pytest.mark.parametrize("sentence", WRONG)
def test_an_answer_that_nothing_can_be_read_from_is_one_short_sentence(sentence: str):
    with serving(changed(WRONG[sentence])) as url, pytest.raises(EngineError, match=sentence) as caught:
        connected(url).generate(PROMPTS, Sampling(max_tokens=4))
    assert len(str(caught.value)) < 400


def test_half_a_character_in_a_text_is_replaced_so_that_the_run_can_be_saved(tmp_path: Path):
    with serving(changed(lambda value: value["choices"][0].update(text="a\ud83d"))) as url:
        run = connected(url).generate(PROMPTS, Sampling(max_tokens=2))
    write(run, tmp_path / "run")
    assert run["text"].tolist() == ["a\ufffd"] * 2


def listed(change: Callable[[dict[str, Any]], Any]) -> Callable[[dict[str, Any]], Any]:
    """Change the likely tokens at the last place of a prompt."""
    return lambda value: change((value["choices"][0]["prompt_logprobs"] or [{}])[-1])


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda place: [place.pop(key) for key in list(place)[1:]], "1 likely tokens where 3"),
        (lambda place: place.update({str(2**70): {"logprob": -1.0}}), "an id that no vocabulary has"),
        (lambda place: place.update({"-4": {"logprob": -1.0}}), "an id that no vocabulary has"),
    ],
)
def test_lists_of_likely_tokens_that_are_not_what_was_asked_for_are_refused(change: Any, sentence: str):
    with serving(changed(listed(change))) as url, pytest.raises(EngineError, match=sentence):
        connected(url).score(PROMPTS, RESPONSES, top=3)


@pytest.mark.parametrize("there", [1, -1])
def test_more_or_fewer_lists_than_tokens_are_refused(there: int):
    def change(value: dict[str, Any]) -> None:
        tops = value["meta_info"].get("input_top_logprobs", [])
        tops[:] = tops + tops[-1:] if there > 0 else tops[:-1]

    with serving(changed(change, "sglang")) as url, pytest.raises(EngineError, match="lists of likely tokens for"):
        connected(url).score(PROMPTS, RESPONSES, top=3)


@pytest.mark.parametrize(
    "entry", [{"root": "a" * 5000}, {"root": "a\x00b"}, {"root": {"a": 1}}, {"max_model_len": None}]
)
def test_what_a_server_says_about_itself_in_no_usable_way_is_not_known(entry: dict[str, Any]):
    def answer(path: str, body: dict[str, Any], _: dict[str, str]) -> Any:
        return (200, {"data": [{"id": "toy", **entry}]}) if path == "/v1/models" else KINDS["vllm"](TOY, path, body)

    with serving(answer) as url:
        assert (connected(url).found.folder, connected(url).found.limit) == (None, None)


@pytest.mark.parametrize("limit", [-5, True, "z" * 5000, float("inf")])
def test_a_length_that_is_none_is_refused(limit: Any):
    def answer(path: str, body: dict[str, Any], _: dict[str, str]) -> Any:
        models = {"data": [{"id": "toy", "max_model_len": limit}]}
        return (200, models) if path == "/v1/models" else KINDS["vllm"](TOY, path, body)

    with serving(answer) as url, pytest.raises(EngineError, match="server") as caught:
        connected(url)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("wrong", [{"concurrency": 0}, {"retries": -1}, {"timeout": float("inf")}, {"timeout": 1e300}])
def test_patience_that_cannot_be_is_refused(wrong: dict[str, Any]):
    with pytest.raises(InputError, match=f"{next(iter(wrong))} must be"):
        Patience(**wrong)


def test_a_journal_is_a_file_and_a_line_that_cannot_be_read_is_left_out(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="cannot be written"):
        Client("localhost:1", ONCE, str(tmp_path / "pipe"))
    deep = '{"asked": "a", "answer": ' + "[" * 100_000
    (tmp_path / "journal").write_text(f'{deep}\n{{"asked": "b", "answer": 5}}\n{{"asked": "c", "answer": {{}}}}\n')
    assert Client("localhost:1", ONCE, str(tmp_path / "journal")).journal.kept == 1


@pytest.mark.parametrize("token", [5.7, "5", True, -1, None, 2**70])
def test_a_prompt_is_encoded_to_ids_or_not_at_all(token: Any):
    def answer(path: str, body: dict[str, Any], _: dict[str, str]) -> Any:
        return (200, {"tokens": [1, token]}) if path == "/tokenize" else KINDS["vllm"](TOY, path, body)

    with serving(answer) as url, pytest.raises(EngineError, match="which is no token id"):
        connected(url).encode("one")
